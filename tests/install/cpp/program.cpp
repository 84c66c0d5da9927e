// A job of one rank, in C++: collectives, an exchange, and an error that crosses the library's
// border.
#include <array>
#include <cstdio>
#include <string>
#include <tersum/tersum.hpp>

int main() {
  try {
    auto communicator = tersum::Communicator::connect();
    std::array<double, 3> data = {1, 2, 3};
    communicator.all_reduce(data.data(), data.data(), data.size(), tersum::DType::Float64).wait();
    if (data != std::array<double, 3>{1, 2, 3}) return 1;

    tersum::GradientExchange exchange(communicator, {{.key = "w",
                                                      .count = 3,
                                                      .dtype = tersum::DType::Float64,
                                                      .position = 0,
                                                      .compressor = {}}});
    exchange.submit("w", data.data());
    exchange.wait("w");
    exchange.commit();
    if (exchange.statistics().steps != 1) return 1;

    try {
      communicator.broadcast(data.data(), 1, tersum::DType::Float64, 7);
      return 1;
    } catch (const tersum::Error& error) {
      if (error.code() != tersum::Code::InvalidArgument) return 1;
    }
    if (tersum::compressor_entries().empty() || std::string(tersum::version()).empty()) return 1;
    std::puts("all is well");
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
