#include <numeric>

#include <tiny/ops.h>

namespace tiny {

Array running_sum(const Array& array) {
  return std::visit(
      [](auto values) -> Array {
        std::partial_sum(values.begin(), values.end(), values.begin());
        return values;
      },
      array);
}

}  // namespace tiny
