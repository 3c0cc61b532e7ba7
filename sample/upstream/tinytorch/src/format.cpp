#include <sstream>

#include <tiny/ops.h>

namespace tiny {

std::string format(const Array& array) {
  std::ostringstream text;
  std::visit(
      [&text](const auto& values) {
        const char* separator = "";
        for (const auto value : values) {
          text << separator << +value;  // plus: a number, not a character
          separator = ", ";
        }
      },
      array);
  return text.str();
}

}  // namespace tiny
