#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <variant>
#include <vector>

namespace tiny {

template <class T>
using Values = std::vector<T>;

// One row of numbers, of a type that is known when the program runs.
using Array = std::variant<Values<std::int8_t>, Values<std::int16_t>, Values<std::int32_t>,
                           Values<std::int64_t>, Values<float>, Values<double>>;

}  // namespace tiny
