#include <prologue/kernels/rotary/rotary.h>

#include <vector>

#include "tests/coming_from/golden.h"

namespace prologue::test {
namespace {

#include "infinicore.inc"

PROLOGUE_COMING_FROM(Infinicore);

struct Outcome {
  Status status;
  Bytes out;
  Fault fault;
};

template <class Index>
Outcome run(Backend backend, const Golden& g, const std::vector<Index>& pos_ids, int64_t table_len) {
  const FloatType type = g.array("out").type;
  const int64_t batch = g.integer("batch"), seqlen = g.integer("seqlen"), nhead = g.integer("nhead"),
                table_dim = g.integer("table_dim");
  const int64_t dhead = 2 * table_dim;
  Arena arena(backend);
  InfiniopRope call;
  call.data_type = type;
  call.algo = g.flag("gptj") ? INFINIOP_ROPE_ALGO_GPT_J : INFINIOP_ROPE_ALGO_GPT_NEOX;
  const Bytes x = encode(type, fill(1, batch * seqlen * nhead * dhead));
  auto* out = arena.output<unsigned char>(static_cast<int64_t>(x.size()));
  call.x = {arena.input(x), {seqlen, nhead, dhead}, {nhead * dhead, dhead, 1}};
  if (g.integer("ndim") == 4) {
    call.x.shape.insert(call.x.shape.begin(), batch);
    call.x.strides.insert(call.x.strides.begin(), seqlen * nhead * dhead);
  }
  call.y = call.x;
  call.y.data = out;
  call.sin = {arena.input(encode(type, fill(3, g.integer("table_len") * table_dim))), {table_len, table_dim}, {table_dim, 1}};
  call.cos = {arena.input(encode(type, fill(2, g.integer("table_len") * table_dim))), {table_len, table_dim}, {table_dim, 1}};
  const Index* ids = arena.input(pos_ids);
  call.pos_type = IntView(ids).type;
  call.pos_ids = {ids, {seqlen}, {1}};
  if (g.flag("pos_2d")) call.pos_ids = {ids, {batch, seqlen}, {seqlen, 1}};
  FaultRecord* faults = arena.inout(std::vector<FaultRecord>(1));
  const Status status = arena.run([&](const Execution& execution) -> Status {
    PROLOGUE_ASSIGN_OR_RETURN(const RotaryPlan plan, infiniop_create_rope_descriptor(call, faults, execution));
    EXPECT_EQ(RotaryPlan::workspace_bytes(), 0);
    return infiniop_rope(plan, out, call.x.data, ids, call.sin.data, call.cos.data, execution);
  });
  return {status, arena.read(out), read_fault(arena, faults)};
}

template <class Index>
void expect_goldens(Backend backend) {
  for (const Golden& g : read_goldens("infinicore")) {
    SCOPED_TRACE(g.name);
    const Outcome result = run(backend, g, g.integers<Index>("pos_ids"), g.integer("table_len"));
    EXPECT_TRUE(result.status.ok()) << result.status.message();
    expect_golden(result.out, g.array("out"));
    EXPECT_EQ(result.fault.code, FaultCode::none);
  }
}

TEST_P(Infinicore, Goldens) {
  expect_goldens<int8_t>(GetParam());
  expect_goldens<int16_t>(GetParam());
  expect_goldens<int32_t>(GetParam());
  expect_goldens<int64_t>(GetParam());
  expect_goldens<uint8_t>(GetParam());
  expect_goldens<uint16_t>(GetParam());
  expect_goldens<uint32_t>(GetParam());
  expect_goldens<uint64_t>(GetParam());
}

// A position past the table is read out of bounds by theirs, and so is a negative one.
TEST_P(Infinicore, PositionsOutsideTheTable) {
  for (const Golden& g : read_goldens("infinicore")) {
    if (g.flag("pos_2d") || g.integer("ndim") == 4) continue;
    SCOPED_TRACE(g.name);
    const Outcome result = run<int16_t>(GetParam(), g, {-1, 9, 8}, 9);
    EXPECT_TRUE(result.status.ok()) << result.status.message();
    const size_t row = result.out.size() / 3;
    EXPECT_EQ(Bytes(result.out.begin(), result.out.begin() + static_cast<int64_t>(row)), Bytes(row, kPoison));
    EXPECT_EQ(Bytes(result.out.begin() + static_cast<int64_t>(row), result.out.begin() + static_cast<int64_t>(2 * row)),
              Bytes(row, 0));
    EXPECT_EQ(result.fault.code, FaultCode::position_out_of_range);
    EXPECT_EQ(result.fault.token, 1);
    EXPECT_EQ(result.fault.count, 1u);
  }
}

// What infiniopCreateRoPEDescriptor answers with a status code.
TEST_P(Infinicore, DescriptorsAreChecked) {
  const Golden g = read_goldens("infinicore").front();
  const Outcome result = run<int32_t>(GetParam(), g, {5, 0, 8}, 0);  // an empty table
  EXPECT_EQ(result.status.code(), StatusCode::invalid_argument);
  EXPECT_NE(result.status.message().find("angles.max_position is 0"), std::string::npos) << result.status.message();
  EXPECT_EQ(result.out, Bytes(result.out.size(), kPoison));
}

}  // namespace
}  // namespace prologue::test
