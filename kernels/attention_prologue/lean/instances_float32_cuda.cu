#include <prologue/kernels/attention_prologue/general/schedule.cuh>
#include <prologue/kernels/attention_prologue/lean/instances.cuh>

namespace prologue::cuda {

namespace {

template <int kFeatures>
std::span<const Instance> for_all_sizes() {
  static const Instance kInstances[] = {
      instance<float, 4, 1, kEvictFirstLoads, kFeatures>(512, 64),
      instance<float, 4, 1, kEvictFirstLoads | kEvictFirstStores, kFeatures>(3072, 64),
      instance<float, 4, 2, kNoHints, kFeatures>(kAnyTokens, 192),
  };
  return kInstances;
}

}  // namespace

std::span<const Family> float32_families() {
  static const Family kFamilies[] = {
      {DType::f32, kLayouts, 4, for_all_sizes<kLayouts>(), nullptr},
      {DType::f32, kBias | kLayouts, 4, for_all_sizes<kBias | kLayouts>(), nullptr},
      {DType::f32, 0, 4, {}, general_prologue_kernel<float, 4>},
      {DType::f32, 0, 2, {}, general_prologue_kernel<float, 2>},
      {DType::f32, 0, 1, {}, general_prologue_kernel<float, 1>},
  };
  return kFamilies;
}

}  // namespace prologue::cuda
