#include "elementwise.h"

namespace tiny {

Array subtract(const Array& left, const Array& right) {
  return elementwise(left, right, [](auto a, auto b) { return a - b; });
}

}  // namespace tiny
