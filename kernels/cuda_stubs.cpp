// The CUDA backends of a build without CUDA. Only such a build compiles this file: it is in place of every .cu and _cuda.cpp file.
#include <prologue/kernels/attention_prologue/backends.h>
#include <prologue/kernels/base/host/backends.h>
#include <prologue/kernels/collective/backends.h>
#include <prologue/kernels/gemm/backends.h>
#include <prologue/kernels/mla_prologue/backends.h>
#include <prologue/kernels/moe/backends.h>
#include <prologue/kernels/paged_attention/backends.h>
#include <prologue/kernels/projection/backends.h>
#include <prologue/kernels/qkv_prologue/backends.h>
#include <prologue/kernels/rerope/backends.h>
#include <prologue/kernels/rotary/backends.h>
#include <prologue/kernels/token_ops/backends.h>

namespace prologue {

bool built_with_cuda() { return false; }

namespace cuda {

Status check_gpu() { return unsupported("device is cuda, but this build has no CUDA kernels (it was configured without nvcc)"); }
Result<std::string> gpu_name() { return check_gpu(); }
Result<int32_t> num_gpus() { return check_gpu(); }
Status use_gpu(int32_t) { return check_gpu(); }
Result<CUstream_st*> create_stream() { return check_gpu(); }
void destroy_stream(CUstream_st*) {}

Status record_event(CUevent_st*&, CUstream_st*) { return cuda_not_built("event"); }
Result<double> seconds_between(CUevent_st*, CUevent_st*) { return cuda_not_built("event"); }
void destroy_event(CUevent_st*) {}

Result<CUgraphExec_st*> capture_graph(CUstream_st*, const std::function<Status()>&) { return cuda_not_built("captured graph"); }
Status launch_graph(CUgraphExec_st*, CUstream_st*) { return cuda_not_built("captured graph"); }
void destroy_graph(CUgraphExec_st*) {}

Result<void*> allocate(int64_t) { return cuda_not_built("memory"); }
void release(void*) {}
Result<int64_t> available_bytes() { return cuda_not_built("memory"); }
Status copy(void*, const void*, int64_t, CUstream_st*, bool) { return cuda_not_built("memory"); }
Status copy_strided(void*, const void*, int64_t, int64_t, int64_t, CUstream_st*) { return cuda_not_built("memory"); }
Status fill_zero(void*, int64_t, CUstream_st*) { return cuda_not_built("memory"); }
Status synchronize(CUstream_st*) { return cuda_not_built("memory"); }
Result<void*> allocate_pinned(int64_t) { return cuda_not_built("memory"); }
void release_pinned(void*) {}
Result<CUevent_st*> create_copy_event() { return cuda_not_built("memory"); }
Status copy_from_pinned(void*, const void*, int64_t, CUstream_st*, CUevent_st*) { return cuda_not_built("memory"); }
Status copy_to_pinned(void*, const void*, int64_t, CUstream_st*, CUevent_st*) { return cuda_not_built("memory"); }
Status wait_for_copy(CUevent_st*) { return cuda_not_built("memory"); }
Result<bool> copy_is_done(CUevent_st*) { return cuda_not_built("memory"); }

Status attention_prologue(const AttentionPrologueParams&, const Execution&) { return cuda_not_built("attention_prologue"); }
Result<const void*> plan_attention_prologue(const AttentionPrologueParams&) { return cuda_not_built("attention_prologue"); }
const char* kernel_of_plan(const void*) { return "none"; }
Status run_plan(const void*, const AttentionPrologueParams&, const Execution&) { return cuda_not_built("attention_prologue"); }
Status add_bias(const AddBiasParams&, const Execution&) { return cuda_not_built("add_bias"); }
Status qk_norm(const QkNormParams&, const Execution&) { return cuda_not_built("qk_norm"); }
Status hadamard(const HadamardParams&, const Execution&) { return cuda_not_built("hadamard"); }
Status query_scale(const QueryScaleParams&, const Execution&) { return cuda_not_built("query_scale"); }
Status kv_write(const KvWriteParams&, const Execution&) { return cuda_not_built("kv_write"); }

Result<Communicators> create_communicators(int64_t, const CommunicatorOptions&) { return cuda_not_built("communicator"); }
Status all_reduce(const AllReduceParams&, Communicator&, const Execution&) { return cuda_not_built("all_reduce"); }
Status all_gather(const AllGatherParams&, Communicator&, const Execution&) { return cuda_not_built("all_gather"); }
int64_t all_gather_workspace_bytes(const AllGatherParams&, const Communicator&) { return 0; }

Result<std::unique_ptr<GemmContext>> create_gemm_context(bool) { return cuda_not_built("gemm"); }
Status check_float8_gemm() { return cuda_not_built("gemm"); }
Status gemm(const GemmParams&, GemmContext&, const Execution&) { return cuda_not_built("gemm"); }

Status mla_prologue(const MlaPrologueParams&, const Execution&) { return cuda_not_built("mla_prologue"); }

Status moe_combine(const MoeCombineParams&, const Execution&) { return cuda_not_built("moe_combine"); }
Status moe_gemm(const MoeGemmParams&, GemmContext&, const Execution&) { return cuda_not_built("moe_gemm"); }
int64_t moe_gemm_workspace_bytes(const MoeGemmParams&) { return 0; }
Status moe_route(const MoeRouteParams&, const Execution&) { return cuda_not_built("moe_route"); }

Status paged_attention(const PagedAttentionParams&, const Execution&) { return cuda_not_built("paged_attention"); }
int64_t paged_attention_workspace_bytes(const PagedAttentionParams&) { return 0; }

int64_t most_tokens_of_one_projection() { return 0; }
int64_t tokens_of_packed_launch(const ProjectionParams&) { return 0; }
std::optional<Launch> choose(const ProjectionParams&) { return {}; }
Status launch(const Launch&, const Execution&) { return cuda_not_built("projection"); }
bool has_qkv_gemm() { return false; }
std::optional<Launch> choose(const QkvPrologueParams&, const QkvPrologueParams&) { return {}; }

Status rerope(const ReropeParams&, const RotaryFrequencies&, const Execution&) { return cuda_not_built("rerope"); }

Status rotary(const RotaryParams&, const RotaryFrequencies&, const Execution&) { return cuda_not_built("rotary"); }

Status activation(const ActivationParams&, const Execution&) { return cuda_not_built("activation"); }
Status add(const AddParams&, const Execution&) { return cuda_not_built("add"); }
Status gate(const GateParams&, const Execution&) { return cuda_not_built("gate"); }
Status embedding(const EmbeddingParams&, const Execution&) { return cuda_not_built("embedding"); }
Status end_step(const EndStepParams&, const Execution&) { return cuda_not_built("end_step"); }
Status gather_cos_sin(const GatherCosSinParams&, const Execution&) { return cuda_not_built("gather_cos_sin"); }
Status logprobs(const LogprobsParams&, const Execution&) { return cuda_not_built("logprobs"); }
Status norm(const NormParams&, const Execution&) { return cuda_not_built("norm"); }
Status sample(const SamplingParams&, const Execution&) { return cuda_not_built("sample"); }
Status scale_logits(const ScaleLogitsParams&, const Execution&) { return cuda_not_built("scale_logits"); }
Status take_tokens(const TakeTokensParams&, const Execution&) { return cuda_not_built("take_tokens"); }

}  // namespace cuda

}  // namespace prologue
