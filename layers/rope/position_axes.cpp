#include <prologue/kernels/base/out_of_memory.h>
#include <prologue/layers/rope/position_axes.h>

namespace prologue {

namespace {

constexpr int64_t kMostPairs = 32768;

Result<int64_t> count_pairs(const std::vector<int64_t>& sections) {
  int64_t pairs = 0;
  for (size_t a = 0; a < sections.size(); ++a) {
    if (sections[a] < 0 || sections[a] > kMostPairs) {
      return invalid_argument("mrope: section ", a, " is ", sections[a], ": it must be between 0 and ", kMostPairs);
    }
    pairs += sections[a];
  }
  if (pairs < 1 || pairs > kMostPairs) {
    return invalid_argument("mrope: the sections add up to ", pairs, " pairs: there must be between 1 and ", kMostPairs);
  }
  return pairs;
}

Result<std::vector<uint8_t>> axes_of_sections(const std::vector<int64_t>& sections, bool interleaved) {
  if (interleaved && sections.size() != 3) {
    return invalid_argument("mrope: there are ", sections.size(), " sections: interleaved ones must be 3");
  }
  if (sections.empty() || sections.size() > 4) {
    return invalid_argument("mrope: there are ", sections.size(), " sections: there must be between 1 and 4");
  }
  PROLOGUE_ASSIGN_OR_RETURN(const int64_t pairs, count_pairs(sections));
  std::vector<uint8_t> axes;
  if (interleaved) {
    for (int64_t i = 0; i < pairs; ++i) {
      const auto axis = static_cast<size_t>(i % 3);
      axes.push_back(i < 3 * sections[axis] ? static_cast<uint8_t>(axis) : uint8_t{0});
    }
  } else {
    for (size_t a = 0; a < sections.size(); ++a)
      axes.insert(axes.end(), static_cast<size_t>(sections[a]), static_cast<uint8_t>(a));
  }
  return axes;
}

Result<std::vector<uint8_t>> axes_of_halves(int64_t rotary_dim) {
  if (rotary_dim < 4 || rotary_dim > 2 * kMostPairs || rotary_dim % 4 != 0) {
    return invalid_argument("two-axis rope: rotary_dim is ", rotary_dim, ": it must be a multiple of 4 and at most ",
                            2 * kMostPairs);
  }
  const auto quarter = static_cast<size_t>(rotary_dim / 4);
  std::vector<uint8_t> axes(quarter, 0);
  axes.insert(axes.end(), quarter, 1);
  return axes;
}

}  // namespace

Result<std::vector<uint8_t>> mrope_pair_axis(const std::vector<int64_t>& sections, bool interleaved) {
  return catch_out_of_memory([&] { return axes_of_sections(sections, interleaved); });
}

Result<std::vector<uint8_t>> two_axis_pair_axis(int64_t rotary_dim) {
  return catch_out_of_memory([&] { return axes_of_halves(rotary_dim); });
}

RopeFrequencies two_axis_frequencies(const RopeFrequencies& one_axis) {
  RopeFrequencies both = one_axis;
  both.inv_freq.insert(both.inv_freq.end(), one_axis.inv_freq.begin(), one_axis.inv_freq.end());
  return both;
}

}  // namespace prologue
