#include <algorithm>
#include <utility>

#include <prologue/kernels/base/out_of_memory.h>
#include <prologue/kernels/internal/run.h>
#include <prologue/layers/graph/graph.h>

namespace prologue {

void* address_of(Parameters& parameters) {
  return std::visit([](auto& held) -> void* { return &held; }, parameters);
}

namespace {

int64_t offset_of(const void* member, const Parameters& parameters) {
  return static_cast<const char*>(member) - static_cast<const char*>(address_of(const_cast<Parameters&>(parameters)));
}

// The shape counts, not the number of elements: [8, 4] is no vector of 32.
bool is_vector(const Weight& weight, int64_t width) { return weight.rows == 1 && weight.cols == width; }

}  // namespace

void Node::bind(const void* member, const Binding& to) {
  bindings.push_back(to);
  bindings.back().member = offset_of(member, parameters);
}

const Binding* Node::binding_of(const void* member) const {
  const int64_t offset = offset_of(member, parameters);
  for (const Binding& each : bindings) {
    if (each.member == offset) return &each;
  }
  return nullptr;
}

std::vector<Binding> Node::bindings_within(const void* member, size_t size) const {
  const int64_t begin = offset_of(member, parameters), end = begin + static_cast<int64_t>(size);
  std::vector<Binding> within;
  for (const Binding& each : bindings) {
    if (each.member < begin || each.member >= end) continue;
    within.push_back(each);
    within.back().member -= begin;
  }
  return within;
}

void Node::step(IndexView& member, StepArray array) {
  member.type = step_member(array).type;
  bind(&member.data, {Binding::To::array, static_cast<int32_t>(array)});
}

void Node::positions(IndexView& member, int64_t& axis_stride, int64_t num_axes) {
  step(member, StepArray::positions);
  step(axis_stride, StepCount::position_axis_stride);
  position_axes = num_axes;
}

void Node::cache(PagedKvView& member, int64_t layer, bool writes) {
  bind(&member, {writes ? Binding::To::cache_write : Binding::To::cache_read, layer});
}

void Node::weight(const void*& member, const Weight& of) {
  member = of.data;
  if (of) weights.push_back(of);
}

namespace {

// Returns the values of bindings, each value once.
std::vector<Value> values_of(const std::vector<Binding>& bindings, Binding::To to) {
  std::vector<Value> values;
  for (const Binding& each : bindings) {
    const Value value = {static_cast<int32_t>(each.index)};
    if (each.to != to && each.to != Binding::To::update) continue;
    if (std::find(values.begin(), values.end(), value) == values.end()) values.push_back(value);
  }
  return values;
}

}  // namespace

std::vector<Value> Node::reads() const { return values_of(bindings, Binding::To::read); }
std::vector<Value> Node::writes() const { return values_of(bindings, Binding::To::write); }

const Binding* Node::cache_binding() const {
  for (const Binding& each : bindings) {
    if (each.to == Binding::To::cache_read || each.to == Binding::To::cache_write) return &each;
  }
  return nullptr;
}

bool begins_early(const Graph& graph, size_t node, int64_t num_tokens) {
  const Parameters& parameters = graph.nodes[node].parameters;
  if (std::holds_alternative<PagedAttentionParams>(parameters)) {
    if (node == 0) return false;
    const Parameters& before = graph.nodes[node - 1].parameters;
    return !std::holds_alternative<PagedAttentionParams>(before) && !std::holds_alternative<ProjectionParams>(before);
  }
  if (const auto* p = std::get_if<ProjectionParams>(&parameters)) {
    const Binding* const binding = graph.nodes[node].binding_of(&p->overlaps);
    return binding == nullptr ? p->overlaps : num_tokens == 1 || num_tokens >= binding->index;
  }
  if (const auto* p = std::get_if<QkvPrologueParams>(&parameters)) return p->overlaps;
  if (const auto* p = std::get_if<EmbeddingParams>(&parameters)) return p->overlaps;
  if (const auto* p = std::get_if<AllReduceParams>(&parameters)) return p->overlaps;
  return false;
}

GraphBuilder::Scope::Scope(GraphBuilder& builder, const std::string& name) : builder_(builder), length_(builder.prefix_.size()) {
  builder_.attempt([&] { builder_.prefix_.append(name).append("."); });
}

// Runs code that may run out of memory, unless an earlier call failed. The first error counts.
template <class Work>
void GraphBuilder::attempt(const Work& work) {
  if (!status_.ok()) return;
  check(catch_out_of_memory([&] {
    work();
    return Status();
  }));
}

void GraphBuilder::check(const Status& status) {
  if (status_.ok()) status_ = status;
}

// Returns the description of a value that an operation reads.
const ValueInfo& GraphBuilder::info(Value value) {
  static const ValueInfo none;
  if (value.id >= 0 && static_cast<size_t>(value.id) < graph_.values.size()) return graph_.info(value);
  if (status_.ok()) status_ = invalid_argument("graph: an operation reads value ", value.id, ": there is no such value");
  return none;
}

Value GraphBuilder::add_value(const std::string& name, Rows rows, int64_t width, DType dtype) {
  attempt([&] { graph_.values.push_back({prefix_ + name, rows, width, dtype, {}, 0}); });
  return status_.ok() ? Value{static_cast<int32_t>(graph_.values.size()) - 1} : Value();
}

Value GraphBuilder::add_value_like(const std::string& name, Value x) {
  const ValueInfo& like = info(x);
  return add_value(name, like.rows, like.width, like.dtype);
}

Value GraphBuilder::add_view(const std::string& name, Value base, int64_t column, int64_t width) {
  const ValueInfo& of = info(base);
  const Value view = add_value(name, of.rows, width, of.dtype);
  if (view) {
    graph_.values.back().base = base;
    graph_.values.back().base_column = column;
  }
  return view;
}

// Adds a node whose parameters are a P; fill(node, params) fills it in.
template <class P, class Fill>
void GraphBuilder::add_node(const std::string& name, const char* kind, const Fill& fill) {
  attempt([&] {
    Node node = {prefix_ + name, kind, P()};
    fill(node, std::get<P>(node.parameters));
    if constexpr (!std::is_same_v<P, GemmParams> && !std::is_same_v<P, EmbeddingParams> && !std::is_same_v<P, MoeGemmParams>) {
      for (const Weight& weight : node.weights) check_dense(node, weight);
    }
    graph_.nodes.push_back(std::move(node));
  });
}

StepCount GraphBuilder::rows_of(Value value) { return count_of(info(value).rows); }

int64_t GraphBuilder::row_stride(Value value) { return info(info(value).base ? info(value).base : value).width; }

int64_t GraphBuilder::head_dim(const Node& node, Value value, int64_t num_heads) {
  const int64_t width = info(value).width;
  if (num_heads >= 1 && width % num_heads == 0) return width / num_heads;
  check(invalid_argument(node.name, ": there are ", num_heads, " heads: the ", width, " columns must be a multiple of them"));
  return 0;
}

// Binds the heads of a value that is read.
void GraphBuilder::read_heads(Node& node, HeadsView& view, Value x, int64_t num_heads) {
  view.token_stride = row_stride(x);
  view.head_stride = head_dim(node, x, num_heads);
  node.read(view.data, x);
}

void GraphBuilder::write_heads(Node& node, MutableHeadsView& view, Value y, int64_t num_heads) {
  view.token_stride = row_stride(y);
  view.head_stride = head_dim(node, y, num_heads);
  node.write(view.data, y);
}

// Only linear layers, those of experts too, and embeddings have packed weights.
void GraphBuilder::check_dense(const Node& node, const Weight& weight) {
  if (weight.packed.num_segments == 0) return;
  check(invalid_argument(node.name, ": its weight is packed as ", weight_format_name(weight.packed.segments[0].format),
                         ": only a linear layer, also of experts, and an embedding can have that"));
}

// Checks a weight that has an element for each column of x.
void GraphBuilder::check_vector(const Node& node, const char* what, const Weight& weight, Value x) {
  const ValueInfo& of = info(x);
  if (!weight || (is_vector(weight, of.width) && weight.dtype == of.dtype)) return;
  check(invalid_argument(node.name, ": ", what, " is [", weight.rows, ", ", weight.cols, "] ", dtype_name(weight.dtype),
                         ": it must be [1, ", of.width, "] of ", dtype_name(of.dtype)));
}

// Checks the input of an operation whose rows have no stride.
void GraphBuilder::check_contiguous(const Node& node, Value x) {
  if (!info(x).base) return;
  check(invalid_argument(node.name, ": ", info(x).name, " is a part of the columns of another value: it needs contiguous rows"));
}

// Checks a value that has an element for each token and choice of an expert.
void GraphBuilder::check_choices(const Node& node, const char* what, Value value, int64_t top_k, DType dtype) {
  check_contiguous(node, value);
  if (info(value).width == top_k && info(value).dtype == dtype) return;
  check(invalid_argument(node.name, ": ", what, " has ", info(value).width, " columns of ", dtype_name(info(value).dtype),
                         ": it must have ", top_k, " of ", dtype_name(dtype)));
}

// Rows of cos and sin become bindings.
void GraphBuilder::set_rope(Node& node, Rope& member, const GraphRope& rope) {
  member = rope.rope;
  if (rope.table != nullptr) {
    member.style = rope.table->style();
    member.rotary_dim = rope.table->rotary_dim();
    set_cos_sin_table(member, nullptr, DType::f32, 0);
    node.table_rows(member.max_position, *rope.table);
    if (rope.cos_sin) {
      member.source = RopeSource::per_token;
      node.read(member.cos.data, rope.cos_sin);
      node.read(member.sin.data, rope.cos_sin, member.rotary_dim / 2);
    } else {
      node.table(member.cos.data, *rope.table);
      node.table(member.sin.data, *rope.table, member.rotary_dim / 2);
    }
  }
  check_rope(node, rope);
}

// Whether a rope rotates nothing (rotary_dim 0), although it has frequencies.
void GraphBuilder::check_rope(const Node& node, const GraphRope& rope) {
  const char* const given = given_without_rotation(rope.rope);
  if (rope || given == nullptr) return;
  check(invalid_argument(node.name, ": rotary_dim is 0, but ", given, " is given: set rotary_dim, or leave it null"));
}

Value GraphBuilder::embedding(const std::string& name, const Weight& table, float scale) {
  const Value out = add_value(name, Rows::tokens, table.cols, activations_);
  add_node<EmbeddingParams>(name, "embedding", [&](Node& node, EmbeddingParams& p) {
    node.step(p.num_tokens, StepCount::num_tokens);
    p.num_rows = table.rows;
    p.width = table.cols;
    p.dtype = activations_;
    node.weight(p.table, table);
    p.table_format = table.packed.num_segments > 0 ? table.packed.segments[0].format : WeightFormat::dense;
    if (table.packed.num_segments > 1) {
      check(invalid_argument(node.name, ": the table has ", table.packed.num_segments, " segments: it must have one"));
    }
    node.step(p.indices, StepArray::token_ids);
    p.scale = scale;
    node.write(p.out, out);
    node.faults(p.faults, p.token_faults);
    if (table.dtype == activations_) return;
    check(
        invalid_argument(node.name, ": the table is ", dtype_name(table.dtype), ": activations are ", dtype_name(activations_)));
  });
  return out;
}

Value GraphBuilder::select_logit_rows(const std::string& name, Value x) {
  const Value out = add_value(name, Rows::logits, info(x).width, info(x).dtype);
  add_node<EmbeddingParams>(name, "select_rows", [&](Node& node, EmbeddingParams& p) {
    node.step(p.num_tokens, StepCount::num_logit_rows);
    node.step(p.num_rows, rows_of(x));
    p.width = info(x).width;
    p.dtype = info(x).dtype;
    node.read(p.table, x);
    node.step(p.indices, StepArray::logit_rows);
    node.write(p.out, out);
    node.faults(p.faults);
  });
  return out;
}

Value GraphBuilder::norm(const std::string& name, Value x, const Norm& norm) { return add_norm(name, x, {}, norm); }

Value GraphBuilder::add_norm(const std::string& name, Value x, Value residual, const Norm& norm) {
  const Value out = add_value_like(name, x);
  const bool layer = norm.kind == NormKind::layer;
  const char* const kind = layer ? residual ? "add_layer_norm" : "layer_norm" : residual ? "add_rms_norm" : "rms_norm";
  add_node<NormParams>(name, kind, [&](Node& node, NormParams& p) {
    node.step(p.num_tokens, rows_of(x));
    p.width = info(x).width;
    p.dtype = info(x).dtype;
    p.kind = norm.kind;
    node.read(p.x, x);
    check_contiguous(node, x);
    if (residual) node.update(p.residual, residual);
    node.weight(p.weight, norm.weight);
    node.weight(p.bias, norm.bias);
    const Weight& of_type = norm.weight ? norm.weight : norm.bias;
    p.weight_type = of_type ? of_type.dtype : p.dtype;
    for (const Weight& weight : {norm.weight, norm.bias}) {
      if (!weight) continue;
      const bool has_type = weight.dtype == p.weight_type && (p.weight_type == p.dtype || p.weight_type == DType::f32);
      if (is_vector(weight, p.width) && has_type) continue;
      check(invalid_argument(node.name, ": a norm's weight is [", weight.rows, ", ", weight.cols, "] ", dtype_name(weight.dtype),
                             ": it must be [1, ", p.width, "], weight and bias both of ", dtype_name(p.dtype),
                             p.dtype == DType::f32 ? "" : " or float32"));
    }
    p.eps = norm.eps;
    node.write(p.out, out);
  });
  return out;
}

Value GraphBuilder::linear(const std::string& name, Value x, const Weight& weight, const Weight& bias, DType out_dtype) {
  const Value out = add_value(name, info(x).rows, weight.rows, resolve_dtype(out_dtype, activations_));
  add_node<GemmParams>(name, "linear", [&](Node& node, GemmParams& p) {
    node.step(p.m, rows_of(x));
    p.n = weight.rows;
    p.k = weight.cols;
    p.dtype = weight.dtype;
    p.y_dtype = info(out).dtype;
    node.read(p.x, x);
    p.x_stride = row_stride(x);
    node.weight(p.weight, weight);
    node.weight(p.bias, bias);
    p.packed = weight.packed;
    if (p.packed.num_segments > 0) p.weight = nullptr;
    node.write(p.y, out);
    p.y_stride = row_stride(out);
    if (weight.cols != info(x).width || weight.dtype != info(x).dtype) {
      check(invalid_argument(node.name, ": the weight is [", weight.rows, ", ", weight.cols, "] ", dtype_name(weight.dtype),
                             ": what it multiplies has ", info(x).width, " columns of ", dtype_name(info(x).dtype)));
    }
    if (!bias || (is_vector(bias, weight.rows) && bias.dtype == weight.dtype)) return;
    check(invalid_argument(node.name, ": the bias is [", bias.rows, ", ", bias.cols, "] ", dtype_name(bias.dtype),
                           ": it must be [1, ", weight.rows, "] of the weight's type, ", dtype_name(weight.dtype)));
  });
  return out;
}

Value GraphBuilder::add_bias(const std::string& name, Value x, const Weight& bias) {
  const Value out = add_value_like(name, x);
  add_node<AddBiasParams>(name, "add_bias", [&](Node& node, AddBiasParams& p) {
    node.step(p.num_tokens, rows_of(x));
    p.width = info(x).width;
    p.dtype = info(x).dtype;
    node.read(p.x, x);
    p.x_stride = row_stride(x);
    node.weight(p.bias, bias);
    check_vector(node, "a bias", bias, x);
    node.write(p.y, out);
    p.y_stride = row_stride(out);
  });
  return out;
}

GraphBuilder::Qkv GraphBuilder::split_heads(Value qkv, int64_t num_q_heads, int64_t num_kv_heads, int64_t head_dim, bool v_from_k,
                                            int64_t v_head_dim, int64_t more) {
  const bool v_of_its_own = v_head_dim != 0 && v_head_dim != head_dim;
  if (v_from_k && v_of_its_own) {
    check(
        invalid_argument("graph: v_head_dim is ", v_head_dim, ": V that is taken from K has head_dim, ", head_dim, ", channels"));
  }
  const int64_t q_width = num_q_heads * head_dim, k_width = num_kv_heads * head_dim;
  const int64_t v_width = v_from_k ? 0 : num_kv_heads * (v_of_its_own ? v_head_dim : head_dim);
  if (info(qkv).width < q_width + k_width + v_width + more) {
    check(invalid_argument("graph: ", info(qkv).name, " has ", info(qkv).width, " columns: ", num_q_heads, " heads of Q and ",
                           num_kv_heads, " of K", v_from_k || v_of_its_own ? "" : " and of V", " of ", head_dim, " channels",
                           v_of_its_own ? str_cat(" and of V of ", v_head_dim) : "",
                           more > 0 ? str_cat(", and ", more, " more,") : "", " need ", q_width + k_width + v_width + more));
  }
  if (num_kv_heads == 0 && info(qkv).width > q_width + more) {
    check(invalid_argument("graph: ", info(qkv).name, " has ", info(qkv).width,
                           " columns: without heads of K and V it has those of ", num_q_heads, " heads of Q of ", head_dim,
                           " channels, ", q_width));
  }
  const Value q = add_view("q", qkv, 0, q_width);
  const Value k = add_view("k", qkv, q_width, k_width);
  const Value v = v_from_k ? k : add_view("v", qkv, q_width + k_width, v_width);
  return {q, k, v};
}

Value GraphBuilder::columns(const std::string& name, Value x, int64_t first, int64_t count) {
  if (first < 0 || count < 1 || first > info(x).width - count) {
    check(invalid_argument("graph: ", info(x).name, " has ", info(x).width, " columns: ", name, " takes ", count, " from column ",
                           first, " on"));
    return x;
  }
  return add_view(name, x, first, count);
}

Value GraphBuilder::heads_norm(const std::string& name, Value x, int64_t num_heads, const HeadsNorm& norm) {
  const Value out = add_value_like(name, x);
  add_node<QkNormParams>(name, "heads_norm", [&](Node& node, QkNormParams& p) {
    node.step(p.num_tokens, StepCount::num_tokens);
    p.num_heads = num_heads;
    p.head_dim = head_dim(node, x, num_heads);
    p.dtype = info(x).dtype;
    read_heads(node, p.x, x, num_heads);
    write_heads(node, p.y, out, num_heads);
    p.norm = norm.norm;
    node.weight(p.norm.weight, norm.weight);
    node.weight(p.norm.bias, norm.bias);
    node.step(p.positions, StepArray::positions);
    for (const Weight& weight : {norm.weight, norm.bias}) {
      if (!weight) continue;
      if (weight.rows > 1) p.norm.weight_head_stride = weight.cols;
      const bool of_type = weight.dtype == p.dtype || weight.dtype == DType::f32;
      p.norm.weight_type = weight.dtype;
      if ((weight.rows == 1 || weight.rows == num_heads) && weight.cols == p.head_dim && of_type) continue;
      check(invalid_argument(node.name, ": a norm's weight is [", weight.rows, ", ", weight.cols, "] ", dtype_name(weight.dtype),
                             ": it must be [1, ", p.head_dim, "] or [", num_heads, ", ", p.head_dim, "] of ", dtype_name(p.dtype),
                             p.dtype == DType::f32 ? "" : " or float32"));
    }
    if (!norm.weight || !norm.bias) return;
    if (norm.weight.dtype != norm.bias.dtype) {
      check(invalid_argument(node.name, ": the norm's weight is of ", dtype_name(norm.weight.dtype), " and its bias of ",
                             dtype_name(norm.bias.dtype), ": they must have one type"));
    }
    if (norm.weight.rows == norm.bias.rows) return;
    check(invalid_argument(node.name, ": the norm's weight has ", norm.weight.rows, " rows and its bias ", norm.bias.rows,
                           ": they must have as many"));
  });
  return out;
}

GraphRope GraphBuilder::gather_cos_sin(const std::string& name, const GraphRope& rope) {
  GraphRope gathered = rope;
  if (rope.table == nullptr) check(invalid_argument("graph: ", name, " gathers the rows of a rope without a table"));
  if (!status_.ok()) return gathered;
  gathered.cos_sin = add_value(name, Rows::tokens, rope.table->rotary_dim(), DType::f32);
  add_node<GatherCosSinParams>(name, "gather_cos_sin", [&](Node& node, GatherCosSinParams& p) {
    node.step(p.num_tokens, StepCount::num_tokens);
    p.rotary_dim = rope.table->rotary_dim();
    node.table_rows(p.max_position, *rope.table);
    node.table(p.cos_sin, *rope.table);
    p.num_axes = rope.rope.num_axes;
    node.positions(p.positions, p.position_axis_stride, p.num_axes);
    p.pair_axis = rope.rope.pair_axis;
    node.write(p.out, gathered.cos_sin);
    p.past_table = rope.rope.past_table;
  });
  return gathered;
}

// kv_write records positions outside the table, once per token.
Value GraphBuilder::rope(const std::string& name, Value x, int64_t num_heads, const GraphRope& rope) {
  const Value out = add_value_like(name, x);
  add_node<RotaryParams>(name, "rope", [&](Node& node, RotaryParams& p) {
    node.step(p.seq_len, StepCount::num_tokens);
    p.head_dim = head_dim(node, x, num_heads);
    p.dtype = info(x).dtype;
    p.num_tensors = 1;
    p.tensors[0] = rotary_tensor({nullptr, row_stride(x), p.head_dim}, {nullptr, row_stride(out), p.head_dim}, num_heads);
    node.read(p.tensors[0].x, x);
    node.write(p.tensors[0].y, out);
    set_rope(node, p.rope, rope);
    if (p.rope.past_table == PastTable::record) p.rope.past_table = PastTable::zero;
    node.positions(p.positions.ids, p.positions.axis_stride, p.rope.num_axes);
  });
  return out;
}

Value GraphBuilder::hadamard(const std::string& name, Value x, int64_t num_heads, int64_t block) {
  const Value out = add_value_like(name, x);
  add_node<HadamardParams>(name, "hadamard", [&](Node& node, HadamardParams& p) {
    node.step(p.num_tokens, StepCount::num_tokens);
    p.num_heads = num_heads;
    p.head_dim = head_dim(node, x, num_heads);
    p.dtype = info(x).dtype;
    read_heads(node, p.x, x, num_heads);
    write_heads(node, p.y, out, num_heads);
    p.block = block;
    node.step(p.positions, StepArray::positions);
  });
  return out;
}

Value GraphBuilder::query_scale(const std::string& name, Value x, int64_t num_heads, const QueryScale& scale) {
  const Value out = add_value_like(name, x);
  add_node<QueryScaleParams>(name, "query_scale", [&](Node& node, QueryScaleParams& p) {
    node.step(p.num_tokens, StepCount::num_tokens);
    p.num_heads = num_heads;
    p.head_dim = head_dim(node, x, num_heads);
    p.dtype = info(x).dtype;
    read_heads(node, p.x, x, num_heads);
    write_heads(node, p.y, out, num_heads);
    p.q_scale = scale;
    node.step(p.positions, StepArray::positions);
  });
  return out;
}

void GraphBuilder::kv_write(const std::string& name, Value k, Value v, int64_t num_kv_heads, int64_t layer,
                            const GraphRope& rope) {
  add_node<KvWriteParams>(name, "kv_write", [&](Node& node, KvWriteParams& p) {
    node.step(p.num_tokens, StepCount::num_tokens);
    p.num_kv_heads = num_kv_heads;
    p.head_dim = head_dim(node, k, num_kv_heads);
    p.dtype = info(k).dtype;
    read_heads(node, p.k, k, num_kv_heads);
    read_heads(node, p.v, v, num_kv_heads);
    p.cache.v.head_dim = head_dim(node, v, num_kv_heads);
    node.cache(p.cache, layer, true);
    p.num_axes = rope.rope.num_axes;
    node.positions(p.positions, p.position_axis_stride, p.num_axes);
    node.step(p.slot_mapping, StepArray::slot_mapping);
    p.max_position = rope.rope.max_position;
    if (rope.table != nullptr) node.table_rows(p.max_position, *rope.table);
    p.past_table = rope.rope.past_table;
    node.faults(p.faults);
    check_rope(node, rope);
  });
}

// There is one sink for each head of Q.
void GraphBuilder::set_sinks(Node& node, PagedAttentionParams& params, const Weight& sinks) {
  node.weight(params.sinks, sinks);
  params.sinks_type = sinks.dtype;
  if (!sinks || (is_vector(sinks, params.num_q_heads) && (sinks.dtype == params.dtype || sinks.dtype == DType::f32))) return;
  check(invalid_argument(node.name, ": the sinks are [", sinks.rows, ", ", sinks.cols, "] ", dtype_name(sinks.dtype),
                         ": they must be [1, ", params.num_q_heads, "] of ", dtype_name(params.dtype),
                         params.dtype == DType::f32 ? "" : " or float32"));
}

Value GraphBuilder::paged_attention(const std::string& name, Value q, int64_t num_q_heads, const AttentionOptions& options,
                                    int64_t layer) {
  const ValueInfo& of_q = info(q);
  const int64_t width = options.v_head_dim > 0 ? num_q_heads * options.v_head_dim : of_q.width;
  const Value out = add_value(name, of_q.rows, width, of_q.dtype);
  add_node<PagedAttentionParams>(name, "paged_attention", [&](Node& node, PagedAttentionParams& p) {
    node.step(p.num_tokens, StepCount::num_tokens);
    node.step(p.num_seqs, StepCount::num_seqs);
    node.step(p.num_decode_seqs, StepCount::num_decode_seqs);
    p.num_q_heads = num_q_heads;
    p.head_dim = head_dim(node, q, num_q_heads);
    p.dtype = info(q).dtype;
    p.scale = options.scale;
    p.soft_cap = options.soft_cap;
    p.window = options.window;
    p.chunk = options.chunk;
    read_heads(node, p.q, q, num_q_heads);
    set_sinks(node, p, options.sinks);
    p.kv.v.head_dim = head_dim(node, out, num_q_heads);
    node.cache(p.kv, layer, false);
    node.step(p.page_table.block_table, StepArray::block_table);
    node.step(p.page_table.block_table_stride, StepCount::block_table_stride);
    node.step(p.page_table.max_pages_per_seq, StepCount::max_pages_per_seq);
    node.step(p.cu_seqlens_q, StepArray::cu_seqlens_q);
    node.step(p.seq_lens, StepArray::seq_lens);
    node.step(p.max_seqlen_q, StepCount::max_seqlen_q);
    node.step(p.max_seq_len, StepCount::max_seq_len);
    write_heads(node, p.out, out, num_q_heads);
    node.faults(p.faults, p.token_faults);
  });
  return out;
}

namespace {

const char* activation_name(Activation kind) {
  switch (kind) {
    case Activation::silu: return "silu";
    case Activation::gelu_tanh: return "gelu_tanh";
    case Activation::gelu: return "gelu";
    case Activation::relu: return "relu";
    case Activation::relu2: return "relu2";
    case Activation::clamped_swiglu: return "clamped swiglu";
  }
  return "unknown";
}

}  // namespace

Value GraphBuilder::activation(const std::string& name, Value x, const ActivationOptions& options) {
  const int64_t parts = std::max<int64_t>(options.groups, 1) * (options.gated ? 2 : 1);
  const Value out = add_value(name, info(x).rows, info(x).width / (options.gated ? 2 : 1), info(x).dtype);
  add_node<ActivationParams>(name, options.gated ? "gated_activation" : "activation", [&](Node& node, ActivationParams& p) {
    node.step(p.num_tokens, rows_of(x));
    p.groups = options.groups;
    p.width = info(x).width / parts;
    p.dtype = info(x).dtype;
    p.kind = options.kind;
    p.gated = options.gated;
    p.limit = options.limit;
    p.alpha = options.alpha;
    node.remark = activation_name(options.kind);
    node.read(p.x, x);
    p.x_stride = row_stride(x);
    node.write(p.out, out);
    if (info(x).width % parts == 0) return;
    check(invalid_argument(node.name, ": what it is applied to has ", info(x).width, " columns: they must be a multiple of ",
                           parts));
  });
  return out;
}

Value GraphBuilder::gate(const std::string& name, Value x, Value gate) {
  const Value out = add_value_like(name, x);
  add_node<GateParams>(name, "gate", [&](Node& node, GateParams& p) {
    node.step(p.num_tokens, rows_of(x));
    p.width = info(x).width;
    p.dtype = info(x).dtype;
    node.read(p.x, x);
    p.x_stride = row_stride(x);
    node.read(p.gate, gate);
    p.gate_stride = row_stride(gate);
    node.write(p.out, out);
    p.out_stride = row_stride(out);
    if (info(gate).width == p.width && info(gate).dtype == p.dtype) return;
    check(invalid_argument(node.name, ": the gate has ", info(gate).width, " columns of ", dtype_name(info(gate).dtype),
                           ": they must be as what it multiplies, ", p.width, " of ", dtype_name(p.dtype)));
  });
  return out;
}

Value GraphBuilder::add(const std::string& name, Value a, Value b) {
  const Value out = add_value_like(name, a);
  add_node<AddParams>(name, "add", [&](Node& node, AddParams& p) {
    node.step(p.num_tokens, rows_of(a));
    p.width = info(a).width;
    p.dtype = info(a).dtype;
    node.read(p.a, a);
    p.a_stride = row_stride(a);
    node.read(p.b, b);
    p.b_stride = row_stride(b);
    node.write(p.out, out);
    p.out_stride = row_stride(out);
    if (info(b).rows == info(a).rows && info(b).width == p.width && info(b).dtype == p.dtype) return;
    check(invalid_argument(node.name, ": it adds ", info(b).width, " columns of ", dtype_name(info(b).dtype), " to ", p.width,
                           " of ", dtype_name(p.dtype), ": both must have the same rows, columns and type"));
  });
  return out;
}

Value GraphBuilder::all_reduce(const std::string& name, Value x) {
  const Value out = add_value_like(name, x);
  add_node<AllReduceParams>(name, "all_reduce", [&](Node& node, AllReduceParams& p) {
    node.step(p.num_tokens, rows_of(x));
    p.width = info(x).width;
    p.dtype = info(x).dtype;
    check_contiguous(node, x);
    node.read(p.x, x);
    node.write(p.y, out);
  });
  return out;
}

Value GraphBuilder::all_gather(const std::string& name, Value x, int64_t width, int64_t part_width) {
  const Value out = add_value(name, info(x).rows, width, info(x).dtype);
  add_node<AllGatherParams>(name, "all_gather", [&](Node& node, AllGatherParams& p) {
    node.step(p.num_tokens, rows_of(x));
    p.width = width;
    p.part_width = part_width;
    p.dtype = info(x).dtype;
    check_contiguous(node, x);
    node.read(p.x, x);
    node.write(p.y, out);
    if (info(x).width <= part_width && info(x).width <= width) return;
    check(invalid_argument(node.name, ": a rank has ", info(x).width, " columns: it must have at most ", part_width, " of ",
                           width));
  });
  return out;
}

GraphBuilder::Routing GraphBuilder::moe_route(const std::string& name, Value logits, int64_t top_k, ExpertWeighting weighting,
                                              bool normalize) {
  const Value ids = add_value(name + ".experts", info(logits).rows, top_k, DType::int32);
  const Value weights = add_value(name + ".weights", info(logits).rows, top_k, DType::f32);
  add_node<MoeRouteParams>(name, "moe_route", [&](Node& node, MoeRouteParams& p) {
    node.step(p.num_tokens, rows_of(logits));
    p.num_experts = info(logits).width;
    p.top_k = top_k;
    p.dtype = info(logits).dtype;
    p.weighting = weighting;
    p.normalize = normalize;
    node.read(p.logits, logits);
    p.logits_stride = row_stride(logits);
    node.write(p.expert_ids, ids);
    node.write(p.expert_weights, weights);
    node.remark = weighting == ExpertWeighting::softmax_then_top_k   ? "softmax, then top k"
                  : weighting == ExpertWeighting::top_k_then_softmax ? "top k, then softmax"
                                                                     : "top k, then sigmoid";
  });
  return {ids, weights};
}

Value GraphBuilder::moe_linear(const std::string& name, Value x, Value expert_ids, int64_t num_experts, const Weight& weight,
                               const Weight& bias, Value scale) {
  const int64_t top_k = info(expert_ids).width, n = weight.rows / std::max<int64_t>(num_experts, 1);
  const Value out = add_value(name, info(x).rows, top_k * n, info(x).dtype);
  add_node<MoeGemmParams>(name, "moe_linear", [&](Node& node, MoeGemmParams& p) {
    node.step(p.num_tokens, rows_of(x));
    p.top_k = top_k;
    p.num_experts = num_experts;
    p.n = n;
    p.k = weight.cols;
    p.dtype = weight.dtype;
    p.x_per_choice = info(x).width != weight.cols;
    node.read(p.x, x);
    check_contiguous(node, x);
    node.weight(p.weight, weight);
    node.weight(p.bias, bias);
    p.packed = weight.packed;
    if (p.packed.num_segments > 0) p.weight = nullptr;
    for (int32_t s = 0; s < p.packed.num_segments; ++s) {
      PackedRows& segment = p.packed.segments[s];
      if (segment.rows % std::max<int64_t>(num_experts, 1) != 0) {
        check(invalid_argument(node.name, ": a segment of its packed weight has ", segment.rows,
                               " rows: they must be a multiple of the ", num_experts, " experts"));
      }
      segment.rows /= std::max<int64_t>(num_experts, 1);
    }
    node.read(p.expert_ids, expert_ids);
    if (scale) {
      node.read(p.row_scale, scale);
      check_choices(node, "scale", scale, top_k, DType::f32);
    }
    check_choices(node, "expert_ids", expert_ids, top_k, DType::int32);
    node.write(p.y, out);
    if (weight.rows != n * num_experts || weight.dtype != info(x).dtype ||
        info(x).width != (p.x_per_choice ? top_k : 1) * weight.cols) {
      check(invalid_argument(node.name, ": the weight is [", weight.rows, ", ", weight.cols, "] ", dtype_name(weight.dtype),
                             " for ", num_experts, " experts, ", top_k, " of them for a token: what it multiplies has ",
                             info(x).width, " columns of ", dtype_name(info(x).dtype)));
    }
    if (!bias || (bias.rows == num_experts && bias.cols == n && bias.dtype == weight.dtype)) return;
    check(invalid_argument(node.name, ": the bias is [", bias.rows, ", ", bias.cols, "] ", dtype_name(bias.dtype),
                           ": it must be [", num_experts, ", ", n, "] ", dtype_name(weight.dtype)));
  });
  return out;
}

Value GraphBuilder::moe_combine(const std::string& name, Value y, int64_t top_k, Value expert_weights, Value shared) {
  const int64_t width = info(y).width / std::max<int64_t>(top_k, 1);
  const Value out = add_value(name, info(y).rows, width, info(y).dtype);
  add_node<MoeCombineParams>(name, "moe_combine", [&](Node& node, MoeCombineParams& p) {
    node.step(p.num_tokens, rows_of(y));
    p.top_k = top_k;
    p.width = width;
    p.dtype = info(y).dtype;
    node.read(p.y, y);
    check_contiguous(node, y);
    if (expert_weights) {
      node.read(p.expert_weights, expert_weights);
      check_choices(node, "expert_weights", expert_weights, top_k, DType::f32);
    }
    if (shared) {
      node.read(p.shared, shared);
      check_contiguous(node, shared);
    }
    node.write(p.out, out);
    if (width * top_k != info(y).width) {
      check(invalid_argument(node.name, ": there are ", info(y).width, " columns: they must be a multiple of top_k, ", top_k));
    }
    if (!shared || (info(shared).width == width && info(shared).dtype == p.dtype)) return;
    check(invalid_argument(node.name, ": shared has ", info(shared).width, " columns of ", dtype_name(info(shared).dtype),
                           ": it must have ", width, " of ", dtype_name(p.dtype)));
  });
  return out;
}

Value GraphBuilder::scale_logits(const std::string& name, Value x, float scale, float soft_cap) {
  add_node<ScaleLogitsParams>(name, "scale_logits", [&](Node& node, ScaleLogitsParams& p) {
    node.step(p.num_rows, rows_of(x));
    p.width = info(x).width;
    node.update(p.x, x);
    node.update(p.out, x);
    check_contiguous(node, x);
    p.scale = scale;
    p.soft_cap = soft_cap;
    if (info(x).dtype == DType::f32) return;
    check(invalid_argument(node.name, ": the logits are ", dtype_name(info(x).dtype), ": they must be float32"));
  });
  return x;
}

Result<Graph> GraphBuilder::finish(Value output) && {
  PROLOGUE_RETURN_IF_ERROR(status_);
  graph_.output = output;
  return std::move(graph_);
}

}  // namespace prologue
