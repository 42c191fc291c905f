// The attention prologue and its stages.
#include <algorithm>
#include <iterator>
#include <numeric>
#include <type_traits>

#include <prologue/kernels/attention_prologue/stages/stages.h>
#include <prologue/kernels/mla_prologue/mla_prologue.h>

#include "tests/fuzz/differential.h"
#include "tests/support/placed_mla.h"
#include "tests/support/placed_qkv_prologue.h"
#include "tests/support/prologue_choices.h"
#include "tests/support/random.h"
#include "tests/support/tolerance.h"
#include "tests/support/types.h"

namespace prologue::test {

namespace {

Element element_of_cache(DType type) {
  switch (type) {
    case DType::f32: return Element::f32;
    case DType::f16: return Element::f16;
    case DType::bf16: return Element::bf16;
    default: return Element::byte;
  }
}

Output output_of_heads(const char* name, const MutableHeadsView& view, Element element) {
  return {view.data, name, element, {{"token", view.token_stride}, {"head", view.head_stride}, {"channel", 1}}};
}

void add_cache_outputs(const PagedKvView& cache, std::vector<Output>& outputs) {
  const auto data = [&](const char* name, const void* at, const PageStrides& strides) {
    const int64_t codes = dtype_bits(cache.k.format.type) == 4 ? 2 : 1;  // of a byte
    outputs.push_back(
        {at,
         name,
         element_of_cache(cache.k.format.type),
         {{"page", strides.page / codes}, {"offset", strides.token / codes}, {"head", strides.head / codes}, {"channel", 1}}});
  };
  const auto scale = [&](const char* name, const float* at, const PageStrides& strides) {
    outputs.push_back({at, name, Element::f32, {{"page", strides.page}, {"offset", strides.token}, {"head", strides.head}}});
  };
  data("cache.k.data", cache.k.data, cache.k.strides);
  data("cache.v.data", cache.v.data, cache.v.strides);
  scale("cache.k.scale", cache.k.scale, cache.k.scale_strides);
  scale("cache.v.scale", cache.v.scale, cache.v.scale_strides);
}

// The sizes of a real model; half of the cases have the options of models, the others any that the struct has.
PrologueCase real_case(Random& random, const Sizes& sizes) {
  const auto one_in = [&](int64_t count) { return random.integer(1, count) == 1; };
  const CaseOdds odds = one_in(2) ? CaseOdds::models : CaseOdds::any;
  const ModelHeads heads = random_heads(random);
  CaseSizes of;
  of.num_kv_heads = one_in(9) ? 0 : heads.num_kv_heads;
  of.num_q_heads = of.num_kv_heads > 0 && one_in(9) ? 0 : heads.num_q_heads;
  of.head_dim = one_in(16) ? 2 * random.integer(289, kMaxHeadDim / 2) : heads.head_dim;
  of.v_head_dim = odds == CaseOdds::any && one_in(8) ? 2 * random.integer(1, one_in(4) ? kMaxHeadDim / 2 : 288) : 0;
  of.num_tokens = random_tokens(random, sizes, (of.num_q_heads + 2 * of.num_kv_heads) * of.head_dim);
  PrologueCase c = choose_case(random, odds, of);
  if (c.source == RopeSource::table) c.max_position = one_in(2) ? 40 : random.integer(100, 12000);
  if (one_in(2)) c.page_size = int64_t{1} << random.integer(0, 8);
  const int64_t values = random.integer(0, 15);
  if (values < 2) c.values = values == 0 ? Values::huge : Values::denormal;
  if (one_in(6)) choose_groups(random, c);
  c.seed = random.bits() >> 32;
  return c;
}

// Makes few sequences, so that they are long: in place of the many short ones of make_sequences().
template <class T>
void make_long_sequences(const PrologueCase& c, Random& random, PrologueData<T>& data) {
  const int64_t num_seqs = random.integer(1, 5);
  data.cu_seqlens = {0};
  data.cache_lens.clear(), data.block_table.clear();
  std::vector<int64_t> pages;
  for (int64_t s = 0; s < num_seqs; ++s) {
    const int64_t left = c.num_tokens - data.cu_seqlens.back();
    const int64_t rows = s + 1 < num_seqs ? random.integer(0, left) : left;
    data.cu_seqlens.push_back(data.cu_seqlens.back() + static_cast<int32_t>(rows));
    data.cache_lens.push_back(static_cast<int32_t>(random.integer(0, 2000)));
    const int64_t length = c.ring_size > 0 ? c.ring_size : data.cache_lens.back() + rows;
    pages.push_back((length + c.page_size - 1) / c.page_size);
  }
  data.num_pages = std::max(data.num_pages, std::accumulate(pages.begin(), pages.end(), int64_t{2}));
  std::vector<int32_t> all(static_cast<size_t>(data.num_pages));
  std::iota(all.begin(), all.end(), 0);
  random.shuffle(all);
  const auto longest = static_cast<size_t>(std::max<int64_t>(1, *std::max_element(pages.begin(), pages.end())));
  for (const int64_t count : pages) {
    std::vector<int32_t> row(longest, INT32_MAX);
    for (int64_t i = 0; i < count; ++i) row[static_cast<size_t>(i)] = all.back(), all.pop_back();
    data.block_table.push_back(row);
  }
  if (c.bad_indices) data.block_table[0][random.bits() % longest] = random.integer(0, 1) == 0 ? -1 : INT32_MAX;
  if (c.offsets == Offsets::per_sequence) data.offsets.resize(static_cast<size_t>(num_seqs));
}

template <class T>
std::vector<Output> outputs_of(const AttentionPrologueParams& p) {
  std::vector<Output> outputs = {output_of_heads("q_out", p.q_out, element_of<T>()),
                                 output_of_heads("k_out", p.k_out, element_of<T>()),
                                 output_of_heads("v_out", p.v_out, element_of<T>()),
                                 {p.q8_out.data,
                                  "q8_out",
                                  Element::byte,
                                  {{"token", p.q8_out.token_stride}, {"head", p.q8_out.head_stride}, {"channel", 1}}},
                                 {p.q8_out.scale, "q8_out.scale", Element::f32, {{"token", p.num_q_heads}, {"head", 1}}},
                                 {p.faults, "faults", Element::int64},
                                 {p.token_faults, "token_faults", Element::byte, {{"token", 1}}}};
  add_cache_outputs(p.cache, outputs);
  for (int64_t i = 0; i < p.num_groups; ++i) {
    const HeadGroup& g = p.groups[i];
    const QuantizedQuery& q8 = g.q8_out;
    outputs.push_back(output_of_heads("out of a group", g.out, element_of<T>()));
    outputs.push_back(
        {q8.data, "q8_out of a group", Element::byte, {{"token", q8.token_stride}, {"head", q8.head_stride}, {"channel", 1}}});
    outputs.push_back({q8.scale, "q8_out.scale of a group", Element::f32, {{"token", g.num_heads}, {"head", 1}}});
    PagedKvView cache;
    cache.k = g.cache;
    if (g.cache.data != nullptr) add_cache_outputs(cache, outputs);
  }
  return outputs;
}

Outcome run_prologue(Backend backend, uint64_t seed, const Sizes& sizes) {
  Random random(seed);
  return with_random_dtype(random, [&](auto type) {
    using T = decltype(type);
    const PrologueCase c = fit_to_type<T>(real_case(random, sizes));
    PrologueData<T> data = make_data<T>(c);
    if (c.has_sequences() && c.num_tokens > 0 && random.integer(0, 1) == 0) make_long_sequences(c, random, data);
    for (uint8_t& axis : data.pair_axis) {  // values past the last axis count as 0
      if (random.integer(0, 19) == 0) axis = static_cast<uint8_t>(random.integer(0, 255));
    }
    PlacedPrologue<T> placed(backend, c, data);
    const Status status = placed.run();
    return outcome(str_cat(dtype_name(placed.params().dtype), " ", c.describe()), status, placed.arena(),
                   outputs_of<T>(placed.params()));
  });
}

// The projection is exact (placed_qkv_prologue.h), so every output has the same bits.
Outcome run_qkv_prologue(Backend backend, uint64_t seed, const Sizes& sizes) {
  Random random(seed);
  return with_random_dtype(random, [&](auto type) {
    using T = decltype(type);
    PrologueCase c = fit_to_projection(real_case(random, sizes));
    if (c.num_q_heads == 0) c.num_q_heads = 4;
    c.num_tokens = random.integer(0, 3) > 0 ? random.integer(1, 32) : random.integer(33, 100);
    c = fit_to_type<T>(c);
    int64_t hidden_size = random_width(random);
    hidden_size = std::clamp<int64_t>(sizes.max_elements / qkv_width(c), 1, hidden_size);
    c.num_tokens =
        std::clamp<int64_t>(sizes.max_products / hidden_size / qkv_width(c), 1, std::min(c.num_tokens, sizes.max_tokens));
    Projection projection = whole_numbers(c, hidden_size, random.integer(0, 1) == 0);
    projection.weighted = random.integer(0, 1) == 0;
    projection.float_weights = random.integer(0, 1) == 0;
    PlacedPrologue<T> placed(backend, c, make_data<T>(c));
    QkvPrologueParams p = place_projection(placed, projection);
    p.batch_invariant = random.integer(0, 4) == 0;
    p.overlaps = random.integer(0, 1) == 0;
    const Result<GemmContext*> context = context_for(backend);
    const Status status = context.ok()
                              ? placed.run([&](const Execution& execution) { return qkv_prologue(p, **context, execution); })
                              : context.status();
    return outcome(
        str_cat(dtype_name(p.prologue.dtype), " hidden ", hidden_size, " norm=", p.norm.given, p.norm.weight != nullptr,
                projection.float_weights, " batch_invariant=", p.batch_invariant, " ", c.describe()),
        status, placed.arena(), outputs_of<T>(p.prologue));
  });
}

// ---- the stages ----

// [tokens, heads, head_dim] with holes behind heads and rows now and then.
struct Heads {
  int64_t token_stride, head_stride, size;

