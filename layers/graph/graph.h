// The layer graph: a model as named operations over named tensors. It is built once and run in every step.
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
#include <string>
#include <variant>
#include <vector>

#include <prologue/kernels/attention_prologue/attention_prologue.h>
#include <prologue/kernels/base/dtype.h>
#include <prologue/kernels/base/status.h>
#include <prologue/kernels/base/views.h>
#include <prologue/kernels/token_ops/gated_activation.h>
#include <prologue/layers/rope/rope_table.h>

namespace prologue {

enum class Rows : int32_t { tokens = 0, logits };

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

// A constant of the model on the graph's device: [rows, cols], contiguous. A vector has rows = 1.
struct Weight {
  const void* data = nullptr;
  int64_t rows = 0;
  int64_t cols = 0;
  DType dtype = DType::f32;

  explicit operator bool() const { return data != nullptr; }
};

// How the heads of Q and K are rotated; by default they are not. Cos and sin come from a table, from a value that gather_cos_sin
// has made of the table once per step for all layers, or (no table) from rotation.inv_freq.
struct Rope {
  const RopeTable* table = nullptr;  // gives style, rotary_dim, rows and max_position when a step runs, so it may grow before that
  Value cos_sin;                     // [tokens, rotary_dim], none: the table itself
  Rotation rotation;                 // with a table: only offset, inverse and axes; without: the whole inv_freq rotation

  Rope() = default;
  Rope(const RopeTable* of) : table(of) {}  // NOLINT(google-explicit-constructor)

  explicit operator bool() const { return table != nullptr || rotation.rotary_dim > 0; }
};

// A norm of the heads of Q, K or V; formulas: QkNorm in kernels/attention_prologue/attention_prologue.h.
struct HeadsNorm {
  NormKind kind = NormKind::rms;
  NormScope scope = NormScope::head;
  float eps = 1e-6f;
  float weight_offset = 0.0f;
  Weight weight = {};  // [1, head_dim] for all heads, or [num_heads, head_dim]; may be none
  Weight bias = {};    // as the weight; layer norms only
};

// The operations. Each names the values that it reads and writes; `step` lists the step's arrays that it needs. A value that is both
// read and written (the residual) is updated in place.
struct EmbeddingOp {  // out = table[token_ids] * scale
  Weight table;
  float scale;
  Value out;
};
struct SelectRowsOp {  // out = x[logit_rows]
  Value x;
  Value out;
};
struct RmsNormOp {  // (residual += x); out = rms_norm(residual or x) * weight
  Value x;
  Value residual;  // may be none
  Weight weight;
  float eps;
  Value out;
};
struct LinearOp {  // out = x weight^T
  Value x;
  Weight weight;
  Value out;
};
struct AddBiasOp {  // out = x + bias
  Value x;
  Weight bias;
  Value out;
};
struct HeadsNormOp {  // out = norm(x), head by head or over all heads of a token
  Value x;
  int64_t num_heads;
  HeadsNorm norm;
  Value out;
};
struct GatherCosSinOp {  // out = the rope's table rows at the tokens' positions
  Rope rope;
  Value out;
};
struct RopeOp {  // out = rotate(x, positions), head by head
  Value x;
  int64_t num_heads;
  Rope rope;
  Value out;
};
struct QueryScaleOp {  // out = x * scale(position)
  Value x;
  int64_t num_heads;
  QueryScale scale;
  Value out;
};
struct KvWriteOp {  // k, v -> pages of the layer's cache
  Value k;
  Value v;  // may be k
  int64_t num_kv_heads;
  int64_t layer;
  Rope rope;  // tokens whose position is out of its range are not written
};
// One launch: qkv -> + bias -> norm, rope (in either order) -> Q scale -> q and the pages of the layer's cache.
struct AttentionPrologueOp {
  Value qkv;
  int64_t num_q_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  bool v_from_k = false;          // V is computed from K's columns
  Weight q_bias, k_bias, v_bias;  // each may be none
  NormPlacement norm_placement = NormPlacement::none;
  HeadsNorm q_norm, k_norm;  // only weight and bias may differ between the two
  VNorm v_norm;
  Rope rope;
  QueryScale q_scale;
  Rounding rounding = Rounding::once;
  int64_t layer = 0;
  Value q;  // none: q is read from qkv unchanged
};
struct PagedAttentionOp {  // out = attention of q over the pages of the layer's cache
  Value q;
  int64_t num_q_heads;
  float scale;
  int64_t layer;
  Value out;
};
struct GatedActivationOp {  // out = activation(gate) * up
  Value gate_up;
  Activation activation;
  Value out;
};

using Operation = std::variant<EmbeddingOp, SelectRowsOp, RmsNormOp, LinearOp, AddBiasOp, HeadsNormOp, GatherCosSinOp, RopeOp,
                               QueryScaleOp, KvWriteOp, AttentionPrologueOp, PagedAttentionOp, GatedActivationOp>;

struct Node {
  std::string name;  // "layers.3.attention.rope_q"
  Operation operation;
  std::string fused_from = {};  // of a fused node: the nodes that it replaces, "rope_q + rope_k + kv_write"
};

// The name, inputs and outputs of a node, for planning, fusion and printing.
struct NodeFacts {
  const char* kind = "";
  const char* remark = "";        // shown in the printed graph
  std::vector<Value> reads = {};  // the main input first
  std::vector<Value> writes = {};
  std::vector<const char*> step_inputs = {};
  std::vector<Weight> weights = {};
  int64_t cache_layer = -1;   // of an operation that uses a layer's KV cache
  int64_t position_axes = 0;  // position axes that the step must have
};
PROLOGUE_API NodeFacts facts_of(const Operation& operation);

struct Graph {
  std::vector<ValueInfo> values;
  std::vector<Node> nodes;
  Value output;

