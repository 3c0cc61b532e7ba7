#include <numeric>

#include <tinymath/pairwise.h>

#include <tiny/ops.h>

namespace tiny {

double sum(const Array& array) {
  return std::visit(
      [](const auto& values) {
#ifdef TINY_FAST
        return std::accumulate(values.begin(), values.end(), 0.0);
#else
        return tinymath::pairwise_sum<double>(values.data(), values.size());
#endif
      },
      array);
}

}  // namespace tiny
