// This file lists the tables of kernels that are shipped, one per source file, and what a launch needs to know of each kernel.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <span>

#include <prologue/kernels/paged_attention/attention_args.h>

namespace prologue::cuda {

// Says what K and V hold. Kernels of one format know no zero points; those of any formats serve the same calls, with more work.
enum class PrefillCache {
  dtype,       // mma, wgmma: the type of q and out
  codes,       // mma: codes of one format; wgmma: each of K and V codes of any format
  one_format,  // simple: any type
  any_formats,  // each of K and V any type; mma: codes, or the type of q and out
  any_blocks    // simple: each of K and V any format, at least one of them block-scaled; all others: none of them
};

struct DecodeInstance {
  DType cache;    // of K and V alike; unset: any types of both
  int head_dim;   // the largest it serves, of K and V
  int tile_rows;  // packed rows of a block
  bool blocks;    // K, V or both are block-scaled; otherwise none is
  void (*decode)(AttentionArgs);
};

inline constexpr int kKeyGroup = 16;  // decode_mma, decode_mla: tiles of keys start at multiples of it
inline constexpr int kDecodeMmaWarps = 4;
inline constexpr int kDecodeMmaThreads = kDecodeMmaWarps * 32;
inline constexpr int kMaxDecodeMmaStages = 4;
// A range of so many tiles uses only two stages if one stage of all warps of an SM has at least kEnoughInFlight bytes.
inline constexpr int kLongRange = 32;
inline constexpr int kEnoughInFlight = 64 << 10;

struct DecodeMmaInstance {
  DType k;  // 16 bits: of q and out, too; otherwise these are any type of 16 bits
  DType v;
  bool blocks;    // K and V are block-scaled; otherwise neither is
  int head_dim;   // the largest it serves, of K and V
  int tile_rows;  // packed rows of a work item
  int tile_keys;
  int blocks_per_sm;    // that run at a time
  size_t shared_bytes;  // without the rings
  size_t stage_bytes;   // of all warps
  void (*kernel)(AttentionArgs);
};

struct PrefillInstance {
  DType dtype;  // mma: of q and out
  PrefillCache cache;
  int head_dim;
  int rows;  // packed rows of a block, and
  int keys;  // keys that it takes at a time
  int threads;
  size_t shared_bytes;
  void (*kernel)(AttentionArgs);
};

template <int kHeadDim, bool kCodes>  // with 512 there are 128 registers: too few for wgmma of larger heads
inline constexpr int kPrefillWgmmaThreads = (kCodes && kHeadDim <= 128) ? 512 : 384;
template <int kHeadDim, bool kCodes>
inline constexpr int kPrefillWgmmaRegisters =  // of a thread at the launch: the most that so many may have
    kPrefillWgmmaThreads<kHeadDim, kCodes> == 512 ? 128 : 168;
inline constexpr int kPrefillWgmmaRows = 128;         // packed rows of a tile, at most
inline constexpr int kPrefillWgmmaMaxBoxSlots = 64;   // slots of a page that one copy takes, at most
inline constexpr int kPrefillWgmmaCodes = 16;         // that a thread takes from the cache at a time
inline constexpr int kPrefillWgmmaClusterBlocks = 6;  // blocks of a cluster, at most; they may work on one tile together
inline constexpr int kPrefillWgmmaClusters = 8;       // clusters that work on one tile together, at most
inline constexpr int kPrefillWgmmaWholeTiles = 3;     // so many tiles of keys, or fewer, are not divided
template <int kHeadDim>
inline constexpr int kPrefillWgmmaKeys = kHeadDim > 128 ? 64 : 128;  // of a tile

// The kernel takes these in addition to AttentionArgs.
struct PrefillWgmmaParams {
  CUtensorMap q;  // [channel, q head, token]; a box: 64 channels of tile_rows packed rows
  CUtensorMap k;  // unless the cache holds codes: [channel, slot, kv head, page]; a box: 64 channels of box_slots slots
  CUtensorMap v;
  Divisor tile_rows;
  int box_slots = 0;
  int cluster_blocks = 0;  // blocks of a cluster; 0: no tile is divided
};

struct PrefillWgmmaInstance {
  DType dtype;  // of q and out
  PrefillCache cache;
  int head_dim;
  int keys;  // of a tile
  int threads;
  int registers;  // of a thread
  size_t shared_bytes;
  void (*kernels[2][2])(AttentionArgs, PrefillWgmmaParams);  // [with a soft cap][may divide tiles]
};

inline constexpr int kDecodeMlaThreads = 384;
inline constexpr int kDecodeMlaRegisters = 168;  // of a thread at the launch: the most that so many threads may have
inline constexpr int kDecodeMlaRows = 64;        // packed rows of a work item
inline constexpr int kDecodeMlaKeys = 64;        // of a tile
inline constexpr int kDecodeMlaBoxSlots = 16;    // slots of a page that one copy takes
inline constexpr int kMlaHeadDim = 576;          // of q and K; V is its first channels
inline constexpr int kMlaValueDim = 512;

// This kernel decodes MLA on Hopper. In addition to AttentionArgs it takes the tensor map of the cache: [channel of a panel, slot of 8,
// panel of 64 channels, 8 slots of a page, page]. A box is kDecodeMlaBoxSlots slots with all their channels.
struct DecodeMlaInstance {
  DType dtype;  // of q, the cache and out
  size_t shared_bytes;
  void (*kernel)(AttentionArgs, CUtensorMap);
};

inline constexpr int kMlaCombineThreads = 512;

std::span<const DecodeMlaInstance> decode_mla_instances();
void (*mla_combine())(AttentionArgs);
std::span<const DecodeMmaInstance> decode_mma_instances_of_floats();
std::span<const DecodeMmaInstance> decode_mma_instances_of_codes();
std::span<const DecodeMmaInstance> decode_mma_instances_of_zero_points();
std::span<const DecodeMmaInstance> decode_mma_instances_of_blocks();
std::span<const DecodeInstance> decode_instances_of_floats();
std::span<const DecodeInstance> decode_instances_of_large_heads();
std::span<const DecodeInstance> decode_instances_of_any_formats();
std::span<const DecodeInstance> decode_instances_of_blocks();
std::span<const PrefillWgmmaInstance> prefill_wgmma_instances();
std::span<const PrefillWgmmaInstance> prefill_wgmma_instances_of_codes();
std::span<const PrefillInstance> prefill_mma_instances();
std::span<const PrefillInstance> prefill_simple_instances();
std::span<const PrefillInstance> prefill_mma_instances_of_any_formats();
std::span<const PrefillInstance> prefill_simple_instances_of_any_formats();
std::span<const PrefillInstance> prefill_simple_instances_of_blocks();

}  // namespace prologue::cuda
