/* Every function of the C interface, from a program in C99, on a job of one rank. Each function
 * returns 0, or the number of the line that was not as it should be. */
#include <stddef.h>
#include <string.h>

#include "tersum/tersum.h"

#define CHECK(condition)               \
  do {                                 \
    if (!(condition)) return __LINE__; \
  } while (0)
#define OK(call) CHECK((call) == TERSUM_OK)
/* The call fails with this code and says something that contains `text`. */
#define FAILS(code, text, call)                                          \
  do {                                                                   \
    CHECK((call) == (code));                                             \
    CHECK(strstr(tersum_last_error(), text) != NULL);                    \
    CHECK(strstr(tersum_last_error(), tersum_error_name(code)) != NULL); \
  } while (0)

int c_settings(void);
int c_collectives(void);
int c_work(void);
int c_exchange(void);
int c_exchange_checkpoint(void);
int c_null_arguments(void);
int c_wrong_arguments(void);
int c_option_sizes(void);

static tersum_comm_t* connect_alone(void) {
  tersum_comm_t* comm = NULL;
  return tersum_connect(NULL, &comm) == TERSUM_OK ? comm : NULL;
}

int c_settings(void) {
  tersum_config_t* config = NULL;
  tersum_comm_t* comm = NULL;
  int rank = -1;
  int size = -1;
  OK(tersum_config_create(&config));
  OK(tersum_config_set(config, "TERSUM_SLICE_BYTES", "64K"));
  FAILS(TERSUM_INVALID_ARGUMENT, "TERSUM_SLICE_BYTES",
        tersum_config_set(config, "TERSUM_SLICE_BYTE", "64K"));
  FAILS(TERSUM_INVALID_ARGUMENT, "TERSUM_TRANSPORT",
        tersum_config_set(config, "TERSUM_TRANSPORT", "pigeon"));
  /* Settings are used: this one alone contradicts itself when the job is joined. */
  OK(tersum_config_set(config, "TERSUM_RANK", "3"));
  OK(tersum_config_set(config, "TERSUM_SIZE", "2"));
  FAILS(TERSUM_INVALID_ARGUMENT, "TERSUM_RANK", tersum_connect(config, &comm));
  CHECK(comm == NULL);
  /* An empty value brings the default back. */
  OK(tersum_config_set(config, "TERSUM_RANK", ""));
  OK(tersum_config_set(config, "TERSUM_SIZE", ""));
  OK(tersum_connect(config, &comm));
  OK(tersum_config_destroy(config));
  OK(tersum_comm_rank(comm, &rank));
  OK(tersum_comm_size(comm, &size));
  CHECK(rank == 0 && size == 1);
  OK(tersum_comm_destroy(comm));
  return 0;
}

int c_collectives(void) {
  tersum_comm_t* comm = connect_alone();
  tersum_comm_t* group = NULL;
  tersum_call_options_t options = TERSUM_CALL_OPTIONS_INIT;
  const float input[3] = {1.0f, -2.0f, 4.0f};
  float output[3];
  const size_t counts[1] = {3};
  uint64_t sent = 1;
  int world_rank = -1;
  const size_t bytes = sizeof(input);
#define GIVES(factor, call)                                             \
  do {                                                                  \
    size_t i_;                                                          \
    memset(output, 0, sizeof(output));                                  \
    OK(call);                                                           \
    for (i_ = 0; i_ < 3; ++i_) CHECK(output[i_] == (factor)*input[i_]); \
  } while (0)
  CHECK(comm != NULL);
  GIVES(1, tersum_all_reduce(comm, input, output, 3, TERSUM_FLOAT32, TERSUM_SUM, NULL, NULL));
  options.pre_scale = 2.0;
  options.post_scale = 4.0;
  options.timeout_ms = 10000;
  GIVES(8, tersum_all_reduce(comm, input, output, 3, TERSUM_FLOAT32, TERSUM_MAX, &options, NULL));
  GIVES(8,
        tersum_reduce_scatter(comm, input, output, 3, TERSUM_FLOAT32, TERSUM_MIN, &options, NULL));
  GIVES(8,
        tersum_reduce(comm, input, output, 3, TERSUM_FLOAT32, TERSUM_AVERAGE, 0, &options, NULL));
  GIVES(1, tersum_all_gather(comm, input, output, 3, TERSUM_FLOAT32, NULL, NULL));
  GIVES(1, tersum_all_gather_v(comm, input, output, counts, TERSUM_FLOAT32, NULL, NULL));
  GIVES(1, tersum_all_to_all(comm, input, output, 3, TERSUM_FLOAT32, NULL, NULL));
  GIVES(1, tersum_all_to_all_v(comm, input, counts, output, counts, TERSUM_FLOAT32, NULL, NULL));
  memcpy(output, input, bytes);
  OK(tersum_broadcast(comm, output, 3, TERSUM_FLOAT32, 0, NULL, NULL));
  CHECK(memcmp(output, input, bytes) == 0);
  OK(tersum_barrier(comm, NULL, NULL));
  /* Nothing is at NULL, and nothing of it is asked for. */
  OK(tersum_all_reduce(comm, NULL, NULL, 0, TERSUM_FLOAT32, TERSUM_SUM, NULL, NULL));
  OK(tersum_comm_sent_bytes(comm, &sent));
  CHECK(sent == 0);
  OK(tersum_comm_world_rank(comm, 0, &world_rank));
  CHECK(world_rank == 0);
  OK(tersum_comm_split(comm, 7, 0, &group));
  CHECK(group != NULL);
  OK(tersum_barrier(group, NULL, NULL));
  OK(tersum_comm_destroy(group));
  OK(tersum_comm_split(comm, -1, 0, &group));
  CHECK(group == NULL);
  OK(tersum_comm_status(comm));
  OK(tersum_comm_abort(comm, "the test says so"));
  FAILS(TERSUM_ABORTED, "the test says so", tersum_barrier(comm, NULL, NULL));
  FAILS(TERSUM_ABORTED, "the test says so", tersum_comm_status(comm));
  OK(tersum_comm_destroy(comm));
  return 0;
#undef GIVES
}

