// Decides which way (way.h) brings the weights of which projection, how its launch is divided, and which launches begin early: every
// decision that was measured, with its measurement. This is plain host code; the ways ask it, and the graph asks it which launches may
// overlap.
//
// A projection multiplies x [num_tokens, k] by weights [n, k]. Packed weights of one and two tokens are whole numbers (kFewestIntegerRows);
// others go through registers, for up to 16 tokens (cost_of_packed_output(), packed_heads_fit()), or through stages, for up to 64
// (tokens_of_unpacking()). With weights of 16 bits its way is the first of these that can do the call and of which the function says that it
// is the fastest; none of them: separate operations, with cuBLASLt's GEMM.
//
//                    | a linear layer                        | the heads of q, k and v (all of them: heads_save_enough())
//     vector         | vector_is_fastest()                   | 1 token, in one pass, or in four: vector_passes_fill_the_gpu()
//     ring           | num_tokens >= tokens_of_rings(n, k)   | 2 to 64 tokens: ring_heads_of_block(), ring_divides_heads()
//     integer        | packed, 1 or 2 tokens, kFewestIntegerRows | packed, 1 or 2 tokens: heads of up to 128 channels
//     registers      | up to 16 tokens: whatever is left     | up to 16 tokens: registers_heads_are_worth_it()
//     tiles          | tiles_are_worth_it()                  | tiles_are_worth_it()
//
// So 8 tokens of an 8B model take the ring: tokens_of_rings(4096, 4096) is 2, and the weights of its 48 heads are 128 blocks of 48 rows.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include <prologue/kernels/base/divide_up.h>

