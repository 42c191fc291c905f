// Projections one after another, each of which reads what the one before it has made, in one launch where there are few tokens: what a
// decoder does between the attention of one layer and that of the next.
//
//   for each of `projections`:  projection()                       output + residual, norm + gate_up + activation, down + residual
//   qkv_prologue()                                                 (optional) norm + QKV + attention prologue
//
//   projections  as projection.h describes them; all have the same num_tokens and dtype
//   qkv          as qkv_prologue.h describes it
//   counters     [kProjectionChainCounters] on the device, zeros before the first call. Calls leave zeros. Calls that run at the same
//                time need counters of their own. Null: separate launches
//   workspace    projection_chain_workspace_bytes() bytes or more, on the device, aligned to 16; contents undefined. Those of the
//                projections and of qkv are not looked at
//
// A projection may read (x) and update (y, adds) what the ones before it have made; other overlaps are as each operation has them.
// num_tokens = 0 is a no-op.
//
// Numerics: those of the operations, one after another. In one kernel each product is a sum in another order, as projection.h says. With
// batch_invariant of any of them all are separate.
//
// In one kernel a block for each SM stays for all projections: while it waits for the others between two of them, weights of the next are
// on their way. It is a cooperative launch: it begins when all SMs can take their block.
//
// The operation never allocates, synchronises or throws; on CUDA it can be captured into a graph.
#pragma once

#include <cstdint>

#include <prologue/kernels/base/execution.h>
#include <prologue/kernels/gemm/gemm.h>
#include <prologue/kernels/projection/projection.h>
#include <prologue/kernels/qkv_prologue/qkv_prologue.h>

namespace prologue {

inline constexpr int64_t kMostChainedProjections = 3;
inline constexpr int64_t kProjectionChainCounters = 8;

struct ProjectionChainParams {
  int64_t num_projections = 0;  // 1 to 3
  ProjectionParams projections[kMostChainedProjections];
  int32_t has_qkv = 0;
  QkvPrologueParams qkv;
  bool overlaps = false;  // the launch may begin while the kernels before it in the stream run; they must not write weights
  uint32_t* counters = nullptr;
  void* workspace = nullptr;
  int64_t workspace_bytes = 0;
  uint64_t reserved[8] = {};  // zeros: docs/versioning.md
};

// For calls with these sizes or fewer tokens. Sizes that validate() refuses need none.
PROLOGUE_API int64_t projection_chain_workspace_bytes(const ProjectionChainParams& params);

PROLOGUE_API Status validate(const ProjectionChainParams& params, const GemmContext& context, const Execution& execution);
PROLOGUE_API Status projection_chain(const ProjectionChainParams& params, GemmContext& context, const Execution& execution);

}  // namespace prologue
