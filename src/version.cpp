#include "tersum/version.hpp"

#define TERSUM_TEXT2(x) #x
#define TERSUM_TEXT(x) TERSUM_TEXT2(x)

namespace tersum {

const char* version() noexcept {
  return TERSUM_TEXT(TERSUM_VERSION_MAJOR) "." TERSUM_TEXT(TERSUM_VERSION_MINOR) "." TERSUM_TEXT(
      TERSUM_VERSION_PATCH);
}

}  // namespace tersum
