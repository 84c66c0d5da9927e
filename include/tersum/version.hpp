// Version of the headers; version() is that of the library at run time.
#pragma once

#define TERSUM_VERSION_MAJOR 0
#define TERSUM_VERSION_MINOR 1
#define TERSUM_VERSION_PATCH 0

namespace tersum {

/// "0.1.0": the library's own version.
const char* version() noexcept;

}  // namespace tersum
