#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include <prologue/kvcache/prefix_index.h>

namespace prologue {
namespace {

using Tokens = std::vector<int32_t>;

void expect_integrity(const PrefixIndex& index, const std::vector<int32_t>& holders = {}) {
  const Status status = index.check_integrity(holders);
  EXPECT_TRUE(status.ok()) << status.message();
}

// What collides is compared: tokens, parents and keys.
TEST(PrefixIndex, EqualHashesOfDifferentPagesDoNoHarm) {
  PrefixIndex index(3, 1, 0);
  const int32_t root = index.find_or_add_root(5).value();
  const std::vector<Tokens> pages = {{1, 2, 3}, {1, 2, 4}, {3, 2, 1}, {0, 0, 0}, {-1, INT32_MAX, INT32_MIN}};
  constexpr uint64_t kHash = 42;
  std::vector<int32_t> nodes;
  for (const Tokens& page : pages) {
    EXPECT_EQ(index.find(root, kHash, page.data()), -1);
    nodes.push_back(index.find_or_add(root, kHash, page.data()).value());
    index.set_page(nodes.back(), 0, static_cast<int32_t>(nodes.size()));
  }
  for (size_t i = 0; i < pages.size(); ++i) {
    EXPECT_EQ(index.find(root, kHash, pages[i].data()), nodes[i]);
    EXPECT_EQ(index.find_or_add(root, kHash, pages[i].data()).value(), nodes[i]);
    EXPECT_EQ(index.find(nodes[0], kHash, pages[i].data()), -1);  // the same tokens after other tokens
    EXPECT_EQ(index.find(root, kHash + 1, pages[i].data()), -1);
  }
  expect_integrity(index);
}

TEST(PrefixIndex, HashesDependOnEveryTokenAndOnWhatIsBefore) {
  for (const int64_t page_size : {1, 2, 5, 16}) {
    PrefixIndex index(page_size, 1, 0);
    const int32_t a = index.find_or_add_root(1).value(), b = index.find_or_add_root(2).value();
    const Tokens page(static_cast<size_t>(page_size), 9);
    const uint64_t hash = index.hash_after(a, page.data());
    EXPECT_NE(hash, index.hash_after(b, page.data()));
    for (size_t i = 0; i < page.size(); ++i) {
      Tokens other = page;
      other[i] = 8;
      EXPECT_NE(hash, index.hash_after(a, other.data()));
    }
  }
}

TEST(PrefixIndex, KeysHaveRootsOfTheirOwn) {
  PrefixIndex index(2, 1, 99);
  std::vector<int32_t> roots;
  for (const uint64_t key : {uint64_t{0}, uint64_t{1}, UINT64_MAX, uint64_t{1} << 63, uint64_t{99}}) {
    EXPECT_EQ(index.find_root(key), -1);
    const int32_t root = index.find_or_add_root(key).value();
    EXPECT_EQ(index.find_root(key), root);
    for (const int32_t other : roots) EXPECT_NE(root, other);
    roots.push_back(root);
    index.hold(root);
  }
  expect_integrity(index, {1, 1, 1, 1, 1});
  for (const int32_t root : roots) index.let_go(root);
  EXPECT_EQ(index.num_nodes(), 0);
  EXPECT_EQ(index.find_root(99), -1);
  expect_integrity(index);
}

// A node stays while it has a page, a child or a holder. Then it goes, and its parents with it.
TEST(PrefixIndex, NodesThatNothingNeedsAreRemoved) {
  PrefixIndex index(1, 2, 0);
  const Tokens token = {7};
  const auto child = [&](int32_t parent) {
    return index.find_or_add(parent, index.hash_after(parent, token.data()), token.data()).value();
  };
  const int32_t root = index.find_or_add_root(0).value();
  const int32_t a = child(root), b = child(a), c = child(b);
  index.set_page(a, 1, 3);
  index.set_page(c, 0, 5);
  index.set_page(c, 1, 6);
  EXPECT_EQ(index.num_nodes(), 4);
  expect_integrity(index);
  index.clear_page(c, 0);
  EXPECT_EQ(index.num_nodes(), 4);
  index.hold(b);
  index.clear_page(c, 1);  // c is removed, b is held
  EXPECT_EQ(index.num_nodes(), 3);
  EXPECT_EQ(index.find(b, index.hash_after(b, token.data()), token.data()), -1);
  std::vector<int32_t> holders(4, 0);
  holders[static_cast<size_t>(b)] = 1;
  expect_integrity(index, holders);
  EXPECT_FALSE(index.check_integrity({}).ok());
  index.let_go(b);  // b is removed, a has a page
  EXPECT_EQ(index.num_nodes(), 2);
  index.clear_page(a, 1);  // a and the root
  EXPECT_EQ(index.num_nodes(), 0);
  expect_integrity(index);
}

TEST(PrefixIndex, GrowsAndKeepsWhatItHas) {
  PrefixIndex index(2, 1, 0);
  const int32_t root = index.find_or_add_root(0).value();
  constexpr int32_t kCount = 5000;
  for (int32_t i = 0; i < kCount; ++i) {
    const Tokens page = {i, -i};
    index.set_page(index.find_or_add(root, index.hash_after(root, page.data()), page.data()).value(), 0, i);
  }
  EXPECT_EQ(index.num_nodes(), kCount + 1);
  expect_integrity(index);
  for (int32_t i = 0; i < kCount; ++i) {
    const Tokens page = {i, -i};
    const int32_t node = index.find(root, index.hash_after(root, page.data()), page.data());
    ASSERT_GE(node, 0);
    EXPECT_EQ(index.page(node, 0), i);
    EXPECT_EQ(index.parent(node), root);
  }
}

}  // namespace
}  // namespace prologue
