#pragma once

#include <cstddef>

namespace tinybits {

// The largest power of two that is not above `value`; 0 for 0.
constexpr std::size_t floor_power_of_two(std::size_t value) {
  std::size_t power = value > 0 ? 1 : 0;
  while (power > 0 && power <= value / 2) {
    power *= 2;
  }
  return power;
}

static_assert(floor_power_of_two(0) == 0);
static_assert(floor_power_of_two(1) == 1);
static_assert(floor_power_of_two(100) == 64);

}  // namespace tinybits
