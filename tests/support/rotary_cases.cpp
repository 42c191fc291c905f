#include <functional>

#include "tests/support/random.h"
#include "tests/support/rotary_case.h"
#include "tests/support/types.h"

namespace prologue::test {

namespace {

constexpr RotaryLayout kBatchMajor = {{0, 1, 2, 3}, {}}, kSequenceMajor = {{1, 0, 2, 3}, {}}, kHeadMajor = {{0, 2, 1, 3}, {}};

}  // namespace

std::vector<RotaryCase> rotary_cases() {
  std::vector<RotaryCase> cases;
  const auto add = [&](const std::function<void(RotaryCase&)>& change) {
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::f64}) {
      RotaryCase c;
      c.dtype = dtype;
      c.seed = cases.size() + 1;
      change(c);
      cases.push_back(c);
    }
  };
  for (const int64_t seq_len : {1, 2, 33, 257}) {
    add([&](RotaryCase& c) { c.seq_len = seq_len, c.head_dim = c.rotary_dim = 128, c.tensors = {{32}, {8}}; });
  }
  add([](RotaryCase& c) { c.seq_len = 600, c.tensors = {{3}, {40}}, c.source = RopeSource::theta; });
  for (const RopeStyle style : {RopeStyle::neox, RopeStyle::interleaved}) {
    for (const auto& [head_dim, rotary_dim, offset] :
         {std::array<int64_t, 3>{128, 128, 0}, {128, 64, 0}, {128, 64, 32}, {40, 16, 16}}) {
      add([&, head_dim = head_dim, rotary_dim = rotary_dim, offset = offset](RotaryCase& c) {
        c.style = style, c.head_dim = head_dim, c.rotary_dim = rotary_dim, c.rotary_offset = offset,
        c.tensors = {{5}, {2, true, true}};
      });
    }
  }
  add([](RotaryCase& c) { c.inverse = true; });
  add([](RotaryCase& c) { c.inverse = true, c.width = RopeWidth::full; });
  add([](RotaryCase& c) { c.inverse = c.inverse_by_own_sine = true, c.width = RopeWidth::full; });
  for (const RotaryTail tail : {RotaryTail::copy, RotaryTail::leave, RotaryTail::zero}) {
    add([&](RotaryCase& c) { c.head_dim = 80, c.rotary_dim = 32, c.rotary_offset = 16, c.tail = tail; });
    add([&](RotaryCase& c) { c.head_dim = 80, c.rotary_dim = 32, c.tail = tail, c.tensors = {{2, true, true}}; });
  }
  for (const RotaryLayout& layout : {kBatchMajor, kSequenceMajor, kHeadMajor}) {
    add([&](RotaryCase& c) {
      c.batch = 3,
      c.tensors = {{4, true, false, layout, kBatchMajor}, {2, true, true, layout}, {2, false, false, layout, layout}};
    });
  }
  add([](RotaryCase& c) { c.tensors = {{3, true, false, {{0, 1, 3, 2}, {}}, {{0, 1, 2, 3}, {0, 0, 0, 1}}}}; });  // channels apart
  for (int type = 0; type < 8; ++type) {
    for (const IdsKind ids : {IdsKind::shared, IdsKind::per_batch}) {
      add([&](RotaryCase& c) { c.batch = 2, c.seq_len = 40, c.ids = ids, c.ids_type = kIntegerTypes[type]; });
    }
    add([&](RotaryCase& c) {
      c.ids = IdsKind::none, c.num_seqs = 3, c.seq_len = 15, c.offsets = true, c.ids_type = kIntegerTypes[type];
    });
  }
  for (int type = 0; type < 4; ++type) {
    for (const RopeSource source : {RopeSource::table, RopeSource::angles}) {
      for (const RopeWidth width : {RopeWidth::half, RopeWidth::full}) {
        add([&](RotaryCase& c) { c.source = source, c.type = kFloatTypes[type], c.width = width; });
        add([&](RotaryCase& c) { c.source = source, c.type = kFloatTypes[type], c.width = width, c.per_token = true; });
      }
    }
  }
  add([](RotaryCase& c) { c.source = RopeSource::inv_freq; });
  add([](RotaryCase& c) { c.source = RopeSource::inv_freq, c.type = DType::f64; });
  add([](RotaryCase& c) { c.source = RopeSource::theta, c.attention_factor = 1.25, c.bounded = false; });
  add([](RotaryCase& c) { c.num_blocks = 2, c.num_axes = 2; });
  add([](RotaryCase& c) { c.num_axes = 3, c.pair_axis = true; });
  add([](RotaryCase& c) { c.ids = IdsKind::none, c.offset = 7, c.bounded = true, c.max_position = 10; });
  add([](RotaryCase& c) { c.ids = IdsKind::none, c.num_seqs = 2, c.seq_len = 12, c.max_seqlen = 3; });
  add([](RotaryCase& c) { c.rotary_dim = 0; });
  for (const int64_t d : {576, 1024}) {
    add([&](RotaryCase& c) { c.head_dim = c.rotary_dim = d, c.misalign = 1; });
    add([&](RotaryCase& c) { c.head_dim = c.rotary_dim = d, c.source = RopeSource::inv_freq; });
    add([&](RotaryCase& c) { c.head_dim = d, c.rotary_dim = 576, c.rotary_offset = d - 576, c.source = RopeSource::theta; });
    add([&](RotaryCase& c) { c.head_dim = c.rotary_dim = d, c.num_blocks = 2, c.source = RopeSource::theta; });
  }
  add([](RotaryCase& c) { c.tensors = {{1}, {2}, {3, false}, {4}}; });
  RotaryCase longer;  // than a grid
  longer.seq_len = 65600, longer.head_dim = longer.rotary_dim = 8, longer.tensors = {{1}};
  cases.push_back(longer);
  return cases;
}

