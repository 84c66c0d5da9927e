// A rank for the tests of tersum-run: joins the job of its environment, and leaves it. With an
// argument, the rank of that number kills itself after the join, and the others say what they
// heard.
#include <signal.h>

#include <cstdlib>
#include <iostream>
#include <optional>
#include <string>

#include <boost/asio/io_context.hpp>

#include "transport/control.hpp"
#include "transport/launch.hpp"

namespace {

using namespace tersum;
using namespace tersum::transport;

struct News : ControlListener {
  std::optional<Status> failure;
  void on_failure(const Status& cause) override { failure = cause; }
  void on_leave(int) override {}
};

int number(const char* name) {
  const auto value = process_environment()(name);
  return value ? std::stoi(*value) : -1;
}

int run(int victim) {
  const Environment environment = process_environment();
  LaunchOverrides overrides;
  overrides.rank = number("TERSUM_RANK");
  overrides.size = number("TERSUM_SIZE");
  overrides.local_rank = number("TERSUM_LOCAL_RANK");
  overrides.local_size = number("TERSUM_LOCAL_SIZE");
  overrides.root = environment("TERSUM_ROOT").value_or("");
  const Launch launch = detect_launch(overrides, environment);
  JoinRequest request;
  request.rank = launch.rank;
  request.size = launch.size;
  request.root_host = launch.root_host;
  request.root_port = launch.root_port;
  request.job = environment("TERSUM_JOB").value_or("");
  request.secret = environment("TERSUM_SECRET").value_or("");

  boost::asio::io_context context;
  const auto plane = ControlPlane::join(context, request);
  News news;
  bool done = false;
  plane->start(news);
  if (launch.rank == victim) ::raise(SIGKILL);
  if (victim < 0) {
    std::cout << "joined " << plane->members().size() << std::endl;
    plane->leave({}, [&](auto) { done = true; });
  }
  while (!done && !news.failure) context.run_one();
  plane->close();
  if (news.failure) std::cout << news.failure->to_string() << std::endl;
  return news.failure ? 1 : 0;
}

}  // namespace

int main(int count, char** arguments) {
  try {
    return run(count > 1 ? std::atoi(arguments[1]) : -1);
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    return 2;
  }
}
