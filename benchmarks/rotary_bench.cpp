// Measures the rotary operation on q and k in one launch, against plain copies of the same bytes. The base set: bfloat16, 32 q heads, 8 k
// heads, head_dim 128, full rotation, a float32 cos/sin cache by int64 positions.
#include <prologue/kernels/rotary/rotary.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include "benchmarks/harness.h"

using namespace prologue;

namespace {

enum class Layout { batch_major, sequence_major, head_major };

struct Shape {
  const char* name;
  int64_t num_q_heads = 32, num_k_heads = 8, head_dim = 128, rotary_dim = 128;
  DType dtype = DType::bf16;
  RopeStyle style = RopeStyle::neox;
  RopeSource source = RopeSource::table;
  RopeWidth width = RopeWidth::half;
  DType table = DType::f32;
  bool per_token = false;
  bool inverse = false;
  int64_t batch = 1;  // at most; tokens / batch positions per sequence, each plus the sequence's offset
  Layout layout = Layout::batch_major;
  bool packed = false;  // sequences one after another, found by cu_seqlens
  bool in_place = false;
  bool all_sizes = false;
};

const Shape kShapes[] = {
    {.name = "base", .all_sizes = true},
    {.name = "base, in place", .in_place = true, .all_sizes = true},
    {.name = "bf16 table", .table = DType::bf16, .all_sizes = true},
    {.name = "bf16 table, in place", .table = DType::bf16, .in_place = true, .all_sizes = true},
    {.name = "float64", .dtype = DType::f64, .table = DType::f64, .all_sizes = true},
    {.name = "float64, in place", .dtype = DType::f64, .table = DType::f64, .in_place = true, .all_sizes = true},
    {.name = "float64, f32 table", .dtype = DType::f64},
    {.name = "float32", .dtype = DType::f32},
    {.name = "float32, in place", .dtype = DType::f32, .in_place = true},
    {.name = "float16", .dtype = DType::f16},
    {.name = "f16 table", .dtype = DType::f16, .table = DType::f16},
    {.name = "f64 table", .table = DType::f64},
    {.name = "interleaved", .style = RopeStyle::interleaved},
    {.name = "interleaved, in place", .style = RopeStyle::interleaved, .in_place = true},
    {.name = "inverse", .inverse = true},
    {.name = "rotary 64 of 128", .rotary_dim = 64},
    {.name = "head_dim 64", .head_dim = 64, .rotary_dim = 64},
    {.name = "head_dim 256", .head_dim = 256, .rotary_dim = 256},
    {.name = "MHA 32/32/128", .num_k_heads = 32},
    {.name = "70B 64/8/128", .num_q_heads = 64},
    {.name = "per token", .per_token = true},
    {.name = "[batch, seq] + offsets", .batch = 8},
    {.name = "[seq, batch] + offsets", .batch = 8, .layout = Layout::sequence_major},
    {.name = "[batch, heads, seq] + offsets", .batch = 8, .layout = Layout::head_major},
    {.name = "general: theta", .source = RopeSource::theta},
    {.name = "general: inv_freq", .source = RopeSource::inv_freq},
    {.name = "general: angles", .source = RopeSource::angles},
    {.name = "general: full width", .width = RopeWidth::full},
    {.name = "general: cu_seqlens", .batch = 8, .packed = true},
    {.name = "general: float64 theta", .dtype = DType::f64, .source = RopeSource::theta},
};

constexpr int64_t kMaxPosition = 16400;
constexpr int64_t kFirstPosition = 5;

std::vector<char> encode(const std::vector<double>& values, DType type) {
  const auto size = static_cast<size_t>(dtype_size(type));
  std::vector<char> bytes(values.size() * size);
  for (size_t i = 0; i < values.size(); ++i) {
    const auto put = [&](auto stored) { std::memcpy(bytes.data() + i * size, &stored, sizeof stored); };
    switch (type) {
      case DType::f32: put(static_cast<float>(values[i])); break;
      case DType::f16: put(to_float16(static_cast<float>(values[i]))); break;
      case DType::bf16: put(to_bfloat16(static_cast<float>(values[i]))); break;
      default: put(values[i]); break;
    }
  }
  return bytes;
}

double frequency(int64_t column, int64_t rotary_dim) {
  return std::pow(500000.0, -2.0 * static_cast<double>(column) / static_cast<double>(rotary_dim));
}

// Returns the angles of every position: rows of rotary_dim / 2.
const std::vector<double>& angles_of(int64_t rotary_dim) {
  static std::map<int64_t, std::vector<double>> made;
  std::vector<double>& angles = made[rotary_dim];
  for (int64_t p = 0; angles.size() < static_cast<size_t>(kMaxPosition * rotary_dim / 2); ++p) {
    for (int64_t c = 0; c < rotary_dim / 2; ++c) angles.push_back(static_cast<double>(p) * frequency(c, rotary_dim));
  }
  return angles;
}

// Returns a cos||sin cache of half width, or one of full width: rows of cos, then of sin.
const std::vector<double>& cos_sin_of(int64_t rotary_dim, RopeWidth width) {
  static std::map<std::pair<int64_t, RopeWidth>, std::vector<double>> made;
  std::vector<double>& table = made[{rotary_dim, width}];
  if (!table.empty()) return table;
  const std::vector<double>& angles = angles_of(rotary_dim);
  const auto half = static_cast<size_t>(rotary_dim / 2);
  for (size_t row = 0; row < angles.size(); row += half) {
    for (const bool sine : {false, true}) {
      for (int repeat = width == RopeWidth::full ? 2 : 1; repeat > 0; --repeat) {
        for (size_t c = 0; c < half; ++c) table.push_back(sine ? std::sin(angles[row + c]) : std::cos(angles[row + c]));
      }
    }
  }
  return table;
}

RotaryStrides strides_of(Layout layout, int64_t batch, int64_t seq_len, int64_t heads, int64_t head_dim) {
  switch (layout) {
    case Layout::batch_major: return batch_major_strides(seq_len, heads, head_dim);
    case Layout::sequence_major: return sequence_major_strides(batch, heads, head_dim);
    case Layout::head_major: break;
  }
  return head_major_strides(seq_len, heads, head_dim);
}

// Returns the bytes of the angles that one call must read.
int64_t give_angles(RotaryParams& p, const Shape& shape, int64_t rows, bench::Setup& setup) {
  Rope& a = p.rope;
  const int64_t half = shape.rotary_dim / 2, size = dtype_size(shape.table);
  switch (shape.source) {
    case RopeSource::per_token:
    case RopeSource::angles_per_token: break;
    case RopeSource::table: {
      const int64_t columns = shape.width == RopeWidth::full ? 2 * half : half;
      const char* table = setup.values(encode(cos_sin_of(shape.rotary_dim, shape.width), shape.table));
      set_cos_and_sin(a, table, table + columns * size, shape.table, kMaxPosition, columns, shape.width);
      a.cos.row_stride = a.sin.row_stride = 2 * columns;
      if (shape.per_token) a.source = RopeSource::per_token;
      return rows * 2 * columns * size;
    }
    case RopeSource::angles:
      a.type = shape.table;
      a.width = RopeWidth::half;
      a.max_position = kMaxPosition;
      a.angles = {setup.values(encode(angles_of(shape.rotary_dim), shape.table)), 0, half, 1};
      break;
    case RopeSource::inv_freq: {
      std::vector<double> frequencies;
      for (int64_t c = 0; c < half; ++c) frequencies.push_back(frequency(c, shape.rotary_dim));
      a.type = shape.table;
      a.inv_freq = setup.values(encode(frequencies, shape.table));
      break;
    }
    case RopeSource::theta: a.theta = 500000.0; break;
  }
  a.source = shape.source;
  return shape.source == RopeSource::angles ? rows * half * size : 0;
}

struct Problem {
  RotaryParams params;
  std::vector<void*> x, y;
  int64_t bytes = 0;  // of one call: the data, the rows of the table and the indices
};

void point_at(RotaryParams& p, const Problem& problem, int64_t rotation) {
  const auto i = static_cast<size_t>(rotation);
  auto* x = static_cast<char*>(problem.x[i]);
  auto* y = static_cast<char*>(problem.y[i]);
  for (int64_t n = 0; n < p.num_tensors; ++n) {
    p.tensors[n].x = x;
    p.tensors[n].y = y;
    const int64_t bytes = p.batch * p.seq_len * p.tensors[n].num_heads * p.head_dim * dtype_size(p.dtype);
    x += bytes;
    y += bytes;
  }
}

Problem make_problem(const Shape& shape, int64_t num_tokens, bench::Setup& setup) {
  Problem problem;
  RotaryParams& p = problem.params;
  const int64_t num_seqs = std::min(shape.batch, num_tokens);
  p.batch = shape.packed ? 1 : num_seqs;
  p.seq_len = num_tokens / p.batch;
  p.head_dim = shape.head_dim;
  p.dtype = shape.dtype;
  p.num_tensors = 2;
  for (const int64_t n : {0, 1}) {
    const int64_t heads = n == 0 ? shape.num_q_heads : shape.num_k_heads;
    p.tensors[n] = rotary_tensor(nullptr, nullptr, heads, strides_of(shape.layout, p.batch, p.seq_len, heads, p.head_dim));
  }
  p.rope.style = shape.style;
  p.rope.rotary_dim = shape.rotary_dim;
  p.rope.inverse = shape.inverse;
  p.faults = setup.values(std::vector<FaultRecord>(1));

  const int64_t data_bytes = num_tokens * (shape.num_q_heads + shape.num_k_heads) * p.head_dim * dtype_size(p.dtype);
  setup.rotate(2 * data_bytes);
  const DType pattern = shape.dtype == DType::f64 ? DType::f32 : shape.dtype;
  problem.x = setup.rotated(data_bytes, pattern);
  problem.y = shape.in_place ? problem.x : setup.rotated(data_bytes, pattern);

  int64_t index_bytes = 0;
  if (shape.batch == 1) {
    std::vector<int64_t> positions;
    for (int64_t t = 0; t < num_tokens; ++t) positions.push_back((t + kFirstPosition) % kMaxPosition);
    p.positions.ids = index_view(setup.values(positions));
    index_bytes = num_tokens * 8;
  } else {
    p.positions.offsets = index_view(setup.values(std::vector<int32_t>(static_cast<size_t>(num_seqs), kFirstPosition)));
    index_bytes = num_seqs * 4;
  }
  if (shape.packed) {
    std::vector<int32_t> ends;
    for (int64_t n = 0; n <= num_seqs; ++n) ends.push_back(static_cast<int32_t>(n * num_tokens / num_seqs));
    p.positions.cu_seqlens = index_view(setup.values(ends));
    p.positions.num_seqs = num_seqs;
    index_bytes += (num_seqs + 1) * 4;
  }
  problem.bytes = 2 * data_bytes + index_bytes + give_angles(p, shape, num_tokens / num_seqs, setup);
  return problem;
}

}  // namespace