  Heads(Random& random, int64_t num_tokens, int64_t num_heads, int64_t head_dim) {
    const bool holes = random.integer(0, 3) == 0;
    head_stride = head_dim + (holes ? random.integer(0, 9) : 0);
    token_stride = num_heads * head_stride + (holes ? random.integer(0, 9) : 0);
    size = num_tokens * token_stride;
  }
};

template <class T>
struct InAndOut {
  HeadsView x;
  MutableHeadsView y;
  std::string text;

  InAndOut(Arena& arena, Random& random, int64_t num_tokens, int64_t num_heads, int64_t head_dim) {
    const Heads layout(random, num_tokens, num_heads, head_dim);
    const std::vector<T> values = many_normals<T>(random, layout.size);
    const int64_t misalign = random.integer(0, 3) == 0 ? random.integer(0, 7) * static_cast<int64_t>(sizeof(T)) : 0;
    const bool in_place = random.integer(0, 1) == 0;
    T* out = in_place ? arena.inout(values, misalign) : arena.output<T>(layout.size, misalign);
    x = {in_place ? out : arena.input(values, misalign), layout.token_stride, layout.head_stride};
    y = {out, layout.token_stride, layout.head_stride};
    text = str_cat("T=", num_tokens, " heads=", num_heads, " D=", head_dim, in_place ? " in place" : "", " strides ",
                   layout.token_stride, ", ", layout.head_stride, " misalign=", misalign);
  }
};

IndexView random_positions(Arena& arena, Random& random, int64_t count, int64_t most) {
  std::vector<int64_t> positions(static_cast<size_t>(count));
  for (int64_t& position : positions) position = random.integer(0, 30) == 0 ? -random.integer(1, 1000) : random.integer(0, most);
  return place_indices(arena, positions, random.integer(0, 1) == 0);
}

Outcome run_add_bias(Backend backend, uint64_t seed, const Sizes& sizes) {
  Random random(seed);
  const ModelHeads heads = random_heads(random);
  const int64_t width = (heads.num_q_heads + 2 * heads.num_kv_heads) * heads.head_dim;
  const int64_t tokens = random_tokens(random, sizes, width);
  return with_random_dtype(random, [&](auto type) {
    using T = decltype(type);
    Arena arena(backend);
    const InAndOut<T> rows(arena, random, tokens, 1, width);
    AddBiasParams p;
    p.num_tokens = tokens, p.width = width, p.dtype = FloatFormat<T>::dtype;
    p.x = rows.x.data, p.x_stride = rows.x.token_stride, p.y = rows.y.data, p.y_stride = rows.y.token_stride;
    p.bias = arena.input(random.normals<T>(width));
    const Status status = arena.run([&](const Execution& execution) { return add_bias(p, execution); });
    return outcome(str_cat(dtype_name(p.dtype), " ", rows.text), status, arena, {output_of_heads("y", rows.y, element_of<T>())});
  });
}

Outcome run_qk_norm(Backend backend, uint64_t seed, const Sizes& sizes) {
  Random random(seed);
  const ModelHeads model = random_heads(random);
  const int64_t heads = random.integer(0, 2) > 0 ? model.num_q_heads : model.num_kv_heads;
  const int64_t tokens = random_tokens(random, sizes, heads * model.head_dim);
  return with_random_dtype(random, [&](auto type) {
    using T = decltype(type);
    Arena arena(backend);
    const InAndOut<T> rows(arena, random, tokens, heads, model.head_dim);
    QkNormParams p;
    p.num_tokens = tokens, p.num_heads = heads, p.head_dim = model.head_dim, p.dtype = FloatFormat<T>::dtype;
    p.x = rows.x, p.y = rows.y;
    p.norm.kind = random.integer(0, 2) > 0 ? NormKind::rms : NormKind::layer;
    if (p.norm.kind == NormKind::rms && random.integer(0, 3) == 0) p.norm.scope = NormScope::token;
    if (random.integer(0, 2) == 0) p.norm.weight_offset = 1.0f;
    const bool per_head = random.integer(0, 2) == 0;
    const int64_t width = model.head_dim * (per_head ? heads : 1);
    if (random.integer(0, 3) == 0) p.norm.weight_type = DType::f32;
    const auto weights = [&]() -> const void* {
      if (p.norm.weight_type == DType::f32) return arena.input(random.normals<float>(width));
      return arena.input(random.normals<T>(width));
    };
    if (random.integer(0, 3) > 0) p.norm.weight = weights(), p.norm.weight_head_stride = per_head ? model.head_dim : 0;
    if (p.norm.kind == NormKind::layer && p.norm.weight != nullptr && random.integer(0, 1) == 0) p.norm.bias = weights();
    if (random.integer(0, 1) == 0) p.positions = random_positions(arena, random, tokens, 9000);
    const Status status = arena.run([&](const Execution& execution) { return qk_norm(p, execution); });
    return outcome(str_cat(dtype_name(p.dtype), " ", rows.text, " kind=", static_cast<int>(p.norm.kind),
                           " scope=", static_cast<int>(p.norm.scope), " weight=", p.norm.weight != nullptr, per_head, " ",
                           dtype_name(p.norm.weight_type), " bias=", p.norm.bias != nullptr),
                   status, arena, {output_of_heads("y", rows.y, element_of<T>())});
  });
}

Outcome run_hadamard(Backend backend, uint64_t seed, const Sizes& sizes) {
  Random random(seed);
  const ModelHeads model = random_heads(random);
  const int64_t heads = random.integer(0, 2) > 0 ? model.num_q_heads : model.num_kv_heads;
  const int64_t tokens = random_tokens(random, sizes, heads * model.head_dim);
  return with_random_dtype(random, [&](auto type) {
    using T = decltype(type);
    Arena arena(backend);
    const InAndOut<T> rows(arena, random, tokens, heads, model.head_dim);
    HadamardParams p;
    p.num_tokens = tokens, p.num_heads = heads, p.head_dim = model.head_dim, p.dtype = FloatFormat<T>::dtype;
    p.x = rows.x, p.y = rows.y;
    p.block = any_hadamard_block(random, p.head_dim);
    if (random.integer(0, 1) == 0) p.positions = random_positions(arena, random, tokens, 9000);
    const Status status = arena.run([&](const Execution& execution) { return hadamard(p, execution); });
    return outcome(str_cat(dtype_name(p.dtype), " ", rows.text, " block=", p.block), status, arena,
                   {output_of_heads("y", rows.y, element_of<T>())});
  });
}

Outcome run_query_scale(Backend backend, uint64_t seed, const Sizes& sizes) {
  Random random(seed);
  const ModelHeads model = random_heads(random);
  const int64_t tokens = random_tokens(random, sizes, model.num_q_heads * model.head_dim);
  return with_random_dtype(random, [&](auto type) {
    using T = decltype(type);
    Arena arena(backend);
    const InAndOut<T> rows(arena, random, tokens, model.num_q_heads, model.head_dim);
    QueryScaleParams p;
    p.num_tokens = tokens, p.num_heads = model.num_q_heads, p.head_dim = model.head_dim, p.dtype = FloatFormat<T>::dtype;
    p.x = rows.x, p.y = rows.y;
    p.q_scale.constant = random.integer(0, 2) == 0 ? 1.0f : 0.0883883461f;
    p.q_scale.by_position = static_cast<PositionScale>(random.integer(0, 2));
    p.q_scale.a = 0.1f, p.q_scale.b = static_cast<float>(random.integer(2, 8192));
    p.positions = random_positions(arena, random, tokens, random.integer(0, 1) == 0 ? 9000 : INT32_MAX);
    const Status status = arena.run([&](const Execution& execution) { return query_scale(p, execution); });
    return outcome(str_cat(dtype_name(p.dtype), " ", rows.text, " constant=", p.q_scale.constant,
                           " by position=", static_cast<int>(p.q_scale.by_position), " b=", p.q_scale.b),
                   status, arena, {output_of_heads("y", rows.y, element_of<T>())});
  });
}

// The prologue's own placement makes the case's data and cache; the stage reads K, V, slots and positions of it.
Outcome run_kv_write(Backend backend, uint64_t seed, const Sizes& sizes) {
  Random random(seed);
  return with_random_dtype(random, [&](auto type) {
    using T = decltype(type);
    PrologueCase c = real_case(random, sizes);
    c.num_q_heads = 0, c.q8.reset(), c.in_place = c.kv_in_place = c.k_out = c.v_out = false, c.cached = true;
    c.derive_positions = c.derive_slots = false, c.ring_size = 0, c.token_faults = false;
    c.split_q = c.split_k = c.one_k_rope = false;  // the stage knows whole heads only
    if (c.num_kv_heads == 0) c.num_kv_heads = 4;
    c = fit_to_type<T>(c);
    PlacedPrologue<T> placed(backend, c, make_data<T>(c));
    const AttentionPrologueParams& from = placed.params();
    KvWriteParams p;
    p.num_tokens = c.num_tokens, p.num_kv_heads = c.num_kv_heads, p.head_dim = c.head_dim, p.dtype = from.dtype;
    p.k = from.k, p.v = from.v, p.cache = from.cache;
    p.slot_mapping = from.places.slot_mapping, p.slot_mapping_len = from.places.slot_mapping_len,
    p.positions = from.places.positions;
    p.position_axis_stride = from.places.position_axis_stride, p.num_axes = c.num_axes;
    p.max_position = c.max_position, p.faults = from.faults, p.past_table = c.past_table;
    const Status status = placed.run([&](const Execution& execution) { return kv_write(p, execution); });
    std::vector<Output> outputs = {{p.faults, "faults", Element::int64}};
    add_cache_outputs(p.cache, outputs);
    return outcome(str_cat(dtype_name(p.dtype), " ", c.describe()), status, placed.arena(), std::move(outputs));
  });
}

MlaCase mla_case(Random& random, const Sizes& sizes) {
  const auto percent = [&](int64_t chance) { return random.integer(0, 99) < chance; };
  MlaCase c;
  c.seed = random.bits() >> 32;
  c.num_q_heads = percent(70) ? int64_t{16} << random.integer(0, 3) : random.integer(0, 130);
  c.kv_lora_rank = percent(70) ? 512 : 16 * random.integer(1, 64);
  c.qk_rope_head_dim = percent(70) ? 64 : 16 * random.integer(1, 64);
  c.num_tokens = std::max<int64_t>(random_tokens(random, sizes, c.kv_lora_rank + (c.num_q_heads + 1) * c.qk_rope_head_dim), 1);
  c.latent = percent(95), c.k = percent(95);
  c.norm = static_cast<MlaNorm>(random.integer(0, 3));
  if (c.qk_rope_head_dim <= 512 && random.integer(0, 3) == 0) c.k_norm = static_cast<MlaNorm>(random.integer(1, 3));
  c.weight_offset = percent(80) ? 0.0f : 1.0f;
  c.rotates = percent(90);
  c.style = percent(70) ? RopeStyle::interleaved : RopeStyle::neox;
  c.source = percent(60) ? RopeSource::table : static_cast<RopeSource>(random.integer(0, 2));
  c.table_type = percent(50) ? DType::f32 : kFloatTypes[random.integer(0, 2)];
  c.inverse = percent(10);
  c.past_table = static_cast<PastTable>(random.integer(0, 2));
  c.max_position = random.integer(1, 9000);
  c.cache = kMlaCacheKinds[random.integer(0, static_cast<int64_t>(std::size(kMlaCacheKinds)) - 1)];
  if (c.cache == MlaCacheKind::record) c.kv_lora_rank = percent(80) ? 512 : 256 * random.integer(1, 4);
  c.page_size = percent(50) ? 64 : random.integer(1, 300);
  c.int64_positions = percent(50), c.int64_slots = percent(50);
  c.missing_slots = percent(80) ? 0 : random.integer(0, c.num_tokens - 1);
  c.outputs = percent(50), c.in_place = percent(30);
  c.padding = percent(60) ? 0 : percent(50) ? 16 : random.integer(1, 40);
  c.misaligned = percent(25);
  c.bad_tokens = percent(60);
  c.overlaps = percent(50);
  return c;
}

Outcome run_mla_prologue(Backend backend, uint64_t seed, const Sizes& sizes) {
  Random random(seed);
  MlaCase c = mla_case(random, sizes);
  return with_random_dtype(random, [&](auto type) {
    using T = decltype(type);
    if (std::is_same_v<T, float> && c.cache == MlaCacheKind::record) c.cache = MlaCacheKind::fp8_tensor;
    PlacedMla<T> placed(backend, c);
    const MlaPrologueParams& p = placed.params();
    const Status status = placed.run();
    std::vector<Output> outputs = {{p.kv_c_out, "kv_c_out", element_of<T>(), {{"token", p.kv_c_out_stride}, {"channel", 1}}},
                                   {p.k_pe_out, "k_pe_out", element_of<T>(), {{"token", p.k_pe_out_stride}, {"channel", 1}}},
                                   {p.q_pe_out.data,
                                    "q_pe_out",
                                    element_of<T>(),
                                    {{"token", p.q_pe_out.token_stride}, {"head", p.q_pe_out.head_stride}, {"channel", 1}}},
                                   {placed.entries(), "cache"},
                                   {placed.rope_entries(), "cache of k_pe"},
                                   {p.faults, "faults", Element::int64},
                                   {p.token_faults, "token_faults", Element::byte, {{"token", 1}}}};
    std::erase_if(outputs, [](const Output& output) { return output.data == nullptr; });
    return outcome(str_cat(dtype_name(p.dtype), " ", describe(c)), status, placed.arena(), std::move(outputs));
  });
}

}  // namespace

std::vector<Operation> prologue_operations() {
  return {{"attention_prologue", run_prologue}, {"qkv_prologue", run_qkv_prologue}, {"mla_prologue", run_mla_prologue},
          {"add_bias", run_add_bias},           {"qk_norm", run_qk_norm},           {"hadamard", run_hadamard},
          {"query_scale", run_query_scale},     {"kv_write", run_kv_write}};
}

}  // namespace prologue::test
