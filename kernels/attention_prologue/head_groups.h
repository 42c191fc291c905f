// The groups of a call (HeadGroup in attention_prologue.h) as the backends take them: with everything that "unset" and 0 stand for. Internal.
#pragma once

#include <cstdint>

#include <prologue/kernels/attention_prologue/attention_prologue.h>
#include <prologue/kernels/attention_prologue/steps/head_norm.h>

namespace prologue {

// Returns group i of the call.
inline HeadGroup group_of(const AttentionPrologueParams& p, int64_t i) {
  HeadGroup group = p.groups[i];
  group.norm = resolved(group.norm, p.dtype);
  group.q8_out.type = resolve_dtype(group.q8_out.type, DType::fp8_e4m3);
  group.cache.format.type = resolve_dtype(group.cache.format.type, p.dtype);
  if (group.cache.head_dim == 0) group.cache.head_dim = group.head_dim;
  if (group.num_pages == 0) group.num_pages = p.cache.num_pages;
  if (group.page_size == 0) group.page_size = p.cache.page_size;
  return group;
}

// Returns the cache of a resolved group as one of K alone.
inline PagedKvView cache_of(const HeadGroup& group) {
  PagedKvView cache;
  cache.k = group.cache;
  cache.num_pages = group.num_pages;
  cache.page_size = group.page_size;
  cache.num_kv_heads = group.num_heads;
  return cache;
}

}  // namespace prologue
