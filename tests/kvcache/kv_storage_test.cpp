#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <prologue/kernels/base/kv_types.h>
#include <prologue/kvcache/kv_storage.h>

#include "tests/support/arena.h"
#include "tests/support/types.h"

namespace prologue {
namespace {

TEST(KvStorage, LayersAndTensorsDoNotOverlap) {
  const KvStorageConfig config{2, 3, 4, 2, 8, computed_format(DType::bf16)};
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
    const KvStorageConfig config{2, 3, 5, 1, 6, computed_format(type)};
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
  auto storage = KvStorage::create({1, 1, 1, 1, 2, computed_format(DType::f16)}, Device::cpu);
  ASSERT_TRUE(storage.ok());
  EXPECT_EQ(storage->layer(0).k.format.scaling, KvScaling::none);
  EXPECT_EQ(storage->layer(0).k.scale, nullptr);
}

// K and V have types of their own: nothing overlaps, everything is aligned, and zero points are beside their scales.
TEST(KvStorage, KAndVHaveTypesOfTheirOwn) {
  constexpr DType kTypes[] = {DType::f32, DType::f16, DType::fp8_e4m3, DType::int8, DType::int4, DType::uint4};
  for (const DType k : kTypes) {
    for (const DType v : kTypes) {
      const KvStorageConfig config{3, 3, 5, 1, 6, computed_format(k), computed_format(v)};
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
  EXPECT_EQ(KvStorage::create({1, 1, 1, 1, 3, computed_format(DType::int8), computed_format(DType::uint4)}, Device::cpu).status().message(),
            "KV cache: head_dim is 3: it must be even, two channels of uint4 share a byte");
  EXPECT_EQ(
      KvStorage::create({1, 1, 1, 1, 2, computed_format(DType::int8), computed_format(DType::int16)}, Device::cpu).status().message(),
      "KV cache: the format of V is int16 with scaling 0: supported are float32, float16, bfloat16, fp8_e4m3, fp8_e5m2, int8, int4, uint4, mxfp8, mxfp4 and nvfp4, with computed scales");
}

TEST(KvStorage, VMayHaveAHeadDimOfItsOwn) {
  for (const int64_t v_head_dim : {2, 8, 12}) {
    for (const DType type : {DType::f32, DType::bf16, DType::int8, DType::uint4}) {
      KvStorageConfig config{2, 3, 5, 2, 8, computed_format(type)};
      config.v_head_dim = v_head_dim;
      const KvStorage storage = KvStorage::create(config, Device::cpu).value();
      const int64_t k_bytes = 3 * 5 * 2 * 8 * dtype_bits(type) / 8, v_bytes = 3 * 5 * 2 * v_head_dim * dtype_bits(type) / 8;
      const int64_t scale_bytes = 3 * 5 * 2 * 4 * scales_of_head(config.format_of_v());
      EXPECT_EQ(config.bytes_per_page() * 3, 2 * (k_bytes + v_bytes + 2 * scale_bytes));
      std::vector<std::pair<const unsigned char*, int64_t>> arrays;
      for (const int64_t layer : {0, 1}) {
        const PagedKvView view = storage.layer(layer);
        EXPECT_EQ(view.k.head_dim, 8);
        EXPECT_EQ(view.v.head_dim, v_head_dim);
        EXPECT_EQ(view.v.strides.page, 5 * 2 * v_head_dim);
        EXPECT_EQ(view.v.strides.head, v_head_dim);
        arrays.insert(arrays.end(), {{static_cast<unsigned char*>(view.k.data), k_bytes},
                                     {static_cast<unsigned char*>(view.v.data), v_bytes},
                                     {reinterpret_cast<unsigned char*>(view.k.scale), scale_bytes},
                                     {reinterpret_cast<unsigned char*>(view.v.scale), scale_bytes}});
      }
      const auto* end = static_cast<unsigned char*>(storage.memory().data());
      for (const auto& [begin, bytes] : arrays) {
        if (bytes == 0) continue;
        EXPECT_GE(begin, end);
        end = begin + bytes;
      }
      EXPECT_LE(end, static_cast<unsigned char*>(storage.memory().data()) + storage.memory().size_bytes());
    }
  }
  KvStorageConfig config{1, 1, 1, 1, 2, computed_format(DType::uint4)};
  config.v_head_dim = 3;
  EXPECT_EQ(KvStorage::create(config, Device::cpu).status().message(),
            "KV cache: v_head_dim is 3: it must be even, two channels of uint4 share a byte");
  config.v_head_dim = -1;
  EXPECT_EQ(KvStorage::create(config, Device::cpu).status().message(), "KV cache: v_head_dim is -1: it must be at least 0");
  config.v_head_dim = INT64_MAX - 1;
  EXPECT_EQ(KvStorage::create(config, Device::cpu).status().code(), StatusCode::resource_exhausted);
}

TEST(KvStorage, LayersThatDoNotExistHaveEmptyViews) {
  const KvStorage none;
  const KvStorage storage = KvStorage::create({2, 3, 4, 2, 8, computed_format(DType::int8)}, Device::cpu).value();
  for (const int64_t layer : {int64_t{2}, int64_t{-1}, INT64_MAX, INT64_MIN}) {
    EXPECT_EQ(storage.layer(layer).k.data, nullptr);
    EXPECT_EQ(num_slots(storage.layer(layer)), 0);
  }
  EXPECT_EQ(none.layer(0).v.data, nullptr);
}

TEST(KvStorage, SizesAreChecked) {
  KvStorageConfig config{2, 0, 4, 2, 8, computed_format(DType::f32)};
  EXPECT_EQ(KvStorage::create(config, Device::cpu).status().message(), "KV cache: num_pages is 0: it must be at least 1");
  config.num_pages = 1;
  config.num_layers = int64_t{1} << 46;
  EXPECT_EQ(KvStorage::create(config, Device::cpu).status().code(), StatusCode::resource_exhausted);
  config.num_layers = 2;
  config.num_pages = int64_t{1} << 60;
  EXPECT_EQ(KvStorage::create(config, Device::cpu).status().code(), StatusCode::resource_exhausted);
  EXPECT_EQ(KvStorage::create({1, 1, 1, 1, 3, computed_format(DType::int4)}, Device::cpu).status().message(),
            "KV cache: head_dim is 3: it must be even, two channels of int4 share a byte");
  EXPECT_EQ(
      KvStorage::create({1, 1, 1, 1, 2, computed_format(DType::unset)}, Device::cpu).status().message(),
      "KV cache: the format of K is unset with scaling 0: supported are float32, float16, bfloat16, fp8_e4m3, fp8_e5m2, int8, int4, uint4, mxfp8, mxfp4 and nvfp4, with computed scales");
  EXPECT_EQ(
      KvStorage::create({1, 1, 1, 1, 2, computed_format(test::kNoType)}, Device::cpu).status().message(),
      "KV cache: the format of K is unknown with scaling 0: supported are float32, float16, bfloat16, fp8_e4m3, fp8_e5m2, int8, int4, uint4, mxfp8, mxfp4 and nvfp4, with computed scales");
}

// ---- Layer groups

KvStorageConfig three_layers_in_two_groups(const KvFormat& k_format, const KvFormat& v_format, int64_t head_dim = 8) {
  KvStorageConfig config{3, 0, 4, 2, head_dim, k_format, v_format};
  config.group_of_layer = {1, 0, 1};
  config.pages_of_group = {5, 3};
  return config;
}

struct Part {
  unsigned char* data;
  int64_t page_bytes;
};

// K, V, their scales.
std::vector<Part> parts_of(const PagedKvView& view) {
  std::vector<Part> parts;
  const int64_t heads = view.page_size * view.num_kv_heads;
  for (const PagedHeads* side : {&view.k, &view.v}) {
    parts.push_back({static_cast<unsigned char*>(side->data), heads * side->head_dim * dtype_bits(side->format.type) / 8});
    const int64_t bytes = heads * KvStorageConfig::scale_bytes_per_head(side->format, side->head_dim);
    parts.push_back({is_block_scaled(side->format) ? side->block_scale : reinterpret_cast<unsigned char*>(side->scale), bytes});
  }
  return parts;
}

TEST(KvTypes, AreFoundByTheirNames) {
  for (const DType type :
       {DType::f32, DType::f16, DType::bf16, DType::fp8_e4m3, DType::fp8_e5m2, DType::int8, DType::int4, DType::uint4}) {
    EXPECT_EQ(kv_format_of(dtype_name(type)).type, type);
  }
  for (const char* name : {"", "float64", "int16", "uint8", "unset", "FLOAT32", "float32 "}) {
    EXPECT_EQ(kv_format_of(name).type, DType::unset) << name;
  }
}

TEST(KvStorage, LayersHaveThePagesOfTheirGroup) {
  const KvStorageConfig config = three_layers_in_two_groups(computed_format(DType::int8), computed_format(DType::uint4));
  const KvStorage storage = KvStorage::create(config, Device::cpu).value();
  EXPECT_EQ(storage.layer(0).num_pages, 3);
  EXPECT_EQ(storage.layer(1).num_pages, 5);
  EXPECT_EQ(storage.layer(2).num_pages, 3);
  std::vector<std::pair<unsigned char*, unsigned char*>> arrays;
  int64_t total = 0;
  for (int64_t layer = 0; layer < 3; ++layer) {
    for (const Part& part : parts_of(storage.layer(layer))) {
      const int64_t bytes = part.page_bytes * storage.layer(layer).num_pages;
      arrays.push_back({part.data, part.data + bytes});
      total += bytes;
    }
  }
  std::sort(arrays.begin(), arrays.end());
  EXPECT_GE(arrays.front().first, storage.memory().as<unsigned char>());
  for (size_t i = 0; i + 1 < arrays.size(); ++i) EXPECT_LE(arrays[i].second, arrays[i + 1].first);
  EXPECT_LE(arrays.back().second, storage.memory().as<unsigned char>() + storage.memory().size_bytes());
  EXPECT_EQ(total, 5 * config.bytes_per_page(0) + 3 * config.bytes_per_page(1));
  EXPECT_EQ(config.bytes_per_page(1), 2 * config.bytes_per_page(0));
}

TEST(KvStorage, GroupsAreChecked) {
  const auto message = [](const auto& change) {
    KvStorageConfig config = three_layers_in_two_groups(computed_format(DType::f16), computed_format(DType::f16));
    change(config);
    return KvStorage::create(config, Device::cpu).status().message();
  };
  EXPECT_EQ(message([](auto& c) { c.group_of_layer.pop_back(); }),
            "KV cache: group_of_layer has 2 entries: there must be one for each of 3 layers, or none");
  EXPECT_EQ(message([](auto& c) { c.group_of_layer[1] = 2; }), "KV cache: a layer is in group 2: there are groups 0 to 1");
  EXPECT_EQ(message([](auto& c) { c.group_of_layer[1] = -1; }), "KV cache: a layer is in group -1: there are groups 0 to 1");
  EXPECT_EQ(message([](auto& c) { c.group_of_layer[1] = 1; }), "KV cache: group 0 has no layer");
  EXPECT_EQ(message([](auto& c) { c.group_of_layer.clear(); }), "KV cache: group 1 has no layer");
  EXPECT_EQ(message([](auto& c) { c.pages_of_group[1] = 0; }), "KV cache: num_pages of group 1 is 0: it must be at least 1");
  EXPECT_EQ(message([](auto& c) { c.pages_of_group.clear(); }), "KV cache: num_pages is 0: it must be at least 1");
}

// ---- Copies of pages

class KvStorageCopies : public ::testing::TestWithParam<test::Backend> {
 protected:
  void SetUp() override { PROLOGUE_REQUIRE_BACKEND(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Backends, KvStorageCopies, ::testing::Values(test::Backend::cpu, test::Backend::cuda),
                         [](const auto& row) { return std::string(test::backend_name(row.param)); });

// Every byte of the memory is known before; afterwards the named pages are equal, in order, and nothing else has changed.
TEST_P(KvStorageCopies, CopyKAndVAndScalesOfEveryLayerOfTheGroup) {
  const Execution execution{test::backend_device(GetParam()), 1, nullptr};
  for (const auto& [k_name, v_name] :
       {std::pair{"float32", "bfloat16"}, {"fp8_e4m3", "float16"}, {"int8", "uint4"}, {"mxfp8", "nvfp4"}, {"mxfp4", "int8"}}) {
    const KvStorageConfig config = three_layers_in_two_groups(kv_format_of(k_name), kv_format_of(v_name), 32);
    const KvStorage storage = KvStorage::create(config, execution.device).value();
    std::vector<unsigned char> expected(static_cast<size_t>(storage.memory().size_bytes()));
    for (size_t i = 0; i < expected.size(); ++i) expected[i] = static_cast<unsigned char>(i * 31 + i / 256);
    ASSERT_TRUE(copy_to_device(storage.memory().data(), expected.data(), storage.memory().size_bytes(), execution).ok());
    const std::vector<PageCopy> copies = {{1, 0, 2}, {0, 4, 0}, {1, 1, 0}, {0, 0, 3}};  // page 0 of both groups: to and from
    ASSERT_TRUE(storage.copy_pages(copies, execution).ok());
    for (const PageCopy& copy : copies) {
      for (int64_t layer = 0; layer < 3; ++layer) {
        if (storage.config().group_of_layer[static_cast<size_t>(layer)] != copy.group) continue;
        for (const Part& part : parts_of(storage.layer(layer))) {
          if (part.page_bytes == 0) continue;
          unsigned char* const array = expected.data() + (part.data - storage.memory().as<unsigned char>());
          std::memcpy(array + copy.to * part.page_bytes, array + copy.from * part.page_bytes,
                      static_cast<size_t>(part.page_bytes));
        }
      }
    }
    std::vector<unsigned char> got(expected.size());
    ASSERT_TRUE(copy_to_host(got.data(), storage.memory().data(), storage.memory().size_bytes(), execution).ok());
    EXPECT_EQ(got, expected) << k_name << ", " << v_name;
  }
}

TEST(KvStorage, CopiesAreCheckedBeforeAnyIsMade) {
  const KvStorage storage = KvStorage::create(three_layers_in_two_groups(computed_format(DType::f32), computed_format(DType::f32)), Device::cpu).value();
  std::memset(storage.memory().data(), 1, static_cast<size_t>(storage.memory().size_bytes()));
  std::memset(storage.layer(1).k.data, 2, 1);
  const auto message = [&](const PageCopy& wrong) { return storage.copy_pages({{0, 0, 1}, wrong}, {Device::cpu, 1}).message(); };
  EXPECT_EQ(message({2, 0, 1}), "KV cache: a page of group 2 is copied: there are 2 groups");
  EXPECT_EQ(message({-1, 0, 1}), "KV cache: a page of group -1 is copied: there are 2 groups");
  EXPECT_EQ(message({1, 3, 1}), "KV cache: page 3 of group 1 is copied: it has pages 0 to 2");
  EXPECT_EQ(message({1, 0, -1}), "KV cache: page -1 of group 1 is copied: it has pages 0 to 2");
  EXPECT_EQ(message({1, 2, 2}), "KV cache: page 2 of group 1 is copied onto itself");
  EXPECT_EQ(storage.copy_pages({{0, 0, 1}}, {Device::cuda, 1}).message(), "KV cache: device is cuda: the pages are on cpu");
  const Part k = parts_of(storage.layer(1))[0];
  EXPECT_EQ(k.data[k.page_bytes], 1);
  EXPECT_EQ(KvStorage().copy_pages({{0, 0, 1}}, {Device::cpu, 1}).code(), StatusCode::invalid_argument);
  EXPECT_TRUE(KvStorage().copy_pages({}, {Device::cpu, 1}).ok());
}

// ---- Sizing

TEST(KvSizing, OneGroupTakesAsManyPagesAsFit) {
  for (const DType type : {DType::f16, DType::int8, DType::uint4}) {
    KvStorageConfig config{3, 0, 4, 2, 6, computed_format(type)};
    const KvSizing sizing{{}, 1, 1};
    for (const int64_t bytes : {10'000, 10'001, 54'321, 1'000'000}) {
      const auto pages = pages_that_fit(config, sizing, bytes);
      ASSERT_TRUE(pages.ok()) << pages.status().message();
      ASSERT_EQ(pages->size(), 1u);
      config.pages_of_group = *pages;
      EXPECT_LE(KvStorage::create(config, Device::cpu).value().memory().size_bytes(), bytes);
      ++config.pages_of_group[0];
      EXPECT_GT(KvStorage::create(config, Device::cpu).value().memory().size_bytes(), bytes);
    }
  }
}

TEST(KvSizing, WindowsTakeWhatTheirSequencesCanHold) {
  KvStorageConfig config = three_layers_in_two_groups(computed_format(DType::f16), computed_format(DType::f16));
  config.pages_of_group = {};
  const int64_t page_bytes = config.bytes_per_page(0);  // group 1 has twice as many layers
  // Little memory: the group with a window has no more pages than the other one.
  EXPECT_EQ(pages_that_fit(config, {{0, 1000}, 10, 100}, 300 * page_bytes).value(), (std::vector<int64_t>{100, 100}));
  // Much: 2 sequences with a window of 9 tokens have at most 2 * ((9 + 4 - 2) / 4 + 2) + 10 / 4 pages of 4.
  EXPECT_EQ(pages_that_fit(config, {{0, 9}, 2, 10}, 300 * page_bytes).value(), (std::vector<int64_t>{300 - 2 * 10, 10}));
  // Only windows: no more than they need.
  EXPECT_EQ(pages_that_fit(config, {{9, 9}, 2, 10}, 300 * page_bytes).value(), (std::vector<int64_t>{10, 10}));
}

// A cache with the pages that sizing gives never runs out in its windows, whatever the steps, if pages are given back after each.
TEST(KvSizing, WindowsNeverRunOut) {
  for (const int64_t page_size : {1, 3, 4, 16}) {
    for (const int64_t window : {1, 2, 5, 16, 17}) {
      for (const int64_t step : {1, 7, 40}) {
        KvStorageConfig config{1, 0, page_size, 1, 2, computed_format(DType::f32)};
        const std::vector<int64_t> pages = pages_that_fit(config, {{window}, 3, step}, int64_t{1} << 40).value();
        KvCache cache = KvCache::create({page_size, {{pages[0], window}}}).value();
        std::vector<SequenceId> ids;
        for (int i = 0; i < 3; ++i) ids.push_back(cache.add_sequence().value());
        uint64_t state = 1;
        for (int steps = 0; steps < 300; ++steps) {
          int64_t left = step;
          for (const SequenceId id : ids) {
            state = state * 6364136223846793005ull + 1442695040888963407ull;
            const int64_t count = id == ids.back() ? left : static_cast<int64_t>(state >> 33) % (left + 1);
            const Status status = cache.append(id, count);
            ASSERT_TRUE(status.ok()) << status.message();
            left -= count;
          }
          for (const SequenceId id : ids) ASSERT_TRUE(cache.release_out_of_window(id).ok());
        }
      }
    }
  }
}

TEST(KvSizing, IsChecked) {
  const KvStorageConfig config{2, 0, 4, 2, 8, computed_format(DType::f16)};
  EXPECT_EQ(pages_that_fit(config, {{}, 1, 1}, 511).status().message(),
            "KV cache: num_bytes is 511: one page of each group takes 512");
  EXPECT_EQ(pages_that_fit(config, {{}, 1, 1}, 511).status().code(), StatusCode::resource_exhausted);
  EXPECT_EQ(pages_that_fit(config, {{}, 1, 1}, 512).value(), std::vector<int64_t>{1});
  EXPECT_EQ(pages_that_fit(config, {{}, 1, 1}, -1).status().code(), StatusCode::resource_exhausted);
  EXPECT_EQ(pages_that_fit(config, {{}, 1, 1}, INT64_MAX).value(), std::vector<int64_t>{INT32_MAX});
  EXPECT_EQ(pages_that_fit(config, {{0, 4}, 1, 1}, 512).status().message(), "KV cache: group 1 has no layer");
  EXPECT_EQ(pages_that_fit(config, {{-1}, 1, 1}, 512).status().message(),
            "KV cache: window is -1: it must be between 0 and 2147483647");
  EXPECT_EQ(pages_that_fit(config, {{}, 0, 1}, 512).status().message(),
            "KV cache: max_seqs is 0: it must be between 1 and 2147483647");
  EXPECT_EQ(pages_that_fit(config, {{}, 1, INT64_MAX}, 512).status().message(),
            str_cat("KV cache: max_step_tokens is ", INT64_MAX, ": it must be between 1 and 2147483647"));
  EXPECT_EQ(pages_that_fit(config, {{INT32_MAX}, INT32_MAX, INT32_MAX}, INT64_MAX).value(), std::vector<int64_t>{INT32_MAX});
  KvStorageConfig wrong = config;
  wrong.page_size = INT64_MAX;
  EXPECT_EQ(pages_that_fit(wrong, {{4}, 1, 1}, 512).status().code(), StatusCode::invalid_argument);
  wrong = config;
  wrong.num_layers = 0;
  EXPECT_EQ(pages_that_fit(wrong, {{}, 1, 1}, 512).status().message(), "KV cache: num_layers is 0: it must be at least 1");
}

TEST(KvSizing, FractionsOfFreeMemory) {
  const int64_t half = fraction_of_free_memory(0.5, Device::cpu).value();
  EXPECT_GT(half, 0);
  EXPECT_LE(half, available_bytes(Device::cpu).value());
  for (const double wrong : {0.0, -0.5, 1.01, std::numeric_limits<double>::infinity(), std::nan("")}) {
    EXPECT_EQ(fraction_of_free_memory(wrong, Device::cpu).status().code(), StatusCode::invalid_argument);
  }
  EXPECT_EQ(fraction_of_free_memory(1.5, Device::cpu).status().message(),
            "KV cache: fraction is 1.5: it must be above 0 and at most 1");
}

}  // namespace
}  // namespace prologue
