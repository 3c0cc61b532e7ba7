#pragma once

namespace tiny {

// The length of the diagonal of a rectangle.
double diagonal(double width, double height);

}  // namespace tiny
