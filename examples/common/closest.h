// Finds what somebody who mistyped a name may have meant.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace examples {

// Returns the least number of letters to insert, delete, replace, or swap with their neighbour that makes one text of the other; `limit` +
// 1 if it is more than `limit`.
size_t edit_distance(std::string_view a, std::string_view b, size_t limit);

// Returns " (did you mean 'max_tokens'?)" with the candidate that is closest to `name`, or nothing if none is close: one edit of three
// letters, two of four to seven, three of longer names. `candidates`: a range of what converts to std::string_view.
template <class Candidates>
std::string did_you_mean(std::string_view name, const Candidates& candidates) {
  constexpr size_t kLongest = 64;  // of names; what a stranger sends may be of any length
  if (name.size() < 3 || name.size() > kLongest) return {};
  size_t limit = name.size() < 4 ? 1 : name.size() < 8 ? 2 : 3;
  std::string_view closest;
  for (const std::string_view candidate : candidates) {
    const size_t distance = edit_distance(name, candidate, limit);
    if (distance > limit || (distance == limit && !closest.empty())) continue;
    closest = candidate;
    limit = distance;
  }
  return closest.empty() ? std::string() : " (did you mean '" + std::string(closest) + "'?)";
}

}  // namespace examples
