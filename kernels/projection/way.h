// A way is how the weights of a projection get to the tensor cores. Each has a folder, and says there which sizes it is for:
//
//   vector     1 token: a warp's rows of the weights are in registers before there is an x
//   ring       2 to 64 tokens: weights and x pass by TMA through a ring of stages in shared memory; one block has all of k, or half of it
//   registers  up to 16 tokens: cooperating blocks divide k, and weights stream through registers
//   integer    1 or 2 tokens with packed weights, whose codes and x are multiplied as whole numbers
//   unpacking  3 to 64 tokens with packed weights: they and x pass through stages; codes are multiplied as they are, or made 16 bits
//   tiles      prompts: tiles of x W^T by wgmma; other warps finish a tile while the next one is multiplied
//
// A finisher (finish/) is what is done to the product, in the same kernel: output, a linear layer's bias, activation and residual; head,
// the attention prologue. A way has a kernel for each finisher, and a Way in the finisher's table; policy.h says which one a call takes.
#pragma once

#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <prologue/kernels/attention_prologue/attention_prologue.h>
#include <prologue/kernels/base/dtype.h>
#include <prologue/kernels/base/execution.h>
#include <prologue/kernels/base/status.h>
#include <prologue/kernels/projection/projection.h>

namespace prologue {

namespace cuda {

// Holds a kernel that was chosen for a call, and everything that its launch takes. Each kernel has two arguments, the product's and the
// finisher's.
struct Launch {
  const char* operation = nullptr;  // for errors
  const char* way = nullptr;        // its name
  void (*kernel)() = nullptr;
  Status (*start)(const Launch& launch, CUstream_st* stream) = nullptr;  // which knows the types of the kernel and its arguments
  int64_t blocks = 0;
  int64_t shared_bytes = 0;
  int threads = 0;
  int cluster_blocks = 1;
  bool overlaps = false;
  bool follows_norm = false;  // the way does not apply the call's norm: it is an operation of its own, before this launch
  alignas(64) unsigned char product[640] = {};
  alignas(16) unsigned char finish[1024] = {};
};

// Describes what every way multiplies: norm(x) [num_tokens, k] times weight [n, k], n of gate and up together.
struct Product {
  DType dtype = DType::unset;
  int64_t num_tokens = 0;
  int64_t n = 0;
  int64_t k = 0;
  const void* x = nullptr;
  int64_t x_stride = 0;
  InputNorm norm;
  const void* weight = nullptr;
  PackedWeight packed = {};  // instead of `weight`
};

// This is a launch that can do a call, whether or not it is the fastest: what tests run.
template <class Call>
struct PossibleLaunch {
  std::string name;        // of the instance, a comma, and how the launch is divided
  int64_t max_tokens = 0;  // of a call for which policy.h chooses it
  std::function<std::optional<Launch>(const Call& call)> of;
};

// Describes one way with one finisher, whose calls these are.
template <class Call>
struct Way {
  const char* name;
  int64_t most_tokens;                                                       // 0: it is for prompts
  bool applies_norm;                                                         // otherwise the norm is an operation of its own
  bool reads_packed;                                                         // its kernels take packed weights
  bool (*runs_here)();                                                       // the current device has its code
  std::vector<std::string> (*instances)(DType type);                         // the names of its kernels for a type
  void (*possible)(const Call& call, std::vector<PossibleLaunch<Call>>& l);  // adds every launch that can do the call
  std::optional<Launch> (*choose)(const Call& call);  // nothing: it cannot do the call, or is not the fastest
};

// Describes the product, and the prologue of its result: q, k and v of `prologue` are any addresses, with the strides of a packed result.
struct HeadCall {
  Product product;
  AttentionPrologueParams prologue;
  bool batch_invariant = false;
  bool overlaps = false;
};

// The ways with each finisher, in the order in which they are asked.
extern const Way<ProjectionParams> kVectorOutput, kRingOutput, kIntegerOutput, kUnpackingOutput, kRegistersOutput, kTilesOutput;
inline constexpr const Way<ProjectionParams>* kOutputWays[] = {&kVectorOutput,    &kRingOutput,      &kIntegerOutput,
                                                               &kUnpackingOutput, &kRegistersOutput, &kTilesOutput};
extern const Way<HeadCall> kVectorHeads, kRingHeads, kIntegerHeads, kRegistersHeads, kTilesHeads;
inline constexpr const Way<HeadCall>* kHeadWays[] = {&kVectorHeads, &kRingHeads, &kIntegerHeads, &kRegistersHeads, &kTilesHeads};

}  // namespace cuda

// Keeps the choice for a call for the next call: a node of a graph mostly has the parameters that it had in the step before. It is made
// again if any parameter differs, so whatever it depends on, pointers in tensor maps too, is as it was. One thread uses it at a time.
template <class Params>
class KeptLaunch {
 public:
  template <class Choose>
  const std::optional<cuda::Launch>& of(const Params& params, const Choose& choose) {
    if (!chosen_ || std::memcmp(params_, &params, sizeof params) != 0) {
      launch_ = choose(params);
      std::memcpy(params_, &params, sizeof params);
      chosen_ = true;
    }
    return launch_;
  }

 private:
  bool chosen_ = false;
  unsigned char params_[sizeof(Params)] = {};
  std::optional<cuda::Launch> launch_;
};

}  // namespace prologue
