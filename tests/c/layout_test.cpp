// prologue.h as a C11 compiler sees it (layout.c), against the C++ headers: values, sizes, offsets, and the defaults of ..._init().
#include "tests/c/layout.h"

#include <gtest/gtest.h>
#include <prologue.h>

#include <cstddef>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include <prologue/c/communicators.h>
#include <prologue/c/rope_table.h>
#include <prologue/kernels/attention_prologue/stages/stages.h>
#include <prologue/kernels/collective/all_gather.h>
#include <prologue/kernels/collective/all_reduce.h>
#include <prologue/kernels/mla_prologue/mla_prologue.h>
#include <prologue/kernels/moe/moe_combine.h>
#include <prologue/kernels/moe/moe_gemm.h>
#include <prologue/kernels/moe/moe_route.h>
#include <prologue/kernels/projection/projection.h>
#include <prologue/kernels/qkv_prologue/qkv_prologue.h>
#include <prologue/kernels/rerope/rerope.h>
#include <prologue/kernels/rotary/rotary.h>
#include <prologue/kernels/token_ops/activation.h>
#include <prologue/kernels/token_ops/add.h>
#include <prologue/kernels/token_ops/gate.h>
#include <prologue/kernels/token_ops/embedding.h>
#include <prologue/kernels/token_ops/end_step.h>
#include <prologue/kernels/token_ops/gather_cos_sin.h>
#include <prologue/kernels/token_ops/logprobs.h>
#include <prologue/kernels/token_ops/norm.h>
#include <prologue/kernels/token_ops/sampling.h>
#include <prologue/kernels/token_ops/scale_logits.h>
#include <prologue/kernels/token_ops/take_tokens.h>
#include <prologue/layers/attention_layer.h>

namespace {

struct Entry {
  std::string name;
  int64_t value = 0;
  size_t size = 0;
  size_t alignment = 0;
};

const std::vector<Entry> kCpp = {
#define PROLOGUE_VALUE(c, cpp) {#c, static_cast<int64_t>(cpp), 0, 0},
#define PROLOGUE_STRUCT(c, cpp) {#c, 0, sizeof(cpp), alignof(cpp)},
#define PROLOGUE_MEMBER(c, cpp, member) {#c "." #member, offsetof(cpp, member), sizeof(cpp::member), 0},
#include "c/layout.inc"
#undef PROLOGUE_VALUE
#undef PROLOGUE_STRUCT
#undef PROLOGUE_MEMBER
};

TEST(CLayout, OfC11IsThatOfCpp) {
  size_t i = 0;
  for (; c_layout[i].name != nullptr; ++i) {
    ASSERT_LT(i, kCpp.size());
    const Entry& cpp = kCpp[i];
    EXPECT_EQ(c_layout[i].name, cpp.name);
    EXPECT_EQ(c_layout[i].value, cpp.value) << cpp.name;
    EXPECT_EQ(c_layout[i].size, cpp.size) << cpp.name;
    EXPECT_EQ(c_layout[i].alignment, cpp.alignment) << cpp.name;
  }
  EXPECT_EQ(i, kCpp.size());
  EXPECT_GT(i, 500u);
}

// Compares a struct of C after its ..._init(), with bytes after it, with that of C++ with its defaults.
template <class C, class Cpp>
struct Pair {
  explicit Pair(void (*init)(C*)) {
    std::memset(c, 0x5a, sizeof c);
    init(reinterpret_cast<C*>(c));
  }
  bool kept_inside() const { return c[sizeof(C)] == 0x5a; }

  alignas(C) unsigned char c[sizeof(C) + 1];
  Cpp cpp;
};

// It compares member by member, because padding may differ. Structs that are members have padding, too: their members are compared as those
// of their own type.
TEST(CLayout, InitSetsTheDefaultsOfCpp) {
  int members = 0;
#define PROLOGUE_VALUE(c, cpp)
#define PROLOGUE_STRUCT(c, cpp)             \
  const Pair<c, cpp> pair_of_##c(c##_init); \
  EXPECT_TRUE(pair_of_##c.kept_inside()) << #c;
#define PROLOGUE_MEMBER(c_struct, cpp_struct, member)                                                          \
  if (!std::is_class_v<std::remove_all_extents_t<decltype(cpp_struct::member)>>) {                             \
    ++members;                                                                                                 \
    EXPECT_EQ(std::memcmp(pair_of_##c_struct.c + offsetof(cpp_struct, member), &pair_of_##c_struct.cpp.member, \
                          sizeof(cpp_struct::member)),                                                         \
              0)                                                                                               \
        << #c_struct "." #member;                                                                              \
  }
#include "c/layout.inc"
  EXPECT_GT(members, 300);
}

// A struct inside of another one has its own defaults.
TEST(CLayout, InitReachesNestedStructs) {
  prologue_rotary_params rotary;
  prologue_rotary_params_init(&rotary);
  const prologue::RotaryParams want;
  EXPECT_EQ(rotary.rope.num_blocks, want.rope.num_blocks);
  EXPECT_EQ(rotary.positions.axis_stride, PROLOGUE_UNSET_STRIDE);
  for (const prologue_rotary_tensor& tensor : rotary.tensors) {
    EXPECT_EQ(tensor.rotate, 1);
    EXPECT_EQ(tensor.x_strides.channel, 1);
  }
  prologue_attention_layer_params layer;
  prologue_attention_layer_params_init(&layer);
  EXPECT_EQ(layer.prologue.q_norm.eps, 1e-6f);
  EXPECT_EQ(layer.prologue.q8_out.scaling, PROLOGUE_KV_SCALING_TENSOR);
  prologue_qkv_prologue_params qkv;
  prologue_qkv_prologue_params_init(&qkv);
  EXPECT_EQ(qkv.norm.eps, 1e-5f);
  EXPECT_EQ(qkv.prologue.rope.num_blocks, want.rope.num_blocks);
  prologue_projection_params projection;
  prologue_projection_params_init(&projection);
  EXPECT_TRUE(projection.activation.gated);
  prologue_rotary_params_init(nullptr);
}

}  // namespace
