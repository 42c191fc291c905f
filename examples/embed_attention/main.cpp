// This is a small engine that uses the attention layer of this library. The engine has its own buffers, stream and page table, and passes
// raw pointers and strides to the layer. It prefills two sequences in bfloat16 and decodes a few tokens of each. It compares every row with
// a float64 reference (reference.h). It runs on the GPU if there is one and the engine was built for it (ENGINE_CUDA), else on the CPU.
//   embed_attention [cpu]
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include <prologue/kernels/base/gpu.h>
#include <prologue/layers/attention_layer.h>
#include <prologue/layers/rope/rope_table.h>

#include "machine.h"
#include "reference.h"

namespace {

constexpr int64_t kMaxTokens = 64, kMaxSeqs = 2, kPages = 24, kPageSize = 4, kMaxPages = 10;  // of a sequence
constexpr int64_t kLayers = 2, kLayer = 1;  // the pool has pages for every layer; this program runs one layer

// The engine's page table has the pages of each sequence. The library does not know this type.
struct PageTable {
  std::vector<int32_t> free;
  std::vector<int32_t> rows = std::vector<int32_t>(kMaxSeqs * kMaxPages, -1);  // [kMaxSeqs, kMaxPages]
  int32_t lengths[kMaxSeqs] = {};

  PageTable() {
    for (int32_t i = 0; i < kPages; ++i) free.push_back(i * 7 % kPages);  // any order
  }
  void append(int64_t sequence, int64_t num_tokens) {
    for (int64_t i = 0; i < num_tokens; ++i, ++lengths[sequence]) {
      if (lengths[sequence] % kPageSize != 0) continue;
      rows[static_cast<size_t>(sequence * kMaxPages + lengths[sequence] / kPageSize)] = free.back();
      free.pop_back();
    }
  }
};

void check(const prologue::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "embed_attention: %s\n", status.message().c_str());
  std::exit(1);
}

// snippet: table
// cos and sin of every position: [max_position, rotary_dim] float32.
std::vector<float> cos_sin_table() {
  prologue::RopeConfig config;  // scaling: linear, dynamic NTK, YaRN, LongRoPE, Llama 3, ...
  config.rotary_dim = kHeadDim;
  config.theta = kTheta;
  const auto frequencies = prologue::rope_frequencies(config, kMaxPages * kPageSize, prologue::RopePrecision::exact);
  check(frequencies.status());
  auto table = prologue::rope_cos_sin(*frequencies, kMaxPages * kPageSize, prologue::RopePrecision::exact);
  check(table.status());
  return *table;
}
// end snippet

class Engine {
 public:
  Engine(Machine& machine, const Weights& weights) : machine_(machine) {
    // The engine's memory. The step's arrays keep their addresses, so that a captured graph could replay over them.
    hidden_ = machine.allocate<BFloat16>(kMaxTokens * kHiddenStride);
    out_ = machine.allocate<BFloat16>(kMaxTokens * kHidden);
    // [page, layer, k or v, token, head, channel]
    pool_ = machine.allocate<BFloat16>(kPages * kLayers * 2 * kPageSize * kKvWidth);
    cu_seqlens_q_ = machine.allocate<int32_t>(kMaxSeqs + 1);
    seq_lens_ = machine.allocate<int32_t>(kMaxSeqs);
    block_table_ = machine.allocate<int32_t>(kMaxSeqs * kMaxPages);
    faults_ = machine.allocate<prologue::FaultRecord>(1);  // all zero: no fault

    // snippet: layer
    // Once per layer: what does not change from step to step.
    layer_.hidden_size = kHidden;
    layer_.hidden_states = hidden_;
    layer_.hidden_stride = kHiddenStride;
    layer_.qkv_weight = machine.upload(to_bfloat16(weights.qkv));
    layer_.output_weight = machine.upload(to_bfloat16(weights.output));
    layer_.out = out_;
    layer_.out_stride = kHidden;

    prologue::AttentionPrologueParams& p = layer_.prologue;
    p.num_q_heads = kQHeads;
    p.num_kv_heads = kKvHeads;
    p.head_dim = kHeadDim;
    p.dtype = prologue::DType::bf16;
    p.q_norm.placement = p.k_norm.placement = prologue::NormPlacement::before_rope;
    p.q_norm.eps = p.k_norm.eps = kEps;
    p.q_norm.weight = machine.upload(to_bfloat16(weights.q_norm));
    p.k_norm.weight = machine.upload(to_bfloat16(weights.k_norm));
    p.rope.rotary_dim = kHeadDim;
    const void* table = machine.upload(cos_sin_table());  // made once, for all layers
    prologue::set_cos_sin_table(p.rope, table, prologue::DType::f32, kMaxPages * kPageSize);
    p.faults = faults_;

    // This layer's part of the pool: strides say where its pages are.
    p.cache.k.data = pool_ + 2 * kLayer * kPageSize * kKvWidth;
    p.cache.v.data = pool_ + (2 * kLayer + 1) * kPageSize * kKvWidth;
    p.cache.k.format.type = p.cache.v.format.type = prologue::DType::bf16;
    p.cache.num_pages = kPages;
    p.cache.page_size = kPageSize;
    p.cache.num_kv_heads = kKvHeads;
    p.cache.k.head_dim = kHeadDim;
    p.cache.k.strides = p.cache.v.strides = {kLayers * 2 * kPageSize * kKvWidth, kKvWidth, kHeadDim};

    // The batch, in the engine's own arrays. Positions and slots are derived from them in the kernel.
    p.places.cu_seqlens_q = cu_seqlens_q_;
    p.places.seq_lens = seq_lens_;  // serves attention as well
    p.places.page_table.block_table = block_table_;
    p.places.page_table.block_table_stride = p.places.page_table.max_pages_per_seq = kMaxPages;
    layer_.attention.scale = kScale;
    layer_.attention.max_seq_len = kMaxPages * kPageSize;

    // The workspace of the largest step serves every step, and every layer of the model.
    p.num_tokens = layer_.attention.max_seqlen_q = kMaxTokens;
    p.places.num_seqs = kMaxSeqs;
    const prologue::Result<int64_t> bytes = attention_layer_workspace_bytes(layer_, machine.execution().device);
    check(bytes.status());
    layer_.workspace = machine.allocate<unsigned char>(*bytes);
    layer_.workspace_bytes = *bytes;

    auto context = prologue::GemmContext::create(machine.execution().device);
    check(context.status());
    gemm_context_ = std::move(*context);
    // end snippet
  }

