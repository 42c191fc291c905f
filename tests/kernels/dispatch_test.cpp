// Tests which backend a validated call runs in, and what a build without CUDA says.
#include <gtest/gtest.h>

#include <prologue/kernels/attention_prologue/backends.h>
#include <prologue/kernels/base/host/dispatch.h>
#include <prologue/kernels/gemm/backends.h>
#include <prologue/kernels/moe/backends.h>
#include <prologue/kernels/paged_attention/backends.h>
#include <prologue/kernels/rotary/backends.h>
#include <prologue/kernels/token_ops/backends.h>

namespace {

using namespace prologue;

const Execution kCuda{Device::cuda, 1, nullptr};

Status on_cpu(const int& value, const Execution& execution) { return not_found("cpu ", value, " ", execution.num_threads); }
Status on_cuda(const int& value, const Execution&) { return not_found("cuda ", value); }

TEST(Dispatch, TakesTheBackendOfTheDevice) {
  const int value = 7;
  EXPECT_EQ(dispatch(Execution{Device::cpu, 3, nullptr}, on_cpu, on_cuda, value).message(), "cpu 7 3");
  EXPECT_EQ(dispatch(kCuda, on_cpu, on_cuda, value).message(), "cuda 7");
}

// The call has one token (or row), and its pointers are null: a build without CUDA must not look at them.
template <class Params>
Params one_token() {
  Params p;
  p.num_tokens = 1;
  return p;
}
template <>
SamplingParams one_token() {
  SamplingParams p;
  p.num_rows = 1;
  return p;
}
template <>
LogprobsParams one_token() {
  LogprobsParams p;
  p.num_rows = 1;
  return p;
}
template <>
ScaleLogitsParams one_token() {
  ScaleLogitsParams p;
  p.num_rows = 1;
  return p;
}
template <>
RotaryParams one_token() {
  RotaryParams p;
  p.batch = 1;
  p.seq_len = 1;
  return p;
}
template <>
PagedAttentionParams one_token() {
  PagedAttentionParams p;
  p.num_tokens = 1;
  p.num_seqs = 1;
  return p;
}

template <class Params>
void expect_not_built(const char* operation) {
  const Status status = run_validated(one_token<Params>(), kCuda);
  EXPECT_EQ(status.code(), StatusCode::unsupported) << operation;
  EXPECT_EQ(status.message(), str_cat(operation, ": device is cuda, but this library was built without CUDA"));
}

TEST(Dispatch, EveryOperationSaysThatCudaIsNotBuilt) {
  if (built_with_cuda()) GTEST_SKIP() << "built with CUDA";
  expect_not_built<AttentionPrologueParams>("attention_prologue");
  expect_not_built<AddBiasParams>("add_bias");
  expect_not_built<QkNormParams>("qk_norm");
  expect_not_built<HadamardParams>("hadamard");
  expect_not_built<QueryScaleParams>("query_scale");
  expect_not_built<KvWriteParams>("kv_write");
  expect_not_built<RotaryParams>("rotary");
  expect_not_built<PagedAttentionParams>("paged_attention");
  expect_not_built<ActivationParams>("activation");
  expect_not_built<AddParams>("add");
  expect_not_built<GateParams>("gate");
  expect_not_built<EmbeddingParams>("embedding");
  expect_not_built<EndStepParams>("end_step");
  expect_not_built<GatherCosSinParams>("gather_cos_sin");
  expect_not_built<LogprobsParams>("logprobs");
  expect_not_built<MoeCombineParams>("moe_combine");
  expect_not_built<MoeRouteParams>("moe_route");
  expect_not_built<NormParams>("norm");
  expect_not_built<SamplingParams>("sample");
  expect_not_built<ScaleLogitsParams>("scale_logits");
  expect_not_built<TakeTokensParams>("take_tokens");
}

template <class Params>
void expect_nothing_to_do() {
  EXPECT_TRUE(run_validated(Params(), kCuda).ok());
  EXPECT_TRUE(run_validated(Params(), Execution()).ok());
}

TEST(Dispatch, AnEmptyCallReachesNoBackend) {
  expect_nothing_to_do<AttentionPrologueParams>();
  expect_nothing_to_do<AddBiasParams>();
  expect_nothing_to_do<QkNormParams>();
  expect_nothing_to_do<HadamardParams>();
  expect_nothing_to_do<QueryScaleParams>();
  expect_nothing_to_do<KvWriteParams>();
  expect_nothing_to_do<PagedAttentionParams>();
  expect_nothing_to_do<ActivationParams>();
  expect_nothing_to_do<AddParams>();
  expect_nothing_to_do<GateParams>();
  expect_nothing_to_do<EmbeddingParams>();
  expect_nothing_to_do<EndStepParams>();
  expect_nothing_to_do<GatherCosSinParams>();
  expect_nothing_to_do<LogprobsParams>();
  expect_nothing_to_do<MoeCombineParams>();
  expect_nothing_to_do<MoeRouteParams>();
  expect_nothing_to_do<NormParams>();
  expect_nothing_to_do<SamplingParams>();
  expect_nothing_to_do<ScaleLogitsParams>();
  expect_nothing_to_do<TakeTokensParams>();
  RotaryParams rotary;
  rotary.seq_len = 0;
  EXPECT_TRUE(run_validated(rotary, kCuda).ok());
}

TEST(Dispatch, AValidatedCallRunsAsTheOperationDoes) {
  const float x[] = {1.0f, 2.0f}, bias[] = {0.5f, -4.0f};
  float first[2] = {}, second[2] = {};
  AddBiasParams p;
  p.num_tokens = 1;
  p.width = 2;
  p.dtype = DType::f32;
  p.x = x;
  p.x_stride = 2;
  p.bias = bias;
  p.y = first;
  p.y_stride = 2;
  ASSERT_TRUE(add_bias(p, Execution()).ok());
  p.y = second;
  ASSERT_TRUE(validate(p, Execution()).ok());
  ASSERT_TRUE(run_validated(p, Execution()).ok());
  EXPECT_EQ(second[0], first[0]);
  EXPECT_EQ(second[1], first[1]);
}

}  // namespace
