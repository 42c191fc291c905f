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

std::unique_ptr<DescribedFamily> make_family(const AttentionPrologueParams& p, const CallFacts& facts, int64_t vector) {
  auto made = std::make_unique<DescribedFamily>();
  for (const DescribedSize& size : described_sizes(p, facts, vector)) {
    const std::optional<CallFacts> of_size = facts_of(p, size.vector);
    if (!of_size) return nullptr;
    const Result<DescribedKernel> kernel = make_kernel(p.dtype, *of_size, size);
    if (!kernel.ok()) return nullptr;
    made->instances.push_back({size, *of_size, *kernel});
  }
  made->family = {p.dtype, 0, static_cast<int>(vector), {}, nullptr, made.get()};
  return made;
}

// What is in it stays: plans point to it.
class Families {
 public:
  const DescribedFamily* find(const AttentionPrologueParams& p, bool makes) {
    if (!makes && count_.load(std::memory_order_acquire) == 0) return nullptr;
    if (!fits_32_bits(p)) return nullptr;
    const int64_t vector = widest_described_vector(p);
    const std::optional<CallFacts> facts = facts_of(p, vector);
    if (!facts) return nullptr;
    const Result<DeviceLimits> device = current_device();
    if (!device.ok()) return nullptr;
    const Key key = {device->major, device->minor, p.dtype, vector, packed(*facts)};
    {
      const std::lock_guard lock(mutex_);
      if (const auto found = families_.find(key); found != families_.end()) return found->second.get();
    }
    if (!makes) return nullptr;
    std::unique_ptr<DescribedFamily> made = make_family(p, *facts, vector);
    const std::lock_guard lock(mutex_);
    const DescribedFamily* family = families_.try_emplace(key, std::move(made)).first->second.get();
    count_.store(families_.size(), std::memory_order_release);
    return family;
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
  std::map<Key, std::unique_ptr<DescribedFamily>> families_;  // null: none could be made
  std::atomic<size_t> count_ = 0;
};

}  // namespace

bool can_be_described(const AttentionPrologueParams& params) {
  return fits_32_bits(params) && facts_of(params, widest_described_vector(params)).has_value();
}

const DescribedFamily* find_described(const AttentionPrologueParams& params, bool makes) {
  static Families& families = *new Families;  // used until the process ends
  return families.find(params, makes);
}

}  // namespace prologue::cuda
