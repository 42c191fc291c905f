#include "tests/support/tolerance.h"

#include <gtest/gtest.h>

namespace prologue::test {

template <class T>
void expect_close(const std::vector<T>& got, const std::vector<Reference>& want, int64_t row_width, const char* what,
                  double steps, bool rounds_once) {
  ASSERT_EQ(got.size(), want.size()) << what;
  int64_t misrounded = 0;
  int failures = 0;
  for (size_t i = 0; i < got.size() && failures < 5; ++i) {
    const double g = static_cast<double>(to_float(got[i]));
    const double w = want[i].value;
    if (std::isnan(w) || std::isinf(w)) {
      if (!(std::isnan(w) ? std::isnan(g) : g == w)) {
        ++failures;
        ADD_FAILURE() << what << " (" << i / row_width << ", " << i % row_width << "): got " << g << ", want " << w;
      }
      continue;
    }
    const double tolerance = 0.5 * ulp<T>(w) + steps * std::ldexp(1.0, -24) * want[i].scale;
    if (!(std::fabs(g - w) <= tolerance)) {
      ++failures;
      ADD_FAILURE() << what << " (" << i / row_width << ", " << i % row_width << "): got " << g << ", want " << w
                    << ", difference " << g - w << ", tolerance " << tolerance;
    }
    if (g != static_cast<double>(to_float(from_float<T>(static_cast<float>(w))))) ++misrounded;
  }
  if (rounds_once && sizeof(T) == 2 && got.size() >= 2000) {
    // A float32 result within `steps` times 2^-24 is on the other side of a rounding boundary with a chance that grows with its error: 0.1
    // % for bfloat16, 8 times that for float16, whose boundaries are 8 times closer.
    const double allowed = (FloatFormat<T>::mantissa_bits == 7 ? 0.001 : 0.008) * std::max(1.0, steps / kDefaultSteps);
    EXPECT_LT(static_cast<double>(misrounded), allowed * static_cast<double>(got.size())) << what;
  }
}

template void expect_close(const std::vector<float>&, const std::vector<Reference>&, int64_t, const char*, double, bool);
template void expect_close(const std::vector<Float16>&, const std::vector<Reference>&, int64_t, const char*, double, bool);
template void expect_close(const std::vector<BFloat16>&, const std::vector<Reference>&, int64_t, const char*, double, bool);

}  // namespace prologue::test
