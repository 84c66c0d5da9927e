// The layers once more, as the textbook writes them: plain loops in double precision that share no
// code with the example. What central differences are taken of.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace reference {

using Values = std::vector<double>;

Values widen(std::span<const float> values);

/// input: [channels, side, side], weight: [filters, channels, kernel, kernel].
Values convolution(const Values& input, std::size_t channels, std::size_t side,
                   const Values& weight, const Values& bias, std::size_t kernel);
/// input: [channels, side, side] -> [channels, side / 2, side / 2].
Values max_pool(const Values& input, std::size_t channels, std::size_t side);
Values relu(Values input);
/// weight: [outputs, inputs].
Values fully_connected(const Values& input, const Values& weight, const Values& bias);
double cross_entropy(const Values& logits, std::size_t label);

/// Mean loss of the whole network; parameters in forward order, images [batch, 28, 28].
double network_loss(const std::vector<Values>& parameters, const Values& images,
                    std::span<const std::uint8_t> labels);

/// (f(value + h) - f(value - h)) / 2h, where f() depends on `value`; restores it.
double central_difference(double& value, const std::function<double()>& f, double h = 1e-5);

}  // namespace reference
