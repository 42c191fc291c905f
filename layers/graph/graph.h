// The layer graph is a model as named operations over named tensors. It is built once and run in every step.
//
// A value is a tensor [rows, width] whose number of rows is known only when a step runs: one row per token, or one per row
// that needs logits. A value may be a range of the columns of another value (a view: q, k and v are views of qkv). Weights are
// pointers that the graph does not own. The inputs of a step (positions, slots, lengths: StepInputs) are not values; an operation
// names the arrays that it reads.
//
// Build a graph with GraphBuilder (layers/attention.h is an example), rewrite it with fusion.h, run it with executor.h, print it
// with print.h.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <variant>
#include <vector>

#include <prologue/kernels/attention_prologue/attention_prologue.h>
#include <prologue/kernels/attention_prologue/stages/stages.h>
#include <prologue/kernels/base/dtype.h>
#include <prologue/kernels/base/status.h>
#include <prologue/kernels/base/views.h>
#include <prologue/kernels/collective/all_gather.h>
#include <prologue/kernels/collective/all_reduce.h>
#include <prologue/kernels/gemm/gemm.h>
#include <prologue/kernels/moe/moe_combine.h>
#include <prologue/kernels/moe/moe_gemm.h>
#include <prologue/kernels/moe/moe_route.h>
#include <prologue/kernels/paged_attention/paged_attention.h>
#include <prologue/kernels/projection/projection.h>
#include <prologue/kernels/qkv_prologue/qkv_prologue.h>
#include <prologue/kernels/rotary/rotary.h>
#include <prologue/kernels/token_ops/activation.h>
#include <prologue/kernels/token_ops/add.h>
#include <prologue/kernels/token_ops/embedding.h>
#include <prologue/kernels/token_ops/gate.h>
#include <prologue/kernels/token_ops/gather_cos_sin.h>
#include <prologue/kernels/token_ops/norm.h>
#include <prologue/kernels/token_ops/scale_logits.h>
#include <prologue/layers/rope/rope_table.h>
#include <prologue/layers/step.h>

namespace prologue {

enum class Rows : int32_t { tokens = 0, logits };

inline StepCount count_of(Rows rows) { return rows == Rows::tokens ? StepCount::num_tokens : StepCount::num_logit_rows; }

struct Value {
  int32_t id = -1;

  explicit operator bool() const { return id >= 0; }
};

inline bool operator==(Value a, Value b) { return a.id == b.id; }
inline bool operator!=(Value a, Value b) { return a.id != b.id; }

struct ValueInfo {
  std::string name;
  Rows rows = Rows::tokens;
  int64_t width = 0;
  DType dtype = DType::f32;
  Value base;               // of a view: the value that it is a part of
  int64_t base_column = 0;  // of a view: its first column there
};

// A weight is a constant of the model on the graph's device: [rows, cols], contiguous. A vector has rows = 1. The weight of a linear layer, of
// experts too, or of an embedding may be packed (weight_format.h): its rows are those of the segments, one after another, `data` is where the
// first is, and dtype is the type of the activations. An embedding has one segment. Of experts a segment has the rows of expert 0, then those of
// expert 1 and so on.
struct Weight {
  const void* data = nullptr;
  int64_t rows = 0;
  int64_t cols = 0;
  DType dtype = DType::f32;
  PackedWeight packed = {};

  explicit operator bool() const { return data != nullptr; }
};

// Says how the heads of Q and K are rotated; by default they are not. Rows of cos and sin come from a table, from a value that
// gather_cos_sin has made of the table once per step for all layers, or (no table) from what `rope` says.
struct GraphRope {
  const RopeTable* table = nullptr;  // gives style, rotary_dim and rows; it may grow until an executor is made
  Value cos_sin;                     // [tokens, rotary_dim], none: the table itself
  Rope rope;                         // with a table: only offset, inverse, axes and policy; without: the whole rope

  GraphRope() = default;
  GraphRope(const RopeTable* of) : table(of) {}  // NOLINT(google-explicit-constructor)

