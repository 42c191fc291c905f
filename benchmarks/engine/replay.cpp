#include "benchmarks/engine/replay.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include <prologue/engine/checkpoint/checkpoint.h>
#include <prologue/engine/parallel_runner.h>
#include <prologue/kernels/base/divide_up.h>

#include "benchmarks/engine/workload.h"

namespace prologue::bench {

namespace {

constexpr int64_t kWarmUp = 16;

// Sequence i has the pages from i * pages_per_seq on.
class Decode {
 public:
  Decode(ParallelRunner& runner, int64_t page_size, int64_t num_seqs, int64_t pages_per_seq, int64_t max_tokens)
      : runner_(runner), page_size_(page_size), num_seqs_(num_seqs), max_tokens_(max_tokens) {
    for (int64_t i = 0; i < num_seqs; ++i) {
      tables_.emplace_back();
      for (int64_t page = 0; page < pages_per_seq; ++page)
        tables_.back().push_back(static_cast<int32_t>(i * pages_per_seq + page));
    }
  }

  Status prefill(int64_t length, int64_t vocab_size) {
    const auto prompts = random_prompts(num_seqs_, length, vocab_size, 100);
    length_ = length;
    StepBatch batch;
    for (int64_t i = 0; i < num_seqs_; ++i) {
      for (int64_t first = 0; first < length; first += max_tokens_) {
        const int64_t count = std::min(max_tokens_, length - first);
        batch.clear();
        batch.add_sequence(prompts[static_cast<size_t>(i)].data() + first, count, first, table(i), page_size_, 0);
        PROLOGUE_RETURN_IF_ERROR(runner_.enqueue(batch));
        PROLOGUE_RETURN_IF_ERROR(runner_.read().status());
      }
    }
    return {};
  }

  // Returns the seconds of one step.
  Result<double> run(int64_t num_steps) {
    const int32_t token = 1;
    StepBatch batch;
    for (int64_t i = 0; i < num_seqs_; ++i) batch.add_sequence(&token, 1, length_, table(i), page_size_, 1);
    PROLOGUE_RETURN_IF_ERROR(runner_.enqueue(batch));
    std::chrono::steady_clock::time_point start;
    for (int64_t i = 0; i < kWarmUp + num_steps; ++i) {
      PROLOGUE_RETURN_IF_ERROR(runner_.enqueue_next(length_ + 2 + i));
      PROLOGUE_RETURN_IF_ERROR(runner_.read().status());
      if (i + 1 == kWarmUp) start = std::chrono::steady_clock::now();
    }
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    PROLOGUE_RETURN_IF_ERROR(runner_.read().status());
    return seconds.count() / static_cast<double>(num_steps);
  }

 private:
  const std::vector<int32_t>& table(int64_t i) const { return tables_[static_cast<size_t>(i)]; }

  ParallelRunner& runner_;
  int64_t page_size_, num_seqs_, max_tokens_, length_ = 0;
  std::vector<std::vector<int32_t>> tables_;
};

}  // namespace

Result<std::vector<double>> time_decode_steps(const EngineOptions& options, std::span<const int64_t> batches, int64_t context) {
  const Device device = options.device.value_or(check_gpu().ok() ? Device::cuda : Device::cpu);
  const bool on_gpu = device == Device::cuda;
  const int32_t num_threads =
      options.num_threads > 0 ? options.num_threads : std::max(1, static_cast<int32_t>(std::thread::hardware_concurrency()));
  PROLOGUE_ASSIGN_OR_RETURN(const std::unique_ptr<Ranks> ranks, Ranks::create(device, options.tensor_parallel, num_threads));
  PROLOGUE_ASSIGN_OR_RETURN(const std::unique_ptr<Checkpoint> checkpoint, Checkpoint::open(options.model_path));
  const ModelOptions weights{.keep_quantized = options.keep_quantized.value_or(!on_gpu && !options.dtype)};
  const DType dtype = options.dtype.value_or(on_gpu ? DType::bf16 : DType::f32);
  PROLOGUE_ASSIGN_OR_RETURN(const std::vector<Model> models, load_parts(*checkpoint, options.model_path, dtype, *ranks, {}, weights));
  const ModelConfig& model = models.front().config;

  const int64_t num_steps = on_gpu ? 128 : 16;
  const int64_t longest = context + num_steps + kWarmUp;
  const int64_t pages_per_seq = divide_up(longest, options.page_size);
  RunnerConfig config;
  config.page_size = options.page_size;
  config.max_seqs = config.max_logit_rows = *std::max_element(batches.begin(), batches.end());
  config.num_pages = pages_per_seq * config.max_seqs;
  config.max_seq_len = model.context_length;
  config.max_tokens = std::max<int64_t>(512, config.max_seqs);
  config.capture = options.cuda_graphs;
  PROLOGUE_ASSIGN_OR_RETURN(const auto runner, ParallelRunner::create(*ranks, models, config));
  std::vector<double> seconds;
  for (const int64_t batch : batches) {
    Decode decode(*runner, options.page_size, batch, pages_per_seq, config.max_tokens);
    PROLOGUE_RETURN_IF_ERROR(decode.prefill(context - num_steps / 2, model.vocab_size));
    PROLOGUE_RETURN_IF_ERROR(decode.run(num_steps).status());  // captures the steps
    PROLOGUE_ASSIGN_OR_RETURN(const double each, decode.run(num_steps));
    seconds.push_back(each);
  }
  return seconds;
}

}  // namespace prologue::bench
