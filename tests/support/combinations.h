// Where several properties of a case multiply: combinations of their values. By default so many that of any two properties every pair of
// values is in one of them, which finds what one or two values cause; with PROLOGUE_TEST_ALL=1 (scripts/test --all), every combination.
#pragma once

#include <cstddef>
#include <tuple>
#include <utility>
#include <vector>

namespace prologue::test {

// A combination is an index for each property, below its number of values.
using Indices = std::vector<size_t>;
std::vector<Indices> every_combination(const std::vector<size_t>& counts);
// The same for the same counts, at every call. Of two properties, or of one, that is every combination.
std::vector<Indices> every_pair(const std::vector<size_t>& counts);
// PROLOGUE_TEST_ALL is set, and not to 0.
bool tests_all_combinations();

template <class... T>
std::vector<std::tuple<T...>> values_at(const std::vector<Indices>& list, const std::vector<T>&... values) {
  std::vector<std::tuple<T...>> all;
  for (const Indices& indices : list) {
    [&]<size_t... i>(std::index_sequence<i...>) { all.emplace_back(values[indices[i]]...); }
    (std::index_sequence_for<T...>{});
  }
  return all;
}
template <class... T>
std::vector<std::tuple<T...>> product(const std::vector<T>&... values) {
  return values_at(every_combination({values.size()...}), values...);
}
template <class... T>
std::vector<std::tuple<T...>> combinations(const std::vector<T>&... values) {
  return tests_all_combinations() ? product(values...) : values_at(every_pair({values.size()...}), values...);
}

}  // namespace prologue::test
