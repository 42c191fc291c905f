#include "tests/support/prologue_features.h"

#include <initializer_list>
#include <string>
#include <utility>

namespace prologue::test {

namespace {

class FeatureList {
 public:
  void row(const char* name, const char* text) { list_.push_back({name, text, {}}); }
  template <class F>
  void add(const F& change) {
    PrologueCase c;
    c.num_tokens = 9, c.page_size = 4, c.max_position = 60, c.seed = ++seed_;
    change(c);
    list_.back().cases.push_back(c);
  }
  std::vector<PrologueFeature> take() { return std::move(list_); }

 private:
  std::vector<PrologueFeature> list_;
  uint64_t seed_ = 0;
};

void add_inputs(FeatureList& f) {
  f.row("Layouts", "Q, K, V packed or apart, any strides, heads before tokens");
  for (const bool packed : {false, true}) f.add([&](PrologueCase& c) { c.packed = packed, c.row_padding = 5, c.misalign = 2; });
  for (const bool packed : {false, true}) f.add([&](PrologueCase& c) { c.packed = packed, c.row_padding = 16; });
  f.add([](PrologueCase& c) { c.packed = false, c.heads_first = true, c.head_padding = 3; });
  f.row("Outputs", "Q in place or elsewhere; K and V handed out as well");
  f.add([](PrologueCase& c) { c.in_place = true; });
  f.add([](PrologueCase& c) { c.k_out = c.v_out = true; });
  f.add([](PrologueCase& c) { c.k_out = c.v_out = c.kv_in_place = c.in_place = true; });
  f.row("Parts", "MHA, GQA, MQA; Q, K or V alone; V taken from K");
  for (const int64_t heads : {1, 2, 8}) f.add([&](PrologueCase& c) { c.num_kv_heads = heads; });
  f.add([](PrologueCase& c) { c.num_kv_heads = 0; });
  f.add([](PrologueCase& c) { c.num_q_heads = 0, c.with_v = false; });
  f.add([](PrologueCase& c) { c.num_q_heads = 0, c.with_k = false; });
  f.add([](PrologueCase& c) { c.v_is_k = true; });
  f.row("HeadDims", "head_dim: every even number in 2..576; V may have its own");
  for (const int64_t d : {2, 46, 80, 96, 192, 256, 576}) f.add([&](PrologueCase& c) { c.head_dim = c.rotary_dim = d; });
  f.add([](PrologueCase& c) { c.head_dim = c.rotary_dim = 192, c.v_head_dim = 128; });
  f.row("Bias", "Bias of Q, K and V, each optional");
  f.add([](PrologueCase& c) { c.bias_q = c.bias_k = c.bias_v = true; });
  f.add([](PrologueCase& c) { c.bias_k = true; });
}

void add_norms(FeatureList& f) {
  const auto both = [&](const auto& change) {
    for (const NormPlacement placement : {NormPlacement::before_rope, NormPlacement::after_rope})
      f.add([&](PrologueCase& c) { c.norm = placement, change(c); });
  };
  f.row("RmsNorm", "RMS norm of Q and K over the head, before or after the rotation; weight none, w, 1 + w; one or one per head");
  both([](PrologueCase& c) { c.weights = Weights::none; });
  both([](PrologueCase& c) { c.weights = Weights::shared, c.weight_offset = 1.0f; });
  both([](PrologueCase& c) { c.weights = Weights::per_head, c.eps = 0.3f; });
  f.row("TokenNorm", "RMS norm over all heads of the token (OLMo 2)");
  both([](PrologueCase& c) { c.norm_scope = NormScope::token, c.weights = Weights::per_head; });
  f.row("LayerNorm", "LayerNorm over the head, with weight and bias (Cohere, StableLM 2)");
  both([](PrologueCase& c) { c.norm_kind = NormKind::layer, c.norm_bias = true, c.weights = Weights::per_head; });
  f.row("VNorm", "RMS norm of V without weight (Gemma 4)");
  f.add([](PrologueCase& c) { c.v_norm = true; });
}

void add_rotations(FeatureList& f) {
  const auto both = [&](const auto& change) {
    for (const RopeStyle style : {RopeStyle::neox, RopeStyle::interleaved})
      f.add([&](PrologueCase& c) { c.style = style, change(c); });
  };
  f.row("Rotation", "neox or interleaved pairs; rotary_dim: every even number in 0..head_dim");
  for (const int64_t r : {0, 2, 48, 72, 96, 128}) both([&](PrologueCase& c) { c.head_dim = 128, c.rotary_dim = r; });
  f.row("TailAndInverse", "The turned channels anywhere in the head; turning back");
  both([](PrologueCase& c) { c.rotary_dim = 32, c.rotary_offset = 32; });
  both([](PrologueCase& c) { c.inverse = true; });
  f.row("CosSinSources",
        "cos and sin from a table, from rows gathered per token, or computed exactly from inv_freq up to position 2^20");
  for (const CosSinSource source : {CosSinSource::table, CosSinSource::per_token, CosSinSource::inv_freq}) {
    both([&](PrologueCase& c) { c.source = source; });
  }
  both([](PrologueCase& c) { c.source = CosSinSource::inv_freq, c.max_position = 1 << 20, c.attention_factor = 1.3f; });
  f.row("Streams", "MRoPE and 2-D: up to four position streams, in sections or interleaved");
  for (const int64_t axes : {2, 3, 4}) {
    both([&](PrologueCase& c) { c.num_axes = axes, c.interleaved_axes = axes == 3; });
  }
  f.row("PastTable", "Positions past the table: zero rows, recorded or not, or rows that are not rotated");
  for (const PastTable past_table : {PastTable::record, PastTable::zero, PastTable::identity}) {
    both([&](PrologueCase& c) { c.past_table = past_table, c.num_tokens = 20, c.max_position = 8; });
  }
  f.row("QueryScale", "Q scaled by a constant, and by position (Llama 4, logn)");
  f.add([](PrologueCase& c) { c.q_scale.constant = 0.125f; });
  f.add([](PrologueCase& c) { c.q_scale = {0.5f, PositionScale::llama4, 0.1f, 8.0f}; });
  f.add([](PrologueCase& c) { c.q_scale = {1.0f, PositionScale::logn, 0.0f, 8.0f}; });
}

void add_places(FeatureList& f) {
  f.row("GivenPlaces", "Positions and slots given, int32 or int64");
  for (const bool wide : {false, true}) f.add([&](PrologueCase& c) { c.int64_positions = wide, c.int64_slots = !wide; });
  f.row("DerivedPlaces", "or derived from cu_seqlens_q, cache_lens and block_table, with offsets");
  for (const Offsets offsets : {Offsets::none, Offsets::one, Offsets::per_sequence}) {
    f.add([&](PrologueCase& c) { c.derive_positions = c.derive_slots = true, c.offsets = offsets; });
  }
  f.add([](PrologueCase& c) { c.derive_slots = true; });
  f.add([](PrologueCase& c) { c.derive_positions = true, c.num_axes = 3; });
  f.row("Ring", "Ring of pages (sliding window)");
  for (const int64_t ring : {3, 8})
    f.add([&](PrologueCase& c) { c.derive_positions = c.derive_slots = true, c.ring_size = ring; });
  f.row("Pages", "Pages of any size; NHD, HND, K beside V, any strides");
  for (const int64_t page : {1, 16, 1024}) f.add([&](PrologueCase& c) { c.page_size = page; });
  for (const CacheLayout layout : {CacheLayout::hnd, CacheLayout::interleaved, CacheLayout::odd}) {
    f.add([&](PrologueCase& c) { c.layout = layout; });
  }
  f.row("Guards", "Padding left alone; bad positions, slots and pages recorded, never followed");
  for (const bool derived : {false, true}) {
    for (int i = 0; i < 4; ++i) {
      f.add([&](PrologueCase& c) { c.derive_positions = c.derive_slots = derived, c.token_faults = true, c.num_tokens = 20; });
    }
  }
}

void add_stores(FeatureList& f) {
  const auto stores = [&](KvType type, std::initializer_list<KvScaling> scalings) {
    for (const KvScaling scaling : scalings) {
      f.add([&](PrologueCase& c) { c.kv_type = type, c.scaling = scaling; });
      f.add(
          [&](PrologueCase& c) { c.kv_type = type, c.scaling = scaling, c.norm = NormPlacement::before_rope, c.bias_v = true; });
    }
  };
  constexpr KvScaling kNone = KvScaling::none, kTensor = KvScaling::tensor, kHead = KvScaling::head,
                      kComputed = KvScaling::token_head;
  f.row("FloatCaches", "Cache in float32, float16, bfloat16, whatever the inputs are");
  for (const KvType type : {KvType::f32, KvType::f16, KvType::bf16}) stores(type, {kNone});
  f.row("Fp8Caches", "Cache in fp8 e4m3, e5m2; scale none, per tensor, per head, or computed per token and head");
  for (const KvType type : {KvType::fp8_e4m3, KvType::fp8_e5m2}) stores(type, {kNone, kTensor, kHead, kComputed});
  f.row("IntCaches", "Cache in int8, int4; scale per tensor, per head, or computed per token and head");
  for (const KvType type : {KvType::int8, KvType::int4}) stores(type, {kTensor, kHead, kComputed});
  f.row("Fp8Queries", "Q as fp8, scale given or computed per token and head");
  for (const KvScaling scaling : {kTensor, kComputed}) f.add([&](PrologueCase& c) { c.q8 = scaling; });
  f.row("PerStepRounding", "Rounding once, or after each step as unfused nodes do");
  for (const bool per_step : {false, true}) {
    f.add([&](PrologueCase& c) {
      c.per_step = per_step, c.norm = NormPlacement::after_rope, c.bias_q = c.bias_k = c.bias_v = c.v_norm = true;
    });
  }
}

std::vector<PrologueFeature> make_features() {
  FeatureList f;
  add_inputs(f);
  add_norms(f);
  add_rotations(f);
  add_places(f);
  add_stores(f);
  return f.take();
}

// Whether the CUDA backend has an instance compiled for a struct. It decides without a GPU.
bool runs_lean(const AttentionPrologueParams& params) {
  if (!built_with_cuda()) return false;
  Execution execution;
  execution.device = Device::cuda;
  const Result<AttentionProloguePlan> plan = AttentionProloguePlan::create(params, params.num_tokens, execution);
  return plan.ok() && std::string(plan->kernel()) == "lean";
}

void append(std::string& list, const char* item) { list += (list.empty() ? "" : ", ") + std::string(item); }

std::string table_row(const PrologueFeature& feature) {
  std::string accepted, lean;  // all cases are, and at least one is
  for (const auto& [dtype, name] : {std::pair{DType::f32, "f32"}, {DType::f16, "f16"}, {DType::bf16, "bf16"}}) {
    bool all_accepted = true, some_lean = false;
    for (const PrologueCase& listed : feature.cases) {
      with_host_type(dtype, [&](auto type) {
        using T = decltype(type);
        const PrologueCase c = fit_to_type<T>(listed);
        PlacedPrologue<T> placed(Backend::cpu, c, make_data<T>(c));
        all_accepted = all_accepted && validate(placed.params()).ok();
        some_lean = some_lean || runs_lean(placed.params());
      });
    }
    if (all_accepted) append(accepted, name);
    if (some_lean) append(lean, name);
  }
  return str_cat("| ", feature.text, " | ", accepted, " | ", lean.empty() ? "general" : lean, " | ", feature.name, " |");
}

}  // namespace

const std::vector<PrologueFeature>& prologue_features() {
  static const std::vector<PrologueFeature> features = make_features();
  return features;
}

std::string prologue_feature_table() {
  std::string table = "| feature | CPU and CUDA | lean on CUDA | test |\n| --- | --- | --- | --- |\n";
  for (const PrologueFeature& feature : prologue_features()) table += table_row(feature) + "\n";
  return table;
}

}  // namespace prologue::test
