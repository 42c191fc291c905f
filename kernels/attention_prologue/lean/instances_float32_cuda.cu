#include <prologue/kernels/attention_prologue/general/schedule.cuh>
#include <prologue/kernels/attention_prologue/lean/instances.cuh>

namespace prologue::cuda {

namespace {

template <int kFeatures>
Family all_sizes() {
  static const Instance kInstances[] = {
      instance<float, 4, 1, kEvictFirstLoads, kFeatures>(512, 64),
      instance<float, 4, 2, kNoHints, kFeatures>(kAnyTokens, 192),
  };
  return {DType::f32, kFeatures, 4, kInstances, nullptr};
}

}  // namespace

std::span<const Family> float32_families() {
  static const Family kFamilies[] = {
      all_sizes<kLayouts>(),
      all_sizes<kBias | kLayouts>(),
      {DType::f32, 0, 4, {}, general_prologue_kernel<float, 4>},
      {DType::f32, 0, 2, {}, general_prologue_kernel<float, 2>},
      {DType::f32, 0, 1, {}, general_prologue_kernel<float, 1>},
  };
  return kFamilies;
}

}  // namespace prologue::cuda