namespace prologue {

// ---- early launches ---------------------------------------------------------------------------------------------------------

// Says whether [n, k] weights may begin beside attention (`overlaps`) in every step. Attention of few tokens keeps few SMs busy, and long.
// Small blocks of a large matrix that start beside it gather on the other SMs, and those of the launches after it find room only there:
// such a layer was 14 % slower. At one token it is 1 to 2 % faster if they start when the keys have been read, and from tokens_of_rings()
// on, too: weights pass through rings then, whose blocks have an SM each (docs/tuning/launches.md).
constexpr bool may_begin_beside_attention(int64_t n, int64_t k) { return n * k <= int64_t{1} << 20; }

// Says whether the blocks of one token hold all of [n, k] weights in registers before there is an x. Attention then signals early.
constexpr bool waits_with_its_weights(int64_t n, int64_t k) { return n * k <= int64_t{8} << 20; }

// Returns the fewest tokens that [n, k] weights (n: of gate and up together) are multiplied by in a ring. For fewer, weights through
// registers are faster if the blocks of a ring have few rows, and if rows are short. This was measured in whole layers (bench_projection).
constexpr int64_t tokens_of_rings(int64_t n, int64_t k) { return k >= 4096 && n >= 3200 ? 2 : k >= 2048 ? 8 : 9; }

namespace policy {

// These are the SMs of an H200. If a number of blocks is compared with it, the sizes were measured there.
inline constexpr int64_t kSms = 132;

// ---- vector -----------------------------------------------------------------------------------------------------------------

// A large matrix without a gated activation takes this way only if its rows are long. (The output projection of 8B takes the room of
// attention's neighbours, lm_head is as fast either way.) This was measured in whole layers and steps (bench_projection, generate). n is
// that of y.
constexpr bool vector_is_fastest(int64_t n, int64_t k, bool gated) { return gated || k > n || waits_with_its_weights(n, k); }

// A warp has as many rows as leave some blocks, and twice as many as it has registers for, in two passes, if that leaves blocks for all
// SMs. With four passes 1B and 8B are slower. `rows` are those of a warp; `rows_of_pass` are those that it has registers for.
inline constexpr int64_t kMostPassesOfVectorOutput = 2;
constexpr bool has_enough_vector_blocks(int64_t rows, int64_t rows_of_pass, int64_t blocks) {
  constexpr int64_t kEnoughBlocks = 32, kEnoughBlocksOfPasses = 256;
  return blocks >= (rows > rows_of_pass ? kEnoughBlocksOfPasses : kEnoughBlocks);
}

// Heads whose rows are too many for a cluster in one pass take four: with a block for most SMs, and none in a second wave. This was
// measured in whole layers (bench_projection): in two passes, with twice as many blocks, 8B is slower if attention reads 512 tokens.
constexpr bool vector_passes_fill_the_gpu(int64_t blocks) { return blocks >= kSms && blocks <= 2 * kSms; }

// ---- ring -------------------------------------------------------------------------------------------------------------------

// These are the bytes of weights in flight to an SM; a ring has no more stages than that takes. In whole layers more and less were slower
// (docs/tuning/projection.md). For a block whose warps have all of its rows it was measured with 48 rows (8B).
inline constexpr int64_t kRingBytesInFlight = 112 * 1024, kRingBytesInFlightOfAllRows = 144 * 1024;

// Returns the rows of y of a block (`halves` is 2 if gate and up have as many each), such that the blocks are as few waves as can be. Up to
// `few_tokens`, an SM has two blocks where one would have many rows: the end of one is hidden by what the other one reads, for gate and up
// of 8B 1.03 x. With more tokens a block needs the whole shared memory.
constexpr int64_t ring_rows(int64_t n, int64_t halves, int64_t most_rows, bool few_tokens, int64_t blocks_of_wave) {
  constexpr int64_t kMostRowsOfTwoBlocks = 128;
  const int64_t most = few_tokens ? kMostRowsOfTwoBlocks : most_rows;
  for (int64_t waves = 1;; ++waves) {
    const int64_t rows = round_up(divide_up(n, blocks_of_wave * waves), 8);
    if (halves * rows <= most) return rows;
  }
}

// Says whether two cooperating blocks divide k. Blocks of few rows copy more of x than of the weights; in pairs that have half of k each,
// they copy half of x, and then add up each other's sums. This makes down of 1B, with 32 and 64 tokens, 1.25 to 1.33 x as fast. In fours
// they are slow: the clusters do not all find room at once. `rows` are those of a block that has all of k.
constexpr bool ring_divides_k(int64_t rows, int64_t k, bool few_tokens) {
  constexpr int64_t kMostRowsOfLone = 16, kFewestChannels = 4096;
  return !few_tokens && k >= kFewestChannels && rows <= kMostRowsOfLone;
}

inline constexpr int64_t kFewestTokensOfRingHeads = 2;

// Blocks of few rows are slow if rows are long. This was measured in whole layers (bench_projection).
constexpr int64_t fewest_rows_of_ring_heads(int64_t k) {
  constexpr int64_t kFewestRows = 16, kFewestLongRows = 32, kLongRow = 4096;
  return k > kLongRow ? kFewestLongRows : kFewestRows;
}

// Returns of how many heads a block has the same pairs: the fewest with which all blocks run at once, since a second wave would take as
// long as the first. Returns 0 if there is no such number. `blocks_of_head` blocks divide a head's pairs.
constexpr int64_t ring_heads_of_block(int64_t num_heads, int64_t blocks_of_head, int64_t sms) {
  if (blocks_of_head == 0 || blocks_of_head > sms) return 0;
  int64_t heads = 1;
  while (blocks_of_head * divide_up(num_heads, heads) > sms) ++heads;
  return heads;
}

// Says whether 2^log_blocks blocks of a cluster should divide a head: as many as leave a block enough rows, in one wave.
enum class RingDivision { too_many_blocks, best, too_few_rows };
constexpr RingDivision ring_divides_heads(int64_t num_heads, int64_t head_dim, int64_t k, int log_blocks, int64_t sms) {
  if (head_dim >> log_blocks < fewest_rows_of_ring_heads(0) || num_heads << log_blocks > sms)
    return RingDivision::too_many_blocks;
  return head_dim >> log_blocks < fewest_rows_of_ring_heads(k) ? RingDivision::too_few_rows : RingDivision::best;
}

// ---- registers --------------------------------------------------------------------------------------------------------------

// Describes a launch of this way: its blocks, and the slices of K (registers/product.cuh) that each warp multiplies.
struct RegistersDivision {
  int64_t blocks;
  int64_t slices_of_warp;
};

// A cluster of a linear layer has from 8 down to 2 row tiles: the fewer the fewer clusters there are and the longer the rows are, until
// there are enough blocks and a warp has few slices. But none has less than 2, nor less than 8 where there are many blocks (lm_head of a
// small model): what blocks send each other would take longer than what they read. This was measured in a whole layer (bench_projection):
// what other blocks do around a launch decides as much as the launch by itself.
inline constexpr int64_t kMostRowTiles = 8, kFewestRowTiles = 2;
constexpr bool is_divided_enough(const RegistersDivision& of) { return of.blocks >= 256 && of.slices_of_warp <= 16; }
constexpr bool is_divided_too_finely(const RegistersDivision& of) { return of.slices_of_warp < 2; }
constexpr bool has_too_many_blocks(const RegistersDivision& of) { return of.slices_of_warp < 8 && of.blocks >= 2 * 768; }

// Says whether a linear layer lets the next launch start before it multiplies: the next one then finds room on every SM.
constexpr bool registers_signal_early(int64_t blocks) { return blocks <= kSms; }

// With so few heads that they leave SMs without a block, long rows are better divided by a GEMM: 10 heads of 128 channels, k of 8192, are
// 5 % slower in one kernel in a chain, 11 % by themselves.
constexpr bool registers_heads_are_worth_it(const RegistersDivision& of) { return of.blocks >= kSms || of.slices_of_warp <= 16; }

// A kernel with a finishing warp needs so many registers that two blocks fit an SM: more blocks would come in a second wave.
constexpr bool finishing_warps_fit(int64_t blocks) { return blocks <= 2 * kSms; }

// The same of packed weights, which are brought to the multiplying warps in another way.
struct PackedDivision {
  int64_t num_tokens;
  int64_t blocks;  // of all clusters
  int64_t blocks_of_cluster;
  int64_t blocks_of_sm;  // that there is room for
  int64_t slices_of_block;
  int64_t slices_of_warp;
};

// Estimates what a linear layer with packed weights takes, in slices of a warp. An SM multiplies its blocks' slices; each wave of blocks begins
// and brings x to shared memory; the blocks of a cluster exchange sums. The factors are fitted to 38 measured calls (SmolLM2, 1B, 8B; 1 to 16
// tokens): the division chosen is on average 3 % slower than the best one, and at most 19 % (docs/tuning/projection.md).
inline double cost_of_packed_output(const PackedDivision& of) {
  constexpr double kWave = 12.0, kExchange = 6.0, kToken = 0.06;
  const auto waves = static_cast<double>(divide_up(of.blocks, kSms * of.blocks_of_sm));
  return static_cast<double>(divide_up(of.blocks, kSms) * of.slices_of_warp) +
         kExchange * static_cast<double>(of.blocks_of_cluster) +
         waves * (kWave + kToken * static_cast<double>(of.num_tokens * of.slices_of_block));
}

// Returns up to how many tokens a call with packed weights is several launches, of a kernel that takes `most_tokens`. Separate operations make
// the weights dense first, piece by piece: 128 tokens of down of 8B take 85 us so (Q4_K), and 56 us as two launches of 64; of gate and up about
// as long. 16 tokens of gate and up through registers take 64.5 us.
constexpr int64_t most_tokens_of_packed_launches(int64_t most_tokens) {
  return most_tokens >= 64 ? 128 : most_tokens >= 16 ? 64 : 4 * most_tokens;
}

// Heads take the most blocks that an SM has room for at once, two.
constexpr bool packed_heads_fit(int64_t blocks) { return blocks <= 2 * kSms; }

// ---- integer ----------------------------------------------------------------------------------------------------------------

// These are the bytes of weights in flight to an SM.
inline constexpr int64_t kIntegerBytesInFlight = 84 * 1024, kIntegerBytesInFlightOfHeads = 56 * 1024;

// An SM should have one block of a launch, and one of the next launch beside it, whose first weights are then there when it begins. Blocks that
// differ in nothing would gather in twos on the SMs that have room. So the blocks of one launch take more than half of an SM's shared memory, those
// of the next one more than half of its registers. Linear layers of the two kinds, with a norm before them and without, follow each other.
constexpr bool integer_blocks_are_apart_by_memory(bool normed) { return !normed; }

// Projections of fewer rows go through registers, whose clusters divide k: these blocks have 16 rows at least, so they would leave most SMs without
// one. (SmolLM2, 576 rows: 2.8 us there, 3.0 here. 2048 rows of 1B are faster here.)
inline constexpr int64_t kFewestIntegerRows = 1024;

// ---- unpacking --------------------------------------------------------------------------------------------------------------

// Returns the fewest tokens that packed [n, k] weights, where n counts the rows of gate and of up, are multiplied by in this way. For fewer,
// registers are faster: what that way takes grows with the tokens, and this one takes the same up to 8. With 4 tokens, Q4_K and Q8_0, 8B takes
// 34.0 and 35.2 us here (gate and up), 7.9 and 9.1 (output), 17.7 and 19.1 (down), through registers 31.9 and 39.1, 8.5 and 9.3, 25.5 and 28.3;
// with 8, Q4_K, 33.6 and 39.9 (gate and up). Smaller projections do not cross up to 16 tokens, but for down of 1B (docs/tuning/projection.md).
constexpr int64_t tokens_of_unpacking(int64_t n, int64_t k, bool has_codes_of_8_bits) {
  if (n < 4096 || k < 4096) return k >= 8192 ? 9 : 17;
  return k > 8192 ? 3 : has_codes_of_8_bits ? 4 : 5;
}

// These are the bytes of weights in flight to an SM, where codes are multiplied as they are, and where weights are rounded. 160 KB of codes: a step
// of 8B with 8 sequences 2 % slower.
inline constexpr int64_t kCodesBytesInFlight = 96 * 1024, kRoundedBytesInFlight = 64 * 1024;

struct UnpackingDivision {
  int64_t num_tokens;
  int64_t blocks;  // of all clusters
  int64_t blocks_of_cluster;
  int64_t slices_of_warp;
  int64_t warps;  // of a block, that multiply: up to 16
};

// Estimates what a launch takes, in slices of a warp: each wave of blocks, one for each SM, begins and ends, and the blocks of a cluster
// exchange sums. Clusters of 4 and 8 do not find room on all SMs at once. With up to 12 warps a scheduler has three in place of four, so each is
// faster: 0.7 is estimated from one case (8 tokens of gate and up of 8B: 46 us in two waves of 10 warps, 33 in one of 16). The others are fitted
// to 51 measured calls (SmolLM2, 1B, 8B; 8 to 64 tokens) of weights that are rounded to 16 bits (docs/tuning/projection.md).
inline double cost_of_unpacking(const UnpackingDivision& of) {
  constexpr double kWave = 6.0, kExchange = 2.0, kToken = 0.05;
  const int64_t room = of.blocks_of_cluster <= 2 ? kSms : of.blocks_of_cluster == 4 ? 112 : 104;
  const auto waves = static_cast<double>(divide_up(of.blocks, room)), blocks = static_cast<double>(of.blocks_of_cluster);
  const double of_slice = of.warps <= 12 ? 0.7 : 1.0;
  return waves * (of_slice * static_cast<double>(of.slices_of_warp) + kWave) +
         blocks * (kExchange + kToken * static_cast<double>(of.num_tokens));
}

// ---- tiles ------------------------------------------------------------------------------------------------------------------

inline constexpr int64_t kTokensOfTile = 128, kChannelsOfStage = 64;

// Has the sizes of x W^T, where n counts the rows of weights, of gate and up together.
struct PromptSizes {
  int64_t num_tokens;
  int64_t n;
  int64_t k;
};

// Calls with fewer tokens, or rows of the weights (70B on eight GPUs), or shorter ones (models below 1B) are faster separately.
constexpr bool is_large_enough(const PromptSizes& sizes) {
  constexpr int64_t kFewestTokens = 256, kFewestChannels = 2048, kFewestColumns = 2048;
  return sizes.num_tokens >= kFewestTokens && sizes.k >= kFewestChannels && sizes.n >= kFewestColumns;
}

// Says how a launch of tiles is divided: stages of k, tiles that are whole, whether the others are divided in two, and clusters.
struct TilesDivision {
  int64_t columns;  // of a tile
  int64_t stages_of_k;
  int64_t whole_tiles;
  bool divides;
  int64_t clusters;
};

// Estimates what a launch takes, in waves of tiles of 256 columns on all clusters: measured on an H200, with k of 2048 and 4096.
inline double waves_of_tiles(const TilesDivision& of) {
  const double stages = static_cast<double>(of.stages_of_k);
  const double waves = std::ceil(static_cast<double>(of.whole_tiles) / static_cast<double>(of.clusters));
  if (of.columns > 192) return waves + (of.divides ? 0.82 : 0.0) + 6.4 / stages;
  if (of.columns == 192) return 0.8 * waves + 6.4 / stages;
  return 0.53 * waves + (of.divides ? 0.36 + 3.0 / stages : 0.0) + 3.0 * (waves + 1) / stages;
}

// Estimates the same for cuBLASLt's GEMM, which seems to have tiles of these sizes, and a kernel that reads and writes its product.
inline double waves_of_separate_kernels(const PromptSizes& sizes, int64_t sms) {
  const auto tiles = [&](int64_t columns) {
    return std::ceil(static_cast<double>(sizes.num_tokens) / static_cast<double>(kTokensOfTile)) *
           std::ceil(static_cast<double>(sizes.n) / static_cast<double>(columns));
  };
  const auto waves = [&](int64_t columns) { return std::ceil(tiles(columns) / static_cast<double>(sms)); };
  const double product = std::min({waves(256), 0.85 * waves(192), 0.6 * waves(128) - 0.12, 0.35 * waves(64)});
  const double whole = tiles(256) / static_cast<double>(sms);
  return product + (4.9 + 5.3 * whole) * static_cast<double>(kChannelsOfStage) / static_cast<double>(sizes.k);
}

inline bool tiles_are_worth_it(const PromptSizes& sizes, const TilesDivision& division, int64_t sms) {
  return is_large_enough(sizes) && waves_of_tiles(division) <= waves_of_separate_kernels(sizes, sms);
}

// ---- heads, in any way of few tokens ----------------------------------------------------------------------------------------

// A call that neither begins early nor has a norm saves one launch, and from two tokens on that is worth less than what the ends of a
// larger kernel cost. This was measured in whole attention layers (bench_attention_layer): at one token 8B is 11 % faster in one kernel, at
// 2 to 64 tokens up to 8 % slower, 1B up to 11 %; SmolLM2 is faster up to 16 tokens. `weights` is their number.
constexpr bool heads_save_enough(int64_t num_tokens, int64_t weights, bool overlaps, bool normed) {
  constexpr int64_t kMostOfOneToken = int64_t{32} << 20, kMostOfFewTokens = int64_t{1} << 20, kFewTokens = 16;
  if (overlaps || normed) return true;
  return num_tokens == 1 ? weights <= kMostOfOneToken : num_tokens <= kFewTokens && weights <= kMostOfFewTokens;
}

}  // namespace policy
}  // namespace prologue
