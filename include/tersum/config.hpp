// Config: every setting of Tersum, typed. The table in src/config.cpp gives each its variable,
// range and help.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tersum/error.hpp"

namespace tersum {

/// All settings. Precedence: a member set by the program > environment (TERSUM_*) > default.
/// Names, ranges and help: `tersum-info`, or the table in README.md.
struct Config {
  // Launch: who am I. -1 and empty mean: take it from the launcher's variables (TERSUM_*, torchrun,
  // Open MPI, MPICH/PMI, Slurm); without any, a job of one rank.
  int rank = -1;        ///< TERSUM_RANK
  int size = -1;        ///< TERSUM_SIZE
  int local_rank = -1;  ///< TERSUM_LOCAL_RANK
  int local_size = -1;  ///< TERSUM_LOCAL_SIZE
  std::string root;     ///< TERSUM_ROOT: host:port where rank 0 listens ("[::1]:5000" for IPv6)
  std::string job = "default";  ///< TERSUM_JOB: ranks of different jobs refuse each other
  std::string secret;           ///< TERSUM_SECRET: shared secret of the job; never printed
  std::string
      interface;  ///< TERSUM_INTERFACE: network interface for control and data; empty: chosen
  std::string
      host_id;  ///< TERSUM_HOST_ID: ranks with the same id share a host; empty: the machine's own

  // Transport and engine.
  std::string transport = "auto";  ///< TERSUM_TRANSPORT: auto | tcp | shm
  std::string device_staging =
      "auto";  ///< TERSUM_DEVICE_STAGING: auto | pinned | ucx (see docs/architecture.md)
  std::chrono::microseconds spin{
      -1};          ///< TERSUM_SPIN_US: spin before sleeping; -1: by cores per local rank
  int threads = 1;  ///< TERSUM_THREADS: pool threads for compression and reduction; 0: none
  std::chrono::milliseconds timeout{300'000};  ///< TERSUM_TIMEOUT_MS: deadline of every operation
  std::chrono::milliseconds join_timeout{60'000};  ///< TERSUM_JOIN_TIMEOUT_MS
  std::chrono::milliseconds heartbeat_timeout{
      5'000};  ///< TERSUM_HEARTBEAT_TIMEOUT_MS: silence that means hung
  std::chrono::milliseconds shutdown_timeout{10'000};  ///< TERSUM_SHUTDOWN_TIMEOUT_MS
  std::string algorithm = "auto";  ///< TERSUM_ALGORITHM of all-reduce: auto | direct | oneshot |
                                   ///< twoshot | ring | halving | doubling

  // Gradient exchange. These must agree on all ranks; a difference fails the join with both views.
  std::string compressor = "none";  ///< TERSUM_COMPRESSOR: spec for all gradients
  std::string
      compressor_rules;  ///< TERSUM_COMPRESSOR_RULES: "*.bias=none; embed*=topk:ratio=0.001+ef"
  std::size_t compress_min_bytes =
      4096;  ///< TERSUM_COMPRESS_MIN_BYTES: smaller gradients are not compressed by rules or the
             ///< general setting, only by a spec of their own
  std::size_t bucket_bytes =
      25u << 20;  ///< TERSUM_BUCKET_BYTES: gradients are fused up to this size
  std::size_t slice_bytes =
      1u << 20;  ///< TERSUM_SLICE_BYTES: buckets are cut into slices of about this size
  std::size_t credit_bytes = 8u << 20;  ///< TERSUM_CREDIT_BYTES: bytes of slices in flight at once
  std::size_t device_slice_bytes =
      0;  ///< TERSUM_DEVICE_SLICE_BYTES: the same when all gradients are on GPUs; 0: 32 MiB inside
          ///< a host, 16 MiB between hosts
  std::size_t device_credit_bytes =
      0;                            ///< TERSUM_DEVICE_CREDIT_BYTES: likewise; 0: 256 MiB, 64 MiB
  std::string policy = "priority";  ///< TERSUM_POLICY: priority | fifo
  std::uint64_t seed = 0;           ///< TERSUM_SEED: of all randomised methods

  // Observation.
  std::string trace;         ///< TERSUM_TRACE: directory for Chrome-trace timelines; empty: off
  std::string log = "warn";  ///< TERSUM_LOG: trace | debug | info | warn | error | off

  /// Defaults overlaid with the environment. Error InvalidArgument for an unknown TERSUM_* name or
  /// a bad value; the message names the variable, the value, what is allowed, and the nearest right
  /// word.
  static Config from_environment();

  /// Checks ranges and spellings of all members, as from_environment() does. Called by
  /// Communicator::connect().
  void validate() const;
};

/// One row of the settings table, for tools and docs.
struct Setting {
  std::string variable;  ///< "TERSUM_SLICE_BYTES"
  std::string type;      ///< "bytes", "integer", "milliseconds", "text", "choice", ...
  std::string allowed;   ///< range or choices
  std::string default_value;
  std::string help;
  bool must_agree;  ///< compared across ranks when they join
};

/// All settings in the order of documentation.
std::vector<Setting> settings();

/// A setting's value in `config`, and where it comes from.
struct SettingValue {
  std::string value;   ///< as it would be written in the environment; "***" for the secret
  std::string origin;  ///< "default", "environment" or "program"
};
SettingValue setting_value(const Config& config, const std::string& variable);

/// The settings that must agree, as "NAME=value" lines in table order: compared when ranks join.
/// Specs and rules are written out in full, so that all spellings of the same one agree.
std::string agreement_text(const Config& config);

}  // namespace tersum
