#include <limits>

#include <tiny/ops.h>

namespace tiny {

double smallest(const Array& array) {
  return std::visit(
      [](const auto& values) {
        double least = std::numeric_limits<double>::infinity();
        for (const auto value : values) {
          least = value < least ? static_cast<double>(value) : least;
        }
        return least;
      },
      array);
}

}  // namespace tiny
