// Measures what a call through prologue.h costs beside the same call in C++, on the CPU: nanoseconds of the calling thread. Both are
// measured alternately, in batches of 2000 calls; each number is the median of 201 batches, the difference that of the batches'
// differences.
#include <prologue.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include <prologue/kernels/attention_prologue/attention_prologue.h>
#include <prologue/kernels/projection/projection.h>
#include <prologue/kernels/qkv_prologue/qkv_prologue.h>
#include <prologue/kernels/rotary/rotary.h>
#include <prologue/layers/attention_layer.h>

namespace {

constexpr int kBatches = 201, kCalls = 2000;

void check(bool ok, const std::string& message) {
  if (ok) return;
  std::fprintf(stderr, "bench_c_call: %s\n", message.c_str());
  std::exit(1);
}
void check(const prologue::Status& status) { check(status.ok(), status.message()); }
void check(prologue_status status) { check(status == PROLOGUE_STATUS_OK, prologue_last_error_message()); }

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<int64_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

template <class Call>
double nanoseconds(const Call& call) {
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < kCalls; ++i) check(call());
  return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count() / kCalls;
}

template <class InCpp, class InC>
void row(const char* name, const InCpp& in_cpp, const InC& in_c) {
  std::vector<double> cpp, c, more;
  for (int batch = 0; batch < kBatches; ++batch) {
    const bool c_first = batch % 2 == 0;
    if (c_first) c.push_back(nanoseconds(in_c));
    cpp.push_back(nanoseconds(in_cpp));
    if (!c_first) c.push_back(nanoseconds(in_c));
    more.push_back(c.back() - cpp.back());
  }
  std::printf("%-40s %9.1f %9.1f %9.1f\n", name, median(cpp), median(c), median(more));
}

// Measures what C structs of another layout would cost: a copy of the struct in members of 8 bytes, to other offsets.
template <class Params>
void copy_row(const char* name, const Params& params) {
  std::vector<char> target(2 * sizeof(Params));
  const auto copy = [&] {
    const char* source = reinterpret_cast<const char*>(&params);
    for (size_t i = 0; i < sizeof(Params); i += 8) {
      uint64_t member;
      std::memcpy(&member, source + i, 8);
      asm volatile("" : "+r"(member));  // one member at a time
      std::memcpy(&target[i + i / 64 * 8], &member, 8);
    }
    asm volatile("" : : "r"(target.data()) : "memory");
    return true;
  };
  std::vector<double> times;
  for (int batch = 0; batch < kBatches; ++batch) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kCalls; ++i) copy();
    times.push_back(std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count() / kCalls);
  }
  std::printf("%-40s %9s %9.1f\n", name, "", median(times));
}

alignas(16) char workspace[4096];

}  // namespace

