// Compares paged attention. The CPU and CUDA agree within the sum of their bounds; some rows of each are held against float64 as well.
#include <algorithm>
#include <cmath>

#include "tests/fuzz/differential.h"
#include "tests/support/attention_batch.h"
#include "tests/support/attention_pages.h"
#include "tests/support/types.h"

namespace prologue::test {

namespace {

AttentionCase real_case(Random& random, const Sizes& sizes) {
  const auto percent = [&](int64_t chance) { return random.integer(0, 99) < chance; };
  AttentionCase c;
  const ModelHeads heads = random_heads(random);
  c.num_q_heads = heads.num_q_heads, c.num_kv_heads = heads.num_kv_heads, c.head_dim = heads.head_dim;
  if (c.head_dim == 576 && percent(70)) c.v_head_dim = 512, c.v_within_k = percent(50);
  if (percent(10)) c.v_head_dim = 2 * random.integer(1, 288), c.v_within_k = false;
  c.page_size = percent(50) ? 16 : int64_t{1} << random.integer(0, 8);
  if (percent(10)) c.page_size = random.integer(1, 100);
  c.type = kKvTypes[random.integer(0, std::size(kKvTypes) - 1)];
  if (percent(40)) c.type = DType::bf16;
  const bool fp8 = c.type == DType::fp8_e4m3 || c.type == DType::fp8_e5m2;
  if (!dtype_is_activation(c.type)) c.scaling = static_cast<KvScaling>(random.integer(fp8 ? 0 : 1, 3));
  if (c.type == DType::uint4) c.scaling = KvScaling::token_head;
  if (percent(30) && !c.v_within_k) {
    c.v_format.type = kKvTypes[random.integer(0, std::size(kKvTypes) - 1)];
    const bool v_fp8 = dtype_is_fp8(c.v_format.type);
    if (dtype_is_quantized(c.v_format.type)) c.v_format.scaling = static_cast<KvScaling>(random.integer(v_fp8 ? 0 : 1, 3));
    if (c.v_format.type == DType::uint4) c.v_format.scaling = KvScaling::token_head;
  }
  c.layout = percent(60) ? KvLayout::nhd : kKvLayouts[random.integer(0, std::size(kKvLayouts) - 1)];
  if (c.v_within_k) c.layout = KvLayout::nhd;
  if (percent(20)) c.soft_cap = static_cast<float>(random.integer(1, 50));
  if (percent(25)) c.window = random.integer(1, 4096);
  if (percent(20)) c.chunk = random.integer(1, 4096);
  if (percent(25)) c.sinks = percent(50) ? Sinks::of_dtype : Sinks::of_float;
  c.padding_rows = percent(70) ? 0 : random.integer(1, 40);

  // Tokens of the cache are dealt to the sequences, and then their rows, as far as the products allow.
  const int64_t most = std::max<int64_t>(
      1,
      std::min<int64_t>(12 * sizes.max_tokens, (sizes.max_elements >> random.integer(3, 8)) / (2 * c.num_kv_heads * c.head_dim)));
  int64_t tokens = static_cast<int64_t>(std::pow(static_cast<double>(most), 0.3 + 0.7 * random.uniform()));
  int64_t products = (sizes.max_products >> random.integer(0, 6)) / (c.num_q_heads * 2 * c.head_dim), rows = sizes.max_tokens;
  const bool decode = percent(50);
  if (percent(15)) c.ring_size = random.integer(8, 2000);
  const int64_t num_seqs = random.integer(1, percent(50) ? 3 : 64);
  const int64_t num_decode_seqs = percent(50) ? 0 : random.integer(0, num_seqs);
  for (int64_t s = 0; s < num_seqs; ++s) {
    AttentionSequence sequence;
    sequence.length = s + 1 == num_seqs ? tokens : random.integer(0, tokens);
    if (c.ring_size > 0 && percent(50)) sequence.length += random.integer(0, 5000);
    if (percent(3)) sequence.length = 0;
    tokens = std::max<int64_t>(1, tokens - sequence.length);
    const int64_t allowed = std::clamp<int64_t>(products / std::max<int64_t>(sequence.length, 1), 1, std::max<int64_t>(rows, 1));
    sequence.rows = decode ? random.integer(percent(5) ? 0 : 1, percent(70) ? 1 : 4)
                           : std::min(sequence.length + (percent(5) ? 3 : 0), random.integer(0, allowed));
    if (!decode && percent(50)) sequence.rows = std::min(sequence.length, allowed);
    if (s < num_decode_seqs) sequence.rows = std::min<int64_t>(sequence.rows, 1);
    sequence.rows = std::min(sequence.rows, rows);
    rows -= sequence.rows, products -= sequence.rows * sequence.length;
    c.sequences.push_back(sequence);
  }
  if (c.ring_size > 0) {
    int64_t longest = 1;
    for (AttentionSequence& sequence : c.sequences)
      sequence.rows = std::min(sequence.rows, c.ring_size), longest = std::max(longest, sequence.rows);
    const int64_t widest = c.ring_size - longest + 1;
    c.window = std::clamp<int64_t>(c.window, 1, widest);
  }
  return c;
}

// Compares a few rows of one backend with the definition: a row is a sequence of its own that ends there.
template <class T>
void expect_some_rows(Backend backend, Random& random, const AttentionBatch<T>& batch, const std::vector<T>& rows) {
  const AttentionInputs<T>& in = batch.in;
  const int64_t width = in.num_q_heads * in.v_width();
  for (int i = 0; i < 4; ++i) {
    const auto s = static_cast<size_t>(random.integer(0, static_cast<int64_t>(in.seq_lens.size()) - 1));
    const int64_t begin = in.cu_seqlens_q[s], count = in.cu_seqlens_q[s + 1] - begin;
    if (count == 0) continue;
    const int64_t row = begin + (i == 0 ? count - 1 : random.integer(0, count - 1));
    AttentionInputs<T> one;
    one.num_q_heads = in.num_q_heads, one.num_kv_heads = in.num_kv_heads, one.head_dim = in.head_dim,
    one.v_head_dim = in.v_head_dim;
    one.page_size = in.page_size, one.num_pages = in.num_pages, one.max_pages_per_seq = in.max_pages_per_seq;
    one.window = in.window, one.chunk = in.chunk, one.sinks = in.sinks, one.ring_size = in.ring_size, one.scale = in.scale,
    one.soft_cap = in.soft_cap;
    one.q_token_stride = in.q_token_stride, one.q_head_stride = in.q_head_stride;
    one.key = in.key, one.value = in.value;
    one.key_zero_point = in.key_zero_point, one.value_zero_point = in.value_zero_point;
    one.num_tokens = 1, one.cu_seqlens_q = {0, 1};
    one.seq_lens = {static_cast<int32_t>(std::max<int64_t>(0, in.seq_lens[s] - (in.cu_seqlens_q[s + 1] - row) + 1))};
    one.q.assign(in.q.begin() + row * in.q_token_stride, in.q.begin() + (row + 1) * in.q_token_stride);
    one.block_table_stride = in.block_table_stride;
    const auto table = in.block_table.begin() + static_cast<int64_t>(s) * in.block_table_stride;
    one.block_table.assign(table, table + in.block_table_stride);
    const std::vector<T> got(rows.begin() + row * width, rows.begin() + (row + 1) * width);
    SCOPED_TRACE(testing::Message() << backend_name(backend) << ", row " << row << " against float64 (head, channel)");
    expect_close(got, oracle::paged_attention(one, attention_allowance(backend, one, batch.cache.view)), in.v_width(), "out",
                 std::max(kDefaultSteps, std::sqrt(static_cast<double>(one.seq_lens[0]))), false);
  }
}

// Of an element of `out`, whatever the values are: |V| is at most 6 (normal numbers), or 8 (codes, by the scales that the batch
// chooses), and sum |scale q k| at most 1.5 sqrt(head_dim), in the formula of the oracle. With zero points, which are 9 at most,
// what is added up is at most 26: |code * scale| + |zero point|.
template <class T>
double bound_of(Backend backend, const PagedKvView& kv, const AttentionInputs<T>& in) {
  const oracle::Allowance allowance = attention_allowance(backend, in, kv);
  const auto largest_of = [](DType type) { return dtype_is_activation(type) ? 6.0 : type == DType::uint4 ? 26.0 : 8.0; };
  const double largest = largest_of(kv.v.format.type), unit = kDefaultSteps * 0x1p-24;
  const double score = kv.k.format.type == DType::uint4 ? 26.0 : 1.5;  // over sqrt(head_dim)
  const double root = std::sqrt(static_cast<double>(in.head_dim));
  const double sink = in.sinks.empty() ? 0.0 : 25.0 + score * root;  // log(2^20) + 12 at most, and the largest score
  const double score_units = 2.0 + std::max(16.0, root) + allowance.score_units;
  const double relative =
      1.0 + score_units / kDefaultSteps * (1.0 + score * root + sink) + (allowance.probability + allowance.value) / unit;
  const double longest = static_cast<double>(*std::max_element(in.seq_lens.begin(), in.seq_lens.end()));
  return std::max(kDefaultSteps, std::sqrt(longest)) * 0x1p-24 * 2.0 * largest * relative;
}

Outcome run_attention(Backend backend, uint64_t seed, const Sizes& sizes) {
  Random random(seed);
  const AttentionCase c = real_case(random, sizes);
  return with_random_dtype(random, [&](auto type) {
    using T = decltype(type);
    AttentionBatch<T> batch(c, random.bits() >> 32);
    AttentionInputs<T>& in = batch.in;
    Arena arena(backend);
    const auto at = static_cast<size_t>(random.integer(0, static_cast<int64_t>(in.seq_lens.size()) - 1));
    const int64_t damage = random.integer(0, 9);
    const AttentionInputs<T> good = in;
    PagedAttentionParams bounds = place_attention(arena, in, batch.cache.place(arena), backend_device(backend));
    const auto longer =
        std::find_if(c.sequences.begin(), c.sequences.end(), [](const AttentionSequence& s) { return s.rows > 1; });
    bounds.num_decode_seqs = random.integer(0, longer - c.sequences.begin());
    bounds.batch_invariant = random.integer(0, 3) == 0;
    switch (damage) {  // at most one thing is wrong
      case 0: in.block_table[at * static_cast<size_t>(in.block_table_stride)] = random.integer(0, 1) == 0 ? -1 : INT32_MAX; break;
      case 1: in.seq_lens[at] = random.integer(0, 1) == 0 ? INT32_MIN : INT32_MAX; break;
      case 2: in.cu_seqlens_q.back() = INT32_MAX; break;
      case 3: in.cu_seqlens_q.front() = static_cast<int32_t>(random.integer(0, 1) == 0 ? INT32_MIN : in.cu_seqlens_q[1]); break;
      case 4: bounds.max_seqlen_q = random.integer(1, bounds.max_seqlen_q); break;
      case 5: bounds.num_decode_seqs = random.integer(0, bounds.num_seqs); break;
      default: break;
    }
    PagedAttentionParams p = bounds;
    const int64_t form = random.integer(0, 2);  // block table, CSR, CSR with lengths
    if (form > 0) use_csr(in, form == 2 && in.ring_size == 0);
    p.page_table = place_pages(arena, in), p.cu_seqlens_q = arena.input(in.cu_seqlens_q);
    p.seq_lens = in.kv_last_page_len.empty() ? arena.input(in.seq_lens) : nullptr;
    p.faults = arena.inout(std::vector<FaultRecord>(1));
    p.token_faults = arena.inout(std::vector<uint8_t>(static_cast<size_t>(p.num_tokens)));
    p.workspace_bytes = paged_attention_workspace_bytes(p, backend_device(backend));
    if (p.workspace_bytes > 0) p.workspace = arena.workspace(p.workspace_bytes);
    const Status status = arena.run([&](const Execution& execution) { return paged_attention(p, execution); });
    if (status.ok() && damage > 5 && p.num_tokens > 0) expect_some_rows(backend, random, batch, rows_of(arena, good, p));
    std::string sequences;
    for (size_t s = 0; s < std::min<size_t>(c.sequences.size(), 6); ++s)
      sequences += str_cat(" ", c.sequences[s].rows, "/", c.sequences[s].length);
    const double bound = bound_of(Backend::cpu, batch.cache.view, good) + bound_of(Backend::cuda, batch.cache.view, good);
    return outcome(str_cat(dtype_name(p.dtype), " over ", dtype_name(c.type), " scaling=", static_cast<int>(c.scaling), " and ",
                           dtype_name(c.format(false).type), " scaling=", static_cast<int>(c.format(false).scaling),
                           " Hq=", c.num_q_heads, " Hkv=", c.num_kv_heads, " D=", c.head_dim, " Dv=", c.v_width(),
                           " page=", c.page_size, " layout=", static_cast<int>(c.layout), " window=", c.window,
                           " chunk=", c.chunk, " sinks=", static_cast<int>(c.sinks), " ring=", c.ring_size, " cap=", c.soft_cap,
                           " padding=", c.padding_rows, " T=", p.num_tokens, " max_seqlen_q=", p.max_seqlen_q,
                           " num_decode_seqs=", p.num_decode_seqs, " batch_invariant=", p.batch_invariant, " damage=", damage,
                           " form=", form, " ", c.sequences.size(), " sequences (rows/length):", sequences),
                   status, arena,
                   {{p.out.data,
                     "out",
                     element_of<T>(),
                     {{"token", p.out.token_stride}, {"head", p.out.head_stride}, {"channel", 1}},
                     1.0,
                     bound},
                    {p.faults, "faults", Element::int64},
                    {p.token_faults, "token_faults", Element::byte, {{"token", 1}}}});
  });
}

}  // namespace

std::vector<Operation> attention_operations() { return {{"paged_attention", run_attention}}; }

}  // namespace prologue::test
