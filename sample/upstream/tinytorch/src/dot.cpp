#include "elementwise.h"

namespace tiny {

double dot(const Array& left, const Array& right) {
  return sum(elementwise(left, right, [](auto a, auto b) { return a * b; }));
}

}  // namespace tiny
