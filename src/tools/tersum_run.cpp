// tersum-run: starts the ranks of a job on this host.
#include <exception>
#include <iostream>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "src/tools/run_job.hpp"
#include "src/tools/standard_streams.hpp"
#include "tersum/version.hpp"

namespace {

constexpr int kMaxRanks = 4096;
constexpr int kUsageError = 2;

#define TERSUM_TEXT_OF(x) #x
#define TERSUM_TEXT(x) TERSUM_TEXT_OF(x)
constexpr const char* kVersion = "tersum-run " TERSUM_TEXT(TERSUM_VERSION_MAJOR) "." TERSUM_TEXT(
    TERSUM_VERSION_MINOR) "." TERSUM_TEXT(TERSUM_VERSION_PATCH);

std::pair<std::string, std::string> parse_variable(const std::string& text) {
  const std::size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0) {
    throw CLI::ValidationError("--env", "'" + text + "' is not NAME=VALUE");
  }
  const std::string name = text.substr(0, equals);
  if (tersum::tools::is_set_by_job(name)) {
    throw CLI::ValidationError("--env", name + " is set by tersum-run, for each rank");
  }
  return {name, text.substr(equals + 1)};
}

/// Fills `options`, or says what is wrong (or what was asked for) and returns the exit code.
int parse(int count, char** arguments, tersum::tools::JobOptions& options) {
  CLI::App app(
      "Starts a job of Tersum ranks on this host and ends it as one:\n"
      "tersum-run -n RANKS [OPTIONS] -- program [arguments...]",
      "tersum-run");
  app.footer(
      "Each rank gets TERSUM_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE, _ROOT, _SECRET and _JOB, and\n"
      "a process group of its own. Rank 0 inherits the standard input unless it is a terminal.\n"
      "When a rank fails, the others may finish for a moment and are then ended. Exit code: that\n"
      "of the first rank that failed, 128 + signal if it was killed, 127 if there is no such\n"
      "program.");
  std::vector<std::string> variables;
  long grace_ms = options.grace.count();
  bool no_prefix = false;
  app.set_version_flag("--version", kVersion);
  app.add_option("-n,--ranks", options.ranks, "number of ranks")
      ->required()
      ->check(CLI::Range(1, kMaxRanks));
  app.add_option("--timeout-kill", grace_ms,
                 "milliseconds from the first failure until the other ranks are ended")
      ->check(CLI::Range(0l, 86'400'000l))
      ->capture_default_str();
  app.add_flag("--no-prefix", no_prefix, "no '[rank] ' in front of lines");
  app.add_option("--env", variables, "NAME=VALUE for all ranks; may be repeated")
      ->allow_extra_args(false);
  app.prefix_command();

  try {
    app.parse(count, arguments);
    options.command = app.remaining();
    if (!options.command.empty() && options.command.front() == "--") {
      options.command.erase(options.command.begin());
    }
    if (options.command.empty()) {
      throw CLI::ValidationError("program", "is missing: tersum-run -n RANKS -- program ...");
    }
    for (const std::string& variable : variables) {
      options.environment.push_back(parse_variable(variable));
    }
  } catch (const CLI::ParseError& error) {
    const int code = app.exit(error);
    return code == 0 ? 0 : kUsageError;
  }
  options.prefix = !no_prefix;
  options.grace = std::chrono::milliseconds(grace_ms);
  return -1;
}

}  // namespace

int main(int count, char** arguments) {
  tersum::tools::open_standard_streams();
  tersum::tools::JobOptions options;
  try {
    const int code = parse(count, arguments, options);
    return code >= 0 ? tersum::tools::exit_code_after_output("tersum-run", code)
                     : tersum::tools::run_job(options);
  } catch (const std::exception& error) {
    std::cerr << "tersum-run: " << error.what() << '\n';
    return 1;
  }
}
