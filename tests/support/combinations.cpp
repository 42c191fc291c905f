#include "tests/support/combinations.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <set>

namespace prologue::test {
namespace {

struct Choice {
  size_t property, value;
  auto operator<=>(const Choice&) const = default;
};
using Pair = std::pair<Choice, Choice>;  // of the earlier property, then of the later

Pair pair_of(Choice a, Choice b) { return a < b ? Pair{a, b} : Pair{b, a}; }

std::set<Pair> all_pairs(const std::vector<size_t>& counts) {
  std::set<Pair> pairs;
  for (size_t a = 0; a < counts.size(); ++a) {
    for (size_t b = a + 1; b < counts.size(); ++b) {
      for (size_t x = 0; x < counts[a]; ++x) {
        for (size_t y = 0; y < counts[b]; ++y) pairs.insert({Choice{a, x}, Choice{b, y}});
      }
    }
  }
  return pairs;
}

}  // namespace

std::vector<Indices> every_combination(const std::vector<size_t>& counts) {
  std::vector<Indices> all = {{}};
  for (const size_t count : counts) {
    std::vector<Indices> longer;
    for (const Indices& indices : all) {
      for (size_t value = 0; value < count; ++value) {
        longer.push_back(indices);
        longer.back().push_back(value);
      }
    }
    all = std::move(longer);
  }
  return all;
}

// The choice is greedy: each combination starts with a pair that none has yet; every other property takes the value that makes the most of
// such pairs with what is chosen already, and of equally good ones that which was taken least often.
std::vector<Indices> every_pair(const std::vector<size_t>& counts) {
  if (counts.size() <= 2 || std::count(counts.begin(), counts.end(), size_t{0}) > 0) return every_combination(counts);
  std::set<Pair> missing = all_pairs(counts);
  std::vector<std::vector<size_t>> taken;
  for (const size_t count : counts) taken.emplace_back(count, 0);
  std::vector<Indices> all;
  while (!missing.empty()) {
    const auto [first, second] = *missing.begin();
    std::vector<Choice> chosen = {first, second};
    for (size_t property = 0; property < counts.size(); ++property) {
      if (property == first.property || property == second.property) continue;
      size_t best = 0, best_new = 0;
      for (size_t value = 0; value < counts[property]; ++value) {
        const auto is_new = [&](const Choice& other) { return missing.count(pair_of(other, {property, value})) > 0; };
        const auto number = static_cast<size_t>(std::count_if(chosen.begin(), chosen.end(), is_new));
        if (value == 0 || number > best_new || (number == best_new && taken[property][value] < taken[property][best])) {
          best = value, best_new = number;
        }
      }
      chosen.push_back({property, best});
    }
    Indices indices(counts.size());
    for (const Choice& a : chosen) {
      indices[a.property] = a.value;
      ++taken[a.property][a.value];
      for (const Choice& b : chosen) {
        if (a < b) missing.erase({a, b});
      }
    }
    all.push_back(std::move(indices));
  }
  std::sort(all.begin(), all.end());
  return all;
}

bool tests_all_combinations() {
  const char* const text = std::getenv("PROLOGUE_TEST_ALL");
  return text != nullptr && std::strcmp(text, "") != 0 && std::strcmp(text, "0") != 0;
}

}  // namespace prologue::test
