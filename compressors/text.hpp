// Small text helpers of the spec grammar and its error messages.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tersum::compressors {

/// `text` without blanks and tabs at both ends.
std::string_view trim(std::string_view text) noexcept;

/// The pieces of `text` between `separator`s, trimmed; one piece more than there are separators.
std::vector<std::string_view> split(std::string_view text, char separator);

/// The word of `words` with the smallest edit distance to `word`, whatever their case (the first
/// one on ties); empty if `words` is.
std::string nearest_word(std::string_view word, const std::vector<std::string>& words);

/// " (did you mean 'x'?)", or "" if `words` is empty: the end of an error message.
std::string suggestion(std::string_view word, const std::vector<std::string>& words);

/// 'text' in single quotes.
std::string quoted(std::string_view text);

/// The shortest decimal text that reads back as `value`.
std::string number_text(double value);

/// True if `pattern` with * (any text) and ? (any one character) matches all of `text`.
bool glob_match(std::string_view pattern, std::string_view text) noexcept;

}  // namespace tersum::compressors
