// This file has a small random model for the engine, with what the options say: windows of layers, a rope whose frequencies depend on the
// length, several position axes. It also has what the model computes for one sequence, in one step of the plain executor: no layer groups,
// no rope sets, no engine.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <prologue/engine/model/model.h>
#include <prologue/engine/tokenizer/tokenizer.h>
#include <prologue/layers/decoder_layer.h>
#include <prologue/layers/graph/executor.h>
#include <prologue/layers/rope/position_axes.h>

#include "tests/support/random.h"

namespace prologue::test {

struct TinyModelOptions {
  std::vector<int64_t> windows = {0, 0};  // of each layer
  RopeScaling scaling = DefaultRope();
  std::optional<int64_t> rope_length = {};  // the table is made of the frequencies for this length
  std::vector<int64_t> sections = {};       // of MRoPE
  int64_t context_length = 256;
  int64_t max_context_length = 0;
  QueryScale q_scale = {};
};

class TinyModelBuilder {
 public:
  static constexpr int64_t kHidden = 32, kQHeads = 4, kKvHeads = 2, kHeadDim = 16, kIntermediate = 48, kVocab = 50;

  TinyModelBuilder(const TinyModelOptions& options, const Execution& execution) : options_(options), execution_(execution) {}

  Model build() {
    make_rope();
    GraphRope rope = model_.rope_tables.front().get();
    if (!options_.sections.empty()) {
      rope.rope.num_axes = model_.num_position_axes = static_cast<int64_t>(options_.sections.size());
      const std::vector<uint8_t> axes = mrope_pair_axis(options_.sections, false).value();
      rope.rope.pair_axis = static_cast<const uint8_t*>(upload(axes.data(), static_cast<int64_t>(axes.size())));
    }
    GraphBuilder g(DType::f32);
    const Weight embedding = weight(kVocab, kHidden);
    Value residual = g.embedding("embedding", embedding, 1.0f);
    Value previous;
    for (size_t i = 0; i < options_.windows.size(); ++i) {
      DecoderLayer layer;
      layer.attention_norm = Norm{NormKind::rms, weight(1, kHidden)};
      Attention& attention = layer.attention;
      attention.layer = static_cast<int64_t>(i);
      attention.num_q_heads = kQHeads;
      attention.num_kv_heads = kKvHeads;
      attention.head_dim = kHeadDim;
      attention.scale = 0.25f;
      attention.rope = rope;
      attention.qkv_weight = weight((kQHeads + 2 * kKvHeads) * kHeadDim, kHidden);
      attention.output_weight = weight(kHidden, kQHeads * kHeadDim);
      attention.window = options_.windows[i];
      attention.q_scale = options_.q_scale;
      layer.mlp_norm = Norm{NormKind::rms, weight(1, kHidden)};
      layer.mlp.up_weight = weight(2 * kIntermediate, kHidden);
      layer.mlp.down_weight = weight(kHidden, kIntermediate);
      const GraphBuilder::Scope scope(g, str_cat("layers.", i));
      previous = layer.build(g, residual, previous);
    }
    Value x = g.add_norm("final_norm", previous, residual, {NormKind::rms, weight(1, kHidden)});
    x = g.select_logit_rows("last_tokens", x);
    model_.graph = std::move(g).finish(g.linear("lm_head", x, embedding, {}, DType::f32)).value();
    model_.config.architecture = "tiny";
    model_.config.num_layers = static_cast<int64_t>(options_.windows.size());
    model_.config.hidden_size = kHidden;
    model_.config.intermediate_size = kIntermediate;
    model_.config.num_q_heads = kQHeads;
    model_.config.num_kv_heads = kKvHeads;
    model_.config.head_dim = kHeadDim;
    model_.config.vocab_size = kVocab;
    model_.config.context_length = options_.context_length;
    model_.config.max_context_length = options_.max_context_length;
    model_.window_of_layer = options_.windows;
    return std::move(model_);
  }

 private:
  void make_rope() {
    RopeConfig config;
    config.rotary_dim = kHeadDim;
    config.theta = 100.0;
    config.scaling = options_.scaling;
    RopeTable table;
    if (options_.rope_length) {
      const RopeFrequencies frequencies = rope_frequencies(config, *options_.rope_length, RopePrecision::exact).value();
      table = RopeTable::create(config.style, frequencies, options_.context_length, RopePrecision::exact, execution_).value();
    } else {
      table = RopeTable::create(config, 1, RopePrecision::exact, execution_).value();
    }
    model_.rope_tables.push_back(std::make_unique<RopeTable>(std::move(table)));
  }
  Weight weight(int64_t rows, int64_t cols) {
    const std::vector<float> values = random_.normals<float>(rows * cols, 0.5);
    return {upload(values.data(), rows * cols * 4), rows, cols, DType::f32};
  }
  void* upload(const void* data, int64_t bytes) {
    model_.weights.push_back(Buffer::allocate(execution_.device, bytes).value());
    EXPECT_TRUE(copy_to_device(model_.weights.back().data(), data, bytes, execution_).ok());
    return model_.weights.back().data();
  }

  TinyModelOptions options_;
  Execution execution_;
  Random random_{7};
  Model model_;
};

inline Model tiny_model(const TinyModelOptions& options, const Execution& execution) {
  return TinyModelBuilder(options, execution).build();
}

// Makes a letter for each token id, as far as they go.
inline Tokenizer tiny_tokenizer() {
  TokenizerData data;
  data.model = TokenizerModel::bpe;
  data.byte_level = true;
  for (char letter = 'A'; letter <= 'Z'; ++letter) data.tokens.emplace_back(1, letter);
  return Tokenizer::create(std::move(data)).value();
}

// Returns the logits [tokens, vocabulary] of one sequence. positions: [axes, tokens]; empty: the index of each token. The frequencies are
// those of rope_length.
inline std::vector<float> logits_alone(TinyModelOptions options, int64_t rope_length, const std::vector<int32_t>& tokens,
                                       const std::vector<int32_t>& positions, const Execution& execution) {
  const auto length = static_cast<int64_t>(tokens.size());
  options.rope_length = rope_length;
  options.context_length = 4096;
  const Model model = tiny_model(options, execution);
  KvStorageConfig config;
  config.num_layers = model.config.num_layers;
  config.num_pages = 1;
  config.page_size = length;
  config.num_kv_heads = model.config.num_kv_heads;
  config.head_dim = model.config.head_dim;
  const KvStorage storage = KvStorage::create(config, execution.device).value();
  StepLimits limits{length, length, 1, length};
  limits.batch_invariant = true;
  const auto executor = GraphExecutor::create(model.graph, storage, limits, execution).value();
  StepBatch batch(model.num_position_axes);
  batch.add_sequence(tokens.data(), length, 0, {0}, length, length);
  for (int64_t i = 0; i < static_cast<int64_t>(positions.size()); ++i) {
    batch.set_position(i % length, i / length, positions[static_cast<size_t>(i)]);
  }
  StepSizes sizes{length, 1, length, 1};
  sizes.num_position_axes = model.num_position_axes;
  StepBuffers buffers = StepBuffers::create(sizes, execution.device).value();
  const Status status = executor->run(buffers.upload(batch, execution).value(), execution);
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(executor->take_fault(execution)->code, FaultCode::none);
  std::vector<float> logits(static_cast<size_t>(length * model.config.vocab_size));
  EXPECT_TRUE(
      copy_to_host(logits.data(), executor->data(model.graph.output), static_cast<int64_t>(logits.size() * 4), execution).ok());
  return logits;
}

}  // namespace prologue::test
