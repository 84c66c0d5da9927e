/* Part of the C interface: codes, errors, version, element types, operators, settings.
 * Include tersum/tersum.h, which says what holds for all functions. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define TERSUM_API __attribute__((visibility("default")))
#else
#define TERSUM_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- codes and errors ---- */

/** What every function returns: TERSUM_OK, or what went wrong. Values never change. */
enum {
  TERSUM_OK = 0,
  TERSUM_INVALID_ARGUMENT = 1, /**< a value that the caller gave is wrong */
  TERSUM_INVALID_STATE = 2,    /**< a call that is not allowed now */
  TERSUM_UNSUPPORTED = 3,      /**< right in itself, but this build or method cannot do it */
  TERSUM_OUT_OF_MEMORY = 4,
  TERSUM_TIMEOUT = 5,   /**< a deadline passed */
  TERSUM_PEER_LOST = 6, /**< a rank died, hung or left; tersum_last_error_rank() names it */
  TERSUM_MISMATCH = 7,  /**< ranks disagree about a call, a plan or a setting */
  TERSUM_PROTOCOL = 8,  /**< bytes from the wire that cannot be right */
  TERSUM_ABORTED = 9,   /**< ended on request, or because its communicator is gone */
  TERSUM_SYSTEM = 10,   /**< the operating system or a library refused */
  TERSUM_INTERNAL = 11  /**< a fault of Tersum */
};

/** Name of a code: "PeerLost"; "Unknown" for a value outside the enum. Static memory. */
TERSUM_API const char* tersum_error_name(int code);

/** What the last call of this thread that failed had to say: what is wrong, and the remedy. ""
 * before the first one. A call that succeeds leaves it alone. Valid until this thread's next call
 * that fails. */
TERSUM_API const char* tersum_last_error(void);

/** World rank of the process at fault in that failure, or -1 when no single one is known. */
TERSUM_API int tersum_last_error_rank(void);

/** "0.1.0": version of the library at run time. Static memory. */
TERSUM_API const char* tersum_version(void);

/* ---- elements and operators ---- */

/** Element type of a tensor: one of the values below. Values never change. */
typedef int tersum_dtype_t;
enum {
  TERSUM_INT8 = 0,
  TERSUM_UINT8 = 1,
  TERSUM_INT16 = 2,
  TERSUM_INT32 = 3,
  TERSUM_INT64 = 4,
  TERSUM_BOOL = 5, /**< one byte, 0 or 1 */
  TERSUM_FLOAT16 = 6,
  TERSUM_BFLOAT16 = 7,
  TERSUM_FLOAT32 = 8,
  TERSUM_FLOAT64 = 9
};

/** How elements of all ranks are combined: one of the values below. Values never change. Of bool,
 * sum and max are "or", product and min are "and", average is refused. The average of integers is
 * rounded towards zero; their sums and products wrap. */
typedef int tersum_op_t;
enum { TERSUM_SUM = 0, TERSUM_AVERAGE = 1, TERSUM_MIN = 2, TERSUM_MAX = 3, TERSUM_PRODUCT = 4 };

/** Where on its road an operation is: one of the values below. Values never change. */
typedef int tersum_stage_t;
enum {
  TERSUM_STAGE_PLANNED = 0,      /**< registered; nothing submitted in this step */
  TERSUM_STAGE_SUBMITTED = 1,    /**< handed to the engine */
  TERSUM_STAGE_READY = 2,        /**< everything that travels with it has been submitted */
  TERSUM_STAGE_GRANTED = 3,      /**< priority and credit let it start */
  TERSUM_STAGE_COMPRESSED = 4,   /**< its payload exists */
  TERSUM_STAGE_EXCHANGING = 5,   /**< data moves between ranks */
  TERSUM_STAGE_DECOMPRESSED = 6, /**< the result is being decoded and scattered */
  TERSUM_STAGE_DONE = 7,
  TERSUM_STAGE_FAILED = 8
};

/* ---- settings ---- */

/** Settings of a job, for tersum_connect(). Owned by the caller; one thread at a time. */
typedef struct tersum_config tersum_config_t;

/** Makes settings: defaults overlaid with the TERSUM_* variables of this process. Fails with
 * TERSUM_INVALID_ARGUMENT for an unknown variable or a bad value. Free them with
 * tersum_config_destroy(). */
TERSUM_API int tersum_config_create(tersum_config_t** config);

/** Sets one setting by the name of its variable ("TERSUM_SLICE_BYTES") from text as it would stand
 * in the environment ("1M"); both are copied. An empty value brings the default back. Beats the
 * environment. Fails with TERSUM_INVALID_ARGUMENT, and changes nothing, if there is no such
 * variable or the value is not allowed. */
TERSUM_API int tersum_config_set(tersum_config_t* config, const char* name, const char* value);

/** Frees settings; does nothing for NULL. Communicators made with them are not affected. */
TERSUM_API int tersum_config_destroy(tersum_config_t* config);

#ifdef __cplusplus
}
#endif
