#pragma once

#include <string>
#include <utility>

#include <tiny/array.h>

namespace tiny {

// Elementwise; the result has the type that C++ gives the two operands together.
Array add(const Array& left, const Array& right);
Array subtract(const Array& left, const Array& right);
Array multiply(const Array& left, const Array& right);
Array divide(const Array& left, const Array& right);
Array power(const Array& left, const Array& right);
Array minimum(const Array& left, const Array& right);
Array maximum(const Array& left, const Array& right);
Array less(const Array& left, const Array& right);

// Of one array, or of two.
double sum(const Array& array);
double dot(const Array& left, const Array& right);
double smallest(const Array& array);  // infinity, when there is none
Array sort(const Array& array);
Array running_sum(const Array& array);

// The coefficients, constant first, of the polynomial nearest to the points.
Values<double> fit(const Values<double>& xs, const Values<double>& ys, std::size_t degree);

// "1, 2.5, -3e2" as an array of doubles, and back.
Array parse(const std::string& text);
std::string format(const Array& array);

// Scalars.
double add(double left, double right);
double scale(double value, double factor);

// What was switched on when this library was built.
Values<std::pair<std::string, bool>> switches();

}  // namespace tiny
