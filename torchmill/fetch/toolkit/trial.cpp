#include <stdexcept>
#include <string>
#include <vector>
int main() {
  std::vector<std::string> words(3, "whole");
  try { throw std::runtime_error(words.at(2)); }
  catch (const std::exception& error) { return words[0] != error.what(); }
}
