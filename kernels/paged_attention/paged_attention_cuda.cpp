#include <algorithm>
#include <atomic>
#include <optional>
#include <tuple>

#include <prologue/kernels/paged_attention/attention_families.h>
#include <prologue/kernels/paged_attention/attention_launch.h>
#include <prologue/kernels/paged_attention/backends.h>
#include <prologue/kernels/paged_attention/decode_tiles_launch.h>
#include <prologue/kernels/paged_attention/instances.h>
#include <prologue/kernels/base/device/cuda_launch.cuh>
#include <prologue/kernels/base/device/tensor_map.cuh>

namespace prologue::cuda {

namespace {

constexpr int64_t kDecodeMaxRows = 4;  // query rows of a sequence up to which a decode kernel takes the launch

// Returns what decode runs: the first num_seqs sequences of the call (all, some or none), as a call of their own, so that they get the same
// bits in any batch. Prefill runs the others.
PagedAttentionParams decode_part(const PagedAttentionParams& params) {
  PagedAttentionParams p = params;
  if (p.max_seqlen_q > kDecodeMaxRows || p.num_decode_seqs == p.num_seqs) {
    p.num_seqs = p.num_decode_seqs;
    p.max_seqlen_q = 1;
  }
  if (p.batch_invariant) p.num_seqs = 0;
  return p;
}

// The families are in the order of preference: tensor cores if the call allows them, and those of Hopper first.
constexpr auto kDecodeFamilies = std::tie(kDecodeMlaFamily, kDecodeMmaFamily, kDecodeFamily);
constexpr auto kPrefillFamilies = std::tie(kPrefillWgmmaFamily, kPrefillFamily);

struct Gpu {
  size_t shared_bytes;  // that it allows a block
  bool wgmma;
};

// Calls take(family, instance) with the instance that each family chooses, until it returns true.
template <class Families, class Take>
void take_first(const Families& families, const PagedAttentionParams& params, const Gpu& gpu, const Take& take) {
  const auto takes = [&](const auto& family) {
    const auto* const instance = family.wgmma && !gpu.wgmma ? nullptr : family.choose(params, gpu.shared_bytes);
    return instance != nullptr && take(family, *instance);
  };
  std::apply([&](const auto&... family) { static_cast<void>((takes(family) || ...)); }, families);
}

// Runs the call with the first family that can. Returns nothing if no family can run it.
template <class Families>
std::optional<Status> run_first(const Families& families, const PagedAttentionParams& params, const Gpu& gpu, int64_t first_seq,
                                cudaStream_t stream) {
  std::optional<Status> status;
  take_first(families, params, gpu, [&](const auto& family, const auto& instance) {
    status = family.run(instance, params, first_seq, stream);
    return status.has_value();
  });
  return status;
}

template <class Families>
std::string name_of_first(const Families& families, const PagedAttentionParams& params, const Gpu& gpu) {
  std::string name;
  take_first(families, params, gpu, [&](const auto& family, const auto& instance) {
    name = family.name(instance);
    return true;
  });
  return name;
}

template <class Visit>
void for_each_family(const Visit& visit) {
  std::apply([&](const auto&... family) { (visit(family), ...); }, std::tuple_cat(kDecodeFamilies, kPrefillFamilies));
}

template <class Visit>
void for_each_instance(const Visit& visit) {
  for_each_family([&](const auto& family) {
    for (const auto table : family.tables) {
      for (const auto& instance : table()) visit(family, instance);
    }
  });
}

std::atomic<bool> wgmma_allowed = true;

}  // namespace

Status paged_attention(const PagedAttentionParams& params, const Execution& execution) {
  PROLOGUE_ASSIGN_OR_RETURN(const DeviceLimits device, current_device());
  const Gpu gpu = {static_cast<size_t>(device.shared_bytes_of_block), wgmma_allowed && wgmma_multiprocessors() > 0};
  const PagedAttentionParams decode = decode_part(params);
  if (decode.num_seqs > 0) {
    const std::optional<Status> status = run_first(kDecodeFamilies, decode, gpu, 0, execution.stream);
    if (!status) {
      return unsupported("paged_attention: head_dim ", largest_head_dim(params), " is larger than the largest decode kernel");
    }
    PROLOGUE_RETURN_IF_ERROR(*status);
  }
  if (decode.num_seqs == params.num_seqs) return {};
  const std::optional<Status> status = run_first(kPrefillFamilies, params, gpu, decode.num_seqs, execution.stream);
  if (status) return *status;
  return unsupported("paged_attention: no prefill kernel for head_dim ", largest_head_dim(params), " fits the ",
                     device.shared_bytes_of_block, " bytes of shared memory that a block may have on this GPU");
}

int64_t paged_attention_workspace_bytes(const PagedAttentionParams& params) {
  if (params.batch_invariant || !items_have_several_tiles(params)) return 0;
  int64_t bytes = 0;
  for_each_family([&](const auto& family) { bytes = std::max(bytes, family.workspace_bytes(params)); });
  return bytes;
}

std::vector<AttentionInstance> instances_of(const PagedAttentionParams& params) {
  std::vector<AttentionInstance> list;
  for_each_instance([&](const auto& family, const auto& instance) {
    if (!family.serves(instance, params)) return;
    list.push_back({family.name(instance), static_cast<int64_t>(family.shared_bytes(instance)), family.wgmma,
                    [&family, &instance](const PagedAttentionParams& p, cudaStream_t stream) {
                      const std::optional<Status> status = family.run(instance, p, 0, stream);
                      return status ? *status : unsupported("paged_attention: no tensor map for these strides");
                    }});
  });
  return list;
}

std::vector<std::string> paged_attention_instances() {
  std::vector<std::string> names;
  for_each_instance([&](const auto& family, const auto& instance) { names.push_back(family.name(instance)); });
  return names;
}

std::string chosen_decode_instance(const PagedAttentionParams& params, int64_t shared_bytes, bool wgmma) {
  const PagedAttentionParams decode = decode_part(params);
  if (decode.num_seqs == 0) return "";
  return name_of_first(kDecodeFamilies, decode, {static_cast<size_t>(shared_bytes), wgmma});
}

std::string chosen_prefill_instance(const PagedAttentionParams& params, int64_t shared_bytes, bool wgmma) {
  if (decode_part(params).num_seqs == params.num_seqs) return "";
  return name_of_first(kPrefillFamilies, params, {static_cast<size_t>(shared_bytes), wgmma});
}

bool runs_wgmma() { return wgmma_multiprocessors() > 0 && encode_tensor_map() != nullptr; }

void allow_wgmma(bool allowed) { wgmma_allowed = allowed; }

}  // namespace prologue::cuda
