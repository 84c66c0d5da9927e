/* A rank of a job of two: an all-reduce, then gradients with top-k and error feedback. */
#include <stdio.h>
#include <string.h>
#include <tersum/tersum.h>

#define COUNT 1000
#define STEPS 12

static int failed(const char* what) {
  fprintf(stderr, "%s: %s\n", what, tersum_last_error());
  return 1;
}

static int check_all_reduce(tersum_comm_t* comm, int rank) {
  float data[COUNT];
  int i;
  for (i = 0; i < COUNT; ++i) data[i] = (float)(i * (rank + 1));
  if (tersum_all_reduce(comm, data, data, COUNT, TERSUM_FLOAT32, TERSUM_SUM, NULL, NULL) !=
      TERSUM_OK) {
    return failed("all-reduce");
  }
  for (i = 0; i < COUNT; ++i) {
    if (data[i] != (float)(3 * i)) {
      fprintf(stderr, "element %d of the sum is %g\n", i, (double)data[i]);
      return 1;
    }
  }
  return 0;
}

/* The same gradient of small integers in each step: what has come through after some steps, and
 * what error feedback still holds back, is known. */
static int check_exchange(tersum_comm_t* comm, int rank) {
  tersum_exchange_options_t options = TERSUM_EXCHANGE_OPTIONS_INIT;
  tersum_exchange_statistics_t statistics;
  tersum_exchange_t* exchange = NULL;
  tersum_gradient_t gradients[2] = {{"weight", COUNT, TERSUM_FLOAT32, 0, "topk:ratio=0.1+ef", 0},
                                    {"bias", 1, TERSUM_FLOAT32, 1, "none", 0}};
  float weight[COUNT];
  float arrived[COUNT] = {0};
  float bias;
  int step, i, nonzero = 0, complete = 0;
  options.compress_min_bytes = 0;
  options.op = TERSUM_SUM;
  if (tersum_exchange_create(comm, gradients, 2, &options, &exchange) != TERSUM_OK) {
    return failed("making the exchange");
  }
  for (step = 0; step < STEPS; ++step) {
    for (i = 0; i < COUNT; ++i) weight[i] = (float)(1 + i % 7);
    bias = (float)(step + rank);
    if (tersum_exchange_submit(exchange, 1, &bias, NULL, NULL) != TERSUM_OK ||
        tersum_exchange_submit(exchange, 0, weight, NULL, NULL) != TERSUM_OK ||
        tersum_exchange_wait_all(exchange) != TERSUM_OK ||
        tersum_exchange_commit(exchange) != TERSUM_OK) {
      return failed("a step");
    }
    if (bias != (float)(2 * step + 1)) {
      fprintf(stderr, "step %d: the bias is %g\n", step, (double)bias);
      return 1;
    }
    nonzero = 0;
    for (i = 0; i < COUNT; ++i) {
      nonzero += weight[i] != 0.0f;
      arrived[i] += weight[i];
    }
    /* Both ranks have the same gradient, so they choose the same tenth. */
    if (nonzero != COUNT / 10) {
      fprintf(stderr, "step %d: %d elements have come through\n", step, nonzero);
      return 1;
    }
  }
  for (i = 0; i < COUNT; ++i) {
    /* All of an element that was ever sent had been saved up: a whole number of steps' sums. */
    const float steps = arrived[i] / (float)(2 * (1 + i % 7));
    if (steps != (float)(int)steps || steps > (float)STEPS) {
      fprintf(stderr, "element %d: %g steps have come through\n", i, (double)steps);
      return 1;
    }
    complete += steps > 0.0f;
  }
  if (complete <= COUNT / 10) {
    fprintf(stderr, "only %d elements have ever come through: no error feedback\n", complete);
    return 1;
  }
  statistics.size = sizeof(statistics);
  if (tersum_exchange_get_statistics(exchange, &statistics) != TERSUM_OK) {
    return failed("statistics");
  }
  if (statistics.steps != STEPS || statistics.sent_bytes == 0 ||
      statistics.sent_bytes > statistics.dense_bytes / 2) {
    fprintf(stderr, "%d steps, %d bytes sent, %d if dense\n", (int)statistics.steps,
            (int)statistics.sent_bytes, (int)statistics.dense_bytes);
    return 1;
  }
  return tersum_exchange_destroy(exchange);
}

int main(void) {
  tersum_comm_t* comm = NULL;
  int rank = -1;
  int size = 0;
  if (tersum_connect(NULL, &comm) != TERSUM_OK) return failed("connecting");
  if (tersum_comm_rank(comm, &rank) != TERSUM_OK || tersum_comm_size(comm, &size) != TERSUM_OK) {
    return failed("rank and size");
  }
  if (size != 2) {
    fprintf(stderr, "start two ranks, not %d\n", size);
    return 1;
  }
  if (check_all_reduce(comm, rank) != 0 || check_exchange(comm, rank) != 0) return 1;
  if (tersum_comm_destroy(comm) != TERSUM_OK) return failed("leaving");
  printf("rank %d of %d: all is well\n", rank, size);
  return 0;
}