int c_work(void) {
  tersum_comm_t* comm = connect_alone();
  tersum_work_t* work = NULL;
  tersum_stage_t stage = TERSUM_STAGE_PLANNED;
  int64_t value = 5;
  int done = 0;
  CHECK(comm != NULL);
  OK(tersum_all_reduce(comm, &value, &value, 1, TERSUM_INT64, TERSUM_PRODUCT, NULL, &work));
  CHECK(work != NULL);
  OK(tersum_work_wait(work, 60000, &done));
  CHECK(done == 1 && value == 5);
  done = 0;
  OK(tersum_work_wait(work, -1, NULL));
  OK(tersum_work_wait(work, -1, &done));
  CHECK(done == 1);
  done = 0;
  OK(tersum_work_done(work, &done));
  CHECK(done == 1);
  OK(tersum_work_status(work));
  OK(tersum_work_stage(work, &stage));
  CHECK(stage == TERSUM_STAGE_DONE);
  OK(tersum_work_free(work));
  OK(tersum_comm_destroy(comm));
  return 0;
}

static int make_exchange(tersum_comm_t* comm, const char* compressor,
                         tersum_exchange_t** exchange) {
  const uint64_t seed = 9;
  tersum_exchange_options_t options = TERSUM_EXCHANGE_OPTIONS_INIT;
  tersum_gradient_t gradients[2];
  gradients[0].key = "weight";
  gradients[0].count = 8;
  gradients[0].dtype = TERSUM_FLOAT32;
  gradients[0].position = 0;
  gradients[0].compressor = compressor;
  gradients[0].on_device = 0;
  gradients[1].key = "bias";
  gradients[1].count = 2;
  gradients[1].dtype = TERSUM_FLOAT64;
  gradients[1].position = 1;
  gradients[1].compressor = NULL;
  gradients[1].on_device = 0;
  options.compress_min_bytes = 0;
  options.slice_bytes = 4096;
  options.seed = &seed;
  options.op = TERSUM_SUM;
  return tersum_exchange_create(comm, gradients, 2, &options, exchange);
}

