#include <gtest/gtest.h>

#include <cstdint>
#include <set>
#include <vector>

#include <prologue/kvcache/page_pool.h>

namespace prologue {
namespace {

void expect_integrity(const PagePool& pool) {
  const Status status = pool.check_integrity();
  EXPECT_TRUE(status.ok()) << status.message();
}

TEST(PagePool, GivesEachPageOnceAndTakesItBack) {
  PagePool pool = PagePool::create(5).value();
  std::set<int32_t> pages;
  for (int i = 0; i < 5; ++i) pages.insert(pool.allocate().page);
  EXPECT_EQ(pages, (std::set<int32_t>{0, 1, 2, 3, 4}));
  EXPECT_EQ(pool.allocate().page, -1);
  EXPECT_EQ(pool.num_used(), 5);
  ASSERT_TRUE(pool.release(2).ok());
  ASSERT_TRUE(pool.release(4).ok());
  EXPECT_EQ(pool.num_free(), 2);
  EXPECT_EQ(pool.allocate().page, 4);  // freed last
  EXPECT_EQ(pool.allocate().page, 2);
  expect_integrity(pool);
}

TEST(PagePool, APageIsFreeWhenItsLastHolderReleasesIt) {
  PagePool pool = PagePool::create(2).value();
  const int32_t page = pool.allocate().page;
  ASSERT_TRUE(pool.acquire(page).ok());
  ASSERT_TRUE(pool.acquire(page).ok());
  EXPECT_EQ(pool.count(page), 3);
  EXPECT_EQ(pool.num_shared(), 1);
  ASSERT_TRUE(pool.release(page).ok());
  EXPECT_EQ(pool.num_shared(), 1);
  ASSERT_TRUE(pool.release(page).ok());
  EXPECT_EQ(pool.num_shared(), 0);
  EXPECT_EQ(pool.num_used(), 1);
  expect_integrity(pool);
  ASSERT_TRUE(pool.release(page).ok());
  EXPECT_EQ(pool.num_free(), 2);
  expect_integrity(pool);
}

TEST(PagePool, PagesOfNodesAreCachedAndEvictedInTheOrderOfTheirLastUse) {
  PagePool pool = PagePool::create(4).value();
  for (int32_t page = 0; page < 4; ++page) ASSERT_EQ(pool.allocate().page, page);
  for (int32_t page = 0; page < 3; ++page) ASSERT_TRUE(pool.set_node(page, 10 + page).ok());
  for (const int32_t page : {1, 0, 2, 3}) ASSERT_TRUE(pool.release(page).ok());
  EXPECT_EQ(pool.num_cached(), 3);
  EXPECT_EQ(pool.num_free(), 1);
  EXPECT_EQ(pool.num_available(), 4);
  expect_integrity(pool);
  ASSERT_TRUE(pool.acquire(1).ok());  // a hit: it is used last from now on
  ASSERT_TRUE(pool.release(1).ok());
  PagePool::Taken taken = pool.allocate();
  EXPECT_EQ(taken.page, 3);  // free pages first
  EXPECT_EQ(taken.evicted_node, -1);
  taken = pool.allocate();
  EXPECT_EQ(taken.page, 0);
  EXPECT_EQ(taken.evicted_node, 10);
  EXPECT_EQ(pool.node(0), -1);
  taken = pool.evict();
  EXPECT_EQ(taken.page, 2);
  EXPECT_EQ(taken.evicted_node, 12);
  EXPECT_EQ(pool.num_free(), 1);
  expect_integrity(pool);
  EXPECT_EQ(pool.evict().page, 1);
  EXPECT_EQ(pool.evict().page, -1);
  EXPECT_EQ(pool.num_evictions(), 3);
  expect_integrity(pool);
}

TEST(PagePool, RefusesWhatBreaksItsRulesAndChangesNothing) {
  PagePool pool = PagePool::create(4).value();
  ASSERT_EQ(pool.allocate().page, 0);
  ASSERT_EQ(pool.allocate().page, 1);
  ASSERT_TRUE(pool.set_node(1, 7).ok());
  ASSERT_TRUE(pool.release(1).ok());
  for (const int32_t wrong : {2, 4, -1, INT32_MAX, INT32_MIN}) {
    EXPECT_EQ(pool.release(wrong).message(),
              str_cat("page ", wrong, " is released, but nobody holds it (the pool has pages 0 to 3)"));
    EXPECT_EQ(pool.acquire(wrong).message(), str_cat("page ", wrong, " is acquired, but it is free (the pool has pages 0 to 3)"));
    EXPECT_EQ(pool.set_node(wrong, 1).message(), str_cat("page ", wrong, " is given to a node, but nobody holds it"));
    EXPECT_EQ(pool.count(wrong), 0);
    EXPECT_EQ(pool.node(wrong), -1);
  }
  EXPECT_EQ(pool.release(1).code(), StatusCode::invalid_argument);  // cached
  EXPECT_EQ(pool.set_node(1, 1).code(), StatusCode::invalid_argument);
  EXPECT_EQ(pool.set_node(0, -1).message(), "node is -1: it must not be negative");
  ASSERT_TRUE(pool.acquire(1).ok());
  EXPECT_EQ(pool.set_node(1, 8).message(), "page 1 is given to node 8, but node 7 has it");
  EXPECT_EQ(pool.num_used(), 2);
  EXPECT_EQ(pool.num_free(), 2);
  expect_integrity(pool);
}

TEST(PagePool, SizesAreChecked) {
  for (const int64_t wrong : {int64_t{-1}, int64_t{1} << 31, INT64_MAX, INT64_MIN}) {
    EXPECT_EQ(PagePool::create(wrong).status().message(),
              str_cat("num_pages is ", wrong, ": it must be between 0 and 2147483647"));
  }
  PagePool none;
  EXPECT_EQ(none.allocate().page, -1);
  EXPECT_EQ(none.evict().page, -1);
  EXPECT_EQ(none.release(0).code(), StatusCode::invalid_argument);
  expect_integrity(none);
}

}  // namespace
}  // namespace prologue
