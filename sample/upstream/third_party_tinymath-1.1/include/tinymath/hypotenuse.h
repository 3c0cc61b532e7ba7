#pragma once

#include <cmath>

namespace tinymath {

// sqrt(a*a + b*b) without overflow on the way.
inline double hypotenuse(double a, double b) {
  const double large = std::fmax(std::fabs(a), std::fabs(b));
  if (large == 0 || std::isinf(large)) {
    return large;
  }
  const double small = std::fmin(std::fabs(a), std::fabs(b)) / large;
  return large * std::sqrt(1 + small * small);
}

}  // namespace tinymath
