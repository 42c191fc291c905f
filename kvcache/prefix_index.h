// A PrefixIndex says which full pages of tokens of a KvCache have been computed, and which page numbers hold them. KvCache keeps it; most
// readers need only that. One owner uses it, from one thread at a time.
#pragma once

#include <cstdint>
#include <vector>

#include <prologue/kernels/base/status.h>

namespace prologue {

// The index is a tree. A root stands for an extra key: sequences with different keys never use the same pages. Every other node stands for
// one full page of tokens after those of its parent, so the path from the root is a prefix. A node has a page number of each layer group,
// or -1 if that group's page was evicted or was never in the index.
//
// Nodes are numbers >= 0. A node lives as long as it has a page, a child, or a holder (hold()). What is left without any of them is
// removed, and then its parents are looked at in the same way. Nodes are found through a hash table, and found nodes are compared: the
// parent and all tokens must be equal, so equal hashes of different tokens do no harm.
class PROLOGUE_API PrefixIndex {
 public:
  PrefixIndex() = default;  // finds nothing
  // page_size and num_groups >= 1. `seed` changes the hashes and nothing else.
  PrefixIndex(int64_t page_size, int64_t num_groups, uint64_t seed)
      : page_size_(page_size), num_groups_(num_groups), seed_(seed) {}

  int64_t num_nodes() const { return num_nodes_; }

  // Returns the root of `key`, or -1.
  int32_t find_root(uint64_t key) const;
  // Returns the root of `key`, which is added if it is missing. Hold it: a root that is left alone stays. resource_exhausted: no memory.
  Result<int32_t> find_or_add_root(uint64_t key);

  // Returns the hash of a page of tokens [page_size] after those of `parent`.
  uint64_t hash_after(int32_t parent, const int32_t* tokens) const;
  // Returns the child of `parent` with these tokens [page_size], or -1. `hash`: that of hash_after(); any other function of the parent and
  // the tokens works too.
  int32_t find(int32_t parent, uint64_t hash, const int32_t* tokens) const;
  // Does what find() does, but adds a missing node, without pages. Hold it or give it a page. resource_exhausted: no memory; nothing has
  // changed.
  Result<int32_t> find_or_add(int32_t parent, uint64_t hash, const int32_t* tokens);

  int32_t parent(int32_t node) const { return at(node).parent; }  // -1 for a root
  int32_t page(int32_t node, int64_t group) const { return pages_[page_at(node, group)]; }
  void set_page(int32_t node, int64_t group, int32_t page) { pages_[page_at(node, group)] = page; }
  // Sets the page to -1; the node may be removed.
  void clear_page(int32_t node, int64_t group);

  // A holder keeps a node alive without having a page of it.
  void hold(int32_t node) { ++at(node).num_users; }
  // Removes one holder; the node may be removed.
  void let_go(int32_t node);

  // Calls visit(node) for every node, in no particular order.
  template <class Visit>
  void for_each(const Visit& visit) const {
    for (size_t i = 0; i < nodes_.size(); ++i) {
      if (nodes_[i].parent != kRemoved) visit(static_cast<int32_t>(i));
    }
  }

  // Checks the hash table, the list of removed nodes and every node's number of users, given the number of holders of each node
  // (holders[node]; nodes beyond its end have none).
  Status check_integrity(const std::vector<int32_t>& holders) const;

 private:
  static constexpr int32_t kRemoved = -2;  // the parent of a number that is not in use
  struct Node {
    uint64_t hash = 0;
    int32_t parent = -1;
    int32_t next = -1;      // in the chain of the hash table, or in the list of removed nodes
    int32_t num_users = 0;  // children and holders
  };
  const Node& at(int32_t node) const { return nodes_[static_cast<size_t>(node)]; }
  Node& at(int32_t node) { return nodes_[static_cast<size_t>(node)]; }
  size_t first_token(int32_t node) const { return static_cast<size_t>(node * page_size_); }
  size_t page_at(int32_t node, int64_t group) const { return static_cast<size_t>(node * num_groups_ + group); }
  size_t bucket_of(uint64_t hash) const { return static_cast<size_t>(hash) & (buckets_.size() - 1); }
  uint64_t root_hash(uint64_t key) const;
  Result<int32_t> add(int32_t parent, uint64_t hash, const int32_t* tokens);
  void grow_table();
  bool has_page(int32_t node) const;
  void remove_if_unused(int32_t node);
  Status check_nodes(const std::vector<int32_t>& holders) const;

  int64_t page_size_ = 1;
  int64_t num_groups_ = 1;
  uint64_t seed_ = 0;
  int64_t num_nodes_ = 0;
  int32_t first_removed_ = -1;
  std::vector<Node> nodes_;
  std::vector<int32_t> tokens_;   // [nodes, page_size]
  std::vector<int32_t> pages_;    // [nodes, num_groups]
  std::vector<int32_t> buckets_;  // the first node of each chain, or -1; a power of two
};

}  // namespace prologue
