#include "tests/support/prologue_features.h"
#include "tests/support/placed_prologue.h"
#include "tests/support/source_path.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <initializer_list>
#include <map>
#include <sstream>
#include <string>
#include <utility>

#ifdef PROLOGUE_HAS_CUDA
#include <prologue/kernels/attention_prologue/instances.h>
#endif

namespace prologue::test {

namespace {

constexpr char kMeasured[] = "benchmarks/results/2026-11-29-h200-overlapped-plans.json";

class FeatureList {
 public:
  void row(const char* name, const char* measured, const char* text) { list_.push_back({name, measured, text, {}}); }
  template <class F>
  void add(std::string label, const F& change) {
    PrologueCase c;
    c.num_tokens = 9, c.page_size = 4, c.max_position = 60, c.seed = ++seed_;
    change(c);
    list_.back().cases.push_back({std::move(label), c});
  }
  std::vector<PrologueFeature> take() { return std::move(list_); }

 private:
  std::vector<PrologueFeature> list_;
  uint64_t seed_ = 0;
};

void add_inputs(FeatureList& f) {
  f.row("Layouts", "base", "Q, K, V packed or separate, any strides, heads before tokens");
  const auto packing = [](bool packed) { return packed ? "packed" : "separate"; };
  for (const bool packed : {false, true}) {
    f.add(str_cat(packing(packed), " at odd addresses"),
          [&](PrologueCase& c) { c.packed = packed, c.row_padding = 5, c.misalign = 2; });
  }
  for (const bool packed : {false, true}) {
    f.add(str_cat(packing(packed), " with aligned rows"), [&](PrologueCase& c) { c.packed = packed, c.row_padding = 16; });
  }
  f.add("heads before tokens with odd strides",
        [](PrologueCase& c) { c.packed = false, c.heads_first = true, c.head_padding = 3; });
  f.row("Outputs", "k_out and v_out", "Q in place or not; K and V also written to k_out and v_out");
  f.add("Q in place", [](PrologueCase& c) { c.in_place = true; });
  f.add("K and V also returned", [](PrologueCase& c) { c.k_out = c.v_out = true; });
  f.add("K and V also returned in place", [](PrologueCase& c) { c.k_out = c.v_out = c.kv_in_place = c.in_place = true; });
  f.row("Parts", "MHA 32/32/128", "MHA, GQA, MQA; only Q, K or V; V taken from K");
  for (const int64_t heads : {1, 2, 8}) f.add(str_cat(heads, " KV heads"), [&](PrologueCase& c) { c.num_kv_heads = heads; });
  f.add("Q alone", [](PrologueCase& c) { c.num_kv_heads = 0; });
  f.add("K alone", [](PrologueCase& c) { c.num_q_heads = 0, c.with_v = false; });
  f.add("V alone", [](PrologueCase& c) { c.num_q_heads = 0, c.with_k = false; });
  f.add("V taken from K", [](PrologueCase& c) { c.v_is_k = true; });
  f.row("VFromK", "norm of q, k and v, V from K",
        "V taken from K, of packed q and k too, each with steps of its own (Gemma 4: a norm of V)");
  for (const bool packed : {false, true}) {
    const auto taken = [&](const char* label, const auto& change) {
      f.add(str_cat(label, packed ? " (q and k packed)" : " (separate)"),
            [&](PrologueCase& c) { c.v_is_k = true, c.packed = packed, c.head_dim = c.rotary_dim = 256, change(c); });
    };
    taken("V as K was given", [](PrologueCase&) {});
    taken("norms", [](PrologueCase& c) { c.norm = NormPlacement::before_rope, c.v_norm = true, c.num_kv_heads = 1; });
    taken("norms and copies", [](PrologueCase& c) {
      c.norm = NormPlacement::before_rope, c.v_norm = c.k_out = c.v_out = true, c.bias_k = c.bias_v = true;
    });
  }
  f.row("WithoutCache", "no cache, k_out and v_out",
        "Layers that write no cache: K and V to k_out and v_out alone; layers that read another's: Q alone");
  f.add("K and V to k_out and v_out", [](PrologueCase& c) { c.cached = false, c.k_out = c.v_out = true; });
  f.add("K and V to k_out and v_out after norms", [](PrologueCase& c) {
    c.cached = false, c.k_out = c.v_out = c.v_norm = c.v_is_k = true, c.norm = NormPlacement::before_rope;
  });
  f.add("K alone to k_out", [](PrologueCase& c) { c.cached = c.with_v = false, c.k_out = true, c.num_q_heads = 0; });
  f.add("Q alone with a norm", [](PrologueCase& c) { c.num_kv_heads = 0, c.norm = NormPlacement::before_rope; });
  f.add("Q alone at derived positions", [](PrologueCase& c) { c.num_kv_heads = 0, c.derive_positions = true; });
  f.row("HeadDims", "head_dim 256", "head_dim: every even number in 2..1024; V may have its own");
  for (const int64_t d : {2, 46, 80, 96, 192, 256, 576, 1024})
    f.add(str_cat("head_dim ", d), [&](PrologueCase& c) { c.head_dim = c.rotary_dim = d; });
  f.add("V with its own head_dim", [](PrologueCase& c) { c.head_dim = c.rotary_dim = 192, c.v_head_dim = 128; });
  f.row("Bias", "bias", "Bias of Q, K and V, each optional");
  f.add("bias of all three", [](PrologueCase& c) { c.bias_q = c.bias_k = c.bias_v = true; });
  f.add("bias of K alone", [](PrologueCase& c) { c.bias_k = true; });
}

void add_norms(FeatureList& f) {
  const auto both = [&](const char* label, const auto& change) {
    for (const NormPlacement placement : {NormPlacement::before_rope, NormPlacement::after_rope}) {
      const char* where = placement == NormPlacement::before_rope ? "before the rotation" : "after it";
      f.add(str_cat(label, " ", where), [&](PrologueCase& c) { c.norm = placement, change(c); });
    }
  };
  f.row("RmsNorm", "norm",
        "RMS norm of Q and K over the head, before or after the rotation; weight none, w, 1 + w; one or one per head");
  both("no weight", [](PrologueCase& c) { c.weights = Weights::none; });
  both("1 + w", [](PrologueCase& c) { c.weights = Weights::shared, c.weight_offset = 1.0f; });
  both("a weight per head", [](PrologueCase& c) { c.weights = Weights::per_head, c.eps = 0.3f; });
  f.row("NormsOfTheirOwn", "norm of q alone",
        "A norm of Q or of K alone, or norms that differ in placement, kind, scope, eps or offset");
  f.add("Q alone", [](PrologueCase& c) { c.norm = NormPlacement::before_rope, c.k_norm.emplace(); });
  both("K alone", [](PrologueCase& c) { c.k_norm = c.norm_of_q(), c.norm = NormPlacement::none; });
  both("another kind", [](PrologueCase& c) { c.k_norm = c.norm_of_q(), c.k_norm->kind = NormKind::layer; });
  both("another scope", [](PrologueCase& c) { c.k_norm = c.norm_of_q(), c.k_norm->scope = NormScope::token; });
  both("another eps and offset",
       [](PrologueCase& c) { c.k_norm = c.norm_of_q(), c.k_norm->eps = 0.4f, c.k_norm->weight_offset = 1.0f; });
  f.add("Q before the rotation, K after it", [](PrologueCase& c) {
    c.norm = NormPlacement::before_rope, c.k_norm = c.norm_of_q(), c.k_norm->placement = NormPlacement::after_rope;
  });
  f.row("NormWeightTypes", "norm, float32 weights", "Weights of the norms in float32 beside 16-bit data");
  both("float32 weights", [](PrologueCase& c) { c.float_weights = true, c.weight_offset = 1.0f; });
  both("float32 weights and biases", [](PrologueCase& c) {
    c.float_weights = c.norm_bias = true, c.norm_kind = NormKind::layer, c.weights = Weights::per_head;
  });
  f.row("TokenNorm", "norm over the token", "RMS norm over all heads of the token (OLMo 2)");
  both("norm", [](PrologueCase& c) { c.norm_scope = NormScope::token, c.weights = Weights::per_head; });
  f.row("LayerNorm", "LayerNorm, weights per head", "LayerNorm over the head, with weight and bias (Cohere, StableLM 2)");
  both("norm", [](PrologueCase& c) { c.norm_kind = NormKind::layer, c.norm_bias = true, c.weights = Weights::per_head; });
  f.row("NormOfV", "norm of q, k and v", "RMS norm of V without weight (Gemma 4)");
  f.add("norm of V", [](PrologueCase& c) { c.v_norm = true; });
}

void add_rotations(FeatureList& f) {
  const auto both = [&](const std::string& label, const auto& change) {
    for (const RopeStyle style : {RopeStyle::neox, RopeStyle::interleaved}) {
      f.add(label, [&](PrologueCase& c) { c.style = style, change(c); });
    }
  };
  f.row("Pairs", "interleaved", "neox or interleaved pairs; rotary_dim: every even number in 0..head_dim");
  for (const int64_t r : {0, 2, 48, 72, 96, 128})
    both(str_cat(r, " of 128 channels"), [&](PrologueCase& c) { c.head_dim = 128, c.rotary_dim = r; });
  f.row("TailAndInverse", "inverse", "The rotated channels anywhere in the head; inverse rotation");
  both("channels from 32 on", [](PrologueCase& c) { c.rotary_dim = 32, c.rotary_offset = 32; });
  both("inverse", [](PrologueCase& c) { c.inverse = true; });
  f.row("RopeSources", "inv_freq",
        "cos and sin from a table, from rows gathered per token, or computed exactly from inv_freq up to position 2^20");
  for (const RopeSource source : {RopeSource::table, RopeSource::per_token, RopeSource::inv_freq}) {
    const char* names[] = {"table", "gathered rows", "inv_freq"};
    both(names[static_cast<int>(source)], [&](PrologueCase& c) { c.source = source; });
  }
  both("inv_freq up to 2^20",
       [](PrologueCase& c) { c.source = RopeSource::inv_freq, c.max_position = 1 << 20, c.attention_factor = 1.3f; });
  f.row("TableTypes", "table in bfloat16",
        "cos and sin in float32, float16 or bfloat16; the halves of one table, or two arrays with rows at any stride");
  for (const DType type : {DType::f16, DType::bf16}) {
    both(str_cat("a table in ", dtype_name(type)), [&](PrologueCase& c) { c.rope_type = type; });
    both(str_cat("rows per token in ", dtype_name(type)),
         [&](PrologueCase& c) { c.rope_type = type, c.source = RopeSource::per_token, c.rope_apart = true; });
  }
  both("two arrays", [](PrologueCase& c) { c.rope_apart = true, c.rope_holes = 4; });
  both("one array with wider rows", [](PrologueCase& c) { c.rope_holes = 64; });
  f.row("Blocks", "blocks of 2-D pairs",
        "Pairs inside each of two to four blocks of the rotated channels (2-D positions of vision models)");
  for (const int64_t blocks : {2, 3, 4}) {
    both(str_cat(blocks, " blocks"), [&](PrologueCase& c) { c.num_blocks = blocks, c.rotary_dim = 48; });
    both(str_cat(blocks, " blocks with an axis each"),
         [&](PrologueCase& c) { c.num_blocks = c.num_axes = blocks, c.block_axes = true, c.head_dim = c.rotary_dim = 96; });
  }
  f.row("RopeApart", "rope apart, 64 of 128",
        "The rotated channels of Q and K in arrays of their own, K's also as one head for all (MLA)");
  for (const int64_t offset : {0, 128}) {
    both("Q and K apart", [&](PrologueCase& c) {
      c.head_dim = 192, c.rotary_dim = 64, c.rotary_offset = offset, c.v_head_dim = 128;
      c.packed = false, c.split_q = c.split_k = c.one_k_rope = true;
    });
  }
  f.row("PositionAxes", "mrope", "MRoPE and 2-D: up to four position axes, in sections or interleaved");
  for (const int64_t axes : {2, 3, 4}) {
    both(str_cat(axes, " axes"), [&](PrologueCase& c) { c.num_axes = axes, c.interleaved_axes = axes == 3; });
  }
  f.row("PastTable", "identity past the table",
        "Positions past the table: zero rows, recorded or not, or rows that are not rotated");
  constexpr const char* kPolicies[] = {"record", "zero", "identity"};
  for (const PastTable past_table : {PastTable::record, PastTable::zero, PastTable::identity}) {
    both(kPolicies[static_cast<int>(past_table)],
         [&](PrologueCase& c) { c.past_table = past_table, c.num_tokens = 20, c.max_position = 8; });
  }
  f.row("Hadamard", "Hadamard 64", "Hadamard transform of Q and K after the rotation, in blocks of 2 to 512 channels");
  for (const int64_t block : {2, 16, 64}) {
    both(str_cat("blocks of ", block), [&](PrologueCase& c) { c.hadamard_block = block; });
  }
  f.add("a head of 512 channels", [](PrologueCase& c) { c.head_dim = c.rotary_dim = c.hadamard_block = 512; });
  f.row("HadamardOfV", "Hadamard 64 of v", "Hadamard transform of V, in blocks of 2 to 512 channels");
  for (const int64_t block : {2, 16, 64}) {
    both(str_cat("V in blocks of ", block), [&](PrologueCase& c) { c.v_hadamard_block = block; });
  }
  f.add("V of other channels than K", [](PrologueCase& c) { c.v_head_dim = 32, c.v_hadamard_block = 8, c.hadamard_block = 64; });
  f.row("QueryScale", "q scaled", "Q scaled by a constant, and by position (Llama 4, logn)");
  f.add("constant", [](PrologueCase& c) { c.q_scale.constant = 0.125f; });
  f.add("Llama 4", [](PrologueCase& c) { c.q_scale = {0.5f, PositionScale::llama4, 0.1f, 8.0f}; });
  f.add("logn", [](PrologueCase& c) { c.q_scale = {1.0f, PositionScale::logn, 0.0f, 8.0f}; });
  f.row("KvConstants", "v times a constant", "K and V multiplied by constants (MiMo V2's values)");
  f.add("constant of K", [](PrologueCase& c) { c.k_constant = 1.2f; });
  f.add("constant of V", [](PrologueCase& c) { c.v_constant = 0.707f; });
  f.add("both after norms without weight", [](PrologueCase& c) {
    c.k_constant = c.q_scale.constant = 1.2f, c.v_constant = -0.5f, c.norm = NormPlacement::after_rope, c.weights = Weights::none;
    c.v_norm = c.k_out = c.v_out = true;
  });
  f.add("both, quantised", [](PrologueCase& c) {
    c.k_constant = c.v_constant = -1.7f, c.hadamard_block = 16, c.kv_type = DType::uint4, c.scaling = KvScaling::token_head;
  });
}

void add_groups(FeatureList& f) {
  f.row("Indexers", "indexer",
        "Up to four other groups of heads in the same launch, with norm, rotation, transform, type and cache of their own");
  f.add("DeepSeek V3.2", [](PrologueCase& c) { c.groups = deepseek_indexer(); });
  f.add("DeepSeek V3.2, in place of Q, K and V",
        [](PrologueCase& c) { c.groups = deepseek_indexer(), c.num_q_heads = c.num_kv_heads = 0; });
  f.add("norm and rotation", [](PrologueCase& c) { c.groups = minimax_indexer(), c.derive_positions = c.derive_slots = true; });
  f.add("norm and rotation, pages of another size",
        [](PrologueCase& c) { c.groups = minimax_indexer(), c.groups[1].page_size = 3, c.kv_type = DType::bf16; });
  f.row("Gate", "gate",
        "A gate packed behind each head of Q (Qwen3-Next, Qwen3.5), or per head behind V; as it is or its sigmoid");
  for (const bool sigmoid : {false, true}) {
    f.add(sigmoid ? "sigmoid of packed rows" : "packed rows", [&](PrologueCase& c) {
      c.groups = {gate_of_heads(c)}, c.groups[0].sigmoid = sigmoid, c.norm = NormPlacement::before_rope;
    });
    f.add(sigmoid ? "sigmoid for each head" : "for each head",
          [&](PrologueCase& c) { c.groups = {plain_group(c.num_q_heads, 1)}, c.groups[0].sigmoid = sigmoid; });
  }
}

void add_places(FeatureList& f) {
  f.row("GivenPlaces", "base", "Positions and slots given, int32 or int64");
  for (const bool wide : {false, true}) {
    f.add(wide ? "int64 positions and int32 slots" : "int32 positions and int64 slots",
          [&](PrologueCase& c) { c.int64_positions = wide, c.int64_slots = !wide; });
  }
  f.row("ShortSlotMapping", "short slot_mapping", "slot_mapping for the first tokens only: the others are not stored");
  for (const bool wide : {false, true}) {
    f.add(wide ? "int64 slots" : "int32 slots", [&](PrologueCase& c) { c.tokens_without_slot = 4, c.int64_slots = wide; });
  }
  f.row("DerivedPlaces", "derived", "Positions and slots derived from cu_seqlens_q, cache_lens and a block table, with offsets");
  for (const Offsets offsets : {Offsets::none, Offsets::one, Offsets::per_sequence}) {
    const char* names[] = {"no offset", "one offset", "an offset per sequence"};
    f.add(names[static_cast<int>(offsets)],
          [&](PrologueCase& c) { c.derive_positions = c.derive_slots = true, c.offsets = offsets; });
  }
  f.add("slots alone", [](PrologueCase& c) { c.derive_slots = true; });
  f.add("positions alone", [](PrologueCase& c) { c.derive_positions = true, c.num_axes = 3; });
  f.row("LengthsAfter", "derived, lengths after", "seq_lens, the lengths after the step, in place of cache_lens");
  for (const bool positions : {false, true}) {
    f.add(positions ? "positions and slots" : "slots alone",
          [&](PrologueCase& c) { c.derive_positions = positions, c.derive_slots = c.lengths_after = true; });
  }
  f.row("CsrPages", "derived, CSR", "Page table as CSR (kv_indptr, kv_indices), with or without kv_last_page_len");
  for (const PageForm form : {PageForm::csr, PageForm::csr_with_lengths}) {
    for (const bool positions : {false, true}) {
      f.add(form == PageForm::csr ? "CSR" : "CSR with lengths",
            [&](PrologueCase& c) { c.derive_positions = positions, c.derive_slots = true, c.page_form = form; });
    }
  }
  f.row("Ring", "ring, derived", "Ring of pages (sliding window)");
  for (const int64_t ring : {3, 8}) {
    f.add(str_cat("ring of ", ring), [&](PrologueCase& c) { c.derive_positions = c.derive_slots = true, c.ring_size = ring; });
  }
  f.row("Pages", "odd strides of the cache", "Pages of any size; NHD, HND, K beside V, any strides");
  for (const int64_t page : {1, 16, 1024}) f.add(str_cat("page_size ", page), [&](PrologueCase& c) { c.page_size = page; });
  for (const CacheLayout layout : {CacheLayout::hnd, CacheLayout::interleaved, CacheLayout::odd}) {
    const char* names[] = {"NHD", "HND", "K beside V", "odd strides"};
    f.add(names[static_cast<int>(layout)], [&](PrologueCase& c) { c.layout = layout; });
  }
  f.row("Guards", "base", "Padding not written; bad positions, slots and pages recorded, never dereferenced");
  for (const bool derived : {false, true}) {
    for (int i = 0; i < 4; ++i) {
      f.add(derived ? "derived" : "given",
            [&](PrologueCase& c) { c.derive_positions = c.derive_slots = derived, c.token_faults = true, c.num_tokens = 20; });
    }
  }
}

void add_stores(FeatureList& f) {
  const auto stores = [&](DType type, std::initializer_list<KvScaling> scalings) {
    for (const KvScaling scaling : scalings) {
      const char* scales[] = {"", " with a scale per tensor", " with a scale per head", " with computed scales"};
      const std::string stored =  // int4 runs in one kernel whatever its scales are
          dtype_bits(type) == 4 ? dtype_name(type) : str_cat(dtype_name(type), scales[static_cast<int>(scaling)]);
      f.add(stored, [&](PrologueCase& c) { c.kv_type = type, c.scaling = scaling; });
      f.add(dtype_bits(type) == 4 ? stored : stored + " after norm and bias", [&](PrologueCase& c) {
        c.kv_type = type, c.scaling = scaling, c.norm = NormPlacement::before_rope, c.bias_q = c.bias_k = c.bias_v = true;
      });
    }
  };
  constexpr KvScaling kNone = KvScaling::none, kTensor = KvScaling::tensor, kHead = KvScaling::head,
                      kComputed = KvScaling::token_head;
  f.row("FloatCaches", "float16 cache", "Cache in float32, float16, bfloat16, whatever the inputs are");
  for (const DType type : {DType::f32, DType::f16, DType::bf16}) stores(type, {kNone});
  f.row("Fp8Caches", "fp8 computed", "Cache in fp8 e4m3, e5m2; scale none, per tensor, per head, or computed per token and head");
  for (const DType type : {DType::fp8_e4m3, DType::fp8_e5m2}) stores(type, {kNone, kTensor, kHead, kComputed});
  f.row("IntCaches", "int8 computed", "Cache in int8, int4; scale per tensor, per head, or computed per token and head");
  for (const DType type : {DType::int8, DType::int4}) stores(type, {kTensor, kHead, kComputed});
  f.row("ZeroPoints", "uint4 computed", "Cache in uint4; scale and zero point computed per token and head");
  stores(DType::uint4, {kComputed});
  f.row("BlockScaledCaches", "NVFP4", "Cache in MXFP8, MXFP4, NVFP4: blocks of 32 or 16 channels with a scale each");
  for (const auto& [name, type, scaling] : {std::tuple{"MXFP8", DType::fp8_e4m3, KvScaling::mx},
                                            {"MXFP4", DType::fp4_e2m1, KvScaling::mx},
                                            {"NVFP4", DType::fp4_e2m1, KvScaling::nv}}) {
    const auto stored = [&, kv = type, how = scaling](const std::string& what, const auto& change) {
      f.add(what, [&](PrologueCase& c) { c.kv_type = kv, c.scaling = how, change(c); });
    };
    stored(name, [](PrologueCase&) {});
    stored(name, [](PrologueCase& c) { c.norm = NormPlacement::before_rope, c.bias_q = c.bias_k = c.bias_v = true; });
    stored(name, [](PrologueCase& c) { c.derive_positions = c.derive_slots = true, c.v_constant = 0.3f; });
    stored("with a part of the channels rotated", [](PrologueCase& c) { c.rotary_dim = c.head_dim / 2; });
  }
  f.row("FormatsOfTheirOwn", "K in int8, V in int4, computed", "K and V in caches of different types");
  const auto formats = [&](DType k, DType v, KvScaling scaling) {
    f.add(str_cat(dtype_name(k), " and ", dtype_name(v)),
          [&](PrologueCase& c) { c.kv_type = k, c.v_type = v, c.scaling = scaling; });
  };
  formats(DType::int8, DType::uint4, kComputed);
  formats(DType::int8, DType::int4, kComputed);
  formats(DType::uint4, DType::int8, kComputed);
  formats(DType::fp8_e4m3, DType::int4, kHead);
  formats(DType::int8, DType::fp8_e5m2, kTensor);
  f.row("Fp8Queries", "fp8 + fp8 q computed", "Q as fp8 e4m3 or e5m2, scale given or computed per token and head");
  for (const KvScaling scaling : {kTensor, kComputed}) {
    for (const bool e5m2 : {false, true}) {
      f.add(str_cat(e5m2 ? "e5m2" : "e4m3", scaling == kTensor ? ", scale given" : ", scale computed"),
            [&](PrologueCase& c) { c.q8 = scaling, c.q8_e5m2 = e5m2; });
    }
  }
  f.row("PerStepRounding", "per step", "Rounding once, or after each step as unfused nodes do");
  for (const bool per_step : {false, true}) {
    f.add(per_step ? "per step" : "once", [&](PrologueCase& c) {
      c.per_step = per_step, c.norm = NormPlacement::after_rope, c.bias_q = c.bias_k = c.bias_v = c.v_norm = true;
    });
  }
}

std::vector<PrologueFeature> make_features() {
  FeatureList f;
  add_inputs(f);
  add_norms(f);
  add_rotations(f);
  add_groups(f);
  add_places(f);
  add_stores(f);
  return f.take();
}

// Says which kernel of the CUDA backend a plan runs, where kernels can be compiled. It decides without a GPU.
std::string kernel_of([[maybe_unused]] const AttentionPrologueParams& params) {
#ifdef PROLOGUE_HAS_CUDA
  return cuda::kernel_kind(params, true);
#else
  return "none";
#endif
}

// Says how most of a row's cases run, and the others by name.
std::string kernels_of(const PrologueFeature& feature, DType dtype) {
  constexpr std::array<const char*, 3> kKinds = {"lean", "compiled", "general"};
  constexpr size_t kGeneral = 2;
  std::map<std::string, size_t> kind_of;
  std::vector<std::string> order;
  for (const auto& [label, listed] : feature.cases) {
    with_host_type(dtype, [&, name = label, wanted = listed](auto type) {
      using T = decltype(type);
      const PrologueCase c = fit_to_type<T>(wanted);
      PlacedPrologue<T> placed(Backend::cpu, c, make_data<T>(c));
      const auto kind = static_cast<size_t>(std::find(kKinds.begin(), kKinds.end(), kernel_of(placed.params())) - kKinds.begin());
      ASSERT_LT(kind, kKinds.size());
      const std::string own = dtype_name(dtype);
      const std::string shown = name.starts_with(own) ? "the type of the inputs" + name.substr(own.size()) : name;
      // A label of which some cases need a compiled kernel stands there.
      const auto [found, is_new] = kind_of.try_emplace(shown, kind);
      if (is_new) order.push_back(shown);
      EXPECT_TRUE(found->second == kind || std::max(found->second, kind) < kGeneral)
          << feature.name << ": " << shown << " runs compiled and general: give its cases two names";
      found->second = std::max(found->second, kind);
    });
  }
  std::array<std::vector<std::string>, 3> labels;
  for (const std::string& label : order) labels[kind_of[label]].push_back(label);
  const auto larger = [](const auto& a, const auto& b) { return a.size() < b.size(); };
  const auto most = static_cast<size_t>(std::max_element(labels.begin(), labels.end(), larger) - labels.begin());
  std::string text = kKinds[most];
  for (size_t kind = 0; kind < kKinds.size(); ++kind) {
    if (kind == most || labels[kind].empty()) continue;
    text += str_cat("; ", kKinds[kind], ": ");
    for (size_t i = 0; i < labels[kind].size(); ++i) text += str_cat(i > 0 ? ", " : "", labels[kind][i]);
  }
  return text;
}

}  // namespace

const std::vector<PrologueFeature>& prologue_features() {
  static const std::vector<PrologueFeature> features = make_features();
  return features;
}

// Returns the times of a plan's row, from what bench_attention_prologue kept: "1.26, 1.61, 7.44, 51.3".
std::string times_of(const std::string& results, const char* row) {
  std::string times;
  for (const int64_t num_tokens : {1, 64, 1024, 8192}) {
    const std::string begin = str_cat("\"planned ", row, " T=", num_tokens, "\", \"us\": ");
    const size_t at = results.find(begin);
    if (at == std::string::npos) return str_cat("no row of ", row);
    char time[32];
    const double us = std::strtod(results.c_str() + at + begin.size(), nullptr);
    std::snprintf(time, sizeof time, us < 10.0 ? "%.2f" : us < 100.0 ? "%.1f" : "%.0f", us);
    times += (times.empty() ? "" : ", ") + std::string(time);
  }
  return str_cat(times, " (", row, ")");
}

std::string prologue_feature_table() {
  std::string table = "| feature | float16, bfloat16 | float32 | us | test |\n| --- | --- | --- | --- | --- |\n";
  std::stringstream results;
  results << std::ifstream(source_path(kMeasured)).rdbuf();
  for (const PrologueFeature& feature : prologue_features()) {
    const std::string of_16_bits = kernels_of(feature, DType::bf16);
    EXPECT_EQ(kernels_of(feature, DType::f16), of_16_bits) << feature.name << ": the table has one column for both types";
    table += str_cat("| ", feature.text, " | ", of_16_bits, " | ", kernels_of(feature, DType::f32), " | ",
                     times_of(results.str(), feature.measured), " | ", feature.name, " |\n");
  }
  return table;
}

}  // namespace prologue::test