int c_exchange(void) {
  tersum_comm_t* comm = connect_alone();
  tersum_exchange_t* exchange = NULL;
  tersum_exchange_statistics_t statistics;
  tersum_work_t* work = NULL;
  float weight[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  double bias[2] = {0.5, -0.5};
  size_t index = 9;
  uint64_t hash = 0;
  CHECK(comm != NULL);
  OK(make_exchange(comm, NULL, &exchange));
  OK(tersum_comm_destroy(comm)); /* the exchange keeps what it needs */
  OK(tersum_exchange_plan_hash(exchange, &hash));
  CHECK(hash != 0);
  OK(tersum_exchange_index(exchange, "bias", &index));
  CHECK(index == 1);
  FAILS(TERSUM_INVALID_ARGUMENT, "'gamma'", tersum_exchange_index(exchange, "gamma", &index));
  FAILS(TERSUM_INVALID_STATE, "bias", tersum_exchange_wait(exchange, 1));
  OK(tersum_exchange_submit(exchange, 1, bias, NULL, NULL));
  FAILS(TERSUM_INVALID_STATE, "weight", tersum_exchange_commit(exchange));
  FAILS(TERSUM_INVALID_STATE, "bias", tersum_exchange_submit(exchange, 1, bias, NULL, NULL));
  OK(tersum_exchange_submit(exchange, 0, weight, NULL, &work));
  OK(tersum_work_wait(work, -1, NULL));
  OK(tersum_work_free(work));
  OK(tersum_exchange_wait(exchange, 0));
  OK(tersum_exchange_wait_all(exchange));
  CHECK(weight[7] == 8.0f && bias[1] == -0.5);
  OK(tersum_exchange_commit(exchange));
  statistics.size = sizeof(statistics);
  OK(tersum_exchange_get_statistics(exchange, &statistics));
  CHECK(statistics.steps == 1 && statistics.sent_bytes == 0 && statistics.dense_bytes == 0);
  OK(tersum_exchange_destroy(exchange));
  return 0;
}

int c_exchange_checkpoint(void) {
  tersum_comm_t* comm = connect_alone();
  tersum_exchange_t* exchange = NULL;
  const float gradient[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  float weight[8];
  float first[8];
  double bias[2] = {0.5, -0.5};
  unsigned char saved[4096];
  size_t needed = 0;
  size_t bytes = 0;
  int step;
  CHECK(comm != NULL);
  /* A quarter of the elements is sent; what is left joins the next step. */
  OK(make_exchange(comm, "topk:ratio=0.25+ef", &exchange));
  OK(tersum_exchange_save(exchange, NULL, 0, &needed));
  CHECK(needed > 0 && needed <= sizeof(saved));
  FAILS(TERSUM_INVALID_ARGUMENT, "buffer",
        tersum_exchange_save(exchange, saved, needed - 1, &bytes));
  for (step = 0; step < 4; ++step) {
    memcpy(weight, gradient, sizeof(weight));
    if (step == 3) OK(tersum_exchange_load(exchange, saved, bytes));
    OK(tersum_exchange_submit(exchange, 0, weight, NULL, NULL));
    OK(tersum_exchange_submit(exchange, 1, bias, NULL, NULL));
    OK(tersum_exchange_wait_all(exchange));
    if (step == 1) memcpy(first, weight, sizeof(first));
    /* Step 1 is discarded, so step 2 is the same again; step 3 starts from a checkpoint of it. */
    if (step == 2 || step == 3) CHECK(memcmp(first, weight, sizeof(first)) == 0);
    if (step == 1) {
      OK(tersum_exchange_rollback(exchange));
    } else {
      OK(tersum_exchange_commit(exchange));
    }
    if (step == 0) {
      CHECK(weight[5] == 0.0f && weight[6] == 7.0f && weight[7] == 8.0f);
      OK(tersum_exchange_save(exchange, saved, sizeof(saved), &bytes));
      CHECK(bytes == needed);
    }
  }
  /* The residuals took part: without them step 1 would have repeated step 0. */
  CHECK(first[5] == 12.0f && first[4] == 10.0f && first[7] == 0.0f);
  saved[0] ^= 1;
  FAILS(TERSUM_INVALID_ARGUMENT, "load", tersum_exchange_load(exchange, saved, bytes));
  OK(tersum_exchange_destroy(exchange));
  OK(tersum_comm_destroy(comm));
  return 0;
}

#define NULL_IS_REFUSED(call) FAILS(TERSUM_INVALID_ARGUMENT, "NULL", call)

int c_null_arguments(void) {
  tersum_comm_t* comm = connect_alone();
  tersum_config_t* config = NULL;
  tersum_work_t* work = NULL;
  float x = 1;
  int number = 0;
  CHECK(comm != NULL);
  OK(tersum_config_create(&config));
  NULL_IS_REFUSED(tersum_config_create(NULL));
  NULL_IS_REFUSED(tersum_config_set(NULL, "TERSUM_SEED", "1"));
  NULL_IS_REFUSED(tersum_config_set(config, NULL, "1"));
  NULL_IS_REFUSED(tersum_config_set(config, "TERSUM_SEED", NULL));
  NULL_IS_REFUSED(tersum_connect(config, NULL));
  NULL_IS_REFUSED(tersum_comm_rank(NULL, &number));
  NULL_IS_REFUSED(tersum_comm_rank(comm, NULL));
  NULL_IS_REFUSED(tersum_comm_size(NULL, &number));
  NULL_IS_REFUSED(tersum_comm_world_rank(comm, 0, NULL));
  NULL_IS_REFUSED(tersum_comm_split(comm, 0, 0, NULL));
  NULL_IS_REFUSED(tersum_comm_abort(comm, NULL));
  NULL_IS_REFUSED(tersum_comm_status(NULL));
  NULL_IS_REFUSED(tersum_comm_sent_bytes(comm, NULL));
  NULL_IS_REFUSED(tersum_all_reduce(NULL, &x, &x, 1, TERSUM_FLOAT32, TERSUM_SUM, NULL, NULL));
  NULL_IS_REFUSED(tersum_reduce_scatter(NULL, &x, &x, 1, TERSUM_FLOAT32, TERSUM_SUM, NULL, NULL));
  NULL_IS_REFUSED(tersum_reduce(NULL, &x, &x, 1, TERSUM_FLOAT32, TERSUM_SUM, 0, NULL, NULL));
  NULL_IS_REFUSED(tersum_all_gather(NULL, &x, &x, 1, TERSUM_FLOAT32, NULL, NULL));
  NULL_IS_REFUSED(tersum_all_gather_v(comm, &x, &x, NULL, TERSUM_FLOAT32, NULL, NULL));
  NULL_IS_REFUSED(tersum_all_to_all(NULL, &x, &x, 1, TERSUM_FLOAT32, NULL, NULL));
  NULL_IS_REFUSED(tersum_all_to_all_v(comm, &x, NULL, &x, NULL, TERSUM_FLOAT32, NULL, NULL));
  NULL_IS_REFUSED(tersum_broadcast(NULL, &x, 1, TERSUM_FLOAT32, 0, NULL, NULL));
  NULL_IS_REFUSED(tersum_send(NULL, &x, 1, TERSUM_FLOAT32, 0, NULL, NULL));
  NULL_IS_REFUSED(tersum_receive(NULL, &x, 1, TERSUM_FLOAT32, 0, NULL, NULL));
  NULL_IS_REFUSED(tersum_barrier(NULL, NULL, NULL));
  OK(tersum_barrier(comm, NULL, &work));
  NULL_IS_REFUSED(tersum_work_done(work, NULL));
  NULL_IS_REFUSED(tersum_work_wait(work, 0, NULL));
  NULL_IS_REFUSED(tersum_work_wait(NULL, -1, NULL));
  NULL_IS_REFUSED(tersum_work_status(NULL));
  NULL_IS_REFUSED(tersum_work_stage(work, NULL));
  NULL_IS_REFUSED(tersum_exchange_create(comm, NULL, 1, NULL, NULL));
  NULL_IS_REFUSED(tersum_exchange_index(NULL, "x", NULL));
  NULL_IS_REFUSED(tersum_exchange_submit(NULL, 0, &x, NULL, NULL));
  NULL_IS_REFUSED(tersum_exchange_wait(NULL, 0));
  NULL_IS_REFUSED(tersum_exchange_wait_all(NULL));
  NULL_IS_REFUSED(tersum_exchange_commit(NULL));
  NULL_IS_REFUSED(tersum_exchange_rollback(NULL));
  NULL_IS_REFUSED(tersum_exchange_save(NULL, NULL, 0, NULL));
  NULL_IS_REFUSED(tersum_exchange_load(NULL, &x, 1));
  NULL_IS_REFUSED(tersum_exchange_get_statistics(NULL, NULL));
  NULL_IS_REFUSED(tersum_exchange_plan_hash(NULL, NULL));
  /* Giving nothing back is no error, so that clean-up code need not ask. */
  OK(tersum_config_destroy(NULL));
  OK(tersum_comm_destroy(NULL));
  OK(tersum_work_free(NULL));
  OK(tersum_exchange_destroy(NULL));
  OK(tersum_work_wait(work, -1, NULL));
  OK(tersum_work_free(work));
  OK(tersum_config_destroy(config));
  OK(tersum_comm_destroy(comm));
  return 0;
}

int c_wrong_arguments(void) {
  tersum_comm_t* comm = connect_alone();
  tersum_exchange_t* exchange = NULL;
  tersum_work_t* work = NULL;
  tersum_gradient_t gradient = {NULL, 0, TERSUM_FLOAT32, 0, NULL, 0};
  float x = 1;
  CHECK(comm != NULL);
  FAILS(TERSUM_INVALID_ARGUMENT, "dtype 10",
        tersum_all_reduce(comm, &x, &x, 1, 10, TERSUM_SUM, NULL, &work));
  FAILS(TERSUM_INVALID_ARGUMENT, "dtype -1", tersum_all_gather(comm, &x, &x, 1, -1, NULL, &work));
  FAILS(TERSUM_INVALID_ARGUMENT, "operator 5",
        tersum_all_reduce(comm, &x, &x, 1, TERSUM_FLOAT32, 5, NULL, &work));
  FAILS(TERSUM_INVALID_ARGUMENT, "operator 256",
        tersum_all_reduce(comm, &x, &x, 1, TERSUM_FLOAT32, 256, NULL, &work));
  FAILS(TERSUM_INVALID_ARGUMENT, "root 1",
        tersum_broadcast(comm, &x, 1, TERSUM_FLOAT32, 1, NULL, &work));
  FAILS(TERSUM_INVALID_ARGUMENT, "itself",
        tersum_send(comm, &x, 1, TERSUM_FLOAT32, 0, NULL, &work));
  FAILS(TERSUM_INVALID_ARGUMENT, "itself",
        tersum_receive(comm, &x, 1, TERSUM_FLOAT32, 0, NULL, &work));
  CHECK(work == NULL);
  CHECK(tersum_last_error_rank() == -1);

  gradient.key = NULL;
  gradient.count = 1;
  gradient.dtype = TERSUM_FLOAT32;
  gradient.position = 0;
  gradient.compressor = NULL;
  FAILS(TERSUM_INVALID_ARGUMENT, "gradients[0].key",
        tersum_exchange_create(comm, &gradient, 1, NULL, &exchange));
  gradient.key = "w";
  gradient.compressor = "topq:ratio=0.5";
  FAILS(TERSUM_INVALID_ARGUMENT, "topk",
        tersum_exchange_create(comm, &gradient, 1, NULL, &exchange));
  FAILS(TERSUM_INVALID_ARGUMENT, "gradient",
        tersum_exchange_create(comm, NULL, 0, NULL, &exchange));
  CHECK(exchange == NULL);
  /* A call that succeeds leaves the last error alone. */
  OK(tersum_barrier(comm, NULL, NULL));
  CHECK(strstr(tersum_last_error(), "gradient") != NULL);
  CHECK(strcmp(tersum_error_name(TERSUM_PEER_LOST), "PeerLost") == 0);
  CHECK(strcmp(tersum_error_name(99), "Unknown") == 0);
  CHECK(strchr(tersum_version(), '.') != NULL);
  OK(tersum_comm_destroy(comm));
  return 0;
}

int c_option_sizes(void) {
  /* What a program that was compiled with a later header would hand over. */
  struct {
    tersum_call_options_t known;
    uint64_t unknown;
  } later = {TERSUM_CALL_OPTIONS_INIT, 0};
  tersum_comm_t* comm = connect_alone();
  tersum_exchange_options_t options = TERSUM_EXCHANGE_OPTIONS_INIT;
  tersum_exchange_t* exchange = NULL;
  const tersum_gradient_t gradient = {"w", 1, TERSUM_FLOAT32, 0, NULL, 0};
  CHECK(comm != NULL);
  later.known.size = sizeof(later);
  OK(tersum_barrier(comm, &later.known, NULL));
  later.unknown = 1;
  FAILS(TERSUM_UNSUPPORTED, "version", tersum_barrier(comm, &later.known, NULL));
  /* And with the first header, which had no stream_ordered. */
  later.known.size = offsetof(tersum_call_options_t, stream_ordered);
  OK(tersum_barrier(comm, &later.known, NULL));
  later.known.size = 0;
  FAILS(TERSUM_INVALID_ARGUMENT, "size", tersum_barrier(comm, &later.known, NULL));
  options.size = 8;
  FAILS(TERSUM_INVALID_ARGUMENT, "size",
        tersum_exchange_create(comm, &gradient, 1, &options, &exchange));
  options.size = sizeof(options);
  options.op = TERSUM_MAX;
  FAILS(TERSUM_INVALID_ARGUMENT, "max",
        tersum_exchange_create(comm, &gradient, 1, &options, &exchange));
  CHECK(exchange == NULL);
  OK(tersum_comm_destroy(comm));
  return 0;
}
