// Both backends use this file: it says where a token's entry is, and computes the scale of 128 channels of a record.
#pragma once

#include <cstdint>

#include <prologue/kernels/base/shared/quantize.h>
#include <prologue/kernels/base/shared/token.h>
#include <prologue/kernels/mla_prologue/mla_prologue.h>

namespace prologue {

inline constexpr int64_t kMaxLatent = 1024;
inline constexpr int64_t kMaxNormedRope = 512;  // one warp has them
inline constexpr int kRecordTile = 128;         // channels with one scale

// Whether the scales of a latent part are computed and follow the codes.
PROLOGUE_HOST_DEVICE inline bool has_tiles(const KvFormat& format) { return format.scaling == KvScaling::token_head; }

inline bool caches_latent(const MlaPrologueParams& p) { return p.kv_c != nullptr && p.cache.latent.data != nullptr; }
inline bool caches_rope(const MlaPrologueParams& p) { return p.k_pe != nullptr && p.cache.rope.data != nullptr; }

// Holds the limits of positions and slots, and says how slots become pages.
struct MlaTokenArgs {
  int64_t max_position = 0;  // 0: no bound
  int64_t num_slots = 0;
  PageDivider pages;
  PastTable past_table = PastTable::record;
};

inline MlaTokenArgs mla_token_args(const MlaPrologueParams& p) {
  MlaTokenArgs args;
  args.max_position = p.rope.max_position;
  args.past_table = p.rope.past_table;
  if (caches_latent(p) || caches_rope(p)) {
    args.num_slots = p.cache.num_pages * p.cache.page_size;
    args.pages = page_divider(p.cache.page_size);
  }
  return args;
}

struct MlaToken : Token {
  int64_t slot = 0;  // if it reaches the cache
};

// `slot` is negative if there is none.
PROLOGUE_HOST_DEVICE inline MlaToken resolve_mla_token(const MlaTokenArgs& args, int64_t position, int64_t slot) {
  MlaToken token;
  PositionFacts facts;
  add_position(position, false, args.max_position, facts);
  static_cast<Token&>(token) = decide_position(facts, args.past_table);
  decide_slot(given_slot(slot, args.num_slots), token);
  token.slot = slot;
  return token;
}

// Returns where the entry is of a token that reaches the cache, measured as the strides are.
PROLOGUE_HOST_DEVICE inline int64_t entry_at(const MlaTokenArgs& args, const MlaToken& token, int64_t page_stride,
                                             int64_t token_stride) {
  int64_t page = 0;
  uint32_t offset = 0;
  split_slot(args.pages, token.slot, page, offset);
  return page * page_stride + offset * token_stride;
}

// Returns the scale of a tile of channels: the next power of two from amax / 448 on, at least 2^-13. It is NaN if one of them is NaN or an
// infinity.
PROLOGUE_HOST_DEVICE inline float tile_scale(uint32_t largest_magnitude_bits) {
  if (largest_magnitude_bits >= detail::kInfinityBits) return detail::float_of(0x7fc00000u);
  const float exact = divide_rounded(detail::float_of(largest_magnitude_bits), kv_largest(DType::fp8_e4m3));
  constexpr uint32_t kFraction = 0x7fffffu;  // of a float's bits
  const float scale = detail::float_of((magnitude_bits(exact) + kFraction) & ~kFraction);
  return scale > 0x1p-13f ? scale : 0x1p-13f;
}

}  // namespace prologue
