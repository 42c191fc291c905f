// This file has attention layers of every kind over the layer graph, on any device: small, random, and run step by step, so that two graphs
// of the same layer can be compared bit for bit.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <prologue/layers/attention.h>
#include <prologue/layers/graph/executor.h>

#include "tests/support/random.h"

namespace prologue::test {

enum class NormWeights { none, shared, per_head };

struct AttentionVariant {
  int64_t num_layers = 2;
  int64_t num_q_heads = 4, num_kv_heads = 2, head_dim = 16;
  bool joint_bias = false;
  bool q_bias = false, k_bias = false, v_bias = false;
  NormPlacement norm = NormPlacement::none;
  NormKind norm_kind = NormKind::rms;
  NormScope norm_scope = NormScope::head;
  NormWeights norm_weights = NormWeights::shared;
  bool norm_bias = false;
  bool float_norm_weights = false;  // in float32 whatever the graph's type is
  float weight_offset = 0.0f;
  std::optional<HeadNorm> other_k_norm = {};  // of K, instead of placement, kind, scope and offset above; without pointers
  bool v_norm = false, v_from_k = false;
  int64_t rotary_dim = 16, rotary_offset = 0;  // 0: NoPE
  RopeStyle style = RopeStyle::neox;
  bool inverse = false;
  RopeSource source = RopeSource::table;
  int64_t num_axes = 1;
  PastTable past_table = PastTable::record;
  int64_t hadamard_block = 0, v_hadamard_block = 0;
  QueryScale q_scale = {};
  float k_constant = 1.0f, v_constant = 1.0f;
  int64_t v_head_dim = 0;  // 0: head_dim
  float soft_cap = 0.0f;
  int64_t window = 0, chunk = 0;
  bool sinks = false, float_sinks = false;  // in float32 whatever the graph's type is
  bool gated = false;
  uint64_t seed = 1;

  HeadNorm norm_of_q() const { return {norm, norm_kind, norm_scope, 1e-6f, weight_offset}; }
  HeadNorm norm_of_k() const { return other_k_norm.value_or(norm_of_q()); }
  bool normed() const { return norm != NormPlacement::none || norm_of_k().placement != NormPlacement::none; }
  bool biased() const { return joint_bias || q_bias || k_bias || v_bias; }
  // Says whether the layer does something besides writing K and V.
  bool has_steps() const {
    const bool scaled =
        q_scale.constant != 1.0f || q_scale.by_position != PositionScale::none || k_constant != 1.0f || v_constant != 1.0f;
    return biased() || normed() || rotary_dim > 0 || v_norm || hadamard_block != 0 || v_hadamard_block != 0 || scaled;
  }
  int64_t v_width() const { return v_head_dim > 0 ? v_head_dim : head_dim; }
  int64_t gate_width() const { return gated ? num_q_heads * v_width() : 0; }
  int64_t qkv_width() const {
    return (num_q_heads + num_kv_heads) * head_dim + (v_from_k ? 0 : num_kv_heads * v_width()) + gate_width();
  }

