#include <cstdio>

#include <tiny/ops.h>

namespace {

int failures = 0;

void check(bool holds, const char* what) {
  if (!holds) {
    std::printf("FAILED: %s\n", what);
    ++failures;
  }
}

}  // namespace

int main() {
  const tiny::Array three = tiny::Values<std::int8_t>{3, 1, 2};
  const tiny::Array halves = tiny::Values<float>{0.5F, 0.5F, 0.5F};
  check(tiny::format(tiny::add(three, halves)) == "3.5, 1.5, 2.5", "int8 + float is float");
  check(tiny::format(tiny::sort(three)) == "1, 2, 3", "sort");
  check(tiny::format(tiny::parse("1, 2.5; -3e2")) == "1, 2.5, -300", "parse and format");
  check(tiny::sum(three) == 6, "sum");
  check(tiny::dot(three, halves) == 3, "dot");
  check(tiny::smallest(three) == 1, "smallest");
  check(tiny::fit({0, 1, 2}, {1, 3, 7}, 2).size() == 3, "a parabola has three coefficients");
  std::printf("%d failures\n", failures);
  return failures == 0 ? 0 : 1;
}