  explicit operator bool() const { return table != nullptr || rope.rotary_dim > 0; }
};

// Holds a norm of rows and its weights.
struct Norm {
  NormKind kind = NormKind::rms;
  Weight weight = {};  // [1, width] of the activations' type or float32; may be none, which means 1
  Weight bias = {};    // of the weight's type; may be none
  float eps = 1e-5f;
};

// Says what an activation does to each row, or to each of `groups` equal parts of a row.
struct ActivationOptions {
  Activation kind = Activation::silu;
  bool gated = true;                   // a part is gate, then up
  float limit = 7.0f, alpha = 1.702f;  // clamped_swiglu only
  int64_t groups = 1;
};

// Holds a norm of the heads of Q, K or V and its weights.
struct HeadsNorm {
  HeadNorm norm = {};  // without pointers, stride and weight_type: these follow from the weights
  Weight weight = {};  // [1, head_dim] for all heads, or [num_heads, head_dim]; may be none
  Weight bias = {};    // as the weight; layer norms only
};

// Says how paged_attention attends; the defaults of its options change nothing.
struct AttentionOptions {
  float scale = 0.0f;  // of the scores
  float soft_cap = 0.0f;
  int64_t window = 0, chunk = 0;
  Weight sinks = {};       // [1, num_q_heads] of the activations' type or float32; may be none
  int64_t v_head_dim = 0;  // of V and of the output's heads; 0: that of Q and K
};

// This lists the operations: the parameters of any one that a graph can hold.
using Parameters = std::variant<EmbeddingParams, NormParams, GemmParams, AddBiasParams, QkNormParams, GatherCosSinParams,
                                RotaryParams, HadamardParams, QueryScaleParams, KvWriteParams, AttentionPrologueParams,
                                PagedAttentionParams, ActivationParams, AddParams, GateParams, ScaleLogitsParams, MoeRouteParams,
                                MoeGemmParams, MoeCombineParams, QkvPrologueParams, ProjectionParams, AllReduceParams,
                                AllGatherParams>;

// Says what a member of a node's parameters will be when the graph runs.
struct Binding {
  enum class To : int32_t {
    read,          // a value: its first row
    write,         // the same, of a value that the operation makes
    update,        // the same, of a value that it reads and writes (the residual)
    array,         // an array of the step
    count,         // a count of the step
    table,         // the first row of a rope's table; it may grow until an executor is made
    table_rows,    // the rows of that table
    cache_read,    // the cache of a layer, a PagedKvView whose v.head_dim says what it must be
    cache_write,   // the same, where the operation writes it
    one_or_many,   // a bool: whether the step has one token, or `index` and more
    faults,        // the executor's record of faults
    token_faults,  // and its fault codes by token
  };
  To to = To::read;
  int64_t index = 0;                 // id of the value, StepArray, StepCount, layer of the cache, or tokens
  int64_t column = 0;                // of a value or table: the column that the member points to
  const RopeTable* table = nullptr;  // of table and table_rows
  int64_t member = 0;                // offset of the member in the parameters, in bytes
};

// A node is one operation: its own parameters, in which what is bound is null or 0. Members are bound by reference:
//   node.read(params.x, value)
// where `params` is what node.parameters holds. Everything else about a node (what it reads and writes, what is printed, what a step
// changes) follows from its bindings.
struct PROLOGUE_API Node {
  std::string name;       // "layers.3.attention.rope_q"
  const char* kind = "";  // "rope"
  Parameters parameters = {};
  std::vector<Binding> bindings = {};  // in the order in which they are printed
  std::vector<Weight> weights = {};    // those that the parameters point to, for printing
  int64_t position_axes = 0;           // position axes that the step must have
  std::string fused_from = {};         // of a fused node: the nodes that it replaces, "rope_q + rope_k + kv_write"
  const char* remark = "";             // shown in the printed graph

