// Declares what the prologue's kernels are given: AttentionPrologueParams with every stride in bytes and everything decided that the host
// can decide. Few tokens are a matter of latency, and every line of the constant bank that a kernel touches costs a cold miss:
// what all instances need is together and small; what only some need comes after it.
#pragma once

#include <cstdint>
#include <type_traits>

#include <prologue/kernels/attention_prologue/attention_prologue.h>
#include <prologue/kernels/attention_prologue/steps/head_plan.h>
#include <prologue/kernels/attention_prologue/token_args.h>
#include <prologue/kernels/base/shared/head_layout.h>

namespace prologue::cuda {

// Describes one of q, k and v: its input and its output. An output row is at out + page * out_page + offset * out_token + head * out_head;
// q counts as one page whose offsets are tokens.
template <class Stride>
struct TensorArgs {
  const char* in = nullptr;
  char* out = nullptr;
  Stride in_token = 0;
  Stride in_head = 0;
  Stride out_page = 0;
  Stride out_token = 0;
  Stride out_head = 0;
  int32_t heads = 0;
};

// This is a head of q (tensor 0), k or v.
struct TensorHead {
  int tensor;
  int head;
};

// Returns the head of a row; the rows are the heads of q, k and v, one after another.
template <class Tensor>
PROLOGUE_HOST_DEVICE TensorHead head_of_row(const Tensor (&tensors)[3], int row) {
  if (row < tensors[0].heads) return {0, row};
  row -= tensors[0].heads;
  return row < tensors[1].heads ? TensorHead{1, row} : TensorHead{2, row - tensors[1].heads};
}

// Says how the heads of a tensor lie in the blocks of kernels with kTokenGroups: blockIdx.x is a group of so many tokens, whose heads of a tensor are
// rows one after another. So blocks are full where a token has few heads.
struct TokenGroup {
  uint32_t tokens = 0;           // 0: other kernels
  uint32_t num_tokens = 0;       // of the call
  uint32_t inverse_q_heads = 0;  // 2^16 / heads, rounded up
  uint32_t inverse_kv_heads = 0;
};

struct GroupRow {
  uint32_t token;
  uint32_t head;
};

// So many heads of a tensor, and rows of a block, may a kernel with groups have: then a group of one token is exact.
inline constexpr int64_t kMaxHeadsOfGroup = 192;
inline constexpr int64_t kMaxRowsOfGroup = 64;

// Returns what row_of_group() multiplies by to divide by a number of heads.
constexpr uint32_t inverse_of_heads(int64_t heads) {
  return heads < 1 ? 0 : static_cast<uint32_t>(((int64_t{1} << 16) + heads - 1) / heads);
}

// Returns true if row_of_group() is exact for all rows of a group of so many tokens, and of the block that has the last of them.
constexpr bool groups_exactly(int64_t tokens, int64_t heads, int64_t rows_of_block) {
  return (heads * tokens + rows_of_block) * heads < int64_t{1} << 16;
}

// Returns the token and head of a row of a group of tokens with so many heads each. Rows behind the group are of a token behind it.
PROLOGUE_HOST_DEVICE inline GroupRow row_of_group(uint32_t row, uint32_t heads, uint32_t inverse_heads) {
  const uint32_t token = row * inverse_heads >> 16;
  return {token, row - token * heads};
}

// Holds what the lean instances have in common. The host makes sure that every stride, and head * stride for every head, fits 32 bits.
template <class Tensor>
struct CoreArgs {
  const char* positions = nullptr;
  const char* slots = nullptr;
  uint32_t position_step = 4;  // 4: int32, 8: int64, 0: there are none (and `positions` is any address)
  uint32_t slot_step = 4;
  uint32_t k_begin = 0;  // the first blockIdx.y, or row of a token, that works on k and on v
  uint32_t v_begin = 0;
  const float* cos_sin = nullptr;
  uint32_t max_position = 0;  // 0: no bound
  uint32_t num_slots = 0;     // 0: there are no slots
  PageDivider pages;
  HeadLayout layout;          // of q and k
  uint32_t row_is_token = 0;  // of cos and sin: they were gathered
  Tensor tensors[3];          // q, k, v
  FaultRecord* faults = nullptr;
  uint8_t* token_faults = nullptr;
  TokenGroup group;
};

// Says what an instance can do in addition to the base case: given positions, whole heads, neox pairs rotated by a table or not at
// all.
inline constexpr int kLayouts = 1;          // any style, rotary_dim and rotary_offset
inline constexpr int kBias = 2;             // bias of q, k and v
inline constexpr int kNorm = 4;             // RMS norm of the heads of q and k, with weights, before the rotation
inline constexpr int kGivenScales = 8;      // 8-bit cache or q8_out, with scales given
inline constexpr int kComputedScales = 16;  // or computed
inline constexpr int kAxes = 32;            // several position axes
inline constexpr int kDerived = 64;         // positions and slots derived
inline constexpr int kPerToken = 128;       // cos and sin gathered per token; instances with steps decide at run time
inline constexpr int kCommonSteps = 256;    // every mixture of bias, norm and scales, decided at run time; no norm with kLayouts
inline constexpr int kFourBits = 512;       // a cache of which K or V has 4 bits, with scales given or computed
inline constexpr int kMostSteps = 1024;  // all above but kAxes, and any norm (with kLayouts too), a bias of some of q, k and v,
                                         // a scale of Q, k_out and v_out, the inverse rotation and rings, decided at run time
inline constexpr int kTokenNorm = 2048;  // with kMostSteps: norms over all heads of a token
inline constexpr int kEveryStep = 4096;  // with kMostSteps: also the Hadamard transform, rounding after each step, and rows past
                                         // the table that are not rotated

// Says which accesses have a cache hint (evict first): what they touch is the first to leave the L2.
inline constexpr int kNoHints = 0;
inline constexpr int kEvictFirstLoads = 1;   // loads of q, k and v
inline constexpr int kEvictFirstStores = 2;  // stores of q; not of K and V, which attention reads next
// Stands among them for blocks of several tokens (TokenGroup), with one head a thread: for many tokens of few heads.
inline constexpr int kTokenGroups = 4;

// Says whether an instance has steps besides the rotation, or decides them at run time.
constexpr bool has_steps(int features) { return (features & ~(kLayouts | kPerToken)) != 0; }

// Says whether lanes work together: a head's are then a power of two of one warp, warps are full, and each keeps to one tensor.
constexpr bool padded(int features) {
  return (features & (kNorm | kComputedScales | kDerived | kCommonSteps | kFourBits | kMostSteps)) != 0;
}

enum class ScaleFrom : int32_t { nothing = 0, given, computed, blocks };  // blocks: not in lean kernels

constexpr ScaleFrom scale_source(KvScaling scaling) {
  if (scaling == KvScaling::none) return ScaleFrom::nothing;
  if (scaling == KvScaling::mx || scaling == KvScaling::nv) return ScaleFrom::blocks;
  return scaling == KvScaling::token_head ? ScaleFrom::computed : ScaleFrom::given;
}

// A tensor with its steps, so that a block, which mostly works on one of them, touches few lines. Members without a feature of
// the instance are not read.
struct LeanTensor : TensorArgs<uint32_t> {
  const char* bias = nullptr;
  const char* weight = nullptr;
  float eps = 0.0f;
  float weight_offset = 0.0f;
  float inverse_count = 0.0f;  // of the channels of a norm
  DType store = DType::unset;
  char* scale = nullptr;  // any address where there is none: all read one
  uint32_t scale_page = 0;
  uint32_t scale_token = 0;
  uint32_t scale_head = 0;
  ScaleFrom scale_from = ScaleFrom::nothing;
};

struct AxisArgs {
  const uint8_t* pair_axis = nullptr;
  int64_t offset[3] = {};  // of axes 1 to 3 from axis 0, in bytes; 0: no such axis
};

struct PageTableArgs {
  const int32_t* pages = nullptr;
  uint32_t stride = 0;      // of a sequence
  uint32_t max_cached = 0;  // tokens of a sequence that it has room for
  uint32_t num_pages = 0;   // of the cache
};

using PlainArgs = CoreArgs<TensorArgs<uint32_t>>;

// These are the arguments of the instances with steps.
struct LeanArgs : CoreArgs<LeanTensor> {
  AxisArgs axes;
  SequenceArgs sequences;
  PageTableArgs page_table;
  int32_t features = 0;  // that the call asks for
};

// Holds what kMostSteps adds to a tensor.
struct MostStepsTensor {
  NormPlacement norm = NormPlacement::none;
  NormKind kind = NormKind::rms;
  NormScope scope = NormScope::head;
  int32_t float_weights = 0;  // the norm's weight and bias are float32
  uint32_t weight_head = 0;   // from one head to the next
  const char* norm_bias = nullptr;
  char* second_out = nullptr;  // k_out, v_out
  uint32_t second_token = 0;
  uint32_t second_head = 0;
  int32_t hadamard_block = 0;
  float hadamard_factor = 1.0f;
};

struct MostStepsArgs : LeanArgs {
  MostStepsTensor more[3];
  QueryScale q_scale;
  int32_t inverse = 0;
  uint32_t ring_size = 0;
  int32_t rounds = 0;  // after each step
  PastTable past_table = PastTable::record;
};

template <int kFeatures>
using ArgsOf = std::conditional_t<(kFeatures & kMostSteps) != 0, MostStepsArgs,
                                  std::conditional_t<has_steps(kFeatures), LeanArgs, PlainArgs>>;

// ---- of the general kernel --------------------------------------------------------------------------------------------------

inline constexpr int kMaxTensors = 3 + static_cast<int>(kMaxHeadGroups);  // q, k, v and the groups

struct TensorExtras {
  HeadPlan plan;
  char* second_out = nullptr;  // k_out, v_out, and `out` of a group that is cached
  char* scale = nullptr;
  int64_t second_token = 0;
  int64_t second_head = 0;
  int64_t scale_page = 0;
  int64_t scale_token = 0;
  int64_t scale_head = 0;
  DType store = DType::unset;
  ScaleFrom scale_from = ScaleFrom::nothing;
  // Of a block-scaled format; scale_page, scale_token and scale_head are then the strides of block_scale.
  uint8_t* block_scale = nullptr;
  KvScaling block_scaling = KvScaling::none;
  BlockScaleLayout block_scale_layout = BlockScaleLayout::linear;
  BlockLayout layout;
  int32_t rotates = 0;
  int32_t rope = 0;    // that rotates: 0 is that of the call, the others are those of groups, which have their own bounds
  int32_t cached = 0;  // `out` is a cache, whose pages are those of `pages`; otherwise its rows are tokens
  PageDivider pages;
  const char* rotated_in = nullptr;  // the rotated channels, if they are apart; `in` has the others
  int64_t rotated_token = 0;
  int64_t rotated_head = 0;
};

struct GeneralArgs {
  TensorArgs<int64_t> tensors[kMaxTensors];
  TensorExtras extras[kMaxTensors];
  int32_t num_tensors = 3;
  int32_t packs = 0;       // a cache has 4 bits
  int32_t has_blocks = 0;  // a cache is block-scaled
  TokenArgs token;
  Rope ropes[1 + kMaxHeadGroups];
  QueryScale q_scale;
  FaultRecord* faults = nullptr;
  uint8_t* token_faults = nullptr;
};
static_assert(sizeof(GeneralArgs) <= 4096, "what every driver takes as the parameters of a kernel");

// ---- filling in -------------------------------------------------------------------------------------------------------------

// `features` are those of the instance (PlainArgs), or those that the call needs (the others). k_begin and v_begin are the launch's.
void fill(const AttentionPrologueParams& params, int features, PlainArgs& args);
void fill(const AttentionPrologueParams& params, int features, LeanArgs& args);
void fill(const AttentionPrologueParams& params, int features, MostStepsArgs& args);
void fill(const AttentionPrologueParams& params, int64_t vector, GeneralArgs& args);

}  // namespace prologue::cuda
