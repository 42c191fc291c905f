// The attention prologue against a plain copy of the same bytes and against the unfused chain (add_bias, rotary of q and of k,
// kv_write). The base set: bfloat16, 32 q heads, 8 kv heads, head_dim 128, full rotation, page 16, shuffled pages.
#include <prologue/kernels/attention_prologue/attention_prologue.h>
#include <prologue/kernels/attention_prologue/stages.h>
#include <prologue/kernels/rotary/rotary.h>

#include <cmath>
#include <numeric>
#include <random>

#include "benchmarks/harness.h"

using namespace prologue;

namespace {

struct Shape {
  const char* name;
  int64_t num_q_heads = 32, num_kv_heads = 8, head_dim = 128, rotary_dim = 128;
  DType dtype = DType::bf16;
  RopeStyle style = RopeStyle::neox;
  bool bias = false;
};

const Shape kShapes[] = {
    {.name = "base"},
    {.name = "base + bias", .bias = true},
    {.name = "interleaved", .style = RopeStyle::interleaved},
    {.name = "rotary 72 of 128", .rotary_dim = 72},
    {.name = "rotary 96 of 128", .rotary_dim = 96},
    {.name = "float32", .dtype = DType::f32},
    {.name = "1B 32/8/64", .head_dim = 64, .rotary_dim = 64},
    {.name = "70B 64/8/128", .num_q_heads = 64},
    {.name = "MHA 32/32/128", .num_kv_heads = 32},
    {.name = "MQA 4/1/256", .num_q_heads = 4, .num_kv_heads = 1, .head_dim = 256, .rotary_dim = 256},
    {.name = "head_dim 80", .head_dim = 80, .rotary_dim = 80},
    {.name = "head_dim 96", .head_dim = 96, .rotary_dim = 96},
    {.name = "smollm2 float32 9/3/64",
     .num_q_heads = 9,
     .num_kv_heads = 3,
     .head_dim = 64,
     .rotary_dim = 64,
     .dtype = DType::f32,
     .style = RopeStyle::interleaved},
};

constexpr int64_t kPageSize = 16;
constexpr int64_t kMaxPosition = 8192;

std::vector<float> make_table(int64_t rotary_dim) {
  std::vector<float> table(static_cast<size_t>(kMaxPosition * rotary_dim));
  for (int64_t p = 0; p < kMaxPosition; ++p) {
    for (int64_t i = 0; i < rotary_dim / 2; ++i) {
      const double angle =
          static_cast<double>(p) * std::pow(500000.0, -2.0 * static_cast<double>(i) / static_cast<double>(rotary_dim));
      table[static_cast<size_t>(p * rotary_dim + i)] = static_cast<float>(std::cos(angle));
      table[static_cast<size_t>(p * rotary_dim + rotary_dim / 2 + i)] = static_cast<float>(std::sin(angle));
    }
  }
  return table;
}

struct Problem {
  AttentionPrologueParams params;
  std::vector<void*> qkv, q_out;
  int64_t bytes = 0;  // of one call: the data, its bias, its rows of the table and its indices
};

Problem make_problem(const Shape& shape, int64_t num_tokens, bench::Setup& setup) {
  Problem problem;
  AttentionPrologueParams& p = problem.params;
  p.num_tokens = num_tokens;
  p.num_q_heads = shape.num_q_heads;
  p.num_kv_heads = shape.num_kv_heads;
  p.head_dim = shape.head_dim;
  p.dtype = shape.dtype;
  const int64_t size = dtype_size(shape.dtype);
  const int64_t q_width = shape.num_q_heads * shape.head_dim;
  const int64_t kv_width = shape.num_kv_heads * shape.head_dim;
  const int64_t data_bytes = 2 * num_tokens * (q_width + 2 * kv_width) * size;
  problem.bytes = data_bytes + num_tokens * (shape.rotary_dim * 4 + 16) + (shape.bias ? (q_width + 2 * kv_width) * size : 0);

  setup.rotate(data_bytes);
  problem.qkv = setup.rotated(num_tokens * (q_width + 2 * kv_width) * size, shape.dtype);
  problem.q_out = setup.rotated(num_tokens * q_width * size, shape.dtype);
  if (shape.bias) {
    p.bias = {setup.shared(q_width * size, shape.dtype), setup.shared(kv_width * size, shape.dtype),
              setup.shared(kv_width * size, shape.dtype)};
  }

  std::mt19937 random(1);
  const int64_t num_pages = 2 * (num_tokens + kPageSize - 1) / kPageSize + 1;
  std::vector<int64_t> pages(static_cast<size_t>(num_pages)), positions, slots;
  std::iota(pages.begin(), pages.end(), 0);
  std::shuffle(pages.begin(), pages.end(), random);
  for (int64_t t = 0; t < num_tokens; ++t) {
    positions.push_back((t + 5) % kMaxPosition);
    slots.push_back(pages[static_cast<size_t>(t / kPageSize)] * kPageSize + t % kPageSize);
  }
  p.rotation = {shape.style, shape.rotary_dim, setup.values(make_table(shape.rotary_dim)), kMaxPosition, setup.values(positions)};
  p.slot_mapping = setup.values(slots);
  const int64_t cache_bytes = num_pages * kPageSize * kv_width * size;
  const PageStrides strides = nhd_strides(kPageSize, shape.num_kv_heads, shape.head_dim);
  p.cache = {setup.shared(cache_bytes, shape.dtype),
             setup.shared(cache_bytes, shape.dtype),
             shape.dtype,
             num_pages,
             kPageSize,
             shape.num_kv_heads,
             shape.head_dim,
             strides,
             strides};
  p.faults = setup.values(std::vector<FaultRecord>(1));
  return problem;
}

void point_at(AttentionPrologueParams& p, const Problem& problem, int64_t rotation) {
  set_packed_qkv(p, problem.qkv[static_cast<size_t>(rotation)], (p.num_q_heads + 2 * p.num_kv_heads) * p.head_dim);
  p.q_out = {problem.q_out[static_cast<size_t>(rotation)], p.num_q_heads * p.head_dim, p.head_dim};
}

// K, and with a bias Q and V, are changed in place in the packed buffer, as an engine without the fused kernel does.
Status unfused(const AttentionPrologueParams& p, const Execution& execution) {
  const int64_t q_width = p.num_q_heads * p.head_dim, kv_width = p.num_kv_heads * p.head_dim;
  const auto add = [&](const HeadsView& x, int64_t width, const void* bias) {
    if (bias == nullptr) return Status();
    return add_bias({p.num_tokens, width, p.dtype, x.data, x.token_stride, bias, const_cast<void*>(x.data), x.token_stride},
                    execution);
  };
  const auto turn = [&](const HeadsView& x, int64_t heads, const MutableHeadsView& y) {
    return rotary({p.num_tokens, heads, p.head_dim, p.dtype, x, y, p.rotation.style, p.rotation.rotary_dim,
                   p.rotation.cos_sin_cache, p.rotation.max_position, p.rotation.positions, p.faults},
                  execution);
  };
  PROLOGUE_RETURN_IF_ERROR(add(p.q, q_width, p.bias.q));
  PROLOGUE_RETURN_IF_ERROR(add(p.k, kv_width, p.bias.k));
  PROLOGUE_RETURN_IF_ERROR(add(p.v, kv_width, p.bias.v));
  PROLOGUE_RETURN_IF_ERROR(turn(p.q, p.num_q_heads, p.q_out));
  PROLOGUE_RETURN_IF_ERROR(turn(p.k, p.num_kv_heads, {const_cast<void*>(p.k.data), p.k.token_stride, p.k.head_stride}));
  return kv_write({p.num_tokens, p.num_kv_heads, p.head_dim, p.dtype, p.k, p.v, p.cache, p.slot_mapping, p.rotation.positions,
                   p.rotation.max_position, p.faults},
                  execution);
}

}  // namespace

