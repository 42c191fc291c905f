// Declares the instances that ship: tables, one per element type (instances_*_cuda.cu), which are searched in order.
#pragma once

#include <cstdint>
#include <limits>
#include <span>

#include <prologue/kernels/attention_prologue/prologue_args.h>

namespace prologue::cuda {

struct Instance {
  int64_t max_tokens;
  int vector;                // channels in one access
  int units;                 // heads per thread
  int threads;               // of a block, at most
  bool groups;               // tokens (TokenGroup): for calls of few heads alone
  void (*plain)(PlainArgs);  // one of the three
  void (*lean)(LeanArgs);
  void (*more)(MostStepsArgs);
};

struct DescribedFamily;

// Holds what a call, or a plan, chooses: the instances of one set of features, for more and more tokens; or the general kernel; or kernels that
// were made for the call.
struct Family {
  DType dtype;
  int features;
  int vector;  // the widest of its instances, among them the last
  std::span<const Instance> instances;
  void (*general)(GeneralArgs);
  const DescribedFamily* described = nullptr;
};

std::span<const Family> float32_families();
std::span<const Family> float16_families();
std::span<const Family> bfloat16_families();

inline constexpr int64_t kAnyTokens = std::numeric_limits<int64_t>::max();

}  // namespace prologue::cuda
