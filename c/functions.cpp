// This file has the functions of prologue.h. It is written by c/generate.py; do not change it by hand.
// clang-format off
#include <prologue/c/boundary.h>

#include <prologue/kernels/base/status.h>
#include <prologue/kernels/base/dtype.h>
#include <prologue/kernels/base/execution.h>
#include <prologue/kernels/base/gpu.h>
#include <prologue/kernels/base/faults.h>
#include <prologue/kernels/base/views.h>
#include <prologue/kernels/base/norm_kind.h>
#include <prologue/kernels/base/rope.h>
#include <prologue/kernels/base/weight_format.h>
#include <prologue/layers/rope/rope_scaling.h>
#include <prologue/c/rope_table.h>
#include <prologue/kernels/rotary/rotary.h>
#include <prologue/kernels/rerope/rerope.h>
#include <prologue/kernels/attention_prologue/attention_prologue.h>
#include <prologue/kernels/attention_prologue/stages/stages.h>
#include <prologue/kernels/mla_prologue/mla_prologue.h>
#include <prologue/kernels/paged_attention/paged_attention.h>
#include <prologue/kernels/gemm/gemm.h>
#include <prologue/kernels/token_ops/norm.h>
#include <prologue/kernels/token_ops/activation.h>
#include <prologue/kernels/token_ops/add.h>
#include <prologue/kernels/projection/projection.h>
#include <prologue/kernels/qkv_prologue/qkv_prologue.h>
#include <prologue/kernels/collective/communicator.h>
#include <prologue/layers/attention_layer.h>
#include <prologue/kernels/moe/moe_route.h>
#include <prologue/kernels/moe/moe_gemm.h>
#include <prologue/kernels/moe/moe_combine.h>
#include <prologue/kernels/token_ops/embedding.h>
#include <prologue/kernels/token_ops/gate.h>
#include <prologue/kernels/token_ops/gather_cos_sin.h>
#include <prologue/kernels/token_ops/scale_logits.h>
#include <prologue/kernels/token_ops/sampling.h>
#include <prologue/kernels/token_ops/logprobs.h>
#include <prologue/kernels/token_ops/end_step.h>
#include <prologue/kernels/token_ops/take_tokens.h>
#include <prologue/c/communicators.h>
#include <prologue/kernels/collective/all_reduce.h>
#include <prologue/kernels/collective/all_gather.h>

