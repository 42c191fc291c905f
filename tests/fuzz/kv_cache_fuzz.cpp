// kvcache: KvCache against a model of it (tests/support/kv_model.h), with any sequence of calls, and calls that break the
// contract among them; KvStorage, its copies of pages and its sizing with any configuration.
#include <prologue/kernels/base/kv_types.h>
#include <prologue/kvcache/kv_cache.h>
#include <prologue/kvcache/kv_storage.h>

#include "tests/fuzz/operation.h"
#include "tests/support/kv_model.h"

using namespace prologue;
using namespace prologue::fuzz;

namespace {

KvCacheConfig cache_config(Choices& choices) {
  KvCacheConfig config;
  config.page_size = choices.size(1, 5);
  for (int64_t count = choices.hostile() ? choices.integer(0, 20) : choices.integer(1, 3); count > 0; --count) {
    config.groups.push_back({choices.size(0, 30), choices.chance(2) ? 0 : choices.size(1, 12)});
  }
  config.prefix_reuse = !choices.chance(8);
  return config;
}

bool is_valid(const KvCacheConfig& config) {
  bool valid =
      config.page_size >= 1 && config.page_size <= INT32_MAX && !config.groups.empty() && config.groups.size() <= kMaxKvGroups;
  for (const KvGroup& group : config.groups)
    valid = valid && group.num_pages >= 0 && group.num_pages <= INT32_MAX && group.window >= 0;
  return valid;
}

void must_fail(const Status& status, const char* call) {
  if (status.ok()) fail(str_cat(call, " should not work"));
}

// Makes a call that the contract excludes: it returns an error, and nothing changes.
void call_wrongly(test::KvModel& model, Choices& choices) {
  KvCache& cache = model.cache();
  const SequenceId id = choices.absurd();
  if (!model.known(id)) {
    must_fail(cache.append(id, choices.absurd()), "append");
    must_fail(cache.reserve(id, choices.absurd()), "reserve");
    must_fail(cache.reserve_without_window(id, choices.absurd()), "reserve_without_window");
    must_fail(cache.room(id).status(), "room");
    must_fail(cache.num_reserved(id).status(), "num_reserved");
    must_fail(cache.truncate(id, choices.absurd()), "truncate");
    must_fail(cache.fork(id).status(), "fork");
    must_fail(cache.insert(id, {}), "insert");
    must_fail(cache.release_out_of_window(id), "release_out_of_window");
    must_fail(cache.free(id), "free");
    must_fail(cache.length(id).status(), "length");
    must_fail(cache.pages(id).status(), "pages");
    must_fail(cache.slot(id, 0).status(), "slot");
  }
  must_fail(cache.add_sequence({nullptr, choices.integer(1, 9)}, 4).status(), "add_sequence of null");
  if (model.live().empty()) return;
  const SequenceId known = model.live().front();
  const auto length = static_cast<int64_t>(model.tokens(known).size());
  const int64_t n = choices.absurd();
  if (n < 0 || n > 100000) must_fail(cache.append(known, n), "append");
  if (n < 0 || n > 100000) must_fail(cache.reserve(known, n), "reserve");
  if (n < 0 || n > length) must_fail(cache.truncate(known, n), "truncate");
  if (n < 0 || n >= model.num_groups()) {
    must_fail(cache.pages(known, n).status(), "pages");
    must_fail(cache.slot(known, 0, n).status(), "slot");
    if (cache.evict(n, 1) != 0) fail("a group that does not exist is evicted from");
  }
  if (n < 0) must_fail(cache.reserve_without_window(known, n), "reserve_without_window");
  if (n < 0) must_fail(cache.release_out_of_window(known, n), "release_out_of_window");
  if (n < 0) must_fail(cache.insert(known, {model.tokens(known).data(), n}), "insert");
  if (n < 0 || n > 100000) must_fail(cache.slot(known, n).status(), "slot");
}

void run_cache(Choices& choices) {
  const KvCacheConfig config = cache_config(choices);
  for (const KvGroup& group : config.groups)
    if (group.num_pages > 1000 && group.num_pages <= INT32_MAX) return;  // it might be had
  if (const bool made = KvCache::create(config).ok(); made != is_valid(config))
    fail("a configuration is accepted that is wrong, or not");
  if (!is_valid(config) || config.page_size > 100) return;
  test::KvModel model(config, [](const std::string& what) { fail(what); });
  for (int64_t steps = choices.integer(1, 60); steps > 0; --steps) {
    test::random_operation(model, choices);
    if (choices.hostile()) call_wrongly(model, choices);
    model.check_all();
  }
  model.finish();
}

struct StoragePart {
  void* data;
  int64_t bytes;
};

// Returns K, V, the scales of K or those of V.
StoragePart part_of(const PagedKvView& view, int part) {
  const PagedHeads& side = part % 2 == 0 ? view.k : view.v;
  const int64_t heads = num_slots(view) * view.num_kv_heads;
  if (part < 2) return {side.data, heads * side.head_dim * dtype_bits(side.format.type) / 8};
  const int64_t bytes = heads * KvStorageConfig::scale_bytes_per_head(side.format, side.head_dim);
  return {is_block_scaled(side.format) ? static_cast<void*>(side.block_scale) : side.scale, bytes};
}

// Whatever the configuration is, sizing returns an error, or pages that take no more than num_bytes.
void check_sizing(Choices& choices, KvStorageConfig config) {
  KvSizing sizing;
  for (int64_t i = choices.integer(0, 3); i > 0; --i) sizing.windows.push_back(choices.chance(2) ? 0 : choices.size(1, 50));
  sizing.max_seqs = choices.size(1, 20);
  sizing.max_step_tokens = choices.size(1, 100);
  const int64_t num_bytes = choices.size(0, 1 << 20);
  const Result<std::vector<int64_t>> pages = pages_that_fit(config, sizing, num_bytes);
  if (!pages.ok()) return;
  config.pages_of_group = *pages;
  for (int64_t group = 0; group < config.num_groups(); ++group) {
    if ((*pages)[static_cast<size_t>(group)] < 1) fail("a group gets no page");
  }
  if (num_bytes < (1 << 22) && KvStorage::create(config, Device::cpu).value().memory().size_bytes() > num_bytes) {
    fail("more pages than fit");
  }
}

// Whatever the configuration is, the storage returns an error, or its layers have memory of their own.
bool run_storage(Choices& choices) {
  KvStorageConfig config;
  config.num_layers = choices.size(1, 3);
  config.num_pages = choices.size(1, 4);
  config.page_size = choices.size(1, 4);
  config.num_kv_heads = choices.size(1, 3);
  config.head_dim = choices.head_dim();
  if (choices.chance(4)) config.v_head_dim = choices.head_dim();
  constexpr DType kTypes[] = {DType::f32,      DType::f16,  DType::bf16, DType::fp8_e4m3,
                              DType::fp8_e5m2, DType::int8, DType::int4, DType::uint4};
  const auto any_format = [&]() -> KvFormat {
    if (choices.chance(3)) return kv_format_of(choices.chance(2) ? "nvfp4" : choices.chance(2) ? "mxfp8" : "mxfp4");
    return computed_format(type_of(choices, kTypes));
  };
  config.k_format = any_format();
  if (choices.chance(3)) {
    for (int64_t i = choices.integer(1, 3); i > 0; --i) config.pages_of_group.push_back(choices.size(1, 4));
    for (int64_t i = 0; i < std::min<int64_t>(config.num_layers, 9); ++i) {
      config.group_of_layer.push_back(static_cast<int32_t>(choices.size(0, config.num_groups() - 1)));
    }
  }
  if (choices.chance(2)) config.v_format = any_format();
  check_sizing(choices, config);
  int64_t bytes = config.num_pages;
  if (!config.pages_of_group.empty()) bytes = *std::max_element(config.pages_of_group.begin(), config.pages_of_group.end());
  for (const int64_t n : {config.num_layers, config.page_size, config.num_kv_heads, std::max(config.head_dim, config.v_head_dim)})
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
  PageCopy copy;  // of a part of each layer onto itself, or an error
  copy.group = static_cast<int32_t>(choices.size(0, 2));
  copy.from = static_cast<int32_t>(choices.size(0, 3));
  copy.to = static_cast<int32_t>(choices.size(0, 3));
  (void)storage->copy_pages({copy}, {Device::cpu, 1});
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
