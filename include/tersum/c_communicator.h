/* Part of the C interface: communicators, collectives, and handles on pending operations.
 * Include tersum/tersum.h, which says what holds for all functions. */
#pragma once

#include "tersum/c_base.h"

#ifdef __cplusplus
extern "C" {
#endif

/** A fixed group of ranks. Any thread may use it, but all ranks must make the calls on it in the
 * same order. */
typedef struct tersum_comm tersum_comm_t;

/** One operation that ends later. Never stays pending: success, failure, deadline or the end of its
 * communicator completes it. Any thread may use it; it may outlive its communicator. */
typedef struct tersum_work tersum_work_t;

/* ---- communicators ---- */

/** Joins the job that `config` (NULL: the environment) and the launcher's variables describe;
 * without any, it is a job of one rank. Blocks until all ranks have joined, at most
 * TERSUM_JOIN_TIMEOUT_MS. Give the communicator back with tersum_comm_destroy(). */
TERSUM_API int tersum_connect(const tersum_config_t* config, tersum_comm_t** comm);

/** This process's rank in the group, 0 .. size - 1. */
TERSUM_API int tersum_comm_rank(const tersum_comm_t* comm, int* rank);
/** Number of ranks of the group. */
TERSUM_API int tersum_comm_size(const tersum_comm_t* comm, int* size);
/** Rank in the job of rank `rank` of this group. */
TERSUM_API int tersum_comm_world_rank(const tersum_comm_t* comm, int rank, int* world_rank);

/** A new group of the ranks that gave the same `color`, ordered by (key, rank). Collective over
 * `comm`; blocks. With color < 0 this rank joins none, and *group is NULL. */
TERSUM_API int tersum_comm_split(tersum_comm_t* comm, int color, int key, tersum_comm_t** group);

/** Ends everything pending on this group, on all ranks, with TERSUM_ABORTED and `reason`; later
 * calls fail the same way. Does not block. */
TERSUM_API int tersum_comm_abort(tersum_comm_t* comm, const char* reason);

/** TERSUM_OK, or the code of the error that ended this group, which becomes the last error. */
TERSUM_API int tersum_comm_status(const tersum_comm_t* comm);

/** Bytes that this rank has handed to the transport for other ranks, headers not counted; of calls
 * over peer memory what they have to send at least, one that is captured included; of replays
 * nothing. */
TERSUM_API int tersum_comm_sent_bytes(const tersum_comm_t* comm, uint64_t* bytes);

/** Gives a communicator back; does nothing for NULL. No thread may use it any more. Work that is
 * pending ends with an error. The last one of a job says good-bye to the other ranks, which takes
 * at most TERSUM_SHUTDOWN_TIMEOUT_MS. */
TERSUM_API int tersum_comm_destroy(tersum_comm_t* comm);

/* ---- collectives ---- */

/** Settings of one call. Start from TERSUM_CALL_OPTIONS_INIT. */
typedef struct tersum_call_options {
  size_t size;        /**< sizeof(tersum_call_options_t): lets the struct grow */
  double pre_scale;   /**< every input element is multiplied by it first (floating dtypes only) */
  double post_scale;  /**< every result element is multiplied by it last (floating dtypes only) */
  int64_t timeout_ms; /**< deadline of this call in milliseconds; 0: TERSUM_TIMEOUT_MS */
  void* stream;       /**< cudaStream_t for device memory; NULL for host memory */
  int stream_ordered; /**< not 0: on device memory of ranks of one host the work is done at once,
                       * and the call costs little more than its launch; what comes of it is the
                       * stream's order, and tersum_comm_status() if it fails. The communicator may
                       * be destroyed when the stream has done it. An address that has once been
                       * device memory is taken to be so still. Elsewhere it changes nothing. */
} tersum_call_options_t;

#define TERSUM_CALL_OPTIONS_INIT \
  { sizeof(tersum_call_options_t), 1.0, 1.0, 0, NULL, 0 }

/* In all of these: counts are elements of `dtype`; `options` may be NULL; with `work` NULL the call
 * blocks until the operation has ended and returns its outcome, otherwise it returns at once,
 * *work is to be freed with tersum_work_free(), and the buffers stay alive and untouched until the
 * work is done. A pointer to data may be NULL when its count is 0. In place means input == output
 * unless it says otherwise. A failed call leaves inputs as they were. Ranks that disagree about a
 * call (other collective, count, dtype, operator, root, scale) all get TERSUM_MISMATCH. */

/** output[count] = op over ranks of input[count], the same bits on all ranks. In place or not. */
TERSUM_API int tersum_all_reduce(tersum_comm_t* comm, const void* input, void* output, size_t count,
                                 tersum_dtype_t dtype, tersum_op_t op,
                                 const tersum_call_options_t* options, tersum_work_t** work);

/** output[count] = this rank's part of the reduction of input[count * size]. In place: output is
 * that part of input. */
TERSUM_API int tersum_reduce_scatter(tersum_comm_t* comm, const void* input, void* output,
                                     size_t count, tersum_dtype_t dtype, tersum_op_t op,
                                     const tersum_call_options_t* options, tersum_work_t** work);

/** output[count * size] = input[count] of all ranks, in rank order. In place: input is this rank's
 * part of output. */
TERSUM_API int tersum_all_gather(tersum_comm_t* comm, const void* input, void* output, size_t count,
                                 tersum_dtype_t dtype, const tersum_call_options_t* options,
                                 tersum_work_t** work);

/** As tersum_all_gather() with counts[r] elements from rank r; counts has one entry a rank, the
 * same on all ranks, and is copied. */
TERSUM_API int tersum_all_gather_v(tersum_comm_t* comm, const void* input, void* output,
                                   const size_t* counts, tersum_dtype_t dtype,
                                   const tersum_call_options_t* options, tersum_work_t** work);

/** data[count] of `root` to all ranks, in place. */
TERSUM_API int tersum_broadcast(tersum_comm_t* comm, void* data, size_t count, tersum_dtype_t dtype,
                                int root, const tersum_call_options_t* options,
                                tersum_work_t** work);

/** output[count] on `root` = op over ranks of input[count]; on other ranks output is not used and
 * may be NULL. In place or not. */
TERSUM_API int tersum_reduce(tersum_comm_t* comm, const void* input, void* output, size_t count,
                             tersum_dtype_t dtype, tersum_op_t op, int root,
                             const tersum_call_options_t* options, tersum_work_t** work);

/** Part r of output = part `rank` of rank r's input; parts are [count]. Not in place. */
TERSUM_API int tersum_all_to_all(tersum_comm_t* comm, const void* input, void* output, size_t count,
                                 tersum_dtype_t dtype, const tersum_call_options_t* options,
                                 tersum_work_t** work);

/** As tersum_all_to_all() with send_counts[r] elements to and receive_counts[r] elements from rank
 * r, packed in rank order. Both have one entry a rank and are copied. */
TERSUM_API int tersum_all_to_all_v(tersum_comm_t* comm, const void* input,
                                   const size_t* send_counts, void* output,
                                   const size_t* receive_counts, tersum_dtype_t dtype,
                                   const tersum_call_options_t* options, tersum_work_t** work);

/** Point to point: the n-th send to `peer` meets its n-th receive from here; counts and dtypes must
 * agree. A rank cannot send to itself. */
TERSUM_API int tersum_send(tersum_comm_t* comm, const void* data, size_t count,
                           tersum_dtype_t dtype, int peer, const tersum_call_options_t* options,
                           tersum_work_t** work);
/** The other side of tersum_send(). */
TERSUM_API int tersum_receive(tersum_comm_t* comm, void* data, size_t count, tersum_dtype_t dtype,
                              int peer, const tersum_call_options_t* options, tersum_work_t** work);

/** Ends when all ranks have called it. With a stream in `options`: what is in the stream later
 * starts when the streams of all ranks have come here. */
TERSUM_API int tersum_barrier(tersum_comm_t* comm, const tersum_call_options_t* options,
                              tersum_work_t** work);

/* ---- pending operations ---- */

/** *done = 1 once the operation has ended, well or badly; else 0. Does not block. */
TERSUM_API int tersum_work_done(const tersum_work_t* work, int* done);

/** Blocks until the operation has ended, at most timeout_ms milliseconds (negative: without limit).
 * *done (may be NULL without limit) tells whether it has. Returns the operation's outcome, or
 * TERSUM_OK if it is still pending: it goes on, wait again. Without limit, TERSUM_TIMEOUT with
 * *done = 0 says that a gradient waits for others that were never submitted; the last error names
 * them. */
TERSUM_API int tersum_work_wait(const tersum_work_t* work, int64_t timeout_ms, int* done);

/** What is put into `stream` (a cudaStream_t of the current device) from now on starts after the
 * operation has ended, well or badly; does not block the host, but for a second stream that
 * waits at a time and where CUDA_DEVICE_MAX_CONNECTIONS is less than 8 (see Work::wait_on()).
 * TERSUM_UNSUPPORTED without a GPU, and while the stream is captured into a graph; TERSUM_TIMEOUT
 * as tersum_work_wait() has it, if it blocks: the stream does not wait then. */
TERSUM_API int tersum_work_wait_on(const tersum_work_t* work, void* stream);

/** TERSUM_OK while pending and after success, else the code of the failure, which becomes the last
 * error. Does not block. */
TERSUM_API int tersum_work_status(const tersum_work_t* work);

/** Where on the road the operation is. Does not block. */
TERSUM_API int tersum_work_stage(const tersum_work_t* work, tersum_stage_t* stage);

/** Frees the handle; does nothing for NULL. A pending operation goes on, so its buffers must stay
 * alive all the same. */
TERSUM_API int tersum_work_free(tersum_work_t* work);

#ifdef __cplusplus
}
#endif