int main(int argc, char** argv) {
  bench::Bench bench(argc, argv);
  const bool cuda = bench.execution().device == Device::cuda;
  for (const Shape& shape : kShapes) {
    const std::vector<int64_t> all =
        cuda ? std::vector<int64_t>{1, 16, 64, 256, 1024, 4096, 8192, 16384} : std::vector<int64_t>{1, 16, 512};
    const std::vector<int64_t> few = cuda ? std::vector<int64_t>{1, 64, 1024, 8192} : std::vector<int64_t>{1, 512};
    for (const int64_t num_tokens : std::string(shape.name) == "base" ? all : few) {
      const std::string row = str_cat(shape.name, " T=", num_tokens);
      bench.run("unfused " + row, [&](bench::Setup& setup) {
        const Problem problem = make_problem(shape, num_tokens, setup);
        AttentionPrologueParams p = problem.params;
        return bench::Case{problem.bytes, [=](const Execution& execution, int64_t rotation) mutable {
                             point_at(p, problem, rotation);
                             return unfused(p, execution);
                           }};
      });
      bench.run("fused " + row, [&](bench::Setup& setup) {
        const Problem problem = make_problem(shape, num_tokens, setup);
        AttentionPrologueParams p = problem.params;
        return bench::Case{problem.bytes,
                           [=](const Execution& execution, int64_t rotation) mutable {
                             point_at(p, problem, rotation);
                             return attention_prologue(p, execution);
                           },
                           0.0, "unfused " + row};
      });
    }
  }
  return bench.finish();
}
