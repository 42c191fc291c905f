// Says which part of a model a rank of a tensor-parallel group has (kernels/collective/communicator.h). Every rank has all layers, and of each:
//
//   attention    its query heads, and the KV heads that they read: the rows of q, k and v, and the columns of the output's weight
//   MLP, experts its channels: the rows of gate and up, and the columns of down. The router is whole on every rank
//   lm_head      its rows, so its part of the logits
//
// Everything else is whole on every rank: the embedding, and the norms of the hidden size. What the ranks compute of a layer must be added up
// (all_reduce), so the biases of attention's output and of down are only on rank 0; logits are gathered (all_gather).
#pragma once

#include <cstdint>
#include <string>

#include <prologue/kernels/base/status.h>

namespace prologue {

struct ModelSpec;

struct ModelShard {
  int64_t rank = 0, num_ranks = 1;
};

// Returns how many KV heads each rank has. If there are fewer heads than ranks it is 1, and several ranks have the same one.
int64_t kv_heads_of_rank(int64_t num_kv_heads, int64_t num_ranks);

// Returns the rows of the lm_head of each rank but the last, which has what is left: the part_width of the logits' all_gather.
int64_t lm_head_rows_of_rank(int64_t vocab_size, int64_t num_ranks);

// What a rank has of a model, as numbers that count in the whole one.
struct ShardSizes {
  int64_t first_q_head = 0, num_q_heads = 0;
  int64_t first_kv_head = 0, num_kv_heads = 0;
  int64_t first_channel = 0, intermediate_size = 0;                // of the MLP
  int64_t first_expert_channel = 0, expert_intermediate_size = 0;  // of each expert
  int64_t first_logit = 0, num_logits = 0;                         // rows of the lm_head
};

// The shard must be one that check_shards takes.
ShardSizes shard_sizes(const ModelSpec& spec, const ModelShard& shard);

// invalid_argument: the rank is not one of the ranks, or the model cannot be split among so many. The message names what cannot be, and the
// numbers of ranks (up to kMaxRanks) that would do. `path` begins it.
Status check_shards(const std::string& path, const ModelSpec& spec, const ModelShard& shard);

}  // namespace prologue
