#include <gtest/gtest.h>

#include <algorithm>

#include <set>

#include <prologue/kvcache/kv_cache.h>
#include <prologue/kvcache/kv_storage.h>

#include "tests/support/random.h"

namespace prologue {
namespace {

using test::Random;

TEST(PagePool, GivesEachPageOnceAndTakesItBack) {
  PagePool pool(5);
  std::vector<int32_t> pages;
  ASSERT_TRUE(pool.allocate(5, pages).ok());
  EXPECT_EQ(std::set<int32_t>(pages.begin(), pages.end()).size(), 5u);
  const Status status = pool.allocate(1, pages);
  EXPECT_EQ(status.code(), StatusCode::resource_exhausted);
  EXPECT_EQ(status.message(), "the KV cache is out of pages: 1 asked for, 0 of 5 free");
  EXPECT_EQ(pages.size(), 5u);
  ASSERT_TRUE(pool.release({pages[2], pages[4]}).ok());
  EXPECT_EQ(pool.num_free(), 2);
  EXPECT_TRUE(pool.check_integrity().ok());
}

TEST(PagePool, RefusesToReleaseWhatIsNotTakenAndChangesNothing) {
  PagePool pool(3);
  std::vector<int32_t> pages;
  ASSERT_TRUE(pool.allocate(2, pages).ok());
  for (const int32_t wrong : {2, 3, -1, pages[0]}) {
    const Status status = pool.release({pages[0], wrong});
    EXPECT_EQ(status.code(), StatusCode::invalid_argument);
    EXPECT_EQ(status.message(), str_cat("page ", wrong, " is released, but it is not taken (the pool has pages 0 to 2)"));
    EXPECT_EQ(pool.num_free(), 1);
    EXPECT_TRUE(pool.check_integrity().ok());
  }
}

TEST(KvCache, AppendCrossesPagesAndSlotsFollowTheBlockTable) {
  KvCache cache(4, 16);
  const SequenceId a = cache.add_sequence();
  const SequenceId b = cache.add_sequence();
  ASSERT_TRUE(cache.append(a, 16).ok());
  ASSERT_TRUE(cache.append(b, 1).ok());
  ASSERT_TRUE(cache.append(a, 1).ok());
  EXPECT_EQ(cache.length(a), 17);
  ASSERT_EQ(cache.pages(a).size(), 2u);
  EXPECT_EQ(cache.slot(a, 16), cache.pages(a)[1] * 16);
  EXPECT_EQ(cache.slot(a, 5), cache.pages(a)[0] * 16 + 5);
  EXPECT_TRUE(cache.check_integrity().ok());
}

TEST(KvCache, OutOfPagesIsANormalResultThatChangesNothing) {
  KvCache cache(3, 4);
  const SequenceId a = cache.add_sequence();
  const SequenceId b = cache.add_sequence();
  ASSERT_TRUE(cache.append(a, 8).ok());
  const Status status = cache.append(b, 5);
  EXPECT_EQ(status.code(), StatusCode::resource_exhausted);
  EXPECT_EQ(cache.length(b), 0);
  EXPECT_EQ(cache.num_free_pages(), 1);
  ASSERT_TRUE(cache.free(a).ok());
  EXPECT_TRUE(cache.append(b, 5).ok());
  EXPECT_TRUE(cache.check_integrity().ok());
}

TEST(KvCache, UnknownSequencesAndNegativeLengthsAreNamed) {
  KvCache cache(1, 1);
  EXPECT_EQ(cache.free(7).message(), "sequence 7 is not in the KV cache");
  const SequenceId a = cache.add_sequence();
  EXPECT_EQ(cache.append(a, -1).message(), "num_tokens is -1: a sequence only grows");
}

TEST(KvCache, RandomUseKeepsIntegrity) {
  Random random(1);
  for (const int64_t page_size : {1, 3, 16}) {
    KvCache cache(40, page_size);
    std::vector<SequenceId> live;
    for (int step = 0; step < 2000; ++step) {
      const int64_t action = random.integer(0, 9);
      if (live.empty() || action == 0) {
        live.push_back(cache.add_sequence());
      } else if (action == 1) {
        const size_t victim = static_cast<size_t>(random.integer(0, static_cast<int64_t>(live.size()) - 1));
        ASSERT_TRUE(cache.free(live[victim]).ok());
        live.erase(live.begin() + static_cast<int64_t>(victim));
      } else {
        const SequenceId id = live[static_cast<size_t>(random.integer(0, static_cast<int64_t>(live.size()) - 1))];
        const int64_t before = cache.length(id);
        const int64_t count = random.integer(0, 3 * page_size);
        const Status status = cache.append(id, count);
        EXPECT_EQ(cache.length(id), status.ok() ? before + count : before);
      }
      ASSERT_TRUE(cache.check_integrity().ok()) << cache.check_integrity().message();
    }
  }
}

TEST(KvStorage, LayersAndTensorsDoNotOverlap) {
  const KvStorageConfig config{2, 3, 4, 2, 8, KvType::bf16};
  auto storage = KvStorage::create(config, Device::cpu);
  ASSERT_TRUE(storage.ok());
  const int64_t tensor_bytes = 3 * 4 * 2 * 8 * 2;
  const auto* k0 = static_cast<unsigned char*>(storage->layer(0).k);
  EXPECT_EQ(static_cast<unsigned char*>(storage->layer(0).v) - k0, tensor_bytes);
  EXPECT_EQ(static_cast<unsigned char*>(storage->layer(1).k) - k0, 2 * tensor_bytes);
  EXPECT_EQ(storage->layer(1).num_slots(), 12);
  EXPECT_EQ(config.bytes_per_page() * config.num_pages, 4 * tensor_bytes);
}

// Data and scales of every layer are apart, aligned, and what bytes_per_page says; a float cache has no scales.
TEST(KvStorage, QuantisedTypesHaveScales) {
  for (const KvType type : {KvType::fp8_e4m3, KvType::fp8_e5m2, KvType::int8, KvType::int4}) {
    const KvStorageConfig config{2, 3, 5, 1, 6, type};
    auto storage = KvStorage::create(config, Device::cpu);
    ASSERT_TRUE(storage.ok());
    const int64_t data_bytes = 3 * 5 * 6 * kv_type_bits(type) / 8, scale_bytes = 3 * 5 * 4;
    EXPECT_EQ(config.bytes_per_page() * config.num_pages, 4 * (data_bytes + scale_bytes));
    std::vector<std::pair<const unsigned char*, int64_t>> arrays;
    for (const int64_t layer : {0, 1}) {
      const PagedKvView view = storage->layer(layer);
      EXPECT_EQ(view.type, type);
      EXPECT_EQ(view.scaling, KvScaling::token_head);
      EXPECT_EQ(view.k_scale_strides.page, 5);
      EXPECT_EQ(view.k_scale_strides.token, 1);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(view.k_scale) % 4, 0u);
      arrays.insert(arrays.end(), {{static_cast<unsigned char*>(view.k), data_bytes},
                                   {static_cast<unsigned char*>(view.v), data_bytes},
                                   {reinterpret_cast<unsigned char*>(view.k_scale), scale_bytes},
                                   {reinterpret_cast<unsigned char*>(view.v_scale), scale_bytes}});
    }
    std::sort(arrays.begin(), arrays.end());
    for (size_t i = 0; i + 1 < arrays.size(); ++i) EXPECT_LE(arrays[i].first + arrays[i].second, arrays[i + 1].first);
    EXPECT_LE(arrays.back().first + arrays.back().second, arrays.front().first + config.bytes_per_page() * 3 + 16);
  }
  auto storage = KvStorage::create({1, 1, 1, 1, 2, KvType::f16}, Device::cpu);
  ASSERT_TRUE(storage.ok());
  EXPECT_EQ(storage->layer(0).scaling, KvScaling::none);
  EXPECT_EQ(storage->layer(0).k_scale, nullptr);
}

TEST(KvStorage, SizesAreChecked) {
  KvStorageConfig config{2, 0, 4, 2, 8, KvType::f32};
  EXPECT_EQ(KvStorage::create(config, Device::cpu).status().message(), "KV cache: num_pages is 0: it must be at least 1");
  config.num_pages = int64_t{1} << 60;
  EXPECT_EQ(KvStorage::create(config, Device::cpu).status().code(), StatusCode::resource_exhausted);
  EXPECT_EQ(KvStorage::create({1, 1, 1, 1, 3, KvType::int4}, Device::cpu).status().message(),
            "KV cache: head_dim is 3: it must be even, two channels of int4 share a byte");
  EXPECT_EQ(KvStorage::create({1, 1, 1, 1, 2, KvType::as_dtype}, Device::cpu).status().message(),
            "KV cache: type is the unknown type 0: supported are float32, float16, bfloat16, fp8_e4m3, fp8_e5m2, int8 and int4");
  EXPECT_EQ(KvStorage::create({1, 1, 1, 1, 2, static_cast<KvType>(8)}, Device::cpu).status().message(),
            "KV cache: type is the unknown type 8: supported are float32, float16, bfloat16, fp8_e4m3, fp8_e5m2, int8 and int4");
}

}  // namespace
}  // namespace prologue