  std::string describe() const {
    return str_cat("Hq=", num_q_heads, " Hkv=", num_kv_heads, " D=", head_dim, " bias=", joint_bias ? "joint" : "", q_bias,
                   k_bias, v_bias, " norm=", static_cast<int>(norm), "/", static_cast<int>(norm_kind), "/",
                   static_cast<int>(norm_scope), "/", static_cast<int>(norm_weights), "/", norm_bias,
                   float_norm_weights ? "f32" : "", " offset=", weight_offset,
                   " k_norm=", static_cast<int>(norm_of_k().placement), "/", static_cast<int>(norm_of_k().kind), "/",
                   static_cast<int>(norm_of_k().scope), "/", norm_of_k().eps, " v_norm=", v_norm, " v_from_k=", v_from_k,
                   " rope=", rotary_dim, "@", rotary_offset, " ", rope_style_name(style), " inverse=", inverse,
                   " source=", static_cast<int>(source), " axes=", num_axes, " past=", static_cast<int>(past_table),
                   " hadamard=", hadamard_block, "/", v_hadamard_block, " q_scale=", q_scale.constant, "/", static_cast<int>(q_scale.by_position),
                   " kv_constants=", k_constant, "/", v_constant, " Dv=", v_head_dim, " cap=", soft_cap, " window=", window,
                   " chunk=", chunk, " sinks=", sinks, float_sinks, " gated=", gated, " seed=", seed);
  }
};

// Returns a list with at least one variant for each thing that a layer can have.
inline std::vector<AttentionVariant> listed_variants() {
  using V = AttentionVariant;
  std::vector<V> list;
  const auto add = [&](void (*change)(V&)) {
    V variant;
    variant.seed = 100 + list.size();
    change(variant);
    list.push_back(variant);
  };
  add([](V&) {});
  add([](V& v) { v.joint_bias = true; });
  add([](V& v) { v.q_bias = v.v_bias = true; });
  add([](V& v) { v.k_bias = true, v.rotary_dim = 0; });  // q stays where it is
  add([](V& v) { v.v_bias = true, v.rotary_dim = 0; });
  add([](V& v) { v.q_bias = true, v.rotary_dim = 0; });
  add([](V& v) { v.joint_bias = true, v.rotary_dim = 0; });
  add([](V& v) { v.rotary_dim = 0; });                     // nothing but kv_write
  add([](V& v) { v.norm = NormPlacement::before_rope; });  // Qwen3
  add([](V& v) { v.norm = NormPlacement::before_rope, v.weight_offset = 1.0f, v.style = RopeStyle::interleaved; });  // Gemma 3
  add([](V& v) { v.norm = NormPlacement::after_rope, v.norm_weights = NormWeights::none; });                         // Llama 4
  add([](V& v) { v.norm = NormPlacement::before_rope, v.norm_scope = NormScope::token, v.norm_weights = NormWeights::per_head; });
  add([](V& v) { v.norm = NormPlacement::before_rope, v.norm_kind = NormKind::layer, v.norm_weights = NormWeights::per_head; });
  add([](V& v) { v.norm = NormPlacement::after_rope, v.norm_kind = NormKind::layer, v.norm_bias = v.joint_bias = true; });
  add([](V& v) { v.norm = NormPlacement::before_rope, v.float_norm_weights = true; });
  add([](V& v) { v.norm = NormPlacement::before_rope, v.other_k_norm = HeadNorm(); });  // Q alone
  add([](V& v) { v.norm = NormPlacement::after_rope, v.other_k_norm = HeadNorm(), v.k_bias = true; });
  add([](V& v) { v.other_k_norm = HeadNorm{NormPlacement::before_rope}; });  // K alone
  add([](V& v) { v.other_k_norm = HeadNorm{NormPlacement::before_rope}, v.rotary_dim = 0; });
  add([](V& v) {
    v.norm = NormPlacement::before_rope, v.other_k_norm = HeadNorm{NormPlacement::after_rope, NormKind::layer},
    v.norm_bias = true;
  });
  add([](V& v) {
    v.norm = NormPlacement::after_rope, v.norm_scope = NormScope::token, v.joint_bias = true;
    v.other_k_norm = HeadNorm{NormPlacement::before_rope, NormKind::rms, NormScope::head, 0.5f, 1.0f};
  });
  add([](V& v) { v.norm = NormPlacement::after_rope, v.norm_kind = NormKind::layer, v.norm_bias = v.float_norm_weights = true; });
  add([](V& v) { v.norm = NormPlacement::before_rope, v.rotary_dim = 0, v.k_bias = true; });
  add([](V& v) { v.norm = NormPlacement::before_rope, v.v_norm = v.v_from_k = true; });  // Gemma 4
  add([](V& v) { v.v_norm = v.v_from_k = v.joint_bias = true; });
  add([](V& v) { v.v_from_k = v.k_bias = true; });
  add([](V& v) { v.v_norm = v.v_bias = true; });
  add([](V& v) { v.rotary_dim = 6; });
  add([](V& v) { v.rotary_dim = 8, v.rotary_offset = 8, v.style = RopeStyle::interleaved; });
  add([](V& v) { v.inverse = true; });
  add([](V& v) { v.source = RopeSource::inv_freq; });
  add([](V& v) { v.source = RopeSource::per_token; });
  add([](V& v) { v.num_axes = 3; });
  add([](V& v) { v.num_axes = 3, v.source = RopeSource::per_token, v.norm = NormPlacement::before_rope, v.q_bias = true; });
  add([](V& v) { v.num_axes = 2, v.source = RopeSource::inv_freq; });
  add([](V& v) { v.hadamard_block = 16; });
  add([](V& v) { v.hadamard_block = 4, v.rotary_dim = 0; });  // of q and k, with nothing else to do
  add([](V& v) {
    v.hadamard_block = 8, v.norm = NormPlacement::after_rope, v.v_from_k = v.k_bias = true, v.q_scale.constant = 0.5f;
  });
  add([](V& v) { v.v_hadamard_block = 16; });
  add([](V& v) { v.hadamard_block = 8, v.v_hadamard_block = 4, v.v_norm = v.v_bias = true, v.v_constant = 0.5f, v.v_head_dim = 24; });
  add([](V& v) { v.q_scale.constant = 0.37f; });
  add([](V& v) { v.q_scale.by_position = PositionScale::llama4, v.q_scale.a = 0.1f, v.q_scale.b = 3.0f, v.rotary_dim = 0; });
  add([](V& v) { v.q_scale.by_position = PositionScale::logn, v.q_scale.b = 4.0f, v.norm = NormPlacement::after_rope; });
  add([](V& v) { v.k_constant = 1.2f, v.rotary_dim = 0; });
  add([](V& v) { v.v_constant = 0.707f, v.rotary_dim = 6, v.v_head_dim = 8; });  // MiMo V2
  add([](V& v) {
    v.k_constant = -1.2f, v.v_constant = 0.5f, v.v_from_k = v.v_norm = v.k_bias = true, v.hadamard_block = 8;
    v.norm = NormPlacement::after_rope, v.norm_weights = NormWeights::none, v.q_scale.constant = 1.2f;
  });
  add([](V& v) { v.soft_cap = 1.5f, v.window = 3; });                                                      // Gemma 2
  add([](V& v) { v.chunk = 3, v.norm = NormPlacement::after_rope, v.norm_weights = NormWeights::none; });  // Llama 4
  add([](V& v) { v.joint_bias = v.sinks = true, v.window = 2; });                                          // GPT-OSS
  add([](V& v) { v.sinks = v.float_sinks = true, v.soft_cap = 2.0f, v.window = 4, v.chunk = 3; });
  add([](V& v) { v.v_head_dim = 8; });
  add([](V& v) { v.v_head_dim = 24, v.joint_bias = v.v_norm = true; });
  add([](V& v) { v.v_head_dim = 6, v.v_bias = true, v.rotary_dim = 0; });
  add([](V& v) { v.gated = true, v.norm = NormPlacement::before_rope, v.weight_offset = 1.0f, v.rotary_dim = 4; });  // Qwen3-Next
  add([](V& v) { v.gated = true, v.q_bias = v.k_bias = v.v_bias = true, v.v_head_dim = 24; });
  add([](V& v) { v.gated = v.v_from_k = v.v_norm = true, v.rotary_dim = 0; });
  add([](V& v) { v.gated = v.joint_bias = true, v.norm = NormPlacement::after_rope; });
  return list;
}

inline AttentionVariant random_variant(uint64_t seed) {
  Random random(seed);
  const auto chance = [&](int64_t of) { return random.integer(1, of) == 1; };
  AttentionVariant v;
  v.seed = seed;
  v.num_kv_heads = random.integer(1, 3);
  v.num_q_heads = v.num_kv_heads * random.integer(1, 3);
  v.head_dim = std::vector<int64_t>{8, 16, 46, 64}[static_cast<size_t>(random.integer(0, 3))];
  v.v_from_k = chance(4);
  v.v_norm = chance(3);
  v.joint_bias = chance(4);
  if (!v.joint_bias) v.q_bias = chance(3), v.k_bias = chance(3), v.v_bias = !v.v_from_k && chance(3);
  v.norm = static_cast<NormPlacement>(random.integer(0, 2));
  v.norm_kind = chance(3) ? NormKind::layer : NormKind::rms;
  v.norm_scope = v.norm_kind == NormKind::rms && chance(3) ? NormScope::token : NormScope::head;
  v.norm_weights = static_cast<NormWeights>(random.integer(0, 2));
  v.norm_bias = v.norm_kind == NormKind::layer && chance(2);
  v.float_norm_weights = chance(4);
  v.weight_offset = chance(2) ? 1.0f : 0.0f;
  if (chance(4)) {
    HeadNorm& k = v.other_k_norm.emplace();
    k.placement = static_cast<NormPlacement>(random.integer(0, 2));
    k.kind = chance(3) ? NormKind::layer : NormKind::rms;
    k.scope = k.kind == NormKind::rms && chance(3) ? NormScope::token : NormScope::head;
    k.eps = chance(2) ? 1e-6f : 0.2f;
    k.weight_offset = chance(2) ? 1.0f : 0.0f;
  }
  v.rotary_dim = chance(5) ? 0 : chance(2) ? v.head_dim : 2 * random.integer(1, v.head_dim / 2);
  v.rotary_offset = 2 * random.integer(0, (v.head_dim - v.rotary_dim) / 2);
  v.style = chance(2) ? RopeStyle::interleaved : RopeStyle::neox;
  v.inverse = chance(5);
  v.source = static_cast<RopeSource>(random.integer(0, 2));
  v.num_axes = chance(2) ? 1 : random.integer(2, 4);
  if (v.rotary_dim == 0) v.rotary_offset = 0, v.inverse = false, v.num_axes = 1;
  if (chance(3)) v.q_scale.constant = 0.37f;
  if (chance(3))
    v.q_scale.by_position = PositionScale::llama4, v.q_scale.a = 0.1f, v.q_scale.b = 3.0f;
  else if (chance(3))
    v.q_scale.by_position = PositionScale::logn, v.q_scale.b = 4.0f;
  if (chance(4)) v.hadamard_block = v.head_dim == 46 ? 2 : int64_t{1} << random.integer(1, 3);
  if (chance(4) && !v.v_from_k) v.v_head_dim = 2 * random.integer(1, 40);
  if (chance(4)) v.v_hadamard_block = 2;
  if (chance(3)) v.soft_cap = static_cast<float>(random.integer(1, 4));
  if (chance(3)) v.window = random.integer(1, 6);
  if (chance(3)) v.chunk = random.integer(1, 6);
  v.sinks = chance(3), v.float_sinks = chance(2);
  if (chance(4)) v.k_constant = 1.2f;
  if (chance(4)) v.v_constant = -0.707f;
  v.gated = !v.joint_bias && chance(4);
  return v;
}

// Holds the layers over a random embedding, with a norm before each. Weights are kept on the host too, as the device's type has them.
struct VariantModel {
  static constexpr int64_t kHidden = 24, kVocab = 50, kPageSize = 4, kPages = 8, kMaxPosition = 32;
  static constexpr float kEps = 1e-5f, kScoreScale = 0.25f;

