#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include <prologue/kvcache/kv_cache.h>

namespace prologue {
namespace {

using Tokens = std::vector<int32_t>;

void expect_integrity(const KvCache& cache) {
  const Status status = cache.check_integrity();
  EXPECT_TRUE(status.ok()) << status.message();
}

// first, first + 1, ...
Tokens tokens_from(int32_t first, int64_t count) {
  Tokens tokens(static_cast<size_t>(count));
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = first + static_cast<int32_t>(i);
  return tokens;
}

const Tokens& pages(const KvCache& cache, SequenceId id, int64_t group = 0) { return *cache.pages(id, group).value(); }

// Adds a sequence with these tokens, all computed and in the index.
SequenceId computed(KvCache& cache, const Tokens& tokens, uint64_t extra_key = 0) {
  const SequenceId id = cache.add_sequence(extra_key).value();
  EXPECT_TRUE(cache.append(id, static_cast<int64_t>(tokens.size())).ok());
  EXPECT_TRUE(cache.insert(id, tokens).ok());
  return id;
}

KvCache with_groups(int64_t page_size, const std::vector<KvGroup>& groups) {
  return KvCache::create({page_size, groups}).value();
}

// ---- Growth

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
  expect_integrity(cache);
}

TEST(KvCache, OutOfPagesIsANormalResultThatChangesNothing) {
  KvCache cache = KvCache::create(3, 4).value();
  const SequenceId a = cache.add_sequence().value();
  const SequenceId b = cache.add_sequence().value();
  ASSERT_TRUE(cache.append(a, 8).ok());
  const Status status = cache.append(b, 5);
  EXPECT_EQ(status.code(), StatusCode::resource_exhausted);
  EXPECT_EQ(status.message(), "the KV cache is out of pages: 2 asked for in group 0, 1 of 3 available");
  EXPECT_EQ(cache.length(b).value(), 0);
  EXPECT_EQ(cache.num_free_pages(), 1);
  ASSERT_TRUE(cache.free(a).ok());
  EXPECT_TRUE(cache.append(b, 5).ok());
  expect_integrity(cache);
}

TEST(KvCache, UnknownSequencesAndNegativeLengthsAreNamed) {
  KvCache cache = KvCache::create(1, 1).value();
  EXPECT_EQ(cache.free(7).message(), "sequence 7 is not in the KV cache");
  const SequenceId a = cache.add_sequence().value();
  EXPECT_EQ(cache.append(a, -1).message(), "num_tokens is -1: a sequence only grows");
}

TEST(KvCache, ConfigurationsAreChecked) {
  const auto message = [](const KvCacheConfig& config) { return KvCache::create(config).status().message(); };
  for (const int64_t wrong : {int64_t{-1}, int64_t{1} << 31, INT64_MAX, INT64_MIN}) {
    EXPECT_EQ(KvCache::create(wrong, 16).status().message(),
              str_cat("num_pages is ", wrong, ": it must be between 0 and 2147483647"));
  }
  EXPECT_EQ(message({16, {}}), "the KV cache has 0 layer groups: there must be between 1 and 16");
  EXPECT_EQ(message({16, std::vector<KvGroup>(17)}), "the KV cache has 17 layer groups: there must be between 1 and 16");
  EXPECT_EQ(message({16, {{4, 0}, {4, -1}}}), "window is -1: it must not be negative");
  EXPECT_EQ(message({16, {{4, 0}, {-4, 0}}}), "num_pages is -4: it must be between 0 and 2147483647");
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
    EXPECT_EQ(cache.fork(id).status().message(), message);
    EXPECT_EQ(cache.truncate(id, 0).message(), message);
    EXPECT_EQ(cache.insert(id, {}).message(), message);
    EXPECT_EQ(cache.release_out_of_window(id).message(), message);
    EXPECT_EQ(cache.free(id).message(), message);
    EXPECT_EQ(cache.free(id).code(), StatusCode::not_found);
  }
  EXPECT_EQ(cache.num_free_pages(), 2);
  expect_integrity(cache);
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
    expect_integrity(cache);
  }
}