  template <class T>
  void read(T*& member, Value value, int64_t column = 0) {
    bind(&member, {Binding::To::read, value.id, column});
  }
  template <class T>
  void write(T*& member, Value value) {
    bind(&member, {Binding::To::write, value.id});
  }
  template <class T>
  void update(T*& member, Value value) {
    bind(&member, {Binding::To::update, value.id});
  }
  template <class T>
  void table(T*& member, const RopeTable& of, int64_t column = 0) {
    bind(&member, {Binding::To::table, 0, column, &of});
  }
  void table_rows(int64_t& member, const RopeTable& of) { bind(&member, {Binding::To::table_rows, 0, 0, &of}); }
  void step(const int32_t*& member, StepArray array) { bind(&member, {Binding::To::array, static_cast<int32_t>(array)}); }
  void step(IndexView& member, StepArray array);
  void step(int64_t& member, StepCount count) { bind(&member, {Binding::To::count, static_cast<int32_t>(count)}); }
  // The member is true in steps of one token, and of `many` and more, and false in others.
  void one_or_many(bool& member, int64_t many) { bind(&member, {Binding::To::one_or_many, many}); }
  void one_token(bool& member) { one_or_many(member, std::numeric_limits<int64_t>::max()); }
  void positions(IndexView& member, int64_t& axis_stride, int64_t num_axes);
  void cache(PagedKvView& member, int64_t layer, bool writes);
  void faults(FaultRecord*& member) { bind(&member, {Binding::To::faults}); }
  // Binds the faults of an operation whose tokens are those of the step.
  void faults(FaultRecord*& member, uint8_t*& token_faults) {
    faults(member);
    bind(&token_faults, {Binding::To::token_faults});
  }
  // Sets the member: weights are where they are. None: null.
  void weight(const void*& member, const Weight& of);
  // `to.member` is set here.
  void bind(const void* member, const Binding& to);
  // Copies a member of another node's parameters, and what its own members are bound to.
  template <class T>
  void copy(T& member, const Node& from, const T& of) {
    member = of;
    for (const Binding& each : from.bindings_within(&of, sizeof of)) bind(reinterpret_cast<char*>(&member) + each.member, each);
  }

  // Returns what a member is bound to, or null.
  const Binding* binding_of(const void* member) const;
  // Returns the bindings of the members of a member; their offsets are from its beginning.
  std::vector<Binding> bindings_within(const void* member, size_t size) const;
  const Binding* cache_binding() const;
  // Returns each value once, the main input first.
  std::vector<Value> reads() const;
  std::vector<Value> writes() const;
};

// Returns the address of the struct that it holds.
PROLOGUE_API void* address_of(Parameters& parameters);

struct Graph {
  std::vector<ValueInfo> values;
  std::vector<Node> nodes;
  Value output;

  const ValueInfo& info(Value value) const { return values[static_cast<size_t>(value.id)]; }
  // Returns the value that owns the memory: the value itself, or the base of a view (there are no views of views).
  Value storage_of(Value value) const { return info(value).base ? info(value).base : value; }
  // Returns the elements from one row of the value to the next.
  int64_t row_stride(Value value) const { return info(storage_of(value)).width; }
};

// Whether the node's launch, in a step of so many tokens, may begin while the node before it runs (a programmatic edge, on GPUs from Hopper
// on): what fuse_projections() lets, projections and the selection of rows, and attention after any node but attention and projections. That
// node writes no more of what attention reads than PagedAttentionParams::past_is_ready allows. A fused qkv_prologue lets attention begin at
// once, so projections before it may still run: no node of a graph but a prologue writes what attention reads before it waits.
PROLOGUE_API bool begins_early(const Graph& graph, size_t node, int64_t num_tokens);

// Builds a graph. Names are scoped: with Scope layer(g, "layers.3") the next value or node is "layers.3.NAME".
// If memory runs out, a required value is missing, or a weight has not the shape and type of what it is applied to, the builder keeps
// that error and ignores all later calls; finish() returns it.
class PROLOGUE_API GraphBuilder {
 public:
  explicit GraphBuilder(DType activations) : activations_(activations) {}