int main() {
  std::printf("%-40s %9s %9s %9s\n", "nanoseconds of a call", "C++", "C", "C - C++");
  prologue_execution execution;
  prologue_execution_init(&execution);
  const prologue::Execution cpp_execution;

  // This call rotates nothing.
  prologue_rotary_params rotary;
  prologue_rotary_params_init(&rotary);
  rotary.head_dim = 128, rotary.num_tensors = 1, rotary.tensors[0].num_heads = 8, rotary.dtype = PROLOGUE_DTYPE_F32;
  prologue::RotaryParams cpp_rotary;
  cpp_rotary.head_dim = 128, cpp_rotary.num_tensors = 1, cpp_rotary.tensors[0].num_heads = 8;
  cpp_rotary.dtype = prologue::DType::f32;
  row(
      "rotary, 0 tokens", [&] { return prologue::rotary(cpp_rotary, cpp_execution); },
      [&] { return prologue_rotary(&rotary, &execution); });

  // One token of Q is rotated in place, by a call and by a run of a plan.
  std::vector<float> q(8);
  prologue_attention_prologue_params p;
  prologue_attention_prologue_params_init(&p);
  p.num_tokens = p.num_q_heads = 1, p.head_dim = 8, p.dtype = PROLOGUE_DTYPE_F32;
  p.q.data = p.q_out.data = q.data(), p.q.token_stride = p.q.head_stride = p.q_out.token_stride = p.q_out.head_stride = 8;
  prologue::AttentionPrologueParams cpp_p;
  cpp_p.num_tokens = cpp_p.num_q_heads = 1, cpp_p.head_dim = 8, cpp_p.dtype = prologue::DType::f32;
  cpp_p.q = {q.data(), 8, 8}, cpp_p.q_out = {q.data(), 8, 8};
  row(
      "attention_prologue, 1 token", [&] { return prologue::attention_prologue(cpp_p, cpp_execution); },
      [&] { return prologue_attention_prologue(&p, &execution); });
  prologue_attention_prologue_plan* plan = nullptr;
  check(prologue_attention_prologue_plan_create(&p, 1, &execution, &plan));
  const auto cpp_plan = prologue::AttentionProloguePlan::create(cpp_p, 1, cpp_execution);
  check(cpp_plan.status());
  row(
      "a run of its plan", [&] { return cpp_plan->run(cpp_p, cpp_execution); },
      [&] { return prologue_attention_prologue_plan_run(plan, &p, &execution); });
  prologue_attention_prologue_plan_destroy(plan);

  // These operations have a context, and one token.
  prologue_gemm_context* context = nullptr;
  check(prologue_gemm_context_create(PROLOGUE_DEVICE_CPU, &context));
  const auto cpp_context = prologue::GemmContext::create(prologue::Device::cpu);
  check(cpp_context.status());
  std::vector<float> input(8), weight(64);
  const auto set_projection = [&](auto& o) {
    o.num_tokens = o.n = 1, o.k = o.x_stride = 8, o.y_stride = 1;
    o.x = input.data(), o.weight = weight.data(), o.y = q.data();
  };
  prologue_projection_params projection;
  prologue_projection_params_init(&projection);
  projection.dtype = PROLOGUE_DTYPE_F32;
  set_projection(projection);
  prologue::ProjectionParams cpp_projection;
  cpp_projection.dtype = prologue::DType::f32;
  set_projection(cpp_projection);
  row(
      "projection, 1 token", [&] { return prologue::projection(cpp_projection, **cpp_context, cpp_execution); },
      [&] { return prologue_projection(&projection, context, &execution); });
  const auto set_qkv = [&](auto& fused) {
    fused.hidden_size = fused.hidden_stride = 8, fused.hidden_states = input.data(), fused.weight = weight.data();
    fused.prologue.q = {}, fused.workspace = workspace, fused.workspace_bytes = sizeof workspace;
  };
  prologue_qkv_prologue_params qkv;
  prologue_qkv_prologue_params_init(&qkv);
  qkv.prologue = p;
  set_qkv(qkv);
  prologue::QkvPrologueParams cpp_qkv;
  cpp_qkv.prologue = cpp_p;
  set_qkv(cpp_qkv);
  row(
      "qkv_prologue, 1 token", [&] { return prologue::qkv_prologue(cpp_qkv, **cpp_context, cpp_execution); },
      [&] { return prologue_qkv_prologue(&qkv, context, &execution); });
  prologue_gemm_context_destroy(context);

  // This is the largest struct.
  const auto set = [](auto& layer) {
    layer.hidden_size = layer.hidden_stride = layer.out_stride = 64;
    layer.prologue.num_q_heads = 1, layer.prologue.num_kv_heads = 1, layer.prologue.head_dim = 64;
    layer.prologue.cache.num_pages = 1, layer.prologue.cache.page_size = 16, layer.prologue.cache.num_kv_heads = 1;
    layer.prologue.cache.k.head_dim = 64;
    layer.attention.max_seqlen_q = layer.attention.max_seq_len = 1;
  };
  prologue_attention_layer_params layer;
  prologue_attention_layer_params_init(&layer);
  layer.prologue.dtype = PROLOGUE_DTYPE_F32;
  set(layer);
  prologue::AttentionLayerParams cpp_layer;
  cpp_layer.prologue.dtype = prologue::DType::f32;
  set(cpp_layer);
  int64_t bytes = 0;
  row(
      "attention_layer_workspace_bytes",
      [&] { return prologue::attention_layer_workspace_bytes(cpp_layer, prologue::Device::cpu).status(); },
      [&] { return prologue_attention_layer_workspace_bytes(&layer, PROLOGUE_DEVICE_CPU, &bytes); });
  copy_row("a copy of AttentionPrologueParams", cpp_p);
  copy_row("a copy of AttentionLayerParams", cpp_layer);
  return 0;
}
