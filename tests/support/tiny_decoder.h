// This file has a small random decoder over the layer graph, on any device: what the tests of the graph run.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include <prologue/layers/decoder_layer.h>
#include <prologue/layers/graph/executor.h>

#include "tests/support/random.h"

namespace prologue::test {

inline constexpr int64_t kHidden = 32, kQHeads = 4, kKvHeads = 2, kHeadDim = 16, kIntermediate = 48, kVocab = 50, kLayers = 2;
inline constexpr int64_t kPageSize = 4, kPages = 8;

struct TinyModel {
  // is_part: the layers are those of a rank (here: the only one), with collectives.
  TinyModel(DType dtype, bool with_bias, const Execution& on, bool is_part = false) : execution(on) {
    RopeConfig rope;
    rope.style = RopeStyle::interleaved;
    rope.rotary_dim = kHeadDim;
    table = RopeTable::create(rope, 64, RopePrecision::exact, execution).value();
    GraphBuilder g(dtype);
    const Weight embedding = weight(kVocab, kHidden, dtype);
    Value residual = g.embedding("embedding", embedding, 1.0f);
    Value previous;
    for (int64_t i = 0; i < kLayers; ++i) {
      DecoderLayer layer;
      const int64_t qkv_rows = (kQHeads + 2 * kKvHeads) * kHeadDim;
      layer.attention_norm = Norm{NormKind::rms, weight(1, kHidden, dtype)};
      layer.attention = {i,
                         kQHeads,
                         kKvHeads,
                         kHeadDim,
                         0.25f,
                         &table,
                         weight(qkv_rows, kHidden, dtype),
                         with_bias ? weight(1, qkv_rows, dtype) : Weight(),
                         weight(kHidden, kQHeads * kHeadDim, dtype)};
      layer.mlp_norm = Norm{NormKind::rms, weight(1, kHidden, dtype)};
      layer.mlp.up_weight = weight(2 * kIntermediate, kHidden, dtype);
      layer.mlp.down_weight = weight(kHidden, kIntermediate, dtype);
      layer.is_part = is_part;
      const GraphBuilder::Scope scope(g, str_cat("layers.", i));
      previous = layer.build(g, residual, previous);
    }
    Value x = g.add_norm("final_norm", previous, residual, {NormKind::rms, weight(1, kHidden, dtype)});
    x = g.select_logit_rows("last_tokens", x);
    x = g.linear("lm_head", x, embedding, {}, DType::f32);
    if (is_part) x = g.all_gather("all_logits", x, kVocab, kVocab);
    graph = std::move(g).finish(x).value();
    storage = KvStorage::create({kLayers, kPages, kPageSize, kKvHeads, kHeadDim, {dtype}}, execution.device).value();
  }

  Weight weight(int64_t rows, int64_t cols, DType dtype) {
    const std::vector<float> values = random.normals<float>(rows * cols, 0.3);
    const int64_t bytes = rows * cols * dtype_size(dtype);
    std::vector<unsigned char> stored(static_cast<size_t>(bytes));
    with_host_type(dtype, [&](auto type) {
      using T = decltype(type);
      for (size_t i = 0; i < values.size(); ++i) reinterpret_cast<T*>(stored.data())[i] = from_float<T>(values[i]);
    });
    weights.push_back(Buffer::allocate(execution.device, bytes).value());
    EXPECT_TRUE(copy_to_device(weights.back().data(), stored.data(), bytes, execution).ok());
    return {weights.back().data(), rows, cols, dtype};
  }

  Execution execution;
  Random random{7};
  std::vector<Buffer> weights;
  RopeTable table;
  KvStorage storage;
  Graph graph;
};

}  // namespace prologue::test
