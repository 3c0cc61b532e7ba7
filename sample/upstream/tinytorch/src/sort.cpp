#include <algorithm>

#include <tiny/ops.h>

namespace tiny {

Array sort(const Array& array) {
  return std::visit(
      [](auto values) -> Array {
        std::stable_sort(values.begin(), values.end());
        return values;
      },
      array);
}

}  // namespace tiny
