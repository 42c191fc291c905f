// What is fixed of a call when a kernel is made for it: everything that decides which code runs, and the sizes that the code unrolls. A
// kernel compiled with these facts as constants has the instructions of this call and no others.
#pragma once

#include <cstdint>

#include <prologue/kernels/attention_prologue/prologue_args.h>

namespace prologue::cuda {

// Of the heads of one of q, k and v. Every member has 32 bits, so that facts are compared, hashed and printed as words.
struct HeadFacts {
  int32_t width = 0;  // channels
  // How they are cut into units (HeadLayout): as the rotation needs it, or in halves.
  int32_t cut_dim = 0;
  int32_t cut_offset = 0;
  int32_t cut_blocks = 1;
  RopeStyle cut_style = RopeStyle::neox;
  int32_t biased = 0;
  NormPlacement norm = NormPlacement::none;
  NormKind kind = NormKind::rms;
  NormScope scope = NormScope::head;
  int32_t weighted = 0;
  int32_t norm_biased = 0;
  int32_t float_weights = 0;    // the norm's weight and bias are float32
  int32_t weights_of_head = 0;  // each head has weights and a bias of its own
  int32_t rotates = 0;
  int32_t apart = 0;          // the rotated channels are in an array of their own
  int32_t in_alignment = 16;  // of a head, in bytes, at most 16
  int32_t out_alignment = 16;
  int32_t second_alignment = 16;
  int32_t has_out = 0;         // the cache, q_out or q8_out
  int32_t has_second_out = 0;  // k_out, v_out
  int32_t hadamard_block = 0;
  int32_t scaled = 0;          // Q by its scale, K or V by a constant
  DType store = DType::unset;  // unset: as the data
  ScaleFrom scale_from = ScaleFrom::nothing;
  KvScaling block_scaling = KvScaling::none;  // with ScaleFrom::blocks
  BlockScaleLayout block_scale_layout = BlockScaleLayout::linear;
};

struct CallFacts {
  HeadFacts heads[3];  // q, k, v; of a tensor that the call has not: as another
  int32_t rotary_dim = 0;
  int32_t num_blocks = 1;
  RopeStyle style = RopeStyle::neox;
  RopeSource source = RopeSource::table;
  DType table = DType::unset;
  int32_t num_axes = 1;
  int32_t has_pair_axis = 0;
  int32_t inverse = 0;
  PastTable past_table = PastTable::record;
  int32_t rounds = 0;         // after each step
  int32_t few_heads = 0;      // and nothing keeps several tokens from sharing a block
  int32_t token_threads = 0;  // of a block, where a norm is over all heads of a token
  PositionScale by_position = PositionScale::none;
  // Arrays that the call has not are unset.
  DType positions = DType::unset;
  DType slots = DType::unset;
  int32_t fewer_slots = 0;  // the last tokens may have none
  int32_t derives_position = 0;
  int32_t derives_slot = 0;
  LengthOf length_of = LengthOf::before;
  int32_t lists_pages = 0;  // kv_indptr and kv_indices
  int32_t in_ring = 0;
  DType position_offsets = DType::unset;
  int32_t offset_per_sequence = 0;
};

// A block that norms over a whole token has at most so many threads, and rows of them.
inline constexpr int kMaxTokenThreads = 1024;
inline constexpr int kMaxTokenRows = 512;

inline constexpr int kFactWords = sizeof(CallFacts) / 4;

// The same as a template argument.
struct PackedFacts {
  int32_t words[kFactWords];

  friend constexpr bool operator==(const PackedFacts&, const PackedFacts&) = default;
};
static_assert(sizeof(PackedFacts) == sizeof(CallFacts));

PROLOGUE_HOST_DEVICE constexpr BlockLayout layout_of(const HeadFacts& head) {
  return {{head.width, head.cut_dim, head.cut_offset, head.cut_style}, head.cut_blocks};
}

// The lanes of a head, of which the last may be idle: a power of two.
PROLOGUE_HOST_DEVICE constexpr int lanes_of_head(const CallFacts& facts, int vector) {
  int units = 1;
  for (const HeadFacts& head : facts.heads) {
    const int of_head = static_cast<int>(units_of(layout_of(head), vector));
    units = units > of_head ? units : of_head;
  }
  int lanes = 1;
  while (lanes < units) lanes *= 2;
  return lanes;
}

// Whether the channels of every head are in their natural order (lane i has vector i of each half), and the lanes can exchange them so: blocks
// of a Hadamard transform are within the halves, or the head.
PROLOGUE_HOST_DEVICE constexpr bool in_order(const CallFacts& facts, int vector) {
  for (const HeadFacts& head : facts.heads) {
    const bool whole = head.cut_dim == head.width && head.cut_style == RopeStyle::neox && head.cut_blocks == 1;
    const bool exchanges =
        head.hadamard_block == 0 || head.width / 2 % head.hadamard_block == 0 || head.hadamard_block == head.width;
    if (!exchanges || !whole || head.width / 2 % vector != 0 || head.width != facts.heads[0].width) return false;
  }
  return true;
}

// Whether K or V is stored in a block-scaled format.
PROLOGUE_HOST_DEVICE constexpr bool has_blocks(const CallFacts& facts) {
  for (const HeadFacts& head : facts.heads) {
    if (head.scale_from == ScaleFrom::blocks) return true;
  }
  return false;
}

// Whether lanes can store heads in blocks that share a scale: each half of a head has whole blocks, and a block whole vectors.
PROLOGUE_HOST_DEVICE constexpr bool has_whole_blocks(const CallFacts& facts, int vector) {
  for (const HeadFacts& head : facts.heads) {
    const int channels = static_cast<int>(block_channels({head.store, head.block_scaling}));
    if (head.scale_from == ScaleFrom::blocks && (head.width / 2 % channels != 0 || vector < 2 || channels % vector != 0))
      return false;
  }
  return true;
}

// Whether the lanes of a head compute something together.
PROLOGUE_HOST_DEVICE constexpr bool lanes_cooperate(const CallFacts& facts) {
  for (const HeadFacts& head : facts.heads) {
    if (head.norm != NormPlacement::none || head.hadamard_block != 0 || head.scale_from == ScaleFrom::computed ||
        head.scale_from == ScaleFrom::blocks) {
      return true;
    }
  }
  return false;
}

// Says whether blocks of a kernel with so many heads a thread have several tokens (TokenGroup): where tokens are many and have few heads.
PROLOGUE_HOST_DEVICE constexpr bool groups_tokens(const CallFacts& facts, int units, int hints) {
  return facts.few_heads != 0 && units == 1 && (hints & kEvictFirstStores) != 0;
}

PROLOGUE_HOST_DEVICE constexpr bool normed_over_token(const CallFacts& facts) {
  return (facts.heads[0].norm != NormPlacement::none && facts.heads[0].scope == NormScope::token) ||
         (facts.heads[1].norm != NormPlacement::none && facts.heads[1].scope == NormScope::token);
}

}  // namespace prologue::cuda
