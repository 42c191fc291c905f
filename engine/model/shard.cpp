#include <prologue/engine/model/shard.h>

#include <algorithm>
#include <vector>

#include <prologue/engine/model/model_spec.h>
#include <prologue/kernels/base/divide_up.h>
#include <prologue/kernels/base/weight_format.h>
#include <prologue/kernels/collective/communicator.h>

namespace prologue {
namespace {

bool has_layers(const ModelSpec& spec, bool experts) {
  return std::any_of(spec.kind_of_layer.begin(), spec.kind_of_layer.end(),
                     [&](int32_t kind) { return spec.kinds[static_cast<size_t>(kind)].experts == experts; });
}

// Returns what of the model cannot be split among so many ranks: "9 query heads"; empty: it can be.
std::string undivided(const ModelSpec& spec, int64_t num_ranks) {
  const ModelConfig& config = spec.config;
  const int64_t kv_heads = config.num_kv_heads;
  if (config.num_q_heads % num_ranks != 0) return str_cat(config.num_q_heads, " query heads");
  if (kv_heads % num_ranks != 0 && (kv_heads > num_ranks || num_ranks % kv_heads != 0)) return str_cat(kv_heads, " KV heads");
  if (has_layers(spec, false) && config.intermediate_size % num_ranks != 0) {
    return str_cat("the ", config.intermediate_size, " channels of an MLP");
  }
  if (has_layers(spec, true) && spec.experts.intermediate_size % num_ranks != 0) {
    return str_cat("the ", spec.experts.intermediate_size, " channels of an expert");
  }
  if ((num_ranks - 1) * lm_head_rows_of_rank(config.vocab_size, num_ranks) >= config.vocab_size) {
    return str_cat("a vocabulary of ", config.vocab_size, " tokens");
  }
  // Such a norm reads each KV head once.
  const bool norms_token = spec.head_norm.placement != NormPlacement::none && spec.head_norm.scope == NormScope::token;
  if (norms_token && kv_heads % num_ranks != 0) return str_cat("a norm over all ", kv_heads, " KV heads of a token");
  return {};
}

}  // namespace

int64_t kv_heads_of_rank(int64_t num_kv_heads, int64_t num_ranks) { return std::max<int64_t>(1, num_kv_heads / num_ranks); }

// A head that is the embedding, too, may be packed in groups of so many rows: each rank's part begins with a group, unless the vocabulary is so
// small that the last rank would have none.
int64_t lm_head_rows_of_rank(int64_t vocab_size, int64_t num_ranks) {
  const int64_t rows = divide_up(vocab_size, num_ranks), whole_groups = round_up(rows, kPackedGroupRows);
  return num_ranks == 1 || (num_ranks - 1) * whole_groups >= vocab_size ? rows : whole_groups;
}

ShardSizes shard_sizes(const ModelSpec& spec, const ModelShard& shard) {
  const ModelConfig& config = spec.config;
  ShardSizes sizes;
  sizes.num_q_heads = config.num_q_heads / shard.num_ranks;
  sizes.first_q_head = shard.rank * sizes.num_q_heads;
  sizes.num_kv_heads = kv_heads_of_rank(config.num_kv_heads, shard.num_ranks);
  sizes.first_kv_head = shard.rank * config.num_kv_heads / shard.num_ranks;
  sizes.intermediate_size = config.intermediate_size / shard.num_ranks;
  sizes.first_channel = shard.rank * sizes.intermediate_size;
  sizes.expert_intermediate_size = spec.experts.intermediate_size / shard.num_ranks;
  sizes.first_expert_channel = shard.rank * sizes.expert_intermediate_size;
  const int64_t logits = lm_head_rows_of_rank(config.vocab_size, shard.num_ranks);
  sizes.first_logit = shard.rank * logits;
  sizes.num_logits = std::min(logits, config.vocab_size - sizes.first_logit);
  return sizes;
}

Status check_shards(const std::string& path, const ModelSpec& spec, const ModelShard& shard) {
  if (shard.num_ranks < 1 || shard.num_ranks > kMaxRanks) {
    return invalid_argument(path, ": the number of ranks is ", shard.num_ranks, ": it must be 1 to ", kMaxRanks);
  }
  if (shard.rank < 0 || shard.rank >= shard.num_ranks) {
    return invalid_argument(path, ": the rank is ", shard.rank, ": it must be 0 to ", shard.num_ranks - 1);
  }
  if (shard.num_ranks == 1) return {};
  const std::string problem = undivided(spec, shard.num_ranks);
  if (problem.empty()) return {};
  std::vector<int64_t> possible;
  for (int64_t ranks = 2; ranks <= kMaxRanks; ++ranks) {
    if (undivided(spec, ranks).empty()) possible.push_back(ranks);
  }
  std::string counts;
  for (size_t i = 0; i < possible.size(); ++i) {
    counts += str_cat(i == 0 ? "" : i + 1 == possible.size() ? " or " : ", ", possible[i]);
  }
  return invalid_argument(path, ": ", problem, " cannot be split among ", shard.num_ranks,
                          " ranks: ", possible.empty() ? std::string("only 1 rank") : counts + " ranks", " would do");
}

}  // namespace prologue
