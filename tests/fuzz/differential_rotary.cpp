// Compares the rotation alone.
#include <algorithm>
#include <limits>

#include "tests/fuzz/differential.h"
#include "tests/support/placed_rotary.h"
#include "tests/support/rerope_case.h"
#include "tests/support/types.h"

namespace prologue::test {

namespace {

void add_outputs(const RotaryParams& p, Element element, std::vector<Output>& outputs) {
  for (int64_t i = 0; i < p.num_tensors; ++i) {
    const RotaryStrides& s = p.tensors[i].y_strides;
    outputs.push_back({p.tensors[i].y,
                       str_cat("tensor ", i),
                       element,
                       {{"batch", s.batch}, {"token", s.token}, {"head", s.head}, {"channel", s.channel}}});
  }
  outputs.push_back({p.faults, "faults", Element::int64});
  outputs.push_back({p.token_faults, "token_faults", Element::byte, {{"token", 1}}});
}

RotaryCase real_case(Random& random, const Sizes& sizes) {
  const auto percent = [&](int64_t chance) { return random.integer(0, 99) < chance; };
  RotaryCase c;
  c.seed = random.bits() >> 32;
  const ModelHeads heads = random_heads(random);
  c.head_dim = percent(94) ? heads.head_dim : 2 * random.integer(289, kMaxHeadDim / 2);
  c.tensors.clear();
  const bool plain = percent(60);
  const int64_t num_tensors = percent(70) ? 2 : random.integer(1, 4);
  for (int64_t i = 0; i < num_tensors; ++i) {
    RotaryCaseTensor t;
    t.num_heads = i == 0 ? heads.num_q_heads : heads.num_kv_heads;
    t.rotate = percent(90);
    t.in_place = percent(40);
    for (RotaryLayout* layout : {&t.x, &t.y}) {
      if (plain) continue;
      std::vector<int> order = {0, 1, 2};
      random.shuffle(order);
      std::copy(order.begin(), order.end(), layout->order.begin());
      if (percent(5)) std::swap(layout->order[3], layout->order[static_cast<size_t>(random.integer(0, 2))]);
      for (size_t dim = 0; dim < 3; ++dim) {
        if (percent(25)) layout->holes[dim] = percent(50) ? 16 : random.integer(1, 5);
      }
    }
    c.tensors.push_back(t);
  }
  c.batch = percent(60) ? 1 : random.integer(1, 4);
  c.seq_len = random_tokens(random, sizes, c.batch * (heads.num_q_heads + heads.num_kv_heads * (num_tensors - 1)) * c.head_dim);
  c.dtype = kFloatTypes[percent(10) ? 3 : random.integer(0, 2)];
  c.num_blocks = percent(85) || c.head_dim < 8 ? 1 : random.integer(1, 4);
  const int64_t pairs = c.head_dim / (2 * c.num_blocks);
  c.rotary_dim = 2 * c.num_blocks * (percent(60) ? pairs : random.integer(0, pairs));
  c.rotary_offset = percent(75) ? 0 : 2 * random.integer(0, (c.head_dim - c.rotary_dim) / 2);
  c.style = percent(50) ? RopeStyle::neox : RopeStyle::interleaved;
  c.inverse = percent(25);
  c.tail = percent(70) ? RotaryTail::copy : static_cast<RotaryTail>(random.integer(0, 2));
  c.source = percent(50) ? RopeSource::table : kSources[random.integer(0, 3)];
  if (c.source == RopeSource::theta && c.rotary_dim > 576 * c.num_blocks) c.source = RopeSource::inv_freq;
  const bool given = c.source == RopeSource::table || c.source == RopeSource::angles;
  c.type = percent(60) ? DType::f32 : kFloatTypes[random.integer(0, 3)];
  if (c.source == RopeSource::inv_freq) c.type = percent(50) ? DType::f32 : DType::f64;
  if (given) {
    c.width = percent(80) ? RopeWidth::half : RopeWidth::full;
    c.per_token = percent(30);
    c.table_per_batch = percent(15);
    c.column_stride = percent(90) ? 1 : 2;
    c.table_holes = percent(80) ? 0 : random.integer(1, 16);
  }
  c.bounded = (given && !c.per_token) || percent(60);
  c.max_position = given ? random.integer(10, 9000) : random.integer(10, 100000);
  c.attention_factor = percent(70) ? 1.0 : 1.0 + 0.5 * random.uniform();
  c.ids_type = kIntegerTypes[percent(70) ? random.integer(2, 3) : random.integer(0, 7)];
  c.ids = static_cast<IdsKind>(random.integer(0, 2));
  c.ids_token_stride = percent(85) ? 1 : random.integer(1, 3);
  c.bad_ids = percent(50);
  if (c.ids == IdsKind::none) {
    c.offset = percent(60) ? 0 : random.integer(-4, 1000);
    c.offsets = percent(50);
    c.one_offset = percent(30);
    if (c.batch == 1 && percent(40)) c.num_seqs = random.integer(1, 50), c.ids_type = DType::int32;
    c.max_seqlen = percent(80) ? 0 : random.integer(1, 6000);
  }
  if (!c.per_token && percent(30)) {
    c.num_axes = random.integer(1, 4);
    c.pair_axis = c.num_axes != c.num_blocks || percent(50);
  }
  c.misalign = percent(80) ? 0 : random.integer(1, 5);
  c.faults = true, c.token_faults = percent(50);
  c.plan = percent(20);
  return c;
}

Outcome run_rotary(Backend backend, uint64_t seed, const Sizes& sizes) {
  Random random(seed);
  const RotaryCase c = real_case(random, sizes);
  return with_float_type(c.dtype, [&](auto type) {
    using T = decltype(type);
    PlacedRotary<T> placed(backend, c);
    const Status status = placed.run();
    std::vector<Output> outputs;
    add_outputs(placed.params(), element_of<T>(), outputs);
    return outcome(c.describe(), status, placed.arena(), std::move(outputs));
  });
}

// Positions, offsets and cu_seqlens at the ends of their types, with and without a bound; axes past the last.
Outcome run_extremes(Backend backend, uint64_t seed, const Sizes& sizes) {
  Random random(seed);
  const auto coin = [&] { return random.integer(0, 1) == 0; };
  constexpr int64_t kLeast = std::numeric_limits<int64_t>::min(), kMost = std::numeric_limits<int64_t>::max();
  const auto extreme = [&] {
    const int64_t values[] = {kMost,     kMost - 1, kLeast,           kLeast + 1,      -1, 0, 1,
                              INT32_MAX, INT32_MIN, int64_t{1} << 40, int64_t{1} << 53};
    return values[random.integer(0, std::size(values) - 1)];
  };
  const int64_t heads = random.integer(1, 8), head_dim = 2 * random.integer(1, 96);
  const int64_t tokens = std::min(random_tokens(random, sizes, heads * head_dim), int64_t{2000});
  Arena arena(backend);
  RotaryParams p;
  p.dtype = DType::f32, p.seq_len = tokens, p.head_dim = head_dim, p.rope.rotary_dim = 2 * random.integer(1, head_dim / 2);
  p.rope.style = coin() ? RopeStyle::neox : RopeStyle::interleaved;
  p.num_tensors = 1;
  float* x = arena.inout(many_normals<float>(random, tokens * heads * head_dim));
  p.tensors[0] = rotary_tensor(x, x, heads, {tokens * heads * head_dim, heads * head_dim, head_dim, 1});
  const int64_t pairs = p.rope.rotary_dim / 2, rows = coin() ? tokens : random.integer(1, 100);
  const bool per_token = rows == tokens;
  set_cos_sin_table(p.rope, arena.input(many_normals<float>(random, rows * p.rope.rotary_dim)), DType::f32, rows);
  if (per_token) p.rope.source = RopeSource::per_token;
  if (per_token) p.rope.max_position = coin() ? 0 : random.integer(1, 100);
  if (!per_token && coin()) p.rope.num_axes = random.integer(2, 4);
  if (p.rope.num_axes > 1) {
    std::vector<uint8_t> axes(static_cast<size_t>(pairs));
    for (uint8_t& axis : axes) axis = static_cast<uint8_t>(coin() ? random.integer(0, 255) : random.integer(0, 3));
    p.rope.pair_axis = arena.input(axes);
  }
  const bool ids = coin();
  if (ids) {
    std::vector<int64_t> values(static_cast<size_t>(p.rope.num_axes * tokens));
    for (int64_t& value : values) value = coin() ? random.integer(0, rows - 1) : extreme();
    p.positions.ids = index_view(arena.input(values));
    p.positions.axis_stride = tokens, p.positions.batch_stride = tokens;
  } else {
    p.positions.offset = coin() ? 0 : extreme();
    const int64_t num_seqs = random.integer(1, 4);
    if (coin()) {
      std::vector<int64_t> cu(static_cast<size_t>(num_seqs) + 1);
      for (int64_t& value : cu) value = coin() ? random.integer(0, tokens) : extreme();
      std::sort(cu.begin(), cu.end());
      p.positions.cu_seqlens = index_view(arena.input(cu)), p.positions.num_seqs = num_seqs;
    }
    if (coin()) {
      std::vector<int64_t> offsets(static_cast<size_t>(num_seqs));
      for (int64_t& value : offsets) value = extreme();
      p.positions.offsets = index_view(arena.input(offsets));
    }
    if (coin()) p.positions.max_seqlen = random.integer(1, tokens);
  }
  p.faults = arena.inout(std::vector<FaultRecord>(1));
  p.token_faults = arena.inout(std::vector<uint8_t>(static_cast<size_t>(tokens)));
  const Status status = arena.run([&](const Execution& execution) { return rotary(p, execution); });
  std::vector<Output> outputs;
  add_outputs(p, Element::f32, outputs);
  return outcome(str_cat("T=", tokens, " heads=", heads, " D=", head_dim, " r=", p.rope.rotary_dim, per_token ? " per token" : "",
                         " max=", p.rope.max_position, " axes=", p.rope.num_axes, " ids=", ids, " offset=", p.positions.offset,
                         " seqs=", p.positions.num_seqs, " max_seqlen=", p.positions.max_seqlen),
                 status, arena, std::move(outputs));
}

// Keys of real models, of every format of a cache, by every rope.
Outcome run_rerope(Backend backend, uint64_t seed, const Sizes& sizes) {
  Random random(seed);
  const auto one_in = [&](int64_t count) { return random.integer(1, count) == 1; };
  ReropeCase c;
  c.seed = random.bits() >> 32;
  const ModelHeads heads = random_heads(random);
  c.num_heads = heads.num_kv_heads, c.head_dim = one_in(12) ? 2 * random.integer(1, kMaxHeadDim / 2) : heads.head_dim;
  c.type = kKvTypes[random.integer(0, std::size(kKvTypes) - 1)];
  if (dtype_is_quantized(c.type)) c.scaling = static_cast<KvScaling>(random.integer(dtype_is_fp8(c.type) ? 0 : 1, 3));
  if (c.type == DType::uint4) c.scaling = KvScaling::token_head;
  c.num_keys = std::min<int64_t>(random_tokens(random, sizes, 2 * c.num_heads * c.head_dim), 4000);
  c.page_size = int64_t{1} << random.integer(0, 6);
  c.num_pages = c.num_keys / c.page_size + random.integer(1, 8);
  c.num_blocks = one_in(6) && c.head_dim >= 8 ? random.integer(1, 4) : 1;
  const int64_t pairs = c.head_dim / (2 * c.num_blocks);
  c.rotary_dim = 2 * c.num_blocks * (one_in(2) ? pairs : random.integer(1, pairs));
  c.rotary_offset = one_in(2) ? 0 : 2 * random.integer(0, (c.head_dim - c.rotary_dim) / 2);
  c.style = one_in(2) ? RopeStyle::neox : RopeStyle::interleaved;
  constexpr RopeSource kPositions[] = {RopeSource::table, RopeSource::inv_freq, RopeSource::theta, RopeSource::angles};
  c.source = one_in(2) ? RopeSource::table : kPositions[random.integer(0, 3)];
  if (c.source == RopeSource::theta && c.rotary_dim > 576 * c.num_blocks) c.source = RopeSource::inv_freq;
  if (c.rows_given()) {
    c.table_type = one_in(2) ? DType::f32 : kFloatTypes[random.integer(0, 3)];
    c.width = one_in(4) ? RopeWidth::full : RopeWidth::half;
  } else {
    c.table_type = one_in(2) ? DType::f32 : DType::f64;
    c.max_position = one_in(2) ? 0 : random.integer(1, 1 << 20);
  }
  if (c.rows_given()) c.max_position = random.integer(1, 2000);
  c.factor = one_in(3) ? 1.3466 : 1.0;
  c.attention_factor = one_in(4) ? 1.0 + 0.5 * random.uniform() : 1.0;
  c.inverse = one_in(5);
  if (one_in(3)) c.num_axes = random.integer(1, 4), c.pair_axis = c.num_axes != c.num_blocks || one_in(2);
  c.one_row = one_in(5);
  if (one_in(3)) {
    c.hadamard_block = 2;
    while (c.hadamard_block < 512 && c.head_dim % (2 * c.hadamard_block) == 0 && !one_in(4)) c.hadamard_block *= 2;
  }
  c.heads_first = one_in(2), c.hole = one_in(2) ? 0 : 2 * random.integer(1, 16);
  c.misalign = one_in(2) ? 0 : 4 * random.integer(0, 4);
  c.int64_indices = one_in(2), c.bad = one_in(2), c.past_table = static_cast<PastTable>(random.integer(0, 2));
  PlacedRerope placed(backend, c);
  const Status status = placed.run();
  const PagedHeads& k = placed.p.cache.k;
  const Element element = c.type == DType::f32    ? Element::f32
                          : c.type == DType::f16  ? Element::f16
                          : c.type == DType::bf16 ? Element::bf16
                                                  : Element::byte;
  const int64_t codes = dtype_bits(c.type) == 4 ? 2 : 1;  // of a byte
  std::vector<Output> outputs = {
      {k.data,
       "cache.k.data",
       element,
       {{"page", k.strides.page / codes}, {"offset", k.strides.token / codes}, {"head", k.strides.head / codes}, {"channel", 1}}},
      {placed.p.faults, "faults", Element::int64},
      {placed.p.token_faults, "token_faults", Element::byte, {{"key", 1}}}};
  if (c.scaling == KvScaling::token_head) {
    const PageStrides& s = k.scale_strides;
    outputs.push_back({k.scale, "cache.k.scale", Element::f32, {{"page", s.page}, {"offset", s.token}, {"head", s.head}}});
  }
  return outcome(c.describe(), status, placed.arena, std::move(outputs));
}

}  // namespace

std::vector<Operation> rotary_operations() {
  return {{"rotary", run_rotary}, {"rotary_extremes", run_extremes}, {"rerope", run_rerope}};
}

}  // namespace prologue::test
