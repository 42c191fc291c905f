#include <prologue/kernels/rotary/rotary.h>

#include "tests/coming_from/golden.h"

namespace prologue::test {
namespace {

#include "triton_tutorial.inc"

PROLOGUE_COMING_FROM(TritonTutorial);

// `step`: between the channels of x and between the columns of the tables.
Bytes run(Backend backend, const Golden& g, int64_t step) {
  const FloatType type = g.array("out").type;
  const auto spread = [&](const Values& values) {
    Values wide(values.size() * static_cast<size_t>(step), 9.0);
    for (size_t i = 0; i < values.size(); ++i) wide[i * static_cast<size_t>(step)] = values[i];
    return encode(type, wide);
  };
  Arena arena(backend);
  TutorialRope call;
  call.dtype = call.cos_dtype = type;
  call.batch_size = g.integer("batch");
  call.n_heads = g.integer("n_heads");
  call.seq_len = g.integer("seq_len");
  call.head_dim = g.integer("head_dim");
  const int64_t columns = g.integer("columns"), half = call.head_dim / 2;
  const int64_t count = call.batch_size * call.n_heads * call.seq_len * call.head_dim;
  call.x_ptr = arena.input(spread(fill(1, count)));
  auto* out = arena.output<unsigned char>(count * float_type_size(type));
  call.out_ptr = out;
  const auto table = [&](uint64_t seed) {
    const Values values = fill(seed, call.seq_len * half);
    return arena.input(spread(columns == half ? values : widen(values, half, false)));
  };
  call.cos_ptr = table(2);
  call.sin_ptr = table(3);
  call.stride_out_seq = call.head_dim;
  call.stride_out_head = call.seq_len * call.stride_out_seq;
  call.stride_out_batch = call.n_heads * call.stride_out_head;
  call.stride_x_dim = call.stride_cos_dim = call.stride_sin_dim = step;
  call.stride_x_seq = step * call.stride_out_seq;
  call.stride_x_head = step * call.stride_out_head;
  call.stride_x_batch = step * call.stride_out_batch;
  call.stride_cos_seq = call.stride_sin_seq = step * columns;
  const Status status = arena.run([&](const Execution& execution) { return tutorial_rope_forward(call, execution); });
  EXPECT_TRUE(status.ok()) << status.message();
  return arena.read(out);
}

TEST_P(TritonTutorial, Goldens) {
  for (const Golden& g : read_goldens("triton_tutorial")) {
    SCOPED_TRACE(g.name);
    expect_golden(run(GetParam(), g, 1), g.array("out"));
  }
}

// The strides of channels and columns, which the tutorial's kernel takes and ignores.
TEST_P(TritonTutorial, HonoursTheStridesOfChannels) {
  for (const Golden& g : read_goldens("triton_tutorial")) {
    SCOPED_TRACE(g.name);
    expect_golden(run(GetParam(), g, 3), g.array("out"));
  }
}

}  // namespace
}  // namespace prologue::test
