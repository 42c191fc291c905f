// Projections one after another: they must give the bits of the operations by themselves where every order of a sum gives the same.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <tuple>
#include <vector>

#include <prologue/kernels/projection_chain/backends.h>
#include <prologue/kernels/projection_chain/projection_chain.h>

#include "tests/support/arena.h"
#include "tests/support/random.h"
#include "tests/support/tolerance.h"
#include "tests/support/types.h"

namespace prologue::test {
namespace {

// output + residual, norm + gate_up + activation, down + residual of a decoder
struct Case {
  int64_t num_tokens = 1, attended = 128, hidden = 64, inner = 192;
  bool gated = true, float_weights = false, weighted = true, bias = false;
  std::string describe() const {
    return str_cat("T=", num_tokens, " ", attended, " -> ", hidden, " -> ", inner, " gated=", gated, float_weights, weighted, bias);
  }
};

template <class T>
std::vector<T> whole(Random& random, int64_t count, int low, int high) {
  std::vector<T> values;
  for (int64_t i = 0; i < count; ++i) values.push_back(from_float<T>(static_cast<float>(random.integer(low, high))));
  return values;
}

template <class T>
std::vector<T> normals(Random& random, int64_t count, float factor) {
  std::vector<T> values;
  for (const float value : random.normals<float>(count)) values.push_back(from_float<T>(value * factor));
  return values;
}

template <class T>
struct Placed {
  Arena arena;
  ProjectionChainParams params;
  const T* residual;
  const T* activated;
  const uint32_t* counters;

  Placed(Backend backend, const Case& c) : arena(backend) {
    Random random(17);
    const auto fill = [&](ProjectionParams& p, int64_t n, int64_t k, bool gated) {
      p.num_tokens = c.num_tokens, p.n = n, p.k = p.x_stride = k, p.y_stride = n, p.dtype = FloatFormat<T>::dtype;
      const int64_t rows = gated ? 2 * n : n;
      p.weight = arena.input(normals<T>(random, rows * k, 0.125f));
      if (c.bias) p.bias = arena.input(normals<T>(random, rows, 1.0f));
    };
    T* const hidden = arena.inout(normals<T>(random, c.num_tokens * c.hidden, 1.0f));
    T* const inner = arena.inout(whole<T>(random, c.num_tokens * c.inner, -1, 1));
    residual = hidden, activated = inner;
    params.num_projections = 3;
    ProjectionParams& output = params.projections[0];
    fill(output, c.hidden, c.attended, false);
    output.x = arena.input(normals<T>(random, c.num_tokens * c.attended, 1.0f));
    output.y = hidden;
    output.adds = 1;
    ProjectionParams& gate_up = params.projections[1];
    fill(gate_up, c.inner, c.hidden, c.gated);
    gate_up.x = hidden;
    gate_up.y = inner;
    gate_up.norm.given = 1;
    if (c.weighted && c.float_weights) {
      gate_up.norm.weight = arena.input(normals<float>(random, c.hidden, 1.0f)), gate_up.norm.weight_type = DType::f32;
    } else if (c.weighted) {
      gate_up.norm.weight = arena.input(normals<T>(random, c.hidden, 1.0f));
    }
    gate_up.activation.given = 1;
    gate_up.activation.gated = c.gated;
    ProjectionParams& down = params.projections[2];
    fill(down, c.hidden, c.inner, false);
    down.x = inner;
    down.y = hidden;
    down.adds = 1;
    uint32_t* const zeros = arena.inout(std::vector<uint32_t>(kProjectionChainCounters));
    params.counters = zeros, counters = zeros;
    params.workspace_bytes = projection_chain_workspace_bytes(params);
    params.workspace = arena.workspace(params.workspace_bytes);
  }
};

class ProjectionChainTest : public ::testing::TestWithParam<std::tuple<DType, Backend>> {};
INSTANTIATE_TEST_SUITE_P(All, ProjectionChainTest,
                         ::testing::Combine(::testing::Values(DType::f16, DType::bf16), ::testing::ValuesIn(all_backends())),
                         [](const auto& each) {
                           return str_cat(dtype_name(std::get<0>(each.param)), "_", backend_name(std::get<1>(each.param)));
                         });

TEST_P(ProjectionChainTest, IsTheOperationsOneAfterAnother) {
  const auto& [dtype, backend] = GetParam();
  PROLOGUE_REQUIRE_BACKEND(backend);
  const auto context = GemmContext::create(backend_device(backend));
  ASSERT_TRUE(context.ok()) << context.status().message();
  std::vector<Case> cases;
  for (const int64_t num_tokens : {1, 3, 8, 13, 16, 20, 33, 64}) {
    Case c;
    c.num_tokens = num_tokens;
    cases.push_back(c);
    c.attended = 320, c.hidden = 448, c.inner = 448, c.bias = true;
    cases.push_back(c);
    c.gated = false, c.float_weights = true;
    cases.push_back(c);
  }
  for (const Case& c : cases) {
    SCOPED_TRACE(c.describe());
    with_host_type(dtype, [&, on = backend, dtype = dtype](auto type) {
      using T = decltype(type);
      Placed<T> want(on, c), got(on, c);
      ASSERT_TRUE(
          want.arena.run([&](const Execution& execution) { return run_separately(want.params, **context, execution); }).ok());
      const Status status = got.arena.run([&](const Execution& execution) -> Status {
        PROLOGUE_RETURN_IF_ERROR(validate(got.params, **context, execution));
        if (execution.device == Device::cuda && c.num_tokens <= 16) return cuda::projection_chain(got.params, execution);
        return projection_chain(got.params, **context, execution);
      });
      ASSERT_TRUE(status.ok()) << status.message();
      for (const auto member : {&Placed<T>::activated, &Placed<T>::residual}) {
        const std::vector<T> a = got.arena.read(got.*member), b = want.arena.read(want.*member);
        ASSERT_EQ(a.size(), b.size());
        for (size_t i = 0; i < a.size(); ++i) {
          const double x = to_float(a[i]), y = to_float(b[i]);
          ASSERT_NEAR(x, y, (dtype == DType::bf16 ? 0.08 : 0.02) * std::max(1.0, std::fabs(y))) << "element " << i << " of " << a.size();
        }
      }
      for (const uint32_t counter : got.arena.read(got.counters)) ASSERT_EQ(counter, 0u);
    });
  }
}

}  // namespace
}  // namespace prologue::test
