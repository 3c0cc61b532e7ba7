#pragma once

#include <cstddef>

#include <tinybits/power_of_two.h>

namespace tinymath {

// Sums `count` values as a balanced tree, so that rounding errors grow with log(count).
template <class Sum, class T>
Sum pairwise_sum(const T* values, std::size_t count) {
  if (count == 0) {
    return Sum{};
  }
  if (count == 1) {
    return static_cast<Sum>(*values);
  }
  const std::size_t half = tinybits::floor_power_of_two(count - 1);
  return static_cast<Sum>(pairwise_sum<Sum>(values, half) + pairwise_sum<Sum>(values + half, count - half));
}

}  // namespace tinymath