// A struct of C is used as that of C++, so both must have the same layout.
#define PROLOGUE_STRUCT(c, cpp) \
  static_assert(sizeof(c) == sizeof(cpp) && alignof(c) == alignof(cpp), #c);
#define PROLOGUE_MEMBER(c, cpp, member) \
  static_assert(offsetof(c, member) == offsetof(cpp, member) && sizeof(c::member) == sizeof(cpp::member), #c "." #member);
#define PROLOGUE_VALUE(c, cpp) static_assert((c) == static_cast<int64_t>(cpp), #c);
#include "layout.inc"
#undef PROLOGUE_STRUCT
#undef PROLOGUE_MEMBER
#undef PROLOGUE_VALUE

namespace {

using namespace prologue::c;
using prologue::Status;

PROLOGUE_SAME(prologue_execution, prologue::Execution)
PROLOGUE_SAME(prologue_fault_record, prologue::FaultRecord)
PROLOGUE_SAME(prologue_fault, prologue::Fault)
PROLOGUE_SAME(prologue_heads_view, prologue::HeadsView)
PROLOGUE_SAME(prologue_mutable_heads_view, prologue::MutableHeadsView)
PROLOGUE_SAME(prologue_index_view, prologue::IndexView)
PROLOGUE_SAME(prologue_page_strides, prologue::PageStrides)
PROLOGUE_SAME(prologue_kv_format, prologue::KvFormat)
PROLOGUE_SAME(prologue_paged_heads, prologue::PagedHeads)
PROLOGUE_SAME(prologue_paged_kv_view, prologue::PagedKvView)
PROLOGUE_SAME(prologue_page_table, prologue::PageTable)
PROLOGUE_SAME(prologue_rope_columns, prologue::RopeColumns)
PROLOGUE_SAME(prologue_rope, prologue::Rope)
PROLOGUE_SAME(prologue_packed_rows, prologue::PackedRows)
PROLOGUE_SAME(prologue_packed_weight, prologue::PackedWeight)
PROLOGUE_SAME(prologue_pack_weight_params, prologue::PackWeightParams)
PROLOGUE_SAME(prologue_rope_table_params, prologue::c::RopeTableParams)
PROLOGUE_SAME(prologue_rotary_strides, prologue::RotaryStrides)
PROLOGUE_SAME(prologue_rotary_tensor, prologue::RotaryTensor)
PROLOGUE_SAME(prologue_rotary_positions, prologue::RotaryPositions)
PROLOGUE_SAME(prologue_rotary_params, prologue::RotaryParams)
PROLOGUE_SAME(prologue_rerope_params, prologue::ReropeParams)
PROLOGUE_SAME(prologue_qkv_bias, prologue::QkvBias)
PROLOGUE_SAME(prologue_head_norm, prologue::HeadNorm)
PROLOGUE_SAME(prologue_token_places, prologue::TokenPlaces)
PROLOGUE_SAME(prologue_q_scale, prologue::QueryScale)
PROLOGUE_SAME(prologue_quantized_query, prologue::QuantizedQuery)
PROLOGUE_SAME(prologue_head_group, prologue::HeadGroup)
PROLOGUE_SAME(prologue_attention_prologue_params, prologue::AttentionPrologueParams)
PROLOGUE_SAME(prologue_add_bias_params, prologue::AddBiasParams)
PROLOGUE_SAME(prologue_qk_norm_params, prologue::QkNormParams)
PROLOGUE_SAME(prologue_hadamard_params, prologue::HadamardParams)
PROLOGUE_SAME(prologue_query_scale_params, prologue::QueryScaleParams)
PROLOGUE_SAME(prologue_kv_write_params, prologue::KvWriteParams)
PROLOGUE_SAME(prologue_mla_cache_part, prologue::MlaCachePart)
PROLOGUE_SAME(prologue_mla_cache, prologue::MlaCache)
PROLOGUE_SAME(prologue_mla_prologue_params, prologue::MlaPrologueParams)
PROLOGUE_SAME(prologue_paged_attention_params, prologue::PagedAttentionParams)
PROLOGUE_SAME(prologue_gemm_params, prologue::GemmParams)
PROLOGUE_SAME(prologue_norm_params, prologue::NormParams)
PROLOGUE_SAME(prologue_activation_params, prologue::ActivationParams)
PROLOGUE_SAME(prologue_add_params, prologue::AddParams)
PROLOGUE_SAME(prologue_input_norm, prologue::InputNorm)
PROLOGUE_SAME(prologue_output_activation, prologue::OutputActivation)
PROLOGUE_SAME(prologue_projection_params, prologue::ProjectionParams)
PROLOGUE_SAME(prologue_qkv_prologue_params, prologue::QkvPrologueParams)
PROLOGUE_SAME(prologue_attention_layer_params, prologue::AttentionLayerParams)
PROLOGUE_SAME(prologue_moe_route_params, prologue::MoeRouteParams)
PROLOGUE_SAME(prologue_moe_gemm_params, prologue::MoeGemmParams)
PROLOGUE_SAME(prologue_moe_combine_params, prologue::MoeCombineParams)
PROLOGUE_SAME(prologue_embedding_params, prologue::EmbeddingParams)
PROLOGUE_SAME(prologue_gate_params, prologue::GateParams)
PROLOGUE_SAME(prologue_gather_cos_sin_params, prologue::GatherCosSinParams)
PROLOGUE_SAME(prologue_scale_logits_params, prologue::ScaleLogitsParams)
PROLOGUE_SAME(prologue_sampling_row, prologue::SamplingRow)
PROLOGUE_SAME(prologue_sampling_params, prologue::SamplingParams)
PROLOGUE_SAME(prologue_logprobs_params, prologue::LogprobsParams)
PROLOGUE_SAME(prologue_end_step_group, prologue::EndStepGroup)
PROLOGUE_SAME(prologue_end_step_params, prologue::EndStepParams)
PROLOGUE_SAME(prologue_take_tokens_params, prologue::TakeTokensParams)
PROLOGUE_SAME(prologue_communicators_params, prologue::c::CommunicatorsParams)
PROLOGUE_SAME(prologue_all_reduce_params, prologue::AllReduceParams)
PROLOGUE_SAME(prologue_all_gather_params, prologue::AllGatherParams)
PROLOGUE_SAME(prologue_rotary_plan, prologue::RotaryPlan)
PROLOGUE_SAME(prologue_attention_prologue_plan, prologue::AttentionProloguePlan)
PROLOGUE_SAME(prologue_gemm_context, prologue::GemmContext)
PROLOGUE_SAME(prologue_communicator, prologue::Communicator)

}  // namespace

extern "C" {

void prologue_execution_init(prologue_execution* value) { initialize<prologue::Execution>(value); }
void prologue_fault_record_init(prologue_fault_record* value) { initialize<prologue::FaultRecord>(value); }
void prologue_fault_init(prologue_fault* value) { initialize<prologue::Fault>(value); }
void prologue_heads_view_init(prologue_heads_view* value) { initialize<prologue::HeadsView>(value); }
void prologue_mutable_heads_view_init(prologue_mutable_heads_view* value) { initialize<prologue::MutableHeadsView>(value); }
void prologue_index_view_init(prologue_index_view* value) { initialize<prologue::IndexView>(value); }
void prologue_page_strides_init(prologue_page_strides* value) { initialize<prologue::PageStrides>(value); }
void prologue_kv_format_init(prologue_kv_format* value) { initialize<prologue::KvFormat>(value); }
void prologue_paged_heads_init(prologue_paged_heads* value) { initialize<prologue::PagedHeads>(value); }
void prologue_paged_kv_view_init(prologue_paged_kv_view* value) { initialize<prologue::PagedKvView>(value); }
void prologue_page_table_init(prologue_page_table* value) { initialize<prologue::PageTable>(value); }
void prologue_rope_columns_init(prologue_rope_columns* value) { initialize<prologue::RopeColumns>(value); }
void prologue_rope_init(prologue_rope* value) { initialize<prologue::Rope>(value); }
void prologue_packed_rows_init(prologue_packed_rows* value) { initialize<prologue::PackedRows>(value); }
void prologue_packed_weight_init(prologue_packed_weight* value) { initialize<prologue::PackedWeight>(value); }
void prologue_pack_weight_params_init(prologue_pack_weight_params* value) { initialize<prologue::PackWeightParams>(value); }
void prologue_rope_table_params_init(prologue_rope_table_params* value) { initialize<prologue::c::RopeTableParams>(value); }
void prologue_rotary_strides_init(prologue_rotary_strides* value) { initialize<prologue::RotaryStrides>(value); }
void prologue_rotary_tensor_init(prologue_rotary_tensor* value) { initialize<prologue::RotaryTensor>(value); }
void prologue_rotary_positions_init(prologue_rotary_positions* value) { initialize<prologue::RotaryPositions>(value); }
void prologue_rotary_params_init(prologue_rotary_params* value) { initialize<prologue::RotaryParams>(value); }
void prologue_rerope_params_init(prologue_rerope_params* value) { initialize<prologue::ReropeParams>(value); }
void prologue_qkv_bias_init(prologue_qkv_bias* value) { initialize<prologue::QkvBias>(value); }
void prologue_head_norm_init(prologue_head_norm* value) { initialize<prologue::HeadNorm>(value); }
void prologue_token_places_init(prologue_token_places* value) { initialize<prologue::TokenPlaces>(value); }
void prologue_q_scale_init(prologue_q_scale* value) { initialize<prologue::QueryScale>(value); }
void prologue_quantized_query_init(prologue_quantized_query* value) { initialize<prologue::QuantizedQuery>(value); }
void prologue_head_group_init(prologue_head_group* value) { initialize<prologue::HeadGroup>(value); }
void prologue_attention_prologue_params_init(prologue_attention_prologue_params* value) { initialize<prologue::AttentionPrologueParams>(value); }
void prologue_add_bias_params_init(prologue_add_bias_params* value) { initialize<prologue::AddBiasParams>(value); }
void prologue_qk_norm_params_init(prologue_qk_norm_params* value) { initialize<prologue::QkNormParams>(value); }
void prologue_hadamard_params_init(prologue_hadamard_params* value) { initialize<prologue::HadamardParams>(value); }
void prologue_query_scale_params_init(prologue_query_scale_params* value) { initialize<prologue::QueryScaleParams>(value); }
void prologue_kv_write_params_init(prologue_kv_write_params* value) { initialize<prologue::KvWriteParams>(value); }
void prologue_mla_cache_part_init(prologue_mla_cache_part* value) { initialize<prologue::MlaCachePart>(value); }
void prologue_mla_cache_init(prologue_mla_cache* value) { initialize<prologue::MlaCache>(value); }
void prologue_mla_prologue_params_init(prologue_mla_prologue_params* value) { initialize<prologue::MlaPrologueParams>(value); }
void prologue_paged_attention_params_init(prologue_paged_attention_params* value) { initialize<prologue::PagedAttentionParams>(value); }
void prologue_gemm_params_init(prologue_gemm_params* value) { initialize<prologue::GemmParams>(value); }
void prologue_norm_params_init(prologue_norm_params* value) { initialize<prologue::NormParams>(value); }
void prologue_activation_params_init(prologue_activation_params* value) { initialize<prologue::ActivationParams>(value); }
void prologue_add_params_init(prologue_add_params* value) { initialize<prologue::AddParams>(value); }
void prologue_input_norm_init(prologue_input_norm* value) { initialize<prologue::InputNorm>(value); }
void prologue_output_activation_init(prologue_output_activation* value) { initialize<prologue::OutputActivation>(value); }
void prologue_projection_params_init(prologue_projection_params* value) { initialize<prologue::ProjectionParams>(value); }
void prologue_qkv_prologue_params_init(prologue_qkv_prologue_params* value) { initialize<prologue::QkvPrologueParams>(value); }
void prologue_attention_layer_params_init(prologue_attention_layer_params* value) { initialize<prologue::AttentionLayerParams>(value); }
void prologue_moe_route_params_init(prologue_moe_route_params* value) { initialize<prologue::MoeRouteParams>(value); }
void prologue_moe_gemm_params_init(prologue_moe_gemm_params* value) { initialize<prologue::MoeGemmParams>(value); }
void prologue_moe_combine_params_init(prologue_moe_combine_params* value) { initialize<prologue::MoeCombineParams>(value); }
void prologue_embedding_params_init(prologue_embedding_params* value) { initialize<prologue::EmbeddingParams>(value); }
void prologue_gate_params_init(prologue_gate_params* value) { initialize<prologue::GateParams>(value); }
void prologue_gather_cos_sin_params_init(prologue_gather_cos_sin_params* value) { initialize<prologue::GatherCosSinParams>(value); }
void prologue_scale_logits_params_init(prologue_scale_logits_params* value) { initialize<prologue::ScaleLogitsParams>(value); }
void prologue_sampling_row_init(prologue_sampling_row* value) { initialize<prologue::SamplingRow>(value); }
void prologue_sampling_params_init(prologue_sampling_params* value) { initialize<prologue::SamplingParams>(value); }
void prologue_logprobs_params_init(prologue_logprobs_params* value) { initialize<prologue::LogprobsParams>(value); }
void prologue_end_step_group_init(prologue_end_step_group* value) { initialize<prologue::EndStepGroup>(value); }
void prologue_end_step_params_init(prologue_end_step_params* value) { initialize<prologue::EndStepParams>(value); }
void prologue_take_tokens_params_init(prologue_take_tokens_params* value) { initialize<prologue::TakeTokensParams>(value); }
void prologue_communicators_params_init(prologue_communicators_params* value) { initialize<prologue::c::CommunicatorsParams>(value); }
void prologue_all_reduce_params_init(prologue_all_reduce_params* value) { initialize<prologue::AllReduceParams>(value); }
void prologue_all_gather_params_init(prologue_all_gather_params* value) { initialize<prologue::AllGatherParams>(value); }

const char* prologue_status_name(prologue_status code) {
  return prologue::status_code_name(static_cast<prologue::StatusCode>(code));
}

int64_t prologue_dtype_bits(prologue_dtype type) {
  return prologue::dtype_bits(static_cast<prologue::DType>(type));
}

const char* prologue_dtype_name(prologue_dtype type) {
  return prologue::dtype_name(static_cast<prologue::DType>(type));
}

const char* prologue_device_name(prologue_device device) {
  return prologue::device_name(static_cast<prologue::Device>(device));
}

bool prologue_built_with_cuda(void) {
  return prologue::built_with_cuda();
}

prologue_status prologue_check_gpu(void) {
  return call([&] { return prologue::check_gpu(); });
}

const char* prologue_fault_code_name(prologue_fault_code code) {
  return prologue::fault_code_name(static_cast<prologue::FaultCode>(code));
}

prologue_status prologue_decode_fault(const prologue_fault_record* record, prologue_fault* result) {
  if (record == nullptr) return null_argument("prologue_decode_fault", "record");
  if (result == nullptr) return null_argument("prologue_decode_fault", "result");
  return call([&] { return cpp(*result) = prologue::decode_fault(cpp(*record)), Status(); });
}

prologue_page_strides prologue_nhd_strides(int64_t page_size, int64_t num_kv_heads, int64_t head_dim) {
  prologue_page_strides result;
  cpp(result) = prologue::nhd_strides(page_size, num_kv_heads, head_dim);
  return result;
}

prologue_status prologue_set_cos_sin_table(prologue_rope* rope, const void* table, prologue_dtype type, int64_t rows) {
  if (rope == nullptr) return null_argument("prologue_set_cos_sin_table", "rope");
  return call([&] { return prologue::set_cos_sin_table(cpp(*rope), table, static_cast<prologue::DType>(type), rows), Status(); });
}

prologue_status prologue_set_cos_sin_rows(prologue_rope* rope, const void* rows, prologue_dtype type) {
  if (rope == nullptr) return null_argument("prologue_set_cos_sin_rows", "rope");
  return call([&] { return prologue::set_cos_sin_rows(cpp(*rope), rows, static_cast<prologue::DType>(type)), Status(); });
}

prologue_status prologue_set_cos_and_sin(prologue_rope* rope, const void* cos, const void* sin, prologue_dtype type, int64_t rows, int64_t columns, prologue_rope_width width) {
  if (rope == nullptr) return null_argument("prologue_set_cos_and_sin", "rope");
  return call([&] { return prologue::set_cos_and_sin(cpp(*rope), cos, sin, static_cast<prologue::DType>(type), rows, columns, static_cast<prologue::RopeWidth>(width)), Status(); });
}

int64_t prologue_weight_block_elements(prologue_weight_format format) {
  return prologue::weight_block_elements(static_cast<prologue::WeightFormat>(format));
}

int64_t prologue_weight_block_bytes(prologue_weight_format format) {
  return prologue::weight_block_bytes(static_cast<prologue::WeightFormat>(format));
}

const char* prologue_weight_format_name(prologue_weight_format format) {
  return prologue::weight_format_name(static_cast<prologue::WeightFormat>(format));
}

int64_t prologue_packed_weight_bytes(prologue_weight_format format, int64_t rows, int64_t cols) {
  return prologue::packed_weight_bytes(static_cast<prologue::WeightFormat>(format), rows, cols);
}

prologue_status prologue_pack_weight(const prologue_pack_weight_params* params, const prologue_execution* execution) {
  if (params == nullptr) return null_argument("prologue_pack_weight", "params");
  if (execution == nullptr) return null_argument("prologue_pack_weight", "execution");
  if (reserved_bits(cpp(*params)) != 0) [[unlikely]] return reserved_argument("prologue_pack_weight", "params", cpp(*params), "prologue_pack_weight_params_init");
  if (reserved_bits(cpp(*execution)) != 0) [[unlikely]] return reserved_argument("prologue_pack_weight", "execution", cpp(*execution), "prologue_execution_init");
  return call([&] { return prologue::pack_weight(cpp(*params), cpp(*execution)); });
}

prologue_status prologue_rope_frequencies(const prologue_rope_table_params* params, double* inv_freq, double* attention_factor) {
  if (params == nullptr) return null_argument("prologue_rope_frequencies", "params");
  if (reserved_bits(cpp(*params)) != 0) [[unlikely]] return reserved_argument("prologue_rope_frequencies", "params", cpp(*params), "prologue_rope_table_params_init");
  return call([&] { return prologue::c::rope_frequencies(cpp(*params), inv_freq, attention_factor); });
}

prologue_status prologue_rope_cos_sin(const prologue_rope_table_params* params, int64_t max_position, float* cos_sin) {
  if (params == nullptr) return null_argument("prologue_rope_cos_sin", "params");
  if (reserved_bits(cpp(*params)) != 0) [[unlikely]] return reserved_argument("prologue_rope_cos_sin", "params", cpp(*params), "prologue_rope_table_params_init");
  return call([&] { return prologue::c::rope_cos_sin(cpp(*params), max_position, cos_sin); });
}

prologue_rotary_strides prologue_batch_major_strides(int64_t seq_len, int64_t num_heads, int64_t head_dim) {
  prologue_rotary_strides result;
  cpp(result) = prologue::batch_major_strides(seq_len, num_heads, head_dim);
  return result;
}

prologue_rotary_strides prologue_sequence_major_strides(int64_t batch, int64_t num_heads, int64_t head_dim) {
  prologue_rotary_strides result;
  cpp(result) = prologue::sequence_major_strides(batch, num_heads, head_dim);
  return result;
}

prologue_rotary_strides prologue_head_major_strides(int64_t seq_len, int64_t num_heads, int64_t head_dim) {
  prologue_rotary_strides result;
  cpp(result) = prologue::head_major_strides(seq_len, num_heads, head_dim);
  return result;
}

prologue_status prologue_rotary_validate(const prologue_rotary_params* params) {
  if (params == nullptr) return null_argument("prologue_rotary_validate", "params");
  if (reserved_bits(cpp(*params)) != 0) [[unlikely]] return reserved_argument("prologue_rotary_validate", "params", cpp(*params), "prologue_rotary_params_init");
  return call([&] { return prologue::validate(cpp(*params)); });
}

prologue_status prologue_rotary(const prologue_rotary_params* params, const prologue_execution* execution) {
  if (params == nullptr) return null_argument("prologue_rotary", "params");
  if (execution == nullptr) return null_argument("prologue_rotary", "execution");
  if (reserved_bits(cpp(*params)) != 0) [[unlikely]] return reserved_argument("prologue_rotary", "params", cpp(*params), "prologue_rotary_params_init");
  if (reserved_bits(cpp(*execution)) != 0) [[unlikely]] return reserved_argument("prologue_rotary", "execution", cpp(*execution), "prologue_execution_init");
  return call([&] { return prologue::rotary(cpp(*params), cpp(*execution)); });
}

prologue_status prologue_rotary_plan_create(const prologue_rotary_params* params, const prologue_execution* execution, prologue_rotary_plan** plan) {
  if (plan == nullptr) return null_argument("prologue_rotary_plan_create", "plan");
  *plan = nullptr;
  if (params == nullptr) return null_argument("prologue_rotary_plan_create", "params");
  if (execution == nullptr) return null_argument("prologue_rotary_plan_create", "execution");
  if (reserved_bits(cpp(*params)) != 0) [[unlikely]] return reserved_argument("prologue_rotary_plan_create", "params", cpp(*params), "prologue_rotary_params_init");
  if (reserved_bits(cpp(*execution)) != 0) [[unlikely]] return reserved_argument("prologue_rotary_plan_create", "execution", cpp(*execution), "prologue_execution_init");
  return call([&] { return hand_over(prologue::RotaryPlan::create(cpp(*params), cpp(*execution)), plan); });
}

const prologue_rotary_params* prologue_rotary_plan_params(const prologue_rotary_plan* plan) {
  if (plan == nullptr) return {};
  return reinterpret_cast<const prologue_rotary_params*>(&cpp(*plan).params());
}

prologue_status prologue_rotary_plan_run(const prologue_rotary_plan* plan, const prologue_rotary_params* params, const prologue_execution* execution) {
  if (plan == nullptr) return null_argument("prologue_rotary_plan_run", "plan");
  if (params == nullptr) return null_argument("prologue_rotary_plan_run", "params");
  if (execution == nullptr) return null_argument("prologue_rotary_plan_run", "execution");
  if (reserved_bits(cpp(*params)) != 0) [[unlikely]] return reserved_argument("prologue_rotary_plan_run", "params", cpp(*params), "prologue_rotary_params_init");
  if (reserved_bits(cpp(*execution)) != 0) [[unlikely]] return reserved_argument("prologue_rotary_plan_run", "execution", cpp(*execution), "prologue_execution_init");
  return call([&] { return cpp(*plan).run(cpp(*params), cpp(*execution)); });
}

int64_t prologue_rotary_plan_workspace_bytes(void) {
  return prologue::RotaryPlan::workspace_bytes();
}

prologue_status prologue_rerope(const prologue_rerope_params* params, const prologue_execution* execution) {
  if (params == nullptr) return null_argument("prologue_rerope", "params");
  if (execution == nullptr) return null_argument("prologue_rerope", "execution");
  if (reserved_bits(cpp(*params)) != 0) [[unlikely]] return reserved_argument("prologue_rerope", "params", cpp(*params), "prologue_rerope_params_init");
  if (reserved_bits(cpp(*execution)) != 0) [[unlikely]] return reserved_argument("prologue_rerope", "execution", cpp(*execution), "prologue_execution_init");
  return call([&] { return prologue::rerope(cpp(*params), cpp(*execution)); });
}

prologue_status prologue_set_packed_qkv(prologue_attention_prologue_params* params, const void* qkv, int64_t token_stride) {
  if (params == nullptr) return null_argument("prologue_set_packed_qkv", "params");
  return call([&] { return prologue::set_packed_qkv(cpp(*params), qkv, token_stride), Status(); });
}

prologue_status prologue_attention_prologue_validate(const prologue_attention_prologue_params* params) {
  if (params == nullptr) return null_argument("prologue_attention_prologue_validate", "params");
  if (reserved_bits(cpp(*params)) != 0) [[unlikely]] return reserved_argument("prologue_attention_prologue_validate", "params", cpp(*params), "prologue_attention_prologue_params_init");
  return call([&] { return prologue::validate(cpp(*params)); });
}

prologue_status prologue_attention_prologue(const prologue_attention_prologue_params* params, const prologue_execution* execution) {
  if (params == nullptr) return null_argument("prologue_attention_prologue", "params");
  if (execution == nullptr) return null_argument("prologue_attention_prologue", "execution");
  if (reserved_bits(cpp(*params)) != 0) [[unlikely]] return reserved_argument("prologue_attention_prologue", "params", cpp(*params), "prologue_attention_prologue_params_init");
  if (reserved_bits(cpp(*execution)) != 0) [[unlikely]] return reserved_argument("prologue_attention_prologue", "execution", cpp(*execution), "prologue_execution_init");
  return call([&] { return prologue::attention_prologue(cpp(*params), cpp(*execution)); });
}

prologue_status prologue_attention_prologue_plan_create(const prologue_attention_prologue_params* params, int64_t max_tokens, const prologue_execution* execution, prologue_attention_prologue_plan** plan) {
  if (plan == nullptr) return null_argument("prologue_attention_prologue_plan_create", "plan");
  *plan = nullptr;
  if (params == nullptr) return null_argument("prologue_attention_prologue_plan_create", "params");
  if (execution == nullptr) return null_argument("prologue_attention_prologue_plan_create", "execution");
  if (reserved_bits(cpp(*params)) != 0) [[unlikely]] return reserved_argument("prologue_attention_prologue_plan_create", "params", cpp(*params), "prologue_attention_prologue_params_init");
  if (reserved_bits(cpp(*execution)) != 0) [[unlikely]] return reserved_argument("prologue_attention_prologue_plan_create", "execution", cpp(*execution), "prologue_execution_init");
  return call([&] { return hand_over(prologue::AttentionProloguePlan::create(cpp(*params), max_tokens, cpp(*execution)), plan); });
}

prologue_status prologue_attention_prologue_plan_run(const prologue_attention_prologue_plan* plan, const prologue_attention_prologue_params* params, const prologue_execution* execution) {
  if (plan == nullptr) return null_argument("prologue_attention_prologue_plan_run", "plan");
  if (params == nullptr) return null_argument("prologue_attention_prologue_plan_run", "params");
  if (execution == nullptr) return null_argument("prologue_attention_prologue_plan_run", "execution");
  if (reserved_bits(cpp(*params)) != 0) [[unlikely]] return reserved_argument("prologue_attention_prologue_plan_run", "params", cpp(*params), "prologue_attention_prologue_params_init");
  if (reserved_bits(cpp(*execution)) != 0) [[unlikely]] return reserved_argument("prologue_attention_prologue_plan_run", "execution", cpp(*execution), "prologue_execution_init");
  return call([&] { return cpp(*plan).run(cpp(*params), cpp(*execution)); });
}

const char* prologue_attention_prologue_plan_kernel(const prologue_attention_prologue_plan* plan) {
  if (plan == nullptr) return {};
  return cpp(*plan).kernel();
}

prologue_status prologue_add_bias(const prologue_add_bias_params* params, const prologue_execution* execution) {
  if (params == nullptr) return null_argument("prologue_add_bias", "params");
  if (execution == nullptr) return null_argument("prologue_add_bias", "execution");
  if (reserved_bits(cpp(*params)) != 0) [[unlikely]] return reserved_argument("prologue_add_bias", "params", cpp(*params), "prologue_add_bias_params_init");
  if (reserved_bits(cpp(*execution)) != 0) [[unlikely]] return reserved_argument("prologue_add_bias", "execution", cpp(*execution), "prologue_execution_init");
  return call([&] { return prologue::add_bias(cpp(*params), cpp(*execution)); });
}

prologue_status prologue_qk_norm(const prologue_qk_norm_params* params, const prologue_execution* execution) {
  if (params == nullptr) return null_argument("prologue_qk_norm", "params");
  if (execution == nullptr) return null_argument("prologue_qk_norm", "execution");
  if (reserved_bits(cpp(*params)) != 0) [[unlikely]] return reserved_argument("prologue_qk_norm", "params", cpp(*params), "prologue_qk_norm_params_init");
  if (reserved_bits(cpp(*execution)) != 0) [[unlikely]] return reserved_argument("prologue_qk_norm", "execution", cpp(*execution), "prologue_execution_init");
  return call([&] { return prologue::qk_norm(cpp(*params), cpp(*execution)); });
}

prologue_status prologue_hadamard(const prologue_hadamard_params* params, const prologue_execution* execution) {
  if (params == nullptr) return null_argument("prologue_hadamard", "params");
  if (execution == nullptr) return null_argument("prologue_hadamard", "execution");
  if (reserved_bits(cpp(*params)) != 0) [[unlikely]] return reserved_argument("prologue_hadamard", "params", cpp(*params), "prologue_hadamard_params_init");
  if (reserved_bits(cpp(*execution)) != 0) [[unlikely]] return reserved_argument("prologue_hadamard", "execution", cpp(*execution), "prologue_execution_init");
  return call([&] { return prologue::hadamard(cpp(*params), cpp(*execution)); });
}

prologue_status prologue_query_scale(const prologue_query_scale_params* params, const prologue_execution* execution) {
  if (params == nullptr) return null_argument("prologue_query_scale", "params");
  if (execution == nullptr) return null_argument("prologue_query_scale", "execution");
  if (reserved_bits(cpp(*params)) != 0) [[unlikely]] return reserved_argument("prologue_query_scale", "params", cpp(*params), "prologue_query_scale_params_init");
  if (reserved_bits(cpp(*execution)) != 0) [[unlikely]] return reserved_argument("prologue_query_scale", "execution", cpp(*execution), "prologue_execution_init");
  return call([&] { return prologue::query_scale(cpp(*params), cpp(*execution)); });
}

prologue_status prologue_kv_write(const prologue_kv_write_params* params, const prologue_execution* execution) {
  if (params == nullptr) return null_argument("prologue_kv_write", "params");
  if (execution == nullptr) return null_argument("prologue_kv_write", "execution");
  if (reserved_bits(cpp(*params)) != 0) [[unlikely]] return reserved_argument("prologue_kv_write", "params", cpp(*params), "prologue_kv_write_params_init");
  if (reserved_bits(cpp(*execution)) != 0) [[unlikely]] return reserved_argument("prologue_kv_write", "execution", cpp(*execution), "prologue_execution_init");
  return call([&] { return prologue::kv_write(cpp(*params), cpp(*execution)); });
}

prologue_status prologue_set_mla_entries(prologue_mla_prologue_params* params, void* data, prologue_dtype type, const float* scale, int64_t page_stride, int64_t token_stride) {
  if (params == nullptr) return null_argument("prologue_set_mla_entries", "params");
  return call([&] { return prologue::set_mla_entries(cpp(*params), data, static_cast<prologue::DType>(type), scale, page_stride, token_stride), Status(); });
}

prologue_status prologue_set_mla_records(prologue_mla_prologue_params* params, void* data, int64_t page_stride, int64_t token_stride) {
  if (params == nullptr) return null_argument("prologue_set_mla_records", "params");
  return call([&] { return prologue::set_mla_records(cpp(*params), data, page_stride, token_stride), Status(); });
}

prologue_status prologue_mla_prologue_validate(const prologue_mla_prologue_params* params) {
  if (params == nullptr) return null_argument("prologue_mla_prologue_validate", "params");
  if (reserved_bits(cpp(*params)) != 0) [[unlikely]] return reserved_argument("prologue_mla_prologue_validate", "params", cpp(*params), "prologue_mla_prologue_params_init");
  return call([&] { return prologue::validate(cpp(*params)); });
}

prologue_status prologue_mla_prologue(const prologue_mla_prologue_params* params, const prologue_execution* execution) {
  if (params == nullptr) return null_argument("prologue_mla_prologue", "params");
  if (execution == nullptr) return null_argument("prologue_mla_prologue", "execution");
  if (reserved_bits(cpp(*params)) != 0) [[unlikely]] return reserved_argument("prologue_mla_prologue", "params", cpp(*params), "prologue_mla_prologue_params_init");
  if (reserved_bits(cpp(*execution)) != 0) [[unlikely]] return reserved_argument("prologue_mla_prologue", "execution", cpp(*execution), "prologue_execution_init");
  return call([&] { return prologue::mla_prologue(cpp(*params), cpp(*execution)); });
}

prologue_status prologue_paged_attention_workspace_bytes(const prologue_paged_attention_params* params, prologue_device device, int64_t* bytes) {
  if (params == nullptr) return null_argument("prologue_paged_attention_workspace_bytes", "params");
  if (bytes == nullptr) return null_argument("prologue_paged_attention_workspace_bytes", "bytes");
  if (reserved_bits(cpp(*params)) != 0) [[unlikely]] return reserved_argument("prologue_paged_attention_workspace_bytes", "params", cpp(*params), "prologue_paged_attention_params_init");
  return call([&] { return *bytes = prologue::paged_attention_workspace_bytes(cpp(*params), static_cast<prologue::Device>(device)), Status(); });
}

prologue_status prologue_paged_attention_validate(const prologue_paged_attention_params* params, prologue_device device) {
  if (params == nullptr) return null_argument("prologue_paged_attention_validate", "params");
  if (reserved_bits(cpp(*params)) != 0) [[unlikely]] return reserved_argument("prologue_paged_attention_validate", "params", cpp(*params), "prologue_paged_attention_params_init");
  return call([&] { return prologue::validate(cpp(*params), static_cast<prologue::Device>(device)); });
}

prologue_status prologue_paged_attention(const prologue_paged_attention_params* params, const prologue_execution* execution) {
  if (params == nullptr) return null_argument("prologue_paged_attention", "params");
  if (execution == nullptr) return null_argument("prologue_paged_attention", "execution");
  if (reserved_bits(cpp(*params)) != 0) [[unlikely]] return reserved_argument("prologue_paged_attention", "params", cpp(*params), "prologue_paged_attention_params_init");
  if (reserved_bits(cpp(*execution)) != 0) [[unlikely]] return reserved_argument("prologue_paged_attention", "execution", cpp(*execution), "prologue_execution_init");
  return call([&] { return prologue::paged_attention(cpp(*params), cpp(*execution)); });
}

prologue_status prologue_gemm_context_create(prologue_device device, prologue_gemm_context** context) {
  if (context == nullptr) return null_argument("prologue_gemm_context_create", "context");
  *context = nullptr;
  return call([&] { return hand_over(prologue::GemmContext::create(static_cast<prologue::Device>(device)), context); });
}

prologue_device prologue_gemm_context_device(const prologue_gemm_context* context) {
  if (context == nullptr) return {};
  return static_cast<int32_t>(cpp(*context).device());
}

prologue_status prologue_gemm_validate(const prologue_gemm_params* params, const prologue_gemm_context* context, const prologue_execution* execution) {
  if (params == nullptr) return null_argument("prologue_gemm_validate", "params");
  if (context == nullptr) return null_argument("prologue_gemm_validate", "context");
  if (execution == nullptr) return null_argument("prologue_gemm_validate", "execution");
  if (reserved_bits(cpp(*params)) != 0) [[unlikely]] return reserved_argument("prologue_gemm_validate", "params", cpp(*params), "prologue_gemm_params_init");
  if (reserved_bits(cpp(*execution)) != 0) [[unlikely]] return reserved_argument("prologue_gemm_validate", "execution", cpp(*execution), "prologue_execution_init");
  return call([&] { return prologue::validate(cpp(*params), cpp(*context), cpp(*execution)); });
}

prologue_status prologue_gemm(const prologue_gemm_params* params, prologue_gemm_context* context, const prologue_execution* execution) {
  if (params == nullptr) return null_argument("prologue_gemm", "params");
  if (context == nullptr) return null_argument("prologue_gemm", "context");
  if (execution == nullptr) return null_argument("prologue_gemm", "execution");
  if (reserved_bits(cpp(*params)) != 0) [[unlikely]] return reserved_argument("prologue_gemm", "params", cpp(*params), "prologue_gemm_params_init");
  if (reserved_bits(cpp(*execution)) != 0) [[unlikely]] return reserved_argument("prologue_gemm", "execution", cpp(*execution), "prologue_execution_init");
  return call([&] { return prologue::gemm(cpp(*params), cpp(*context), cpp(*execution)); });
}

prologue_status prologue_norm(const prologue_norm_params* params, const prologue_execution* execution) {
  if (params == nullptr) return null_argument("prologue_norm", "params");
  if (execution == nullptr) return null_argument("prologue_norm", "execution");
  if (reserved_bits(cpp(*params)) != 0) [[unlikely]] return reserved_argument("prologue_norm", "params", cpp(*params), "prologue_norm_params_init");
  if (reserved_bits(cpp(*execution)) != 0) [[unlikely]] return reserved_argument("prologue_norm", "execution", cpp(*execution), "prologue_execution_init");
  return call([&] { return prologue::norm(cpp(*params), cpp(*execution)); });
}

prologue_status prologue_activation(const prologue_activation_params* params, const prologue_execution* execution) {
  if (params == nullptr) return null_argument("prologue_activation", "params");
  if (execution == nullptr) return null_argument("prologue_activation", "execution");
  if (reserved_bits(cpp(*params)) != 0) [[unlikely]] return reserved_argument("prologue_activation", "params", cpp(*params), "prologue_activation_params_init");
  if (reserved_bits(cpp(*execution)) != 0) [[unlikely]] return reserved_argument("prologue_activation", "execution", cpp(*execution), "prologue_execution_init");
  return call([&] { return prologue::activation(cpp(*params), cpp(*execution)); });
}

prologue_status prologue_add(const prologue_add_params* params, const prologue_execution* execution) {
  if (params == nullptr) return null_argument("prologue_add", "params");
  if (execution == nullptr) return null_argument("prologue_add", "execution");
  if (reserved_bits(cpp(*params)) != 0) [[unlikely]] return reserved_argument("prologue_add", "params", cpp(*params), "prologue_add_params_init");
  if (reserved_bits(cpp(*execution)) != 0) [[unlikely]] return reserved_argument("prologue_add", "execution", cpp(*execution), "prologue_execution_init");
  return call([&] { return prologue::add(cpp(*params), cpp(*execution)); });
}

prologue_status prologue_projection_workspace_bytes(const prologue_projection_params* params, int64_t* bytes) {
  if (params == nullptr) return null_argument("prologue_projection_workspace_bytes", "params");
  if (bytes == nullptr) return null_argument("prologue_projection_workspace_bytes", "bytes");
  if (reserved_bits(cpp(*params)) != 0) [[unlikely]] return reserved_argument("prologue_projection_workspace_bytes", "params", cpp(*params), "prologue_projection_params_init");
  return call([&] { return *bytes = prologue::projection_workspace_bytes(cpp(*params)), Status(); });
}

prologue_status prologue_projection_validate(const prologue_projection_params* params, const prologue_gemm_context* context, const prologue_execution* execution) {
  if (params == nullptr) return null_argument("prologue_projection_validate", "params");
  if (context == nullptr) return null_argument("prologue_projection_validate", "context");
  if (execution == nullptr) return null_argument("prologue_projection_validate", "execution");
  if (reserved_bits(cpp(*params)) != 0) [[unlikely]] return reserved_argument("prologue_projection_validate", "params", cpp(*params), "prologue_projection_params_init");
  if (reserved_bits(cpp(*execution)) != 0) [[unlikely]] return reserved_argument("prologue_projection_validate", "execution", cpp(*execution), "prologue_execution_init");
  return call([&] { return prologue::validate(cpp(*params), cpp(*context), cpp(*execution)); });
}

prologue_status prologue_projection(const prologue_projection_params* params, prologue_gemm_context* context, const prologue_execution* execution) {
  if (params == nullptr) return null_argument("prologue_projection", "params");
  if (context == nullptr) return null_argument("prologue_projection", "context");
  if (execution == nullptr) return null_argument("prologue_projection", "execution");
  if (reserved_bits(cpp(*params)) != 0) [[unlikely]] return reserved_argument("prologue_projection", "params", cpp(*params), "prologue_projection_params_init");
  if (reserved_bits(cpp(*execution)) != 0) [[unlikely]] return reserved_argument("prologue_projection", "execution", cpp(*execution), "prologue_execution_init");
  return call([&] { return prologue::projection(cpp(*params), cpp(*context), cpp(*execution)); });
}

prologue_status prologue_qkv_prologue_workspace_bytes(const prologue_qkv_prologue_params* params, int64_t* bytes) {
  if (params == nullptr) return null_argument("prologue_qkv_prologue_workspace_bytes", "params");
  if (bytes == nullptr) return null_argument("prologue_qkv_prologue_workspace_bytes", "bytes");
  if (reserved_bits(cpp(*params)) != 0) [[unlikely]] return reserved_argument("prologue_qkv_prologue_workspace_bytes", "params", cpp(*params), "prologue_qkv_prologue_params_init");
  return call([&] { return *bytes = prologue::qkv_prologue_workspace_bytes(cpp(*params)), Status(); });
}

prologue_status prologue_qkv_prologue_validate(const prologue_qkv_prologue_params* params, const prologue_gemm_context* context, const prologue_execution* execution) {
  if (params == nullptr) return null_argument("prologue_qkv_prologue_validate", "params");
  if (context == nullptr) return null_argument("prologue_qkv_prologue_validate", "context");
  if (execution == nullptr) return null_argument("prologue_qkv_prologue_validate", "execution");
  if (reserved_bits(cpp(*params)) != 0) [[unlikely]] return reserved_argument("prologue_qkv_prologue_validate", "params", cpp(*params), "prologue_qkv_prologue_params_init");
  if (reserved_bits(cpp(*execution)) != 0) [[unlikely]] return reserved_argument("prologue_qkv_prologue_validate", "execution", cpp(*execution), "prologue_execution_init");
  return call([&] { return prologue::validate(cpp(*params), cpp(*context), cpp(*execution)); });
}

prologue_status prologue_qkv_prologue(const prologue_qkv_prologue_params* params, prologue_gemm_context* context, const prologue_execution* execution) {
  if (params == nullptr) return null_argument("prologue_qkv_prologue", "params");
  if (context == nullptr) return null_argument("prologue_qkv_prologue", "context");
  if (execution == nullptr) return null_argument("prologue_qkv_prologue", "execution");
  if (reserved_bits(cpp(*params)) != 0) [[unlikely]] return reserved_argument("prologue_qkv_prologue", "params", cpp(*params), "prologue_qkv_prologue_params_init");
  if (reserved_bits(cpp(*execution)) != 0) [[unlikely]] return reserved_argument("prologue_qkv_prologue", "execution", cpp(*execution), "prologue_execution_init");
  return call([&] { return prologue::qkv_prologue(cpp(*params), cpp(*context), cpp(*execution)); });
}

prologue_device prologue_communicator_device(const prologue_communicator* communicator) {
  if (communicator == nullptr) return {};
  return static_cast<int32_t>(cpp(*communicator).device());
}

int64_t prologue_communicator_rank(const prologue_communicator* communicator) {
  if (communicator == nullptr) return {};
  return cpp(*communicator).rank();
}

int64_t prologue_communicator_num_ranks(const prologue_communicator* communicator) {
  if (communicator == nullptr) return {};
  return cpp(*communicator).num_ranks();
}

const char* prologue_communicator_transport(const prologue_communicator* communicator) {
  if (communicator == nullptr) return {};
  return cpp(*communicator).transport();
}

bool prologue_communicator_uses_peer_memory(const prologue_communicator* communicator) {
  if (communicator == nullptr) return {};
  return cpp(*communicator).uses_peer_memory();
}

prologue_status prologue_attention_layer_workspace_bytes(const prologue_attention_layer_params* params, prologue_device device, int64_t* bytes) {
  if (params == nullptr) return null_argument("prologue_attention_layer_workspace_bytes", "params");
  if (bytes == nullptr) return null_argument("prologue_attention_layer_workspace_bytes", "bytes");
  if (reserved_bits(cpp(*params)) != 0) [[unlikely]] return reserved_argument("prologue_attention_layer_workspace_bytes", "params", cpp(*params), "prologue_attention_layer_params_init");
  return call([&] { return store(prologue::attention_layer_workspace_bytes(cpp(*params), static_cast<prologue::Device>(device)), bytes); });
}

prologue_status prologue_attention_layer(const prologue_attention_layer_params* params, prologue_gemm_context* gemm_context, const prologue_execution* execution) {
  if (params == nullptr) return null_argument("prologue_attention_layer", "params");
  if (gemm_context == nullptr) return null_argument("prologue_attention_layer", "gemm_context");
  if (execution == nullptr) return null_argument("prologue_attention_layer", "execution");
  if (reserved_bits(cpp(*params)) != 0) [[unlikely]] return reserved_argument("prologue_attention_layer", "params", cpp(*params), "prologue_attention_layer_params_init");
  if (reserved_bits(cpp(*execution)) != 0) [[unlikely]] return reserved_argument("prologue_attention_layer", "execution", cpp(*execution), "prologue_execution_init");
  return call([&] { return prologue::attention_layer(cpp(*params), cpp(*gemm_context), cpp(*execution)); });
}

prologue_status prologue_attention_layer_of_rank(const prologue_attention_layer_params* params, prologue_gemm_context* gemm_context, prologue_communicator* communicator, const prologue_execution* execution) {
  if (params == nullptr) return null_argument("prologue_attention_layer_of_rank", "params");
  if (gemm_context == nullptr) return null_argument("prologue_attention_layer_of_rank", "gemm_context");
  if (communicator == nullptr) return null_argument("prologue_attention_layer_of_rank", "communicator");
  if (execution == nullptr) return null_argument("prologue_attention_layer_of_rank", "execution");
  if (reserved_bits(cpp(*params)) != 0) [[unlikely]] return reserved_argument("prologue_attention_layer_of_rank", "params", cpp(*params), "prologue_attention_layer_params_init");
  if (reserved_bits(cpp(*execution)) != 0) [[unlikely]] return reserved_argument("prologue_attention_layer_of_rank", "execution", cpp(*execution), "prologue_execution_init");
  return call([&] { return prologue::attention_layer_of_rank(cpp(*params), cpp(*gemm_context), cpp(*communicator), cpp(*execution)); });
}

prologue_status prologue_moe_route(const prologue_moe_route_params* params, const prologue_execution* execution) {
  if (params == nullptr) return null_argument("prologue_moe_route", "params");
  if (execution == nullptr) return null_argument("prologue_moe_route", "execution");
  if (reserved_bits(cpp(*params)) != 0) [[unlikely]] return reserved_argument("prologue_moe_route", "params", cpp(*params), "prologue_moe_route_params_init");
  if (reserved_bits(cpp(*execution)) != 0) [[unlikely]] return reserved_argument("prologue_moe_route", "execution", cpp(*execution), "prologue_execution_init");
  return call([&] { return prologue::moe_route(cpp(*params), cpp(*execution)); });
}

prologue_status prologue_moe_gemm_workspace_bytes(const prologue_moe_gemm_params* params, prologue_device device, int64_t* bytes) {
  if (params == nullptr) return null_argument("prologue_moe_gemm_workspace_bytes", "params");
  if (bytes == nullptr) return null_argument("prologue_moe_gemm_workspace_bytes", "bytes");
  if (reserved_bits(cpp(*params)) != 0) [[unlikely]] return reserved_argument("prologue_moe_gemm_workspace_bytes", "params", cpp(*params), "prologue_moe_gemm_params_init");
  return call([&] { return *bytes = prologue::moe_gemm_workspace_bytes(cpp(*params), static_cast<prologue::Device>(device)), Status(); });
}

prologue_status prologue_moe_gemm_validate(const prologue_moe_gemm_params* params, const prologue_gemm_context* context, const prologue_execution* execution) {
  if (params == nullptr) return null_argument("prologue_moe_gemm_validate", "params");
  if (context == nullptr) return null_argument("prologue_moe_gemm_validate", "context");
  if (execution == nullptr) return null_argument("prologue_moe_gemm_validate", "execution");
  if (reserved_bits(cpp(*params)) != 0) [[unlikely]] return reserved_argument("prologue_moe_gemm_validate", "params", cpp(*params), "prologue_moe_gemm_params_init");
  if (reserved_bits(cpp(*execution)) != 0) [[unlikely]] return reserved_argument("prologue_moe_gemm_validate", "execution", cpp(*execution), "prologue_execution_init");
  return call([&] { return prologue::validate(cpp(*params), cpp(*context), cpp(*execution)); });
}

prologue_status prologue_moe_gemm(const prologue_moe_gemm_params* params, prologue_gemm_context* context, const prologue_execution* execution) {
  if (params == nullptr) return null_argument("prologue_moe_gemm", "params");
  if (context == nullptr) return null_argument("prologue_moe_gemm", "context");
  if (execution == nullptr) return null_argument("prologue_moe_gemm", "execution");
  if (reserved_bits(cpp(*params)) != 0) [[unlikely]] return reserved_argument("prologue_moe_gemm", "params", cpp(*params), "prologue_moe_gemm_params_init");
  if (reserved_bits(cpp(*execution)) != 0) [[unlikely]] return reserved_argument("prologue_moe_gemm", "execution", cpp(*execution), "prologue_execution_init");
  return call([&] { return prologue::moe_gemm(cpp(*params), cpp(*context), cpp(*execution)); });
}

prologue_status prologue_moe_combine(const prologue_moe_combine_params* params, const prologue_execution* execution) {
  if (params == nullptr) return null_argument("prologue_moe_combine", "params");
  if (execution == nullptr) return null_argument("prologue_moe_combine", "execution");
  if (reserved_bits(cpp(*params)) != 0) [[unlikely]] return reserved_argument("prologue_moe_combine", "params", cpp(*params), "prologue_moe_combine_params_init");
  if (reserved_bits(cpp(*execution)) != 0) [[unlikely]] return reserved_argument("prologue_moe_combine", "execution", cpp(*execution), "prologue_execution_init");
  return call([&] { return prologue::moe_combine(cpp(*params), cpp(*execution)); });
}

prologue_status prologue_embedding(const prologue_embedding_params* params, const prologue_execution* execution) {
  if (params == nullptr) return null_argument("prologue_embedding", "params");
  if (execution == nullptr) return null_argument("prologue_embedding", "execution");
  if (reserved_bits(cpp(*params)) != 0) [[unlikely]] return reserved_argument("prologue_embedding", "params", cpp(*params), "prologue_embedding_params_init");
  if (reserved_bits(cpp(*execution)) != 0) [[unlikely]] return reserved_argument("prologue_embedding", "execution", cpp(*execution), "prologue_execution_init");
  return call([&] { return prologue::embedding(cpp(*params), cpp(*execution)); });
}

prologue_status prologue_gate(const prologue_gate_params* params, const prologue_execution* execution) {
  if (params == nullptr) return null_argument("prologue_gate", "params");
  if (execution == nullptr) return null_argument("prologue_gate", "execution");
  if (reserved_bits(cpp(*params)) != 0) [[unlikely]] return reserved_argument("prologue_gate", "params", cpp(*params), "prologue_gate_params_init");
  if (reserved_bits(cpp(*execution)) != 0) [[unlikely]] return reserved_argument("prologue_gate", "execution", cpp(*execution), "prologue_execution_init");
  return call([&] { return prologue::gate(cpp(*params), cpp(*execution)); });
}

prologue_status prologue_gather_cos_sin(const prologue_gather_cos_sin_params* params, const prologue_execution* execution) {
  if (params == nullptr) return null_argument("prologue_gather_cos_sin", "params");
  if (execution == nullptr) return null_argument("prologue_gather_cos_sin", "execution");
  if (reserved_bits(cpp(*params)) != 0) [[unlikely]] return reserved_argument("prologue_gather_cos_sin", "params", cpp(*params), "prologue_gather_cos_sin_params_init");
  if (reserved_bits(cpp(*execution)) != 0) [[unlikely]] return reserved_argument("prologue_gather_cos_sin", "execution", cpp(*execution), "prologue_execution_init");
  return call([&] { return prologue::gather_cos_sin(cpp(*params), cpp(*execution)); });
}

prologue_status prologue_scale_logits(const prologue_scale_logits_params* params, const prologue_execution* execution) {
  if (params == nullptr) return null_argument("prologue_scale_logits", "params");
  if (execution == nullptr) return null_argument("prologue_scale_logits", "execution");
  if (reserved_bits(cpp(*params)) != 0) [[unlikely]] return reserved_argument("prologue_scale_logits", "params", cpp(*params), "prologue_scale_logits_params_init");
  if (reserved_bits(cpp(*execution)) != 0) [[unlikely]] return reserved_argument("prologue_scale_logits", "execution", cpp(*execution), "prologue_execution_init");
  return call([&] { return prologue::scale_logits(cpp(*params), cpp(*execution)); });
}

prologue_status prologue_sample(const prologue_sampling_params* params, const prologue_execution* execution) {
  if (params == nullptr) return null_argument("prologue_sample", "params");
  if (execution == nullptr) return null_argument("prologue_sample", "execution");
  if (reserved_bits(cpp(*params)) != 0) [[unlikely]] return reserved_argument("prologue_sample", "params", cpp(*params), "prologue_sampling_params_init");
  if (reserved_bits(cpp(*execution)) != 0) [[unlikely]] return reserved_argument("prologue_sample", "execution", cpp(*execution), "prologue_execution_init");
  return call([&] { return prologue::sample(cpp(*params), cpp(*execution)); });
}

prologue_status prologue_logprobs(const prologue_logprobs_params* params, const prologue_execution* execution) {
  if (params == nullptr) return null_argument("prologue_logprobs", "params");
  if (execution == nullptr) return null_argument("prologue_logprobs", "execution");
  if (reserved_bits(cpp(*params)) != 0) [[unlikely]] return reserved_argument("prologue_logprobs", "params", cpp(*params), "prologue_logprobs_params_init");
  if (reserved_bits(cpp(*execution)) != 0) [[unlikely]] return reserved_argument("prologue_logprobs", "execution", cpp(*execution), "prologue_execution_init");
  return call([&] { return prologue::logprobs(cpp(*params), cpp(*execution)); });
}

prologue_status prologue_end_step(const prologue_end_step_params* params, const prologue_execution* execution) {
  if (params == nullptr) return null_argument("prologue_end_step", "params");
  if (execution == nullptr) return null_argument("prologue_end_step", "execution");
  if (reserved_bits(cpp(*params)) != 0) [[unlikely]] return reserved_argument("prologue_end_step", "params", cpp(*params), "prologue_end_step_params_init");
  if (reserved_bits(cpp(*execution)) != 0) [[unlikely]] return reserved_argument("prologue_end_step", "execution", cpp(*execution), "prologue_execution_init");
  return call([&] { return prologue::end_step(cpp(*params), cpp(*execution)); });
}

prologue_status prologue_take_tokens(const prologue_take_tokens_params* params, const prologue_execution* execution) {
  if (params == nullptr) return null_argument("prologue_take_tokens", "params");
  if (execution == nullptr) return null_argument("prologue_take_tokens", "execution");
  if (reserved_bits(cpp(*params)) != 0) [[unlikely]] return reserved_argument("prologue_take_tokens", "params", cpp(*params), "prologue_take_tokens_params_init");
  if (reserved_bits(cpp(*execution)) != 0) [[unlikely]] return reserved_argument("prologue_take_tokens", "execution", cpp(*execution), "prologue_execution_init");
  return call([&] { return prologue::take_tokens(cpp(*params), cpp(*execution)); });
}

prologue_status prologue_create_communicators(const prologue_communicators_params* params, prologue_communicator** communicators) {
  if (params == nullptr) return null_argument("prologue_create_communicators", "params");
  if (reserved_bits(cpp(*params)) != 0) [[unlikely]] return reserved_argument("prologue_create_communicators", "params", cpp(*params), "prologue_communicators_params_init");
  return call([&] { return prologue::c::create_communicators(cpp(*params), reinterpret_cast<prologue::Communicator**>(communicators)); });
}

prologue_status prologue_communicator_meet(prologue_communicator* communicator) {
  if (communicator == nullptr) return null_argument("prologue_communicator_meet", "communicator");
  return call([&] { return prologue::c::communicator_meet(cpp(*communicator)); });
}

prologue_status prologue_communicator_abort(prologue_communicator* communicator, const char* message) {
  if (communicator == nullptr) return null_argument("prologue_communicator_abort", "communicator");
  return call([&] { return prologue::c::communicator_abort(cpp(*communicator), message); });
}

prologue_status prologue_communicator_status(const prologue_communicator* communicator) {
  if (communicator == nullptr) return null_argument("prologue_communicator_status", "communicator");
  return call([&] { return prologue::c::communicator_status(cpp(*communicator)); });
}

prologue_status prologue_all_reduce(const prologue_all_reduce_params* params, prologue_communicator* communicator, const prologue_execution* execution) {
  if (params == nullptr) return null_argument("prologue_all_reduce", "params");
  if (communicator == nullptr) return null_argument("prologue_all_reduce", "communicator");
  if (execution == nullptr) return null_argument("prologue_all_reduce", "execution");
  if (reserved_bits(cpp(*params)) != 0) [[unlikely]] return reserved_argument("prologue_all_reduce", "params", cpp(*params), "prologue_all_reduce_params_init");
  if (reserved_bits(cpp(*execution)) != 0) [[unlikely]] return reserved_argument("prologue_all_reduce", "execution", cpp(*execution), "prologue_execution_init");
  return call([&] { return prologue::all_reduce(cpp(*params), cpp(*communicator), cpp(*execution)); });
}

prologue_status prologue_all_gather_workspace_bytes(const prologue_all_gather_params* params, const prologue_communicator* communicator, int64_t* bytes) {
  if (params == nullptr) return null_argument("prologue_all_gather_workspace_bytes", "params");
  if (communicator == nullptr) return null_argument("prologue_all_gather_workspace_bytes", "communicator");
  if (bytes == nullptr) return null_argument("prologue_all_gather_workspace_bytes", "bytes");
  if (reserved_bits(cpp(*params)) != 0) [[unlikely]] return reserved_argument("prologue_all_gather_workspace_bytes", "params", cpp(*params), "prologue_all_gather_params_init");
  return call([&] { return *bytes = prologue::all_gather_workspace_bytes(cpp(*params), cpp(*communicator)), Status(); });
}

prologue_status prologue_all_gather(const prologue_all_gather_params* params, prologue_communicator* communicator, const prologue_execution* execution) {
  if (params == nullptr) return null_argument("prologue_all_gather", "params");
  if (communicator == nullptr) return null_argument("prologue_all_gather", "communicator");
  if (execution == nullptr) return null_argument("prologue_all_gather", "execution");
  if (reserved_bits(cpp(*params)) != 0) [[unlikely]] return reserved_argument("prologue_all_gather", "params", cpp(*params), "prologue_all_gather_params_init");
  if (reserved_bits(cpp(*execution)) != 0) [[unlikely]] return reserved_argument("prologue_all_gather", "execution", cpp(*execution), "prologue_execution_init");
  return call([&] { return prologue::all_gather(cpp(*params), cpp(*communicator), cpp(*execution)); });
}

void prologue_rotary_plan_destroy(prologue_rotary_plan* plan) { delete reinterpret_cast<prologue::RotaryPlan*>(plan); }
void prologue_attention_prologue_plan_destroy(prologue_attention_prologue_plan* plan) { delete reinterpret_cast<prologue::AttentionProloguePlan*>(plan); }
void prologue_gemm_context_destroy(prologue_gemm_context* context) { delete reinterpret_cast<prologue::GemmContext*>(context); }
void prologue_communicator_destroy(prologue_communicator* communicator) { delete reinterpret_cast<prologue::Communicator*>(communicator); }

}  // extern "C"
