#include <algorithm>
#include <cstdint>

#include <prologue/kernels/base/out_of_memory.h>
#include <prologue/kvcache/prefix_index.h>

namespace prologue {

namespace {

constexpr size_t kFirstBuckets = 64;

// This is SplitMix64's last step. It is one to one.
uint64_t mixed(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

}  // namespace

// The hash is one to one, so roots with the same hash have the same key.
uint64_t PrefixIndex::root_hash(uint64_t key) const { return mixed(key ^ seed_); }

uint64_t PrefixIndex::hash_after(int32_t parent, const int32_t* tokens) const {
  uint64_t hash = at(parent).hash;
  const auto take = [&hash](uint64_t word) {
    hash = (hash ^ word) * 0x9e3779b97f4a7c15ull;
    hash ^= hash >> 32;
  };
  const auto token = [tokens](int64_t i) { return static_cast<uint64_t>(static_cast<uint32_t>(tokens[i])); };
  int64_t i = 0;
  for (; i + 1 < page_size_; i += 2) take(token(i) | token(i + 1) << 32);
  if (i < page_size_) take(token(i));
  return hash;
}

int32_t PrefixIndex::find_root(uint64_t key) const {
  if (buckets_.empty()) return -1;
  const uint64_t hash = root_hash(key);
  int32_t node = buckets_[bucket_of(hash)];
  while (node >= 0 && (at(node).hash != hash || at(node).parent != -1)) node = at(node).next;
  return node;
}

Result<int32_t> PrefixIndex::find_or_add_root(uint64_t key) {
  const int32_t found = find_root(key);
  return found >= 0 ? Result<int32_t>(found) : add(-1, root_hash(key), nullptr);
}

int32_t PrefixIndex::find(int32_t parent, uint64_t hash, const int32_t* tokens) const {
  int32_t node = buckets_[bucket_of(hash)];
  for (; node >= 0; node = at(node).next) {
    if (at(node).hash == hash && at(node).parent == parent &&
        std::equal(tokens, tokens + page_size_, &tokens_[first_token(node)])) {
      break;
    }
  }
  return node;
}

Result<int32_t> PrefixIndex::find_or_add(int32_t parent, uint64_t hash, const int32_t* tokens) {
  const int32_t found = find(parent, hash, tokens);
  return found >= 0 ? Result<int32_t>(found) : add(parent, hash, tokens);
}

Result<int32_t> PrefixIndex::add(int32_t parent, uint64_t hash, const int32_t* tokens) {
  return catch_out_of_memory([&]() -> Result<int32_t> {
    if (2 * num_nodes_ >= static_cast<int64_t>(buckets_.size())) grow_table();  // short chains: each node of one is a cache miss
    if (first_removed_ < 0) {  // a new number, listed as if it had been removed; its row of each array first
      if (nodes_.size() == INT32_MAX) return resource_exhausted("the prefix index is full: it has ", nodes_.size(), " nodes");
      tokens_.resize((nodes_.size() + 1) * static_cast<size_t>(page_size_));
      pages_.resize((nodes_.size() + 1) * static_cast<size_t>(num_groups_), -1);
      nodes_.push_back({0, kRemoved, -1, 0});
      first_removed_ = static_cast<int32_t>(nodes_.size()) - 1;
    }
    const int32_t node = first_removed_;
    first_removed_ = at(node).next;
    int32_t& bucket = buckets_[bucket_of(hash)];
    at(node) = {hash, parent, bucket, 0};
    bucket = node;
    if (tokens != nullptr) std::copy_n(tokens, page_size_, &tokens_[first_token(node)]);
    if (parent >= 0) ++at(parent).num_users;
    ++num_nodes_;
    return node;
  });
}

void PrefixIndex::grow_table() {
  std::vector<int32_t> buckets(std::max(kFirstBuckets, 2 * buckets_.size()), -1);
  buckets_.swap(buckets);
  for_each([&](int32_t node) {
    int32_t& bucket = buckets_[bucket_of(at(node).hash)];
    at(node).next = bucket;
    bucket = node;
  });
}

void PrefixIndex::clear_page(int32_t node, int64_t group) {
  set_page(node, group, -1);
  remove_if_unused(node);
}

void PrefixIndex::let_go(int32_t node) {
  --at(node).num_users;
  remove_if_unused(node);
}

void PrefixIndex::remove_if_unused(int32_t node) {
  while (node >= 0 && at(node).num_users == 0 && !has_page(node)) {
    int32_t* link = &buckets_[bucket_of(at(node).hash)];
    while (*link != node) link = &at(*link).next;
    *link = at(node).next;
    const int32_t parent = at(node).parent;
    at(node) = {0, kRemoved, first_removed_, 0};
    first_removed_ = node;
    --num_nodes_;
    if (parent >= 0) --at(parent).num_users;
    node = parent;
  }
}

bool PrefixIndex::has_page(int32_t node) const {
  for (int64_t group = 0; group < num_groups_; ++group) {
    if (page(node, group) >= 0) return true;
  }
  return false;
}

Status PrefixIndex::check_integrity(const std::vector<int32_t>& holders) const {
  return catch_out_of_memory([&] { return check_nodes(holders); });
}

Status PrefixIndex::check_nodes(const std::vector<int32_t>& holders) const {
  const auto exists = [&](int32_t node) { return node >= 0 && node < static_cast<int64_t>(nodes_.size()); };
  std::vector<bool> listed(nodes_.size(), false);
  std::vector<int32_t> users = holders;
  users.resize(std::max(users.size(), nodes_.size()), 0);
  int64_t num_chained = 0, num_removed = 0;
  for (size_t bucket = 0; bucket < buckets_.size(); ++bucket) {
    for (int32_t node = buckets_[bucket]; node != -1; node = at(node).next, ++num_chained) {
      if (!exists(node) || at(node).parent == kRemoved)
        return data_loss("the hash table has node ", node, ", which is not in use");
      if (listed[static_cast<size_t>(node)]) return data_loss("node ", node, " is in the hash table twice");
      listed[static_cast<size_t>(node)] = true;
      if (bucket_of(at(node).hash) != bucket) return data_loss("node ", node, " is in a wrong chain of the hash table");
      const int32_t parent = at(node).parent;
      if (parent == -1) continue;
      if (!exists(parent) || at(parent).parent == kRemoved) return data_loss("node ", node, " has lost its parent ", parent);
      ++users[static_cast<size_t>(parent)];
    }
  }
  for (int32_t node = first_removed_; node != -1; node = at(node).next, ++num_removed) {
    if (!exists(node) || listed[static_cast<size_t>(node)]) return data_loss("the list of removed nodes holds node ", node);
    listed[static_cast<size_t>(node)] = true;
  }
  if (num_chained != num_nodes_ || num_chained + num_removed != static_cast<int64_t>(nodes_.size())) {
    return data_loss("the index counts ", num_nodes_, " of ", nodes_.size(), " nodes, but ", num_chained,
                     " are in the hash table and ", num_removed, " are removed");
  }
  for (size_t i = 0; i < users.size(); ++i) {
    const int32_t num_users = i < nodes_.size() && nodes_[i].parent != kRemoved ? nodes_[i].num_users : 0;
    if (users[i] != num_users) return data_loss("node ", i, " counts ", num_users, " children and holders, not ", users[i]);
    if (i < nodes_.size() && nodes_[i].parent != kRemoved && num_users == 0 && !has_page(static_cast<int32_t>(i))) {
      return data_loss("node ", i, " has no page, no child and no holder");
    }
  }
  return {};
}

}  // namespace prologue
