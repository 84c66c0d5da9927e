/* Tersum's C interface (C99). Everything is in the three headers below; include this one.
 *
 * Every function that can fail returns a code: TERSUM_OK (0) or what went wrong; the text is in
 * tersum_last_error(), for each thread its own. No function throws, exits or prints. A NULL handle
 * or output pointer is TERSUM_INVALID_ARGUMENT, unless the function says what NULL means. After a
 * failure, what output pointers point at is unchanged, unless the function says otherwise.
 *
 * Handles are opaque and owned by the caller; each is given back once, by the function that its
 * maker names. Texts are UTF-8, end with a zero and are copied. Counts are elements, sizes are
 * bytes.
 *
 *   tersum_comm_t* comm;
 *   if (tersum_connect(NULL, &comm) != TERSUM_OK) { fputs(tersum_last_error(), stderr); return 1; }
 *   tersum_all_reduce(comm, x, x, count, TERSUM_FLOAT32, TERSUM_AVERAGE, NULL, NULL);
 *   tersum_comm_destroy(comm);
 */
#pragma once

#include "tersum/c_base.h"
#include "tersum/c_communicator.h"
#include "tersum/c_exchange.h"
