#pragma once

#include <type_traits>

#include <tiny/ops.h>

#ifdef _OPENMP
#define TINY_PARALLEL _Pragma("omp parallel for")
#else
#define TINY_PARALLEL
#endif

namespace tiny {

// Applies `op` to every pair of values; made anew for each of the 36 pairs of types.
template <class Op>
Array elementwise(const Array& left, const Array& right, Op op) {
  return std::visit(
      [op](const auto& a, const auto& b) -> Array {
        using T = std::common_type_t<typename std::decay_t<decltype(a)>::value_type,
                                     typename std::decay_t<decltype(b)>::value_type>;
        if (a.size() != b.size()) {
          throw std::invalid_argument("the arrays differ in length");
        }
        Values<T> result(a.size());
        const auto count = static_cast<std::int64_t>(a.size());
        TINY_PARALLEL
        for (std::int64_t i = 0; i < count; ++i) {
          result[i] = static_cast<T>(op(static_cast<T>(a[i]), static_cast<T>(b[i])));
        }
        return result;
      },
      left, right);
}

}  // namespace tiny