TEST(KvCache, FreedSlotsAreUsedAgainUnderOtherIds) {
  KvCache cache = KvCache::create(4, 4).value();
  SequenceId last = -1;
  for (int i = 0; i < 100; ++i) {
    const SequenceId id = cache.add_sequence().value();
    EXPECT_NE(id, last);
    EXPECT_GE(id, 0);
    ASSERT_TRUE(cache.append(id, 5).ok());
    ASSERT_TRUE(cache.free(id).ok());
    EXPECT_EQ(cache.length(id).status().code(), StatusCode::not_found);
    last = id;
  }
  EXPECT_EQ(cache.stats().num_sequences, 0);
  expect_integrity(cache);
}

TEST(KvCache, ReservedSlotsAreThereWhenTheyAreAppended) {
  KvCache cache = KvCache::create(4, 4).value();
  const SequenceId a = cache.add_sequence().value(), b = cache.add_sequence().value();
  ASSERT_TRUE(cache.reserve(a, 13).ok());
  EXPECT_EQ(cache.length(a).value(), 0);
  EXPECT_EQ(cache.append(b, 1).code(), StatusCode::resource_exhausted);
  for (int i = 0; i < 13; ++i) ASSERT_TRUE(cache.append(a, 1).ok());
  EXPECT_TRUE(cache.reserve(a, 5).ok());  // shorter: nothing to do
  EXPECT_EQ(pages(cache, a).size(), 4u);
  expect_integrity(cache);
}

TEST(KvCache, GroupsThatDoNotExistAreErrors) {
  KvCache cache = with_groups(4, {{4, 0}, {4, 8}});
  const SequenceId id = cache.add_sequence().value();
  for (const int64_t wrong : {int64_t{2}, int64_t{-1}, INT64_MAX, INT64_MIN}) {
    const std::string message = str_cat("group is ", wrong, ": the KV cache has groups 0 to 1");
    EXPECT_EQ(cache.pages(id, wrong).status().message(), message);
    EXPECT_EQ(cache.slot(id, 0, wrong).status().message(), message);
    EXPECT_EQ(cache.num_pages(wrong), 0);
    EXPECT_EQ(cache.num_available_pages(wrong), 0);
    EXPECT_EQ(cache.evict(wrong, 1), 0);
  }
}

// ---- Fork and truncate

TEST(KvCache, ForksShareAllPagesAndCopyTheLastOneWhenItIsWritten) {
  KvCache cache = KvCache::create(8, 4).value();
  const SequenceId a = cache.add_sequence().value();
  ASSERT_TRUE(cache.append(a, 6).ok());
  ASSERT_TRUE(cache.reserve(a, 12).ok());
  const Tokens before = pages(cache, a);
  const SequenceId b = cache.fork(a).value(), c = cache.fork(a).value();
  EXPECT_EQ(pages(cache, b), (Tokens{before[0], before[1]}));  // a's reserved page stays with a
  EXPECT_EQ(cache.length(b).value(), 6);
  EXPECT_EQ(cache.stats().groups[0].shared, 2);
  EXPECT_TRUE(cache.copies().empty());
  ASSERT_TRUE(cache.append(a, 1).ok());
  ASSERT_EQ(cache.copies().size(), 1u);
  EXPECT_EQ(cache.copies()[0].group, 0);
  EXPECT_EQ(cache.copies()[0].from, before[1]);
  EXPECT_EQ(cache.copies()[0].to, pages(cache, a)[1]);
  EXPECT_NE(cache.copies()[0].to, before[1]);
  ASSERT_TRUE(cache.append(b, 1).ok());
  EXPECT_EQ(cache.copies().size(), 2u);
  ASSERT_TRUE(cache.append(c, 1).ok());  // the last one has the page alone
  EXPECT_EQ(cache.copies().size(), 2u);
  EXPECT_EQ(pages(cache, c)[1], before[1]);
  EXPECT_EQ(cache.stats().groups[0].copies, 2);
  cache.clear_copies();
  EXPECT_TRUE(cache.copies().empty());
  for (const SequenceId id : {a, b, c}) ASSERT_TRUE(cache.free(id).ok());
  EXPECT_EQ(cache.num_free_pages(), 8);
  expect_integrity(cache);
}

