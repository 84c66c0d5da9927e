/* Part of the C interface: exchange of a model's gradients, step by step.
 * Include tersum/tersum.h, which says what holds for all functions. */
#pragma once

#include "tersum/c_communicator.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Exchanges the gradients of one model. Each gradient is submitted once a step, in any order, by
 * any thread; the step ends with tersum_exchange_commit(), or by itself when the next step's first
 * submit comes after everything is done. */
typedef struct tersum_exchange tersum_exchange_t;

/** One gradient of the model. Texts are copied when the exchange is made. */
typedef struct tersum_gradient {
  const char* key;        /**< unique name: "conv1.weight" */
  size_t count;           /**< elements */
  tersum_dtype_t dtype;   /**< not TERSUM_BOOL */
  int position;           /**< place in the forward pass: 0 is needed first, the most urgent */
  const char* compressor; /**< spec for this gradient ("topk:ratio=0.01+ef"), which beats rules and
                               the general setting; NULL: those decide */
  int on_device;          /**< 0: in host memory; 1: on the device that is current when the exchange
                               is made (CUDA) */
} tersum_gradient_t;

/** Takes a number from the settings of the communicator. */
#define TERSUM_FROM_CONFIG ((size_t)-1)

/** Settings of one exchange. Start from TERSUM_EXCHANGE_OPTIONS_INIT, which takes everything from
 * the settings of the communicator; texts may be NULL for the same. */
typedef struct tersum_exchange_options {
  size_t size;                  /**< sizeof(tersum_exchange_options_t): lets the struct grow */
  const char* compressor;       /**< TERSUM_COMPRESSOR */
  const char* compressor_rules; /**< TERSUM_COMPRESSOR_RULES */
  const char* policy;           /**< TERSUM_POLICY */
  size_t compress_min_bytes;    /**< TERSUM_COMPRESS_MIN_BYTES */
  size_t bucket_bytes;          /**< TERSUM_BUCKET_BYTES */
  size_t slice_bytes;           /**< TERSUM_SLICE_BYTES */
  size_t credit_bytes;          /**< TERSUM_CREDIT_BYTES */
  const uint64_t* seed;         /**< TERSUM_SEED; NULL: from the settings. Copied */
  tersum_op_t op;               /**< TERSUM_AVERAGE or TERSUM_SUM */
} tersum_exchange_options_t;

#define TERSUM_EXCHANGE_OPTIONS_INIT                                                             \
  {                                                                                              \
    sizeof(tersum_exchange_options_t), NULL, NULL, NULL, TERSUM_FROM_CONFIG, TERSUM_FROM_CONFIG, \
        TERSUM_FROM_CONFIG, TERSUM_FROM_CONFIG, NULL, TERSUM_AVERAGE                             \
  }

/** Counters since the exchange was made. */
typedef struct tersum_exchange_statistics {
  size_t size;               /**< sizeof(tersum_exchange_statistics_t), set by the caller */
  uint64_t steps;            /**< steps that have ended */
  uint64_t sent_bytes;       /**< handed to the transport for other ranks */
  uint64_t dense_bytes;      /**< what a dense fp32 all-reduce would have sent */
  uint64_t slices;           /**< slices exchanged */
  uint64_t overdrawn_slices; /**< admitted beyond the credit because a peer had started them */
} tersum_exchange_statistics_t;

/** Makes an exchange of gradients[gradient_count]. Collective and blocking: all ranks give equal
 * gradients and options, else all get TERSUM_MISMATCH with both views. `options` may be NULL. The
 * exchange stays usable after tersum_comm_destroy(). Give it back with tersum_exchange_destroy().
 */
TERSUM_API int tersum_exchange_create(tersum_comm_t* comm, const tersum_gradient_t* gradients,
                                      size_t gradient_count,
                                      const tersum_exchange_options_t* options,
                                      tersum_exchange_t** exchange);

/** Index of the gradient `key` in the list given at creation. */
TERSUM_API int tersum_exchange_index(const tersum_exchange_t* exchange, const char* key,
                                     size_t* index);

/** Hands data[count] of a gradient over; it is replaced by the average (or sum) over ranks when the
 * exchange of this gradient ends, and is unchanged if that fails. The memory stays alive and
 * untouched until then. `stream` is a cudaStream_t for device memory, NULL for host memory. Never
 * blocks: with `work` NULL, wait with tersum_exchange_wait() or tersum_exchange_wait_all();
 * otherwise free *work with tersum_work_free(). */
TERSUM_API int tersum_exchange_submit(tersum_exchange_t* exchange, size_t index, void* data,
                                      void* stream, tersum_work_t** work);

/** Blocks until this gradient's exchange in the current step has ended; returns its outcome.
 * TERSUM_INVALID_STATE if it was not submitted; TERSUM_TIMEOUT also while it is pending, as
 * tersum_work_wait() has it. */
TERSUM_API int tersum_exchange_wait(tersum_exchange_t* exchange, size_t index);

/** Blocks until all that were submitted in this step have ended; returns the first failure.
 * TERSUM_TIMEOUT also while some are pending, as tersum_exchange_wait() has it. */
TERSUM_API int tersum_exchange_wait_all(tersum_exchange_t* exchange);

/** Ends the step: its residuals become valid. Waits for pending gradients first. Fails if one has
 * failed (then call tersum_exchange_rollback()) or was not submitted. */
TERSUM_API int tersum_exchange_commit(tersum_exchange_t* exchange);

/** Discards the step: waits for what is pending and forgets its residuals. All ranks do it for the
 * same step. */
TERSUM_API int tersum_exchange_rollback(tersum_exchange_t* exchange);

/** Copies the compressors' states and the step number of this rank to buffer[capacity], for a
 * checkpoint; *bytes is the size of it. Between steps only. With `buffer` NULL nothing is copied;
 * TERSUM_INVALID_ARGUMENT if the capacity is too small. */
TERSUM_API int tersum_exchange_save(const tersum_exchange_t* exchange, void* buffer,
                                    size_t capacity, size_t* bytes);

/** Brings back what tersum_exchange_save() gave on the same rank of an exchange with the same plan.
 * Between steps only. TERSUM_INVALID_ARGUMENT, and nothing is changed, if the bytes are not that.
 */
TERSUM_API int tersum_exchange_load(tersum_exchange_t* exchange, const void* data, size_t bytes);

/** Counters since the exchange was made; statistics->size is set by the caller. */
TERSUM_API int tersum_exchange_get_statistics(const tersum_exchange_t* exchange,
                                              tersum_exchange_statistics_t* statistics);

/** Hash of the plan: equal on all ranks, and the same for equal gradients and options. */
TERSUM_API int tersum_exchange_plan_hash(const tersum_exchange_t* exchange, uint64_t* hash);

/** Gives an exchange back; does nothing for NULL. No thread may use it any more, and what it was
 * handed should have ended (tersum_exchange_wait_all()). */
TERSUM_API int tersum_exchange_destroy(tersum_exchange_t* exchange);

#ifdef __cplusplus
}
#endif
