// Compares the operations over tokens, the matrix product, and those of a mixture of experts.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>

#include <prologue/kernels/gemm/gemm.h>
#include <prologue/kernels/moe/moe_combine.h>
#include <prologue/kernels/moe/moe_gemm.h>
#include <prologue/kernels/moe/moe_route.h>
#include <prologue/kernels/projection/projection.h>
#include <prologue/kernels/token_ops/activation.h>
#include <prologue/kernels/token_ops/add.h>
#include <prologue/kernels/token_ops/embedding.h>
#include <prologue/kernels/token_ops/end_step.h>
#include <prologue/kernels/token_ops/gate.h>
#include <prologue/kernels/token_ops/gather_cos_sin.h>
#include <prologue/kernels/token_ops/logprobs.h>
#include <prologue/kernels/token_ops/norm.h>
#include <prologue/kernels/token_ops/sampling.h>
#include <prologue/kernels/token_ops/scale_logits.h>
#include <prologue/kernels/token_ops/take_tokens.h>

#include "tests/fuzz/differential.h"
#include "tests/support/tolerance.h"

namespace prologue::test {

namespace {

template <class T>
int64_t misaligned(Random& random) {
  return random.integer(0, 3) == 0 ? random.integer(0, 7) * static_cast<int64_t>(sizeof(T)) : 0;
}

IndexView place_indices(Arena& arena, Random& random, const std::vector<int64_t>& values) {
  if (random.integer(0, 1) == 0) return index_view(arena.input(values));
  std::vector<int32_t> narrow;
  for (const int64_t value : values) narrow.push_back(static_cast<int32_t>(std::clamp<int64_t>(value, INT32_MIN, INT32_MAX)));
  return index_view(arena.input(narrow));
}

template <class T>
double largest(const std::vector<T>& values) {
  double most = 0.0;
  for (const T& value : values) most = std::max(most, std::fabs(static_cast<double>(to_float(value))));
  return most;
}

Outcome run_embedding(Backend backend, uint64_t seed, const Sizes& sizes) {
  Random random(seed);
  EmbeddingParams p;
  p.width = random_width(random);
  p.num_tokens = random_tokens(random, sizes, p.width);
  p.num_rows = std::clamp<int64_t>(sizes.max_elements / p.width, 1, random.integer(1, 50000));
  p.scale = random.integer(0, 2) > 0 ? 1.0f : std::sqrt(static_cast<float>(p.width));
  return with_random_dtype(random, [&](auto type) {
    using T = decltype(type);
    Arena arena(backend);
    p.dtype = FloatFormat<T>::dtype;
    p.table = arena.input(many_normals<T>(random, p.num_rows * p.width), misaligned<T>(random));
    std::vector<int64_t> ids(static_cast<size_t>(p.num_tokens));
    for (int64_t& id : ids)
      id = random.integer(0, 40) > 0 ? random.integer(0, p.num_rows - 1) : random.integer(0, 1) > 0 ? -1 : INT64_MAX;
    p.indices = place_indices(arena, random, ids);
    p.out = arena.output<T>(p.num_tokens * p.width, misaligned<T>(random));
    p.faults = arena.inout(std::vector<FaultRecord>(1));
    p.token_faults = arena.inout(std::vector<uint8_t>(static_cast<size_t>(p.num_tokens)));
    const Status status = arena.run([&](const Execution& execution) { return embedding(p, execution); });
    return outcome(
        str_cat(dtype_name(p.dtype), " T=", p.num_tokens, " rows=", p.num_rows, " width=", p.width, " scale=", p.scale), status,
        arena,
        {{p.out, "out", element_of<T>(), {{"token", p.width}, {"channel", 1}}},
         {p.faults, "faults", Element::int64},
         {p.token_faults, "token_faults", Element::byte, {{"token", 1}}}});
  });
}

// Both backends are within 16 units of 2^-24 and a rounding of the real value.
Outcome run_norm(Backend backend, uint64_t seed, const Sizes& sizes) {
  Random random(seed);
  NormParams p;
  p.width = random_width(random);
  p.num_tokens = random_tokens(random, sizes, p.width);
  p.kind = random.integer(0, 2) > 0 ? NormKind::rms : NormKind::layer;
  return with_random_dtype(random, [&](auto type) {
    using T = decltype(type);
    Arena arena(backend);
    p.dtype = FloatFormat<T>::dtype;
    const std::vector<T> x = many_normals<T>(random, p.num_tokens * p.width);
    const bool in_place = random.integer(0, 1) == 0;
    const int64_t misalign = misaligned<T>(random);
    p.out = in_place ? arena.inout(x, misalign) : arena.output<T>(p.num_tokens * p.width, misalign);
    p.x = in_place ? p.out : arena.input(x, misalign);
    if (random.integer(0, 1) == 0) p.residual = arena.inout(many_normals<T>(random, p.num_tokens * p.width), misalign);
    const bool float_weights = random.integer(0, 3) == 0;
    if (float_weights) p.weight_type = DType::f32;
    double scale = std::sqrt(static_cast<double>(p.width));  // no element of a normalised row is larger
    const auto place = [&]() -> const void* {
      const std::vector<T> of_type = random.normals<T>(p.width);
      scale *= std::max(1.0, largest(of_type));
      if (!float_weights) return arena.input(of_type, misalign);
      std::vector<float> wide;
      for (const T value : of_type) wide.push_back(to_float(value));
      return arena.input(wide);
    };
    if (random.integer(0, 5) > 0) p.weight = place();
    if (random.integer(0, 2) == 0) p.bias = place();
    const Status status = arena.run([&](const Execution& execution) { return norm(p, execution); });
    return outcome(str_cat(dtype_name(p.dtype), " T=", p.num_tokens, " width=", p.width, in_place ? " in place" : "", " kind=",
                           static_cast<int>(p.kind), " residual=", p.residual != nullptr, " weight=", p.weight != nullptr,
                           " bias=", p.bias != nullptr, float_weights ? " float32" : "", " misalign=", misalign),
                   status, arena,
                   {{p.out,
                     "out",
                     element_of<T>(),
                     {{"token", p.width}, {"channel", 1}},
                     1.0,
                     2.0 * kDefaultSteps * 0x1p-24 * std::min(scale, 80.0)},
                    {p.residual, "residual", element_of<T>(), {{"token", p.width}, {"channel", 1}}}});
  });
}

Outcome run_activation(Backend backend, uint64_t seed, const Sizes& sizes) {
  Random random(seed);
  ActivationParams p;
  p.width = random_width(random);
  p.kind = static_cast<Activation>(random.integer(0, static_cast<int64_t>(Activation::clamped_swiglu)));
  p.gated = p.kind == Activation::clamped_swiglu || random.integer(0, 2) > 0;
  p.groups = random.integer(0, 2) > 0 ? 1 : random.integer(2, 8);
  const int64_t columns = p.groups * p.width * (p.gated ? 2 : 1);
  p.num_tokens = random_tokens(random, sizes, columns);
  p.x_stride = columns + (random.integer(0, 2) > 0 ? 0 : random.integer(1, 64));
  return with_random_dtype(random, [&](auto type) {
    using T = decltype(type);
    Arena arena(backend);
    p.dtype = FloatFormat<T>::dtype;
    const std::vector<T> x = many_normals<T>(random, p.num_tokens * p.x_stride, random.integer(0, 3) == 0 ? 20.0 : 1.0);
    p.x = arena.input(x, misaligned<T>(random));
    p.out = arena.output<T>(p.num_tokens * p.groups * p.width, misaligned<T>(random));
    const Status status = arena.run([&](const Execution& execution) { return activation(p, execution); });
    const double scale = std::max(1.0, largest(x));
    return outcome(str_cat(dtype_name(p.dtype), " T=", p.num_tokens, " groups=", p.groups, " width=", p.width,
                           " stride=", p.x_stride, " kind=", static_cast<int>(p.kind), p.gated ? " gated" : ""),
                   status, arena,
                   {{p.out,
                     "out",
                     element_of<T>(),
                     {{"token", p.groups * p.width}, {"group", p.width}, {"channel", 1}},
                     1.0,
                     2.0 * kDefaultSteps * 0x1p-24 * scale * scale * (p.kind == Activation::relu2 ? scale : 1.0)}});
  });
}

Outcome run_add(Backend backend, uint64_t seed, const Sizes& sizes) {
  Random random(seed);
  AddParams p;
  p.width = random_width(random);
  p.num_tokens = random_tokens(random, sizes, p.width);
  const auto stride = [&] { return p.width + (random.integer(0, 1) == 0 ? 0 : random.integer(1, 64)); };
  p.a_stride = p.out_stride = stride();
  p.b_stride = stride();
  return with_random_dtype(random, [&](auto type) {
    using T = decltype(type);
    Arena arena(backend);
    p.dtype = FloatFormat<T>::dtype;
    const std::vector<T> a = many_normals<T>(random, p.num_tokens * p.a_stride);
    const bool in_place = random.integer(0, 1) == 0;
    const int64_t misalign = misaligned<T>(random);
    p.out = in_place ? arena.inout(a, misalign) : arena.output<T>(p.num_tokens * p.out_stride, misalign);
    p.a = in_place ? p.out : arena.input(a, misalign);
    p.b = arena.input(many_normals<T>(random, p.num_tokens * p.b_stride), misaligned<T>(random));
    const Status status = arena.run([&](const Execution& execution) { return add(p, execution); });
    return outcome(str_cat(dtype_name(p.dtype), " T=", p.num_tokens, " width=", p.width, " strides=", p.a_stride, ",", p.b_stride,
                           in_place ? " in place" : ""),
                   status, arena, {{p.out, "out", element_of<T>(), {{"token", p.out_stride}, {"channel", 1}}}});
  });
}

Outcome run_gate(Backend backend, uint64_t seed, const Sizes& sizes) {
  Random random(seed);
  GateParams p;
  p.width = random_width(random);
  p.num_tokens = random_tokens(random, sizes, p.width);
  const auto stride = [&] { return p.width + (random.integer(0, 1) == 0 ? 0 : random.integer(1, 64)); };
  p.x_stride = p.out_stride = stride();
  p.gate_stride = stride();
  return with_random_dtype(random, [&](auto type) {
    using T = decltype(type);
    Arena arena(backend);
    p.dtype = FloatFormat<T>::dtype;
    const std::vector<T> x = many_normals<T>(random, p.num_tokens * p.x_stride);
    const bool in_place = random.integer(0, 1) == 0;
    const int64_t misalign = misaligned<T>(random);
    p.out = in_place ? arena.inout(x, misalign) : arena.output<T>(p.num_tokens * p.out_stride, misalign);
    p.x = in_place ? p.out : arena.input(x, misalign);
    p.gate = arena.input(many_normals<T>(random, p.num_tokens * p.gate_stride), misaligned<T>(random));
    const Status status = arena.run([&](const Execution& execution) { return gate(p, execution); });
    return outcome(str_cat(dtype_name(p.dtype), " T=", p.num_tokens, " width=", p.width, " strides=", p.x_stride, ",",
                           p.gate_stride, in_place ? " in place" : ""),
                   status, arena, {{p.out, "out", element_of<T>(), {{"token", p.out_stride}, {"channel", 1}}}});
  });
}

Outcome run_scale_logits(Backend backend, uint64_t seed, const Sizes& sizes) {
  Random random(seed);
  ScaleLogitsParams p;
  p.width = random.integer(0, 1) == 0 ? random_width(random) : random.integer(30000, 260000);
  p.num_rows = std::min<int64_t>(random_tokens(random, sizes, p.width), 300);
  p.scale = random.integer(0, 1) == 0 ? 1.0f : 0.0625f;
  p.soft_cap = random.integer(0, 2) == 0 ? 0.0f : 30.0f;
  Arena arena(backend);
  const std::vector<float> x = many_normals<float>(random, p.num_rows * p.width, 20.0);
  const int64_t misalign = misaligned<float>(random);
  const bool in_place = random.integer(0, 1) == 0;
  p.out = in_place ? arena.inout(x, misalign) : arena.output<float>(p.num_rows * p.width, misalign);
  p.x = in_place ? p.out : arena.input(x, misalign);
  const Status status = arena.run([&](const Execution& execution) { return scale_logits(p, execution); });
  return outcome(str_cat("rows=", p.num_rows, " width=", p.width, " scale=", p.scale, " cap=", p.soft_cap), status, arena,
                 {{p.out, "out", Element::f32, {{"row", p.width}, {"token", 1}}}});
}

Outcome run_gather_cos_sin(Backend backend, uint64_t seed, const Sizes& sizes) {
  Random random(seed);
  GatherCosSinParams p;
  p.rotary_dim = 2 * random.integer(1, 288);
  p.num_tokens = random_tokens(random, sizes, p.rotary_dim);
  p.max_position = random.integer(1, 9000);
  p.num_axes = random.integer(1, 4);
  p.position_axis_stride = p.num_tokens + random.integer(0, 5);
  Arena arena(backend);
  constexpr DType kTypes[] = {DType::f32, DType::f16, DType::bf16};
  p.type = kTypes[random.integer(0, 2)];
  with_host_type(
      p.type, [&](auto type) { p.cos_sin = arena.input(many_normals<decltype(type)>(random, p.max_position * p.rotary_dim)); });
  std::vector<int64_t> positions(static_cast<size_t>(p.num_axes * p.position_axis_stride));
  for (int64_t& position : positions) {
    const int64_t bad[] = {-1, INT64_MIN, INT64_MAX, p.max_position, INT32_MAX};
    position = random.integer(0, 20) > 0 ? random.integer(0, p.max_position - 1) : bad[random.integer(0, 4)];
  }
  p.positions = place_indices(arena, random, positions);
  if (p.num_axes > 1 || random.integer(0, 1) == 0) {
    std::vector<uint8_t> axes(static_cast<size_t>(p.rotary_dim / 2));
    for (uint8_t& axis : axes)
      axis = static_cast<uint8_t>(random.integer(0, 9) > 0 ? random.integer(0, p.num_axes - 1) : random.integer(0, 255));
    p.pair_axis = arena.input(axes);
  }
  p.out = arena.output<float>(p.num_tokens * p.rotary_dim);
  p.past_table = static_cast<PastTable>(random.integer(0, 2));
  const Status status = arena.run([&](const Execution& execution) { return gather_cos_sin(p, execution); });
  return outcome(str_cat("T=", p.num_tokens, " r=", p.rotary_dim, " max=", p.max_position, " axes=", p.num_axes, " ",
                         dtype_name(p.type), " past=", static_cast<int>(p.past_table)),
                 status, arena, {{p.out, "out", Element::f32, {{"token", p.rotary_dim}, {"column", 1}}}});
}

int64_t random_vocab_size(Random& random, const Sizes& sizes) {
  static constexpr int64_t kVocabularies[] = {32000, 49152, 50257, 128256, 151936, 256000};
  const int64_t size =
      random.integer(0, 2) == 0 ? random.integer(1, 5000) : kVocabularies[random.integer(0, std::size(kVocabularies) - 1)];
  return std::min(size, 100 * sizes.max_tokens);
}

int64_t random_logit_rows(Random& random, const Sizes& sizes, int64_t vocab_size) {
  return std::min(random_tokens(random, {.max_tokens = 256}, vocab_size),
                  std::max<int64_t>(1, sizes.max_elements / 8 / vocab_size));
}

// Some with ties, some with what is no number.
std::vector<float> random_logits(Random& random, int64_t num_rows, int64_t stride) {
  std::vector<float> logits = many_normals<float>(random, num_rows * stride, 4.0);
  if (random.integer(0, 2) == 0) {
    for (float& logit : logits) logit = std::round(logit);
  }
  if (random.integer(0, 3) == 0) {
    const float odd[] = {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity(), 1e30f, -0.0f};
    for (int64_t i = 0; i < num_rows; ++i) logits[random.bits() % logits.size()] = odd[random.integer(0, 3)];
  }
  return logits;
}

Outcome run_sampling(Backend backend, uint64_t seed, const Sizes& sizes) {
  Random random(seed);
  SamplingParams p;
  p.vocab_size = random_vocab_size(random, sizes);
  p.num_rows = random_logit_rows(random, sizes, p.vocab_size);
  p.logits_stride = p.vocab_size + (random.integer(0, 2) == 0 ? random.integer(1, 9) : 0);
  Arena arena(backend);
  p.logits = arena.input(random_logits(random, p.num_rows, p.logits_stride));
  // These are what some rows are adjusted by.
  const size_t vocab_size = static_cast<size_t>(p.vocab_size);
  std::vector<float> bias = many_normals<float>(random, p.vocab_size);
  for (int i = 0; i < 9; ++i) bias[random.bits() % vocab_size] = -std::numeric_limits<float>::infinity();
  const float* const some_bias = arena.input(bias);
  std::vector<Output> outputs;
  std::vector<SamplingRow> rows(static_cast<size_t>(p.num_rows));
  for (SamplingRow& row : rows) {
    const auto some = [&](float value) { return random.integer(0, 1) == 0 ? value : 0.0f; };
    row.temperature = some(static_cast<float>(0.1 + 2.0 * random.uniform()));
    row.top_k = random.integer(0, 1) == 0 ? 0 : static_cast<int32_t>(random.integer(1, 200));
    row.top_p = random.integer(0, 1) == 0 ? 1.0f : static_cast<float>(random.uniform());
    row.min_p = some(static_cast<float>(0.3 * random.uniform()));
    row.seed = random.bits();
    row.position = random.integer(0, 100000);
    if (random.integer(0, 15) == 0) row.temperature = -1.0f;
    if (random.integer(0, 15) == 0) row.top_p = std::numeric_limits<float>::quiet_NaN();
    if (random.integer(0, 3) == 0) row.bias = some_bias;
    if (random.integer(0, 3) > 0) continue;
    std::vector<int32_t> counts(vocab_size);
    for (int i = 0; i < 2000; ++i) counts[random.bits() % vocab_size] = static_cast<int32_t>(random.integer(-1, 9));
    row.counts = arena.inout(counts);
    outputs.push_back({row.counts, str_cat("counts of row ", &row - rows.data()), Element::int32, {{"token", 1}}});
    row.repetition_penalty = random.integer(0, 1) == 0 ? 1.0f : static_cast<float>(0.5 + random.uniform());
    row.presence_penalty = some(static_cast<float>(random.normal()));
    row.frequency_penalty = some(static_cast<float>(random.normal()));
  }
  p.rows = arena.input(rows);
  p.tokens = arena.output<int32_t>(p.num_rows);
  p.row_faults = arena.output<uint8_t>(p.num_rows);
  outputs.push_back({p.tokens, "tokens", Element::int32, {{"row", 1}}});
  outputs.push_back({p.row_faults, "row_faults", Element::byte, {{"row", 1}}});
  const Status status = arena.run([&](const Execution& execution) { return sample(p, execution); });
  return outcome(str_cat("rows=", p.num_rows, " vocab=", p.vocab_size, " stride=", p.logits_stride), status, arena, outputs);
}

Outcome run_logprobs(Backend backend, uint64_t seed, const Sizes& sizes) {
  Random random(seed);
  LogprobsParams p;
  p.vocab_size = random_vocab_size(random, sizes);
  p.num_rows = random_logit_rows(random, sizes, p.vocab_size);
  p.logits_stride = p.vocab_size + (random.integer(0, 2) == 0 ? random.integer(1, 9) : 0);
  p.top = random.integer(0, kMaxTopLogprobs);
  Arena arena(backend);
  p.logits = arena.input(random_logits(random, p.num_rows, p.logits_stride));
  std::vector<int32_t> tokens(static_cast<size_t>(p.num_rows));
  for (int32_t& token : tokens) token = static_cast<int32_t>(random.integer(-1, p.vocab_size));
  p.tokens = arena.input(tokens);
  p.logprobs = arena.output<float>(p.num_rows * (p.top + 1));
  p.ids = arena.output<int32_t>(p.num_rows * (p.top + 1));
  const Status status = arena.run([&](const Execution& execution) { return logprobs(p, execution); });
  return outcome(str_cat("rows=", p.num_rows, " vocab=", p.vocab_size, " stride=", p.logits_stride, " top=", p.top), status,
                 arena,
                 {{p.ids, "ids", Element::int32, {{"row", p.top + 1}, {"entry", 1}}},
                  {p.logprobs, "logprobs", Element::f32, {{"row", p.top + 1}, {"entry", 1}}}});
}

Outcome run_take_tokens(Backend backend, uint64_t seed, const Sizes& sizes) {
  Random random(seed);
  TakeTokensParams p;
  p.num_tokens = random_tokens(random, sizes, 1);
  p.num_sampled = random.integer(0, 300);
  Arena arena(backend);
  std::vector<int32_t> from(static_cast<size_t>(p.num_tokens)), tokens(static_cast<size_t>(p.num_sampled)), ids = from;
  for (int32_t& index : from) index = static_cast<int32_t>(random.integer(-100, p.num_sampled));
  for (int32_t& token : tokens) token = static_cast<int32_t>(random.integer(0, 99999));
  for (int32_t& id : ids) id = static_cast<int32_t>(random.integer(0, 99999));
  p.from = arena.input(from);
  p.tokens = arena.input(tokens);
  p.token_ids = arena.inout(ids);
  const Status status = arena.run([&](const Execution& execution) { return take_tokens(p, execution); });
  return outcome(str_cat("T=", p.num_tokens, " sampled=", p.num_sampled), status, arena,
                 {{p.token_ids, "token_ids", Element::int32, {{"token", 1}}}});
}

// Compares rows of any sequences, in half of the cases malformed, and the next step.
Outcome run_end_step(Backend backend, uint64_t seed, const Sizes& sizes) {
  Random random(seed);
  EndStepParams p;
  p.num_tokens = random_tokens(random, sizes, 1);
  p.num_seqs = random.integer(1, std::min<int64_t>(p.num_tokens, 1500));
  p.advance = static_cast<int32_t>(random.integer(0, 1));
  p.num_position_axes = random.integer(1, 4);
  p.position_axis_stride = p.num_seqs + random.integer(0, 5);
  p.num_groups = random.integer(1, kMaxStepGroups);
  Arena arena(backend);
  const size_t num_seqs = static_cast<size_t>(p.num_seqs);
  const auto integers = [&]<class T>(std::vector<T> values, int64_t low, int64_t high) {
    for (T& value : values) value = static_cast<T>(random.integer(low, high));
    return values;
  };
  std::vector<int32_t> rows = integers(std::vector<int32_t>(num_seqs + 1), -2, p.num_tokens + 2);
  if (random.integer(0, 1) == 0) std::sort(rows.begin(), rows.end());
  p.cu_seqlens_q = arena.input(rows);
  const int64_t one_in = random.integer(0, 1) * random.integer(1, 1000);
  std::vector<uint8_t> faults(static_cast<size_t>(p.num_tokens));
  for (uint8_t& fault : faults)
    fault = one_in > 0 && random.integer(1, one_in) == 1 ? static_cast<uint8_t>(random.integer(1, 7)) : 0;
  p.token_faults = arena.inout(faults);
  p.seq_faults = arena.output<uint8_t>(p.num_seqs);
  p.tokens = arena.input(integers(std::vector<int32_t>(num_seqs), 0, 99999));
  p.token_ids = arena.inout(integers(std::vector<int32_t>(num_seqs), 0, 99999));
  p.positions = arena.inout(
      integers(std::vector<int32_t>(static_cast<size_t>(p.num_position_axes * p.position_axis_stride)), INT32_MIN, INT32_MAX));
  p.seq_lens = arena.inout(integers(std::vector<int32_t>(num_seqs), -1, 3000));
  std::vector<SamplingRow> sampling_rows(num_seqs);
  for (SamplingRow& row : sampling_rows) row.position = static_cast<int64_t>(random.bits());
  if (random.integer(0, 3) > 0) p.rows = arena.inout(sampling_rows);
  std::vector<Output> outputs = {{p.token_faults, "token_faults", Element::byte, {{"token", 1}}},
                                 {p.seq_faults, "seq_faults", Element::byte, {{"sequence", 1}}},
                                 {p.token_ids, "token_ids", Element::int32, {{"sequence", 1}}},
                                 {p.positions, "positions", Element::int32, {{"axis", p.position_axis_stride}, {"sequence", 1}}},
                                 {p.seq_lens, "seq_lens", Element::int32, {{"sequence", 1}}},
                                 {p.rows, "rows", Element::byte, {{"sequence", sizeof(SamplingRow)}, {"byte", 1}}}};
  for (int64_t g = 0; g < p.num_groups; ++g) {
    EndStepGroup& group = p.groups[g];
    group.page_size = random.integer(1, 200);
    group.max_pages = random.integer(1, 40);
    group.block_table_stride = group.max_pages + random.integer(0, 3);
    group.num_pages = random.integer(1, INT32_MAX);
    group.block_table = arena.input(
        integers(std::vector<int32_t>(static_cast<size_t>(p.num_seqs * group.block_table_stride)), -1, group.num_pages));
    group.slot_mapping = arena.inout(integers(std::vector<int64_t>(num_seqs), 0, 99999));
    outputs.push_back({group.slot_mapping, str_cat("slot_mapping of group ", g), Element::int64, {{"sequence", 1}}});
  }
  const Status status = arena.run([&](const Execution& execution) { return end_step(p, execution); });
  return outcome(str_cat("T=", p.num_tokens, " sequences=", p.num_seqs, " advance=", p.advance, " axes=", p.num_position_axes,
                         " groups=", p.num_groups),
                 status, arena, outputs);
}

// The order of the sum differs: sqrt(K) steps each (at least 16), of a sum of |terms| below |row of x| |row of weight|.
Outcome run_gemm(Backend backend, uint64_t seed, const Sizes& sizes) {
  Random random(seed);
  GemmParams p;
  p.k = random_width(random), p.n = random_width(random);
  p.n = std::clamp<int64_t>(sizes.max_elements / p.k, 1, p.n);
  p.m = std::min(random_tokens(random, sizes, std::max(p.k, p.n)),
                 std::max<int64_t>(1, (sizes.max_products >> random.integer(0, 6)) / p.k / p.n));
  return with_random_dtype(random, [&](auto type) {
    using T = decltype(type);
    Arena arena(backend);
    const auto run = [&](auto y_type) {
      using Y = decltype(y_type);
      p.dtype = FloatFormat<T>::dtype, p.y_dtype = FloatFormat<Y>::dtype;
      p.x_stride = p.k + (random.integer(0, 3) == 0 ? random.integer(1, 9) : 0);
      p.y_stride = p.n + (random.integer(0, 3) == 0 ? random.integer(1, 9) : 0);
      p.x = arena.input(many_normals<T>(random, p.m * p.x_stride));
      p.weight = arena.input(many_normals<T>(random, p.n * p.k));
      p.batch_invariant = random.integer(0, 2) == 0;
      if (random.integer(0, 1) == 0) p.bias = arena.input(random.normals<T>(p.n));
      p.y = arena.output<Y>(p.m * p.y_stride);
      const Result<GemmContext*> context = context_for(backend);
      const Status status =
          context.ok() ? arena.run([&](const Execution& execution) { return gemm(p, **context, execution); }) : context.status();
      const double k = static_cast<double>(p.k), terms = 2.0 * k + 40.0 * std::sqrt(k);  // of squares of normal numbers
      return outcome(str_cat(dtype_name(p.dtype), " to ", dtype_name(p.y_dtype), " M=", p.m, " N=", p.n, " K=", p.k, " strides ",
                             p.x_stride, ", ", p.y_stride, " bias=", p.bias != nullptr, " batch_invariant=", p.batch_invariant),
                     status, arena,
                     {{p.y,
                       "y",
                       element_of<Y>(),
                       {{"row", p.y_stride}, {"column", 1}},
                       1.0,
                       2.0 * std::max(kDefaultSteps, std::sqrt(k)) * 0x1p-24 * terms}});
    };
    return random.integer(0, 1) == 0 ? run(float{}) : run(T{});
  });
}

// There are few tokens, which one kernel does on a GPU. Rows of x have one magnitude and weights are small whole numbers, few in a row, so
// that every order of a sum gives the same product: only activations differ.
Outcome run_projection(Backend backend, uint64_t seed, const Sizes& sizes) {
  Random random(seed);
  ProjectionParams p;
  const auto chance = [&] { return random.integer(0, 1) == 0; };
  p.k = random_width(random), p.n = random_width(random);
  p.n = std::clamp<int64_t>(sizes.max_elements / p.k / 2, 1, p.n);
  p.num_tokens = random.integer(0, 3) > 0 ? random.integer(1, 32) : random.integer(33, 100);
  p.num_tokens = std::clamp<int64_t>(sizes.max_products / p.k / p.n / 2, 1, std::min(p.num_tokens, sizes.max_tokens));
  return with_random_dtype(random, [&](auto type) {
    using T = decltype(type);
    Arena arena(backend);
    p.dtype = FloatFormat<T>::dtype;
    p.norm.given = chance() ? 1 : 0;
    p.norm.eps = 0.0f;
    p.activation.given = chance() ? 1 : 0;
    p.activation.kind = static_cast<Activation>(random.integer(0, static_cast<int64_t>(Activation::clamped_swiglu)));
    p.activation.gated = p.activation.kind == Activation::clamped_swiglu || chance();
    p.adds = chance() ? 1 : 0;
    p.batch_invariant = random.integer(0, 4) == 0;
    p.overlaps = chance();
    p.x_stride = p.k + (p.norm.given == 0 && random.integer(0, 3) == 0 ? 8 * random.integer(1, 9) : 0);
    p.y_stride = p.n + ((p.activation.given == 0 || p.adds != 0) && random.integer(0, 3) == 0 ? random.integer(1, 9) : 0);
    const auto whole = [&](int64_t low, int64_t high) { return from_float<T>(static_cast<float>(random.integer(low, high))); };
    std::vector<T> x(static_cast<size_t>(p.num_tokens * p.x_stride));
    for (size_t i = 0; i < x.size(); ++i) {
      const float magnitude = p.norm.given != 0 && i / static_cast<size_t>(p.x_stride) % 2 != 0 ? 4.0f : 1.0f;
      x[i] = from_float<T>(chance() ? magnitude : -magnitude);
    }
    p.x = arena.input(x);
    const int64_t rows = p.n * (p.activation.given != 0 && p.activation.gated ? 2 : 1);
    std::vector<T> weight(static_cast<size_t>(rows * p.k));
    for (int64_t row = 0; row < rows; ++row) {
      for (int i = 0; i < 24; ++i) weight[static_cast<size_t>(row * p.k + random.integer(0, p.k - 1))] = whole(-2, 2);
    }
    p.weight = arena.input(weight);
    const auto vector = [&](int64_t count, int64_t low, int64_t high) {
      std::vector<T> values;
      for (int64_t i = 0; i < count; ++i) values.push_back(whole(low, high));
      return arena.input(values);
    };
    if (p.norm.given != 0 && chance()) p.norm.weight = vector(p.k, 1, 2);
    if (chance()) p.bias = vector(rows, -8, 8);
    const bool float_y = p.activation.given == 0 && p.adds == 0 && chance();
    p.y_dtype = float_y ? DType::f32 : DType::unset;
    const int64_t count = p.num_tokens * p.y_stride;
    p.y = float_y ? static_cast<void*>(arena.inout(many_normals<float>(random, count)))
                  : arena.inout(many_normals<T>(random, count));
    p.workspace_bytes = projection_workspace_bytes(p);
    p.workspace = arena.workspace(p.workspace_bytes);
    const Result<GemmContext*> context = context_for(backend);
    const Status status = context.ok()
                              ? arena.run([&](const Execution& execution) { return projection(p, **context, execution); })
                              : context.status();
    const bool exact = p.activation.given == 0;
    return outcome(str_cat(dtype_name(p.dtype), " T=", p.num_tokens, " n=", p.n, " k=", p.k, " strides ", p.x_stride, ", ",
                           p.y_stride, " norm=", p.norm.given, p.norm.weight != nullptr, " bias=", p.bias != nullptr,
                           " activation=", p.activation.given, static_cast<int>(p.activation.kind), p.activation.gated, " adds=",
                           p.adds, " float_y=", float_y, " batch_invariant=", p.batch_invariant, " overlaps=", p.overlaps),
                   status, arena,
                   {{p.y,
                     "y",
                     float_y ? element_of<float>() : element_of<T>(),
                     {{"token", p.y_stride}, {"channel", 1}},
                     exact ? 0.0 : 2.0,
                     exact ? 0.0 : 0x1p-20 * 100.0 * 100.0}});
  });
}

struct Experts {
  int64_t num_experts, top_k, hidden, intermediate;
};
// Mixtral, Qwen3-MoE, GPT-OSS, Llama 4, and small ones.
Experts random_experts(Random& random) {
  static constexpr Experts kModels[] = {{8, 2, 4096, 14336}, {128, 8, 2048, 768}, {32, 4, 2880, 2880}, {16, 1, 5120, 8192}};
  if (random.integer(0, 1) == 0) return kModels[random.integer(0, std::size(kModels) - 1)];
  const int64_t num_experts = random.integer(1, 200);
  return {num_experts, random.integer(1, std::min<int64_t>(num_experts, 32)), random.integer(1, 600), random.integer(1, 600)};
}

Outcome run_moe_route(Backend backend, uint64_t seed, const Sizes& sizes) {
  Random random(seed);
  const Experts experts = random_experts(random);
  MoeRouteParams p;
  p.num_experts = experts.num_experts;
  p.top_k = experts.top_k;
  p.num_tokens = random_tokens(random, sizes, p.num_experts);
  p.weighting = static_cast<ExpertWeighting>(random.integer(0, static_cast<int64_t>(ExpertWeighting::sigmoid)));
  p.normalize = p.weighting == ExpertWeighting::softmax_then_top_k && random.integer(0, 1) == 0;
  p.logits_stride = p.num_experts + random.integer(0, 1) * random.integer(1, 9);
  return with_random_dtype(random, [&](auto type) {
    using T = decltype(type);
    Arena arena(backend);
    p.dtype = FloatFormat<T>::dtype;
    std::vector<T> logits = many_normals<T>(random, p.num_tokens * p.logits_stride, 3.0);
    if (!logits.empty() && random.integer(0, 3) == 0) {
      logits[static_cast<size_t>(random.integer(0, static_cast<int64_t>(logits.size()) - 1))] =
          from_float<T>(std::numeric_limits<float>::quiet_NaN());
    }
    p.logits = arena.input(logits, misaligned<T>(random));
    p.expert_ids = arena.output<int32_t>(p.num_tokens * p.top_k);
    p.expert_weights = arena.output<float>(p.num_tokens * p.top_k);
    const Status status = arena.run([&](const Execution& execution) { return moe_route(p, execution); });
    return outcome(str_cat(dtype_name(p.dtype), " T=", p.num_tokens, " top ", p.top_k, " of ", p.num_experts, " stride=",
                           p.logits_stride, " weighting=", static_cast<int>(p.weighting), p.normalize ? " normalize" : ""),
                   status, arena,
                   {{p.expert_ids, "expert_ids", Element::int32, {{"token", p.top_k}, {"choice", 1}}},
                    {p.expert_weights, "expert_weights", Element::f32, {{"token", p.top_k}, {"choice", 1}}}});
  });
}

// Rows of f8_e4m3, packed: codes below 2 in magnitude, and scales of 0.5 to 1 that are equal where `scaling` says so.
std::vector<uint8_t> float8_rows(Random& random, WeightScaling scaling, int64_t rows, int64_t k) {
  constexpr int64_t kStretch = 65521, kBlock = 128, kBlockBytes = 132;
  std::vector<uint8_t> stretch(kStretch);
  for (uint8_t& code : stretch) code = static_cast<uint8_t>(random.bits() & 0xbf);
  const int64_t of_row = k / kBlock;
  std::vector<uint8_t> blocks(static_cast<size_t>(rows * of_row * kBlockBytes));
  for (int64_t i = 0; i < rows * of_row; ++i) {
    const int64_t row = i / of_row, block = i % of_row;
    uint8_t* const at = blocks.data() + i * kBlockBytes;
    const int64_t of = scaling == WeightScaling::rows ? row * 7 : scaling == WeightScaling::squares ? row / 128 * 11 + block : i;
    const float scale = 0.5f + static_cast<float>(stretch[static_cast<size_t>(of % kStretch)]) / 512.0f;
    std::memcpy(at, &scale, sizeof scale);
    for (int64_t c = 0; c < kBlock; ++c) at[4 + c] = stretch[static_cast<size_t>((i * kBlock + c) % kStretch)];
  }
  std::vector<uint8_t> packed(static_cast<size_t>(packed_weight_bytes(WeightFormat::f8_e4m3, rows, k)));
  static_cast<void>(pack_weight({WeightFormat::f8_e4m3, rows, k, blocks.data(), packed.data()}, {Device::cpu, 2}));
  return packed;
}

// Float8 by float8 at sizes that CUDA divides into pieces. Tensor cores lose what is 13 bits below the largest of 32 products and their sum so far; a
// sum has a deviation of about 0.6 sqrt(k), and is below 7 of them.
Outcome run_float8_gemm(Backend backend, uint64_t seed, const Sizes& sizes) {
  Random random(seed);
  constexpr int64_t kWidths[] = {128, 256, 640, 2048, 4096, 8192, 14336};
  GemmParams p;
  p.k = p.x_stride = kWidths[random.integer(0, std::size(kWidths) - 1)];
  p.quantize_x = DType::fp8_e4m3;
  const auto num_segments = static_cast<int32_t>(random.integer(1, 3));
  const int64_t max_rows = (sizes.max_elements >> random.integer(0, 5)) / p.k / num_segments;
  return with_random_dtype(random, [&](auto type) {
    using T = decltype(type);
    Arena arena(backend);
    std::string segments;
    for (int32_t s = 0; s < num_segments; ++s) {
      const int64_t step = random.integer(0, 3) == 0 ? 1 : 16;
      const int64_t rows = random.integer(1, std::max<int64_t>(1, max_rows / step)) * step;
      const auto scaling = static_cast<WeightScaling>(random.integer(0, 2));
      p.packed.segments[p.packed.num_segments++] = {arena.input(float8_rows(random, scaling, rows, p.k), 16),
                                                    WeightFormat::f8_e4m3, rows, scaling};
      p.n += rows;
      segments += str_cat(" ", rows, " ", weight_scaling_name(scaling));
    }
    p.m = std::min(random_tokens(random, sizes, std::max(p.k, p.n)),
                   std::max<int64_t>(1, (sizes.max_products >> random.integer(0, 6)) / p.k / p.n));
    p.dtype = p.y_dtype = FloatFormat<T>::dtype;
    if (random.integer(0, 3) == 0) p.x_stride += random.integer(1, 9);
    p.y_stride = p.n + (random.integer(0, 3) == 0 ? random.integer(1, 9) : 0);
    p.x = arena.input(many_normals<T>(random, p.m * p.x_stride));
    if (random.integer(0, 1) == 0) p.bias = arena.input(random.normals<T>(p.n));
    p.y = arena.output<T>(p.m * p.y_stride);
    const Result<GemmContext*> context = context_for(backend);
    const Status status =
        context.ok() ? arena.run([&](const Execution& execution) { return gemm(p, **context, execution); }) : context.status();
    const double k = static_cast<double>(p.k);
    return outcome(
        str_cat(dtype_name(p.dtype), " M=", p.m, " N=", p.n, " K=", p.k, " strides ", p.x_stride, ", ", p.y_stride,
                " bias=", p.bias != nullptr, " rows", segments),
        status, arena,
        {{p.y, "y", element_of<T>(), {{"row", p.y_stride}, {"column", 1}}, 1.0, k / 32.0 * 0x1p-13 * 4.2 * std::sqrt(k)}});
  });
}

Outcome run_moe_gemm(Backend backend, uint64_t seed, const Sizes& sizes) {
  Random random(seed);
  const Experts experts = random_experts(random);
  const bool down = random.integer(0, 1) == 0;
  MoeGemmParams p;
  p.top_k = experts.top_k;
  p.num_experts = experts.num_experts;
  p.k = down ? experts.intermediate : experts.hidden;
  // A real model's columns are taken only as far as the weights and the products stay within the sizes.
  const int64_t max_weights = sizes.max_elements >> random.integer(1, 6),
                max_products = sizes.max_products >> random.integer(0, 6);
  p.n = std::clamp<int64_t>(max_weights / (p.num_experts * p.k), 1, down ? experts.hidden : 2 * experts.intermediate);
  p.num_tokens = std::min(random_tokens(random, sizes, p.k * p.top_k), max_products / (p.n * p.k * p.top_k) + 1);
  p.x_per_choice = down;
  return with_random_dtype(random, [&](auto type) {
    using T = decltype(type);
    Arena arena(backend);
    p.dtype = FloatFormat<T>::dtype;
    const int64_t rows = p.num_tokens * p.top_k, misalign = misaligned<T>(random);
    const std::vector<T> x = many_normals<T>(random, (p.x_per_choice ? rows : p.num_tokens) * p.k);
    const std::vector<T> weight = many_normals<T>(random, p.num_experts * p.n * p.k, 0.1);
    p.x = arena.input(x, misalign);
    p.weight = arena.input(weight, misalign);
    if (random.integer(0, 1) == 0) p.bias = arena.input(random.normals<T>(p.num_experts * p.n));
    std::vector<int32_t> ids(static_cast<size_t>(rows));
    const int64_t used = random.integer(0, 2) == 0 ? random.integer(1, p.num_experts) : p.num_experts;
    for (int32_t& id : ids) {
      const bool inside = random.integer(0, 60) > 0;
      id = static_cast<int32_t>(inside ? random.integer(0, used - 1) : random.integer(0, 1) > 0 ? -1 : p.num_experts);
    }
    p.expert_ids = arena.input(ids);
    if (random.integer(0, 3) == 0) {
      std::vector<float> scale(static_cast<size_t>(rows));
      for (float& each : scale) each = static_cast<float>(random.uniform());
      p.row_scale = arena.input(scale);
    }
    p.y = arena.output<T>(rows * p.n, misalign);
    p.workspace_bytes = moe_gemm_workspace_bytes(p, backend_device(backend));
    if (p.workspace_bytes > 0) p.workspace = arena.workspace(p.workspace_bytes);
    const Result<GemmContext*> context = context_for(backend);
    const Status status = context.ok() ? arena.run([&](const Execution& execution) { return moe_gemm(p, **context, execution); })
                                       : context.status();
    const double k = static_cast<double>(p.k), terms = 0.1 * (2.0 * k + 40.0 * std::sqrt(k)) + 5.0;  // with a bias
    return outcome(str_cat(dtype_name(p.dtype), " T=", p.num_tokens, " top ", p.top_k, " of ", p.num_experts, " n=", p.n,
                           " k=", p.k, p.x_per_choice ? " x per choice" : "", " bias=", p.bias != nullptr,
                           " scale=", p.row_scale != nullptr, " misalign=", misalign),
                   status, arena,
                   {{p.y,
                     "y",
                     element_of<T>(),
                     {{"row", p.n}, {"column", 1}},
                     1.0,
                     2.0 * std::max(kDefaultSteps, std::sqrt(k)) * 0x1p-24 * terms}});
  });
}

Outcome run_moe_combine(Backend backend, uint64_t seed, const Sizes& sizes) {
  Random random(seed);
  const Experts experts = random_experts(random);
  MoeCombineParams p;
  p.top_k = experts.top_k;
  p.width = experts.hidden;
  p.num_tokens = random_tokens(random, sizes, p.width * p.top_k);
  return with_random_dtype(random, [&](auto type) {
    using T = decltype(type);
    Arena arena(backend);
    p.dtype = FloatFormat<T>::dtype;
    p.y = arena.input(many_normals<T>(random, p.num_tokens * p.top_k * p.width), misaligned<T>(random));
    if (random.integer(0, 3) > 0) p.expert_weights = arena.input(many_normals<float>(random, p.num_tokens * p.top_k));
    if (random.integer(0, 1) == 0) p.shared = arena.input(many_normals<T>(random, p.num_tokens * p.width), misaligned<T>(random));
    p.out = arena.output<T>(p.num_tokens * p.width, misaligned<T>(random));
    const Status status = arena.run([&](const Execution& execution) { return moe_combine(p, execution); });
    return outcome(str_cat(dtype_name(p.dtype), " T=", p.num_tokens, " top ", p.top_k, " width=", p.width,
                           " weights=", p.expert_weights != nullptr, " shared=", p.shared != nullptr),
                   status, arena, {{p.out, "out", element_of<T>(), {{"token", p.width}, {"channel", 1}}}});
  });
}

}  // namespace

std::vector<Operation> token_operations() {
  return {{"activation", run_activation},
          {"add", run_add},
          {"gate", run_gate},
          {"embedding", run_embedding},
          {"end_step", run_end_step},
          {"gemm", run_gemm},
          {"float8_gemm", run_float8_gemm},
          {"gather_cos_sin", run_gather_cos_sin},
          {"logprobs", run_logprobs},
          {"moe_combine", run_moe_combine},
          {"moe_gemm", run_moe_gemm},
          {"moe_route", run_moe_route},
          {"norm", run_norm},
          {"projection", run_projection},
          {"sampling", run_sampling},
          {"scale_logits", run_scale_logits},
          {"take_tokens", run_take_tokens}};
}

}  // namespace prologue::test
