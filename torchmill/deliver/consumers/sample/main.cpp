// Adds, through the header and the library.
#include <tiny/ops.h>

#include <iostream>

int main() {
  const double sum = tiny::add(2, 3);
  std::cout << "2 + 3 = " << sum << std::endl;
  return sum == 5 ? 0 : 1;
}
