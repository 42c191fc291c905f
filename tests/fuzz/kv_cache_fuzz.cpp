// kvcache: KvCache and PagePool against a model of four lines, with any sequence of calls; KvStorage with any configuration.
#include <map>

#include <prologue/kvcache/kv_cache.h>
#include <prologue/kvcache/kv_storage.h>

#include "tests/fuzz/operation.h"

using namespace prologue;
using namespace prologue::fuzz;

namespace {

struct Model {
  int64_t page_size = 0;
  int64_t num_pages = 0;
  std::map<SequenceId, int64_t> lengths;   // tokens
  std::map<SequenceId, int64_t> reserved;  // pages
  int64_t num_free() const {
    int64_t num_taken = 0;
    for (const auto& [id, pages] : reserved) num_taken += pages;
    return num_pages - num_taken;
  }
};

void check_same(const KvCache& cache, const Model& model, const char* after) {
  if (const Status status = cache.check_integrity(); !status.ok()) fail(str_cat(after, ": ", status.message()));
  if (cache.num_free_pages() != model.num_free())
    fail(str_cat(after, ": ", cache.num_free_pages(), " pages are free, not ", model.num_free()));
  for (const auto& [id, length] : model.lengths) {
    const auto found = cache.length(id);
    const auto pages = cache.pages(id);
    if (!found.ok() || !pages.ok()) fail(str_cat(after, ": sequence ", id, " is lost"));
    if (*found != length) fail(str_cat(after, ": sequence ", id, " has ", *found, " tokens, not ", length));
    if (static_cast<int64_t>((*pages)->size()) != model.reserved.at(id)) fail(str_cat(after, ": wrong number of pages"));
  }
}

// What reserve() must do: pages that `num_tokens` need, or nothing and false.
bool reserve(Model& model, SequenceId id, int64_t num_tokens) {
  const int64_t needed = num_tokens <= 0 ? 0 : (num_tokens - 1) / model.page_size + 1;
  const int64_t missing = needed - model.reserved.at(id);
  if (missing > model.num_free()) return false;
  if (missing > 0) model.reserved[id] = needed;
  return true;
}

void run_cache(Choices& choices) {
  Model model;
  model.num_pages = choices.size(0, 12);
  model.page_size = choices.size(1, 5);
  if (model.num_pages > 1000 && model.num_pages <= INT32_MAX) return;  // it might be had
  const bool valid = model.num_pages >= 0 && model.num_pages <= INT32_MAX && model.page_size >= 1 && model.page_size <= INT32_MAX;
  Result<KvCache> made = KvCache::create(model.num_pages, model.page_size);
  if (made.ok() != valid) fail(str_cat(model.num_pages, " pages of ", model.page_size, " should ", valid ? "" : "not ", "work"));
  if (!made.ok()) return;
  KvCache& cache = *made;
  for (int64_t steps = choices.integer(1, 40); steps > 0; --steps) {
    const SequenceId id = choices.hostile() ? choices.absurd() : choices.integer(0, 4);
    const bool known = model.lengths.count(id) != 0;
    const int64_t num_tokens = choices.size(0, 20);
    switch (choices.integer(0, 4)) {
      case 0: {
        if (model.lengths.size() > 8) break;
        const Result<SequenceId> added = cache.add_sequence();
        if (!added.ok() || model.lengths.count(*added) != 0) fail("add_sequence");
        model.lengths[*added] = model.reserved[*added] = 0;
        check_same(cache, model, "add_sequence");
        break;
      }
      case 1: {
        const bool expected = known && num_tokens >= 0 && num_tokens <= INT64_MAX - model.lengths.at(id) &&
                              reserve(model, id, model.lengths.at(id) + num_tokens);
        if (cache.append(id, num_tokens).ok() != expected)
          fail(str_cat("append(", id, ", ", num_tokens, ") should ", expected ? "" : "not ", "work"));
        if (expected) model.lengths[id] += num_tokens;
        check_same(cache, model, "append");
        break;
      }
      case 2: {
        const bool expected = known && num_tokens >= 0 && reserve(model, id, num_tokens);
        if (cache.reserve(id, num_tokens).ok() != expected)
          fail(str_cat("reserve(", id, ", ", num_tokens, ") should ", expected ? "" : "not ", "work"));
        check_same(cache, model, "reserve");
        break;
      }
      case 3: {
        if (cache.free(id).ok() != known) fail(str_cat("free(", id, ") should ", known ? "" : "not ", "work"));
        model.lengths.erase(id);
        model.reserved.erase(id);
        check_same(cache, model, "free");
        break;
      }
      default: {
        const int64_t num_slots = known ? times(model.reserved.at(id), model.page_size) : 0;
        for (const int64_t position : {int64_t{-1}, num_slots, choices.absurd()})
          if ((position < 0 || position >= num_slots) && cache.slot(id, position).ok())
            fail(str_cat("position ", position, " of sequence ", id, " has a slot"));
        std::map<int64_t, int64_t> seen;
        for (int64_t position = 0; position < std::min<int64_t>(num_slots, 100); ++position) {
          const Result<int64_t> slot = cache.slot(id, position);
          if (!slot.ok() || *slot < 0 || *slot >= model.num_pages * model.page_size || seen[*slot]++ > 0 ||
              *slot % model.page_size != position % model.page_size)
            fail(str_cat("position ", position, " of sequence ", id, " has no slot, or a wrong one"));
        }
      }
    }
  }
}

struct StoragePart {
  void* data;
  int64_t bytes;
};

// K, V, the scales of K or those of V.
StoragePart part_of(const PagedKvView& view, int part) {
  const PagedHeads& side = part % 2 == 0 ? view.k : view.v;
  const int64_t heads = num_slots(view) * view.num_kv_heads;
  if (part < 2) return {side.data, heads * side.head_dim * dtype_bits(side.format.type) / 8};
  return {side.scale, heads * scales_of_head(side.format) * 4};
}

// Whatever the configuration: an error, or layers that lie in memory of their own.
bool run_storage(Choices& choices) {
  KvStorageConfig config;
  config.num_layers = choices.size(1, 3);
  config.num_pages = choices.size(1, 4);
  config.page_size = choices.size(1, 4);
  config.num_kv_heads = choices.size(1, 3);
  config.head_dim = choices.head_dim();
  constexpr DType kTypes[] = {DType::f32, DType::f16, DType::bf16, DType::fp8_e4m3, DType::fp8_e5m2, DType::int8, DType::int4, DType::uint4};
  config.k_type = type_of(choices, kTypes);
  if (choices.chance(2)) config.v_type = type_of(choices, kTypes);
  int64_t bytes = 1;
  for (const int64_t n : {config.num_layers, config.num_pages, config.page_size, config.num_kv_heads, config.head_dim})
    bytes = times(bytes, n);
  if (bytes > (1 << 22) && bytes < (int64_t{1} << 50)) return false;  // it might be had
  const Result<KvStorage> storage = KvStorage::create(config, Device::cpu);
  if (!storage.ok()) return false;
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    const PagedKvView view = storage->layer(layer);
    for (int i = 0; i < 4; ++i) {
      const StoragePart part = part_of(view, i);
      if (part.bytes > 0) std::memset(part.data, i + 1, static_cast<size_t>(part.bytes));
    }
  }
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    const PagedKvView view = storage->layer(layer);
    for (int i = 0; i < 4; ++i) {
      const StoragePart part = part_of(view, i);
      for (int64_t j = 0; j < part.bytes; ++j)
        if (static_cast<const char*>(part.data)[j] != i + 1) fail("two parts of a KvStorage overlap");
    }
  }
  return true;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static Tally tally("kv_cache");
  Choices choices(data, size);
  if (choices.chance(8)) {
    tally.count(run_storage(choices));
  } else {
    run_cache(choices);
    tally.count(true);
  }
  return 0;
}
