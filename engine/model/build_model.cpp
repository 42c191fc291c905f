// Builds the graph of a model over its weights. It is built twice: first over weights that are not there, which tells which tensors the
// model needs, and how much memory, so that everything that is wrong with them is found before the first is read.
#include <algorithm>
#include <utility>

#include <prologue/engine/model/load_model.h>
#include <prologue/kernels/internal/run.h>
#include <prologue/layers/decoder_layer.h>
#include <prologue/layers/rope/position_axes.h>

namespace prologue {

namespace {

class ModelBuilder {
 public:
  ModelBuilder(const ModelSpec& spec, const ModelOptions& options, WeightLoader& loader, bool dry)
      : spec_(spec), options_(options), loader_(loader), dry_(dry) {}

  Result<Model> build();

 private:
  using Part = WeightPart;

  // These load the weights. The first error counts; after it they are none.
  template <class Load>
  Weight take(const std::vector<std::pair<std::string, std::vector<int64_t>>>& tensors, int64_t rows, int64_t cols,
              const Load& load);
  Weight matrix(const std::string& module, int64_t rows, int64_t cols);
  Weight vector(const std::string& name, int64_t size, float add = 0.0f);
  Weight bias(const std::string& module, int64_t size);
  Weight stacked(const std::vector<Part>& parts, int64_t cols);
  std::optional<Norm> norm(const std::string& module);
  std::string name(const std::string& pattern) const { return with_number(pattern, layer_); }

  Attention attention(const LayerKind& kind);
  void load_qkv(Attention& attention);
  HeadsNorm heads_norm(const std::string& pattern, int64_t num_heads);
  Mlp mlp();
  MixtureOfExperts experts();
  DecoderLayer layer();

  Status add_ropes(Model& model);
  void fail(const Status& status) {
    if (status_.ok()) status_ = status;
  }

