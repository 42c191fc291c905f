// Builds the graph of a model over its weights. It is built twice: first over weights that are not there, which tells which tensors the
// model needs, and how much memory, so that everything that is wrong with them is found before the first is read.
#include <algorithm>
#include <utility>

#include <prologue/engine/model/load_model.h>
#include <prologue/engine/model/shard.h>
#include <prologue/kernels/internal/run.h>
#include <prologue/layers/decoder_layer.h>
#include <prologue/layers/rope/position_axes.h>

namespace prologue {

namespace {

// Says which rows a rank has of a tensor with `all` of them. (Of a vector: elements.)
struct RankRows {
  std::string tensor;
  int64_t all = 0;
  int64_t first = 0, count = 0;
};

// Rows that follow each other in their tensor, too, are one part.
std::vector<WeightPart> parts_of(const std::vector<RankRows>& rows) {
  std::vector<WeightPart> parts;
  for (const RankRows& each : rows) {
    if (!parts.empty() && parts.back().name == each.tensor && parts.back().first_row + parts.back().rows == each.first) {
      parts.back().rows += each.count;
    } else {
      parts.push_back({each.tensor, each.count, each.first});
    }
  }
  return parts;
}

int64_t total_rows(const std::vector<RankRows>& rows) {
  int64_t count = 0;
  for (const RankRows& each : rows) count += each.count;
  return count;
}

class ModelBuilder {
 public:
  ModelBuilder(const ModelSpec& spec, const ModelOptions& options, WeightLoader& loader, bool dry)
      : spec_(spec), options_(options), sizes_(shard_sizes(spec, options.shard)), loader_(loader), dry_(dry) {}

  Result<Model> build();

 private:
  using Part = WeightPart;
  using Tensors = std::vector<std::pair<std::string, std::vector<int64_t>>>;  // names and shapes

  // These load the weights. The first error counts; after it they are none.
  // `tensors` have the weight, or that of other ranks: they count as used also if this one loads nothing of them.
  template <class Load>
  Weight take(const Tensors& tensors, int64_t rows, int64_t cols, const Load& load);
  Weight matrix(const std::string& module, int64_t rows, int64_t cols);
  Weight vector(const std::string& name, int64_t size, float add = 0.0f);
  Weight bias(const std::string& module, int64_t size);
  // The outputs of all ranks are added up, and with them this bias: only the first rank has it.
  Weight bias_of_sum(const std::string& module, int64_t size);
  // Returns each tensor once: rows of the same one are neighbours.
  static Tensors tensors_of(const std::vector<RankRows>& rows, const std::vector<int64_t>& of_row);
  // Stacks rows, one after another.
  Weight stacked(const std::vector<RankRows>& rows, int64_t cols);
  Weight joined(const std::vector<RankRows>& rows);
  // Loads columns [first, first + cols) of a matrix that has all_cols.
  Weight columns(const std::string& module, int64_t rows, int64_t all_cols, int64_t first, int64_t cols);
  std::optional<Norm> norm(const std::string& module);
  std::string name(const std::string& pattern) const { return with_number(pattern, layer_); }
  // Whether other ranks have the rest of each layer.
  bool is_part() const { return options_.shard.num_ranks > 1; }

  Attention attention(const LayerKind& kind);
  void load_qkv(Attention& attention);
  // Of heads [first, first + num_heads) of `all`.
  HeadsNorm heads_norm(const std::string& pattern, int64_t all, int64_t first, int64_t num_heads);
  Mlp mlp();
  MixtureOfExperts experts();
  DecoderLayer layer();
  Weight lm_head(const Weight& embedding);

  Status add_ropes(Model& model);
  void fail(const Status& status) {
    if (status_.ok()) status_ = status;
  }

