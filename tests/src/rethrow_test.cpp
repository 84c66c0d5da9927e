// Only Error leaves the C++ interface, whatever went wrong behind it.
#include "src/rethrow.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <new>

#include "src/exchange_support.hpp"

namespace tersum::test {
namespace {

template <class Exception>
Status translated(const Exception& exception) {
  return thrown_by([&] {
    try {
      throw exception;
    } catch (...) {
      rethrow_as_error("load");
    }
  });
}

/// The error of an exchange, in a job of one rank, of these gradients.
Status refusal(const Model& model) {
  World world = make_world(1);
  return thrown_by([&] { GradientExchange(world[0], model); });
}

TEST(Rethrow, MakesAnErrorOfEveryStandardException) {
  EXPECT_EQ(translated(std::bad_alloc()).code(), Code::OutOfMemory);
  EXPECT_EQ(translated(std::length_error("vector")).code(), Code::OutOfMemory);
  EXPECT_EQ(translated(std::system_error(std::make_error_code(std::errc::io_error))).code(),
            Code::System);
  EXPECT_EQ(translated(std::runtime_error("odd")).message(), "load: odd");
  EXPECT_EQ(translated(std::runtime_error("odd")).code(), Code::Internal);
}

TEST(Rethrow, KeepsAnErrorAsItIs) {
  const Status status(Code::PeerLost, "rank 2 died", "rank 0", 2);
  EXPECT_EQ(translated(Error(status)).to_string(), status.to_string());
  EXPECT_EQ(translated(Error(status)).rank(), 2);
}

TEST(GradientExchange, RefusesCountsBeyondAnyMemory) {
  for (const std::size_t count :
       {(std::size_t{1} << 48) + 1, std::numeric_limits<std::size_t>::max() / 4 + 2,
        std::numeric_limits<std::size_t>::max()}) {
    const Status status = refusal({gradient("small", 8), gradient("huge", count)});
    EXPECT_EQ(status.code(), Code::InvalidArgument);
    EXPECT_NE(status.message().find("huge"), std::string::npos) << status.message();
  }
}

TEST(GradientExchange, NamesTheGradientThatTheMachineHasNoRoomFor) {
  const std::size_t terabyte = std::size_t{1} << 40;
  const Status status = refusal({gradient("small", 8), gradient("huge", terabyte, DType::Float64)});
  EXPECT_EQ(status.code(), Code::OutOfMemory);
  EXPECT_NE(status.message().find("huge"), std::string::npos) << status.message();
  Model many;  // each may fit, all of them do not
  for (int i = 0; i < 4096; ++i)
    many.push_back(gradient("part" + std::to_string(i), terabyte / 256, DType::Float64));
  EXPECT_EQ(refusal(many).code(), Code::OutOfMemory);
}

TEST(GradientExchange, LackOfMemoryBehindItIsAnError) {
  register_compressor(
      {"hungry", 0x8123, "finds no memory",
       [](SpecParameters&) -> std::shared_ptr<const Compressor> { throw std::bad_alloc(); }});
  Model model = {gradient("w", 8)};
  model[0].compressor = "hungry";
  EXPECT_EQ(refusal(model).code(), Code::OutOfMemory);
  Config config;
  config.compressor = "hungry";
  EXPECT_EQ(thrown_by([&] { config.validate(); }).code(), Code::OutOfMemory);
}

}  // namespace
}  // namespace tersum::test
