// The border of the C++ interface: only Error leaves it.
#pragma once

#include <new>
#include <stdexcept>
#include <string>
#include <system_error>

#include "tersum/error.hpp"

namespace tersum {

/// For a catch block: throws the exception that is being handled as an Error whose message starts
/// with `what`. Lack of memory (and a size that no container can have) is OutOfMemory, what the
/// system refused is System, other exceptions of the standard library are Internal. An Error, and
/// what is no std::exception, passes as it is.
[[noreturn]] inline void rethrow_as_error(const std::string& what) {
  try {
    throw;
  } catch (const Error&) {
    throw;
  } catch (const std::bad_alloc&) {
    throw Error(Code::OutOfMemory, what + ": there is not enough memory");
  } catch (const std::length_error&) {
    throw Error(Code::OutOfMemory, what + ": a size is beyond any memory");
  } catch (const std::system_error& error) {
    throw Error(Code::System, what + ": " + error.what());
  } catch (const std::exception& error) {
    throw Error(Code::Internal, what + ": " + error.what());
  }
}

}  // namespace tersum
