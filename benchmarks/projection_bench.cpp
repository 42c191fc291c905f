// Measures projections of few tokens with what surrounds them, in one kernel and in several, with the sizes of real models: what a decode
// step consists of beside attention. The weights are rotated, so that they come from memory. With PROLOGUE_EVERY_INSTANCE=1 in the
// environment every instance of the one kernel runs, with every number of blocks in a cluster: what the choice was made from.
#include <prologue/kernels/base/divide_up.h>
#include <prologue/kernels/paged_attention/paged_attention.h>
#include <prologue/kernels/projection/backends.h>
#include <prologue/kernels/qkv_prologue/backends.h>

#include <cstdlib>
#ifdef PROLOGUE_HAS_CUDA
#include <prologue/kernels/projection/instances.h>
#include <prologue/kernels/qkv_prologue/instances.h>
#endif

#include "benchmarks/harness.h"

using namespace prologue;

namespace {

constexpr int64_t kTokens[] = {1, 2, 4, 8, 16, 32, 64};
constexpr int64_t kPageSize = 16, kMaxPosition = 8192;

enum class Kernels { one, one_overlapping, several };
constexpr std::pair<Kernels, const char*> kKinds[] = {
    {Kernels::several, "several kernels"}, {Kernels::one, "one kernel"}, {Kernels::one_overlapping, "one kernel, overlapping"}};

// ---- the projection of q, k and v -------------------------------------------------------------------------------------------

// The formats of packed weights that have rows here.
constexpr WeightFormat kFormats[] = {WeightFormat::q8_0,   WeightFormat::q4_1,    WeightFormat::q4_k,   WeightFormat::q5_k,
                                     WeightFormat::q6_k,   WeightFormat::f8_e4m3, WeightFormat::i8,     WeightFormat::q2_k,
                                     WeightFormat::q3_k,   WeightFormat::iq4_nl,  WeightFormat::iq4_xs, WeightFormat::mxfp4,
                                     WeightFormat::i4_128, WeightFormat::nvfp4};

// Returns the bytes of [n, k] weights.
int64_t weight_bytes(WeightFormat format, int64_t n, int64_t k) {
  return format == WeightFormat::dense ? n * k * 2 : packed_weight_bytes(format, n, k);
}

// Sets a call's weights [n, k]; later calls say where others are.
template <class Params>
void set_weight(Params& p, WeightFormat format, int64_t n, void* data) {
  p.weight = nullptr;
  if (format == WeightFormat::dense) {
    p.weight = data;
  } else {
    p.packed.num_segments = 1;
    p.packed.segments[0] = {data, format, n};
  }
}
template <class Params>
void set_weight(Params& p, void* data) {
  (p.packed.num_segments > 0 ? p.packed.segments[0].data : p.weight) = data;
}

struct Heads {
  const char* name;
  int64_t hidden_size, num_q_heads, num_kv_heads, head_dim;
  bool qk_norm = false;
  DType cache = DType::bf16;
  KvScaling scaling = KvScaling::none;
  bool normed = true;
  RopeStyle style = RopeStyle::neox;
  WeightFormat format = WeightFormat::dense;
};

constexpr Heads kHeads[] = {
    {"8B", 4096, 32, 8, 128},
    {"8B without the norm", 4096, 32, 8, 128, false, DType::bf16, KvScaling::none, false},
    {"8B, interleaved", 4096, 32, 8, 128, false, DType::bf16, KvScaling::none, true, RopeStyle::interleaved},
    {"8B, fp8", 4096, 32, 8, 128, false, DType::fp8_e4m3, KvScaling::tensor},
    {"8B, int8 computed", 4096, 32, 8, 128, false, DType::int8, KvScaling::token_head},
    {"Qwen3 8B", 4096, 32, 8, 128, true},
    {"1B", 2048, 32, 8, 64},
    {"70B/TP8", 8192, 8, 1, 128},
    {"Gemma 3 270M", 640, 4, 1, 256, true},
    {"SmolLM2 135M", 576, 9, 3, 64},
};

struct QkvProblem {
  QkvPrologueParams params;
  std::vector<void*> weights;
  int64_t bytes = 0;
};

// `rotations` is the number of copies of the weights; 0: as many as the L2 cache does not hold.
void rotate_weights(bench::Setup& setup, int64_t weight_bytes, int64_t rotations) {
  if (rotations > 0) {
    setup.rotate_times(rotations);
  } else {
    setup.rotate_cold(weight_bytes);
  }
}

QkvProblem make_problem(const Heads& h, int64_t num_tokens, bench::Setup& setup, int64_t rotations = 0) {
  QkvProblem problem;
  QkvPrologueParams& p = problem.params;
  AttentionPrologueParams& a = p.prologue;
  const int64_t width = (h.num_q_heads + 2 * h.num_kv_heads) * h.head_dim, kv_width = h.num_kv_heads * h.head_dim;
  problem.bytes = weight_bytes(h.format, width, h.hidden_size);
  rotate_weights(setup, problem.bytes, rotations);
  problem.weights = setup.rotated(problem.bytes, DType::bf16);
  p.hidden_size = p.hidden_stride = h.hidden_size;
  p.hidden_states = setup.shared(num_tokens * h.hidden_size * 2, DType::bf16);
  set_weight(p, h.format, width, problem.weights.front());
  if (h.normed) {
    p.norm.given = 1;
    p.norm.weight = setup.shared(h.hidden_size * 2, DType::bf16);
  }
  a.num_tokens = num_tokens;
  a.num_q_heads = h.num_q_heads;
  a.num_kv_heads = h.num_kv_heads;
  a.head_dim = h.head_dim;
  a.dtype = DType::bf16;
  if (h.qk_norm) {
    for (HeadNorm* norm : {&a.q_norm, &a.k_norm}) {
      norm->placement = NormPlacement::before_rope;
      norm->weight = setup.shared(h.head_dim * 2, DType::bf16);
    }
  }
  a.rope.style = h.style;
  a.rope.rotary_dim = h.head_dim;
  set_cos_sin_table(a.rope, setup.shared(kMaxPosition * h.head_dim * 4, DType::f32), DType::f32, kMaxPosition);
  std::vector<int64_t> positions, slots;
  for (int64_t t = 0; t < num_tokens; ++t) {
    positions.push_back(t * 97 % kMaxPosition);
    slots.push_back((t * 37 + 5) % num_tokens * kPageSize);
  }
  a.places.positions = index_view(setup.values(positions));
  a.places.slot_mapping = index_view(setup.values(slots));
  a.q_out = {setup.shared(num_tokens * h.num_q_heads * h.head_dim * 2, DType::bf16), h.num_q_heads * h.head_dim, h.head_dim};
  a.cache.num_pages = num_tokens;
  a.cache.page_size = kPageSize;
  a.cache.num_kv_heads = h.num_kv_heads;
  for (PagedHeads* side : {&a.cache.k, &a.cache.v}) {
    side->data = setup.shared(num_tokens * kPageSize * kv_width * 2, DType::bf16);
    side->format = {h.cache, h.scaling};
    side->strides = nhd_strides(kPageSize, h.num_kv_heads, h.head_dim);
    if (h.scaling == KvScaling::none) continue;
    side->scale = setup.values(std::vector<float>(static_cast<size_t>(num_tokens * kPageSize * h.num_kv_heads), 0.01f));
    side->scale_strides = nhd_strides(kPageSize, h.num_kv_heads, 1);
  }
  a.faults = setup.values(std::vector<FaultRecord>(1));
  p.workspace_bytes = qkv_prologue_workspace_bytes(p);
  p.workspace = setup.shared(p.workspace_bytes, DType::bf16);
  return problem;
}

// ---- the others -------------------------------------------------------------------------------------------------------------

struct Linear {
  const char* name;
  int64_t n, k;
  bool normed = false, gated = false, adds = false, float_y = false;
  WeightFormat format = WeightFormat::dense;
};

constexpr Linear kLinears[] = {
    {"8B output + residual", 4096, 4096, false, false, true},
    {"8B norm + gate_up + activation", 14336, 4096, true, true},
    {"8B down + residual", 4096, 14336, false, false, true},
    {"1B output + residual", 2048, 2048, false, false, true},
    {"1B norm + gate_up + activation", 8192, 2048, true, true},
    {"1B down + residual", 2048, 8192, false, false, true},
    {"SmolLM2 output + residual", 576, 576, false, false, true},
    {"SmolLM2 norm + gate_up + activation", 1536, 576, true, true},
    {"SmolLM2 down + residual", 576, 1536, false, false, true},
    {"8B norm + lm_head", 128256, 4096, true, false, false, true},
    {"1B norm + lm_head", 128256, 2048, true, false, false, true},
    {"SmolLM2 norm + lm_head", 49152, 576, true, false, false, true},
};

struct Problem {
  ProjectionParams params;
  std::vector<void*> weights;
  int64_t bytes = 0;
};

Problem make_problem(const Linear& l, int64_t num_tokens, bench::Setup& setup, int64_t rotations = 0) {
  Problem problem;
  ProjectionParams& p = problem.params;
  const int64_t rows = l.n * (l.gated ? 2 : 1);
  problem.bytes = weight_bytes(l.format, rows, l.k);
  rotate_weights(setup, problem.bytes, rotations);
  problem.weights = setup.rotated(problem.bytes, DType::bf16);
  p.num_tokens = num_tokens;
  p.n = l.n;
  p.k = p.x_stride = l.k;
  p.dtype = DType::bf16;
  p.x = setup.shared(num_tokens * l.k * 2, DType::bf16);
  set_weight(p, l.format, rows, problem.weights.front());
  if (l.normed) {
    p.norm.given = 1;
    p.norm.weight = setup.shared(l.k * 2, DType::bf16);
  }
  p.activation.given = l.gated ? 1 : 0;
  p.y_dtype = l.float_y ? DType::f32 : DType::bf16;
  p.y = setup.shared(num_tokens * l.n * dtype_size(p.y_dtype), p.y_dtype);
  p.y_stride = l.n;
  p.adds = l.adds ? 1 : 0;
  p.workspace_bytes = projection_workspace_bytes(p);
  p.workspace = setup.shared(p.workspace_bytes, DType::bf16);
  return problem;
}

Status run_one(const std::optional<cuda::Launch>& chosen, const Execution& execution) {
  return chosen ? cuda::launch(*chosen, execution) : unsupported("no single kernel does this");
}
Status run_one(const QkvPrologueParams& p, const Execution& execution) { return run_one(choose(p), execution); }
Status run_one(const ProjectionParams& p, const Execution& execution) { return run_one(cuda::choose(p), execution); }

// Whether one kernel does it.
template <class Of>
bool is_one(bench::Bench& bench, const Of& of, int64_t num_tokens) {
  if (bench.execution().device != Device::cuda) return false;
  bench::Setup setup(bench.execution(), 0, 1);
  return run_one(make_problem(of, num_tokens, setup).params, bench.execution()).ok() && synchronize(bench.execution()).ok();
}

// Prints the rows of one problem: every kernel, each against the first.
template <class Of>
void run(bench::Bench& bench, const std::string& name, const Of& of, int64_t num_tokens, GemmContext& context) {
  if (!bench.may_run(name)) return;
  const bool one = is_one(bench, of, num_tokens);
  for (const auto& [which, label] : kKinds) {
    if (which != Kernels::several && !one) continue;
    bench.run(name + label, [&, kind = which](bench::Setup& setup) {
      const auto problem = make_problem(of, num_tokens, setup);
      auto p = problem.params;
      p.overlaps = kind == Kernels::one_overlapping;
      return bench::Case{problem.bytes,
                         [=, &context, weights = problem.weights](const Execution& execution, int64_t rotation) mutable {
                           set_weight(p, weights[static_cast<size_t>(rotation)]);
                           return kind == Kernels::several ? run_separately(p, context, execution) : run_one(p, execution);
                         },
                         0.0, kind == Kernels::several ? std::string() : name + kKinds[0].second};
    });
  }
}

// Holds attention of one token of each sequence, with a cache for each layer.
struct AttentionProblem {
  PagedAttentionParams params;
  std::vector<void*> k, v;
  int64_t bytes = 0;
};

AttentionProblem make_attention(const Heads& h, int64_t num_seqs, int64_t length, bench::Setup& setup, int64_t num_layers) {
  AttentionProblem problem;
  PagedAttentionParams& p = problem.params;
  const int64_t pages_per_seq = divide_up(length, kPageSize), num_pages = num_seqs * pages_per_seq;
  const int64_t side_bytes = num_pages * kPageSize * h.num_kv_heads * h.head_dim * 2;
  problem.bytes = 2 * side_bytes;
  setup.rotate_times(num_layers);
  problem.k = setup.rotated(side_bytes, DType::bf16), problem.v = setup.rotated(side_bytes, DType::bf16);
  p.num_tokens = p.num_seqs = p.num_decode_seqs = num_seqs;
  p.num_q_heads = h.num_q_heads;
  p.head_dim = h.head_dim;
  p.dtype = DType::bf16;
  p.scale = 0.1f;
  p.q = {setup.shared(num_seqs * h.num_q_heads * h.head_dim * 2, DType::bf16), h.num_q_heads * h.head_dim, h.head_dim};
  p.out = {setup.shared(num_seqs * h.num_q_heads * h.head_dim * 2, DType::bf16), h.num_q_heads * h.head_dim, h.head_dim};
  p.kv.num_pages = num_pages;
  p.kv.page_size = kPageSize;
  p.kv.num_kv_heads = h.num_kv_heads;
  for (PagedHeads* side : {&p.kv.k, &p.kv.v}) {
    side->head_dim = h.head_dim;
    side->format = {DType::bf16, KvScaling::none};
    side->strides = nhd_strides(kPageSize, h.num_kv_heads, h.head_dim);
  }
  p.kv.k.data = problem.k.front(), p.kv.v.data = problem.v.front();
  std::vector<int32_t> block_table, cu_seqlens_q = {0};
  for (int64_t page = 0; page < num_pages; ++page) block_table.push_back(static_cast<int32_t>(page));
  for (int64_t s = 1; s <= num_seqs; ++s) cu_seqlens_q.push_back(static_cast<int32_t>(s));
  p.page_table.block_table = setup.values(block_table);
  p.page_table.block_table_stride = p.page_table.max_pages_per_seq = pages_per_seq;
  p.cu_seqlens_q = setup.values(cu_seqlens_q);
  p.seq_lens = setup.values(std::vector<int32_t>(static_cast<size_t>(num_seqs), static_cast<int32_t>(length)));
  p.max_seqlen_q = 1;
  p.max_seq_len = kMaxPosition;  // an engine's steps know no length: blocks are launched for all that there may be
  p.past_is_ready = true;
  p.counters = setup.values(std::vector<uint32_t>(kPagedAttentionCounters));
  p.workspace_bytes = paged_attention_workspace_bytes(p, setup.execution().device);
  if (p.workspace_bytes > 0) p.workspace = setup.shared(p.workspace_bytes, DType::f32);
  return problem;
}

// Runs one layer after another, as in a decode step, with attention over so many tokens of each sequence or (0) without. With many layers
// their weights are as much memory as a model's, and a kernel's code is in no cache when it runs again.
void run_layers(bench::Bench& bench, const std::string& model, Heads heads, const Linear* linears, int64_t num_tokens,
                int64_t length, GemmContext& context) {
  if (bench.execution().device != Device::cuda) return;
  heads.style = RopeStyle::interleaved;  // as in GGUF files of Llama
  constexpr int64_t kLayers = 32;
  const std::string name =
      str_cat("layer of ", model, length > 0 ? str_cat(", ", length, " tokens of context") : "", " T=", num_tokens, ": ");
  for (const auto& [which, label] : kKinds) {
    bench.run(name + label, [&, kind = which](bench::Setup& setup) {
      auto qkv = make_problem(heads, num_tokens, setup, kLayers);
      std::vector<Problem> others;
      for (int i = 0; i < 3; ++i) others.push_back(make_problem(linears[i], num_tokens, setup, kLayers));
      AttentionProblem attention;
      if (length > 0) attention = make_attention(heads, num_tokens, length, setup, kLayers);
      int64_t bytes = qkv.bytes + attention.bytes;
      for (const Problem& problem : others) bytes += problem.bytes;
      return bench::Case{bytes,
                         [=, &context](const Execution& execution, int64_t rotation) mutable {
                           const auto layer = static_cast<size_t>(rotation);
                           // This is what layers/graph/projection_fusion.cpp does.
                           const auto& output = others[0].params;
                           const bool is_large = !may_begin_beside_attention(output.n, output.k);
                           const bool begins_early =
                               !is_large || num_tokens == 1 || num_tokens >= tokens_of_rings(output.n, output.k);
                           const auto run = [&](auto& problem, bool may_overlap = true) {
                             auto& p = problem.params;
                             set_weight(p, problem.weights[layer]);
                             p.overlaps = may_overlap && kind == Kernels::one_overlapping;
                             if (kind != Kernels::several) {
                               Status status = run_one(p, execution);
                               if (status.code() != StatusCode::unsupported) return status;
                             }
                             return run_separately(p, context, execution);
                           };
                           PROLOGUE_RETURN_IF_ERROR(run(qkv));
                           if (length > 0) {
                             attention.params.kv.k.data = attention.k[layer];
                             attention.params.kv.v.data = attention.v[layer];
                             const bool apart = is_large && num_tokens == 1 && kind == Kernels::one_overlapping;
                             attention.params.early_signal = apart && waits_with_its_weights(output.n, output.k);
                             attention.params.late_signal = apart && !attention.params.early_signal;
                             PROLOGUE_RETURN_IF_ERROR(paged_attention(attention.params, execution));
                           }
                           PROLOGUE_RETURN_IF_ERROR(run(others[0], length == 0 || begins_early));
                           PROLOGUE_RETURN_IF_ERROR(run(others[1]));
                           return run(others[2]);
                         },
                         0.0, kind == Kernels::several ? std::string() : name + kKinds[0].second};
    });
  }
}

constexpr int64_t kPromptTokens[] = {128, 256, 384, 512, 768, 1024, 1536, 2048, 4096, 8192};

#ifdef PROLOGUE_HAS_CUDA
// Of every way.
template <class Params>
auto every_instance_of(const Params& p) {
  std::vector<cuda::KernelInstance<Params>> list;
  for (const std::string& way : cuda::projection_ways()) {
    for (auto& instance : cuda::instances_of(way, p)) list.push_back(std::move(instance));
  }
  return list;
}

template <class Of>
void run_every_instance(bench::Bench& bench, const std::string& name, const Of& of, int64_t num_tokens) {
  if (bench.execution().device != Device::cuda || std::getenv("PROLOGUE_EVERY_INSTANCE") == nullptr) return;
  if (!bench.may_run(name)) return;
  size_t count = 0;
  {
    bench::Setup setup(bench.execution(), 0, 1);
    count = every_instance_of(make_problem(of, num_tokens, setup).params).size();
  }
  for (size_t i = 0; i < count; ++i) {
    std::string label;
    {
      bench::Setup setup(bench.execution(), 0, 1);
      label = every_instance_of(make_problem(of, num_tokens, setup).params)[i].name;
    }
    bench.run(name + label, [&](bench::Setup& setup) {
      const auto problem = make_problem(of, num_tokens, setup);
      auto p = problem.params;
      p.overlaps = true;
      const auto instance = every_instance_of(p)[i];
      return bench::Case{problem.bytes, [=, weights = problem.weights](const Execution& execution, int64_t rotation) mutable {
                           set_weight(p, weights[static_cast<size_t>(rotation)]);
                           return instance.launch(p, execution.stream);
                         }};
    });
  }
}

// ---- prompts: only the QKV GEMM, and the prologue after it or in it -----------------------------------------------------------

QkvProblem make_prompt(const Heads& h, int64_t num_tokens, bench::Setup& setup) {
  Heads of_prompt = h;
  of_prompt.normed = false;
  QkvProblem problem = make_problem(of_prompt, num_tokens, setup);
  std::vector<int64_t> places;
  for (int64_t t = 0; t < num_tokens; ++t) places.push_back(t);
  problem.params.prologue.places.positions = problem.params.prologue.places.slot_mapping = index_view(setup.values(places));
  return problem;
}

void run_prompt(bench::Bench& bench, const Heads& h, int64_t num_tokens, GemmContext& context) {
  if (bench.execution().device != Device::cuda) return;
  const std::string name = str_cat("prompt qkv ", h.name, " T=", num_tokens, ": "), alone = name + "GEMM alone";
  const auto run = [&](const std::string& label, const auto& call) {
    bench.run(name + label, [&](bench::Setup& setup) {
      const QkvProblem problem = make_prompt(h, num_tokens, setup);
      return bench::Case{problem.bytes,
                         [=](const Execution& execution, int64_t rotation) {
                           QkvPrologueParams p = problem.params;
                           set_weight(p, problem.weights[static_cast<size_t>(rotation)]);
                           return call(p, execution);
                         },
                         0.0, name + label == alone ? std::string() : alone};
    });
  };
  run("GEMM alone", [&](const QkvPrologueParams& p, const Execution& execution) {
    GemmParams g;
    g.m = p.prologue.num_tokens, g.k = g.x_stride = p.hidden_size;
    g.n = g.y_stride = (p.prologue.num_q_heads + 2 * p.prologue.num_kv_heads) * p.prologue.head_dim;
    g.dtype = g.y_dtype = p.prologue.dtype;
    g.x = p.hidden_states, g.weight = p.weight, g.y = p.workspace;
    return gemm(g, context, execution);
  });
  run("several kernels",
      [&](const QkvPrologueParams& p, const Execution& execution) { return run_separately(p, context, execution); });
  run("automatic", [&](QkvPrologueParams p, const Execution& execution) {
    p.overlaps = true;  // as in the graph
    return run_validated(p, context, execution);
  });
  if (std::getenv("PROLOGUE_EVERY_INSTANCE") == nullptr || !bench.may_run(name)) return;
  std::vector<std::string> names;
  {
    bench::Setup setup(bench.execution(), 0, 1);
    for (const auto& instance : cuda::instances_of("tiles", make_prompt(h, num_tokens, setup).params))
      names.push_back(instance.name);
  }
  for (size_t i = 0; i < names.size(); ++i) {
    run(names[i], [i](QkvPrologueParams p, const Execution& execution) {
      p.overlaps = true;
      return cuda::instances_of("tiles", p)[i].launch(p, execution.stream);
    });
  }
}

void run_prompt(bench::Bench& bench, const Linear& l, int64_t num_tokens, GemmContext& context) {
  if (bench.execution().device != Device::cuda) return;
  const std::string of_linear = l.name;
  Linear of_prompt = l;
  of_prompt.normed = false;
  const std::string name =
      str_cat("prompt ", of_linear.substr(0, of_linear.find(' ')), " gate_up + activation T=", num_tokens, ": ");
  for (const bool separate : {true, false}) {
    bench.run(name + (separate ? "several kernels" : "automatic"), [&](bench::Setup& setup) {
      const auto problem = make_problem(of_prompt, num_tokens, setup);
      return bench::Case{problem.bytes,
                         [=, &context](const Execution& execution, int64_t rotation) {
                           ProjectionParams p = problem.params;
                           set_weight(p, problem.weights[static_cast<size_t>(rotation)]);
                           p.overlaps = true;  // as in the graph
                           return separate ? run_separately(p, context, execution) : run_validated(p, context, execution);
                         },
                         0.0, separate ? std::string() : name + "several kernels"};
    });
  }
}
#else
template <class Of>
void run_every_instance(bench::Bench&, const std::string&, const Of&, int64_t) {}
void run_prompt(bench::Bench&, const Linear&, int64_t, GemmContext&) {}
void run_prompt(bench::Bench&, const Heads&, int64_t, GemmContext&) {}
#endif

}  // namespace

