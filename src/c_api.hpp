// What the parts of the C interface share: handles, and the border that no exception crosses.
#pragma once

#include <cstddef>
#include <cstring>
#include <string>
#include <unordered_map>
#include <utility>

#include "src/config.hpp"
#include "tersum/communicator.hpp"
#include "tersum/error.hpp"
#include "tersum/gradient_exchange.hpp"
#include "tersum/tersum.h"

struct tersum_config {
  tersum::SettingsEnvironment settings;  // what the environment said, and what the program has set
};
struct tersum_comm {
  tersum::Communicator communicator;
};
struct tersum_work {
  tersum::Work work;
};
struct tersum_exchange {
  tersum::GradientExchange exchange;
  std::unordered_map<std::string, std::size_t> index;
};

namespace tersum::c_api {

/// Makes `status` this thread's last error and returns its code. Ok is not remembered.
int remember(const Status& status) noexcept;
/// The same for the exception that is being handled.
int remember_current() noexcept;

/// Runs `function` and returns Ok or the code of what it threw.
template <class Function>
int guarded(Function&& function) noexcept {
  try {
    std::forward<Function>(function)();
    return TERSUM_OK;
  } catch (...) {
    return remember_current();
  }
}

/// Error InvalidArgument if `pointer` is null.
template <class T>
T& required(T* pointer, const char* name) {
  if (pointer == nullptr) throw Error(Code::InvalidArgument, std::string(name) + " is NULL");
  return *pointer;
}

/// A copy of a struct that the caller may have compiled with an older or newer header: fields that
/// the caller does not know keep their defaults; fields that this library does not know must be
/// zero. `first_bytes`: the size of the struct's first version.
template <class T>
T versioned(const T& given, const T& defaults, std::size_t first_bytes, const char* name) {
  if (given.size < first_bytes) {
    throw Error(Code::InvalidArgument, std::string(name) + ".size is " +
                                           std::to_string(given.size) + ", less than " +
                                           std::to_string(first_bytes) +
                                           ": start from the _INIT macro, or set it to sizeof");
  }
  const auto* bytes = reinterpret_cast<const unsigned char*>(&given);
  for (std::size_t i = sizeof(T); i < given.size; ++i) {
    if (bytes[i] != 0) {
      throw Error(Code::Unsupported,
                  std::string(name) + " sets a field that this version of Tersum does not know");
    }
  }
  T copy = defaults;
  std::memcpy(&copy, &given, given.size < sizeof(T) ? given.size : sizeof(T));
  return copy;
}

/// What the caller has named is of this type, or an error that says which value is wrong (the C++
/// call checks the range itself; here only what does not fit the enum's byte).
DType dtype_of(tersum_dtype_t dtype);
ReduceOp op_of(tersum_op_t op);

}  // namespace tersum::c_api