  const ModelSpec& spec_;
  const ModelOptions& options_;
  WeightLoader& loader_;
  const bool dry_;
  Status status_;
  int64_t layer_ = 0;
  std::vector<GraphRope> ropes_;
};

template <class Load>
Weight ModelBuilder::take(const std::vector<std::pair<std::string, std::vector<int64_t>>>& tensors, int64_t rows, int64_t cols,
                          const Load& load) {
  if (!status_.ok()) return {};
  if (dry_) {
    for (const auto& [name, shape] : tensors) loader_.expect(name, shape);
    (void)load();                                // is only measured; what is wrong with the tensors is said by check_expected
    return {this, rows, cols, loader_.dtype()};  // never read
  }
  Result<Weight> weight = load();
  if (weight.ok()) return *weight;
  fail(weight.status());
  return {};
}

Weight ModelBuilder::matrix(const std::string& module, int64_t rows, int64_t cols) {
  const std::string name = module + ".weight";
  return take({{name, {rows, cols}}}, rows, cols, [&] { return loader_.load(name, rows, cols); });
}

Weight ModelBuilder::vector(const std::string& name, int64_t size, float add) {
  WeightOptions options;
  options.add = add;
  return take({{name, {size}}}, 1, size, [&] { return loader_.load(name, 1, size, options); });
}

Weight ModelBuilder::bias(const std::string& module, int64_t size) {
  return loader_.has(module + ".bias") ? vector(module + ".bias", size) : Weight();
}

// Stacks whole tensors, one after another.
Weight ModelBuilder::stacked(const std::vector<Part>& parts, int64_t cols) {
  std::vector<std::pair<std::string, std::vector<int64_t>>> tensors;
  int64_t rows = 0;
  for (const Part& part : parts) {
    tensors.push_back({part.name, {part.rows, cols}});
    rows += part.rows;
  }
  return take(tensors, rows, cols, [&] { return loader_.load_stacked(parts, cols); });
}

std::optional<Norm> ModelBuilder::norm(const std::string& pattern) {
  if (pattern.empty()) return std::nullopt;
  const std::string module = name(pattern);
  Norm norm;
  norm.kind = spec_.norm_kind;
  norm.eps = spec_.norm_eps;
  norm.weight = vector(module + ".weight", spec_.config.hidden_size, spec_.norm_weight_offset);
  norm.bias = bias(module, spec_.config.hidden_size);
  return norm;
}

void ModelBuilder::load_qkv(Attention& attention) {
  const ModelConfig& config = spec_.config;
  const int64_t q_rows = config.num_q_heads * config.head_dim, kv_rows = config.num_kv_heads * config.head_dim;
  const int64_t rows = q_rows + 2 * kv_rows;
  if (!spec_.names.qkv.empty() && spec_.qkv_rows == QkvRows::q_k_v) {
    const std::string module = name(spec_.names.qkv);
    attention.qkv_weight = matrix(module, rows, config.hidden_size);
    attention.qkv_bias = bias(module, rows);
    return;
  }
  if (!spec_.names.qkv.empty()) {  // the rows of each head together: the heads of q come first, then those of k, then of v
    const std::string module = name(spec_.names.qkv);
    const std::string weight = module + ".weight", bias = module + ".bias";
    std::vector<Part> weights, biases;
    for (int64_t of = 0; of < 3; ++of) {
      for (int64_t head = 0; head < config.num_q_heads; ++head) {
        weights.push_back({weight, config.head_dim, (3 * head + of) * config.head_dim});
        biases.push_back({bias, config.head_dim, (3 * head + of) * config.head_dim});
      }
    }
    attention.qkv_weight = take({{weight, {rows, config.hidden_size}}}, rows, config.hidden_size,
                                [&] { return loader_.load_stacked(weights, config.hidden_size); });
    if (!loader_.has(bias)) return;
    attention.qkv_bias = take({{bias, {rows}}}, 1, rows, [&] { return loader_.load_joined(biases); });
    return;
  }
  const std::string q = name(spec_.names.q), k = name(spec_.names.k), v = name(spec_.names.v);
  attention.qkv_weight =
      stacked({{q + ".weight", q_rows}, {k + ".weight", kv_rows}, {v + ".weight", kv_rows}}, config.hidden_size);
  if (loader_.has(q + ".bias") && loader_.has(k + ".bias") && loader_.has(v + ".bias")) {
    attention.qkv_bias = take({{q + ".bias", {q_rows}}, {k + ".bias", {kv_rows}}, {v + ".bias", {kv_rows}}}, 1, rows, [&] {
      return loader_.load_joined({{q + ".bias", q_rows}, {k + ".bias", kv_rows}, {v + ".bias", kv_rows}});
    });
  } else {
    attention.q_bias = bias(q, q_rows);
    attention.k_bias = bias(k, kv_rows);
    attention.v_bias = bias(v, kv_rows);
  }
}

// Its weight is [head_dim] for all heads, or one for each head: [num_heads, head_dim], or tensors by head.
HeadsNorm ModelBuilder::heads_norm(const std::string& pattern, int64_t num_heads) {
  HeadsNorm norm;
  norm.norm = spec_.head_norm;
  if (pattern.empty()) return norm;
  const int64_t head_dim = spec_.config.head_dim;
  const std::string module = name(pattern);
  const auto weights = [&](const char* suffix) {
    if (module.find("{h}") == std::string::npos) {
      const TensorInfo* const tensor = loader_.checkpoint().tensor(module + suffix);
      const bool by_head = tensor != nullptr && tensor->shape.size() == 2;
      if (!by_head && spec_.head_norm.scope == NormScope::head) return vector(module + suffix, head_dim);
      WeightOptions converted;
      converted.convert = true;
      Weight weight = by_head ? take({{module + suffix, {num_heads, head_dim}}}, num_heads, head_dim,
                                     [&] { return loader_.load(module + suffix, num_heads, head_dim, converted); })
                              : vector(module + suffix, num_heads * head_dim);
      if (weight) weight.rows = num_heads, weight.cols = head_dim;
      return weight;
    }
    std::vector<Part> parts;
    std::vector<std::pair<std::string, std::vector<int64_t>>> tensors;
    for (int64_t head = 0; head < num_heads; ++head) {
      parts.push_back({with_number(module, head, "{h}") + suffix, head_dim});
      tensors.push_back({parts.back().name, {head_dim}});
    }
    Weight weight = take(tensors, 1, num_heads * head_dim, [&] { return loader_.load_joined(parts); });
    if (weight) weight.rows = num_heads, weight.cols = head_dim;
    return weight;
  };
  norm.weight = weights(".weight");
  if (loader_.has(with_number(module, 0, "{h}") + ".bias")) norm.bias = weights(".bias");
  return norm;
}

Attention ModelBuilder::attention(const LayerKind& kind) {
  const ModelConfig& config = spec_.config;
  Attention attention;
  attention.layer = layer_;
  attention.num_q_heads = config.num_q_heads;
  attention.num_kv_heads = config.num_kv_heads;
  attention.head_dim = config.head_dim;
  attention.scale = spec_.attention_scale;
  attention.soft_cap = spec_.attention_soft_cap;
  attention.window = kind.window;
  attention.chunk = kind.chunk;
  if (kind.rope >= 0) attention.rope = ropes_[static_cast<size_t>(kind.rope)];
  attention.q_scale = kind.q_scale;
  attention.hadamard_block = options_.hadamard_block;
  attention.v_hadamard_block = options_.v_hadamard_block;
  load_qkv(attention);
  if (kind.head_norms && spec_.head_norm.placement != NormPlacement::none) {
    attention.q_norm = heads_norm(spec_.names.q_norm, config.num_q_heads);
    attention.k_norm = heads_norm(spec_.names.k_norm, config.num_kv_heads);
  }
  if (!spec_.names.sinks.empty()) attention.sinks = vector(name(spec_.names.sinks), config.num_q_heads);
  const std::string output = name(spec_.names.attention_output);
  attention.output_weight = matrix(output, config.hidden_size, config.num_q_heads * config.head_dim);
  attention.output_bias = bias(output, config.hidden_size);
  return attention;
}

Mlp ModelBuilder::mlp() {
  const int64_t hidden = spec_.config.hidden_size, width = spec_.config.intermediate_size;
  Mlp mlp;
  mlp.activation = spec_.activation;
  mlp.gated = spec_.gated_mlp;
  mlp.limit = spec_.activation_limit;
  mlp.alpha = spec_.activation_alpha;
  const std::string up = name(spec_.names.up);
  if (!spec_.gated_mlp) {
    mlp.up_weight = matrix(up, width, hidden);
    mlp.up_bias = bias(up, width);
  } else if (!spec_.names.gate_up.empty()) {
    const std::string both = name(spec_.names.gate_up);
    mlp.up_weight = matrix(both, 2 * width, hidden);
    mlp.up_bias = bias(both, 2 * width);
  } else {
    const std::string gate = name(spec_.names.gate);
    mlp.up_weight = stacked({{gate + ".weight", width}, {up + ".weight", width}}, hidden);
    if (loader_.has(gate + ".bias")) {
      mlp.up_bias = take({{gate + ".bias", {width}}, {up + ".bias", {width}}}, 1, 2 * width, [&] {
        return loader_.load_joined({{gate + ".bias", width}, {up + ".bias", width}});
      });
    }
  }
  const std::string down = name(spec_.names.down);
  mlp.down_weight = matrix(down, hidden, width);
  mlp.down_bias = bias(down, hidden);
  return mlp;
}

MixtureOfExperts ModelBuilder::experts() {
  const ExpertsSpec& of = spec_.experts;
  const int64_t hidden = spec_.config.hidden_size, width = of.intermediate_size, count = of.num_experts;
  MixtureOfExperts moe;
  moe.num_experts = count;
  moe.top_k = of.experts_per_token;
  moe.weighting = of.weighting;
  moe.normalize = of.normalize;
  moe.experts.activation = spec_.activation;
  moe.experts.limit = spec_.activation_limit;
  moe.experts.alpha = spec_.activation_alpha;
  const std::string router = name(spec_.names.router);
  moe.router_weight = matrix(router, count, hidden);
  moe.router_bias = bias(router, count);

  WeightOptions options;
  options.experts = count;
  if (!spec_.names.experts_gate_up.empty()) {
    const std::string both = name(spec_.names.experts_gate_up), down = name(spec_.names.experts_down);
    // In MXFP4 they are not transposed.
    const auto take_experts = [&](const std::string& tensor, const std::vector<Part>& parts, int64_t rows, int64_t cols) {
      const TensorInfo* const stored = loader_.checkpoint().tensor(tensor);
      options.transposed = stored == nullptr || stored->type != GgmlType::mxfp4;
      const auto shape = options.transposed ? std::vector<int64_t>{count, cols, rows} : std::vector<int64_t>{count, rows, cols};
      return take({{tensor, shape}}, count * rows, cols, [&] { return loader_.load_stacked(parts, cols, options); });
    };
    moe.experts.down_weight = take_experts(down, {{down, hidden}}, hidden, width);
    options.row_step = 2;
    moe.experts.up_weight = take_experts(both, {{both, width, 0}, {both, width, 1}}, 2 * width, hidden);
    options.transposed = false;
    const std::string both_bias = both + "_bias", down_bias = down + "_bias";
    if (!loader_.has(both_bias)) return moe;
    moe.experts.up_bias = take({{both_bias, {count, 2 * width}}}, count, 2 * width, [&] {
      return loader_.load_joined({{both_bias, width, 0}, {both_bias, width, 1}}, options);
    });
    options.row_step = 1;
    moe.experts.down_bias = take({{down_bias, {count, hidden}}}, count, hidden, [&] {
      return loader_.load_joined({{down_bias, hidden}}, options);
    });
    return moe;
  }
  const std::string gate = name(spec_.names.expert_gate) + ".weight", up = name(spec_.names.expert_up) + ".weight",
                    down = name(spec_.names.expert_down) + ".weight";
  const bool apart = gate.find("{e}") != std::string::npos;
  std::vector<std::pair<std::string, std::vector<int64_t>>> up_tensors, down_tensors;
  for (int64_t e = 0; e < (apart ? count : 1); ++e) {
    const auto shape = [&](int64_t rows, int64_t cols) {
      return apart ? std::vector<int64_t>{rows, cols} : std::vector<int64_t>{count, rows, cols};
    };
    for (const std::string& each : {gate, up}) up_tensors.emplace_back(with_number(each, e, "{e}"), shape(width, hidden));
    down_tensors.emplace_back(with_number(down, e, "{e}"), shape(hidden, width));
  }
  moe.experts.up_weight = take(up_tensors, 2 * count * width, hidden, [&] {
    return loader_.load_stacked({{gate, width}, {up, width}}, hidden, options);
  });
  moe.experts.down_weight = take(down_tensors, count * hidden, width, [&] {
    return loader_.load_stacked({{down, hidden}}, width, options);
  });
  const std::string gate_bias = name(spec_.names.expert_gate) + ".bias", up_bias = name(spec_.names.expert_up) + ".bias",
                    down_bias = name(spec_.names.expert_down) + ".bias";
  if (apart || !loader_.has(gate_bias)) return moe;
  moe.experts.up_bias = take({{gate_bias, {count, width}}, {up_bias, {count, width}}}, count, 2 * width, [&] {
    return loader_.load_joined({{gate_bias, width}, {up_bias, width}}, options);
  });
  moe.experts.down_bias = take({{down_bias, {count, hidden}}}, count, hidden, [&] {
    return loader_.load_joined({{down_bias, hidden}}, options);
  });
  return moe;
}

DecoderLayer ModelBuilder::layer() {
  const LayerKind& kind = spec_.kinds[static_cast<size_t>(spec_.kind_of_layer[static_cast<size_t>(layer_)])];
  DecoderLayer layer;
  layer.shape = spec_.shape;
  layer.attention_norm = norm(spec_.names.attention_norm);
  layer.attention = attention(kind);
  layer.attention_post_norm = norm(spec_.names.attention_post_norm);
  layer.mlp_norm = norm(spec_.names.mlp_norm);
  if (kind.experts) {
    layer.experts = experts();
  } else {
    layer.mlp = mlp();
  }
  layer.mlp_post_norm = norm(spec_.names.mlp_post_norm);
  return layer;
}

Status ModelBuilder::add_ropes(Model& model) {
  for (const RopeSpec& rope : spec_.ropes) {
    RopeConfig config = rope.config;
    const int64_t pairs = config.rotary_dim / 2;
    // Reads factors that are tensors.
    const auto read = [&](const std::string& name, auto& factors) -> Status {
      if (name.empty()) return {};
      loader_.expect(name, {pairs});
      factors.assign(static_cast<size_t>(pairs), 1.0f);
      if (dry_) return {};
      PROLOGUE_ASSIGN_OR_RETURN(const std::vector<float> values, loader_.load_values(name, pairs));
      factors.assign(values.begin(), values.end());
      return {};
    };
    PROLOGUE_RETURN_IF_ERROR(read(spec_.names.rope_freqs, config.freq_factors));
    if (auto* const longrope = std::get_if<LongRope>(&config.scaling)) {
      PROLOGUE_RETURN_IF_ERROR(read(spec_.names.rope_short, longrope->short_factors));
      PROLOGUE_RETURN_IF_ERROR(read(spec_.names.rope_long, longrope->long_factors));
    }
    // The table grows to the longest sequence that will run (ModelRunner).
    PROLOGUE_ASSIGN_OR_RETURN(RopeTable table, RopeTable::create(config, 1, RopePrecision::reference, loader_.execution()));
    model.rope_tables.push_back(std::make_unique<RopeTable>(std::move(table)));
    GraphRope of_graph(model.rope_tables.back().get());
    if (!rope.mrope_sections.empty()) {
      PROLOGUE_ASSIGN_OR_RETURN(const std::vector<uint8_t> pair_axis,
                                mrope_pair_axis(rope.mrope_sections, rope.mrope_interleaved));
      if (static_cast<int64_t>(pair_axis.size()) != pairs) {
        return data_loss(loader_.checkpoint().path(), ": mrope_section has ", pair_axis.size(), " pairs in all: a head has ",
                         pairs, " rotated pairs");
      }
      PROLOGUE_ASSIGN_OR_RETURN(Buffer axes, Buffer::allocate(loader_.execution().device, pairs));
      PROLOGUE_RETURN_IF_ERROR(copy_to_device(axes.data(), pair_axis.data(), pairs, loader_.execution()));
      of_graph.rope.num_axes = static_cast<int64_t>(rope.mrope_sections.size());
      of_graph.rope.pair_axis = axes.as<uint8_t>();
      model.num_position_axes = std::max(model.num_position_axes, of_graph.rope.num_axes);
      model.weights.push_back(std::move(axes));
    }
    ropes_.push_back(of_graph);
  }
  return {};
}

Result<Model> ModelBuilder::build() {
  const ModelConfig& config = spec_.config;
  Model model;
  model.config = config;
  model.dtype = loader_.dtype();
  PROLOGUE_RETURN_IF_ERROR(add_ropes(model));
  const Weight embedding = matrix(spec_.names.embedding, config.vocab_size, config.hidden_size);
  const Weight lm_head = spec_.tied_lm_head ? embedding : matrix(spec_.names.lm_head, config.vocab_size, config.hidden_size);
  const Weight lm_head_bias = bias(spec_.names.lm_head, config.vocab_size);

  GraphBuilder g(model.dtype);
  Value residual = g.embedding("residual", embedding, spec_.embedding_scale);
  Value previous;
  for (layer_ = 0; layer_ < config.num_layers; ++layer_) {
    const DecoderLayer decoder = layer();
    PROLOGUE_RETURN_IF_ERROR(status_);
    const GraphBuilder::Scope scope(g, str_cat("layers.", layer_));
    previous = decoder.build(g, residual, previous);
    const LayerKind& kind = spec_.kinds[static_cast<size_t>(spec_.kind_of_layer[static_cast<size_t>(layer_)])];
    model.window_of_layer.push_back(kind.chunk > 0 && (kind.window == 0 || kind.chunk < kind.window) ? kind.chunk : kind.window);
  }
  const std::optional<Norm> final_norm = norm(spec_.names.final_norm);
  PROLOGUE_RETURN_IF_ERROR(status_);
  Value x = g.add_norm("final_norm", previous, residual, *final_norm);
  x = g.select_logit_rows("last_tokens", x);
  x = g.linear("lm_head", x, lm_head, lm_head_bias, DType::f32);
  if (spec_.logit_scale != 1.0f || spec_.logit_soft_cap != 0.0f) {
    x = g.scale_logits("logits", x, spec_.logit_scale, spec_.logit_soft_cap);
  }
  PROLOGUE_ASSIGN_OR_RETURN(model.graph, std::move(g).finish(x));
  return model;
}

// The files of a model whose head is tied to the embedding may still store both, or only the head. As in transformers, equal tensors are
// tied, and a head that differs is the head, with a warning.
Status settle_tied_head(ModelSpec& spec, const WeightLoader& loader, std::vector<std::string>& warnings) {
  const std::string embedding = spec.names.embedding + ".weight", head = spec.names.lm_head + ".weight";
  if (!spec.tied_lm_head || !loader.has(head)) return {};
  if (!loader.has(embedding)) {
    spec.names.embedding = spec.names.lm_head;
    return {};
  }
  PROLOGUE_ASSIGN_OR_RETURN(const bool are_same, loader.are_same(embedding, head));
  if (are_same) return {};
  spec.tied_lm_head = false;
  warnings.push_back(str_cat(loader.checkpoint().path(), ": the configuration ties ", head, " to ", embedding,
                             ", but the files have both, and they differ: the stored ", head, " is used"));
  return {};
}

}  // namespace

Result<Model> build_model(const ModelSpec& given, const ModelOptions& options, WeightLoader& loader) {
  ModelSpec spec = given;
  std::vector<std::string> warnings;
  PROLOGUE_RETURN_IF_ERROR(settle_tied_head(spec, loader, warnings));
  for (const auto& [what, block] :
       {std::pair{"the Hadamard block", options.hadamard_block}, {"the Hadamard block of V", options.v_hadamard_block}}) {
    if (block == 0) continue;
    PROLOGUE_RETURN_IF_ERROR(check_hadamard_block(loader.checkpoint().path().c_str(), what, block, spec.config.head_dim));
  }
  // The tensors are checked first: a graph over tensors of wrong shapes says less.
  loader.set_measuring(true);
  const Result<Model> described = ModelBuilder(spec, options, loader, true).build();
  PROLOGUE_RETURN_IF_ERROR(loader.check_expected());
  PROLOGUE_RETURN_IF_ERROR(described.status());
  PROLOGUE_ASSIGN_OR_RETURN(const int64_t available, available_bytes(loader.execution().device));
  PROLOGUE_RETURN_IF_ERROR(loader.check_memory(available));
  loader.set_measuring(false);
  PROLOGUE_ASSIGN_OR_RETURN(Model model, ModelBuilder(spec, options, loader, false).build());
  model.weight_formats = loader.formats();
  model.weight_types = loader.types_text();
  model.weight_bytes = loader.weight_bytes();
  model.warnings = std::move(warnings);
  for (Buffer& block : loader.take_weights()) model.weights.push_back(std::move(block));
  return model;
}

}  // namespace prologue
