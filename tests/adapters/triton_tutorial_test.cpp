#include <prologue/adapters/triton_tutorial.h>

#include "tests/adapters/golden.h"
#include "tests/support/types.h"

namespace prologue::test {
namespace {

namespace ours = adapters::triton_tutorial;

PROLOGUE_ADAPTER(TritonTutorial);

// Runs the block of the page over the tensors of a call.
Status page(const ours::RopeForward& c, const Execution& execution) {
  const void *const x = c.x_ptr, *const cos = c.cos_ptr, *const sin = c.sin_ptr;
  void* const out = c.out_ptr;
  const DType dtype = c.dtype, cos_dtype = c.cos_dtype;
  const int64_t batch_size = c.batch_size, n_heads = c.n_heads, seq_len = c.seq_len, head_dim = c.head_dim;
  const int64_t x_stride[] = {c.stride_x_batch, c.stride_x_head, c.stride_x_seq};
  const int64_t out_stride[] = {c.stride_out_batch, c.stride_out_head, c.stride_out_seq};
  const int64_t cos_stride[] = {c.stride_cos_seq}, sin_stride[] = {c.stride_sin_seq};
#include "triton_tutorial.inc"
  return status;
}

// `step` is the distance between the channels of x and between the columns of the tables.
Bytes run(Backend backend, const Golden& g, int64_t step, bool as_on_page = false) {
  const DType type = g.array("out").type;
  const auto spread = [&](const Values& values) {
    Values wide(values.size() * static_cast<size_t>(step), 9.0);
    for (size_t i = 0; i < values.size(); ++i) wide[i * static_cast<size_t>(step)] = values[i];
    return encode(type, wide);
  };
  Arena arena(backend);
  ours::RopeForward call;
  call.dtype = call.cos_dtype = type;
  call.batch_size = g.integer("batch");
  call.n_heads = g.integer("n_heads");
  call.seq_len = g.integer("seq_len");
  call.head_dim = g.integer("head_dim");
  const int64_t columns = g.integer("columns"), half = call.head_dim / 2;
  const int64_t count = call.batch_size * call.n_heads * call.seq_len * call.head_dim;
  call.x_ptr = arena.input(spread(fill(1, count)));
  auto* out = arena.output<unsigned char>(count * dtype_size(type));
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
  const Status status = arena.run(
      [&](const Execution& execution) { return as_on_page ? page(call, execution) : ours::rope_forward(call, execution); });
  EXPECT_TRUE(status.ok()) << status.message();
  return arena.read(out);
}

TEST_P(TritonTutorial, Goldens) {
  for (const Golden& g : read_goldens("triton_tutorial")) {
    SCOPED_TRACE(g.name);
    expect_golden(run(GetParam(), g, 1), g.array("out"));
    expect_golden(run(GetParam(), g, 1, true), g.array("out"));
  }
}

// The memory is as the golden's kernel left it: free strides, holes, cos and sin of another type.
TEST_P(TritonTutorial, Strides) {
  for (const Golden& g : read_goldens("triton_tutorial_strides")) {
    SCOPED_TRACE(g.name);
    const DType type = g.array("out").type;
    Arena arena(GetParam());
    ours::RopeForward call;
    call.dtype = type;
    call.cos_dtype = kFloatTypes[g.integer("cos_type")];
    call.batch_size = g.integer("batch");
    call.n_heads = g.integer("n_heads");
    call.seq_len = g.integer("seq_len");
    call.head_dim = g.integer("head_dim");
    const auto x_strides = g.integers("x_strides"), out_strides = g.integers("out_strides");
    call.stride_x_batch = x_strides[0], call.stride_x_head = x_strides[1], call.stride_x_seq = x_strides[2];
    call.stride_out_batch = out_strides[0], call.stride_out_head = out_strides[1], call.stride_out_seq = out_strides[2];
    call.stride_cos_seq = g.integer("cos_stride"), call.stride_sin_seq = g.integer("sin_stride");
    call.x_ptr = arena.input(encode(type, fill(1, g.integer("x_size"))));
    auto* out = arena.inout(encode(type, fill(9, static_cast<int64_t>(g.array("out").values.size()))));
    call.out_ptr = out;
    call.cos_ptr = arena.input(encode(call.cos_dtype, fill(2, call.seq_len * call.stride_cos_seq)));
    call.sin_ptr = arena.input(encode(call.cos_dtype, fill(3, call.seq_len * call.stride_sin_seq)));
    const Status status = arena.run([&](const Execution& execution) { return ours::rope_forward(call, execution); });
    ASSERT_TRUE(status.ok()) << status.message();
    expect_golden(arena.read(out), g.array("out"));
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
