#include "elementwise.h"

namespace tiny {

Array maximum(const Array& left, const Array& right) {
  return elementwise(left, right, [](auto a, auto b) { return a < b ? b : a; });
}

}  // namespace tiny