  VariantModel(const AttentionVariant& of, DType type, const Execution& on)
      : variant(of), dtype(type), execution(on), random(of.seed) {
    GraphBuilder g(dtype);
    GraphRope rope = make_rope();
    embedding = weight(kVocab, kHidden);
    Value x = g.embedding("embedding", embedding, 1.0f);
    if (variant.source == RopeSource::per_token && rope) rope = g.gather_cos_sin("cos_sin", rope);
    for (int64_t i = 0; i < variant.num_layers; ++i) {
      const GraphBuilder::Scope scope(g, str_cat("layers.", i));
      layers.push_back(make_layer(i, rope));
      norms.push_back(weight(1, kHidden));
      x = layers.back().build(g, g.norm("norm", x, {NormKind::rms, norms.back(), {}, kEps}));
    }
    graph = std::move(g).finish(x).value();
    KvStorageConfig cache = {variant.num_layers, kPages, kPageSize, variant.num_kv_heads, variant.head_dim, {dtype}};
    cache.v_head_dim = variant.v_head_dim;
    storage = KvStorage::create(cache, execution.device).value();
    fill_cache(0xff);
  }

  void fill_cache(int byte) {
    const std::vector<unsigned char> bytes(static_cast<size_t>(cache_bytes()), static_cast<unsigned char>(byte));
    EXPECT_TRUE(copy_to_device(storage.layer(0).k.data, bytes.data(), cache_bytes(), execution).ok());
    EXPECT_TRUE(synchronize(execution).ok());
  }
  int64_t cache_bytes() const { return storage.config().bytes_per_page() * kPages; }
  std::vector<unsigned char> cache_contents() const {
    std::vector<unsigned char> bytes(static_cast<size_t>(cache_bytes()));
    EXPECT_TRUE(copy_to_host(bytes.data(), storage.layer(0).k.data, cache_bytes(), execution).ok());
    return bytes;
  }
  // Returns what the device's array holds, for oracles.
  std::vector<double> values_of(const Weight& of) const {
    std::vector<unsigned char> bytes(static_cast<size_t>(of.rows * of.cols * dtype_size(of.dtype)));
    EXPECT_TRUE(copy_to_host(bytes.data(), of.data, static_cast<int64_t>(bytes.size()), execution).ok());
    std::vector<double> values;
    with_host_type(of.dtype, [&](auto host_type) {
      using T = decltype(host_type);
      for (int64_t i = 0; i < of.rows * of.cols; ++i)
        values.push_back(static_cast<double>(to_float(reinterpret_cast<const T*>(bytes.data())[i])));
    });
    return values;
  }