TEST(KvCache, FullPagesAreNotCopied) {
  KvCache cache = KvCache::create(8, 4).value();
  const SequenceId a = computed(cache, tokens_from(0, 8));
  const SequenceId b = cache.fork(a).value();
  ASSERT_TRUE(cache.append(a, 1).ok());
  ASSERT_TRUE(cache.append(b, 1).ok());
  EXPECT_TRUE(cache.copies().empty());
  EXPECT_NE(pages(cache, a)[2], pages(cache, b)[2]);
  expect_integrity(cache);
}

TEST(KvCache, ACopyThatHasNoPageChangesNothing) {
  KvCache cache = KvCache::create(2, 4).value();
  const SequenceId a = cache.add_sequence().value();
  ASSERT_TRUE(cache.append(a, 6).ok());
  const SequenceId b = cache.fork(a).value();
  EXPECT_EQ(cache.append(b, 1).message(), "the KV cache is out of pages: 1 asked for in group 0, 0 of 2 available");
  EXPECT_EQ(cache.length(b).value(), 6);
  EXPECT_TRUE(cache.copies().empty());
  ASSERT_TRUE(cache.free(a).ok());
  EXPECT_TRUE(cache.append(b, 1).ok());
  EXPECT_TRUE(cache.copies().empty());
  expect_integrity(cache);
}

TEST(KvCache, TruncatedTokensGiveTheirPagesBack) {
  KvCache cache = KvCache::create(6, 4).value();
  const SequenceId a = cache.add_sequence().value();
  ASSERT_TRUE(cache.append(a, 14).ok());
  ASSERT_TRUE(cache.reserve(a, 24).ok());
  const Tokens before = pages(cache, a);
  ASSERT_TRUE(cache.truncate(a, 7).ok());
  EXPECT_EQ(cache.length(a).value(), 7);
  EXPECT_EQ(pages(cache, a), (Tokens{before[0], before[1]}));
  EXPECT_EQ(cache.num_free_pages(), 4);
  ASSERT_TRUE(cache.append(a, 1).ok());
  EXPECT_TRUE(cache.copies().empty());
  for (const int64_t wrong : {int64_t{9}, int64_t{-1}, INT64_MAX, INT64_MIN}) {
    EXPECT_EQ(cache.truncate(a, wrong).message(),
              str_cat("length is ", wrong, ": it must be between 0 and 8, the length of sequence ", a));
  }
  ASSERT_TRUE(cache.truncate(a, 0).ok());
  EXPECT_EQ(cache.num_free_pages(), 6);
  expect_integrity(cache);
}

// A page that the index has is never written: what is cut in the middle is copied, and the index keeps the old one.
TEST(KvCache, AnIndexedPageIsCopiedBeforeItIsWritten) {
  KvCache cache = KvCache::create(4, 4).value();
  const Tokens tokens = tokens_from(0, 8);
  const SequenceId a = computed(cache, tokens);
  const int32_t second = pages(cache, a)[1];
  ASSERT_TRUE(cache.truncate(a, 6).ok());
  ASSERT_TRUE(cache.append(a, 2).ok());
  ASSERT_EQ(cache.copies().size(), 1u);
  EXPECT_EQ(cache.copies()[0].from, second);
  EXPECT_NE(pages(cache, a)[1], second);
  EXPECT_EQ(cache.stats().groups[0].cached, 1);
  EXPECT_EQ(cache.match(tokens).num_tokens, 8);
  Tokens other = tokens;
  other[7] = 99;
  ASSERT_TRUE(cache.insert(a, other).ok());
  EXPECT_EQ(cache.match(other).num_tokens, 8);
  EXPECT_EQ(cache.match(tokens).num_tokens, 8);
  expect_integrity(cache);
}

// ---- Prefix reuse