  const ModelSpec& spec_;
  const ModelOptions& options_;
  const ShardSizes sizes_;
  WeightLoader& loader_;
  const bool dry_;
  Status status_;
  int64_t layer_ = 0;
  std::vector<GraphRope> ropes_;
};

template <class Load>
Weight ModelBuilder::take(const Tensors& tensors, int64_t rows, int64_t cols, const Load& load) {
  if (!status_.ok()) return {};
  if (dry_) {
    for (const auto& [name, shape] : tensors) {
      loader_.expect(name, shape);
      (void)loader_.checkpoint().tensor(name);  // which counts it as used
    }
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

Weight ModelBuilder::bias_of_sum(const std::string& module, int64_t size) {
  if (options_.shard.rank == 0) return bias(module, size);
  const std::string name = module + ".bias";
  if (loader_.has(name)) (void)take({{name, {size}}}, 1, size, []() -> Result<Weight> { return Weight(); });
  return {};
}

Weight ModelBuilder::columns(const std::string& module, int64_t rows, int64_t all_cols, int64_t first, int64_t cols) {
  const std::string name = module + ".weight";
  WeightOptions options;
  options.first_col = first, options.tensor_cols = all_cols;
  return take({{name, {rows, all_cols}}}, rows, cols, [&] { return loader_.load_stacked({{name, rows}}, cols, options); });
}

ModelBuilder::Tensors ModelBuilder::tensors_of(const std::vector<RankRows>& rows, const std::vector<int64_t>& of_row) {
  Tensors tensors;
  for (const RankRows& each : rows) {
    if (!tensors.empty() && tensors.back().first == each.tensor) continue;
    tensors.push_back({each.tensor, {each.all}});
    tensors.back().second.insert(tensors.back().second.end(), of_row.begin(), of_row.end());
  }
  return tensors;
}

Weight ModelBuilder::stacked(const std::vector<RankRows>& rows, int64_t cols) {
  return take(tensors_of(rows, {cols}), total_rows(rows), cols, [&] { return loader_.load_stacked(parts_of(rows), cols); });
}

Weight ModelBuilder::joined(const std::vector<RankRows>& rows) {
  return take(tensors_of(rows, {}), 1, total_rows(rows), [&] { return loader_.load_joined(parts_of(rows)); });
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
  const int64_t dim = config.head_dim, all_q = config.num_q_heads * dim, all_kv = config.num_kv_heads * dim;
  const int64_t first_q = sizes_.first_q_head * dim, num_q = sizes_.num_q_heads * dim;
  const int64_t first_kv = sizes_.first_kv_head * dim, num_kv = sizes_.num_kv_heads * dim;
  if (!spec_.names.qkv.empty()) {
    const std::string module = name(spec_.names.qkv);
    const auto rows_of = [&](const std::string& tensor) {
      const int64_t all = all_q + 2 * all_kv;
      std::vector<RankRows> rows;
      if (spec_.qkv_rows == QkvRows::q_k_v) {
        rows = {{tensor, all, first_q, num_q},
                {tensor, all, all_q + first_kv, num_kv},
                {tensor, all, all_q + all_kv + first_kv, num_kv}};
        return rows;
      }
      // The rows of each head are together: the heads of q come first, then those of k, then of v.
      for (int64_t of = 0; of < 3; ++of) {
        for (int64_t head = sizes_.first_q_head; head < sizes_.first_q_head + sizes_.num_q_heads; ++head) {
          rows.push_back({tensor, all, (3 * head + of) * dim, dim});
        }
      }
      return rows;
    };
    attention.qkv_weight = stacked(rows_of(module + ".weight"), config.hidden_size);
    if (loader_.has(module + ".bias")) attention.qkv_bias = joined(rows_of(module + ".bias"));
    return;
  }
  const std::string q = name(spec_.names.q), k = name(spec_.names.k), v = name(spec_.names.v);
  const auto q_rows = [&](const std::string& tensor) { return RankRows{tensor, all_q, first_q, num_q}; };
  const auto kv_rows = [&](const std::string& tensor) { return RankRows{tensor, all_kv, first_kv, num_kv}; };
  attention.qkv_weight = stacked({q_rows(q + ".weight"), kv_rows(k + ".weight"), kv_rows(v + ".weight")}, config.hidden_size);
  const bool has_q = loader_.has(q + ".bias"), has_k = loader_.has(k + ".bias"), has_v = loader_.has(v + ".bias");
  const bool products_apart = is_part() && spec_.head_norm.scope == NormScope::token;  // Attention::all_heads
  if (has_q && has_k && has_v && !products_apart) {
    attention.qkv_bias = joined({q_rows(q + ".bias"), kv_rows(k + ".bias"), kv_rows(v + ".bias")});
    return;
  }
  if (has_q) attention.q_bias = joined({q_rows(q + ".bias")});
  if (has_k) attention.k_bias = joined({kv_rows(k + ".bias")});
  if (has_v) attention.v_bias = joined({kv_rows(v + ".bias")});
}

// Its weight is [head_dim] for all heads, or one for each head: [heads, head_dim], or tensors by head.
HeadsNorm ModelBuilder::heads_norm(const std::string& pattern, int64_t all, int64_t first, int64_t num_heads) {
  HeadsNorm norm;
  norm.norm = spec_.head_norm;
  if (pattern.empty()) return norm;
  const int64_t head_dim = spec_.config.head_dim;
  const std::string module = name(pattern);
  const auto by_heads = [&](Weight weight, int64_t heads) {
    if (weight) weight.rows = heads, weight.cols = head_dim;
    return weight;
  };
  const auto weights = [&](const char* suffix) {
    if (module.find("{h}") == std::string::npos) {
      const TensorInfo* const tensor = loader_.checkpoint().tensor(module + suffix);
      const bool by_head = tensor != nullptr && tensor->shape.size() == 2;
      if (!by_head && spec_.head_norm.scope == NormScope::head) return vector(module + suffix, head_dim);
      // A norm over all heads of a token has the weights of all heads on every rank.
      if (!by_head) return by_heads(vector(module + suffix, all * head_dim), all);
      WeightOptions converted;
      converted.convert = true;
      return take({{module + suffix, {all, head_dim}}}, num_heads, head_dim, [&] {
        return loader_.load_stacked({{module + suffix, num_heads, first}}, head_dim, converted);
      });
    }
    std::vector<Part> parts;
    Tensors tensors;
    for (int64_t head = 0; head < all; ++head) {
      tensors.push_back({with_number(module, head, "{h}") + suffix, {head_dim}});
      if (head >= first && head < first + num_heads) parts.push_back({tensors.back().first, head_dim});
    }
    return by_heads(take(tensors, 1, num_heads * head_dim, [&] { return loader_.load_joined(parts); }), num_heads);
  };
  norm.weight = weights(".weight");
  if (loader_.has(with_number(module, 0, "{h}") + ".bias")) norm.bias = weights(".bias");
  return norm;
}

Attention ModelBuilder::attention(const LayerKind& kind) {
  const ModelConfig& config = spec_.config;
  Attention attention;
  attention.layer = layer_;
  attention.num_q_heads = sizes_.num_q_heads;
  attention.num_kv_heads = sizes_.num_kv_heads;
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
    attention.q_norm = heads_norm(spec_.names.q_norm, config.num_q_heads, sizes_.first_q_head, sizes_.num_q_heads);
    attention.k_norm = heads_norm(spec_.names.k_norm, config.num_kv_heads, sizes_.first_kv_head, sizes_.num_kv_heads);
    if (is_part() && spec_.head_norm.scope == NormScope::token) {
      attention.all_heads = {config.num_q_heads, config.num_kv_heads, sizes_.first_q_head, sizes_.first_kv_head};
    }
  }
  if (!spec_.names.sinks.empty()) {
    attention.sinks = joined({{name(spec_.names.sinks), config.num_q_heads, sizes_.first_q_head, sizes_.num_q_heads}});
  }
  const std::string output = name(spec_.names.attention_output);
  const int64_t dim = config.head_dim;
  attention.output_weight =
      columns(output, config.hidden_size, config.num_q_heads * dim, sizes_.first_q_head * dim, sizes_.num_q_heads * dim);
  attention.output_bias = bias_of_sum(output, config.hidden_size);
  return attention;
}

Mlp ModelBuilder::mlp() {
  const int64_t hidden = spec_.config.hidden_size, all = spec_.config.intermediate_size;
  const int64_t first = sizes_.first_channel, width = sizes_.intermediate_size;
  Mlp mlp;
  mlp.activation = spec_.activation;
  mlp.gated = spec_.gated_mlp;
  mlp.limit = spec_.activation_limit;
  mlp.alpha = spec_.activation_alpha;
  const std::string up = name(spec_.names.up);
  if (!spec_.gated_mlp) {
    mlp.up_weight = stacked({{up + ".weight", all, first, width}}, hidden);
    if (loader_.has(up + ".bias")) mlp.up_bias = joined({{up + ".bias", all, first, width}});
  } else if (!spec_.names.gate_up.empty()) {
    const std::string both = name(spec_.names.gate_up);
    const auto rows_of = [&](const std::string& tensor) {
      return std::vector<RankRows>{{tensor, 2 * all, first, width}, {tensor, 2 * all, all + first, width}};
    };
    mlp.up_weight = stacked(rows_of(both + ".weight"), hidden);
    if (loader_.has(both + ".bias")) mlp.up_bias = joined(rows_of(both + ".bias"));
  } else {
    const std::string gate = name(spec_.names.gate);
    mlp.up_weight = stacked({{gate + ".weight", all, first, width}, {up + ".weight", all, first, width}}, hidden);
    if (loader_.has(gate + ".bias")) {
      mlp.up_bias = joined({{gate + ".bias", all, first, width}, {up + ".bias", all, first, width}});
    }
  }
  const std::string down = name(spec_.names.down);
  mlp.down_weight = columns(down, hidden, all, first, width);
  mlp.down_bias = bias_of_sum(down, hidden);
  return mlp;
}

MixtureOfExperts ModelBuilder::experts() {
  const ExpertsSpec& of = spec_.experts;
  const int64_t hidden = spec_.config.hidden_size, all = of.intermediate_size, count = of.num_experts;
  const int64_t first = sizes_.first_expert_channel, width = sizes_.expert_intermediate_size;
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
  // Loads a tensor [experts, size] of biases: those of up are elements, that of down is part of a sum (bias_of_sum).
  const auto biases = [&](const Tensors& tensors, const std::vector<Part>& parts, int64_t size, bool of_sum = false) {
    const bool is_loaded = !of_sum || options_.shard.rank == 0;
    const Weight weight = take(tensors, count, size, [&]() -> Result<Weight> {
      if (!is_loaded) return Weight();
      return loader_.load_joined(parts, options);
    });
    return is_loaded ? weight : Weight();
  };
  WeightOptions down_options = options;
  down_options.first_col = first, down_options.tensor_cols = all;
  if (!spec_.names.experts_gate_up.empty()) {
    const std::string both = name(spec_.names.experts_gate_up), down = name(spec_.names.experts_down);
    // In MXFP4 they are not transposed.
    const auto is_transposed = [&](const std::string& tensor) {
      const TensorInfo* const stored = loader_.checkpoint().tensor(tensor);
      return stored == nullptr || stored->type != GgmlType::mxfp4;
    };
    const auto shape = [&](bool transposed, int64_t rows, int64_t cols) {
      return transposed ? std::vector<int64_t>{count, cols, rows} : std::vector<int64_t>{count, rows, cols};
    };
    down_options.transposed = is_transposed(down);
    moe.experts.down_weight = take({{down, shape(down_options.transposed, hidden, all)}}, count * hidden, width, [&] {
      return loader_.load_stacked({{down, hidden}}, width, down_options);
    });
    options.row_step = 2;
    options.transposed = is_transposed(both);
    const auto gate_and_up = [&](const std::string& tensor) {
      return std::vector<Part>{{tensor, width, 2 * first}, {tensor, width, 2 * first + 1}};
    };
    moe.experts.up_weight = take({{both, shape(options.transposed, 2 * all, hidden)}}, count * 2 * width, hidden,
                                 [&] { return loader_.load_stacked(gate_and_up(both), hidden, options); });
    options.transposed = false;
    const std::string both_bias = both + "_bias", down_bias = down + "_bias";
    if (!loader_.has(both_bias)) return moe;
    moe.experts.up_bias = biases({{both_bias, {count, 2 * all}}}, gate_and_up(both_bias), 2 * width);
    options.row_step = 1;
    moe.experts.down_bias = biases({{down_bias, {count, hidden}}}, {{down_bias, hidden}}, hidden, true);
    return moe;
  }
  const std::string gate = name(spec_.names.expert_gate) + ".weight", up = name(spec_.names.expert_up) + ".weight",
                    down = name(spec_.names.expert_down) + ".weight";
  const bool apart = gate.find("{e}") != std::string::npos;
  Tensors up_tensors, down_tensors;
  for (int64_t e = 0; e < (apart ? count : 1); ++e) {
    const auto shape = [&](int64_t rows, int64_t cols) {
      return apart ? std::vector<int64_t>{rows, cols} : std::vector<int64_t>{count, rows, cols};
    };
    for (const std::string& each : {gate, up}) up_tensors.emplace_back(with_number(each, e, "{e}"), shape(all, hidden));
    down_tensors.emplace_back(with_number(down, e, "{e}"), shape(hidden, all));
  }
  moe.experts.up_weight = take(up_tensors, 2 * count * width, hidden, [&] {
    return loader_.load_stacked({{gate, width, first}, {up, width, first}}, hidden, options);
  });
  moe.experts.down_weight = take(down_tensors, count * hidden, width, [&] {
    return loader_.load_stacked({{down, hidden}}, width, down_options);
  });
  const std::string gate_bias = name(spec_.names.expert_gate) + ".bias", up_bias = name(spec_.names.expert_up) + ".bias",
                    down_bias = name(spec_.names.expert_down) + ".bias";
  if (apart || !loader_.has(gate_bias)) return moe;
  moe.experts.up_bias = biases({{gate_bias, {count, all}}, {up_bias, {count, all}}},
                               {{gate_bias, width, first}, {up_bias, width, first}}, 2 * width);
  moe.experts.down_bias = biases({{down_bias, {count, hidden}}}, {{down_bias, hidden}}, hidden, true);
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
  layer.is_part = is_part();
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

// A tied head is rows of the embedding where these are. They begin with a group of packed rows (lm_head_rows_of_rank).
Weight ModelBuilder::lm_head(const Weight& embedding) {
  const ModelConfig& config = spec_.config;
  const int64_t first = sizes_.first_logit, rows = sizes_.num_logits;
  if (!spec_.tied_lm_head) {
    return stacked({{spec_.names.lm_head + ".weight", config.vocab_size, first, rows}}, config.hidden_size);
  }
  if (rows == config.vocab_size || !embedding) return embedding;
  Weight head = embedding;
  head.rows = rows;
  if (dry_) return head;
  const auto from = [](const void* data, int64_t bytes) { return static_cast<const unsigned char*>(data) + bytes; };
  if (head.packed.num_segments == 0) {
    head.data = from(head.data, first * head.cols * dtype_size(head.dtype));
    return head;
  }
  if (first % kPackedGroupRows != 0) {
    fail(unsupported(loader_.checkpoint().path(), ": a vocabulary of ", config.vocab_size, " tokens is too small for ",
                     options_.shard.num_ranks, " ranks while the embedding, which is the lm_head, too, stays packed"));
    return {};
  }
  PackedRows& segment = head.packed.segments[0];  // the only one: the embedding is one tensor
  head.data = segment.data = from(segment.data, packed_weight_bytes(segment.format, first, head.cols));
  segment.rows = rows;
  constexpr int64_t kSquareRows = 128;
  if (segment.scaling == WeightScaling::squares && first % kSquareRows != 0) segment.scaling = WeightScaling::blocks;
  return head;
}

Result<Model> ModelBuilder::build() {
  const ModelConfig& config = spec_.config;
  Model model;
  model.config = config;
  model.shard = options_.shard;
  model.dtype = loader_.dtype();
  PROLOGUE_RETURN_IF_ERROR(add_ropes(model));
  const Weight embedding = matrix(spec_.names.embedding, config.vocab_size, config.hidden_size);
  const Weight head = lm_head(embedding);
  const std::string head_bias = spec_.names.lm_head + ".bias";
  const Weight lm_head_bias =
      !loader_.has(head_bias) ? Weight() : joined({{head_bias, config.vocab_size, sizes_.first_logit, sizes_.num_logits}});

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
  x = g.linear("lm_head", x, head, lm_head_bias, DType::f32);
  if (spec_.logit_scale != 1.0f || spec_.logit_soft_cap != 0.0f) {
    x = g.scale_logits("logits", x, spec_.logit_scale, spec_.logit_soft_cap);
  }
  if (is_part()) {
    x = g.all_gather("all_logits", x, config.vocab_size, lm_head_rows_of_rank(config.vocab_size, options_.shard.num_ranks));
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
  PROLOGUE_RETURN_IF_ERROR(check_shards(loader.checkpoint().path(), given, options.shard));
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
