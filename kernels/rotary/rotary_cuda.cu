#include <prologue/kernels/attention_prologue/attention_prologue.h>
#include <prologue/kernels/rotary/rotary.h>
#include <prologue/kernels/base/cuda_launch.cuh>

namespace prologue::cuda {

Status attention_prologue(const AttentionPrologueParams& params, cudaStream_t stream);
Status rotary(const RotaryParams& params, cudaStream_t stream);

// The Q half of the fused kernel.
Status rotary(const RotaryParams& p, cudaStream_t stream) {
  AttentionPrologueParams fused;
  fused.num_tokens = p.num_tokens;
  fused.num_q_heads = p.num_heads;
  fused.head_dim = p.head_dim;
  fused.dtype = p.dtype;
  fused.q = p.x;
  fused.rotation.style = p.style;
  fused.rotation.rotary_dim = p.rotary_dim;
  fused.rotation.cos_sin = p.cos_sin_cache;
  fused.rotation.max_position = p.max_position;
  fused.places.positions = p.positions;
  fused.q_out = p.y;
  fused.faults = p.faults;
  return attention_prologue(fused, stream);
}

}  // namespace prologue::cuda
