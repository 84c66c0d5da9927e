#include "transport/control_frames.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>

namespace tersum::transport::control {
namespace {

constexpr std::string_view kMagic = "TERSUM";

class Writer {
 public:
  template <class T>
  Writer& number(T value) {
    static_assert(std::is_integral_v<T>);
    auto bits = static_cast<std::make_unsigned_t<T>>(value);
    for (std::size_t i = 0; i < sizeof(T); ++i) {
      bytes_.push_back(static_cast<std::byte>((bits >> (8 * i)) & 0xff));
    }
    return *this;
  }
  Writer& raw(ByteView bytes) {
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
    return *this;
  }
  Writer& sized(ByteView bytes) {
    return number(static_cast<std::uint32_t>(bytes.size())).raw(bytes);
  }
  Writer& text(std::string_view text) { return sized(as_bytes(text)); }
  Bytes take() { return std::move(bytes_); }

 private:
  Bytes bytes_;
};

class Reader {
 public:
  Reader(ByteView bytes, const char* what) : bytes_(bytes), what_(what) {}

  ByteView raw(std::size_t count) {
    if (count > bytes_.size()) fail("is cut short");
    const ByteView head = bytes_.first(count);
    bytes_ = bytes_.subspan(count);
    return head;
  }
  template <class T>
  T number() {
    std::make_unsigned_t<T> value = 0;
    const ByteView head = raw(sizeof(T));
    for (std::size_t i = 0; i < sizeof(T); ++i) {
      value = static_cast<std::make_unsigned_t<T>>(
          value |
          static_cast<std::make_unsigned_t<T>>(std::to_integer<std::uint64_t>(head[i]) << (8 * i)));
    }
    return static_cast<T>(value);
  }
  ByteView sized(std::size_t limit) {
    const std::size_t count = number<std::uint32_t>();
    if (count > limit) fail("has a field over its limit");
    return raw(count);
  }
  std::string text(std::size_t limit) {
    const ByteView bytes = sized(limit);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  Nonce nonce() {
    Nonce value;
    std::ranges::copy(raw(value.size()), value.begin());
    return value;
  }
  void finish() {
    if (!bytes_.empty()) fail("has bytes left over");
  }
  [[noreturn]] void fail(const char* why) const {
    throw Error(Code::Protocol, std::string("a control message (") + what_ + ") " + why);
  }

 private:
  ByteView bytes_;
  const char* what_;
};

void write_member(Writer& writer, const Member& member) {
  writer.text(member.host_id).sized(member.address);
}

Member read_member(Reader& reader) {
  Member member;
  member.host_id = reader.text(kMaxNameBytes);
  const ByteView address = reader.sized(kMaxAddressBytes);
  member.address.assign(address.begin(), address.end());
  return member;
}

Digest hello_tag(ByteView fields, ByteView key, const Nonce& server) {
  return hmac_sha256(key, {as_bytes("tersum hello"), server, fields});
}

}  // namespace

std::size_t table_cap(int size) noexcept {
  const std::size_t members =
      static_cast<std::size_t>(std::max(size, 0)) * (kMaxNameBytes + kMaxAddressBytes + 8);
  return std::min<std::size_t>(members + 64 + kMaxMessageBytes * 2, 1u << 30);
}

std::string to_string(Refusal refusal) {
  switch (refusal) {
    case Refusal::Version:
      return "another protocol version: install the same version of Tersum everywhere";
    case Refusal::Job:
      return "wrong job: check TERSUM_JOB and TERSUM_ROOT";
    case Refusal::Secret:
      return "wrong secret: check TERSUM_SECRET";
    case Refusal::Malformed:
      return "the hello was malformed: install the same version of Tersum everywhere";
  }
  return "unknown reason";
}

Bytes join_key(const std::string& secret, const std::string& job) {
  const std::string text = secret.empty() ? "tersum job without a secret: " + job : secret;
  const ByteView view = as_bytes(text);
  return {view.begin(), view.end()};
}

Digest session_key(ByteView key, const Nonce& server, const Nonce& client) {
  return hmac_sha256(key, {as_bytes("tersum session"), server, client});
}

Bytes encode(const Greeting& greeting) {
  return Writer().raw(as_bytes(kMagic)).number(greeting.version).raw(greeting.nonce).take();
}

Bytes encode(const Hello& hello, ByteView key, const Nonce& server) {
  Writer writer;
  writer.number(hello.version).text(hello.job).number<std::int32_t>(hello.rank);
  writer.number<std::int32_t>(hello.size).raw(hello.nonce);
  writer.number<std::int64_t>(hello.patience.count()).text(hello.settings);
  write_member(writer, hello.member);
  Bytes body = writer.take();
  const Digest tag = hello_tag(body, key, server);
  body.insert(body.end(), tag.begin(), tag.end());
  return body;
}

Bytes encode(Refusal refusal) {
  return Writer().number(static_cast<std::uint8_t>(refusal)).take();
}

Bytes encode(const Accepted& accepted) {
  return Writer().number(accepted.clock_ns).take();
}

Bytes encode(const std::vector<Member>& members) {
  Writer writer;
  writer.number(static_cast<std::uint32_t>(members.size()));
  for (const Member& member : members) write_member(writer, member);
  return writer.take();
}

Bytes encode(const Status& status) {
  const auto cut = [](const std::string& text) {
    return std::string_view(text).substr(0, kMaxMessageBytes);
  };
  return Writer()
      .number(static_cast<std::int32_t>(status.code()))
      .number<std::int32_t>(status.rank())
      .text(cut(status.message()))
      .text(cut(status.origin()))
      .take();
}

Bytes encode(const std::vector<int>& ranks) {
  Writer writer;
  writer.number(static_cast<std::uint32_t>(ranks.size()));
  for (const int rank : ranks) writer.number<std::int32_t>(rank);
  return writer.take();
}

Bytes encode_count(std::uint64_t value) {
  return Writer().number(value).take();
}

Greeting decode_greeting(ByteView body) {
  Reader reader(body, "greeting");
  const ByteView magic = reader.raw(kMagic.size());
  if (!std::ranges::equal(magic, as_bytes(kMagic))) reader.fail("has the wrong magic");
  Greeting greeting;
  greeting.version = reader.number<std::uint16_t>();
  // A later version may say more; all that matters then is that it is another one.
  if (greeting.version != kProtocolVersion) return greeting;
  greeting.nonce = reader.nonce();
  reader.finish();
  return greeting;
}

Hello decode_hello(ByteView body) {
  Reader reader(body, "hello");
  Hello hello;
  hello.version = reader.number<std::uint16_t>();
  if (hello.version != kProtocolVersion) return hello;
  hello.job = reader.text(kMaxNameBytes);
  hello.rank = reader.number<std::int32_t>();
  hello.size = reader.number<std::int32_t>();
  hello.nonce = reader.nonce();
  constexpr std::int64_t kYear = std::int64_t{366} * 24 * 3600 * 1000;
  hello.patience =
      std::chrono::milliseconds(std::clamp<std::int64_t>(reader.number<std::int64_t>(), 0, kYear));
  hello.settings = reader.text(kMaxSettingsBytes);
  hello.member = read_member(reader);
  reader.raw(sizeof(Digest));
  reader.finish();
  return hello;
}

bool is_authentic(ByteView hello_body, ByteView key, const Nonce& server) {
  if (hello_body.size() < sizeof(Digest)) return false;
  const ByteView fields = hello_body.first(hello_body.size() - sizeof(Digest));
  return equal_in_constant_time(hello_tag(fields, key, server), hello_body.last(sizeof(Digest)));
}

Refusal decode_refusal(ByteView body) {
  Reader reader(body, "refusal");
  const auto value = reader.number<std::uint8_t>();
  reader.finish();
  if (value < 1 || value > 4) reader.fail("has an unknown reason");
  return static_cast<Refusal>(value);
}

Accepted decode_accepted(ByteView body) {
  Reader reader(body, "acceptance");
  Accepted accepted;
  accepted.clock_ns = reader.number<std::int64_t>();
  reader.finish();
  return accepted;
}

std::vector<Member> decode_table(ByteView body, int size) {
  Reader reader(body, "table");
  if (reader.number<std::uint32_t>() != static_cast<std::uint32_t>(size)) {
    reader.fail("has another number of ranks");
  }
  std::vector<Member> members;
  for (int rank = 0; rank < size; ++rank) members.push_back(read_member(reader));
  reader.finish();
  return members;
}

Status decode_status(ByteView body) {
  Reader reader(body, "status");
  const auto code = reader.number<std::int32_t>();
  const auto rank = reader.number<std::int32_t>();
  if (code < static_cast<int>(Code::InvalidArgument) || code > static_cast<int>(Code::Internal)) {
    reader.fail("has an unknown code");
  }
  std::string message = reader.text(kMaxMessageBytes);
  std::string origin = reader.text(kMaxMessageBytes);
  reader.finish();
  return {static_cast<Code>(code), std::move(message), std::move(origin), rank};
}

std::vector<int> decode_ranks(ByteView body, int size) {
  Reader reader(body, "list of ranks");
  const auto count = reader.number<std::uint32_t>();
  if (count > static_cast<std::uint32_t>(size)) reader.fail("is longer than the job");
  std::vector<int> ranks;
  for (std::uint32_t i = 0; i < count; ++i) {
    ranks.push_back(reader.number<std::int32_t>());
    if (ranks.back() < 0 || ranks.back() >= size) reader.fail("has a rank out of range");
  }
  reader.finish();
  return ranks;
}

std::uint64_t decode_count(ByteView body) {
  Reader reader(body, "count");
  const auto value = reader.number<std::uint64_t>();
  reader.finish();
  return value;
}

Seal::Tag Seal::next(FrameType type, ByteView body) {
  Writer writer;
  writer.number(static_cast<std::uint8_t>(direction_)).number(counter_++);
  writer.number(static_cast<std::uint8_t>(type));
  const Digest digest = hmac_sha256(key_, {writer.take(), body});
  Tag tag;
  std::copy_n(digest.begin(), tag.size(), tag.begin());
  return tag;
}

void FrameSplitter::append(ByteView bytes) {
  // What has been given out already goes first, so that the buffer stays about one frame long.
  buffer_.erase(buffer_.begin(), buffer_.begin() + static_cast<std::ptrdiff_t>(begin_));
  begin_ = 0;
  buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
}

std::optional<FrameSplitter::Frame> FrameSplitter::next() {
  const ByteView pending = ByteView(buffer_).subspan(begin_);
  if (pending.size() < sizeof(std::uint32_t)) return std::nullopt;
  const std::size_t length = Reader(pending, "frame").number<std::uint32_t>();
  if (length == 0 || length > cap_) {
    throw Error(Code::Protocol, "a control message of " + std::to_string(length) +
                                    " bytes (allowed: 1 to " + std::to_string(cap_) + ")");
  }
  const ByteView rest = pending.subspan(sizeof(std::uint32_t));
  if (rest.size() < length) return std::nullopt;
  begin_ += sizeof(std::uint32_t) + length;
  return Frame{static_cast<FrameType>(rest[0]), rest.subspan(1, length - 1)};
}

}  // namespace tersum::transport::control