  const ValueInfo& info(Value value) const { return values[static_cast<size_t>(value.id)]; }
  // The value that owns the memory: the value itself, or the base of a view (there are no views of views).
  Value storage_of(Value value) const { return info(value).base ? info(value).base : value; }
};

// Checks that the weights of the attention nodes have the shapes and types of the values that they are applied to (kernels get only
// pointers), and that no rope has frequencies without a rotary_dim.
PROLOGUE_API Status check_weights(const Graph& graph);

// Builds a graph. Names are scoped: with Scope layer(g, "layers.3") the next value or node is "layers.3.NAME".
// If memory runs out, or a required value is missing, the builder keeps that error and ignores all later calls; finish() returns it.
class PROLOGUE_API GraphBuilder {
 public:
  explicit GraphBuilder(DType activations) : activations_(activations) {}

  Value embedding(const std::string& name, const Weight& table, float scale);
  Value select_logit_rows(const std::string& name, Value x);
  Value rms_norm(const std::string& name, Value x, const Weight& weight, float eps);
  // Adds x to residual first, then normalises the sum.
  Value add_rms_norm(const std::string& name, Value x, Value residual, const Weight& weight, float eps);
  Value linear(const std::string& name, Value x, const Weight& weight);
  Value linear(const std::string& name, Value x, const Weight& weight, DType out_dtype);
  Value add_bias(const std::string& name, Value x, const Weight& bias);
  struct Qkv {
    Value q, k, v;
  };
  // v_from_k: qkv has no columns for V; V is computed from K's columns.
  Qkv split_heads(Value qkv, int64_t num_q_heads, int64_t num_kv_heads, int64_t head_dim, bool v_from_k = false);
  Value heads_norm(const std::string& name, Value x, int64_t num_heads, const HeadsNorm& norm);
  // The same rope with its table rows gathered once per step, for all layers that are built with the result.
  Rope gather_cos_sin(const std::string& name, const Rope& rope);
  Value rope(const std::string& name, Value x, int64_t num_heads, const Rope& rope);
  Value query_scale(const std::string& name, Value x, int64_t num_heads, const QueryScale& scale);
  void kv_write(const std::string& name, Value k, Value v, int64_t num_kv_heads, int64_t layer, const Rope& rope);
  Value paged_attention(const std::string& name, Value q, int64_t num_q_heads, float scale, int64_t layer);
  Value gated_activation(const std::string& name, Value gate_up, Activation activation);

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
  Value add_value(const std::string& name, Rows rows, int64_t width, DType dtype);
  Value add_value_like(const std::string& name, Value x);
  Value add_view(const std::string& name, Value base, int64_t column, int64_t width);
  void add_node(const std::string& name, const Operation& operation);
  const ValueInfo& info(Value value);

  Status status_;
  DType activations_;
  std::string prefix_;
  Graph graph_;
};

}  // namespace prologue