  Value embedding(const std::string& name, const Weight& table, float scale);
  Value select_logit_rows(const std::string& name, Value x);
  Value norm(const std::string& name, Value x, const Norm& norm);
  // Adds x to residual first, then normalises the sum.
  Value add_norm(const std::string& name, Value x, Value residual, const Norm& norm);
  // out_dtype: unset means the activations' type.
  Value linear(const std::string& name, Value x, const Weight& weight, const Weight& bias = {}, DType out_dtype = DType::unset);
  Value add_bias(const std::string& name, Value x, const Weight& bias);
  struct Qkv {
    Value q, k, v;
  };
  // num_kv_heads = 0: qkv has the columns of q alone. v_from_k: qkv has no columns for V; V is computed from K's columns. v_head_dim: of V;
  // 0 = head_dim, and always with v_from_k. The last `more` columns are none of the three: those of a gate.
  Qkv split_heads(Value qkv, int64_t num_q_heads, int64_t num_kv_heads, int64_t head_dim, bool v_from_k = false,
                  int64_t v_head_dim = 0, int64_t more = 0);
  // Returns the columns [first, first + count) of x.
  Value columns(const std::string& name, Value x, int64_t first, int64_t count);
  Value heads_norm(const std::string& name, Value x, int64_t num_heads, const HeadsNorm& norm);
  // Returns the same rope with its table rows gathered once per step, for all layers that are built with the result.
  GraphRope gather_cos_sin(const std::string& name, const GraphRope& rope);
  Value rope(const std::string& name, Value x, int64_t num_heads, const GraphRope& rope);
  Value hadamard(const std::string& name, Value x, int64_t num_heads, int64_t block);
  Value query_scale(const std::string& name, Value x, int64_t num_heads, const QueryScale& scale);
  void kv_write(const std::string& name, Value k, Value v, int64_t num_kv_heads, int64_t layer, const GraphRope& rope);
  // Returns [tokens, num_q_heads * v_head_dim].
  Value paged_attention(const std::string& name, Value q, int64_t num_q_heads, const AttentionOptions& options, int64_t layer);
  Value activation(const std::string& name, Value x, const ActivationOptions& options);
  // Returns x * sigmoid(gate). Both have the same width.
  Value gate(const std::string& name, Value x, Value gate);
  Value add(const std::string& name, Value a, Value b);
  // Holds the experts of each token. A value of experts has a token's top_k results side by side: [tokens, top_k * width].
  struct Routing {
    Value ids, weights;  // [tokens, top_k] int32 and float32
  };
  Routing moe_route(const std::string& name, Value logits, int64_t top_k, ExpertWeighting weighting, bool normalize = false);
  // weight: [num_experts * n, k], the rows of expert 0, then those of expert 1 and so on. bias: [num_experts, n], may be none. x: [tokens, k]
  // for all experts of a token, or [tokens, top_k * k]. scale: [tokens, top_k] float32, a factor of what is multiplied; may be none.
  Value moe_linear(const std::string& name, Value x, Value expert_ids, int64_t num_experts, const Weight& weight,
                   const Weight& bias = {}, Value scale = {});
  // y: [tokens, top_k * width]. expert_weights none: 1. shared: [tokens, width], is added; may be none.
  Value moe_combine(const std::string& name, Value y, int64_t top_k, Value expert_weights, Value shared = {});
  // Returns the sum of the ranks' x: what they multiplied by their parts of a weight's columns.
  Value all_reduce(const std::string& name, Value x);
  // Returns the ranks' columns side by side, `width` in all: rank r has part_width, the last one what is left.
  Value all_gather(const std::string& name, Value x, int64_t width, int64_t part_width);
  // Works in place: returns x, which holds the new logits from then on.
  Value scale_logits(const std::string& name, Value x, float scale, float soft_cap);

  Result<Graph> finish(Value output) &&;

  class Scope {
   public:
    Scope(GraphBuilder& builder, const std::string& name);
    ~Scope() { builder_.prefix_.resize(length_); }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    GraphBuilder& builder_;
    size_t length_;
  };

 private:
  template <class Work>
  void attempt(const Work& work);
  template <class P, class Fill>
  void add_node(const std::string& name, const char* kind, const Fill& fill);
  Value add_value(const std::string& name, Rows rows, int64_t width, DType dtype);
  Value add_value_like(const std::string& name, Value x);
  Value add_view(const std::string& name, Value base, int64_t column, int64_t width);
  void check(const Status& status);
  void read_heads(Node& node, HeadsView& view, Value x, int64_t num_heads);
  void write_heads(Node& node, MutableHeadsView& view, Value y, int64_t num_heads);
  void check_dense(const Node& node, const Weight& weight);
  void check_vector(const Node& node, const char* what, const Weight& weight, Value x);
  void check_contiguous(const Node& node, Value x);
  void check_choices(const Node& node, const char* what, Value value, int64_t top_k, DType dtype);
  void set_rope(Node& node, Rope& member, const GraphRope& rope);
  void check_rope(const Node& node, const GraphRope& rope);
  void set_sinks(Node& node, PagedAttentionParams& params, const Weight& sinks);
  const ValueInfo& info(Value value);
  StepCount rows_of(Value value);
  int64_t row_stride(Value value);
  int64_t head_dim(const Node& node, Value value, int64_t num_heads);

  Status status_;
  DType activations_;
  std::string prefix_;
  Graph graph_;
};

}  // namespace prologue
