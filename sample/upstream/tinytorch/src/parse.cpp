#include <cstdlib>

#include <tiny/ops.h>

namespace tiny {

Array parse(const std::string& text) {
  Values<double> values;
  for (const char* at = text.c_str(); *at != '\0';) {
    char* end = nullptr;
    const double value = std::strtod(at, &end);
    if (end == at) {
      ++at;  // what is no number separates numbers
    } else {
      values.push_back(value);
      at = end;
    }
  }
  return values;
}

}  // namespace tiny
