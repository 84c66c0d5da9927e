// Calls that nobody thought of, on host memory; see draw.hpp for more of them.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "src/collectives_random.hpp"

namespace tersum::test {
namespace {

class HostMemory final : public TensorMemory {
 public:
  void write(std::size_t offset, const Bytes& bytes) override {
    std::memcpy(at(offset), bytes.data(), bytes.size());
  }
  Bytes read(std::size_t offset, std::size_t bytes) override {
    return {at(offset), at(offset) + bytes};
  }
  std::byte* at(std::size_t offset) override { return memory_.data() + offset; }

 private:
  Bytes memory_ = Bytes(kCapacity);
};

TEST(RandomCollectives, GiveTheSameOnAllRanks) {
  for (std::uint64_t number = 0; number < 8; ++number) {
    SCOPED_TRACE("case " + std::to_string(number));
    Draw shape(number);
    Config config = quiet();
    config.algorithm = shape.of<const char*>(
        {"auto", "direct", "oneshot", "twoshot", "ring", "halving", "doubling"});
    World world = make_world(1 + static_cast<int>(shape.below(8)), config);
    each_rank(static_cast<int>(world.size()), [&](int rank) {
      SCOPED_TRACE(config.algorithm);
      Draw draw(number + 1000);
      HostMemory memory;
      RandomCalls::make_rounds(world[static_cast<std::size_t>(rank)], draw, memory, {});
    });
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace tersum::test
