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

int64_t logits_of_rank(int64_t vocab, int64_t num_ranks) {
  const int64_t even = (vocab + num_ranks - 1) / num_ranks, groups = (even + 15) / 16 * 16;
  return (vocab - 1) / groups == num_ranks - 1 ? groups : even;
}

bool norms_token(const ModelSpec& spec) {
  return spec.head_norm.placement != NormPlacement::none && spec.head_norm.scope == NormScope::token;
}

bool has_layers(const ModelSpec& spec, bool experts) {
  for (const int32_t kind : spec.kind_of_layer) {
    if (spec.kinds[static_cast<size_t>(kind)].experts == experts) return true;
  }
  return false;
}

bool can_split(const ModelSpec& spec, int64_t ranks) {
  const ModelConfig& c = spec.config;
  if (ranks == 1) return true;
  if (norms_token(spec) && c.num_kv_heads % ranks != 0) return false;
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
  Split(const ModelSpec& spec, const ModelShard& of) : config(spec.config), shard(of), whole_norms(norms_token(spec)) {
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
    const auto heads = [&](const Indices& of) { return rows == 1 || whole_norms ? Part{all_rows, all_cols} : Part{of, all_cols}; };
    const Indices q = rows_of(q_heads, dim), kv = rows_of(kv_heads, dim);
    const int64_t all_q = config.num_q_heads * dim, all_kv = config.num_kv_heads * dim;
    if (is("attention.q")) return outputs(q);
    if (is("attention.k")) return outputs(shifted(kv, all_q));
    if (is("attention.v")) return outputs(shifted(kv, all_q + all_kv));
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
  bool whole_norms;
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
  const float* row(int64_t expert, int64_t row) const {
    if (unpacked.empty()) return static_cast<const float*>(weight.data) + (expert * rows + row) * weight.cols;
    size_t s = 0;  // a segment has its rows of all experts
    int64_t of_segment = weight.packed.segments[0].rows / experts;
    while (row >= of_segment) row -= of_segment, of_segment = weight.packed.segments[++s].rows / experts;
    return &unpacked[s][static_cast<size_t>((expert * of_segment + row) * weight.cols)];
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

using Matrices = std::map<const void*, Matrix>;  // by their data: those of the whole model are unpacked once

struct Counts {
  int64_t packed = 0, converted = 0;  // matrices of the shard, of those that are packed in the whole model
};

void expect_part(const std::string& name, const Matrix& shard, const Matrix& whole, const Part& part) {
  ASSERT_EQ(shard.rows, static_cast<int64_t>(part.rows.size())) << name;
  ASSERT_EQ(shard.weight.cols, static_cast<int64_t>(part.cols.size())) << name;
  std::vector<float> want;
  for (int64_t e = 0; e < whole.experts; ++e) {
    for (int64_t r = 0; r < shard.rows; ++r) {
      const float *const got = shard.row(e, r), *const from = whole.row(e, part.rows[static_cast<size_t>(r)]);
      want.clear();
      for (const int64_t col : part.cols) want.push_back(from[col]);
      if (std::memcmp(got, want.data(), want.size() * sizeof(float)) == 0) continue;
      for (size_t c = 0; c < want.size(); ++c) {
        ASSERT_EQ(std::memcmp(&got[c], &want[c], sizeof(float)), 0)
            << name << ": expert " << e << ", row " << r << ", column " << c << ": " << got[c] << " instead of " << want[c];
      }
    }
  }
}

// Every weight of the rank is its part of the whole one.
void expect_shard(const Model& whole, Matrices& matrices, const Model& rank, const ModelSpec& spec, const ModelShard& shard,
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
    if (node == nullptr && split.whole_norms && name.ends_with("attention.qkv")) {  // three products
      const Weight& weight = of_whole.weights[0];
      const Matrix& of = matrices.try_emplace(weight.data, weight, 1).first->second;
      for (const char* suffix : {"q", "k", "v"}) {
        const std::string part_name = name.substr(0, name.size() - 3) + suffix;
        const Node* const part = node_of(rank.graph, part_name);
        ASSERT_NE(part, nullptr) << part_name;
        const Weight& own_weight = part->weights[0];
        expect_part(part_name, Matrix(own_weight, 1), of, split.part(part_name, false, of.rows, weight.cols));
        if (testing::Test::HasFatalFailure()) return;
        bytes[own_weight.data] = own_weight.rows * own_weight.cols * dtype_size(own_weight.dtype);
      }
      continue;
    }
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
      const Matrix& of = matrices.try_emplace(weight.data, weight, experts).first->second;
      expect_part(name, Matrix(own_weight, experts), of, split.part(name, is_bias(i), of.rows, weight.cols));
      if (testing::Test::HasFatalFailure()) return;
      bytes[own_weight.data] = std::max(bytes[own_weight.data], own_weight.rows * own_weight.cols * dtype_size(own_weight.dtype));
      if (counts != nullptr && weight.packed.num_segments > 0)
        ++(own_weight.packed.num_segments > 0 ? counts->packed : counts->converted);
    }
    EXPECT_EQ(num_weights, node->weights.size()) << name;
  }
  if (spec.tied_lm_head) {  // the head is rows of the embedding, where these are
    const Weight &embedding = node_of(rank.graph, "residual")->weights[0], &head = node_of(rank.graph, "lm_head")->weights[0];
    const WeightFormat format = embedding.packed.segments[0].format;
    const bool packed = embedding.packed.num_segments > 0;
    const int64_t row_bytes =
        packed ? packed_weight_bytes(format, 16, embedding.cols) / 16 : embedding.cols * dtype_size(embedding.dtype);
    const auto* const begin = static_cast<const std::byte*>(embedding.data);
    EXPECT_EQ(static_cast<const std::byte*>(head.data), begin + split.logits.front() * row_bytes);
    EXPECT_EQ(head.packed.num_segments, embedding.packed.num_segments);
    EXPECT_EQ(head.packed.segments[0].data, packed ? head.data : nullptr);
  }
  // What is counted is what the graph points to.
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
  Matrices matrices;
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
      expect_shard(*whole, matrices, *loaded, spec, {rank, ranks});
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
  EXPECT_FALSE(possible.empty()) << "no number of ranks was tested";
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

// ---- Columns, in every format ----

GgmlType type_of(WeightFormat format) {
  switch (format) {
    case WeightFormat::q8_0: return GgmlType::q8_0;
    case WeightFormat::q4_0: return GgmlType::q4_0;
    case WeightFormat::q4_1: return GgmlType::q4_1;
    case WeightFormat::q5_0: return GgmlType::q5_0;
    case WeightFormat::q5_1: return GgmlType::q5_1;
    case WeightFormat::q4_k: return GgmlType::q4_k;
    case WeightFormat::q5_k: return GgmlType::q5_k;
    case WeightFormat::q6_k: return GgmlType::q6_k;
    case WeightFormat::f8_e4m3: return GgmlType::f8_e4m3;
    case WeightFormat::i8: return GgmlType::i8;
    case WeightFormat::q2_k: return GgmlType::q2_k;
    case WeightFormat::q3_k: return GgmlType::q3_k;
    case WeightFormat::iq4_nl: return GgmlType::iq4_nl;
    case WeightFormat::iq4_xs: return GgmlType::iq4_xs;
    case WeightFormat::mxfp4: return GgmlType::mxfp4;
    case WeightFormat::i4_32: return GgmlType::i4_32;
    case WeightFormat::i4_64: return GgmlType::i4_64;
    case WeightFormat::i4_128: return GgmlType::i4_128;
    case WeightFormat::nvfp4: return GgmlType::nvfp4_blocks;
    case WeightFormat::dense: break;
  }
  return GgmlType::f32;
}

// A tensor [..., cols] of random blocks; dense: of random float32.
void add(MemoryCheckpoint& checkpoint, const std::string& name, WeightFormat format, const std::vector<int64_t>& shape,
         uint64_t seed, WeightScaling scaling = WeightScaling::blocks) {
  int64_t rows = 1;
  for (size_t i = 0; i + 1 < shape.size(); ++i) rows *= shape[i];
  if (format == WeightFormat::dense) {
    checkpoint.add(name, GgmlType::f32, shape, test::Random(seed).normals<float>(rows * shape.back(), 0.3));
  } else {
    checkpoint.add(name, type_of(format), shape, test::random_blocks(format, rows, shape.back(), seed), scaling);
  }
}

class ShardColumns : public testing::TestWithParam<WeightFormat> {
 protected:
  WeightLoader& loader(bool keep, DType dtype = DType::f32) {
    loaders_.push_back(std::make_unique<WeightLoader>(
        checkpoint_, dtype, Execution{Device::cpu, 2}, [this](double done) { progress_ = done; }, keep));
    return *loaders_.back();
  }
  MemoryCheckpoint checkpoint_;
  std::vector<std::unique_ptr<WeightLoader>> loaders_;
  double progress_ = 0.0;
};

std::vector<WeightFormat> all_formats() {
  std::vector<WeightFormat> formats(std::begin(test::kWeightFormats), std::end(test::kWeightFormats));
  formats.push_back(WeightFormat::dense);
  return formats;
}
INSTANTIATE_TEST_SUITE_P(Formats, ShardColumns, testing::ValuesIn(all_formats()),
                         [](const auto& row) { return weight_format_name(row.param); });

constexpr std::pair<int64_t, int64_t> kColumns[] = {{0, 768},  {512, 256}, {128, 128}, {768 - 32, 32}, {64, 64},  {272, 300},
                                                    {16, 256}, {0, 8},     {760, 8},   {512, 16},      {100, 650}};

// At the edges of blocks the bits stay; others are converted. Either way each value is that of the whole matrix.
TEST_P(ShardColumns, AreThoseOfTheWhole) {
  constexpr int64_t kRows = 40, kCols = 768, kExperts = 2;
  const WeightFormat format = GetParam();
  const int64_t block = weight_block_elements(format);
  add(checkpoint_, "m", format, {kRows, kCols}, 1);
  add(checkpoint_, "experts", format, {kExperts, kRows, kCols}, 2);
  add(checkpoint_, "e0", format, {kRows, kCols}, 3);
  add(checkpoint_, "e1", format, {kRows, kCols}, 4);
  struct Case {
    std::vector<WeightPart> parts;
    WeightOptions options;
    Indices rows;  // of one expert
  };
  const Indices odd = {1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31};
  const Case cases[] = {
      {{{"m", kRows}}, {}, up_to(kRows)},
      {{{"m", 7, 5}, {"m", 3, 30}}, {}, joined({shifted(up_to(7), 5), shifted(up_to(3), 30)})},
      {{{"m", 16, 1}}, {.row_step = 2}, odd},
      {{{"experts", 32, 8}}, {.experts = kExperts}, shifted(up_to(32), 8)},
      {{{"experts", 16, 1}}, {.row_step = 2, .experts = kExperts}, odd},
      {{{"e{e}", 16, 16}, {"e{e}", 16}}, {.experts = kExperts}, joined({shifted(up_to(16), 16), up_to(16)})},
      {{{"experts", 5, 8}}, {.experts = kExperts}, shifted(up_to(5), 8)},  // no whole groups: converted
  };
  for (const Case& each : cases) {
    const int64_t experts = std::max<int64_t>(1, each.options.experts);
    loaders_.clear();
    WeightOptions whole_rows;
    whole_rows.experts = each.options.experts;
    const std::string& tensor = each.parts[0].name;
    const Matrix whole(loader(true).load_stacked({{tensor, kRows}}, kCols, whole_rows).value(), experts);
    const Matrix rounded(loader(false).load_stacked({{tensor, kRows}}, kCols, whole_rows).value(), experts);
    for (const auto& [first, cols] : kColumns) {
      SCOPED_TRACE(str_cat(tensor, ", columns from ", first, ": ", cols));
      const bool has_groups = experts == 1 || each.parts[0].rows % 16 == 0;
      const bool packed = format != WeightFormat::dense && first % block == 0 && cols % block == 0 && has_groups;
      WeightOptions options = each.options;
      options.first_col = first, options.tensor_cols = kCols;
      for (const bool keep : {true, false}) {
        WeightLoader& of = loader(keep);
        of.set_measuring(true);
        ASSERT_TRUE(of.load_stacked(each.parts, cols, options).ok());
        const int64_t measured = of.weight_bytes();
        of.set_measuring(false);
        const auto weight = of.load_stacked(each.parts, cols, options);
        ASSERT_TRUE(weight.ok()) << weight.status().message();
        EXPECT_EQ(weight->packed.num_segments > 0, keep && packed);
        Indices all_cols = shifted(up_to(cols), first);
        expect_part(tensor, Matrix(*weight, experts), keep ? whole : rounded, {each.rows, all_cols});
        if (HasFatalFailure()) return;
        EXPECT_EQ(progress_, 1.0);
        EXPECT_EQ(of.weight_bytes(), measured);
        if (!(keep && packed))
          EXPECT_EQ(measured, weight->rows * cols * 4);
        else
          EXPECT_LE(measured, (weight->rows + 32) * cols / block * weight_block_bytes(format));
      }
      loaders_.resize(2);
    }
  }
}

// Rounded once, also with a number that is added.
TEST_P(ShardColumns, AreRoundedOnce) {
  add(checkpoint_, "m", GetParam(), {20, 512}, 5);
  const auto exact = loader(false).load("m", 20, 512, {.add = 1.0f}).value();
  const auto weight =
      loader(true, DType::bf16).load_stacked({{"m", 20}}, 300, {.add = 1.0f, .first_col = 100, .tensor_cols = 512});
  ASSERT_TRUE(weight.ok()) << weight.status().message();
  for (int64_t i = 0; i < 20 * 300; ++i) {
    const float want = static_cast<const float*>(exact.data)[i / 300 * 512 + 100 + i % 300];
    ASSERT_EQ(static_cast<const BFloat16*>(weight->data)[i].bits, from_float<BFloat16>(want).bits) << i;
  }
}

// More than is read at once.
TEST(ShardColumnsOfLargeMatrices, AreReadInPieces) {
  MemoryCheckpoint checkpoint;
  constexpr int64_t kRows = 5003, kCols = 1024;
  add(checkpoint, "m", WeightFormat::q4_1, {kRows, kCols}, 6);
  WeightLoader loader(checkpoint, DType::f32, {Device::cpu, 2}, {}, true);
  const Matrix whole(loader.load("m", kRows, kCols).value(), 1);
  for (const auto& [first, cols] : {std::pair<int64_t, int64_t>{512, 512}, {500, 30}}) {
    const auto weight = loader.load_stacked({{"m", kRows}}, cols, {.first_col = first, .tensor_cols = kCols});
    ASSERT_TRUE(weight.ok()) << weight.status().message();
    expect_part("m", Matrix(*weight, 1), whole, {up_to(kRows), shifted(up_to(cols), first)});
  }
}

TEST(ShardColumnsOfTransposedMatrices, AreThoseOfTheWhole) {
  MemoryCheckpoint checkpoint;
  const std::vector<float> values = test::Random(7).normals<float>(3 * 130 * 70, 0.5);
  checkpoint.add("m", GgmlType::f32, {3, 130, 70}, values);  // three experts of 70 rows and 130 columns
  WeightLoader loader(checkpoint, DType::f32, {Device::cpu, 2}, {});
  WeightOptions options{.transposed = true, .row_step = 2, .experts = 3, .first_col = 65, .tensor_cols = 130};
  const auto weight = loader.load_stacked({{"m", 20, 30}, {"m", 20, 31}}, 65, options);
  ASSERT_TRUE(weight.ok()) << weight.status().message();
  ASSERT_EQ(weight->rows, 3 * 40);
  for (int64_t r = 0; r < 3 * 40; ++r) {
    for (int64_t c = 0; c < 65; ++c) {
      const int64_t e = r / 40, row = r % 40 < 20 ? 30 + 2 * (r % 40) : 31 + 2 * (r % 40 - 20);
      ASSERT_EQ(static_cast<const float*>(weight->data)[r * 65 + c], values[static_cast<size_t>((e * 130 + 65 + c) * 70 + row)]);
    }
  }
}

// Squares are those of the tensor, in its rows as in its columns.
TEST(ShardColumnsOfFloat8, KeepSquaresThatBeginWithThem) {
  MemoryCheckpoint checkpoint;
  add(checkpoint, "squares", WeightFormat::f8_e4m3, {300, 512}, 8, WeightScaling::squares);
  add(checkpoint, "rows", WeightFormat::f8_e4m3, {300, 512}, 9, WeightScaling::rows);
  WeightLoader loader(checkpoint, DType::bf16, {Device::cpu, 1}, {}, true);
  const auto scaling = [&](const WeightPart& part, int64_t first_col) {
    const auto weight = loader.load_stacked({part}, 256, {.first_col = first_col, .tensor_cols = 512});
    EXPECT_TRUE(weight.ok()) << weight.status().message();
    EXPECT_EQ(weight->packed.num_segments, 1);
    return weight->packed.segments[0].scaling;
  };
  EXPECT_EQ(scaling({"squares", 300}, 0), WeightScaling::squares);
  EXPECT_EQ(scaling({"squares", 300}, 128), WeightScaling::squares);
  EXPECT_EQ(scaling({"squares", 128, 128}, 256), WeightScaling::squares);
  EXPECT_EQ(scaling({"squares", 150, 0}, 256), WeightScaling::squares);
  EXPECT_EQ(scaling({"squares", 150, 150}, 256), WeightScaling::blocks);
  EXPECT_EQ(scaling({"squares", 64, 64}, 0), WeightScaling::blocks);
  EXPECT_EQ(scaling({"rows", 150, 150}, 128), WeightScaling::rows);
}

TEST(ShardColumnsRefusals, NameTheColumns) {
  MemoryCheckpoint checkpoint;
  add(checkpoint, "m", WeightFormat::dense, {4, 10}, 1);
  add(checkpoint, "v", WeightFormat::dense, {10}, 2);
  WeightLoader loader(checkpoint, DType::f32, {Device::cpu, 1}, {});
  const auto message = [&](int64_t cols, int64_t first, int64_t tensor_cols) {
    const auto weight = loader.load_stacked({{"m", 4}}, cols, {.first_col = first, .tensor_cols = tensor_cols});
    return weight.ok() ? "" : weight.status().message();
  };
  EXPECT_EQ(message(5, 5, 10), "");
  EXPECT_EQ(message(5, 6, 10), "tensor m: 5 columns from 6 of 10: must be columns of a matrix");
  EXPECT_EQ(message(5, -1, 10), "tensor m: 5 columns from -1 of 10: must be columns of a matrix");
  EXPECT_EQ(message(10, 1, 0), "tensor m: 10 columns from 1 of 10: must be columns of a matrix");
  EXPECT_EQ(message(5, 5, 11), "memory: tensor m has shape [4, 10]: 4 rows from 0 in steps of 1, of 11 elements is expected");
  EXPECT_EQ(loader.load_joined({{"v", 10}}, {.tensor_cols = 1}).status().message(),
            "tensor v: 1 columns from 0 of 1 of a vector: must be columns of a matrix");
  const auto rows = loader.load("m", 4, 5, {.first_col = 5, .tensor_cols = 10});
  ASSERT_TRUE(rows.ok()) << rows.status().message();
  EXPECT_EQ(rows->cols, 5);
}

// ---- Packed models ----

enum class Experts { none, apart, together, alternating };

struct PackedModel {
  WeightFormat format = WeightFormat::dense;
  Experts experts = Experts::none;
  int64_t width = 512;  // of the MLP or of an expert
  bool tied = true;
  WeightScaling scaling = WeightScaling::blocks;
  int64_t vocab = 100;
  bool one_tensor = false;  // for q, k and v, and for gate and up; with biases, norms [heads, channels] and sinks

  static constexpr int64_t kHidden = 256, kDim = 128, kQHeads = 4, kKvHeads = 2, kExperts = 3;

  ModelSpec spec() const {
    ModelSpec spec;
    spec.config.num_layers = 1;
    spec.config.hidden_size = kHidden;
    spec.config.intermediate_size = width;
    spec.config.num_q_heads = kQHeads;
    spec.config.num_kv_heads = kKvHeads;
    spec.config.head_dim = kDim;
    spec.config.vocab_size = vocab;
    spec.config.context_length = 64;
    spec.attention_scale = 0.1f;
    spec.tied_lm_head = tied;
    RopeSpec rope;
    rope.config.rotary_dim = kDim;
    spec.ropes = {rope};
    LayerKind kind;
    kind.experts = experts != Experts::none;
    spec.kinds = {kind};
    spec.kind_of_layer = {0};
    spec.experts = {kExperts, 2, experts != Experts::none ? width : 0};
    ModuleNames& names = spec.names;
    names.embedding = "embed", names.final_norm = "norm", names.lm_head = "head";
    names.attention_norm = "{}.n1", names.mlp_norm = "{}.n2";
    names.q = "{}.q", names.k = "{}.k", names.v = "{}.v", names.attention_output = "{}.o";
    if (experts == Experts::none) names.gate = "{}.gate", names.up = "{}.up", names.down = "{}.down";
    if (one_tensor) {
      names.qkv = "{}.qkv", names.gate_up = "{}.gate_up", names.sinks = "{}.sinks";
      names.q_norm = "{}.q_norm", names.k_norm = "{}.k_norm";
      spec.head_norm.placement = NormPlacement::before_rope;
    }
    if (experts != Experts::none) names.router = "{}.router";
    const std::string of = experts == Experts::apart ? "{}.{e}." : "{}.experts_";
    if (experts == Experts::apart || experts == Experts::together) {
      names.expert_gate = of + "gate", names.expert_up = of + "up", names.expert_down = of + "down";
    }
    if (experts == Experts::alternating) names.experts_gate_up = "{}.gate_up", names.experts_down = "{}.down";
    return spec;
  }
  void fill(MemoryCheckpoint& checkpoint) const {
    uint64_t seed = 0;
    const auto matrix = [&](const std::string& name, const std::vector<int64_t>& shape) {
      add(checkpoint, name, format, shape, ++seed, scaling);
    };
    const auto vector = [&](const std::string& name, const std::vector<int64_t>& shape) {
      add(checkpoint, name, WeightFormat::dense, shape, ++seed);
    };
    matrix("embed.weight", {vocab, kHidden});
    if (!tied) matrix("head.weight", {vocab, kHidden});
    for (const char* norm : {"norm", "0.n1", "0.n2"}) vector(std::string(norm) + ".weight", {kHidden});
    if (one_tensor) {
      matrix("0.qkv.weight", {(kQHeads + 2 * kKvHeads) * kDim, kHidden});
      vector("0.qkv.bias", {(kQHeads + 2 * kKvHeads) * kDim});
      vector("0.q_norm.weight", {kQHeads, kDim});
      vector("0.k_norm.weight", {kKvHeads, kDim});
      vector("0.sinks", {kQHeads});
    } else {
      matrix("0.q.weight", {kQHeads * kDim, kHidden});
      matrix("0.k.weight", {kKvHeads * kDim, kHidden});
      matrix("0.v.weight", {kKvHeads * kDim, kHidden});
    }
    matrix("0.o.weight", {kHidden, kQHeads * kDim});
    vector("0.o.bias", {kHidden});
    if (experts == Experts::none) {
      if (one_tensor) {
        matrix("0.gate_up.weight", {2 * width, kHidden});
        vector("0.gate_up.bias", {2 * width});
      } else {
        for (const char* name : {"0.gate.weight", "0.up.weight"}) matrix(name, {width, kHidden});
      }
      matrix("0.down.weight", {kHidden, width});
      return;
    }
    vector("0.router.weight", {kExperts, kHidden});
    for (int64_t e = 0; experts == Experts::apart && e < kExperts; ++e) {
      for (const char* name : {".gate.weight", ".up.weight"}) matrix(str_cat("0.", e, name), {width, kHidden});
      matrix(str_cat("0.", e, ".down.weight"), {kHidden, width});
    }
    if (experts == Experts::together) {
      for (const char* name : {"gate", "up"}) {
        matrix(str_cat("0.experts_", name, ".weight"), {kExperts, width, kHidden});
        vector(str_cat("0.experts_", name, ".bias"), {kExperts, width});
      }
      matrix("0.experts_down.weight", {kExperts, kHidden, width});
      vector("0.experts_down.bias", {kExperts, kHidden});
    }
    if (experts == Experts::alternating) {
      matrix("0.gate_up", {kExperts, 2 * width, kHidden});
      matrix("0.down", {kExperts, kHidden, width});
      vector("0.gate_up_bias", {kExperts, 2 * width});
      vector("0.down_bias", {kExperts, kHidden});
    }
  }
  Result<Model> load(const MemoryCheckpoint& checkpoint, const ModelShard& shard, bool keep = true) const {
    WeightLoader loader(checkpoint, DType::f32, {Device::cpu, 2}, {}, keep);
    ModelOptions options;
    options.shard = shard;
    return build_model(spec(), options, loader);
  }
};

void expect_packed_shards(const PackedModel& model) {
  MemoryCheckpoint checkpoint;
  model.fill(checkpoint);
  const auto whole = model.load(checkpoint, {});
  ASSERT_TRUE(whole.ok()) << whole.status().message();
  EXPECT_TRUE(checkpoint.unused_tensors().empty());
  const ModelSpec spec = model.spec();
  const int64_t block = weight_block_elements(model.format);
  Matrices matrices;
  for (const int64_t ranks : {2, 4}) {
    for (int64_t rank = 0; rank < ranks; ++rank) {
      MemoryCheckpoint files;
      model.fill(files);
      const auto loaded = model.load(files, {rank, ranks});
      ASSERT_TRUE(loaded.ok()) << loaded.status().message();
      EXPECT_TRUE(files.unused_tensors().empty());
      Counts counts;
      expect_shard(*whole, matrices, *loaded, spec, {rank, ranks}, &counts);
      if (testing::Test::HasFatalFailure()) return;
      // The columns of the output and of down are converted if they are no whole blocks, and rows of experts if they are no whole groups.
      const int64_t o_cols = spec.config.num_q_heads * spec.config.head_dim / ranks, width = model.width / ranks;
      const bool of_experts = model.experts != Experts::none;
      const int64_t converted = (o_cols % block != 0) + (width % block != 0) + (of_experts && width % 16 != 0);
      EXPECT_EQ(counts.converted, converted) << ranks << " ranks";
      EXPECT_EQ(counts.packed, 6 - converted) << ranks << " ranks";  // embedding, qkv, output, up, down, head
    }
  }
}

class PackedShards : public testing::TestWithParam<WeightFormat> {};
INSTANTIATE_TEST_SUITE_P(Formats, PackedShards, testing::ValuesIn(test::kWeightFormats),
                         [](const auto& row) { return weight_format_name(row.param); });

TEST_P(PackedShards, AreTheirPartsOfTheWhole) {
  expect_packed_shards({.format = GetParam()});
  expect_packed_shards({.format = GetParam(), .tied = false, .one_tensor = true});
}

TEST_P(PackedShards, OfExperts) {
  const Experts apart_or_not = static_cast<int>(GetParam()) % 2 == 0 ? Experts::together : Experts::apart;
  expect_packed_shards({.format = GetParam(), .experts = apart_or_not});
}

TEST(PackedShardsOfMxfp4, HaveGateAndUpThatAlternate) {
  expect_packed_shards({.format = WeightFormat::mxfp4, .experts = Experts::alternating});
  // 24 rows and columns on four ranks are no whole groups and blocks.
  expect_packed_shards({.format = WeightFormat::mxfp4, .experts = Experts::alternating, .width = 96});
  expect_packed_shards({.format = WeightFormat::q8_0, .experts = Experts::apart, .width = 96});
}

// A tied head begins at any group of rows: only one that begins with a square has them.
TEST(PackedShardsOfFloat8, HaveATiedHeadWithoutDividedSquares) {
  PackedModel model{.format = WeightFormat::f8_e4m3, .scaling = WeightScaling::squares, .vocab = 500};
  expect_packed_shards(model);
  MemoryCheckpoint checkpoint;
  model.fill(checkpoint);
  const auto scaling = [&](const ModelShard& shard) {
    const auto loaded = model.load(checkpoint, shard).value();
    const PackedRows embedding = node_of(loaded.graph, "residual")->weights[0].packed.segments[0];
    EXPECT_EQ(embedding.scaling, WeightScaling::squares);
    EXPECT_EQ(embedding.rows, 500);
    return node_of(loaded.graph, "lm_head")->weights[0].packed.segments[0].scaling;
  };
  EXPECT_EQ(scaling({0, 2}), WeightScaling::squares);
  EXPECT_EQ(scaling({1, 2}), WeightScaling::squares);  // from 256
  EXPECT_EQ(scaling({1, 4}), WeightScaling::squares);  // from 128
  model.vocab = 300;
  MemoryCheckpoint smaller;
  model.fill(smaller);
  const auto loaded = model.load(smaller, {1, 2}).value();  // from 160
  EXPECT_EQ(node_of(loaded.graph, "lm_head")->weights[0].packed.segments[0].scaling, WeightScaling::blocks);
}

// All but the embedding and the norms is split.
TEST(ShardMemory, IsAPartOfThatOfTheWhole) {
  for (const WeightFormat format : {WeightFormat::dense, WeightFormat::q4_0}) {
    const PackedModel model{.format = format, .width = 1024, .tied = false, .vocab = 128};
    MemoryCheckpoint checkpoint;
    model.fill(checkpoint);
    const int64_t embedding = format == WeightFormat::dense ? 128 * 256 * 4 : packed_weight_bytes(format, 128, 256);
    const int64_t on_all = embedding + 3 * 256 * 4, bias = 256 * 4;
    const int64_t whole = model.load(checkpoint, {}).value().weight_bytes;
    for (int64_t rank = 0; rank < 2; ++rank) {
      EXPECT_EQ(model.load(checkpoint, {rank, 2}).value().weight_bytes,
                on_all + (whole - on_all - bias) / 2 + (rank == 0 ? bias : 0));
    }
  }
}

// ---- Refusals ----

ModelSpec spec_of(int64_t q_heads, int64_t kv_heads, int64_t width, int64_t vocab, int64_t expert_width = 0) {
  ModelSpec spec;
  spec.config.num_q_heads = q_heads;
  spec.config.num_kv_heads = kv_heads;
  spec.config.intermediate_size = width;
  spec.config.vocab_size = vocab;
  spec.experts.intermediate_size = expert_width;
  LayerKind dense, experts;
  experts.experts = true;
  spec.kinds = {dense, experts};
  if (width > 0) spec.kind_of_layer.push_back(0);
  if (expert_width > 0) spec.kind_of_layer.push_back(1);
  return spec;
}

TEST(ShardRefusals, NameWhatCannotBeSplitAndWhatWouldDo) {
  const auto message = [](const ModelSpec& spec, int64_t ranks, int64_t rank = 0) {
    const Status status = check_shards("PATH", spec, {rank, ranks});
    EXPECT_TRUE(status.ok() || status.code() == StatusCode::invalid_argument);
    return status.message();
  };
  EXPECT_EQ(message(spec_of(9, 3, 36, 1000), 2), "PATH: 9 query heads cannot be split among 2 ranks: 3 ranks would do");
  EXPECT_EQ(message(spec_of(9, 9, 36, 1000), 1), "");
  EXPECT_EQ(message(spec_of(12, 6, 48, 1000), 4), "PATH: 6 KV heads cannot be split among 4 ranks: 2, 3 or 6 ranks would do");
  EXPECT_EQ(message(spec_of(12, 3, 48, 1000), 2), "PATH: 3 KV heads cannot be split among 2 ranks: 3 or 6 ranks would do");
  EXPECT_EQ(message(spec_of(12, 3, 48, 1000), 6), "");
  EXPECT_EQ(message(spec_of(8, 8, 100, 1000), 8),
            "PATH: the 100 channels of an MLP cannot be split among 8 ranks: 2 or 4 ranks would do");
  EXPECT_EQ(message(spec_of(8, 8, 0, 1000, 36), 8),
            "PATH: the 36 channels of an expert cannot be split among 8 ranks: 2 or 4 ranks would do");
  EXPECT_EQ(message(spec_of(8, 8, 100, 1000, 16), 8),
            "PATH: the 100 channels of an MLP cannot be split among 8 ranks: 2 or 4 ranks would do");
  ModelSpec only_experts = spec_of(8, 8, 0, 1000, 64);
  only_experts.config.intermediate_size = 7;  // no layer has it
  EXPECT_EQ(message(only_experts, 8), "");
  EXPECT_EQ(message(spec_of(8, 8, 64, 5), 4), "PATH: a vocabulary of 5 tokens cannot be split among 4 ranks: 2 ranks would do");
  EXPECT_EQ(message(spec_of(11, 11, 11, 1000), 2), "PATH: 11 query heads cannot be split among 2 ranks: only 1 rank would do");
  ModelSpec one_norm = spec_of(8, 2, 64, 1000);
  one_norm.head_norm.placement = NormPlacement::before_rope;
  EXPECT_EQ(message(one_norm, 4), "");
  one_norm.head_norm.scope = NormScope::token;
  EXPECT_EQ(message(one_norm, 2), "");
  EXPECT_EQ(message(one_norm, 4),
            "PATH: a norm over all 2 KV heads of a token cannot be split among 4 ranks: 2 ranks would do");
  EXPECT_EQ(message(spec_of(8, 8, 64, 1000), 0), "PATH: the number of ranks is 0: it must be 1 to 8");
  EXPECT_EQ(message(spec_of(8, 8, 64, 1000), 9), "PATH: the number of ranks is 9: it must be 1 to 8");
  EXPECT_EQ(message(spec_of(8, 8, 64, 1000), 2, 2), "PATH: the rank is 2: it must be 0 to 1");
  EXPECT_EQ(message(spec_of(8, 8, 64, 1000), 2, -1), "PATH: the rank is -1: it must be 0 to 1");
}

// The check comes before any other: the tensors are not there.
TEST(ShardRefusals, ComeBeforeAnythingIsRead) {
  const MemoryCheckpoint checkpoint;
  EXPECT_EQ(PackedModel().load(checkpoint, {0, 3}).status().message(),
            "memory: 4 query heads cannot be split among 3 ranks: 2 or 4 ranks would do");
  EXPECT_EQ(PackedModel().load(checkpoint, {0, 2}).status().code(), StatusCode::not_found);
}

TEST(ShardSizes, AreThoseOfARank) {
  const ModelSpec spec = spec_of(8, 2, 64, 100, 32);
  const ShardSizes sizes = shard_sizes(spec, {3, 4});
  EXPECT_EQ(sizes.first_q_head, 6);
  EXPECT_EQ(sizes.num_q_heads, 2);
  EXPECT_EQ(sizes.first_kv_head, 1);
  EXPECT_EQ(sizes.num_kv_heads, 1);
  EXPECT_EQ(sizes.first_channel, 48);
  EXPECT_EQ(sizes.intermediate_size, 16);
  EXPECT_EQ(sizes.first_expert_channel, 24);
  EXPECT_EQ(sizes.expert_intermediate_size, 8);
  EXPECT_EQ(sizes.first_logit, 96);
  EXPECT_EQ(sizes.num_logits, 4);
  EXPECT_EQ(lm_head_rows_of_rank(100, 4), 32);
  EXPECT_EQ(lm_head_rows_of_rank(100, 1), 100);
  EXPECT_EQ(kv_heads_of_rank(8, 2), 4);
  EXPECT_EQ(kv_heads_of_rank(2, 8), 1);
}

}  // namespace
}  // namespace prologue
