// Calls through prologue.h: answers and sentences are those of C++, errors belong to their thread, plans and contexts live as long as
// they should.
#include <gtest/gtest.h>
#include <prologue.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <prologue/kernels/attention_prologue/stages/stages.h>
#include <prologue/kernels/base/gpu.h>
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
#include <prologue/kernels/token_ops/embedding.h>
#include <prologue/kernels/token_ops/end_step.h>
#include <prologue/kernels/token_ops/gate.h>
#include <prologue/kernels/token_ops/gather_cos_sin.h>
#include <prologue/kernels/token_ops/logprobs.h>
#include <prologue/kernels/token_ops/norm.h>
#include <prologue/kernels/token_ops/sampling.h>
#include <prologue/kernels/token_ops/scale_logits.h>
#include <prologue/kernels/token_ops/take_tokens.h>
#include <prologue/layers/attention_layer.h>
#include <prologue/layers/rope/rope_table.h>

namespace {

template <class C>
C initialised(void (*init)(C*)) {
  C value;
  init(&value);
  return value;
}

prologue_execution on_cpu() { return initialised(prologue_execution_init); }

std::string message() { return prologue_last_error_message(); }

// Returns the C++ struct with the bytes of a C one.
template <class Cpp, class C>
Cpp as_cpp(const C& value) {
  static_assert(sizeof(Cpp) == sizeof(C));
  Cpp result;
  std::memcpy(static_cast<void*>(&result), &value, sizeof result);
  return result;
}

void expect_answer(prologue_status got, const prologue::Status& want) {
  EXPECT_EQ(got, static_cast<int32_t>(want.code())) << want.message();
  if (!want.ok()) {
    EXPECT_EQ(message(), want.message());
  }
}

// An operation with defaults, with sizes but no pointers, of an unknown type, and on an unknown device: what C answers is what C++
// answers. Then null arguments and a reserved word in use, which only C has.
template <class Cpp, class C>
void expect_same_answers(const char* name, void (*init)(C*), prologue_status (*in_c)(const C*, const prologue_execution*),
                         prologue::Status (*in_cpp)(const Cpp&, const prologue::Execution&), void (*set_sizes)(C&)) {
  SCOPED_TRACE(name);
  C params = initialised(init);
  prologue_execution execution = on_cpu();
  const auto both = [&] {
    const auto want = in_cpp(as_cpp<Cpp>(params), as_cpp<prologue::Execution>(execution));
    expect_answer(in_c(&params, &execution), want);
    return want.ok();
  };
  both();
  set_sizes(params);
  EXPECT_FALSE(both());
  execution.device = 7;
  both();
  execution.device = PROLOGUE_DEVICE_CPU;
  execution.num_threads = -3;
  both();
  execution = on_cpu();

  EXPECT_EQ(in_c(nullptr, &execution), PROLOGUE_STATUS_INVALID_ARGUMENT);
  EXPECT_EQ(message(), std::string(name) + ": params is null");
  EXPECT_EQ(in_c(&params, nullptr), PROLOGUE_STATUS_INVALID_ARGUMENT);
  EXPECT_EQ(message(), std::string(name) + ": execution is null");
  params.reserved[1] = 1;
  EXPECT_EQ(in_c(&params, &execution), PROLOGUE_STATUS_INVALID_ARGUMENT);
  EXPECT_EQ(message().find(std::string(name) + ": params->reserved must be zeros"), 0u) << message();
  params.reserved[1] = 0;
  execution.reserved[1] = 1;
  EXPECT_EQ(in_c(&params, &execution), PROLOGUE_STATUS_INVALID_ARGUMENT);
  EXPECT_EQ(message().find(std::string(name) + ": execution->reserved must be zeros"), 0u) << message();
}

TEST(CCalls, AnswersAreThoseOfCpp) {
#define SAME(operation, params, ...)                                                               \
  expect_same_answers(                                                                             \
      "prologue_" #operation, prologue_##params##_init, prologue_##operation, prologue::operation, \
      +[](prologue_##params& p) { __VA_ARGS__; })
  SAME(pack_weight, pack_weight_params, p.rows = 3, p.cols = 32, p.format = 99);
  SAME(rotary, rotary_params, p.seq_len = 3, p.head_dim = 64, p.dtype = 99);
  SAME(rerope, rerope_params, p.num_keys = 3, p.cache.num_kv_heads = 2, p.cache.k.head_dim = 64, p.rope.rotary_dim = 64,
       p.rope.type = 99);
  SAME(attention_prologue, attention_prologue_params, p.num_tokens = 3, p.num_q_heads = 2, p.head_dim = 64, p.dtype = 99);
  SAME(add_bias, add_bias_params, p.num_tokens = 3, p.width = 8, p.dtype = 99);
  SAME(qk_norm, qk_norm_params, p.num_tokens = 3, p.num_heads = 2, p.head_dim = 64, p.dtype = 99);
  SAME(hadamard, hadamard_params, p.num_tokens = 3, p.num_heads = 2, p.head_dim = 64, p.dtype = 99);
  SAME(query_scale, query_scale_params, p.num_tokens = 3, p.num_heads = 2, p.head_dim = 64, p.dtype = 99);
  SAME(kv_write, kv_write_params, p.num_tokens = 3, p.num_kv_heads = 2, p.head_dim = 64, p.dtype = 99);
  SAME(mla_prologue, mla_prologue_params, p.num_tokens = 3, p.num_q_heads = 2, p.qk_rope_head_dim = 64, p.dtype = 99);
  SAME(paged_attention, paged_attention_params, p.num_tokens = 3, p.num_seqs = 1, p.head_dim = 64, p.dtype = 99);
  SAME(moe_route, moe_route_params, p.num_tokens = 3, p.num_experts = 4, p.top_k = 2, p.weighting = 99);
  SAME(moe_combine, moe_combine_params, p.num_tokens = 3, p.top_k = 2, p.width = 8, p.dtype = 99);
  SAME(embedding, embedding_params, p.num_tokens = 3, p.num_rows = 4, p.width = 8, p.dtype = 99);
  SAME(norm, norm_params, p.num_tokens = 3, p.width = 8, p.dtype = PROLOGUE_DTYPE_F32, p.kind = 99);
  SAME(activation, activation_params, p.num_tokens = 3, p.width = 8, p.dtype = PROLOGUE_DTYPE_F32, p.kind = 99);
  SAME(add, add_params, p.num_tokens = 3, p.width = 8, p.dtype = 99);
  SAME(gate, gate_params, p.num_tokens = 3, p.width = 8, p.dtype = 99);
  SAME(gather_cos_sin, gather_cos_sin_params, p.num_tokens = 3, p.rotary_dim = 8, p.type = 99);
  SAME(scale_logits, scale_logits_params, p.num_rows = 3, p.width = 8);
  SAME(sample, sampling_params, p.num_rows = 3, p.vocab_size = 8);
  SAME(logprobs, logprobs_params, p.num_rows = 3, p.vocab_size = 8);
  SAME(end_step, end_step_params, p.num_tokens = 3, p.num_seqs = 3);
  SAME(take_tokens, take_tokens_params, p.num_tokens = 3, p.num_sampled = 3);
#undef SAME
}

TEST(CCalls, AnswersOfFunctionsWithAContextAreThoseOfCpp) {
  const prologue_execution execution = on_cpu();
  prologue_gemm_context* context = nullptr;
  ASSERT_EQ(prologue_gemm_context_create(PROLOGUE_DEVICE_CPU, &context), PROLOGUE_STATUS_OK);
  EXPECT_EQ(prologue_gemm_context_device(context), PROLOGUE_DEVICE_CPU);
  auto cpp_context = prologue::GemmContext::create(prologue::Device::cpu);
  ASSERT_TRUE(cpp_context.ok());
  const prologue::Execution cpp_execution;

  prologue_gemm_params gemm = initialised(prologue_gemm_params_init);
  gemm.m = gemm.n = gemm.k = 4, gemm.dtype = 99;
  const auto cpp_gemm = as_cpp<prologue::GemmParams>(gemm);
  expect_answer(prologue_gemm(&gemm, context, &execution), prologue::gemm(cpp_gemm, **cpp_context, cpp_execution));
  expect_answer(prologue_gemm_validate(&gemm, context, &execution), prologue::validate(cpp_gemm, **cpp_context, cpp_execution));
  EXPECT_EQ(prologue_gemm(&gemm, nullptr, &execution), PROLOGUE_STATUS_INVALID_ARGUMENT);
  EXPECT_EQ(message(), "prologue_gemm: context is null");

  prologue_moe_gemm_params moe = initialised(prologue_moe_gemm_params_init);
  moe.num_tokens = moe.n = moe.k = 4, moe.dtype = 99;
  const auto cpp_moe = as_cpp<prologue::MoeGemmParams>(moe);
  expect_answer(prologue_moe_gemm(&moe, context, &execution), prologue::moe_gemm(cpp_moe, **cpp_context, cpp_execution));
  expect_answer(prologue_moe_gemm_validate(&moe, context, &execution), prologue::validate(cpp_moe, **cpp_context, cpp_execution));

  prologue_projection_params projection = initialised(prologue_projection_params_init);
  projection.num_tokens = projection.n = projection.k = 4, projection.dtype = 99;
  const auto cpp_projection = as_cpp<prologue::ProjectionParams>(projection);
  expect_answer(prologue_projection(&projection, context, &execution),
                prologue::projection(cpp_projection, **cpp_context, cpp_execution));
  expect_answer(prologue_projection_validate(&projection, context, &execution),
                prologue::validate(cpp_projection, **cpp_context, cpp_execution));
  projection.activation.reserved[1] = 5;
  EXPECT_EQ(prologue_projection(&projection, context, &execution), PROLOGUE_STATUS_INVALID_ARGUMENT);
  EXPECT_NE(message().find("params->activation.reserved must be zeros"), std::string::npos) << message();

  prologue_qkv_prologue_params qkv = initialised(prologue_qkv_prologue_params_init);
  qkv.hidden_size = 64, qkv.prologue.num_tokens = 3, qkv.prologue.num_q_heads = 1, qkv.prologue.head_dim = 64;
  qkv.prologue.dtype = 99;
  const auto cpp_qkv = as_cpp<prologue::QkvPrologueParams>(qkv);
  expect_answer(prologue_qkv_prologue(&qkv, context, &execution), prologue::qkv_prologue(cpp_qkv, **cpp_context, cpp_execution));
  expect_answer(prologue_qkv_prologue_validate(&qkv, context, &execution),
                prologue::validate(cpp_qkv, **cpp_context, cpp_execution));
  qkv.prologue.cache.reserved[0] = 5;
  EXPECT_EQ(prologue_qkv_prologue_validate(&qkv, context, &execution), PROLOGUE_STATUS_INVALID_ARGUMENT);
  EXPECT_NE(message().find("params->prologue.cache.reserved must be zeros"), std::string::npos) << message();

  prologue_attention_layer_params layer = initialised(prologue_attention_layer_params_init);
  layer.prologue.num_tokens = 3, layer.prologue.dtype = 99;
  const auto cpp_layer = as_cpp<prologue::AttentionLayerParams>(layer);
  expect_answer(prologue_attention_layer(&layer, context, &execution),
                prologue::attention_layer(cpp_layer, **cpp_context, cpp_execution));
  int64_t bytes = -1;
  expect_answer(prologue_attention_layer_workspace_bytes(&layer, PROLOGUE_DEVICE_CPU, &bytes),
                prologue::attention_layer_workspace_bytes(cpp_layer, prologue::Device::cpu).status());
  EXPECT_EQ(bytes, -1);  // not written after an error
  layer.attention.kv.v.reserved[0] = 5;
  EXPECT_EQ(prologue_attention_layer(&layer, context, &execution), PROLOGUE_STATUS_INVALID_ARGUMENT);
  EXPECT_NE(message().find("params->attention.kv.v.reserved must be zeros"), std::string::npos) << message();
  prologue_gemm_context_destroy(context);
}

TEST(CCalls, RanksExchangeValues) {
  prologue_communicators_params group = initialised(prologue_communicators_params_init);
  group.num_ranks = 2, group.wait_seconds = 5.0;
  prologue_communicator* ranks[2] = {};
  EXPECT_EQ(prologue_create_communicators(&group, nullptr), PROLOGUE_STATUS_INVALID_ARGUMENT);
  EXPECT_EQ(message(), "prologue_create_communicators: communicators is null");
  group.num_ranks = 9;
  EXPECT_EQ(prologue_create_communicators(&group, ranks), PROLOGUE_STATUS_INVALID_ARGUMENT);
  EXPECT_EQ(message(), "communicator: num_ranks is 9: it must lie in 1..8");
  group.num_ranks = 2;
  const int32_t gpus[] = {4, 4};
  group.gpus = gpus, group.device = PROLOGUE_DEVICE_CUDA;
  EXPECT_EQ(prologue_create_communicators(&group, ranks), PROLOGUE_STATUS_INVALID_ARGUMENT);
  EXPECT_EQ(message(), "communicator: gpus has GPU 4 for rank 0 and rank 1: each rank needs a GPU of its own");
  group.device = PROLOGUE_DEVICE_CPU;
  ASSERT_EQ(prologue_create_communicators(&group, ranks), PROLOGUE_STATUS_OK) << message();

  const prologue_execution execution = on_cpu();
  float y[2][2] = {{1.0f, 2.0f}, {10.0f, 20.0f}}, gathered[2][3] = {};
  const auto run = [&](int rank) {
    EXPECT_EQ(prologue_communicator_device(ranks[rank]), PROLOGUE_DEVICE_CPU);
    EXPECT_EQ(prologue_communicator_rank(ranks[rank]), rank);
    EXPECT_EQ(prologue_communicator_num_ranks(ranks[rank]), 2);
    prologue_all_reduce_params reduce = initialised(prologue_all_reduce_params_init);
    reduce.num_tokens = 1, reduce.width = 2, reduce.dtype = PROLOGUE_DTYPE_F32, reduce.x = reduce.y = y[rank];
    EXPECT_EQ(prologue_all_reduce(&reduce, ranks[rank], &execution), PROLOGUE_STATUS_OK) << message();
    prologue_all_gather_params gather = initialised(prologue_all_gather_params_init);
    gather.num_tokens = 1, gather.width = 3, gather.part_width = 2, gather.dtype = PROLOGUE_DTYPE_F32;
    const float part[] = {static_cast<float>(rank), 5.0f};
    gather.x = part, gather.y = gathered[rank];
    EXPECT_EQ(prologue_all_gather_workspace_bytes(&gather, ranks[rank], &gather.workspace_bytes), PROLOGUE_STATUS_OK);
    EXPECT_EQ(gather.workspace_bytes, 0);
    EXPECT_EQ(prologue_all_gather(&gather, ranks[rank], &execution), PROLOGUE_STATUS_OK) << message();
    EXPECT_EQ(prologue_communicator_status(ranks[rank]), PROLOGUE_STATUS_OK);
    EXPECT_EQ(prologue_communicator_meet(ranks[rank]), PROLOGUE_STATUS_OK);
    gather.reserved[0] = 1;
    EXPECT_EQ(prologue_all_gather(&gather, ranks[rank], &execution), PROLOGUE_STATUS_INVALID_ARGUMENT);
    EXPECT_EQ(message().find("prologue_all_gather: params->reserved must be zeros"), 0u) << message();
    reduce.reserved[0] = 1;
    EXPECT_EQ(prologue_all_reduce(&reduce, ranks[rank], &execution), PROLOGUE_STATUS_INVALID_ARGUMENT);
    reduce.reserved[0] = 0, reduce.dtype = 99;
    EXPECT_EQ(prologue_all_reduce(&reduce, ranks[rank], &execution), PROLOGUE_STATUS_UNSUPPORTED);
    EXPECT_EQ(prologue_all_reduce(&reduce, nullptr, &execution), PROLOGUE_STATUS_INVALID_ARGUMENT);
    EXPECT_EQ(message(), "prologue_all_reduce: communicator is null");
  };
  std::thread other([&] { run(1); });
  run(0);
  other.join();
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(y[rank][0], 11.0f);
    EXPECT_EQ(y[rank][1], 22.0f);
    EXPECT_EQ(gathered[rank][0], 0.0f);
    EXPECT_EQ(gathered[rank][1], 5.0f);
    EXPECT_EQ(gathered[rank][2], 1.0f);
  }
  EXPECT_EQ(prologue_communicator_abort(ranks[0], "this is enough"), PROLOGUE_STATUS_OK);
  EXPECT_EQ(prologue_communicator_status(ranks[1]), PROLOGUE_STATUS_DEVICE_ERROR);
  EXPECT_EQ(message(), "this is enough");
  for (prologue_communicator* rank : ranks) prologue_communicator_destroy(rank);
  EXPECT_EQ(prologue_create_communicators(&group, ranks), PROLOGUE_STATUS_OK);
  EXPECT_EQ(prologue_communicator_abort(ranks[0], nullptr), PROLOGUE_STATUS_OK);
  EXPECT_EQ(prologue_communicator_status(ranks[0]), PROLOGUE_STATUS_DEVICE_ERROR);
  for (prologue_communicator* rank : ranks) prologue_communicator_destroy(rank);
}

TEST(CCalls, WorkspacesAreThoseOfCpp) {
  prologue_attention_layer_params layer = initialised(prologue_attention_layer_params_init);
  layer.hidden_size = 256;
  layer.prologue.num_tokens = 7, layer.prologue.num_q_heads = 4, layer.prologue.num_kv_heads = 2, layer.prologue.head_dim = 64;
  layer.prologue.dtype = PROLOGUE_DTYPE_BF16;
  layer.attention.max_seqlen_q = 7, layer.attention.max_seq_len = 100;
  layer.prologue.places.num_seqs = 1;
  layer.prologue.cache.num_kv_heads = 2, layer.prologue.cache.k.head_dim = 64;
  layer.prologue.cache.num_pages = 8, layer.prologue.cache.page_size = 16;
  const auto want =
      prologue::attention_layer_workspace_bytes(as_cpp<prologue::AttentionLayerParams>(layer), prologue::Device::cpu);
  ASSERT_TRUE(want.ok()) << want.status().message();
  int64_t bytes = -1;
  EXPECT_EQ(prologue_attention_layer_workspace_bytes(&layer, PROLOGUE_DEVICE_CPU, &bytes), PROLOGUE_STATUS_OK);
  EXPECT_EQ(bytes, *want);
  EXPECT_EQ(prologue_paged_attention_workspace_bytes(&layer.attention, PROLOGUE_DEVICE_CPU, &bytes), PROLOGUE_STATUS_OK)
      << message();
  EXPECT_EQ(bytes, 0);
  EXPECT_EQ(prologue_paged_attention_workspace_bytes(&layer.attention, PROLOGUE_DEVICE_CPU, nullptr),
            PROLOGUE_STATUS_INVALID_ARGUMENT);
  EXPECT_EQ(message(), "prologue_paged_attention_workspace_bytes: bytes is null");
  EXPECT_EQ(prologue_rotary_plan_workspace_bytes(), 0);
}

// The norm, the projection and the prologue of two heads of q, then a projection that adds to a residual: C and C++ give the same bits.
TEST(CCalls, ProjectionsRun) {
  constexpr int64_t kTokens = 3, kHidden = 16, kHeads = 2, kHeadDim = 8;
  std::vector<float> hidden(kTokens * kHidden), norm_weight(kHidden), weight(kHeads * kHeadDim * kHidden),
      out_weight(weight.size());
  for (size_t i = 0; i < hidden.size(); ++i) hidden[i] = static_cast<float>(i * 7919 % 201) / 100.0f - 1.0f;
  for (size_t i = 0; i < norm_weight.size(); ++i) norm_weight[i] = 1.0f + static_cast<float>(i) / 16.0f;
  for (size_t i = 0; i < weight.size(); ++i) weight[i] = static_cast<float>(i * 104729 % 301) / 150.0f - 1.0f;
  for (size_t i = 0; i < weight.size(); ++i) out_weight[i] = static_cast<float>(i * 1299709 % 401) / 200.0f - 1.0f;
  std::vector<float> q(kTokens * kHeads * kHeadDim), cpp_q(q), y(hidden), cpp_y(hidden);

  const prologue_execution execution = on_cpu();
  prologue_gemm_context* context = nullptr;
  ASSERT_EQ(prologue_gemm_context_create(PROLOGUE_DEVICE_CPU, &context), PROLOGUE_STATUS_OK);
  auto cpp_context = prologue::GemmContext::create(prologue::Device::cpu);
  ASSERT_TRUE(cpp_context.ok());

  prologue_qkv_prologue_params p = initialised(prologue_qkv_prologue_params_init);
  p.hidden_size = p.hidden_stride = kHidden, p.hidden_states = hidden.data(), p.weight = weight.data();
  p.norm.given = 1, p.norm.weight = norm_weight.data();
  p.prologue.num_tokens = kTokens, p.prologue.num_q_heads = kHeads, p.prologue.num_kv_heads = 0, p.prologue.head_dim = kHeadDim;
  p.prologue.dtype = PROLOGUE_DTYPE_F32;
  p.prologue.q_out.data = q.data(), p.prologue.q_out.token_stride = kHeads * kHeadDim, p.prologue.q_out.head_stride = kHeadDim;
  ASSERT_EQ(prologue_qkv_prologue_workspace_bytes(&p, &p.workspace_bytes), PROLOGUE_STATUS_OK) << message();
  EXPECT_EQ(p.workspace_bytes, prologue::qkv_prologue_workspace_bytes(as_cpp<prologue::QkvPrologueParams>(p)));
  std::vector<prologue_fault_record> workspace(static_cast<size_t>(p.workspace_bytes) / sizeof(prologue_fault_record) +
                                               1);  // aligned to 16
  p.workspace = workspace.data();
  ASSERT_EQ(prologue_qkv_prologue_validate(&p, context, &execution), PROLOGUE_STATUS_OK) << message();
  ASSERT_EQ(prologue_qkv_prologue(&p, context, &execution), PROLOGUE_STATUS_OK) << message();
  auto cpp_p = as_cpp<prologue::QkvPrologueParams>(p);
  cpp_p.prologue.q_out.data = cpp_q.data();
  ASSERT_TRUE(prologue::qkv_prologue(cpp_p, **cpp_context, {}).ok());
  EXPECT_EQ(q, cpp_q);
  EXPECT_NE(q, std::vector<float>(q.size()));

  prologue_projection_params o = initialised(prologue_projection_params_init);
  o.num_tokens = kTokens, o.n = kHidden, o.k = kHeads * kHeadDim, o.dtype = PROLOGUE_DTYPE_F32;
  o.x = q.data(), o.x_stride = o.k, o.weight = out_weight.data();
  o.y = y.data(), o.y_stride = kHidden, o.adds = 1;
  ASSERT_EQ(prologue_projection_workspace_bytes(&o, &o.workspace_bytes), PROLOGUE_STATUS_OK) << message();
  EXPECT_EQ(o.workspace_bytes, prologue::projection_workspace_bytes(as_cpp<prologue::ProjectionParams>(o)));
  workspace.resize(static_cast<size_t>(o.workspace_bytes) / sizeof(prologue_fault_record) + 1);
  o.workspace = workspace.data();
  ASSERT_EQ(prologue_projection(&o, context, &execution), PROLOGUE_STATUS_OK) << message();
  auto cpp_o = as_cpp<prologue::ProjectionParams>(o);
  cpp_o.y = cpp_y.data();
  ASSERT_TRUE(prologue::projection(cpp_o, **cpp_context, {}).ok());
  EXPECT_EQ(y, cpp_y);
  EXPECT_NE(y, hidden);
  prologue_gemm_context_destroy(context);
}

// ---- plans

struct Rotation {
  Rotation() {
    prologue_rope_table_params table = initialised(prologue_rope_table_params_init);
    table.rotary_dim = 8;
    EXPECT_EQ(prologue_rope_cos_sin(&table, 16, cos_sin), PROLOGUE_STATUS_OK);
    params.seq_len = 4;
    params.head_dim = 8;
    params.dtype = PROLOGUE_DTYPE_F32;
    params.num_tensors = 1;
    params.tensors[0].x = x;
    params.tensors[0].y = y;
    params.tensors[0].num_heads = 2;
    params.tensors[0].x_strides = params.tensors[0].y_strides = prologue_batch_major_strides(4, 2, 8);
    params.rope.rotary_dim = 8;
    EXPECT_EQ(prologue_set_cos_sin_table(&params.rope, cos_sin, PROLOGUE_DTYPE_F32, 16), PROLOGUE_STATUS_OK);
    params.faults = &faults;
    for (int i = 0; i < 64; ++i) x[i] = static_cast<float>(i % 7) - 3.0f;
  }
  float cos_sin[16 * 8], x[64] = {}, y[64] = {};
  prologue_fault_record faults = {0, 0};
  prologue_rotary_params params = initialised(prologue_rotary_params_init);
  prologue_execution execution = on_cpu();
};

TEST(CCalls, APlanRunsAndIsDestroyed) {
  Rotation rotation;
  ASSERT_EQ(prologue_rotary(&rotation.params, &rotation.execution), PROLOGUE_STATUS_OK) << message();
  std::vector<float> want(rotation.y, rotation.y + 64);
  float by_cpp[64];
  auto cpp_params = as_cpp<prologue::RotaryParams>(rotation.params);
  cpp_params.tensors[0].y = by_cpp;
  ASSERT_TRUE(prologue::rotary(cpp_params, {}).ok());
  EXPECT_EQ(std::memcmp(by_cpp, rotation.y, sizeof by_cpp), 0);
  EXPECT_NE(std::memcmp(rotation.x, rotation.y, sizeof by_cpp), 0);

  prologue_rotary_plan* plan = nullptr;
  ASSERT_EQ(prologue_rotary_plan_create(&rotation.params, &rotation.execution, &plan), PROLOGUE_STATUS_OK) << message();
  ASSERT_NE(plan, nullptr);
  prologue_rotary_params params = *prologue_rotary_plan_params(plan);
  EXPECT_EQ(params.seq_len, 4);
  std::memset(rotation.y, 0, sizeof rotation.y);
  EXPECT_EQ(prologue_rotary_plan_run(plan, &params, &rotation.execution), PROLOGUE_STATUS_OK) << message();
  EXPECT_EQ(std::memcmp(want.data(), rotation.y, sizeof rotation.y), 0);
  params.head_dim = 16;
  EXPECT_EQ(prologue_rotary_plan_run(plan, &params, &rotation.execution), PROLOGUE_STATUS_INVALID_ARGUMENT);
  EXPECT_NE(message().find("head_dim"), std::string::npos) << message();
  EXPECT_EQ(prologue_rotary_plan_run(nullptr, &params, &rotation.execution), PROLOGUE_STATUS_INVALID_ARGUMENT);
  EXPECT_EQ(message(), "prologue_rotary_plan_run: plan is null");
  prologue_rotary_plan_destroy(plan);
}

TEST(CCalls, APlanOfThePrologueRunsAndSaysItsKernel) {
  std::vector<float> qkv(2 * 4 * 8, 1.0f), q(2 * 2 * 8);
  prologue_attention_prologue_params p = initialised(prologue_attention_prologue_params_init);
  p.num_tokens = 2, p.num_q_heads = 2, p.num_kv_heads = 0, p.head_dim = 8, p.dtype = PROLOGUE_DTYPE_F32;
  p.q.data = qkv.data(), p.q.token_stride = 32, p.q.head_stride = 8;
  p.q_out.data = q.data(), p.q_out.token_stride = 16, p.q_out.head_stride = 8;
  const prologue_execution execution = on_cpu();
  prologue_attention_prologue_plan* plan = nullptr;
  ASSERT_EQ(prologue_attention_prologue_plan_create(&p, 2, &execution, &plan), PROLOGUE_STATUS_OK) << message();
  EXPECT_STREQ(prologue_attention_prologue_plan_kernel(plan), "cpu");
  EXPECT_EQ(prologue_attention_prologue_plan_run(plan, &p, &execution), PROLOGUE_STATUS_OK) << message();
  EXPECT_EQ(q[15], 1.0f);
  p.num_tokens = 3;
  EXPECT_EQ(prologue_attention_prologue_plan_run(plan, &p, &execution), PROLOGUE_STATUS_INVALID_ARGUMENT);
  prologue_attention_prologue_plan_destroy(plan);

  auto* garbage = reinterpret_cast<prologue_attention_prologue_plan*>(uintptr_t{64});
  plan = garbage;
  p.head_dim = 7;
  EXPECT_NE(prologue_attention_prologue_plan_create(&p, 2, &execution, &plan), PROLOGUE_STATUS_OK);
  EXPECT_EQ(plan, nullptr);
  plan = garbage;
  p.rope.reserved[2] = 1;
  EXPECT_EQ(prologue_attention_prologue_plan_create(&p, 2, &execution, &plan), PROLOGUE_STATUS_INVALID_ARGUMENT);
  EXPECT_EQ(plan, nullptr);
  plan = garbage;
  EXPECT_EQ(prologue_attention_prologue_plan_create(nullptr, 2, &execution, &plan), PROLOGUE_STATUS_INVALID_ARGUMENT);
  EXPECT_EQ(plan, nullptr);
}

// Q, K and V were one pointer, and the call was ok.
TEST(CCalls, APackedBufferBeforeItsSizesIsAnError) {
  std::vector<float> qkv(2 * 4 * 8, 1.0f), out(2 * 4 * 8, -7.0f);
  const std::vector<float> untouched = out;
  prologue_attention_prologue_params p = initialised(prologue_attention_prologue_params_init);
  ASSERT_EQ(prologue_set_packed_qkv(&p, qkv.data(), 32), PROLOGUE_STATUS_OK);
  p.num_tokens = 2, p.num_q_heads = 2, p.num_kv_heads = 1, p.head_dim = 8, p.dtype = PROLOGUE_DTYPE_F32;
  p.q_out.data = out.data(), p.q_out.token_stride = 32, p.q_out.head_stride = 8;
  p.k_out.data = out.data() + 16, p.k_out.token_stride = 32, p.k_out.head_stride = 8;
  p.v_out.data = out.data() + 24, p.v_out.token_stride = 32, p.v_out.head_stride = 8;
  const prologue_execution execution = on_cpu();
  EXPECT_EQ(prologue_attention_prologue(&p, &execution), PROLOGUE_STATUS_INVALID_ARGUMENT);
  EXPECT_EQ(message(),
            "attention_prologue: the strides of q are not set: set_packed_qkv needs num_q_heads, num_kv_heads, head_dim and "
            "dtype first");
  EXPECT_EQ(out, untouched);
  ASSERT_EQ(prologue_set_packed_qkv(&p, qkv.data(), 32), PROLOGUE_STATUS_OK);
  EXPECT_EQ(prologue_attention_prologue(&p, &execution), PROLOGUE_STATUS_OK) << message();
  EXPECT_EQ(out, qkv);
}

// A buffer of q and k alone, with V taken from K and a norm of V (Gemma 4); and K and V times constants.
TEST(CCalls, VIsTakenFromKOfAPackedBuffer) {
  std::vector<float> qk, q(2 * 16), k(2 * 8), v(2 * 8);
  for (int i = 0; i < 2 * 24; ++i) qk.push_back(static_cast<float>(i % 7 + 1));
  prologue_attention_prologue_params p = initialised(prologue_attention_prologue_params_init);
  EXPECT_EQ(p.k_constant, 1.0f);
  EXPECT_EQ(p.v_constant, 1.0f);
  p.num_tokens = 2, p.num_q_heads = 2, p.num_kv_heads = 1, p.head_dim = 8, p.dtype = PROLOGUE_DTYPE_F32;
  ASSERT_EQ(prologue_set_packed_qkv(&p, qk.data(), 24), PROLOGUE_STATUS_OK);
  p.v = p.k;
  p.v_norm.placement = PROLOGUE_NORM_PLACEMENT_BEFORE_ROPE;
  p.k_constant = 2.0f, p.v_constant = 0.5f;
  p.q_out.data = q.data(), p.q_out.token_stride = 16, p.q_out.head_stride = 8;
  p.k_out.data = k.data(), p.k_out.token_stride = 8, p.k_out.head_stride = 8;
  p.v_out.data = v.data(), p.v_out.token_stride = 8, p.v_out.head_stride = 8;
  const prologue_execution execution = on_cpu();
  ASSERT_EQ(prologue_attention_prologue(&p, &execution), PROLOGUE_STATUS_OK) << message();
  for (size_t t = 0; t < 2; ++t) {
    double squares = 0.0;
    for (size_t i = 0; i < 8; ++i) squares += double{qk[24 * t + 16 + i]} * double{qk[24 * t + 16 + i]};
    for (size_t i = 0; i < 8; ++i) {
      const float in = qk[24 * t + 16 + i];
      EXPECT_EQ(q[16 * t + i], qk[24 * t + i]);
      EXPECT_EQ(k[8 * t + i], 2.0f * in);
      EXPECT_NEAR(double{v[8 * t + i]}, 0.5 * double{in} / std::sqrt(squares / 8 + 1e-6), 1e-6);
    }
  }
  p.v_constant = 0.0f;
  EXPECT_EQ(prologue_attention_prologue(&p, &execution), PROLOGUE_STATUS_INVALID_ARGUMENT);
  EXPECT_EQ(message(), "attention_prologue: v_constant is 0: it must be finite and not 0");
}

// Rows [q | gate] of each head: Q, and the sigmoid of the gate as a group of heads of the same call.
TEST(CCalls, AGateIsAGroupOfHeads) {
  std::vector<float> rows, q(2 * 16), gate(2 * 16);
  for (int i = 0; i < 2 * 32; ++i) rows.push_back(static_cast<float>(i % 7 - 3));
  prologue_attention_prologue_params p = initialised(prologue_attention_prologue_params_init);
  prologue_head_group group = initialised(prologue_head_group_init);
  EXPECT_EQ(group.constant, 1.0f);
  p.num_tokens = 2, p.num_q_heads = 2, p.head_dim = 8, p.dtype = PROLOGUE_DTYPE_F32;
  p.q.data = rows.data(), p.q.token_stride = 32, p.q.head_stride = 16;
  p.q_out.data = q.data(), p.q_out.token_stride = 16, p.q_out.head_stride = 8;
  group.num_heads = 2, group.head_dim = 8;
  group.in.data = rows.data() + 8, group.in.token_stride = 32, group.in.head_stride = 16;
  group.activation = PROLOGUE_HEAD_ACTIVATION_SIGMOID;
  group.out.data = gate.data(), group.out.token_stride = 16, group.out.head_stride = 8;
  p.groups = &group, p.num_groups = 1;
  const prologue_execution execution = on_cpu();
  ASSERT_EQ(prologue_attention_prologue(&p, &execution), PROLOGUE_STATUS_OK) << message();
  for (size_t head = 0; head < 4; ++head) {
    for (size_t i = 0; i < 8; ++i) {
      EXPECT_EQ(q[8 * head + i], rows[16 * head + i]);
      EXPECT_NEAR(double{gate[8 * head + i]}, 1.0 / (1.0 + std::exp(-double{rows[16 * head + 8 + i]})), 1e-6);
    }
  }
  group.reserved[2] = 1;
  EXPECT_EQ(prologue_attention_prologue(&p, &execution), PROLOGUE_STATUS_INVALID_ARGUMENT);
  EXPECT_EQ(message().find("prologue_attention_prologue: params->groups[0]->reserved must be zeros"), 0u) << message();
  group.reserved[2] = 0;
  p.num_groups = 5;
  EXPECT_EQ(prologue_attention_prologue(&p, &execution), PROLOGUE_STATUS_INVALID_ARGUMENT);
  EXPECT_EQ(message(), "attention_prologue: num_groups is 5: it must lie in 0..4");
}

TEST(CCalls, NullIsDestroyedAndAsked) {
  prologue_rotary_plan_destroy(nullptr);
  prologue_attention_prologue_plan_destroy(nullptr);
  prologue_gemm_context_destroy(nullptr);
  EXPECT_EQ(prologue_rotary_plan_params(nullptr), nullptr);
  EXPECT_EQ(prologue_attention_prologue_plan_kernel(nullptr), nullptr);
  EXPECT_EQ(prologue_gemm_context_create(PROLOGUE_DEVICE_CPU, nullptr), PROLOGUE_STATUS_INVALID_ARGUMENT);
  prologue_gemm_context* context = nullptr;
  EXPECT_EQ(prologue_gemm_context_create(99, &context), PROLOGUE_STATUS_INVALID_ARGUMENT);  // also where there is a GPU
  EXPECT_NE(message().find("gemm context: device"), std::string::npos) << message();
  EXPECT_EQ(context, nullptr);
}

// ---- errors

TEST(CErrors, BelongToTheirThread) {
  EXPECT_EQ(prologue_rotary_validate(nullptr), PROLOGUE_STATUS_INVALID_ARGUMENT);
  const char* here = prologue_last_error_message();
  std::string first, second;
  std::thread other([&] {
    first = message();
    EXPECT_EQ(prologue_norm(nullptr, nullptr), PROLOGUE_STATUS_INVALID_ARGUMENT);
    second = message();
  });
  other.join();
  EXPECT_EQ(first, "");
  EXPECT_EQ(second, "prologue_norm: params is null");
  EXPECT_STREQ(here, "prologue_rotary_validate: params is null");
  prologue_fault fault;
  const prologue_fault_record record = {0, 0};
  EXPECT_EQ(prologue_decode_fault(&record, &fault), PROLOGUE_STATUS_OK);
  EXPECT_EQ(prologue_last_error_message(), here);  // a success changes nothing
}

TEST(CErrors, FaultsAreThoseOfCpp) {
  Rotation rotation;
  const int32_t positions[4] = {0, 99, 2, 3};
  rotation.params.positions.ids.data = positions;
  rotation.params.positions.ids.type = PROLOGUE_DTYPE_INT32;
  ASSERT_EQ(prologue_rotary(&rotation.params, &rotation.execution), PROLOGUE_STATUS_OK) << message();
  prologue_fault fault;
  ASSERT_EQ(prologue_decode_fault(&rotation.faults, &fault), PROLOGUE_STATUS_OK);
  EXPECT_EQ(fault.code, PROLOGUE_FAULT_CODE_POSITION_OUT_OF_RANGE);
  EXPECT_EQ(fault.token, 1);
  EXPECT_EQ(fault.count, 1u);
  EXPECT_STREQ(prologue_fault_code_name(fault.code), prologue::fault_code_name(prologue::FaultCode::position_out_of_range));
}

// ---- versions and names

TEST(CVersion, IsComparedByTheRules) {
  EXPECT_EQ(prologue_version(), PROLOGUE_VERSION);
  EXPECT_EQ(PROLOGUE_VERSION, 10000 * PROLOGUE_VERSION_MAJOR + 100 * PROLOGUE_VERSION_MINOR + PROLOGUE_VERSION_PATCH);
  EXPECT_EQ(prologue_check_version(PROLOGUE_VERSION), PROLOGUE_STATUS_OK);
  EXPECT_EQ(prologue_check_version(PROLOGUE_VERSION + 1), PROLOGUE_STATUS_OK);  // another patch version
  EXPECT_EQ(prologue_check_version(PROLOGUE_VERSION + 100), PROLOGUE_STATUS_UNSUPPORTED);
  EXPECT_NE(message().find("the header is of version"), std::string::npos) << message();
  EXPECT_EQ(prologue_check_version(PROLOGUE_VERSION + 10000), PROLOGUE_STATUS_UNSUPPORTED);
  EXPECT_EQ(prologue_check_version(-1), PROLOGUE_STATUS_UNSUPPORTED);
}

TEST(CVersion, NamesAreThoseOfCpp) {
  EXPECT_STREQ(prologue_status_name(PROLOGUE_STATUS_DATA_LOSS), prologue::status_code_name(prologue::StatusCode::data_loss));
  EXPECT_STREQ(prologue_dtype_name(PROLOGUE_DTYPE_FP8_E4M3), "fp8_e4m3");
  EXPECT_STREQ(prologue_dtype_name(-5), prologue::dtype_name(static_cast<prologue::DType>(-5)));
  EXPECT_EQ(prologue_dtype_bits(PROLOGUE_DTYPE_INT4), 4);
  EXPECT_EQ(prologue_packed_weight_bytes(PROLOGUE_WEIGHT_FORMAT_Q4_1, 17, 64), 32 * 2 * 20);
  EXPECT_EQ(prologue_built_with_cuda(), prologue::built_with_cuda());
  const prologue::Status gpu = prologue::check_gpu();
  expect_answer(prologue_check_gpu(), gpu);
}

// ---- rope tables

void expect_table(const prologue_rope_table_params& params, const prologue::RopeScaling& scaling, int64_t length = 0) {
  prologue::RopeConfig config;
  config.rotary_dim = params.rotary_dim;
  config.theta = params.theta;
  config.scaling = scaling;
  if (params.freq_factors != nullptr)
    config.freq_factors.assign(params.freq_factors, params.freq_factors + params.rotary_dim / 2);
  const auto precision = static_cast<prologue::RopePrecision>(params.precision);
  const auto want = prologue::rope_frequencies(config, length, precision);
  std::vector<double> inv_freq(static_cast<size_t>(params.rotary_dim / 2));
  double factor = 0.0;
  expect_answer(prologue_rope_frequencies(&params, inv_freq.data(), &factor), want.status());
  if (!want.ok()) return;
  EXPECT_EQ(inv_freq, want->inv_freq);
  EXPECT_EQ(factor, want->attention_factor);
  std::vector<float> cos_sin(static_cast<size_t>(20 * params.rotary_dim));
  EXPECT_EQ(prologue_rope_cos_sin(&params, 20, cos_sin.data()), PROLOGUE_STATUS_OK) << message();
  EXPECT_EQ(cos_sin, *prologue::rope_cos_sin(*want, 20, precision));
}

TEST(CRope, TablesAreThoseOfCpp) {
  prologue_rope_table_params p = initialised(prologue_rope_table_params_init);
  p.rotary_dim = 8;
  p.theta = 5e5;
  p.precision = PROLOGUE_ROPE_PRECISION_EXACT;
  expect_table(p, prologue::DefaultRope{});
  p.precision = PROLOGUE_ROPE_PRECISION_REFERENCE;
  expect_table(p, prologue::DefaultRope{});
  p.factor = 4.0;
  p.scaling = PROLOGUE_ROPE_SCALING_KIND_LINEAR;
  expect_table(p, prologue::LinearRope{4.0});
  p.original_max_position = 64;
  p.sequence_length = 128;
  p.scaling = PROLOGUE_ROPE_SCALING_KIND_DYNAMIC_NTK;
  expect_table(p, prologue::DynamicNtkRope{4.0, 64}, 128);
  p.scaling = PROLOGUE_ROPE_SCALING_KIND_YARN;
  prologue::YarnRope yarn = {4.0, 64};
  expect_table(p, yarn, 128);
  p.beta_fast = yarn.beta_fast = 16.0, p.beta_slow = yarn.beta_slow = 2.0, p.truncate = 0, yarn.truncate = false;
  p.mscale = yarn.mscale = 0.7, p.mscale_all_dim = yarn.mscale_all_dim = 0.9;
  expect_table(p, yarn, 128);
  p.attention_factor = 1.25, yarn.attention_factor = 1.25;
  expect_table(p, yarn, 128);
  // There are enough pairs that the ends of the blend lie between two.
  prologue_rope_table_params wide = initialised(prologue_rope_table_params_init);
  wide.rotary_dim = 64, wide.factor = 4.0, wide.original_max_position = 4096, wide.scaling = PROLOGUE_ROPE_SCALING_KIND_YARN;
  prologue::YarnRope wide_yarn = {4.0, 4096};
  expect_table(wide, wide_yarn);
  wide.truncate = 0, wide_yarn.truncate = false;
  expect_table(wide, wide_yarn);
  const double short_factors[4] = {1, 1.1, 1.2, 1.3}, long_factors[4] = {2, 3, 4, 5};
  p.scaling = PROLOGUE_ROPE_SCALING_KIND_LONG_ROPE;
  p.short_factors = short_factors, p.long_factors = long_factors;
  prologue::LongRope long_rope = {{1, 1.1, 1.2, 1.3}, {2, 3, 4, 5}, 64, 4.0};
  expect_table(p, long_rope, 128);
  p.long_attention_factor = 1.5, long_rope.long_attention_factor = 1.5;
  expect_table(p, long_rope, 128);
  p.short_factors = nullptr;
  long_rope.short_factors.clear();
  expect_table(p, long_rope, 128);  // an error, the same
  p.scaling = PROLOGUE_ROPE_SCALING_KIND_LLAMA3;
  p.low_freq_factor = 2.0;
  expect_table(p, prologue::Llama3Rope{4.0, 2.0, 4.0, 64});
  p.scaling = PROLOGUE_ROPE_SCALING_KIND_PROPORTIONAL;
  p.partial_rotary_factor = 0.5;
  expect_table(p, prologue::ProportionalRope{0.5, 4.0});
  p.scaling = PROLOGUE_ROPE_SCALING_KIND_VERBATIM;
  p.inv_freq = long_factors;
  expect_table(p, prologue::VerbatimRope{{2, 3, 4, 5}, 1.25});
  const float freq_factors[4] = {1, 2, 3, 4};
  p.freq_factors = freq_factors;
  expect_table(p, prologue::VerbatimRope{{2, 3, 4, 5}, 1.25});
}

TEST(CRope, BadTablesAreErrors) {
  prologue_rope_table_params p = initialised(prologue_rope_table_params_init);
  double inv_freq[4], factor;
  for (const int64_t rotary_dim : {INT64_C(0), INT64_C(-2), INT64_C(7)}) {
    p.rotary_dim = rotary_dim;
    EXPECT_EQ(prologue_rope_frequencies(&p, inv_freq, &factor), PROLOGUE_STATUS_INVALID_ARGUMENT) << rotary_dim;
  }
  p.rotary_dim = 8;
  EXPECT_EQ(prologue_rope_frequencies(&p, nullptr, &factor), PROLOGUE_STATUS_INVALID_ARGUMENT);
  EXPECT_EQ(message(), "rope_frequencies: inv_freq is null");
  EXPECT_EQ(prologue_rope_frequencies(&p, inv_freq, nullptr), PROLOGUE_STATUS_INVALID_ARGUMENT);
  EXPECT_EQ(prologue_rope_cos_sin(&p, 4, nullptr), PROLOGUE_STATUS_INVALID_ARGUMENT);
  p.scaling = 99;
  EXPECT_EQ(prologue_rope_frequencies(&p, inv_freq, &factor), PROLOGUE_STATUS_INVALID_ARGUMENT);
  EXPECT_NE(message().find("scaling is 99"), std::string::npos) << message();
  p.scaling = 0, p.precision = 99;
  EXPECT_EQ(prologue_rope_frequencies(&p, inv_freq, &factor), PROLOGUE_STATUS_INVALID_ARGUMENT);
  EXPECT_NE(message().find("precision is 99"), std::string::npos) << message();
}

}  // namespace
