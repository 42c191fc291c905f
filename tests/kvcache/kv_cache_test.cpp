#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <set>

#include <prologue/kvcache/kv_cache.h>
#include <prologue/kvcache/kv_storage.h>

#include "tests/support/random.h"
#include "tests/support/types.h"

namespace prologue {
namespace {

using test::Random;

TEST(PagePool, GivesEachPageOnceAndTakesItBack) {
  PagePool pool = PagePool::create(5).value();
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
  PagePool pool = PagePool::create(3).value();
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
  KvCache cache = KvCache::create(4, 16).value();
  const SequenceId a = cache.add_sequence().value();
  const SequenceId b = cache.add_sequence().value();
  ASSERT_TRUE(cache.append(a, 16).ok());
  ASSERT_TRUE(cache.append(b, 1).ok());
  ASSERT_TRUE(cache.append(a, 1).ok());
  EXPECT_EQ(cache.length(a).value(), 17);
  const std::vector<int32_t>& pages = *cache.pages(a).value();
  ASSERT_EQ(pages.size(), 2u);
  EXPECT_EQ(cache.slot(a, 16).value(), pages[1] * 16);
  EXPECT_EQ(cache.slot(a, 5).value(), pages[0] * 16 + 5);
  EXPECT_TRUE(cache.check_integrity().ok());
}

TEST(KvCache, OutOfPagesIsANormalResultThatChangesNothing) {
  KvCache cache = KvCache::create(3, 4).value();
  const SequenceId a = cache.add_sequence().value();
  const SequenceId b = cache.add_sequence().value();
  ASSERT_TRUE(cache.append(a, 8).ok());
  const Status status = cache.append(b, 5);
  EXPECT_EQ(status.code(), StatusCode::resource_exhausted);
  EXPECT_EQ(cache.length(b).value(), 0);
  EXPECT_EQ(cache.num_free_pages(), 1);
  ASSERT_TRUE(cache.free(a).ok());
  EXPECT_TRUE(cache.append(b, 5).ok());
  EXPECT_TRUE(cache.check_integrity().ok());
}

TEST(KvCache, UnknownSequencesAndNegativeLengthsAreNamed) {
  KvCache cache = KvCache::create(1, 1).value();
  EXPECT_EQ(cache.free(7).message(), "sequence 7 is not in the KV cache");
  const SequenceId a = cache.add_sequence().value();
  EXPECT_EQ(cache.append(a, -1).message(), "num_tokens is -1: a sequence only grows");
}

TEST(PagePool, SizesAreChecked) {
  for (const int64_t wrong : {int64_t{-1}, int64_t{1} << 31, INT64_MAX, INT64_MIN}) {
    EXPECT_EQ(PagePool::create(wrong).status().message(),
              str_cat("num_pages is ", wrong, ": it must be between 0 and 2147483647"));
    EXPECT_EQ(KvCache::create(wrong, 16).status().code(), StatusCode::invalid_argument);
  }
  PagePool none;
  std::vector<int32_t> pages;
  EXPECT_EQ(none.allocate(1, pages).code(), StatusCode::resource_exhausted);
  EXPECT_EQ(none.allocate(-1, pages).code(), StatusCode::invalid_argument);
  EXPECT_EQ(none.allocate(INT64_MAX, pages).code(), StatusCode::resource_exhausted);
  EXPECT_EQ(none.release({0}).code(), StatusCode::invalid_argument);
  EXPECT_TRUE(none.check_integrity().ok());
}

TEST(KvCache, PageSizesAreChecked) {
  for (const int64_t wrong : {int64_t{0}, int64_t{-1}, int64_t{1} << 31, INT64_MAX, INT64_MIN}) {
    EXPECT_EQ(KvCache::create(4, wrong).status().message(),
              str_cat("page_size is ", wrong, ": it must be between 1 and 2147483647"));
  }
  const KvCache largest = KvCache::create(0, INT32_MAX).value();
  EXPECT_EQ(largest.pages_for(INT64_MAX), int64_t{4294967298} + 1);
  EXPECT_EQ(largest.pages_for(0), 0);
}

// Ids that were never given, or have been freed, in every function that takes one.
TEST(KvCache, UnknownSequencesAreNotFoundEverywhere) {
  KvCache cache = KvCache::create(2, 4).value();
  const SequenceId freed = cache.add_sequence().value();
  ASSERT_TRUE(cache.append(freed, 1).ok());
  ASSERT_TRUE(cache.free(freed).ok());
  for (const SequenceId id : {freed, freed + 1, SequenceId{-1}, INT64_MAX, INT64_MIN}) {
    const std::string message = str_cat("sequence ", id, " is not in the KV cache");
    EXPECT_EQ(cache.length(id).status().message(), message);
    EXPECT_EQ(cache.pages(id).status().message(), message);
    EXPECT_EQ(cache.slot(id, 0).status().message(), message);
    EXPECT_EQ(cache.reserve(id, 1).message(), message);
    EXPECT_EQ(cache.append(id, 1).message(), message);
    EXPECT_EQ(cache.free(id).message(), message);
    EXPECT_EQ(cache.free(id).code(), StatusCode::not_found);
  }
  EXPECT_EQ(cache.num_free_pages(), 2);
  EXPECT_TRUE(cache.check_integrity().ok());
}

TEST(KvCache, SlotsLieWithinTheReservedPages) {
  KvCache cache = KvCache::create(3, 4).value();
  const SequenceId id = cache.add_sequence().value();
  EXPECT_EQ(cache.slot(id, 0).status().message(), "position is 0: sequence 0 has pages for 0 tokens");
  ASSERT_TRUE(cache.append(id, 5).ok());
  EXPECT_EQ(cache.slot(id, 7).value(), (*cache.pages(id).value())[1] * 4 + 3);  // reserved, not yet written
  for (const int64_t wrong : {int64_t{8}, int64_t{-1}, INT64_MAX, INT64_MIN}) {
    EXPECT_EQ(cache.slot(id, wrong).status().message(), str_cat("position is ", wrong, ": sequence 0 has pages for 8 tokens"));
  }
}

TEST(KvCache, LengthsThatOverflowAreOutOfPages) {
  for (const int64_t page_size : {1, 16, INT32_MAX}) {
    KvCache cache = KvCache::create(4, page_size).value();
    const SequenceId id = cache.add_sequence().value();
    ASSERT_TRUE(cache.append(id, 1).ok());
    for (const int64_t count : {INT64_MAX, INT64_MAX - 1, int64_t{1} << 62}) {
      EXPECT_EQ(cache.append(id, count).code(), StatusCode::resource_exhausted) << count;
      EXPECT_EQ(cache.reserve(id, count).code(), StatusCode::resource_exhausted) << count;
    }
    EXPECT_EQ(cache.append(id, INT64_MIN).code(), StatusCode::invalid_argument);
    EXPECT_EQ(cache.reserve(id, -1).message(), "num_tokens is -1: it must not be negative");
    EXPECT_EQ(cache.length(id).value(), 1);
    EXPECT_EQ(cache.num_free_pages(), 3);
    EXPECT_TRUE(cache.check_integrity().ok());
  }
}

TEST(KvCache, RandomUseKeepsIntegrity) {
  Random random(1);
  for (const int64_t page_size : {1, 3, 16}) {
    KvCache cache = KvCache::create(40, page_size).value();
    std::vector<SequenceId> live;
    for (int step = 0; step < 2000; ++step) {
      const int64_t action = random.integer(0, 9);
      if (live.empty() || action == 0) {
        live.push_back(cache.add_sequence().value());
      } else if (action == 1) {
        const size_t victim = static_cast<size_t>(random.integer(0, static_cast<int64_t>(live.size()) - 1));
        ASSERT_TRUE(cache.free(live[victim]).ok());
        live.erase(live.begin() + static_cast<int64_t>(victim));
      } else {
        const SequenceId id = live[static_cast<size_t>(random.integer(0, static_cast<int64_t>(live.size()) - 1))];
        const int64_t before = cache.length(id).value();
        const int64_t count = random.integer(0, 3 * page_size);
        const Status status = cache.append(id, count);
        EXPECT_EQ(cache.length(id).value(), status.ok() ? before + count : before);
      }
      ASSERT_TRUE(cache.check_integrity().ok()) << cache.check_integrity().message();
    }
  }
}

TEST(KvStorage, LayersAndTensorsDoNotOverlap) {
  const KvStorageConfig config{2, 3, 4, 2, 8, DType::bf16};
  auto storage = KvStorage::create(config, Device::cpu);
  ASSERT_TRUE(storage.ok());
  const int64_t tensor_bytes = 3 * 4 * 2 * 8 * 2;
  const auto* k0 = static_cast<unsigned char*>(storage->layer(0).k.data);
  EXPECT_EQ(static_cast<unsigned char*>(storage->layer(0).v.data) - k0, tensor_bytes);
  EXPECT_EQ(static_cast<unsigned char*>(storage->layer(1).k.data) - k0, 2 * tensor_bytes);
  EXPECT_EQ(num_slots(storage->layer(1)), 12);
  EXPECT_EQ(config.bytes_per_page() * config.num_pages, 4 * tensor_bytes);
}

// Data and scales of every layer are apart, aligned, and what bytes_per_page says; a float cache has no scales.
TEST(KvStorage, QuantisedTypesHaveScales) {
  for (const DType type : {DType::fp8_e4m3, DType::fp8_e5m2, DType::int8, DType::int4}) {
    const KvStorageConfig config{2, 3, 5, 1, 6, type};
    auto storage = KvStorage::create(config, Device::cpu);
    ASSERT_TRUE(storage.ok());
    const int64_t data_bytes = 3 * 5 * 6 * dtype_bits(type) / 8, scale_bytes = 3 * 5 * 4;
    EXPECT_EQ(config.bytes_per_page() * config.num_pages, 4 * (data_bytes + scale_bytes));
    std::vector<std::pair<const unsigned char*, int64_t>> arrays;
    for (const int64_t layer : {0, 1}) {
      const PagedKvView view = storage->layer(layer);
      for (const PagedHeads* side : {&view.k, &view.v}) {
        EXPECT_EQ(side->format.type, type);
        EXPECT_EQ(side->format.scaling, KvScaling::token_head);
      }
      EXPECT_EQ(view.k.scale_strides.page, 5);
      EXPECT_EQ(view.k.scale_strides.token, 1);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(view.k.scale) % 4, 0u);
      arrays.insert(arrays.end(), {{static_cast<unsigned char*>(view.k.data), data_bytes},
                                   {static_cast<unsigned char*>(view.v.data), data_bytes},
                                   {reinterpret_cast<unsigned char*>(view.k.scale), scale_bytes},
                                   {reinterpret_cast<unsigned char*>(view.v.scale), scale_bytes}});
    }
    std::sort(arrays.begin(), arrays.end());
    for (size_t i = 0; i + 1 < arrays.size(); ++i) EXPECT_LE(arrays[i].first + arrays[i].second, arrays[i + 1].first);
    EXPECT_LE(arrays.back().first + arrays.back().second,
              static_cast<unsigned char*>(storage->memory().data()) + storage->memory().size_bytes());
    EXPECT_LE(storage->memory().size_bytes(), config.bytes_per_page() * 3 + 8 * 15);  // gaps behind 8 arrays
  }
  auto storage = KvStorage::create({1, 1, 1, 1, 2, DType::f16}, Device::cpu);
  ASSERT_TRUE(storage.ok());
  EXPECT_EQ(storage->layer(0).k.format.scaling, KvScaling::none);
  EXPECT_EQ(storage->layer(0).k.scale, nullptr);
}

// K and V of types of their own: nothing overlaps, everything is aligned, and zero points are beside their scales.
TEST(KvStorage, KAndVHaveTypesOfTheirOwn) {
  constexpr DType kTypes[] = {DType::f32, DType::f16, DType::fp8_e4m3, DType::int8, DType::int4, DType::uint4};
  for (const DType k : kTypes) {
    for (const DType v : kTypes) {
      const KvStorageConfig config{3, 3, 5, 1, 6, k, v};
      const KvStorage storage = KvStorage::create(config, Device::cpu).value();
      int64_t total = 0;
      const unsigned char* end = nullptr;
      for (int64_t layer = 0; layer < 3; ++layer) {
        const PagedKvView view = storage.layer(layer);
        EXPECT_EQ(view.k.format.type, k);
        EXPECT_EQ(view.v.format.type, v);
        for (const PagedHeads* side : {&view.k, &view.v}) {
          EXPECT_EQ(side->scale_strides.head, side->format.type == DType::uint4       ? 2
                                              : dtype_is_quantized(side->format.type) ? 1
                                                                                      : 0);
        }
        const std::pair<const void*, int64_t> arrays[] = {{view.k.data, 90 * dtype_bits(k) / 8},
                                                          {view.v.data, 90 * dtype_bits(v) / 8},
                                                          {view.k.scale, 15 * 4 * view.k.scale_strides.head},
                                                          {view.v.scale, 15 * 4 * view.v.scale_strides.head}};
        for (const auto& [data, bytes] : arrays) {
          if (bytes == 0) continue;
          const auto* begin = static_cast<const unsigned char*>(data);
          EXPECT_EQ(reinterpret_cast<uintptr_t>(begin) % 16, 0u);
          EXPECT_TRUE(end == nullptr || begin >= end) << dtype_name(k) << ", " << dtype_name(v);
          end = begin + bytes;
          total += bytes;
        }
      }
      EXPECT_EQ(total, config.bytes_per_page() * config.num_pages);
      EXPECT_LE(end, static_cast<unsigned char*>(storage.memory().data()) + storage.memory().size_bytes());
    }
  }
  EXPECT_EQ(KvStorage::create({1, 1, 1, 1, 3, DType::int8, DType::uint4}, Device::cpu).status().message(),
            "KV cache: head_dim is 3: it must be even, two channels of uint4 share a byte");
  EXPECT_EQ(
      KvStorage::create({1, 1, 1, 1, 2, DType::int8, DType::int16}, Device::cpu).status().message(),
      "KV cache: the type of V is int16: supported are float32, float16, bfloat16, fp8_e4m3, fp8_e5m2, int8, int4 and uint4");
}

TEST(KvStorage, LayersThatDoNotExistHaveEmptyViews) {
  const KvStorage none;
  const KvStorage storage = KvStorage::create({2, 3, 4, 2, 8, DType::int8}, Device::cpu).value();
  for (const int64_t layer : {int64_t{2}, int64_t{-1}, INT64_MAX, INT64_MIN}) {
    EXPECT_EQ(storage.layer(layer).k.data, nullptr);
    EXPECT_EQ(num_slots(storage.layer(layer)), 0);
  }
  EXPECT_EQ(none.layer(0).v.data, nullptr);
}

TEST(KvStorage, SizesAreChecked) {
  KvStorageConfig config{2, 0, 4, 2, 8, DType::f32};
  EXPECT_EQ(KvStorage::create(config, Device::cpu).status().message(), "KV cache: num_pages is 0: it must be at least 1");
  config.num_pages = int64_t{1} << 60;
  EXPECT_EQ(KvStorage::create(config, Device::cpu).status().code(), StatusCode::resource_exhausted);
  EXPECT_EQ(KvStorage::create({1, 1, 1, 1, 3, DType::int4}, Device::cpu).status().message(),
            "KV cache: head_dim is 3: it must be even, two channels of int4 share a byte");
  EXPECT_EQ(
      KvStorage::create({1, 1, 1, 1, 2, DType::unset}, Device::cpu).status().message(),
      "KV cache: the type of K is unset: supported are float32, float16, bfloat16, fp8_e4m3, fp8_e5m2, int8, int4 and uint4");
  EXPECT_EQ(
      KvStorage::create({1, 1, 1, 1, 2, test::kNoType}, Device::cpu).status().message(),
      "KV cache: the type of K is unknown: supported are float32, float16, bfloat16, fp8_e4m3, fp8_e5m2, int8, int4 and uint4");
}

}  // namespace
}  // namespace prologue
