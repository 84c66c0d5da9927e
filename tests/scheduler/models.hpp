// Layer lists of real model families, made from their definitions.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "scheduler/plan.hpp"

namespace tersum::scheduler::testing {

/// Appends a gradient at the next forward position.
inline void add_gradient(std::vector<PlanInput>& model, const std::string& key, std::size_t count) {
  PlanInput input;
  input.key = key;
  input.count = count;
  input.position = static_cast<int>(model.size());
  input.group = "fp32/none";
  model.push_back(input);
}

/// ResNet-50 (He et al. 2016): 161 gradients, 25,557,032 elements.
inline std::vector<PlanInput> resnet50() {
  std::vector<PlanInput> model;
  const auto convolution = [&](const std::string& key, std::size_t in, std::size_t out,
                               std::size_t kernel) {
    add_gradient(model, key + ".weight", in * out * kernel * kernel);
    add_gradient(model, key + ".norm.weight", out);
    add_gradient(model, key + ".norm.bias", out);
  };
  convolution("conv1", 3, 64, 7);
  std::size_t in = 64;
  const std::size_t depth[] = {3, 4, 6, 3};
  for (std::size_t stage = 0; stage < 4; ++stage) {
    const std::size_t width = std::size_t{64} << stage;
    for (std::size_t block = 0; block < depth[stage]; ++block) {
      const std::string key = "layer" + std::to_string(stage + 1) + "." + std::to_string(block);
      convolution(key + ".conv1", in, width, 1);
      convolution(key + ".conv2", width, width, 3);
      convolution(key + ".conv3", width, 4 * width, 1);
      if (block == 0) convolution(key + ".downsample", in, 4 * width, 1);
      in = 4 * width;
    }
  }
  add_gradient(model, "fc.weight", in * 1000);
  add_gradient(model, "fc.bias", 1000);
  return model;
}

/// GPT-2 124M (Radford et al. 2019) with its tied embedding of 38,597,376 elements: 148 gradients,
/// 124,439,808 elements.
inline std::vector<PlanInput> gpt2() {
  std::vector<PlanInput> model;
  constexpr std::size_t kWidth = 768;
  add_gradient(model, "wte.weight", 50257 * kWidth);
  add_gradient(model, "wpe.weight", 1024 * kWidth);
  const auto linear = [&](const std::string& key, std::size_t in, std::size_t out) {
    add_gradient(model, key + ".weight", in * out);
    add_gradient(model, key + ".bias", out);
  };
  const auto norm = [&](const std::string& key) {
    add_gradient(model, key + ".weight", kWidth);
    add_gradient(model, key + ".bias", kWidth);
  };
  for (int layer = 0; layer < 12; ++layer) {
    const std::string key = "h." + std::to_string(layer);
    norm(key + ".ln_1");
    linear(key + ".attn.c_attn", kWidth, 3 * kWidth);
    linear(key + ".attn.c_proj", kWidth, kWidth);
    norm(key + ".ln_2");
    linear(key + ".mlp.c_fc", kWidth, 4 * kWidth);
    linear(key + ".mlp.c_proj", 4 * kWidth, kWidth);
  }
  norm("ln_f");
  return model;
}

}  // namespace tersum::scheduler::testing