int main(int argc, char** argv) {
  bench::Bench bench(argc, argv);
  const auto created = bench.gemm_context();
  for (const Heads& heads : kHeads) {
    for (const int64_t num_tokens : kTokens) {
      const std::string name = str_cat("qkv ", heads.name, " T=", num_tokens, ": ");
      run(bench, name, heads, num_tokens, *created);
      run_every_instance(bench, name, heads, num_tokens);
    }
  }
  for (const Linear& linear : kLinears) {
    for (const int64_t num_tokens : kTokens) {
      const std::string name = str_cat(linear.name, " T=", num_tokens, ": ");
      run(bench, name, linear, num_tokens, *created);
      run_every_instance(bench, name, linear, num_tokens);
    }
  }
  for (const WeightFormat format : kFormats) {
    for (const int64_t num_tokens : {1, 4, 8, 16, 64}) {
      const std::string label = str_cat(", ", weight_format_name(format), " T=", num_tokens, ": ");
      for (Heads heads : kHeads) {
        if (heads.hidden_size % weight_block_elements(format) != 0 || std::string(heads.name).find(' ') != std::string::npos)
          continue;
        heads.format = format, heads.style = RopeStyle::interleaved;  // as in GGUF files of Llama
        const std::string name = str_cat("qkv ", heads.name, label);
        run(bench, name, heads, num_tokens, *created);
        run_every_instance(bench, name, heads, num_tokens);
      }
      for (Linear linear : kLinears) {
        if (linear.k % weight_block_elements(format) != 0) continue;
        linear.format = format;
        const std::string name = linear.name + label;
        run(bench, name, linear, num_tokens, *created);
        run_every_instance(bench, name, linear, num_tokens);
      }
    }
  }
  for (const int64_t num_tokens : kTokens) {
    for (const int64_t length : {0, 128, 512}) {
      run_layers(bench, "8B", kHeads[0], kLinears, num_tokens, length, *created);
      run_layers(bench, "1B", kHeads[6], kLinears + 3, num_tokens, length, *created);
      run_layers(bench, "SmolLM2", kHeads[9], kLinears + 6, num_tokens, length, *created);
    }
  }
  for (const Heads& heads : kHeads) {
    if (!heads.normed) continue;
    for (const int64_t num_tokens : kPromptTokens) run_prompt(bench, heads, num_tokens, *created);
  }
  for (const Linear& linear : kLinears) {
    if (!linear.gated) continue;
    for (const int64_t num_tokens : kPromptTokens) run_prompt(bench, linear, num_tokens, *created);
  }
  return bench.finish();
}
