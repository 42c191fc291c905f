// The position and slot of a token, given or derived, with the guards of attention_prologue.h. Whatever the arrays
// hold, nothing is read outside their stated shapes. token_place.cuh is the same on the device.
#pragma once

#include <cstdint>

#include <prologue/kernels/attention_prologue/attention_prologue.h>
#include <prologue/kernels/base/faults.h>
#include <prologue/kernels/base/token_guard.h>

namespace prologue {

// True if something is written to the cache, so that slots are needed.
inline bool writes_cache(const AttentionPrologueParams& p) {
  return p.num_kv_heads > 0 && ((p.k.data != nullptr && p.cache.k.data != nullptr) || (p.v.data != nullptr && p.cache.v.data != nullptr));
}

struct TokenPlace {
  bool padding = false;     // touch nothing
  bool position_ok = true;  // otherwise the rows become zeros
  bool rotated = true;      // otherwise past the table, and the rows are not rotated
  int64_t position = 0;     // on axis 0
  int64_t slot = -1;        // negative: nothing is written to the cache
  FaultCode fault = FaultCode::none;
};

// The last s with cu_seqlens_q[s] <= token, in [0, num_seqs).
inline int64_t sequence_of(const int32_t* cu_seqlens_q, int64_t num_seqs, int64_t token) {
  int64_t low = 0, high = num_seqs;
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    (cu_seqlens_q[middle] <= token ? low : high) = middle;
  }
  return low;
}

// The slot of a cache position in a sequence's pages; `fault` says why there is none.
inline int64_t derived_slot(const TokenPlaces& places, const PagedKvView& cache, int64_t sequence,
                                                 int64_t cache_position, FaultCode& fault) {
  const bool ring = places.ring_size > 0 && cache_position >= 0;
  const int64_t r = ring ? cache_position % places.ring_size : cache_position;
  if (r < 0 || r / cache.page_size >= places.max_pages_per_seq) {
    fault = FaultCode::sequence_too_long;
    return -1;
  }
  const int64_t page = places.block_table[sequence * places.block_table_stride + r / cache.page_size];
  if (page < 0 || page >= cache.num_pages) {
    fault = FaultCode::page_out_of_range;
    return -1;
  }
  return page * cache.page_size + r % cache.page_size;
}

// The position on axis `axis`, for a token that place_token() accepted.
inline int64_t stream_position(const AttentionPrologueParams& p, const TokenPlace& place, int64_t token,
                                                    int64_t axis) {
  if (p.places.positions.data == nullptr || axis <= 0 || axis >= p.rope.num_axes) return place.position;
  return index_at(p.places.positions, axis * p.places.position_axis_stride + token);
}

inline TokenPlace place_token(const AttentionPrologueParams& p, int64_t token) {
  const TokenPlaces& places = p.places;
  const auto past_table = [&](int64_t position) { return p.rope.max_position > 0 && position >= p.rope.max_position; };
  const bool cached = writes_cache(p);
  const bool positions_given = places.positions.data != nullptr;
  const bool slot_given = places.slot_mapping.data != nullptr;

  TokenPlace place;
  int64_t sequence = 0, cache_position = 0;
  const bool derived = places.cu_seqlens_q != nullptr && (!positions_given || (cached && !slot_given));
  if (derived) {
    if (token >= places.cu_seqlens_q[places.num_seqs]) {
      place.padding = true;
      return place;
    }
    sequence = sequence_of(places.cu_seqlens_q, places.num_seqs, token);
    cache_position = places.cache_lens[sequence] + (token - places.cu_seqlens_q[sequence]);
  }

  if (positions_given) {
    for (int64_t axis = 0; axis < p.rope.num_axes; ++axis) {
      const int64_t position = index_at(places.positions, axis * places.position_axis_stride + token);
      if (axis == 0) place.position = position;
      place.padding = place.padding || position < 0;
      place.rotated = place.rotated && !past_table(position);
    }
    if (place.padding) return place;
  } else if (derived) {
    const IndexView& offsets = places.position_offsets;
    const int64_t offset = offsets.data == nullptr ? 0 : index_at(offsets, places.position_offset_per_seq ? sequence : 0);
    place.position = add_positions(cache_position, offset);
    place.position_ok = place.position >= 0;
    place.rotated = !past_table(place.position);
  }
  if (!place.rotated && p.rope.past_table != PastTable::identity) place.position_ok = false;
  if (!place.position_ok) {
    place.fault = FaultCode::position_out_of_range;
    return place;
  }

  if (!cached) return place;
  if (slot_given) {
    place.slot = index_at(places.slot_mapping, token);
    if (place.slot >= p.cache.num_pages * p.cache.page_size) {
      place.slot = -1;
      place.fault = FaultCode::slot_out_of_range;
    }
  } else if (places.ring_size == 0 || token >= places.cu_seqlens_q[sequence + 1] - places.ring_size) {
    place.slot = derived_slot(places, p.cache, sequence, cache_position, place.fault);
  }
  return place;
}

}  // namespace prologue
