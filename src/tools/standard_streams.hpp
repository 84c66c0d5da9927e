// The standard streams of a tool: that there are three, and that what was written to them arrived.
#pragma once

#include <string>

namespace tersum::tools {

/// Opens /dev/null in place of standard descriptors that the tool was started without; otherwise
/// its pipes and sockets would become them. Call it before anything else is opened.
void open_standard_streams() noexcept;

/// The exit code of `tool`, whose work ended with `code`: 1 instead of 0, and a line on the
/// standard error, if something that it printed could not be written.
int exit_code_after_output(const std::string& tool, int code) noexcept;

}  // namespace tersum::tools
