// Tests what the prologue refuses: each check with its code and its message, and that nothing is written.
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include <prologue/kernels/attention_prologue/attention_prologue.h>

#include "tests/support/placed_prologue.h"
#include "tests/support/random.h"
#include "tests/support/refusals.h"
#include "tests/support/types.h"

namespace prologue::test {
namespace {

class AttentionPrologueTest : public ::testing::TestWithParam<Backend> {
 protected:
  void SetUp() override { PROLOGUE_REQUIRE_BACKEND(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Backends, AttentionPrologueTest, ::testing::ValuesIn(all_backends()),
                         [](const auto& instance) { return std::string(backend_name(instance.param)); });

std::vector<Refusal<AttentionPrologueParams>> refusals() {
  using P = AttentionPrologueParams;
  const auto invalid = StatusCode::invalid_argument;
  const auto missing = StatusCode::unsupported;
  const auto shifted = [](const void* data, int64_t bytes) { return static_cast<const char*>(data) + bytes; };
  constexpr float kInf = std::numeric_limits<float>::infinity();
  // Adds a group that is good, and changed.
  const auto grouped = [](const auto& change) {
    return [change](P& p) {
      static HeadGroup group;  // until the call
      group = {};
      group.in = p.k, group.out = p.q_out;
      group.num_heads = 2, group.head_dim = 64;
      p.groups = &group, p.num_groups = 1;
      change(p, group);
    };
  };
  using G = HeadGroup;
  const auto cached = [](P& p, G& g) { g.out = {}, g.cache = p.cache.k, g.cache.format.type = DType::unset; };
  return {
      // Sizes and types.
      {"negative token count", [](P& p) { p.num_tokens = -1; }, invalid, "num_tokens is -1: it must lie in 0..2147483647"},
      {"negative q heads", [](P& p) { p.num_q_heads = -1; }, invalid, "num_q_heads is -1: it must lie in 0..65536"},
      {"too many kv heads", [](P& p) { p.num_kv_heads = 65537; }, invalid, "num_kv_heads is 65537: it must lie in 0..65536"},
      {"no heads", [](P& p) { p.num_q_heads = p.num_kv_heads = 0; }, invalid,
       "num_q_heads and num_kv_heads are both 0: nothing is asked for"},
      {"unknown type", [](P& p) { p.dtype = kNoType; }, missing,
       "dtype is the unknown type 99: supported are float32, float16 and bfloat16"},
      {"odd head_dim", [](P& p) { p.head_dim = 63; }, missing, "head_dim is 63: supported is every even number in 2..1024"},
      {"large head_dim", [](P& p) { p.head_dim = 1026; }, missing, "head_dim is 1026: supported is every even number in 2..1024"},
      {"large v_head_dim", [](P& p) { p.cache.v.head_dim = 1026; }, missing,
       "cache.v.head_dim is 1026: supported is every even number in 2..1024, or 0 = head_dim"},
      {"odd v_head_dim", [](P& p) { p.cache.v.head_dim = 7; }, missing,
       "cache.v.head_dim is 7: supported is every even number in 2..1024, or 0 = head_dim"},
      {"unknown rounding", [](P& p) { p.rounding = static_cast<Rounding>(2); }, missing,
       "rounding is 2: supported are once and per_step"},

      // These calls break the rules of the rotation.
      {"unknown style", [](P& p) { p.rope.style = static_cast<RopeStyle>(2); }, missing,
       "the rope style is 2: supported are neox and interleaved"},
      {"odd rotary_dim", [](P& p) { p.rope.rotary_dim = 7; }, invalid,
       "rotary_dim is 7: it must be even and lie in 0..head_dim, 64"},
      {"rotary_dim above head_dim", [](P& p) { p.rope.rotary_dim = 66; }, invalid,
       "rotary_dim is 66: it must be even and lie in 0..head_dim, 64"},
      {"rotary_offset behind the end", [](P& p) { p.rope.rotary_offset = 2; }, invalid,
       "rope.rotary_offset is 2: it must be even and lie in 0..head_dim - rotary_dim, 0"},
      {"odd rotary_offset", [](P& p) { p.rope.rotary_dim = 32, p.rope.rotary_offset = 3; }, invalid,
       "rope.rotary_offset is 3: it must be even and lie in 0..head_dim - rotary_dim, 32"},
      {"unknown source", [](P& p) { p.rope.source = static_cast<RopeSource>(3); }, missing,
       "rope.source is 3: supported are table, per_token and inv_freq"},
      {"no table rows", [](P& p) { p.rope.max_position = 0; }, invalid,
       "rope.max_position is 0: it must lie in 1..1099511627776"},
      {"positions too large to compute",
       [](P& p) {
         p.rope.source = RopeSource::inv_freq;
         p.rope.inv_freq = p.rope.cos.data;
         p.rope.max_position = (1 << 20) + 1;
       },
       invalid, "rope.max_position is 1048577: it must lie in 1..1048576"},
      {"no table", [](P& p) { p.rope.cos.data = nullptr; }, invalid, "rope.cos is null"},
      {"a table without a rotary_dim", [](P& p) { p.rope.rotary_dim = 0; }, invalid,
       "rope.rotary_dim is 0, but rope.cos is given: set rotary_dim, or leave it null"},
      {"inv_freq without a rotary_dim",
       [](P& p) {
         const void* inv_freq = p.rope.cos.data;
         p.rope = {}, p.rope.source = RopeSource::inv_freq, p.rope.inv_freq = inv_freq;
       },
       invalid, "rope.rotary_dim is 0, but rope.inv_freq is given: set rotary_dim, or leave it null"},
      {"theta without a rotary_dim", [](P& p) { p.rope = {}, p.rope.theta = 1e4; }, invalid,
       "rope.rotary_dim is 0, but rope.theta is given: set rotary_dim, or leave it null"},
      {"a bound and nowhere to record", [](P& p) { p.faults = nullptr; }, invalid,
       "faults is null, but max_position is 40: give a FaultRecord, or set past_table to zero or identity"},
      {"a bound without rotation and nowhere to record", [](P& p) { p.rope = {}, p.rope.max_position = 7, p.faults = nullptr; },
       invalid, "faults is null, but max_position is 7: give a FaultRecord, or set past_table to zero or identity"},
      {"unknown policy", [](P& p) { p.rope.past_table = static_cast<PastTable>(3); }, missing,
       "past_table is 3: supported are record, zero and identity"},
      {"no gathered rows", [](P& p) { p.rope.cos.data = nullptr, p.rope.source = RopeSource::per_token; }, invalid,
       "rope.cos is null"},
      {"no inv_freq", [](P& p) { p.rope.source = RopeSource::inv_freq; }, invalid, "rope.inv_freq is null"},
      {"attention_factor of NaN",
       [=](P& p) {
         p.rope.source = RopeSource::inv_freq;
         p.rope.attention_factor = kInf;
       },
       invalid, "rope.attention_factor is inf: it must be finite"},
      {"table aligned to 2",
       [=](P& p) {
         set_cos_sin_table(p.rope, shifted(static_cast<const float*>(p.rope.cos.data), 2), DType::f32, p.rope.max_position);
       },
       invalid, "rope.cos lies at @: it must be aligned to 4 bytes"},
      {"a table of no type", [](P& p) { p.rope.type = DType::unset; }, missing,
       "rope.type is unset: supported are float32, float16 and bfloat16"},
      {"a table in float64", [](P& p) { p.rope.type = DType::f64; }, missing,
       "rope.type is float64: supported are float32, float16 and bfloat16"},
      {"inv_freq in 16 bits",
       [](P& p) { p.rope.source = RopeSource::inv_freq, p.rope.inv_freq = p.rope.cos.data, p.rope.type = DType::f16; }, missing,
       "rope.type is float16: for inv_freq supported is float32"},
      {"a table of no width", [](P& p) { p.rope.width = RopeWidth::unset; }, invalid,
       "rope.width is not set: supported is half, a column for each pair of a block, 32; set_cos_sin_table needs rope.rotary_dim "
       "first"},

      // Helpers before the sizes that they need.
      {"packed before all sizes",
       [](P& p) {
         P packed;
         set_packed_qkv(packed, p.q.data, 512);
         p.q = packed.q, p.k = packed.k, p.v = packed.v;
       },
       invalid, "the strides of q are not set: set_packed_qkv needs num_q_heads, num_kv_heads, head_dim and dtype first"},
      {"packed before the type",
       [](P& p) {
         p.dtype = DType::unset, set_packed_qkv(p, p.q.data, 512), p.dtype = DType::f32;
         p.q = {p.q.data, 512, 64};
       },
       invalid, "the strides of k are not set: set_packed_qkv needs num_q_heads, num_kv_heads, head_dim and dtype first"},
      {"packed before the heads of K", [](P& p) { p.num_kv_heads = 0, set_packed_qkv(p, p.q.data, 512), p.num_kv_heads = 2; },
       invalid, "k and v are both null, but num_kv_heads is 2"},
      {"packed before the heads of Q", [](P& p) { p.num_q_heads = 0, set_packed_qkv(p, p.q.data, 512), p.num_q_heads = 4; },
       invalid, "q is null"},
      {"a table before rotary_dim",
       [](P& p) {
         p.rope.rotary_dim = 0, set_cos_sin_table(p.rope, p.rope.cos.data, DType::f32, p.rope.max_position);
         p.rope.rotary_dim = 64;
       },
       invalid,
       "rope.width is not set: supported is half, a column for each pair of a block, 32; set_cos_sin_table needs rope.rotary_dim "
       "first"},
      {"rows before rotary_dim",
       [](P& p) {
         p.rope.rotary_dim = 0, set_cos_sin_rows(p.rope, p.rope.cos.data, DType::f32);
         p.rope.rotary_dim = 64;
       },
       invalid,
       "rope.width is not set: supported is half, a column for each pair of a block, 32; set_cos_sin_table needs rope.rotary_dim "
       "first"},
      {"strides before the page size", [](P& p) { p.cache.k.strides = nhd_strides(0, 2, 64); }, invalid,
       "cache.k has the stride -1: strides must not be negative"},
      {"a table of full width", [](P& p) { p.rope.width = RopeWidth::full; }, missing,
       "rope.width is 2: supported is half, a column for each pair of a block"},
      {"every second column of cos", [](P& p) { p.rope.cos.column_stride = 2; }, missing,
       "rope.cos.column_stride is 2: supported is 1"},
      {"every second column of sin", [](P& p) { p.rope.sin.column_stride = 2; }, missing,
       "rope.sin.column_stride is 2: supported is 1"},
      {"rows of cos that overlap", [](P& p) { p.rope.cos.row_stride = 31; }, invalid,
       "rope.cos has 32 columns and 40 rows 31 apart: rows must not overlap"},
      {"rows of sin that overlap", [](P& p) { p.rope.sin.row_stride = 1; }, invalid,
       "rope.sin has 32 columns and 40 rows 1 apart: rows must not overlap"},
      {"rows of sin backwards", [](P& p) { p.rope.sin.row_stride = -64; }, invalid,
       "rope.sin has the stride -64: strides must not be negative"},
      {"rows of cos without end", [](P& p) { p.rope.cos.row_stride = INT64_MAX / 3; }, invalid,
       "rope.cos reaches further than 2^60 bytes: its strides are too large"},
      {"no sin", [](P& p) { p.rope.sin.data = nullptr; }, invalid, "rope.sin is null"},
      {"sin aligned to 2", [=](P& p) { p.rope.sin.data = shifted(p.rope.sin.data, 2); }, invalid,
       "rope.sin lies at @: it must be aligned to 4 bytes"},
      {"no blocks", [](P& p) { p.rope.num_blocks = 0; }, invalid, "rope.num_blocks is 0: it must lie in 1..4"},
      {"five blocks", [](P& p) { p.rope.num_blocks = 5; }, invalid, "rope.num_blocks is 5: it must lie in 1..4"},
      {"blocks of odd width", [](P& p) { p.rope.num_blocks = 3; }, invalid,
       "rope.num_blocks is 3: rotary_dim, 64, must be that many blocks of even width"},
      {"five axes", [](P& p) { p.rope.num_axes = 5; }, invalid, "rope.num_axes is 5: it must lie in 1..4"},
      {"axes at no distance",
       [](P& p) {
         p.rope.num_axes = 3, p.rope.pair_axis = static_cast<const uint8_t*>(p.places.slot_mapping.data);
         p.places.position_axis_stride = AttentionPrologueParams().places.position_axis_stride;
       },
       invalid, "position_axis_stride is not set, but num_axes is 3: set it, to 0 where all share one row"},
      {"no pair_axis", [](P& p) { p.rope.num_axes = 3; }, invalid,
       "rope.pair_axis is null: rope.num_axes, 3, must then be rope.num_blocks, 1"},
      {"more axes than blocks", [](P& p) { p.rope.num_axes = 3, p.rope.num_blocks = 2; }, invalid,
       "rope.pair_axis is null: rope.num_axes, 3, must then be rope.num_blocks, 2"},

      // Norms and the Q scale.
      {"unknown placement", [](P& p) { p.q_norm.placement = p.k_norm.placement = static_cast<NormPlacement>(3); }, missing,
       "q_norm.placement is 3: supported are none, before_rope and after_rope"},
      {"unknown kind", [](P& p) { p.q_norm.kind = p.k_norm.kind = static_cast<NormKind>(-1); }, missing,
       "q_norm.kind is -1: supported are rms and layer"},
      {"unknown scope", [](P& p) { p.q_norm.scope = p.k_norm.scope = static_cast<NormScope>(2); }, missing,
       "q_norm.scope is 2: supported are head and token"},
      {"a weight for no norm", [](P& p) { p.q_norm.weight = p.q.data; }, invalid,
       "q_norm has a weight or bias, but its placement is none"},
      {"no eps",
       [](P& p) { p.q_norm.placement = p.k_norm.placement = NormPlacement::before_rope, p.q_norm.eps = p.k_norm.eps = 0.0f; },
       invalid, "q_norm.eps is 0: it must be finite and greater than 0"},
      {"no eps for V", [](P& p) { p.v_norm.placement = NormPlacement::before_rope, p.v_norm.eps = -1.0f; }, invalid,
       "v_norm.eps is -1: it must be finite and greater than 0"},
      {"endless weight_offset",
       [=](P& p) {
         p.q_norm.placement = p.k_norm.placement = NormPlacement::before_rope,
         p.q_norm.weight_offset = p.k_norm.weight_offset = -kInf;
       },
       invalid, "q_norm.weight_offset is -inf: it must be finite"},
      {"LayerNorm over a token",
       [](P& p) {
         p.q_norm.placement = p.k_norm.placement = NormPlacement::before_rope;
         p.q_norm.kind = p.k_norm.kind = NormKind::layer;
         p.q_norm.scope = p.k_norm.scope = NormScope::token;
       },
       missing, "q_norm.scope is token and q_norm.kind is layer: over a whole token there is rms only"},
      {"RMS norm with a bias",
       [](P& p) { p.q_norm.placement = p.k_norm.placement = NormPlacement::before_rope, p.k_norm.bias = p.q.data; }, invalid,
       "k_norm has a bias, but its kind is rms: only layer has one"},
      {"weights at odd strides",
       [](P& p) { p.q_norm.placement = p.k_norm.placement = NormPlacement::before_rope, p.k_norm.weight_head_stride = 32; },
       invalid, "k_norm.weight_head_stride is 32: it must be 0 or head_dim, 64"},
      {"weights of another type", [](P& p) { p.q_norm.weight_type = DType::bf16; }, missing,
       "q_norm.weight_type is bfloat16: supported is float32"},
      {"weights of no type", [](P& p) { p.k_norm.weight_type = kNoType; }, missing,
       "k_norm.weight_type is the unknown type 99: supported is float32"},
      {"weights of 16 bits and of 8", [](P& p) { p.dtype = DType::bf16, p.k_norm.weight_type = DType::int8; }, missing,
       "k_norm.weight_type is int8: supported are float32 and dtype, bfloat16"},
      {"float32 weights aligned to 2",
       [=](P& p) {
         p.dtype = DType::f16, p.bias = {};
         p.q_norm.placement = p.k_norm.placement = NormPlacement::before_rope, p.k_norm.weight_type = DType::f32;
         p.k_norm.weight = shifted(p.q.data, 2);
       },
       invalid, "k_norm.weight lies at @: it must be aligned to 4 bytes"},
      {"a Hadamard block of 1", [](P& p) { p.hadamard_block = 1; }, invalid,
       "hadamard_block is 1: it must be a power of two in 2..512 that divides head_dim, 64"},
      {"a negative Hadamard block", [](P& p) { p.hadamard_block = -64; }, invalid,
       "hadamard_block is -64: it must be a power of two in 2..512 that divides head_dim, 64"},
      {"a Hadamard block of 48", [](P& p) { p.hadamard_block = 48; }, invalid,
       "hadamard_block is 48: it must be a power of two in 2..512 that divides head_dim, 64"},
      {"a Hadamard block longer than a head", [](P& p) { p.hadamard_block = 128; }, invalid,
       "hadamard_block is 128: it must be a power of two in 2..512 that divides head_dim, 64"},
      {"endless constant", [=](P& p) { p.q_scale.constant = kInf; }, invalid, "q_scale.constant is inf: it must be finite"},
      {"a constant of K of 0", [](P& p) { p.k_constant = 0.0f; }, invalid, "k_constant is 0: it must be finite and not 0"},
      {"a constant of K of minus 0", [](P& p) { p.k_constant = -0.0f; }, invalid,
       "k_constant is -0: it must be finite and not 0"},
      {"an endless constant of V", [=](P& p) { p.v_constant = -kInf; }, invalid,
       "v_constant is -inf: it must be finite and not 0"},
      {"a constant of V that is no number", [](P& p) { p.v_constant = std::numeric_limits<float>::quiet_NaN(); }, invalid,
       "v_constant is nan: it must be finite and not 0"},
      {"unknown position scale", [](P& p) { p.q_scale.by_position = static_cast<PositionScale>(9); }, missing,
       "q_scale.by_position is 9: supported are none, llama4 and logn"},
      {"llama4 over nothing",
       [](P& p) {
         p.q_scale = {1.0f, PositionScale::llama4, 0.1f, 0.0f};
       },
       invalid, "q_scale.b is 0: it must be finite and greater than 0"},
      {"logn to the base 1",
       [](P& p) {
         p.q_scale = {1.0f, PositionScale::logn, 0.0f, 1.0f};
       },
       invalid, "q_scale.b is 1: for logn it must be greater than 1"},

      // These break the rules of groups.
      {"a negative number of groups", [](P& p) { p.num_groups = -1; }, invalid, "num_groups is -1: it must lie in 0..4"},
      {"five groups", [](P& p) { p.num_groups = 5; }, invalid, "num_groups is 5: it must lie in 0..4"},
      {"no array of groups", [](P& p) { p.num_groups = 1; }, invalid, "groups is null, but num_groups is 1"},
      {"a group without heads", grouped([](P&, G& g) { g.num_heads = 0; }), invalid,
       "groups[0]: num_heads is 0: it must lie in 1..65536"},
      {"a group without channels", grouped([](P&, G& g) { g.head_dim = 0; }), invalid,
       "groups[0]: head_dim is 0: it must lie in 1..1024"},
      {"a norm over an odd head", grouped([](P&, G& g) { g.head_dim = 7, g.norm.placement = NormPlacement::before_rope; }),
       missing, "groups[0]: head_dim is 7: with a norm, or in a cache of 4 bits, it must be even"},
      {"4 bits of an odd head", grouped([=](P& p, G& g) { cached(p, g), g.head_dim = 7, g.cache.format.type = DType::int4; }),
       missing, "groups[0]: head_dim is 7: with a norm, or in a cache of 4 bits, it must be even"},
      {"a rotation of an odd head", grouped([](P& p, G& g) { g.head_dim = 7, g.rope = p.rope, g.rope.rotary_dim = 6; }), missing,
       "groups[0]: rope.rotary_dim is 6, but head_dim is 7: heads that are rotated have an even number of channels"},
      {"a rotation longer than a head of a group", grouped([](P& p, G& g) { g.head_dim = 32, g.rope = p.rope; }), invalid,
       "groups[0]: rotary_dim is 64: it must be even and lie in 0..head_dim, 32"},
      {"a group's rotation without a table", grouped([](P& p, G& g) { g.rope = p.rope, g.rope.sin.data = nullptr; }), invalid,
       "groups[0].rope.sin is null"},
      {"a group's table without a rotation", grouped([](P& p, G& g) { g.rope = p.rope, g.rope.rotary_dim = 0; }), invalid,
       "groups[0]: rope.rotary_dim is 0, but rope.cos is given: set rotary_dim, or leave it null"},
      {"more axes than the call has", grouped([](P& p, G& g) { g.rope = p.rope, g.rope.num_axes = 2; }), invalid,
       "groups[0]: rope.num_axes is 2: it must be at most that of the call, 1"},
      {"a group's bound without faults",
       grouped([](P& p, G& g) { p.rope.past_table = PastTable::zero, p.faults = nullptr, g.rope.max_position = 9; }), invalid,
       "groups[0]: faults is null, but max_position is 9: give a FaultRecord, or set past_table to zero or identity"},
      {"a group's norm over a token",
       grouped([](P&, G& g) { g.norm.placement = NormPlacement::before_rope, g.norm.scope = NormScope::token; }), missing,
       "groups[0]: norm.scope is token: supported is head"},
      {"a group's norm of unknown kind", grouped([](P&, G& g) { g.norm.kind = static_cast<NormKind>(2); }), missing,
       "groups[0]: norm.kind is 2: supported are rms and layer"},
      {"a group's Hadamard block of 48", grouped([](P&, G& g) { g.hadamard_block = 48; }), invalid,
       "groups[0]: hadamard_block is 48: it must be a power of two in 2..512 that divides head_dim, 64"},
      {"a group's constant of 0", grouped([](P&, G& g) { g.constant = 0.0f; }), invalid,
       "groups[0]: constant is 0: it must be finite and not 0"},
      {"an unknown activation", grouped([](P&, G& g) { g.activation = static_cast<HeadActivation>(2); }), missing,
       "groups[0]: activation is 2: supported are none and sigmoid"},
      {"a group that goes nowhere", grouped([](P&, G& g) { g.out = {}; }), invalid,
       "groups[0]: out, q8_out and cache are all null: the heads have nowhere to go"},
      {"a group of fp8 with an output", grouped([](P&, G& g) { g.q8_out.data = g.out.data; }), invalid,
       "groups[0]: q8_out and out are both given: the heads leave as one of them"},
      {"a group of fp8 in a cache", grouped([=](P& p, G& g) { cached(p, g), g.q8_out.data = g.cache.data; }), invalid,
       "groups[0]: q8_out and cache are both given: the heads leave as one of them"},
      {"a group of fp8 without a scale", grouped([](P&, G& g) {
         g.q8_out = {g.out.data, 128, 64}, g.out = {};
       }),
       invalid, "groups[0].q8_out.scale is null"},
      {"a group as int8", grouped([](P&, G& g) { g.q8_out.data = g.out.data, g.out = {}, g.q8_out.type = DType::int8; }), missing,
       "groups[0]: q8_out.type is int8: supported are fp8_e4m3 and fp8_e5m2"},
      {"a group's cache without scales", grouped([=](P& p, G& g) { cached(p, g), g.cache.format.type = DType::int8; }), invalid,
       "groups[0]: cache.format.scaling is none, but the type is int8: integer types need scales"},
      {"a group's cache of other heads", grouped([=](P& p, G& g) { cached(p, g), g.cache.head_dim = 32; }), invalid,
       "groups[0]: cache.head_dim is 32: it must be 0 or head_dim, 64"},
      {"a group's cache of too few slots", grouped([=](P& p, G& g) { cached(p, g), g.num_pages = 1, g.page_size = 2; }), invalid,
       "groups[0]: num_pages is 1 and page_size 2: the pages must have at least the slots of cache.num_pages * cache.page_size, "
       "32"},
      {"a group's pages of no size", grouped([=](P& p, G& g) { cached(p, g), g.page_size = -1; }), invalid,
       "groups[0]: page_size is -1: it must lie in 1..1048576"},
      {"a group without heads in memory", grouped([](P&, G& g) { g.in.data = nullptr; }), invalid, "groups[0].in is null"},
      {"a group whose rows overlap", grouped([](P&, G& g) { g.out.head_stride = 32; }), invalid,
       "groups[0].out has the stride 32 where 64 elements lie: rows that are written must not overlap"},
      {"a group written over Q", grouped([](P&, G&) {}), invalid, "groups[0].out overlaps q_out"},
      {"a group cached where K is", grouped([=](P& p, G& g) { cached(p, g); }), invalid, "groups[0].cache overlaps cache.k"},

      // These break the rules of positions and slots.
      {"no positions", [](P& p) { p.places.positions = {}; }, invalid, "positions is null"},
      {"no positions for the Q scale",
       [](P& p) {
         p.places.positions = {};
         p.rope = {};
         p.q_scale.by_position = PositionScale::llama4;
       },
       invalid, "positions is null"},
      {"positions of no type", [](P& p) { p.places.positions.type = kNoType; }, invalid,
       "positions.type is the unknown type 99: it must be int32 or int64"},
      {"no slots", [](P& p) { p.places.slot_mapping = {}; }, invalid, "slot_mapping is null"},
      {"fewer slots than none", [](P& p) { p.places.slot_mapping_len = -1; }, invalid,
       "slot_mapping_len is -1: it must lie in 0..num_tokens, 4"},
      {"more slots than tokens", [](P& p) { p.places.slot_mapping_len = 6; }, invalid,
       "slot_mapping_len is 6: it must lie in 0..num_tokens, 4"},
      {"a number of slots that are not given", [](P& p) { p.places.slot_mapping = {}, p.places.slot_mapping_len = 3; }, invalid,
       "slot_mapping_len is 3, but slot_mapping is null"},
      {"slots of no type", [](P& p) { p.places.slot_mapping.type = kNoType; }, invalid,
       "slot_mapping.type is the unknown type 99: it must be int32 or int64"},
      {"no sequences", [](P& p) { p.places.slot_mapping = {}, p.places.cu_seqlens_q = static_cast<const int32_t*>(p.q.data); },
       invalid, "num_seqs is 0: it must lie in 1..2147483647"},
      {"no cache_lens",
       [](P& p) {
         p.places.slot_mapping = {};
         p.places.cu_seqlens_q = static_cast<const int32_t*>(p.q.data);
         p.places.num_seqs = 1;
       },
       invalid, "cache_lens, seq_lens and kv_last_page_len are all null: what is derived needs the lengths of sequences"},
      {"two lengths of a sequence",
       [](P& p) {
         p.places.positions = {};
         p.places.cu_seqlens_q = p.places.cache_lens = p.places.seq_lens = static_cast<const int32_t*>(p.q.data);
         p.places.num_seqs = 1;
       },
       invalid, "cache_lens and seq_lens are both given: a sequence has one length"},
      {"no block_table",
       [](P& p) {
         p.places.slot_mapping = {};
         p.places.cu_seqlens_q = p.places.cache_lens = static_cast<const int32_t*>(p.q.data);
         p.places.num_seqs = p.places.page_table.max_pages_per_seq = 1;
       },
       invalid, "block_table is null, and so is kv_indptr: page_table must have one of the two forms"},
      {"two page tables",
       [](P& p) {
         p.places.slot_mapping = {};
         p.places.cu_seqlens_q = p.places.cache_lens = static_cast<const int32_t*>(p.q.data);
         p.places.page_table.block_table = p.places.page_table.kv_indptr = p.places.cache_lens;
         p.places.num_seqs = p.places.page_table.max_pages_per_seq = 1;
       },
       invalid, "block_table and kv_indptr are both given: page_table has one of the two forms"},
      {"a block table without pages",
       [](P& p) {
         p.places.slot_mapping = {};
         p.places.cu_seqlens_q = p.places.cache_lens = static_cast<const int32_t*>(p.q.data);
         p.places.page_table.block_table = p.places.cache_lens;
         p.places.num_seqs = 1;
       },
       invalid, "max_pages_per_seq is 0: it must lie in 1..2147483647"},
      {"a negative number of indices",
       [](P& p) {
         p.places.slot_mapping = {};
         p.places.cu_seqlens_q = p.places.cache_lens = static_cast<const int32_t*>(p.q.data);
         p.places.page_table.kv_indptr = p.places.cache_lens, p.places.page_table.num_kv_indices = -1;
         p.places.num_seqs = 1;
       },
       invalid, "num_kv_indices is -1: it must lie in 0..2147483647"},
      {"no indices",
       [](P& p) {
         p.places.slot_mapping = {};
         p.places.cu_seqlens_q = p.places.cache_lens = static_cast<const int32_t*>(p.q.data);
         p.places.page_table.kv_indptr = p.places.cache_lens, p.places.page_table.num_kv_indices = 1;
         p.places.num_seqs = 1;
       },
       invalid, "kv_indices is null"},
      {"lengths of pages that are not CSR",
       [](P& p) {
         p.places.slot_mapping = {};
         p.places.cu_seqlens_q = static_cast<const int32_t*>(p.q.data);
         p.places.page_table.block_table = p.places.page_table.kv_last_page_len = p.places.cu_seqlens_q;
         p.places.num_seqs = p.places.page_table.max_pages_per_seq = 1;
       },
       invalid, "kv_last_page_len is given, but kv_indptr is null"},
      {"lengths of pages, and others",
       [](P& p) {
         p.places.positions = {};
         p.places.cu_seqlens_q = p.places.seq_lens = static_cast<const int32_t*>(p.q.data);
         p.places.page_table.kv_indptr = p.places.page_table.kv_last_page_len = p.places.seq_lens;
         p.places.num_seqs = 1;
       },
       invalid, "seq_lens and kv_last_page_len are both given: a sequence has one length"},
      {"lengths of pages in a ring",
       [](P& p) {
         p.places.slot_mapping = {};
         p.places.cu_seqlens_q = static_cast<const int32_t*>(p.q.data);
         p.places.page_table.kv_indptr = p.places.page_table.kv_last_page_len = p.places.cu_seqlens_q;
         p.places.num_seqs = 1, p.places.ring_size = 8;
       },
       invalid, "ring_size is 8, but lengths come from kv_last_page_len: the pages of a ring do not tell how long a sequence is"},
      {"lengths of pages of no size",
       [](P& p) {
         p.places.positions = p.places.slot_mapping = {};
         p.places.cu_seqlens_q = static_cast<const int32_t*>(p.q.data);
         p.places.page_table.kv_indptr = p.places.page_table.kv_last_page_len = p.places.cu_seqlens_q;
         p.places.num_seqs = 1, p.num_kv_heads = 0, p.cache.page_size = 0;
       },
       invalid, "cache.page_size is 0: it must lie in 1..1048576"},
      {"negative ring",
       [](P& p) {
         p.places.slot_mapping = {};
         p.places.cu_seqlens_q = p.places.cache_lens = p.places.page_table.block_table = static_cast<const int32_t*>(p.q.data);
         p.places.num_seqs = p.places.page_table.max_pages_per_seq = 1;
         p.places.ring_size = -1;
       },
       invalid, "ring_size is -1: it must lie in 0..1099511627776"},
      {"position_offsets of no type",
       [](P& p) {
         p.places.positions = {};
         p.places.cu_seqlens_q = p.places.cache_lens = static_cast<const int32_t*>(p.q.data);
         p.places.position_offsets = index_view(p.places.cache_lens);
         p.places.position_offsets.type = kNoType;
         p.places.num_seqs = 1;
       },
       invalid, "position_offsets.type is the unknown type 99: it must be int32 or int64"},

      // These break the rules of the inputs.
      {"no q", [](P& p) { p.q.data = nullptr; }, invalid, "q is null"},
      {"neither k nor v", [](P& p) { p.k.data = p.v.data = nullptr; }, invalid, "k and v are both null, but num_kv_heads is 2"},
      {"all channels of Q apart", [](P& p) { p.q_rope = p.q; }, invalid,
       "q_rope is given, but rope.rotary_dim is 64: it must lie between 0 and head_dim, 64"},
      {"no channels of K apart", [](P& p) { p.rope = {}, p.k_rope = p.k; }, invalid,
       "k_rope is given, but rope.rotary_dim is 0: it must lie between 0 and head_dim, 64"},
      {"channels in the middle of Q apart", [](P& p) { p.rope.rotary_dim = 32, p.rope.rotary_offset = 8, p.q_rope = p.q; },
       missing, "q_rope is given, but rope.rotary_offset is 8: supported are 0 and head_dim - rotary_dim, 32"},
      {"k_rope without k", [](P& p) { p.rope.rotary_dim = 32, p.k_rope = p.k, p.k.data = nullptr; }, invalid,
       "k_rope is given, but k is null"},
      {"q_rope backwards",
       [](P& p) {
         p.rope.rotary_dim = 32, p.q_rope = {p.q.data, p.q.token_stride, -64};
       },
       invalid, "q_rope has the stride -64: strides must not be negative"},
      {"k_rope at an odd byte",
       [=](P& p) {
         p.rope.rotary_dim = 32, p.k_rope = {shifted(p.k.data, 2), p.k.token_stride, 0};
       },
       invalid, "k_rope lies at @: it must be aligned to 4 bytes"},
      {"q_out over the q of split heads",
       [](P& p) {
         p.rope.rotary_dim = 32, p.q_rope = {p.k.data, p.k.token_stride, 0};
         p.q_out = {const_cast<void*>(p.q.data), p.q.token_stride, p.q.head_stride};
       },
       invalid, "q_out overlaps q"},
      {"k_out over the k of split heads",
       [](P& p) {
         p.rope.rotary_dim = 32, p.k_rope = {p.v.data, p.v.token_stride, 0};
         p.k_out = {const_cast<void*>(p.k.data), p.k.token_stride, p.k.head_stride};
       },
       invalid, "k_out overlaps k"},
      {"q_out over q_rope",
       [](P& p) {
         p.rope.rotary_dim = 32, p.q_rope = {p.q_out.data, p.q_out.token_stride, p.q_out.head_stride};
       },
       invalid, "q_out overlaps q_rope"},
      {"k_out over k_rope",
       [](P& p) {
         p.rope.rotary_dim = 32, p.k_rope = p.k, p.k = p.v;
         p.k_out = {const_cast<void*>(p.k_rope.data), p.k_rope.token_stride, p.k_rope.head_stride};
       },
       invalid, "k_out overlaps k_rope"},
      {"negative stride", [](P& p) { p.q.token_stride = -64; }, invalid, "q has the stride -64: strides must not be negative"},
      {"endless stride", [](P& p) { p.v.head_stride = INT64_MAX / 3; }, invalid,
       "v reaches further than 2^60 bytes: its strides are too large"},
      {"bias at an odd byte", [=](P& p) { p.bias.k = shifted(p.bias.k, 1); }, invalid,
       "bias.k lies at @: it must be aligned to 4 bytes"},

      // These break the rules of the outputs.
      {"no q_out", [](P& p) { p.q_out.data = nullptr; }, invalid, "q_out is null"},
      {"q_out heads overlap", [](P& p) { p.q_out.head_stride = 32; }, invalid,
       "q_out has the stride 32 where 64 elements lie: rows that are written must not overlap"},
      {"q_out tokens overlap", [](P& p) { p.q_out.token_stride = 100; }, invalid,
       "q_out has the stride 100 where 512 elements lie: rows that are written must not overlap"},
      {"Q twice", [](P& p) { p.q8_out.data = p.q_out.data; }, invalid,
       "q_out and q8_out are both given: Q leaves as one of them"},
      {"fp8 Q without a scale",
       [](P& p) {
         p.q8_out = {p.q_out.data, 512, 64, KvScaling::tensor, nullptr}, p.q_out.data = nullptr;
       },
       invalid, "q8_out.scale is null"},
      {"fp8 Q scaled by head",
       [](P& p) {
         p.q8_out = {p.q_out.data, 512, 64, KvScaling::head, nullptr}, p.q_out.data = nullptr;
       },
       missing, "q8_out.scaling is 2: supported are tensor and token_head"},
      {"Q as int8",
       [](P& p) {
         p.q8_out = {p.q_out.data, 512, 64, KvScaling::token_head, p.cache.k.scale, DType::int8}, p.q_out.data = nullptr;
       },
       missing, "q8_out.type is int8: supported are fp8_e4m3 and fp8_e5m2"},
      {"Q of no type",
       [](P& p) { p.q8_out = {p.q_out.data, 512, 64, KvScaling::token_head, p.cache.k.scale, kNoType}, p.q_out.data = nullptr; },
       missing, "q8_out.type is the unknown type 99: supported are fp8_e4m3 and fp8_e5m2"},
      {"fp8 Q heads overlap",
       [](P& p) {
         p.q8_out = {p.q_out.data, 512, 63, KvScaling::tensor, p.cache.k.scale}, p.q_out.data = nullptr;
       },
       invalid, "q8_out has the stride 63 where 64 elements lie: rows that are written must not overlap"},
      {"k_out without k", [](P& p) { p.k_out = p.q_out, p.k.data = nullptr; }, invalid, "k_out is given, but k is null"},
      {"k_out over q_out", [](P& p) { p.k_out = p.q_out; }, invalid, "q_out overlaps k_out"},
      {"V taken from a K that is written over",
       [](P& p) {
         p.k_out = {const_cast<void*>(p.k.data), p.k.token_stride, p.k.head_stride};
         p.v = p.k;
       },
       invalid, "k_out overlaps v"},

      // These break the rules of the cache.
      {"unknown cache type", [](P& p) { p.cache.k.format.type = p.cache.v.format.type = kNoType; }, missing,
       "cache.k.format.type is the unknown type 99: supported are float32, float16, bfloat16, fp8_e4m3, fp8_e5m2, int8, int4, "
       "uint4 and fp4_e2m1"},
      {"unknown scaling", [](P& p) { p.cache.k.format.scaling = p.cache.v.format.scaling = static_cast<KvScaling>(6); }, missing,
       "cache.k.format.scaling is 6: supported are none, tensor, head, token_head, mx and nv"},
      {"a float cache with scales", [](P& p) { p.cache.k.format.scaling = p.cache.v.format.scaling = KvScaling::head; }, invalid,
       "cache.k.format.scaling is given, but the type is float32: float types have no scales"},
      {"an integer cache without scales", [](P& p) { p.cache.k.format.type = p.cache.v.format.type = DType::int4; }, invalid,
       "cache.k.format.scaling is none, but the type is int4: integer types need scales"},
      {"zero points that are not computed",
       [](P& p) {
         p.cache.k.format = p.cache.v.format = {DType::uint4, KvScaling::head};
       },
       invalid,
       "cache.k.format.type is uint4, but the scaling is not token_head: each token and head needs a scale and a zero point"},
      {"int4 at half a byte",
       [](P& p) {
         p.cache.k.format.type = p.cache.v.format.type = DType::int4,
         p.cache.k.format.scaling = p.cache.v.format.scaling = KvScaling::tensor, p.cache.v.strides.head = 65;
       },
       invalid, "a stride of cache.v is 65: it must be even, two channels of int4 share a byte"},
      {"no V scale",
       [](P& p) {
         p.cache.k.format.type = p.cache.v.format.type = DType::int8,
         p.cache.k.format.scaling = p.cache.v.format.scaling = KvScaling::tensor,
         p.cache.k.scale = static_cast<float*>(const_cast<void*>(p.rope.cos.data));
       },
       invalid, "cache.v.scale is null"},
      {"no room for scales",
       [](P& p) {
         p.cache.k.format.type = p.cache.v.format.type = DType::fp8_e4m3;
         p.cache.k.format.scaling = p.cache.v.format.scaling = KvScaling::token_head;
         p.cache.k.scale = static_cast<float*>(const_cast<void*>(p.rope.cos.data));
       },
       invalid, "cache.k.scale has the stride 0 where 1 elements lie: rows that are written must not overlap"},
      {"no pages", [](P& p) { p.cache.num_pages = 0; }, invalid, "cache.num_pages is 0: it must lie in 1..1099511627776"},
      {"empty pages", [](P& p) { p.cache.page_size = 0; }, invalid, "cache.page_size is 0: it must lie in 1..1048576"},
      {"cache of other heads", [](P& p) { p.cache.num_kv_heads = 3; }, invalid,
       "cache.num_kv_heads is 3: it must be num_kv_heads, 2"},
      {"cache of another head_dim", [](P& p) { p.cache.k.head_dim = 128; }, invalid,
       "cache.k.head_dim is 128: it must be head_dim, 64"},
      {"no K cache", [](P& p) { p.cache.k.data = nullptr; }, invalid, "cache.k is null, and so is k_out: k has nowhere to go"},
      {"no V cache", [](P& p) { p.cache.v.data = nullptr; }, invalid, "cache.v is null, and so is v_out: v has nowhere to go"},
      {"pages overlap", [](P& p) { p.cache.k.strides.page = 64; }, invalid,
       "cache.k has the stride 64 where 128 elements lie: rows that are written must not overlap"},
      {"K is V", [](P& p) { p.cache.v.data = p.cache.k.data; }, invalid, "cache.k overlaps cache.v"},
      {"V half over K", [](P& p) { p.cache.v.data = static_cast<float*>(p.cache.k.data) + 32; }, invalid,
       "cache.k overlaps cache.v"},
      {"scales in the data",
       [](P& p) {
         p.cache.k.format.type = p.cache.v.format.type = DType::int8;
         p.cache.k.format.scaling = p.cache.v.format.scaling = KvScaling::token_head;
         p.cache.k.scale = static_cast<float*>(p.cache.k.data), p.cache.v.scale = static_cast<float*>(p.cache.v.data);
         p.cache.k.scale_strides = p.cache.v.scale_strides = {32, 2, 1};
       },
       invalid, "cache.k overlaps cache.k.scale"},

      // These have arrays that overlap.
      {"fault record at an odd byte",
       [=](P& p) { p.faults = reinterpret_cast<FaultRecord*>(reinterpret_cast<char*>(p.faults) + 8); }, invalid,
       "faults lies at @: it must be aligned to 16 bytes"},
      {"token_faults in q_out", [](P& p) { p.token_faults = static_cast<uint8_t*>(p.q_out.data); }, invalid,
       "q_out overlaps token_faults"},
      {"q_out over k", [](P& p) { p.q_out.data = const_cast<void*>(p.k.data); }, invalid, "q_out overlaps q"},
      {"q_out half over q",
       [](P& p) {
         p.q_out = {const_cast<void*>(p.q.data), p.q.token_stride, p.q.head_stride};
         p.q_out.data = static_cast<char*>(p.q_out.data) + 64 * 4;
       },
       invalid, "q_out overlaps q"},
      {"q_out over K's columns",
       [](P& p) {
         p.q.data = p.v.data;
         p.num_q_heads = 2;
         p.q_out = {const_cast<void*>(p.k.data), p.k.token_stride, p.k.head_stride};
       },
       invalid, "q_out overlaps k"},
      {"cache over v", [](P& p) { p.cache.v.data = const_cast<void*>(p.v.data), p.cache.num_pages = p.cache.page_size = 1; },
       invalid, "cache.v overlaps q"},
      {"cache over the table",
       [](P& p) {
         p.rope.max_position = 1;
         set_cos_sin_table(p.rope, static_cast<const float*>(p.cache.k.data), DType::f32, p.rope.max_position);
       },
       invalid, "cache.k overlaps rope.cos"},
      {"cache over sin", [](P& p) { p.rope.max_position = 1, p.rope.sin.data = p.cache.v.data; }, invalid,
       "cache.v overlaps rope.sin"},
      {"q_out over the slots", [](P& p) { p.places.slot_mapping.data = p.q_out.data; }, invalid, "q_out overlaps slot_mapping"},
      {"q_out over the positions", [](P& p) { p.places.positions.data = p.q_out.data; }, invalid, "q_out overlaps positions"},
      {"cache over a bias", [](P& p) { p.bias.v = p.cache.v.data; }, invalid, "cache.v overlaps bias.v"},
  };
}

TEST_P(AttentionPrologueTest, RefusesWithASentence) {
  PrologueCase c = plain_case(4);
  const PrologueData<float> data = make_data<float>(c);
  expect_refusals("attention_prologue", refusals(), [&](const auto& change) {
    PlacedPrologue<float> placed(GetParam(), c, data);
    change(placed.params());
    return refused(placed.run(), placed.arena());
  });
}

TEST(AttentionPrologue, RefusesAnUnknownDevice) {
  Execution execution;
  execution.device = static_cast<Device>(4);
  const Status status = attention_prologue({}, execution);
  EXPECT_EQ(status.code(), StatusCode::invalid_argument);
  EXPECT_EQ(status.message(), "attention_prologue: device is 4: it must be cpu or cuda");
}

TEST(AttentionPrologue, SaysWhenCudaIsNotBuilt) {
  if (built_with_cuda()) GTEST_SKIP() << "built with CUDA";
  const PrologueCase c = plain_case(1);
  PlacedPrologue<float> placed(Backend::cpu, c, make_data<float>(c));
  Execution execution;
  execution.device = Device::cuda;
  const Status status = attention_prologue(placed.params(), execution);
  EXPECT_EQ(status.code(), StatusCode::unsupported);
  EXPECT_EQ(status.message(), "attention_prologue: device is cuda, but this library was built without CUDA");
}

// Thousands of structs with a few absurd members: refused or accepted, never a crash. What validate() accepts is not run: its
// memory does not exist.
TEST(AttentionPrologue, RandomStructsNeverCrash) {
  PrologueCase c = plain_case(4);
  c.norm = NormPlacement::before_rope;
  c.derive_positions = c.derive_slots = true;
  c.k_out = c.v_out = c.token_faults = true;
  c.kv_type = DType::int8;
  c.scaling = KvScaling::token_head;
  const PrologueData<float> data = make_data<float>(c);
  PlacedPrologue<float> placed(Backend::cpu, c, data);
  const AttentionPrologueParams good = placed.params();
  Random random(77);
  const auto number = [&]() -> int64_t {
    switch (random.integer(0, 4)) {
      case 0: return random.integer(-3, 3);
      case 1: return random.integer(0, 1) == 0 ? INT64_MAX : INT64_MIN;
      case 2: return int64_t{1} << random.integer(0, 62);
      case 3: return static_cast<int64_t>(random.bits());
      default: return random.integer(0, 300);
    }
  };
  const auto pointer = [&](const void* old) -> void* {
    const auto at = reinterpret_cast<uintptr_t>(old);
    switch (random.integer(0, 3)) {
      case 0: return nullptr;
      case 1: return reinterpret_cast<void*>(at + static_cast<uintptr_t>(random.integer(0, 5)));
      case 2: return reinterpret_cast<void*>(UINTPTR_MAX - static_cast<uintptr_t>(random.integer(0, 64)));
      default: return const_cast<void*>(good.q.data);
    }
  };
  int refused = 0;
  const auto try_one = [&](const Execution& execution) {
    AttentionPrologueParams p = good;
    const std::vector<int64_t*> numbers = {&p.num_tokens,
                                           &p.num_q_heads,
                                           &p.num_kv_heads,
                                           &p.head_dim,
                                           &p.q.token_stride,
                                           &p.q.head_stride,
                                           &p.k.token_stride,
                                           &p.k.head_stride,
                                           &p.v.token_stride,
                                           &p.v.head_stride,
                                           &p.q_out.token_stride,
                                           &p.q_out.head_stride,
                                           &p.k_out.token_stride,
                                           &p.k_out.head_stride,
                                           &p.v_out.token_stride,
                                           &p.v_out.head_stride,
                                           &p.q8_out.token_stride,
                                           &p.q8_out.head_stride,
                                           &p.rope.rotary_dim,
                                           &p.rope.rotary_offset,
                                           &p.rope.num_blocks,
                                           &p.rope.cos.row_stride,
                                           &p.rope.sin.row_stride,
                                           &p.rope.cos.column_stride,
                                           &p.q_rope.token_stride,
                                           &p.q_rope.head_stride,
                                           &p.k_rope.token_stride,
                                           &p.k_rope.head_stride,
                                           &p.rope.max_position,
                                           &p.rope.num_axes,
                                           &p.q_norm.weight_head_stride,
                                           &p.k_norm.weight_head_stride,
                                           &p.places.position_axis_stride,
                                           &p.places.num_seqs,
                                           &p.places.slot_mapping_len,
                                           &p.places.page_table.block_table_stride,
                                           &p.places.page_table.max_pages_per_seq,
                                           &p.places.page_table.num_kv_indices,
                                           &p.places.ring_size,
                                           &p.cache.num_pages,
                                           &p.cache.page_size,
                                           &p.cache.num_kv_heads,
                                           &p.cache.k.head_dim,
                                           &p.cache.v.head_dim,
                                           &p.cache.k.strides.page,
                                           &p.cache.k.strides.token,
                                           &p.cache.k.strides.head,
                                           &p.cache.v.strides.page,
                                           &p.cache.v.strides.token,
                                           &p.cache.v.strides.head,
                                           &p.cache.k.scale_strides.page,
                                           &p.cache.k.scale_strides.token,
                                           &p.cache.k.scale_strides.head,
                                           &p.cache.v.scale_strides.page,
                                           &p.cache.v.scale_strides.token,
                                           &p.cache.v.scale_strides.head};
    const auto any_of = [&](const auto& list) {
      return list[static_cast<size_t>(random.integer(0, static_cast<int64_t>(std::size(list)) - 1))];
    };
    const auto replace = [&](auto& at) { at = static_cast<std::decay_t<decltype(at)>>(pointer(at)); };
    const auto scramble = [&](auto& value) { value = static_cast<std::decay_t<decltype(value)>>(random.integer(-2, 7)); };
    for (int64_t changes = random.integer(1, 4); changes > 0; --changes) {
      const int64_t kind = random.integer(0, 9);
      if (kind < 4) {
        *any_of(numbers) = number();
      } else if (kind < 7) {
        switch (random.integer(0, 36)) {
          case 0: replace(p.q.data); break;
          case 1: replace(p.k.data); break;
          case 2: replace(p.v.data); break;
          case 3: replace(p.q_out.data); break;
          case 4: replace(p.k_out.data); break;
          case 5: replace(p.v_out.data); break;
          case 6: replace(p.q8_out.data); break;
          case 7: replace(p.q8_out.scale); break;
          case 8: replace(p.cache.k.data); break;
          case 9: replace(p.cache.v.data); break;
          case 10: replace(p.cache.k.scale); break;
          case 11: replace(p.cache.v.scale); break;
          case 12: replace(p.rope.cos.data); break;
          case 13: replace(p.rope.inv_freq); break;
          case 14: replace(p.rope.pair_axis); break;
          case 15: replace(p.places.positions.data); break;
          case 16: replace(p.places.slot_mapping.data); break;
          case 17: replace(p.places.cu_seqlens_q); break;
          case 18: replace(p.places.cache_lens); break;
          case 19: replace(p.places.page_table.block_table); break;
          case 20: replace(p.places.position_offsets.data); break;
          case 21: replace(p.bias.q); break;
          case 22: replace(p.q_norm.weight); break;
          case 23: replace(p.k_norm.bias); break;
          case 24: replace(p.token_faults); break;
          case 25: replace(p.bias.k); break;
          case 26: replace(p.bias.v); break;
          case 27: replace(p.k_norm.weight); break;
          case 28: replace(p.q_norm.bias); break;
          case 29: replace(p.rope.sin.data); break;
          case 30: replace(p.q_rope.data); break;
          case 31: replace(p.k_rope.data); break;
          case 32: replace(p.places.seq_lens); break;
          case 33: replace(p.places.page_table.kv_indptr); break;
          case 34: replace(p.places.page_table.kv_indices); break;
          case 35: replace(p.places.page_table.kv_last_page_len); break;
          default: replace(p.faults); break;
        }
      } else {
        switch (random.integer(0, 26)) {
          case 0: scramble(p.dtype); break;
          case 1: scramble(p.cache.k.format.type); break;
          case 2: scramble(p.cache.k.format.scaling); break;
          case 3: scramble(p.places.positions.type); break;
          case 4: scramble(p.places.slot_mapping.type); break;
          case 5: scramble(p.rope.style); break;
          case 6: scramble(p.rope.source); break;
          case 7: scramble(p.q_norm.placement); break;
          case 8: scramble(p.q_norm.kind); break;
          case 9: scramble(p.q_norm.scope); break;
          case 10: scramble(p.q_scale.by_position); break;
          case 11: scramble(p.rounding); break;
          case 12: scramble(p.q8_out.scaling); break;
          case 13: scramble(p.q_norm.eps); break;
          case 14: scramble(p.q_scale.b); break;
          case 15: scramble(p.places.position_offsets.type); break;
          case 16: p.places.position_offset_per_seq = !p.places.position_offset_per_seq; break;
          case 17: p.v_norm.placement = NormPlacement::before_rope, scramble(p.v_norm.eps); break;
          case 18: p.q_norm.weight_offset = p.k_norm.weight_offset = std::numeric_limits<float>::infinity(); break;
          case 19: p.rope.attention_factor = std::numeric_limits<float>::infinity(); break;
          case 20: scramble(p.rope.past_table); break;
          case 21: scramble(p.rope.type); break;
          case 22: scramble(p.rope.width); break;
          case 23: scramble(p.k_norm.weight_type); break;
          case 24: scramble(p.q8_out.type); break;
          case 25: p.hadamard_block = p.head_dim / 2 + 2; break;
          default: p.q_scale.constant = std::numeric_limits<float>::quiet_NaN(); break;
        }
      }
    }
    const Status verdict = validate(p);
    if (verdict.ok()) return;
    ++refused;
    const Status status = attention_prologue(p, execution);
    EXPECT_EQ(status.code(), verdict.code());
    EXPECT_EQ(status.message(), verdict.message());
  };
  const Status status = placed.run([&](const Execution& execution) {
    for (int round = 0; round < 60000; ++round) try_one(execution);
    return Status();
  });
  EXPECT_TRUE(status.ok());
  EXPECT_TRUE(placed.arena().untouched());
  EXPECT_GT(refused, 30000);
}

}  // namespace
}  // namespace prologue::test
