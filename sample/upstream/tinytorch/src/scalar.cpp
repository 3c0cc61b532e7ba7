#include <tiny/ops.h>

namespace tiny {

namespace {

double only(const Array& array) { return std::get<Values<double>>(array).front(); }

}  // namespace

double add(double left, double right) { return only(add(Array{Values<double>{left}}, Array{Values<double>{right}})); }

double scale(double value, double factor) {
  return only(multiply(Array{Values<double>{value}}, Array{Values<double>{factor}}));
}

}  // namespace tiny
