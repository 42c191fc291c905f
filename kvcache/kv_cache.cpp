#include <prologue/kvcache/kv_cache.h>

#include <cstdint>
#include <utility>

#include <prologue/kernels/base/host/out_of_memory.h>

namespace prologue {

Result<KvCache> KvCache::create(int64_t num_pages, int64_t page_size) {
  if (page_size < 1 || page_size > INT32_MAX) {
    return invalid_argument("page_size is ", page_size, ": it must be between 1 and ", INT32_MAX);
  }
  PROLOGUE_ASSIGN_OR_RETURN(PagePool pool, PagePool::create(num_pages));
  return KvCache(std::move(pool), page_size);
}

Result<SequenceId> KvCache::add_sequence() {
  return catch_out_of_memory([&]() -> Result<SequenceId> {
    sequences_[next_id_] = {};
    return next_id_++;
  });
}

Result<const KvCache::Sequence*> KvCache::find(SequenceId sequence) const {
  const auto found = sequences_.find(sequence);
  if (found == sequences_.end()) return not_found("sequence ", sequence, " is not in the KV cache");
  return &found->second;
}

Result<KvCache::Sequence*> KvCache::find(SequenceId sequence) {
  PROLOGUE_ASSIGN_OR_RETURN(const Sequence* entry, std::as_const(*this).find(sequence));
  return const_cast<Sequence*>(entry);
}

Status KvCache::reserve(SequenceId sequence, int64_t num_tokens) {
  if (num_tokens < 0) return invalid_argument("num_tokens is ", num_tokens, ": it must not be negative");
  PROLOGUE_ASSIGN_OR_RETURN(Sequence* const entry, find(sequence));
  const int64_t missing = pages_for(num_tokens) - static_cast<int64_t>(entry->pages.size());
  return missing > 0 ? pool_.allocate(missing, entry->pages) : Status();
}

Status KvCache::append(SequenceId sequence, int64_t num_tokens) {
  if (num_tokens < 0) return invalid_argument("num_tokens is ", num_tokens, ": a sequence only grows");
  PROLOGUE_ASSIGN_OR_RETURN(Sequence* const entry, find(sequence));
  if (num_tokens > INT64_MAX - entry->length) {
    return resource_exhausted("sequence ", sequence, " has ", entry->length, " tokens: ", num_tokens,
                              " more are more than any KV cache holds");
  }
  PROLOGUE_RETURN_IF_ERROR(reserve(sequence, entry->length + num_tokens));
  entry->length += num_tokens;
  return {};
}

Status KvCache::free(SequenceId sequence) {
  PROLOGUE_ASSIGN_OR_RETURN(Sequence* const entry, find(sequence));
  PROLOGUE_RETURN_IF_ERROR(pool_.release(entry->pages));
  sequences_.erase(sequence);
  return {};
}

Result<int64_t> KvCache::length(SequenceId sequence) const {
  PROLOGUE_ASSIGN_OR_RETURN(const Sequence* const entry, find(sequence));
  return entry->length;
}

Result<const std::vector<int32_t>*> KvCache::pages(SequenceId sequence) const {
  PROLOGUE_ASSIGN_OR_RETURN(const Sequence* const entry, find(sequence));
  return &entry->pages;
}

Result<int64_t> KvCache::slot(SequenceId sequence, int64_t position) const {
  PROLOGUE_ASSIGN_OR_RETURN(const Sequence* const entry, find(sequence));
  const auto num_slots = static_cast<int64_t>(entry->pages.size()) * page_size_;
  if (position < 0 || position >= num_slots) {
    return invalid_argument("position is ", position, ": sequence ", sequence, " has pages for ", num_slots, " tokens");
  }
  return entry->pages[static_cast<size_t>(position / page_size_)] * page_size_ + position % page_size_;
}

Status KvCache::check_integrity() const {
  return catch_out_of_memory([&] { return check_owners(); });
}

Status KvCache::check_owners() const {
  PROLOGUE_RETURN_IF_ERROR(pool_.check_integrity());
  std::vector<SequenceId> owner(static_cast<size_t>(num_pages()), -1);
  int64_t num_owned = 0;
  for (const auto& [id, sequence] : sequences_) {
    if (static_cast<int64_t>(sequence.pages.size()) < pages_for(sequence.length)) {
      return data_loss("sequence ", id, " has ", sequence.length, " tokens but only ", sequence.pages.size(), " pages of ",
                       page_size_);
    }
    for (const int32_t page : sequence.pages) {
      if (page < 0 || page >= num_pages()) return data_loss("sequence ", id, " holds page ", page, " of ", num_pages());
      SequenceId& page_owner = owner[static_cast<size_t>(page)];
      if (page_owner >= 0) return data_loss("page ", page, " belongs to sequences ", page_owner, " and ", id);
      page_owner = id;
      ++num_owned;
    }
  }
  if (num_owned + num_free_pages() != num_pages()) {
    return data_loss(num_pages() - num_owned - num_free_pages(), " pages belong to no sequence and are not free");
  }
  return {};
}

}  // namespace prologue