TEST(KvCache, ANewSequenceStartsWithTheLongestPrefix) {
  KvCache cache = KvCache::create(16, 4).value();
  const Tokens tokens = tokens_from(0, 14);
  const SequenceId a = computed(cache, tokens);
  EXPECT_EQ(cache.match(tokens).num_tokens, 12);  // the partial page is not in the index
  const SequenceId b = cache.add_sequence(tokens, 13).value();
  EXPECT_EQ(cache.length(b).value(), 12);
  EXPECT_EQ(pages(cache, b), (Tokens{pages(cache, a)[0], pages(cache, a)[1], pages(cache, a)[2]}));
  EXPECT_EQ(cache.length(cache.add_sequence(tokens, 11).value()).value(), 8);
  EXPECT_EQ(cache.length(cache.add_sequence(tokens, 3).value()).value(), 0);
  Tokens other = tokens;
  other[9] = 77;
  EXPECT_EQ(cache.length(cache.add_sequence(std::span<const int32_t>(other), 14).value()).value(), 8);
  other[0] = 77;
  EXPECT_EQ(cache.length(cache.add_sequence(other, 14).value()).value(), 0);
  const KvCacheStats stats = cache.stats();
  EXPECT_EQ(stats.lookups, 5);
  EXPECT_EQ(stats.lookup_tokens, 5 * 14);
  EXPECT_EQ(stats.hit_tokens, 12 + 8 + 8);
  EXPECT_EQ(stats.groups[0].used, 4);
  EXPECT_EQ(stats.groups[0].shared, 3);
  expect_integrity(cache);
}

TEST(KvCache, ExtraKeysShareNothing) {
  KvCache cache = KvCache::create(16, 4).value();
  const Tokens tokens = tokens_from(0, 8);
  computed(cache, tokens, 1);
  EXPECT_EQ(cache.match(tokens, 1).num_tokens, 8);
  for (const uint64_t other : {uint64_t{0}, uint64_t{2}, UINT64_MAX}) EXPECT_EQ(cache.match(tokens, other).num_tokens, 0);
  computed(cache, tokens, 2);
  EXPECT_EQ(cache.match(tokens, 2).num_tokens, 8);
  EXPECT_EQ(cache.stats().groups[0].used, 4);
}

TEST(KvCache, PagesStayCachedUntilTheyAreNeeded) {
  KvCache cache = KvCache::create(4, 4).value();
  const Tokens tokens = tokens_from(0, 12);
  ASSERT_TRUE(cache.free(computed(cache, tokens)).ok());
  KvGroupStats stats = cache.stats().groups[0];
  EXPECT_EQ(stats.cached, 3);
  EXPECT_EQ(stats.free, 1);
  EXPECT_EQ(cache.num_available_pages(), 4);
  EXPECT_EQ(cache.match(tokens).num_tokens, 12);
  // Takes two more pages: the free one, and then the deepest cached one.
  const SequenceId b = computed(cache, tokens_from(100, 8));
  EXPECT_EQ(cache.match(tokens).num_tokens, 8);
  EXPECT_EQ(cache.stats().groups[0].evictions, 1);
  // What is in use is not evicted.
  const SequenceId c = cache.add_sequence(tokens, 8).value();
  EXPECT_EQ(cache.append(c, 1).code(), StatusCode::resource_exhausted);
  EXPECT_EQ(cache.evict(0, 100), 0);
  ASSERT_TRUE(cache.free(b).ok());
  EXPECT_EQ(cache.evict(0, 1), 1);
  EXPECT_EQ(cache.match(tokens_from(100, 8)).num_tokens, 4);
  EXPECT_EQ(cache.evict(0, 100), 1);
  EXPECT_EQ(cache.match(tokens_from(100, 8)).num_tokens, 0);
  ASSERT_TRUE(cache.free(c).ok());
  EXPECT_EQ(cache.evict(0, -1), 0);
  EXPECT_EQ(cache.evict(0, INT64_MAX), 2);
  EXPECT_EQ(cache.num_free_pages(), 4);
  EXPECT_EQ(cache.stats().num_nodes, 0);
  expect_integrity(cache);
}

TEST(KvCache, AHitMakesAPrefixTheOneUsedLast) {
  KvCache cache = KvCache::create(3, 4).value();
  for (const int32_t first : {0, 100, 200}) ASSERT_TRUE(cache.free(computed(cache, tokens_from(first, 4))).ok());
  ASSERT_TRUE(cache.free(cache.add_sequence(tokens_from(0, 4), 4).value()).ok());
  ASSERT_TRUE(cache.free(computed(cache, tokens_from(300, 4))).ok());
  EXPECT_EQ(cache.match(tokens_from(0, 4)).num_tokens, 4);
  EXPECT_EQ(cache.match(tokens_from(100, 4)).num_tokens, 0);
  EXPECT_EQ(cache.match(tokens_from(200, 4)).num_tokens, 4);
}