RotaryCase random_rotary_case(uint64_t seed) {
  Random random(seed * 977 + 5);
  const auto chance = [&](int percent) { return random.integer(0, 99) < percent; };
  const auto pick = [&](std::initializer_list<int64_t> list) {
    return *(list.begin() + random.integer(0, static_cast<int64_t>(list.size()) - 1));
  };
  RotaryCase c;
  c.seed = seed;
  c.dtype = kFloatTypes[random.integer(0, 3)];
  c.batch = chance(50) ? 1 : random.integer(0, 3);
  c.seq_len = chance(3) ? 0 : random.integer(1, 9);
  c.head_dim = chance(60) ? pick({2, 4, 8, 16, 32, 64}) : pick({6, 24, 40, 72, 80, 96, 128, 130, 192, 256, 576, 1022, 1024});
  c.num_blocks = chance(75) ? 1 : random.integer(1, 4);
  const int64_t most = c.head_dim / (2 * c.num_blocks);
  if (most == 0) c.num_blocks = 1;
  c.rotary_dim =
      2 * c.num_blocks * (chance(50) ? c.head_dim / (2 * c.num_blocks) : random.integer(0, c.head_dim / (2 * c.num_blocks)));
  c.rotary_offset = chance(60) ? 0 : 2 * random.integer(0, (c.head_dim - c.rotary_dim) / 2);
  c.style = chance(50) ? RopeStyle::neox : RopeStyle::interleaved;
  c.inverse = chance(30);
  c.tail = chance(60) ? RotaryTail::copy : static_cast<RotaryTail>(random.integer(0, 2));

  c.tensors.clear();
  const bool plain = chance(50);
  for (int64_t i = random.integer(1, 4); i > 0; --i) {
    RotaryCaseTensor t;
    t.num_heads = random.integer(1, 5);
    t.rotate = chance(80);
    t.in_place = chance(40);
    for (RotaryLayout* layout : {&t.x, &t.y}) {
      if (plain) continue;
      std::vector<int> order = {0, 1, 2};
      random.shuffle(order);
      std::copy(order.begin(), order.end(), layout->order.begin());
      if (chance(10)) std::swap(layout->order[3], layout->order[static_cast<size_t>(random.integer(0, 2))]);
      for (size_t dim = 0; dim < 4; ++dim) {
        if (chance(dim == 3 ? 5 : 30)) layout->holes[dim] = chance(50) ? 16 : random.integer(1, 5);
      }
    }
    c.tensors.push_back(t);
  }

  c.source = chance(50) ? RopeSource::table : kSources[random.integer(0, 3)];
  if (c.source == RopeSource::theta && c.rotary_dim > 576 * c.num_blocks) c.source = RopeSource::inv_freq;
  const bool given = c.source == RopeSource::table || c.source == RopeSource::angles;
  c.type = kFloatTypes[random.integer(0, 3)];
  if (c.source == RopeSource::inv_freq) c.type = chance(50) ? DType::f32 : DType::f64;
  if (given) {
    c.width = chance(70) ? RopeWidth::half : RopeWidth::full;
    c.per_token = chance(30);
    c.table_per_batch = chance(20);
    c.column_stride = chance(80) ? 1 : 2;
    c.table_holes = chance(70) ? 0 : random.integer(1, 16);
  }
  c.bounded = (given && !c.per_token) || chance(60);
  c.max_position = chance(20) ? random.integer(1, 3) : random.integer(10, 60);
  if (!given && !c.bounded) c.max_position = chance(50) ? 100 : 2000;
  c.attention_factor = chance(70) ? 1.0 : 1.0 + 0.5 * random.uniform();

  c.ids_type = kIntegerTypes[random.integer(0, 7)];
  c.ids = static_cast<IdsKind>(random.integer(0, 2));
  c.ids_token_stride = chance(80) ? 1 : random.integer(1, 3);
  c.bad_ids = chance(60);
  if (c.ids == IdsKind::none) {
    c.offset = chance(60) ? 0 : random.integer(-4, 12);
    c.offsets = chance(50);
    c.one_offset = chance(30);
    if (c.batch == 1 && chance(40)) c.num_seqs = random.integer(1, 5);
    c.max_seqlen = chance(80) ? 0 : random.integer(1, 6);
  }
  if (chance(30)) {
    c.num_axes = random.integer(1, 4);
    c.pair_axis = c.num_axes != c.num_blocks || chance(50);
  }
  c.misalign = chance(70) ? 0 : random.integer(1, 5);
  c.faults = chance(90);
  c.token_faults = chance(50);
  c.plan = chance(20) && c.batch * c.seq_len > 0;
  if (chance(40)) c.past_table = static_cast<PastTable>(random.integer(0, 2));
  if (!c.faults && c.bounded && c.past_table == PastTable::record) c.past_table = PastTable::zero;
  // Without a bound a position may be anything, and an angle beyond 2^31 is NaN.
  c.extremes = c.ids == IdsKind::none && (c.bounded || c.per_token) && chance(20);
  c.inverse_by_own_sine = c.inverse && chance(30);
  return c;
}

}  // namespace prologue::test