  AttentionVariant variant;
  DType dtype;
  Execution execution;
  Random random;
  std::vector<Buffer> buffers;
  std::unique_ptr<RopeTable> table;
  std::vector<float> inv_freq, cos_sin;  // of the rope, on the host
  std::vector<uint8_t> pair_axis;
  Weight embedding;
  std::vector<Weight> norms;
  std::vector<Attention> layers;
  KvStorage storage;
  Graph graph;

 private:
  template <class T>
  const T* upload(const std::vector<T>& values) {
    const auto bytes = static_cast<int64_t>(values.size() * sizeof(T));
    buffers.push_back(Buffer::allocate(execution.device, bytes).value());
    EXPECT_TRUE(copy_to_device(buffers.back().data(), values.data(), bytes, execution).ok());
    EXPECT_TRUE(synchronize(execution).ok());
    return buffers.back().template as<T>();
  }
  Weight weight(int64_t rows, int64_t cols) { return weight(rows, cols, dtype); }
  Weight weight(int64_t rows, int64_t cols, DType type) {
    Weight made = {nullptr, rows, cols, type};
    with_host_type(type, [&](auto host_type) { made.data = upload(random.normals<decltype(host_type)>(rows * cols, 0.5)); });
    return made;
  }
  Weight weight_if(bool wanted, int64_t rows, int64_t cols) { return wanted ? weight(rows, cols) : Weight(); }

