#include <cmath>

#include "elementwise.h"

namespace tiny {

Array power(const Array& left, const Array& right) {
  return elementwise(left, right, [](auto a, auto b) { return std::pow(a, b); });
}

}  // namespace tiny