// Two sequences that compute the same tokens at the same time keep a page each; only one of them is found.
TEST(KvCache, TheSameTokensAreIndexedOnce) {
  KvCache cache = KvCache::create(8, 4).value();
  const Tokens tokens = tokens_from(0, 8);
  const SequenceId a = computed(cache, tokens), b = computed(cache, tokens);
  EXPECT_NE(pages(cache, a)[0], pages(cache, b)[0]);
  EXPECT_EQ(pages(cache, cache.add_sequence(tokens, 8).value()), pages(cache, a));
  ASSERT_TRUE(cache.free(b).ok());
  EXPECT_EQ(cache.stats().groups[0].cached, 0);
  EXPECT_EQ(cache.num_free_pages(), 6);
  expect_integrity(cache);
}

// The second sequence's path continues below the first one's nodes, also after the first one's pages are evicted.
TEST(KvCache, PagesBelowAnEvictedPageAreFoundAgainWhenItIsComputedAgain) {
  KvCache cache = KvCache::create(8, 4).value();
  const Tokens tokens = tokens_from(0, 12);
  const SequenceId a = computed(cache, Tokens(tokens.begin(), tokens.begin() + 4));
  const SequenceId b = computed(cache, Tokens(tokens.begin(), tokens.begin() + 8));  // page 0 is a's
  ASSERT_TRUE(cache.free(a).ok());
  EXPECT_EQ(cache.evict(0, 1), 1);
  EXPECT_EQ(cache.match(tokens).num_tokens, 0);
  ASSERT_TRUE(cache.append(b, 4).ok());
  ASSERT_TRUE(cache.insert(b, tokens).ok());
  expect_integrity(cache);
  computed(cache, Tokens(tokens.begin(), tokens.begin() + 4));
  EXPECT_EQ(cache.match(tokens).num_tokens, 12);
  expect_integrity(cache);
}

TEST(KvCache, InsertTakesWhatIsFullAndGoesOnLater) {
  KvCache cache = KvCache::create(8, 4).value();
  const Tokens tokens = tokens_from(0, 16);
  const SequenceId a = cache.add_sequence().value();
  ASSERT_TRUE(cache.append(a, 10).ok());
  ASSERT_TRUE(cache.insert(a, {tokens.data(), 7}).ok());
  EXPECT_EQ(cache.match(tokens).num_tokens, 4);
  ASSERT_TRUE(cache.insert(a, tokens).ok());  // more tokens than the sequence has
  EXPECT_EQ(cache.match(tokens).num_tokens, 8);
  ASSERT_TRUE(cache.append(a, 6).ok());
  ASSERT_TRUE(cache.insert(a, {tokens.data(), 3}).ok());
  ASSERT_TRUE(cache.insert(a, tokens).ok());
  EXPECT_EQ(cache.match(tokens).num_tokens, 16);
  EXPECT_EQ(cache.insert(a, {tokens.data(), -1}).message(), "tokens.size is -1: it must not be negative");
  EXPECT_EQ(cache.insert(a, {nullptr, 4}).message(), "tokens.data is null, but tokens.size is 4");
  EXPECT_EQ(cache.add_sequence({nullptr, 4}, 4).status().message(), "tokens.data is null, but tokens.size is 4");
  EXPECT_EQ(cache.add_sequence(tokens, -1).status().message(), "max_hit_tokens is -1: it must not be negative");
  EXPECT_EQ(cache.match({nullptr, 4}).num_tokens, 0);
  EXPECT_EQ(cache.match({tokens.data(), -4}).num_tokens, 0);
  expect_integrity(cache);
}

TEST(KvCache, WithoutPrefixReuseNothingIsFound) {
  KvCacheConfig config{4, {{4, 0}}};
  config.prefix_reuse = false;
  KvCache cache = KvCache::create(config).value();
  const Tokens tokens = tokens_from(0, 8);
  const SequenceId a = computed(cache, tokens);
  EXPECT_EQ(cache.match(tokens).num_tokens, 0);
  EXPECT_EQ(cache.length(cache.add_sequence(tokens, 8).value()).value(), 0);
  ASSERT_TRUE(cache.free(a).ok());
  EXPECT_EQ(cache.num_free_pages(), 4);
  expect_integrity(cache);
}

// ---- Windows