  GraphRope make_rope() {
    if (variant.rotary_dim == 0) return {};
    GraphRope rope;
    const int64_t pairs = variant.rotary_dim / 2;
    RopeConfig config;
    config.style = variant.style;
    config.rotary_dim = variant.rotary_dim;
    const RopeFrequencies frequencies = rope_frequencies(config, kMaxPosition, RopePrecision::exact).value();
    if (variant.source == RopeSource::inv_freq) {
      for (const double each : frequencies.inv_freq) inv_freq.push_back(static_cast<float>(each));
      rope.rope.style = variant.style;
      rope.rope.rotary_dim = variant.rotary_dim;
      rope.rope.source = RopeSource::inv_freq;
      rope.rope.type = DType::f32;
      rope.rope.inv_freq = upload(inv_freq);
      rope.rope.attention_factor = 1.25f;
      rope.rope.max_position = kMaxPosition;
    } else {
      cos_sin = rope_cos_sin(frequencies, kMaxPosition, RopePrecision::exact).value();
      table = std::make_unique<RopeTable>(
          RopeTable::create(variant.style, frequencies, kMaxPosition, RopePrecision::exact, execution).value());
      rope.table = table.get();
    }
    rope.rope.rotary_offset = variant.rotary_offset;
    rope.rope.inverse = variant.inverse;
    rope.rope.past_table = variant.past_table;
    rope.rope.num_axes = variant.num_axes;
    if (variant.num_axes > 1) {
      for (int64_t i = 0; i < pairs; ++i) pair_axis.push_back(static_cast<uint8_t>(random.integer(0, variant.num_axes - 1)));
      rope.rope.pair_axis = upload(pair_axis);
    }
    return rope;
  }

