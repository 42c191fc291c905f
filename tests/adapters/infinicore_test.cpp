#include <prologue/adapters/infinicore.h>

#include <bit>
#include <string>
#include <type_traits>
#include <vector>

#include "tests/adapters/golden.h"
#include "tests/support/refusals.h"

namespace prologue::test {
namespace {

namespace ours = adapters::infinicore;

PROLOGUE_ADAPTER(Infinicore);

// The descriptors of a call, and nothing else: what a descriptor is made from.
struct Descriptors {
  ours::TensorDescriptor y, x, pos, sin, cos;
};

// Runs the block of the page over the tensors of a call.
Status page(const Descriptors& d, void* y, const void* x, const void* pos_ids, const void* sin_table, const void* cos_table,
            FaultRecord* faults, const Execution& execution) {
  const auto &y_desc = d.y, &x_desc = d.x, &pos_desc = d.pos, &sin_desc = d.sin, &cos_desc = d.cos;
#include "infinicore.inc"
  return status;
}

ours::Dtype dtype_of(DType type) {
  return type == DType::f16    ? ours::Dtype::f16
         : type == DType::bf16 ? ours::Dtype::bf16
         : type == DType::f32  ? ours::Dtype::f32
                               : ours::Dtype::f64;
}
template <class Index>
ours::Dtype dtype_of_index() {  // theirs are in one order: signed by size, then unsigned
  const int size = std::countr_zero(sizeof(Index)) + (std::is_signed_v<Index> ? 0 : 4);
  return static_cast<ours::Dtype>(static_cast<int32_t>(ours::Dtype::i8) + size);
}

// Strides: batch, seqlen, nhead; empty = dense.
template <class Index>
Descriptors descriptors_of(const Golden& g, int64_t table_len, const std::vector<int64_t>& x_strides = {},
                           const std::vector<int64_t>& y_strides = {}) {
  const int64_t batch = g.integer("batch"), seqlen = g.integer("seqlen"), nhead = g.integer("nhead"),
                table_dim = g.integer("table_dim"), dhead = 2 * table_dim;
  const auto tensor = [&](const std::vector<int64_t>& s) {
    const std::vector<int64_t> strides = s.empty() ? std::vector<int64_t>{seqlen * nhead * dhead, nhead * dhead, dhead} : s;
    ours::TensorDescriptor result;
    result.dtype = dtype_of(g.array("out").type);
    if (g.integer("ndim") == 4) {
      result = {result.dtype, 4, {batch, seqlen, nhead, dhead}, {strides[0], strides[1], strides[2], 1}};
    } else {
      result = {result.dtype, 3, {seqlen, nhead, dhead}, {strides[1], strides[2], 1}};
    }
    return result;
  };
  Descriptors d;
  d.x = tensor(x_strides);
  d.y = tensor(y_strides);
  d.sin = d.cos = {d.x.dtype, 2, {table_len, table_dim}, {table_dim, 1}};
  const ours::Dtype pos_type = dtype_of_index<Index>();
  d.pos = {pos_type, 1, {seqlen}, {1}};
  if (g.flag("pos_2d")) d.pos = {pos_type, 2, {batch, seqlen}, {seqlen, 1}};
  return d;
}

struct Outcome {
  Status status;
  Bytes out;
  Fault fault;
};

template <class Index>
Outcome run(Backend backend, const Golden& g, const std::vector<Index>& pos_ids, int64_t table_len) {
  const DType type = g.array("out").type;
  const int64_t table = g.integer("table_len") * g.integer("table_dim");
  const Descriptors d = descriptors_of<Index>(g, table_len);
  Arena arena(backend);
  const Bytes x_bytes = encode(type, fill(1, static_cast<int64_t>(g.array("out").values.size())));
  const auto* x = arena.input(x_bytes);
  auto* y = arena.output<unsigned char>(static_cast<int64_t>(x_bytes.size()));
  const auto* sin_table = arena.input(encode(type, fill(3, table)));
  const auto* cos_table = arena.input(encode(type, fill(2, table)));
  const Index* ids = arena.input(pos_ids);
  FaultRecord* faults = arena.inout(std::vector<FaultRecord>(1));
  const Status status = arena.run([&](const Execution& execution) -> Status {
    if (!g.flag("gptj")) return page(d, y, x, ids, sin_table, cos_table, faults, execution);
    ours::RopeDescriptor descriptor;
    PROLOGUE_RETURN_IF_ERROR(
        ours::create_rope_descriptor(&descriptor, &d.y, &d.x, &d.pos, &d.sin, &d.cos, ours::Algo::gpt_j, execution));
    return ours::rope(descriptor, y, x, ids, sin_table, cos_table, faults, execution);
  });
  return {status, arena.read(y), read_fault(arena, faults)};
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

// The memory is as the golden's kernel left it: free strides of batch, token and head, and holes. The descriptor is made first, before
// there is memory, and serves two calls.
TEST_P(Infinicore, StridesAndOneDescriptorForTwoCalls) {
  for (const Golden& g : read_goldens("infinicore_strides")) {
    SCOPED_TRACE(g.name);
    const DType type = g.array("out").type;
    const Descriptors d = descriptors_of<int32_t>(g, g.integer("table_len"), g.integers("x_strides"), g.integers("y_strides"));
    const auto algo = g.flag("gptj") ? ours::Algo::gpt_j : ours::Algo::gpt_neox;
    ours::RopeDescriptor descriptor;
    ours::Code code = ours::Code::bad_param;
    const Status created = ours::create_rope_descriptor(&descriptor, &d.y, &d.x, &d.pos, &d.sin, &d.cos, algo,
                                                        Execution{backend_device(GetParam())}, &code);
    ASSERT_TRUE(created.ok()) << created.message();
    EXPECT_EQ(code, ours::Code::success);

    const int64_t table = g.integer("table_len") * g.integer("table_dim");
    Arena arena(GetParam());
    const auto* x = arena.input(encode(type, fill(1, g.integer("x_size"))));
    const Bytes before = encode(type, fill(9, static_cast<int64_t>(g.array("out").values.size())));
    unsigned char* y[] = {arena.inout(before), arena.inout(before)};
    const auto* sin_table = arena.input(encode(type, fill(3, table)));
    const auto* cos_table = arena.input(encode(type, fill(2, table)));
    const auto* ids = arena.input(g.integers<int32_t>("pos_ids"));
    FaultRecord* faults = arena.inout(std::vector<FaultRecord>(1));
    const Status status = arena.run([&](const Execution& execution) -> Status {
      for (unsigned char* each : y) {
        PROLOGUE_RETURN_IF_ERROR(ours::rope(descriptor, each, x, ids, sin_table, cos_table, faults, execution));
      }
      return {};
    });
    ASSERT_TRUE(status.ok()) << status.message();
    for (const unsigned char* each : y) expect_golden(arena.read(each), g.array("out"));
  }
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

// Tests what infiniopCreateRoPEDescriptor answers: one code and one sentence for each of its checks.
TEST(InfinicoreCall, DescriptorsAreChecked) {
  using D = Descriptors;
  constexpr ours::Code kDtype = ours::Code::bad_tensor_dtype, kShape = ours::Code::bad_tensor_shape,
                       kStrides = ours::Code::bad_tensor_strides;
  const std::vector<Refusal<Descriptors, ours::Code>> refusals = {
      {[](D& d) { d.x.dtype = ours::Dtype::f32; }, kDtype, "the dtype of x is 13: it must be that of y, 12"},
      {[](D& d) { d.sin.dtype = ours::Dtype::i8; }, kDtype, "the dtype of sin is 3: it must be that of y, 12"},
      {[](D& d) { d.cos.dtype = ours::Dtype::bf16; }, kDtype, "the dtype of cos is 19: it must be that of y, 12"},
      {[](D& d) { d.x.dtype = d.y.dtype = d.sin.dtype = d.cos.dtype = ours::Dtype::i32; }, kDtype,
       "the dtype of y is 5: supported are 12 (f16), 13 (f32), 14 (f64) and 19 (bf16)"},
      {[](D& d) { d.pos.dtype = ours::Dtype::f32; }, kDtype,
       "the dtype of pos is 13: supported are the integers, 3 (i8) to 10 (u64)"},
      {[](D& d) { d.x.ndim = d.y.ndim = 2; }, kShape, "y has 2 dimensions: it must have 3 or 4"},
      {[](D& d) { d.x.ndim = 3; }, kShape, "x has 3 dimensions: it must have those of y, 4"},
      {[](D& d) { d.pos.ndim = 3; }, kShape, "pos has 3 dimensions: it must have 1 or 2"},
      {[](D& d) { d.sin.ndim = 1; }, kShape, "sin has 1 dimensions: it must have 2"},
      {[](D& d) { d.cos.ndim = 3; }, kShape, "cos has 3 dimensions: it must have 2"},
      {[](D& d) { d.y.shape[1] = 4; }, kShape, "x.shape[1] is 3: it must be that of y, 4"},
      {[](D& d) { d.y.shape[2] = 1; }, kShape, "x.shape[2] is 2: it must be that of y, 1"},
      {[](D& d) { d.pos.shape[0] = 1; }, kShape, "pos has 1 rows: it must have batch, 2"},
      {[](D& d) { d.pos.shape[1] = 2; }, kShape, "pos has 2 positions: it must have seqlen, 3"},
      {[](D& d) {
         d.pos = {d.pos.dtype, 1, {2}, {1}};
       },
       kShape, "pos has 2 positions: it must have seqlen, 3"},
      {[](D& d) { d.cos.shape[0] = 8; }, kShape, "cos is [8, 6]: it must be as sin, [9, 6]"},
      {[](D& d) { d.cos.shape[1] = 3; }, kShape, "cos is [9, 3]: it must be as sin, [9, 6]"},
      {[](D& d) { d.x.shape[3] = d.y.shape[3] = 10; }, kShape, "dhead is 10: it must be twice the columns of sin, 6"},
      {[](D& d) { d.sin.shape[1] = d.cos.shape[1] = 12; }, kShape, "dhead is 12: it must be twice the columns of sin, 12"},
      {[](D& d) { d.sin.shape[1] = d.cos.shape[1] = 300, d.x.shape[3] = d.y.shape[3] = 600; }, kShape,
       "dhead is 600: it must lie in 0..576"},
      {[](D& d) { d.sin.shape[0] = d.cos.shape[0] = 0; }, kShape, ""},
      {[](D& d) { d.x.shape[2] = d.y.shape[2] = 0; }, kShape, ""},
      {[](D& d) { d.x.shape[1] = d.y.shape[1] = d.pos.shape[1] = d.pos.strides[0] = 0; }, kShape, ""},
      {[](D& d) { d.y.strides[3] = 2; }, kStrides, "the channels of y are 2 apart: they must be contiguous"},
      {[](D& d) { d.x.strides[3] = 0; }, kStrides, "the channels of x are 0 apart: they must be contiguous"},
      {[](D& d) { d.sin.strides[0] = 7; }, kStrides, "sin is not contiguous"},
      {[](D& d) { d.cos.strides[1] = 2; }, kStrides, "cos is not contiguous"},
      {[](D& d) { d.pos.strides[0] = 4; }, kStrides, "pos is not contiguous"},
      {[](D& d) { d.y.strides[2] = 5; }, kStrides, ""},  // heads overlap
      {[](D& d) { d.x.strides[1] = -1; }, kStrides, ""},
  };
  Golden g = read_goldens("infinicore").front();
  for (const Golden& each : read_goldens("infinicore")) {
    if (each.name == "gptj_4d_pos2d_f16") g = each;
  }
  expect_refusals("infinicore", refusals, [&](const auto& change) {
    Descriptors d = descriptors_of<int64_t>(g, g.integer("table_len"));
    change(d);
    ours::RopeDescriptor descriptor;
    ours::Code code = ours::Code::success;
    const Status status =
        ours::create_rope_descriptor(&descriptor, &d.y, &d.x, &d.pos, &d.sin, &d.cos, ours::Algo::gpt_j, {}, &code);
    return Refused<ours::Code>{code, status.message()};
  });

  const Descriptors d = descriptors_of<int64_t>(g, g.integer("table_len"));
  ours::RopeDescriptor descriptor;
  ours::Code code = ours::Code::success;
  const auto create = [&](ours::RopeDescriptor* desc, const ours::TensorDescriptor* x, ours::Algo algo,
                          const Execution& execution) {
    code = ours::Code::success;
    return ours::create_rope_descriptor(desc, &d.y, x, &d.pos, &d.sin, &d.cos, algo, execution, &code).message();
  };
  EXPECT_EQ(create(&descriptor, nullptr, ours::Algo::gpt_j, {}), "infinicore: x is null");  // theirs forgets it
  EXPECT_EQ(code, ours::Code::null_pointer);
  EXPECT_EQ(create(nullptr, &d.x, ours::Algo::gpt_j, {}), "infinicore: desc is null");
  EXPECT_EQ(code, ours::Code::null_pointer);
  EXPECT_EQ(create(&descriptor, &d.x, static_cast<ours::Algo>(2), {}), "infinicore: algo is 2: it must be 0 or 1");
  EXPECT_EQ(code, ours::Code::null_pointer);
  EXPECT_NE(create(&descriptor, &d.x, ours::Algo::gpt_j, Execution{static_cast<Device>(7)}).find("device is 7"),
            std::string::npos);
  EXPECT_EQ(code, ours::Code::device_type_not_supported);

  EXPECT_EQ(create(&descriptor, &d.x, ours::Algo::gpt_j, {}), "");
  float number = 0.0f;
  EXPECT_EQ(ours::rope(descriptor, &number, &number, nullptr, &number, &number, nullptr, {}, &code).message(),
            "infinicore: pos_ids is null");
  EXPECT_EQ(code, ours::Code::null_pointer);
}

}  // namespace
}  // namespace prologue::test
