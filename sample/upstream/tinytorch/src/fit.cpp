#include <cmath>
#include <utility>

#include <tiny/ops.h>

namespace tiny {

namespace {

using Row = Values<double>;

// The normal equations of the fit, each with its right side as the last value.
Values<Row> equations(const Row& xs, const Row& ys, std::size_t degree) {
  Values<Row> rows(degree + 1, Row(degree + 2));
  for (std::size_t point = 0; point < xs.size(); ++point) {
    for (std::size_t i = 0; i <= degree; ++i) {
      for (std::size_t j = 0; j <= degree; ++j) {
        rows[i][j] += std::pow(xs[point], static_cast<double>(i + j));
      }
      rows[i][degree + 1] += ys[point] * std::pow(xs[point], static_cast<double>(i));
    }
  }
  return rows;
}

void eliminate(Values<Row>& rows, std::size_t column) {
  std::size_t pivot = column;
  for (std::size_t i = column; i < rows.size(); ++i) {
    pivot = std::fabs(rows[i][column]) > std::fabs(rows[pivot][column]) ? i : pivot;
  }
  std::swap(rows[column], rows[pivot]);
  if (rows[column][column] == 0) {
    throw std::invalid_argument("the points do not determine a polynomial of that degree");
  }
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const double factor = i == column ? 0 : rows[i][column] / rows[column][column];
    for (std::size_t j = column; j < rows[i].size(); ++j) {
      rows[i][j] -= factor * rows[column][j];
    }
  }
}

}  // namespace

Values<double> fit(const Values<double>& xs, const Values<double>& ys, std::size_t degree) {
  if (xs.size() != ys.size()) {
    throw std::invalid_argument("the arrays differ in length");
  }
  auto rows = equations(xs, ys, degree);
  for (std::size_t column = 0; column <= degree; ++column) {
    eliminate(rows, column);
  }
  Values<double> coefficients;
  for (std::size_t i = 0; i <= degree; ++i) {
    coefficients.push_back(rows[i][degree + 1] / rows[i][i]);
  }
  return coefficients;
}

}  // namespace tiny