// Pages of 4, a window of 6: the token at position p sees p - 5 .. p.
TEST(KvCache, PagesOutOfTheWindowAreGivenBackByTheNextAppend) {
  KvCache cache = with_groups(4, {{8, 0}, {3, 6}});
  const SequenceId a = cache.add_sequence().value();
  ASSERT_TRUE(cache.append(a, 9).ok());
  EXPECT_EQ(cache.num_free_pages(1), 0);
  ASSERT_TRUE(cache.append(a, 3).ok());  // position 9 sees 4: page 0 can go
  EXPECT_EQ(pages(cache, a, 1)[0], -1);
  EXPECT_EQ(cache.num_free_pages(1), 1);
  ASSERT_TRUE(cache.append(a, 4).ok());  // takes the page that was given back
  EXPECT_EQ(cache.num_free_pages(1), 0);
  EXPECT_EQ(pages(cache, a, 0).size(), 4u);
  EXPECT_EQ(cache.slot(a, 3, 1).status().message(),
            "position is 3: sequence 0 has given back its first 1 pages of group 1, out of the window");
  EXPECT_TRUE(cache.slot(a, 3, 0).ok());
  ASSERT_TRUE(cache.release_out_of_window(a).ok());  // position 16 sees 11
  EXPECT_EQ(cache.num_free_pages(1), 1);
  EXPECT_EQ(cache.append(a, 9).code(), StatusCode::resource_exhausted);
  EXPECT_EQ(pages(cache, a, 0).size(), 4u);  // no group has changed
  expect_integrity(cache);
}

TEST(KvCache, PagesMayBeKeptUntilTheyAreReleasedOrNeeded) {
  KvCacheConfig config;
  config.page_size = 4;
  config.groups = {{8, 0}, {5, 6}};
  config.keep_until_released = true;
  KvCache cache = KvCache::create(config).value();
  const SequenceId a = cache.add_sequence().value();
  ASSERT_TRUE(cache.append(a, 12).ok());
  ASSERT_TRUE(cache.append(a, 8).ok());
  EXPECT_EQ(cache.num_free_pages(1), 0);
  ASSERT_TRUE(cache.release_out_of_window(a, 12).ok());  // position 12 sees 7
  EXPECT_EQ(pages(cache, a, 1)[0], -1);
  EXPECT_GE(pages(cache, a, 1)[1], 0);
  EXPECT_EQ(cache.room(a).value(), 12);  // position 20 sees 15: two more pages can go
  ASSERT_TRUE(cache.append(a, 4).ok());  // the page that is free is enough
  EXPECT_GE(pages(cache, a, 1)[1], 0);
  ASSERT_TRUE(cache.append(a, 4).ok());
  EXPECT_EQ(pages(cache, a, 1)[3], -1);
  EXPECT_EQ(cache.release_out_of_window(a, -1).message(), "position is -1: it must not be negative");
  expect_integrity(cache);
}

TEST(KvCache, ALongPromptIsReservedWhereItStays) {
  KvCache cache = with_groups(4, {{8, 0}, {3, 6}});
  const SequenceId a = cache.add_sequence().value();
  EXPECT_EQ(cache.reserve(a, 32).code(), StatusCode::resource_exhausted);
  ASSERT_TRUE(cache.reserve_without_window(a, 32).ok());
  EXPECT_EQ(cache.num_free_pages(0), 0);
  EXPECT_EQ(cache.num_free_pages(1), 3);
  EXPECT_EQ(cache.num_reserved(a).value(), 0);
  EXPECT_EQ(cache.room(a).value(), 12);
  for (int64_t length = 0; length < 32; length += 4) ASSERT_TRUE(cache.append(a, 4).ok());
  EXPECT_EQ(cache.room(a).value(), 0);
  EXPECT_EQ(cache.num_reserved(a).value(), 32);
  EXPECT_EQ(cache.reserve_without_window(a, -1).message(), "num_tokens is -1: it must not be negative");
  EXPECT_EQ(cache.window(0), 0);
  EXPECT_EQ(cache.window(1), 6);
  EXPECT_EQ(cache.window(2), 0);
  expect_integrity(cache);
}

TEST(KvCache, AppendFailsOnlyIfThePagesItGivesBackAreNotEnough) {
  KvCache cache = with_groups(4, {{2, 4}});
  const SequenceId a = cache.add_sequence().value();
  ASSERT_TRUE(cache.append(a, 8).ok());
  EXPECT_EQ(cache.append(a, 5).message(), "the KV cache is out of pages: 2 asked for in group 0, 1 of 2 available");
  EXPECT_GE(pages(cache, a)[0], 0);  // nothing has changed
  EXPECT_TRUE(cache.append(a, 4).ok());
  expect_integrity(cache);
}