  HeadsNorm make_norm(int64_t num_heads, const HeadNorm& of) {
    HeadsNorm norm = {of};
    if (of.placement == NormPlacement::none) return norm;
    const int64_t rows = variant.norm_weights == NormWeights::per_head ? num_heads : 1;
    const DType type = variant.float_norm_weights ? DType::f32 : dtype;
    if (variant.norm_weights != NormWeights::none) norm.weight = weight(rows, variant.head_dim, type);
    if (variant.norm_bias && of.kind == NormKind::layer) norm.bias = weight(rows, variant.head_dim, type);
    return norm;
  }

  Attention make_layer(int64_t index, const GraphRope& rope) {
    const int64_t q_width = variant.num_q_heads * variant.head_dim, k_width = variant.num_kv_heads * variant.head_dim;
    Attention layer;
    layer.layer = index;
    layer.num_q_heads = variant.num_q_heads;
    layer.num_kv_heads = variant.num_kv_heads;
    layer.head_dim = variant.head_dim;
    layer.scale = kScoreScale;
    layer.rope = rope;
    layer.qkv_weight = weight(variant.qkv_width(), kHidden);
    layer.qkv_bias = weight_if(variant.joint_bias, 1, variant.qkv_width());
    layer.output_weight = weight(kHidden, variant.num_q_heads * variant.v_width());
    layer.q_bias = weight_if(variant.q_bias, 1, q_width);
    layer.k_bias = weight_if(variant.k_bias, 1, k_width);
    layer.v_bias = weight_if(variant.v_bias, 1, variant.num_kv_heads * variant.v_width());
    layer.q_norm = make_norm(variant.num_q_heads, variant.norm_of_q());
    layer.k_norm = make_norm(variant.num_kv_heads, variant.norm_of_k());
    if (variant.v_norm) layer.v_norm.norm.placement = NormPlacement::before_rope;
    layer.v_from_k = variant.v_from_k;
    layer.hadamard_block = variant.hadamard_block;
    layer.v_hadamard_block = variant.v_hadamard_block;
    layer.q_scale = variant.q_scale;
    layer.k_constant = variant.k_constant, layer.v_constant = variant.v_constant;
    layer.v_head_dim = variant.v_head_dim;
    layer.soft_cap = variant.soft_cap;
    layer.window = variant.window;
    layer.chunk = variant.chunk;
    layer.gated = variant.gated;
    if (variant.sinks) layer.sinks = weight(1, variant.num_q_heads, variant.float_sinks ? DType::f32 : dtype);
    return layer;
  }
};

inline Value q_of_last_layer(const Graph& graph) {
  Value q;
  for (const Node& node : graph.nodes) {
    if (std::holds_alternative<PagedAttentionParams>(node.parameters)) q = node.reads().front();
  }
  return q;
}

// Returns the rows of a value of any type or stride after a run.
inline std::vector<unsigned char> rows_of(const GraphExecutor& executor, Value value, int64_t num_rows,
                                          const Execution& execution) {
  const Graph& graph = executor.graph();
  const ValueInfo& info = graph.info(value);
  const int64_t size = dtype_size(info.dtype), row_bytes = info.width * size;
  std::vector<unsigned char> rows(static_cast<size_t>(num_rows * row_bytes));
  const int64_t stride = graph.info(graph.storage_of(value)).width * size;
  for (int64_t t = 0; t < num_rows; ++t) {
    const auto* row = static_cast<const unsigned char*>(executor.data(value)) + t * stride;
    EXPECT_TRUE(copy_to_host(rows.data() + t * row_bytes, row, row_bytes, execution).ok());
  }
  return rows;
}

}  // namespace prologue::test
