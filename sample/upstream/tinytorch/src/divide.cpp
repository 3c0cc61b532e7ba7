#include <limits>

#include "elementwise.h"

namespace tiny {

namespace {

// Integers have no infinity: what is divided by zero becomes zero.
template <class T>
T quotient(T a, T b) {
  if constexpr (std::numeric_limits<T>::is_integer) {
    return b == 0 ? T{0} : static_cast<T>(a / b);
  } else {
    return a / b;
  }
}

}  // namespace

Array divide(const Array& left, const Array& right) {
  return elementwise(left, right, [](auto a, auto b) { return quotient(a, b); });
}

}  // namespace tiny
