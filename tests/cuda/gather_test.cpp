// Buckets of tensors against the CPU's conversions, element by element.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "compressors/convert.hpp"
#include "compressors/kernels.hpp"
#include "conformance/compressors_support.hpp"
#include "cuda/copies.hpp"
#include "cuda/error.hpp"
#include "cuda/gather.hpp"

namespace tersum::gpu {
namespace {

using test::copy_now;

using tersum::test::bits;
using tersum::test::Floats;

constexpr DType kTypes[] = {DType::Float32, DType::Float16, DType::BFloat16, DType::Float64};

/// Tensors of all types and awkward sizes in one device buffer, `skew` elements off alignment.
class Tensors {
 public:
  Tensors(std::size_t number, std::size_t skew, bool packed) {
    std::size_t bytes = 0;
    for (std::size_t t = 0; t < number; ++t) {
      const DType dtype = kTypes[t % 4];
      const std::size_t count = t % 7 == 0 ? 1 + t : 1000 + 517 * t % 9000;
      bytes = (bytes + 255) / 256 * 256 + skew * element_bytes(dtype);
      starts_.push_back(bytes);
      tensors_.push_back({nullptr, count, dtype, elements_});
      bytes += count * element_bytes(dtype);
      elements_ += packed ? count : (count + 3) / 4 * 4 + 4;
    }
    memory_ = DeviceBuffer(bytes);
    host_.resize(bytes);
    for (std::size_t t = 0; t < number; ++t) tensors_[t].data = memory_.data() + starts_[t];
  }

  const std::vector<BucketTensor>& list() const { return tensors_; }
  std::size_t elements() const { return elements_; }

  void fill() {
    for (std::size_t t = 0; t < tensors_.size(); ++t) {
      Floats values = tersum::test::gaussian(tensors_[t].count, static_cast<unsigned>(t), 100.0f);
      values[0] = t % 2 == 0 ? std::numeric_limits<float>::infinity() : -0.0f;
      if (values.size() > 9) values[5] = 1e-7f, values[9] = -std::nanf("3");
      compressors::from_float(values.data(), tensors_[t].dtype, host_.data() + starts_[t],
                              values.size());
    }
    copy_now(memory_.data(), host_.data(), host_.size());
  }

  /// What a bucket that held `bucket` holds after a gather on the CPU.
  Floats gathered(Floats bucket, float scale) const {
    for (std::size_t t = 0; t < tensors_.size(); ++t) {
      float* place = bucket.data() + tensors_[t].offset;
      compressors::to_float(tensors_[t].dtype, host_.data() + starts_[t], place, tensors_[t].count);
      compressors::kernels::multiply(place, scale, place, tensors_[t].count);
    }
    return bucket;
  }

  /// The tensors' memory after a scatter on the CPU.
  std::vector<std::byte> scattered(const Floats& bucket, float scale) const {
    std::vector<std::byte> bytes = host_;
    for (std::size_t t = 0; t < tensors_.size(); ++t) {
      Floats part(tensors_[t].count);
      compressors::kernels::multiply(bucket.data() + tensors_[t].offset, scale, part.data(),
                                     part.size());
      compressors::from_float(part.data(), tensors_[t].dtype, bytes.data() + starts_[t],
                              part.size());
    }
    return bytes;
  }

  std::vector<std::byte> memory() const {
    std::vector<std::byte> bytes(host_.size());
    copy_now(bytes.data(), memory_.data(), bytes.size());
    return bytes;
  }

 private:
  std::vector<std::size_t> starts_;
  std::vector<BucketTensor> tensors_;
  std::size_t elements_ = 0;
  DeviceBuffer memory_;
  std::vector<std::byte> host_;
};

class Gather : public testing::TestWithParam<std::tuple<std::size_t, bool>> {
 protected:
  void SetUp() override {
    if (!has_device()) GTEST_SKIP() << "no GPU";
  }
};

TEST_P(Gather, CollectsTensorsOfAllTypesScaled) {
  const auto [skew, packed] = GetParam();
  Tensors tensors(300, skew, packed);
  tensors.fill();
  const Stream stream;
  const GatherPlan plan(tensors.list(), stream);
  const Floats before(tensors.elements(), 5.0f);
  const DeviceBuffer bucket(before.size() * sizeof(float));
  for (const float scale : {1.0f, 0.125f, 1.0f / 3.0f}) {
    copy_now(bucket.data(), before.data(), bucket.bytes());
    plan.gather(stream, bucket.as<float>(), scale);
    stream.synchronize();
    Floats found(before.size());
    copy_now(found.data(), bucket.data(), bucket.bytes());
    EXPECT_TRUE(bits(found) == bits(tensors.gathered(before, scale))) << "scale " << scale;
  }
}

TEST_P(Gather, SpreadsABucketToItsTensorsScaled) {
  const auto [skew, packed] = GetParam();
  Tensors tensors(300, skew, packed);
  tensors.fill();
  const Stream stream;
  const GatherPlan plan(tensors.list(), stream);
  Floats values = tersum::test::gaussian(tensors.elements(), 77, 1e4f);
  values[3] = std::nanf("9");
  const DeviceBuffer bucket(values.size() * sizeof(float));
  copy_now(bucket.data(), values.data(), bucket.bytes());
  plan.scatter(stream, bucket.as<float>(), 0.25f);
  stream.synchronize();
  EXPECT_TRUE(tensors.memory() == tensors.scattered(values, 0.25f));
}

INSTANTIATE_TEST_SUITE_P(Layouts, Gather,
                         testing::Combine(testing::Values<std::size_t>(0, 1, 3), testing::Bool()));

class GatherRules : public testing::Test {};

TEST_F(GatherRules, FollowsTensorsThatMove) {
  if (!has_device()) GTEST_SKIP() << "no GPU";
  Tensors first(20, 0, true);
  Tensors second(20, 1, true);
  second.fill();
  const Stream stream;
  GatherPlan plan(first.list(), stream);
  std::vector<void*> data;
  for (const BucketTensor& tensor : second.list()) data.push_back(tensor.data);
  for (int i = 0; i < 5; ++i) plan.rebind(data, stream);
  const DeviceBuffer bucket(first.elements() * sizeof(float));
  plan.gather(stream, bucket.as<float>());
  stream.synchronize();
  Floats found(first.elements());
  copy_now(found.data(), bucket.data(), bucket.bytes());
  EXPECT_TRUE(bits(found) == bits(second.gathered(Floats(found.size()), 1.0f)));
  data.pop_back();
  EXPECT_THROW(plan.rebind(data, stream), Error);
}

TEST_F(GatherRules, RefusesIntegersAndMisalignedData) {
  if (!has_device()) GTEST_SKIP() << "no GPU";
  const DeviceBuffer memory(64);
  const Stream stream;
  const BucketTensor integers{memory.data(), 4, DType::Int32, 0};
  const BucketTensor crooked{memory.data() + 2, 4, DType::Float32, 0};
  EXPECT_THROW(GatherPlan(std::span(&integers, 1), stream), Error);
  EXPECT_THROW(GatherPlan(std::span(&crooked, 1), stream), Error);
  const GatherPlan empty({}, stream);
  empty.gather(stream, nullptr);
  EXPECT_EQ(empty.count(), 0u);
}

}  // namespace
}  // namespace tersum::gpu