TEST(KvCache, WhatTheLastAppendAddedCanBeTakenOff) {
  KvCache cache = with_groups(4, {{8, 5}});
  const SequenceId a = cache.add_sequence().value();
  ASSERT_TRUE(cache.append(a, 12).ok());
  ASSERT_TRUE(cache.append(a, 7).ok());  // position 12 sees 8: pages 0 and 1 are given back
  ASSERT_TRUE(cache.truncate(a, 12).ok());
  EXPECT_EQ(cache.truncate(a, 11).message(),
            "length is 11: the next token would see page 1 of group 0, but sequence 0 has given back its first 2 pages, out of "
            "the window");
  EXPECT_EQ(cache.length(a).value(), 12);
  ASSERT_TRUE(cache.truncate(a, 0).ok());  // nothing is seen
  EXPECT_EQ(cache.num_free_pages(), 8);
  ASSERT_TRUE(cache.append(a, 1).ok());
  expect_integrity(cache);
}

// A hit needs all pages of the layers that see all, and those in the window of the others.
TEST(KvCache, HitsNeedThePagesInTheWindowOnly) {
  KvCache cache = with_groups(4, {{16, 0}, {16, 6}});
  const Tokens tokens = tokens_from(0, 24);
  const SequenceId a = cache.add_sequence().value();
  for (int64_t length = 4; length <= 24; length += 4) {
    ASSERT_TRUE(cache.append(a, 4).ok());
    ASSERT_TRUE(cache.insert(a, {tokens.data(), length}).ok());
  }
  ASSERT_TRUE(cache.free(a).ok());
  EXPECT_EQ(cache.stats().groups[1].cached, 6);
  EXPECT_EQ(cache.evict(1, 3), 3);                             // pages 0 to 2 were given back first
  EXPECT_EQ(cache.match(tokens).num_tokens, 24);               // sees 19 .. 23: pages 4 and 5
  EXPECT_EQ(cache.match({tokens.data(), 20}).num_tokens, 20);  // 15 .. 19: pages 3 and 4
  EXPECT_EQ(cache.match({tokens.data(), 16}).num_tokens, 0);   // 11 .. 15: page 2 is gone
  const SequenceId b = cache.add_sequence(tokens, 24).value();
  EXPECT_EQ(pages(cache, b, 1)[3], -1);
  EXPECT_GE(pages(cache, b, 1)[4], 0);
  EXPECT_EQ(cache.stats().groups[0].used, 6);
  EXPECT_EQ(cache.stats().groups[1].used, 2);
  EXPECT_EQ(cache.stats().groups[1].cached, 1);
  ASSERT_TRUE(cache.append(b, 1).ok());
  expect_integrity(cache);
}

// Used pages are at most what each group needs, rounded up to a page.
TEST(KvCache, GroupsUseNoMoreThanTheyNeed) {
  constexpr int64_t kPageSize = 4, kWindow = 10;
  KvCache cache = with_groups(kPageSize, {{1000, 0}, {1000, kWindow}});
  std::vector<SequenceId> ids;
  for (int i = 0; i < 5; ++i) ids.push_back(cache.add_sequence().value());
  for (int64_t step = 0; step < 100; ++step) {
    int64_t global = 0, local = 0;
    for (size_t i = 0; i < ids.size(); ++i) {
      ASSERT_TRUE(cache.append(ids[i], static_cast<int64_t>(i) + step % 3).ok());
      ASSERT_TRUE(cache.release_out_of_window(ids[i]).ok());
      const int64_t length = cache.length(ids[i]).value();
      global += (length + kPageSize - 1) / kPageSize;
      const int64_t first = std::max<int64_t>(0, length - kWindow + 1);
      local += (length + kPageSize - 1) / kPageSize - first / kPageSize;
    }
    EXPECT_EQ(cache.stats().groups[0].used, global);
    EXPECT_EQ(cache.stats().groups[1].used, local);
  }
  expect_integrity(cache);
}

}  // namespace
}  // namespace prologue
