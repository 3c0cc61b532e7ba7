#include "elementwise.h"

namespace tiny {

Array minimum(const Array& left, const Array& right) {
  return elementwise(left, right, [](auto a, auto b) { return b < a ? b : a; });
}

}  // namespace tiny
