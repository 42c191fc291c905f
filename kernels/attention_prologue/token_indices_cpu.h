// resolve_token() of token_args.h on the CPU.
#pragma once

#include <cstdint>

#include <prologue/kernels/attention_prologue/token_args.h>

namespace prologue::cpu {

// The index arrays' entries of a token, read when they are needed.
struct TokenIndices {
  const TokenArgs& p;
  int64_t t;

  int64_t position(int axis) const {
    return p.positions.data == nullptr ? 0 : index_at(p.positions, (axis < p.num_axes ? axis : 0) * p.position_axis_stride + t);
  }
  int64_t slot() const { return p.slots.data == nullptr || t >= p.slots_given ? -1 : index_at(p.slots, t); }
  TokenSequence sequence() const {
    const SequenceArgs& s = p.sequences;
    if (s.num_seqs <= 0 || t >= s.cu_seqlens_q[s.num_seqs]) return {s.num_seqs, 0, 0, 0};
    return sequence_at(s, static_cast<int32_t>(sequence_of(t, s.num_seqs, [&](int64_t i) { return s.cu_seqlens_q[i]; })));
  }
  PageRow page_row(const TokenSequence& sequence) const { return prologue::page_row(p.page_table, sequence.index); }
  int64_t position_offset(const TokenSequence& sequence) const { return position_offset_of(p, sequence); }
};

inline ResolvedToken resolve_token(const TokenArgs& p, int64_t t) { return prologue::resolve_token(p, TokenIndices{p, t}, t); }

}  // namespace prologue::cpu
