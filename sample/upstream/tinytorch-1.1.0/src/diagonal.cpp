#include <tiny/geometry.h>

#include <tinymath/hypotenuse.h>

namespace tiny {

double diagonal(double width, double height) { return tinymath::hypotenuse(width, height); }

}  // namespace tiny
