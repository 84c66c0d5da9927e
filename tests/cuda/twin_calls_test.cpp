// The interface of twins around the bytes: who has one, what is refused, graphs, sticky faults.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "cuda/error.hpp"
#include "cuda/twin_support.hpp"

namespace tersum::gpu::test {
namespace {

class TwinCalls : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_device()) GTEST_SKIP() << "no GPU";
  }

  template <class Call>
  static Code code_of(const Call& call) {
    try {
      call();
    } catch (const Error& error) {
      return error.code();
    }
    return Code::Ok;
  }
};

TEST(TwinRegistry, HasATwinForEveryMethodOfThisTree) {
  for (const CompressorEntry& entry : compressor_entries()) {
    const auto compressor = make_compressor(entry.name);
    const auto twin = Twin::make(*compressor);
    ASSERT_EQ(twin != nullptr, entry.wire_id < 0x8000) << entry.name;
    if (twin == nullptr) continue;
    EXPECT_EQ(twin->state_arrays(), 0u);
    for (const std::size_t count : {0u, 1u, 511u, 512u, 100'000u}) {
      EXPECT_EQ(twin->payload_bytes(count), compressor->max_payload_bytes(count)) << entry.name;
    }
  }
  EXPECT_EQ(Twin::make(*make_compressor("topk+ef"))->state_arrays(), 1u);
  EXPECT_EQ(Twin::make(*make_compressor("sign+ef+momentum=0.25"))->state_arrays(), 2u);
}

TEST_F(TwinCalls, RefuseAStateOrAWorkspaceThatDoesNotFit) {
  const Stream stream;
  const auto twin = Twin::make(*make_compressor("topk+ef"));
  const auto state = twin->make_state(1000, stream);
  const auto other = Twin::make(*make_compressor("sign+ef"))->make_state(1000, stream);
  const DeviceBuffer input(4000);
  const DeviceBuffer payload(twin->payload_bytes(1000));
  const DeviceBuffer workspace(twin->workspace_bytes(1000));
  const auto compress = [&](TwinState* used, std::size_t count, std::size_t workspace_bytes) {
    return code_of([&] {
      twin->compress(stream, input.as<float>(), count, {}, used, payload.data(),
                     {workspace.data(), workspace_bytes});
    });
  };
  EXPECT_EQ(compress(nullptr, 1000, workspace.bytes()), Code::InvalidArgument);
  EXPECT_EQ(compress(other.get(), 1000, workspace.bytes()), Code::InvalidArgument);
  EXPECT_EQ(compress(state.get(), 999, workspace.bytes()), Code::InvalidArgument);
  EXPECT_EQ(compress(state.get(), 1000, workspace.bytes() - 1), Code::InvalidArgument);
  EXPECT_EQ(compress(state.get(), 1000, workspace.bytes()), Code::Ok);
  stream.synchronize();
}

TEST_F(TwinCalls, LeaveOutputsAloneFromABadPayloadUntilTheFaultIsCleared) {
  const Stream stream;
  const auto compressor = make_compressor("qint");
  const auto twin = Twin::make(*compressor);
  const Floats values(1000, 2.0f);
  Bytes good = tersum::test::encode(*compressor, values);
  Bytes bad = good;
  bad[0] ^= std::byte{1};
  const DeviceBuffer payload(good.size());
  const DeviceBuffer output(values.size() * sizeof(float));
  const DecodeStatus status(stream);
  const auto first_after = [&](const Bytes& bytes) {
    check(cudaMemcpy(payload.data(), bytes.data(), bytes.size(), cudaMemcpyDefault), "copy");
    twin->decompress(stream, {payload.data(), payload.bytes()}, {}, output.as<float>(),
                     values.size(), {}, status);
    status.fetch(stream);
    stream.synchronize();
    float first = 0;
    check(cudaMemcpy(&first, output.data(), sizeof first, cudaMemcpyDefault), "copy");
    return first;
  };
  check(cudaMemset(output.data(), 0, output.bytes()), "cudaMemset");
  EXPECT_EQ(first_after(bad), 0.0f);
  EXPECT_EQ(first_after(good), 0.0f);
  EXPECT_EQ(status.status().code(), Code::Protocol);
  status.clear(stream);
  EXPECT_EQ(first_after(good), 2.0f);
  EXPECT_TRUE(status.status().is_ok());
}

TEST_F(TwinCalls, CanBeCapturedIntoAGraphThatRunsAgain) {
  constexpr std::size_t kCount = 50'000;
  for (const char* spec : {"qint:bits=4+ef", "topk+ef", "randomk", "sign+ef+momentum=0.5"}) {
    const Stream stream;
    const auto compressor = make_compressor(spec);
    const auto twin = Twin::make(*compressor);
    const auto state = twin->make_state(kCount, stream);
    const DeviceBuffer input(kCount * sizeof(float));
    const DeviceBuffer payload(twin->payload_bytes(kCount));
    const DeviceBuffer workspace(twin->workspace_bytes(kCount));
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t runnable = nullptr;
    check(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeGlobal), "capture");
    twin->compress(stream, input.as<float>(), kCount, {}, state.get(), payload.data(),
                   {workspace.data(), workspace.bytes()});
    check(cudaStreamEndCapture(stream.get(), &graph), "capture");
    check(cudaGraphInstantiate(&runnable, graph, 0), "cudaGraphInstantiate");
    for (unsigned step = 0; step < 3; ++step) {  // without a commit, so from the same residual
      const Floats values = make_input("gaussian", kCount, step);
      check(cudaMemcpy(input.data(), values.data(), input.bytes(), cudaMemcpyDefault), "copy");
      check(cudaGraphLaunch(runnable, stream.get()), "cudaGraphLaunch");
      stream.synchronize();
      Bytes found(payload.bytes());
      check(cudaMemcpy(found.data(), payload.data(), found.size(), cudaMemcpyDefault), "copy");
      EXPECT_TRUE(found == tersum::test::encode(*compressor, values)) << spec << ", " << step;
    }
    check(cudaGraphExecDestroy(runnable), "graph");
    check(cudaGraphDestroy(graph), "graph");
  }
}

}  // namespace
}  // namespace tersum::gpu::test
