// Tests what each rank of a tensor-parallel model loads. Every weight of the shards must be exactly the part of the whole model's that the
// rule of the split names: for the tiny checkpoints of every family, and for packed weights of every format. Which part that is, is worked out
// here from the owner of each head, channel and logit. That the whole model's weights are right is tested elsewhere (reference_models_test).
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <set>

#include <prologue/engine/gguf/gguf_checkpoint.h>
#include <prologue/engine/model/load_model.h>
#include <prologue/kernels/base/host/packed_weight.h>

#include "tests/support/gguf_of_checkpoint.h"
#include "tests/support/memory_checkpoint.h"
#include "tests/support/random.h"
#include "tests/support/reference_model.h"
#include "tests/support/weight_blocks.h"

namespace prologue {
namespace {

using test::ChangedModel;
using test::MemoryCheckpoint;
using test::ReferenceModel;
using Indices = std::vector<int64_t>;

// ---- The rule ----

Indices up_to(int64_t count) {
  Indices all(static_cast<size_t>(count));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

// Returns those of `count` that belong to the rank, if all ranks have the same number of neighbours.
Indices own(int64_t count, const ModelShard& shard) {
  Indices of_rank;
  for (int64_t i = 0; i < count; ++i) {
    if (i * shard.num_ranks / count == shard.rank) of_rank.push_back(i);
  }
  return of_rank;
}

Indices shifted(Indices indices, int64_t by) {
  for (int64_t& each : indices) each += by;
  return indices;
}

Indices joined(std::initializer_list<Indices> parts) {
  Indices all;
  for (const Indices& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

// Returns the rows of some heads.
Indices rows_of(const Indices& heads, int64_t head_dim) {
  Indices rows;
  for (const int64_t head : heads) rows = joined({rows, shifted(up_to(head_dim), head * head_dim)});
  return rows;
}

int64_t logits_of_rank(int64_t vocab, int64_t num_ranks) { return ((vocab + num_ranks - 1) / num_ranks + 15) / 16 * 16; }

bool has_layers(const ModelSpec& spec, bool experts) {
  for (const int32_t kind : spec.kind_of_layer) {
    if (spec.kinds[static_cast<size_t>(kind)].experts == experts) return true;
  }
  return false;
}

bool can_split(const ModelSpec& spec, int64_t ranks) {
  const ModelConfig& c = spec.config;
  if (ranks == 1) return true;
  if (spec.head_norm.placement != NormPlacement::none && spec.head_norm.scope == NormScope::token) return false;
  const bool kv = c.num_kv_heads % ranks == 0 || ranks % c.num_kv_heads == 0;
  const bool mlp = !has_layers(spec, false) || c.intermediate_size % ranks == 0;
  const bool experts = !has_layers(spec, true) || spec.experts.intermediate_size % ranks == 0;
  const bool vocab = (c.vocab_size - 1) / logits_of_rank(c.vocab_size, ranks) == ranks - 1;
  return c.num_q_heads % ranks == 0 && kv && mlp && experts && vocab;
}

// What a rank has of the rows of a weight and of its columns. (A bias is one row.)
struct Part {
  Indices rows, cols;
};

struct Split {
  Split(const ModelSpec& spec, const ModelShard& of) : config(spec.config), shard(of) {
    q_heads = own(config.num_q_heads, shard);
    std::set<int64_t> read;  // the KV heads that they read
    for (const int64_t head : q_heads) read.insert(head * config.num_kv_heads / config.num_q_heads);
    kv_heads.assign(read.begin(), read.end());
    channels = own(config.intermediate_size, shard);
    expert_channels = own(spec.experts.intermediate_size, shard);
    expert_width = spec.experts.intermediate_size;
    gated = spec.gated_mlp;
    const int64_t logits_each = logits_of_rank(config.vocab_size, shard.num_ranks);
    for (int64_t i = 0; i < config.vocab_size; ++i) {
      if (i / logits_each == shard.rank) logits.push_back(i);
    }
  }

  // Of a weight [rows, cols] of the node with this name, or of its bias.
  Part part(const std::string& node, bool is_bias, int64_t rows, int64_t cols) const {
    const int64_t dim = config.head_dim;
    const auto is = [&](const char* name) { return node.ends_with(name); };
    const Indices all_rows = up_to(rows), all_cols = up_to(cols);
    const auto outputs = [&](const Indices& of) { return is_bias ? Part{all_rows, of} : Part{of, all_cols}; };
    const auto vectors = [&](const Indices& of) { return Part{all_rows, of}; };
    const auto heads = [&](const Indices& of) { return rows == 1 ? Part{all_rows, all_cols} : Part{of, all_cols}; };
    const Indices q = rows_of(q_heads, dim), kv = rows_of(kv_heads, dim);
    const int64_t all_q = config.num_q_heads * dim, all_kv = config.num_kv_heads * dim;
    if (is("attention.qkv")) return outputs(joined({q, shifted(kv, all_q), shifted(kv, all_q + all_kv)}));
    if (is("attention.qkv_bias")) return vectors(joined({q, shifted(kv, all_q), shifted(kv, all_q + all_kv)}));
    if (is("attention.q_bias")) return vectors(q);
    if (is("attention.k_bias") || is("attention.v_bias")) return vectors(kv);
    if (is("attention.q_norm")) return heads(q_heads);
    if (is("attention.k_norm")) return heads(kv_heads);
    if (is("attention.attention")) return vectors(q_heads);  // sinks
    if (is("mlp.experts.gate_up")) {
      return outputs(joined({expert_channels, shifted(expert_channels, expert_width)}));
    }
    if (is("mlp.gate_up")) return outputs(joined({channels, shifted(channels, config.intermediate_size)}));
    if (is("mlp.up")) return outputs(channels);
    if (is("lm_head")) return outputs(logits);
    if (is_bias) return {all_rows, all_cols};
    if (is("attention.output")) return {all_rows, q};
    if (is("mlp.experts.down")) return {all_rows, expert_channels};
    if (is("mlp.down")) return {all_rows, channels};
    return {all_rows, all_cols};
  }
  // Only the first rank has the biases of what is added up.
  bool has(const std::string& node, bool is_bias) const {
    const bool of_sum = node.ends_with("attention.output") || node.ends_with("mlp.down") || node.ends_with("mlp.experts.down");
    return !is_bias || !of_sum || shard.rank == 0;
  }

  const ModelConfig& config;
  ModelShard shard;
  Indices q_heads, kv_heads, channels, expert_channels, logits;
  int64_t expert_width = 0;
  bool gated = true;
};

// ---- What a model has ----

// A weight [experts, rows, cols] in float32 on the CPU, dense or packed.
struct Matrix {
  Matrix(const Weight& of, int64_t num_experts) : weight(of), experts(num_experts), rows(of.rows / num_experts) {
    for (int32_t s = 0; s < weight.packed.num_segments; ++s) {
      const PackedRows& segment = weight.packed.segments[s];
      std::vector<float>& all = unpacked.emplace_back(static_cast<size_t>(segment.rows * weight.cols));
      const int64_t block = weight_block_elements(segment.format);
      for (int64_t row = 0; row < segment.rows; ++row) {
        for (int64_t b = 0; b < weight.cols / block; ++b) {
          unpack_block(segment.format, segment.data, weight.cols, row, b,
                       &all[static_cast<size_t>(row * weight.cols + b * block)]);
        }
      }
    }
  }
  float at(int64_t expert, int64_t row, int64_t col) const {
    if (unpacked.empty()) return static_cast<const float*>(weight.data)[(expert * rows + row) * weight.cols + col];
    size_t s = 0;  // a segment has its rows of all experts
    int64_t of_segment = weight.packed.segments[0].rows / experts;
    while (row >= of_segment) row -= of_segment, of_segment = weight.packed.segments[++s].rows / experts;
    return unpacked[s][static_cast<size_t>((expert * of_segment + row) * weight.cols + col)];
  }

  Weight weight;
  int64_t experts, rows;
  std::vector<std::vector<float>> unpacked;
};

const Node* node_of(const Graph& graph, const std::string& name) {
  for (const Node& node : graph.nodes) {
    if (node.name == name) return &node;
  }
  return nullptr;
}

struct Counts {
  int64_t packed = 0, converted = 0;  // matrices of the shard, of those that are packed in the whole model
};

void expect_part(const std::string& name, const Matrix& shard, const Matrix& whole, const Part& part) {
  ASSERT_EQ(shard.rows, static_cast<int64_t>(part.rows.size())) << name;
  ASSERT_EQ(shard.weight.cols, static_cast<int64_t>(part.cols.size())) << name;
  for (int64_t e = 0; e < whole.experts; ++e) {
    for (int64_t r = 0; r < shard.rows; ++r) {
      for (int64_t c = 0; c < shard.weight.cols; ++c) {
        const float got = shard.at(e, r, c),
                    want = whole.at(e, part.rows[static_cast<size_t>(r)], part.cols[static_cast<size_t>(c)]);
        ASSERT_EQ(std::memcmp(&got, &want, sizeof got), 0)
            << name << ": expert " << e << ", row " << r << ", column " << c << ": " << got << " instead of " << want;
      }
    }
  }
}

// Every weight of the rank is its part of the whole one.
void expect_shard(const Model& whole, const Model& rank, const ModelSpec& spec, const ModelShard& shard,
                  Counts* counts = nullptr) {
  EXPECT_EQ(rank.shard.rank, shard.rank);
  EXPECT_EQ(rank.shard.num_ranks, shard.num_ranks);
  EXPECT_EQ(rank.config.num_q_heads, whole.config.num_q_heads);
  EXPECT_EQ(rank.config.num_kv_heads, whole.config.num_kv_heads);
  const Split split(spec, shard);
  std::map<const void*, int64_t> bytes;  // of each weight once
  for (const Node& of_whole : whole.graph.nodes) {
    const std::string& name = of_whole.name;
    const Node* const node = node_of(rank.graph, name);
    ASSERT_NE(node, nullptr) << name;
    const bool is_linear =
        std::holds_alternative<GemmParams>(node->parameters) || std::holds_alternative<MoeGemmParams>(node->parameters);
    const auto is_bias = [&](size_t i) { return is_linear && i == 1; };
    if (const auto* const write = std::get_if<KvWriteParams>(&node->parameters)) {
      EXPECT_EQ(write->num_kv_heads, static_cast<int64_t>(split.kv_heads.size())) << name;
    }
    size_t num_weights = 0;
    for (size_t i = 0; i < of_whole.weights.size(); ++i) {
      const Weight& weight = of_whole.weights[i];
      const bool of_experts = std::holds_alternative<MoeGemmParams>(node->parameters) && !is_bias(i);
      if (!split.has(name, is_bias(i))) continue;
      ASSERT_LT(num_weights, node->weights.size()) << name;
      const Weight& own_weight = node->weights[num_weights++];
      const int64_t experts = of_experts ? spec.experts.num_experts : 1;
      const Matrix matrix(own_weight, experts), of(weight, experts);
      expect_part(name, matrix, of, split.part(name, is_bias(i), of.rows, weight.cols));
      if (testing::Test::HasFatalFailure()) return;
      bytes[own_weight.data] = std::max(bytes[own_weight.data], own_weight.rows * own_weight.cols * dtype_size(own_weight.dtype));
      if (counts != nullptr && weight.packed.num_segments > 0)
        ++(own_weight.packed.num_segments > 0 ? counts->packed : counts->converted);
    }
    EXPECT_EQ(num_weights, node->weights.size()) << name;
  }
  // A rank that has all of them has nothing that another rank needs.
  if (whole.weight_formats.empty()) {
    int64_t total = 0;
    for (const auto& [data, size] : bytes) total += size;
    if (spec.tied_lm_head) total -= shard.rank > 0 ? static_cast<int64_t>(split.logits.size()) * spec.config.hidden_size * 4 : 0;
    EXPECT_EQ(rank.weight_bytes, total);
  }
}

// ---- All families ----

using Load = std::function<Result<Model>(const ModelShard& shard)>;

// Loads all shards of all numbers of ranks. Returns the numbers that the model can be split among.
std::set<int64_t> expect_shards(const ModelSpec& spec, const Load& load) {
  std::set<int64_t> possible;
  const auto whole = load({});
  EXPECT_TRUE(whole.ok()) << whole.status().message();
  for (int64_t ranks = 2; ranks <= 8 && whole.ok(); ++ranks) {
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const auto loaded = load({rank, ranks});
      EXPECT_EQ(loaded.ok(), can_split(spec, ranks)) << ranks << " ranks: " << loaded.status().message();
      if (!loaded.ok()) {
        EXPECT_EQ(loaded.status().code(), StatusCode::invalid_argument) << loaded.status().message();
        continue;
      }
      possible.insert(ranks);
      expect_shard(*whole, *loaded, spec, {rank, ranks});
      if (testing::Test::HasFatalFailure()) return possible;
    }
  }
  return possible;
}

std::set<int64_t> expect_shards_of(const Checkpoint& checkpoint) {
  const auto spec = read_model_spec(checkpoint);
  EXPECT_TRUE(spec.ok()) << spec.status().message();
  if (!spec.ok()) return {};
  return expect_shards(*spec, [&](const ModelShard& shard) {
    double progress = 0.0;
    ModelOptions options;
    options.shard = shard;
    auto model = load_model(
        checkpoint, DType::f32, {Device::cpu, 1}, [&](double done) { progress = done; }, options);
    EXPECT_EQ(progress, model.ok() ? 1.0 : 0.0);
    return model;
  });
}

// Returns the tensors of a checkpoint, with more rows of the embedding and of the head.
void copy_with_vocabulary(const Checkpoint& from, const ModelSpec& spec, int64_t vocab, MemoryCheckpoint& to) {
  for (const TensorInfo& tensor : from.tensors()) {
    std::vector<std::byte> bytes(static_cast<size_t>(tensor.size_bytes));
    ASSERT_TRUE(from.read(tensor, 0, tensor.size_bytes, bytes.data()).ok());
    std::vector<int64_t> shape = tensor.shape;
    const std::string_view name = tensor.name;
    if (name == spec.names.embedding + ".weight" || name == spec.names.lm_head + ".weight" ||
        name == spec.names.lm_head + ".bias") {
      const size_t row_bytes = bytes.size() / static_cast<size_t>(shape.front());
      shape.front() = vocab;
      while (bytes.size() < row_bytes * static_cast<size_t>(vocab)) bytes.push_back(bytes[bytes.size() - 7 * row_bytes]);
    }
    to.add(std::string(name), tensor.type, shape, bytes);
  }
}

class ShardsOfFamilies : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Models, ShardsOfFamilies, testing::ValuesIn(test::reference_model_names()),
                         [](const auto& row) { return row.param; });

TEST_P(ShardsOfFamilies, AreTheirPartsOfTheWhole) {
  const ReferenceModel reference = test::read_reference_model(GetParam());
  expect_shards_of(*Checkpoint::open(reference.folder).value());
  if (HasFatalFailure()) return;
  for (const test::ReferenceChange& change : reference.changes) {
    const ChangedModel changed(reference, change);
    SCOPED_TRACE(change.name);
    expect_shards_of(*Checkpoint::open(changed.folder()).value());
    if (HasFatalFailure()) return;
  }
}

// 100 logits are 64 and 36 on two ranks, 48, 48 and 4 on three, and 32, 32, 32 and 4 on four.
TEST_P(ShardsOfFamilies, HaveALastRankWithFewerLogits) {
  const ReferenceModel reference = test::read_reference_model(GetParam());
  const auto stored = Checkpoint::open(reference.folder).value();
  ModelSpec spec = read_model_spec(*stored).value();
  MemoryCheckpoint checkpoint;
  copy_with_vocabulary(*stored, spec, 100, checkpoint);
  spec.config.vocab_size = 100;
  std::set<std::vector<std::string>> unused;  // the same on all ranks
  const std::set<int64_t> possible = expect_shards(spec, [&](const ModelShard& shard) {
    MemoryCheckpoint each;
    for (const TensorInfo& tensor : checkpoint.tensors()) {
      std::vector<std::byte> bytes(static_cast<size_t>(tensor.size_bytes));
      EXPECT_TRUE(checkpoint.read(tensor, 0, tensor.size_bytes, bytes.data()).ok());
      each.add(std::string(tensor.name), tensor.type, tensor.shape, bytes);
    }
    WeightLoader loader(each, DType::f32, {Device::cpu, 1}, {});
    ModelOptions options;
    options.shard = shard;
    auto model = build_model(spec, options, loader);
    if (model.ok()) unused.insert(each.unused_tensors());
    return model;
  });
  EXPECT_EQ(unused.size(), 1u);
  const bool one_norm = spec.head_norm.placement != NormPlacement::none && spec.head_norm.scope == NormScope::token;
  EXPECT_EQ(possible.empty(), one_norm) << "no number of ranks was tested";
}

struct GgufCase {
  const char* model;
  const char* change = nullptr;
};
const GgufCase kGgufCases[] = {{"llama2"},
                               {"llama3"},
                               {"mixtral"},
                               {"qwen3"},
                               {"qwen3_moe_sparse"},
                               {"gpt_neox"},
                               {"gpt_neox_sequential"},
                               {"gpt_oss", "another clamp"},
                               {"phi"},
                               {"phi3"},
                               {"phi4_mini"}};
class ShardsOfGguf : public testing::TestWithParam<GgufCase> {};
INSTANTIATE_TEST_SUITE_P(Models, ShardsOfGguf, testing::ValuesIn(kGgufCases),
                         [](const auto& row) { return std::string(row.param.model); });

TEST_P(ShardsOfGguf, AreTheirPartsOfTheWhole) {
  const ReferenceModel reference = test::read_reference_model(GetParam().model);
  std::string folder = reference.folder;
  std::unique_ptr<ChangedModel> changed;
  if (GetParam().change != nullptr) {
    changed = std::make_unique<ChangedModel>(reference, reference.change(GetParam().change));
    folder = changed->folder();
  }
  expect_shards_of(GgufCheckpoint(GgufFile::from_bytes(test::gguf_of_checkpoint(folder)).value()));
}

}  // namespace
}  // namespace prologue
