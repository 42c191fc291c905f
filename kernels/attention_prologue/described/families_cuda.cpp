#include <prologue/kernels/attention_prologue/described/families.h>

#include <algorithm>
#include <atomic>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <tuple>

#include <prologue/kernels/attention_prologue/prologue_choice.h>
#include <prologue/kernels/base/device/device_limits.cuh>

namespace prologue::cuda {

namespace {

// Returns the family of a call, of which nothing is made.
std::unique_ptr<DescribedFamily> family_of(const AttentionPrologueParams& p, const CallFacts& facts, int64_t vector) {
  auto family = std::make_unique<DescribedFamily>();
  for (const DescribedSize& size : described_sizes(p.dtype, facts, vector)) {
    const std::optional<CallFacts> of_size = facts_of(p, size.vector);
    if (of_size) family->instances.push_back({size, *of_size, {}});
  }
  family->family = {p.dtype, 0, static_cast<int>(vector), {}, nullptr, family.get()};
  return family;
}

// What is in it stays: plans point to it. A plan reads the kernels that were there when it was made, so only the others are written.
class Families {
 public:
  const DescribedFamily* find(const AttentionPrologueParams& p, Making making) {
    if (making == Making::nothing && count_.load(std::memory_order_acquire) == 0) return nullptr;
    if (!fits_32_bits(p)) return nullptr;
    const int64_t vector = widest_described_vector(p);
    const std::optional<CallFacts> facts = facts_of(p, vector);
    const Result<DeviceLimits> device = current_device();
    if (!facts || !device.ok()) return nullptr;
    const Key key = {device->major, device->minor, p.dtype, vector, packed(*facts)};

    std::unique_lock lock(mutex_);
    auto found = families_.find(key);
    if (found == families_.end()) {
      if (making == Making::nothing) return nullptr;
      found = families_.try_emplace(key, family_of(p, *facts, vector)).first;
      count_.store(families_.size(), std::memory_order_release);
    }
    DescribedFamily& family = *found->second;
    for (DescribedInstance& instance : family.instances) {
      const bool is_last = p.num_tokens <= instance.size.max_tokens;
      if (family.failed) return nullptr;
      if (instance.kernel.kernel == nullptr && (making != Making::nothing || is_last)) {
        if (making == Making::nothing) return nullptr;
        lock.unlock();  // other calls go on; who needs the same kernel waits for it in compile()
        const Result<DescribedKernel> kernel = make_kernel(p.dtype, instance.facts, instance.size);
        lock.lock();
        if (kernel.ok()) instance.kernel = *kernel;
        family.failed = family.failed || !kernel.ok();
        if (family.failed) return nullptr;
      }
      if (is_last && making != Making::everything) break;
    }
    return &family;
  }

 private:
  struct Key {
    int major, minor;  // of the device
    DType dtype;
    int64_t vector;
    PackedFacts facts;

    bool operator<(const Key& other) const {
      const auto numbers = [](const Key& key) { return std::tuple(key.major, key.minor, key.dtype, key.vector); };
      if (numbers(*this) != numbers(other)) return numbers(*this) < numbers(other);
      return std::lexicographical_compare(std::begin(facts.words), std::end(facts.words), std::begin(other.facts.words),
                                          std::end(other.facts.words));
    }
  };

  std::mutex mutex_;
  std::map<Key, std::unique_ptr<DescribedFamily>> families_;
  std::atomic<size_t> count_ = 0;
};

}  // namespace

bool can_be_described(const AttentionPrologueParams& params) {
  return fits_32_bits(params) && facts_of(params, widest_described_vector(params)).has_value();
}

const DescribedFamily* find_described(const AttentionPrologueParams& params, Making making) {
  static Families& families = *new Families;  // used until the process ends
  return families.find(params, making);
}

}  // namespace prologue::cuda