  // Runs the layer over new rows of hidden states, new_tokens[s] rows of sequence s, and returns their outputs.
  std::vector<BFloat16> step(const std::vector<BFloat16>& rows, const std::vector<int64_t>& new_tokens) {
    // snippet: step
    int32_t cu_seqlens_q[kMaxSeqs + 1] = {};
    int64_t num_tokens = 0, longest = 1;
    for (size_t s = 0; s < new_tokens.size(); ++s) {
      pages_.append(static_cast<int64_t>(s), new_tokens[s]);
      cu_seqlens_q[s + 1] = static_cast<int32_t>(num_tokens += new_tokens[s]);
      longest = std::max(longest, new_tokens[s]);
    }
    machine_.copy_in(hidden_, rows.data(), rows.size());
    machine_.copy_in(cu_seqlens_q_, cu_seqlens_q, kMaxSeqs + 1);
    machine_.copy_in(seq_lens_, pages_.lengths, kMaxSeqs);  // after this step
    machine_.copy_in(block_table_, pages_.rows.data(), pages_.rows.size());

    layer_.prologue.num_tokens = num_tokens;
    layer_.attention.max_seqlen_q = longest;
    check(attention_layer(layer_, *gemm_context_, machine_.execution()));

    std::vector<BFloat16> out(static_cast<size_t>(num_tokens * kHidden));
    prologue::FaultRecord record;
    machine_.copy_out(out.data(), out_, out.size());
    machine_.copy_out(&record, faults_, 1);  // at the engine's own synchronisation
    const prologue::Fault fault = decode_fault(record);
    if (fault.code != prologue::FaultCode::none) {
      std::fprintf(stderr, "embed_attention: token %lld: %s\n", static_cast<long long>(fault.token), fault_code_name(fault.code));
      std::exit(1);
    }
    // end snippet
    return out;
  }

 private:
  Machine& machine_;
  PageTable pages_;
  BFloat16 *hidden_ = nullptr, *out_ = nullptr, *pool_ = nullptr;
  int32_t *cu_seqlens_q_ = nullptr, *seq_lens_ = nullptr, *block_table_ = nullptr;
  prologue::FaultRecord* faults_ = nullptr;
  prologue::AttentionLayerParams layer_;
  std::unique_ptr<prologue::GemmContext> gemm_context_;
};

}  // namespace

int main(int argc, char** argv) {
  const bool cpu_only = argc > 1 && std::strcmp(argv[1], "cpu") == 0;
  Machine machine(!cpu_only && prologue::check_gpu().ok());
  Random random;
  const Weights weights(random);
  Engine engine(machine, weights);
  std::vector<std::vector<float>> history(kMaxSeqs);  // every hidden state of each sequence, for the reference
  double max_error = 0.0, largest = 0.0;
  for (int number = 0; number < 9; ++number) {
    const std::vector<int64_t> new_tokens = number == 0 ? std::vector<int64_t>{5, 19} : std::vector<int64_t>{1, 1};
    std::vector<float> rows;
    for (int64_t s = 0; s < kMaxSeqs; ++s) {
      for (int64_t i = 0; i < new_tokens[static_cast<size_t>(s)]; ++i) {
        const std::vector<float> hidden = random.floats(kHidden, 1.0f);
        history[static_cast<size_t>(s)].insert(history[static_cast<size_t>(s)].end(), hidden.begin(), hidden.end());
        rows.insert(rows.end(), hidden.begin(), hidden.end());
        rows.resize(rows.size() + kHiddenStride - kHidden, std::nanf(""));  // the gap between the engine's rows
      }
    }
    const std::vector<BFloat16> got = engine.step(to_bfloat16(rows), new_tokens);
    std::vector<double> want;
    for (int64_t s = 0; s < kMaxSeqs; ++s) {
      const std::vector<double> all = reference(weights, history[static_cast<size_t>(s)]);
      want.insert(want.end(), all.end() - new_tokens[static_cast<size_t>(s)] * kHidden, all.end());
    }
    for (size_t i = 0; i < want.size(); ++i) {
      const double error = std::fabs(static_cast<double>(to_float(got[i])) - want[i]);
      if (!std::isfinite(error)) {
        std::fprintf(stderr, "element %zu of a result is not a number\n", i);
        return 1;
      }
      max_error = std::max(max_error, error);
      largest = std::max(largest, std::fabs(want[i]));
    }
  }
  std::printf("prefill of 5 and 19 tokens, 8 steps of decoding, on the %s: max error %.3g of values up to %.3g\n",
              prologue::device_name(machine.execution().device), max_error, largest);
  return max_error < 0.01 * largest ? 0 : 1;  // q, k, v, the result of attention and out are each rounded to 8 bits
}
