// C interface: errors, version, settings.
#include "src/c_api.hpp"

#include <new>

#include "tersum/stage.hpp"
#include "tersum/version.hpp"

namespace tersum::c_api {
namespace {

struct LastError {
  std::string text;
  const char* fixed_text = nullptr;  // stands in when there was no memory for `text`
  int rank = -1;
};
thread_local LastError last_error;

constexpr int value(auto enumerator) {
  return static_cast<int>(enumerator);
}

static_assert(TERSUM_OK == value(Code::Ok) &&
              TERSUM_INVALID_ARGUMENT == value(Code::InvalidArgument) &&
              TERSUM_INVALID_STATE == value(Code::InvalidState) &&
              TERSUM_UNSUPPORTED == value(Code::Unsupported) &&
              TERSUM_OUT_OF_MEMORY == value(Code::OutOfMemory) &&
              TERSUM_TIMEOUT == value(Code::Timeout) && TERSUM_PEER_LOST == value(Code::PeerLost) &&
              TERSUM_MISMATCH == value(Code::Mismatch) &&
              TERSUM_PROTOCOL == value(Code::Protocol) && TERSUM_ABORTED == value(Code::Aborted) &&
              TERSUM_SYSTEM == value(Code::System) && TERSUM_INTERNAL == value(Code::Internal));
static_assert(TERSUM_INT8 == value(DType::Int8) && TERSUM_UINT8 == value(DType::UInt8) &&
              TERSUM_INT16 == value(DType::Int16) && TERSUM_INT32 == value(DType::Int32) &&
              TERSUM_INT64 == value(DType::Int64) && TERSUM_BOOL == value(DType::Bool) &&
              TERSUM_FLOAT16 == value(DType::Float16) &&
              TERSUM_BFLOAT16 == value(DType::BFloat16) &&
              TERSUM_FLOAT32 == value(DType::Float32) && TERSUM_FLOAT64 == value(DType::Float64) &&
              kDTypeCount == TERSUM_FLOAT64 + 1);
static_assert(TERSUM_SUM == value(ReduceOp::Sum) && TERSUM_AVERAGE == value(ReduceOp::Average) &&
              TERSUM_MIN == value(ReduceOp::Min) && TERSUM_MAX == value(ReduceOp::Max) &&
              TERSUM_PRODUCT == value(ReduceOp::Product) && kReduceOpCount == TERSUM_PRODUCT + 1);
static_assert(TERSUM_STAGE_PLANNED == value(Stage::Planned) &&
              TERSUM_STAGE_SUBMITTED == value(Stage::Submitted) &&
              TERSUM_STAGE_READY == value(Stage::Ready) &&
              TERSUM_STAGE_GRANTED == value(Stage::Granted) &&
              TERSUM_STAGE_COMPRESSED == value(Stage::Compressed) &&
              TERSUM_STAGE_EXCHANGING == value(Stage::Exchanging) &&
              TERSUM_STAGE_DECOMPRESSED == value(Stage::Decompressed) &&
              TERSUM_STAGE_DONE == value(Stage::Done) &&
              TERSUM_STAGE_FAILED == value(Stage::Failed));

int remember_fixed(Code code, const char* text) noexcept {
  last_error.fixed_text = text;
  last_error.rank = -1;
  return value(code);
}

}  // namespace

int remember(const Status& status) noexcept {
  if (status.is_ok()) return TERSUM_OK;
  try {
    last_error.text = status.to_string();
    last_error.fixed_text = nullptr;
    last_error.rank = status.rank();
    return value(status.code());
  } catch (...) {
    return remember_fixed(status.code(), "an error occurred, but no memory is left to describe it");
  }
}

int remember_current() noexcept {
  try {
    throw;
  } catch (const Error& error) {
    return remember(error.status());
  } catch (const std::bad_alloc&) {
    return remember_fixed(Code::OutOfMemory, "OutOfMemory: no memory is left");
  } catch (const std::exception& error) {
    try {
      return remember(Status(Code::Internal, error.what()));
    } catch (...) {
      return remember_fixed(Code::OutOfMemory, "OutOfMemory: no memory is left");
    }
  } catch (...) {
    return remember_fixed(Code::Internal, "Internal: an unknown exception");
  }
}

DType dtype_of(tersum_dtype_t dtype) {
  if (dtype < 0 || dtype >= kDTypeCount)
    throw Error(Code::InvalidArgument, "unknown dtype " + std::to_string(dtype));
  return static_cast<DType>(dtype);
}

ReduceOp op_of(tersum_op_t op) {
  if (op < 0 || op >= kReduceOpCount)
    throw Error(Code::InvalidArgument, "unknown operator " + std::to_string(op));
  return static_cast<ReduceOp>(op);
}

}  // namespace tersum::c_api

using tersum::c_api::guarded;
using tersum::c_api::required;

const char* tersum_error_name(int code) {
  return tersum::to_string(static_cast<tersum::Code>(code)).data();
}

const char* tersum_last_error(void) {
  const auto& error = tersum::c_api::last_error;
  return error.fixed_text != nullptr ? error.fixed_text : error.text.c_str();
}

int tersum_last_error_rank(void) {
  return tersum::c_api::last_error.rank;
}

const char* tersum_version(void) {
  return tersum::version();
}

int tersum_config_create(tersum_config_t** config) {
  return guarded([&] {
    auto& result = required(config, "config");
    auto settings = tersum::read_settings_environment();
    tersum::config_from(settings);  // throws if something is wrong with them
    result = new tersum_config{std::move(settings)};
  });
}

int tersum_config_set(tersum_config_t* config, const char* name, const char* value) {
  return guarded([&] {
    auto& settings = required(config, "config").settings;
    const std::string variable = &required(name, "name"), text = &required(value, "value");
    // Whether settings contradict each other is seen when all of them are known.
    tersum::config_from({{variable, text}});
    settings[variable] = text;
  });
}

int tersum_config_destroy(tersum_config_t* config) {
  delete config;
  return TERSUM_OK;
}