int main(int argc, char** argv) {
  bench::Bench bench(argc, argv);
  const bool cuda = bench.execution().device == Device::cuda;
  const std::vector<int64_t> all =
      cuda ? std::vector<int64_t>{1, 16, 64, 256, 1024, 4096, 8192, 16384} : std::vector<int64_t>{1, 16, 512};
  const std::vector<int64_t> few = cuda ? std::vector<int64_t>{1, 64, 1024, 8192} : std::vector<int64_t>{1, 512};
  for (const Shape& shape : kShapes) {
    for (const int64_t num_tokens : shape.all_sizes ? all : few) {
      bench.run(str_cat(shape.name, " T=", num_tokens), [&](bench::Setup& setup) {
        const Problem problem = make_problem(shape, num_tokens, setup);
        RotaryParams p = problem.params;
        return bench::Case{problem.bytes, [=](const Execution& execution, int64_t rotation) mutable {
                             point_at(p, problem, rotation);
                             return rotary(p, execution);
                           }};
      });
    }
  }

  // The rows have the time of a call on the calling thread.
  if (cuda) {
    bench.run_host("host: bare launch", [](bench::Setup&) {
      return bench::Case{0, [](const Execution& execution, int64_t) { return bench::launch_nothing(execution); }};
    });
  }
  for (const bool planned : {true, false}) {
    bench.run_host(planned ? "host: plan" : "host: call", [&](bench::Setup& setup) {
      const Problem problem = make_problem(kShapes[0], 1, setup);
      RotaryParams p = problem.params;
      point_at(p, problem, 0);
      const Result<RotaryPlan> plan = RotaryPlan::create(p, setup.execution());
      return bench::Case{0, [=](const Execution& execution, int64_t) {
                           if (!plan.ok()) return plan.status();
                           return planned ? plan->run(p, execution) : rotary(p, execution);
                         }};
    });
  }
  return bench.finish();
}
