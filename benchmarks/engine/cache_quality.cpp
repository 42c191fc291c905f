#include "benchmarks/engine/cache_quality.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <prologue/kernels/base/kv_types.h>

#include "benchmarks/engine/statistics.h"

namespace prologue::bench {

namespace {

double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double largest(std::span<const float> logits) { return *std::max_element(logits.begin(), logits.end()); }

Result<std::unique_ptr<Engine>> load(EngineOptions options, const QualityRun& run) {
  options.dtype = run.dtype == DType::unset ? std::optional<DType>() : run.dtype;
  options.keep_quantized = run.dtype == DType::unset;
  options.kv_format = run.k_format;
  options.v_format = run.v_format;
  options.hadamard_block = run.hadamard_block;
  options.v_hadamard_block = run.v_hadamard_block;
  return Engine::load(options);
}

int64_t bytes_per_token(const Engine& engine, const KvFormat& k_format, const KvFormat& v_format) {
  KvStorageConfig cache;
  cache.num_layers = engine.config().num_layers;
  cache.page_size = 1;
  cache.num_kv_heads = engine.config().num_kv_heads;
  cache.head_dim = engine.config().head_dim;
  cache.k_format = k_format;
  cache.v_format = v_format;
  return cache.bytes_per_page();
}

}  // namespace

double kl_divergence(std::span<const float> p_logits, std::span<const float> q_logits) {
  const double p_max = largest(p_logits), q_max = largest(q_logits);
  double p_mass = 0.0, q_mass = 0.0, sum = 0.0;  // sum of e^(p - p_max) ((p - p_max) - (q - q_max))
  for (size_t i = 0; i < p_logits.size(); ++i) {
    const double p = static_cast<double>(p_logits[i]) - p_max, q = static_cast<double>(q_logits[i]) - q_max;
    const double weight = std::exp(p);
    p_mass += weight;
    q_mass += std::exp(q);
    if (weight != 0.0) sum += weight * (p - q);
  }
  if (std::isnan(p_mass) || std::isnan(q_mass)) return NAN;
  return sum / p_mass - std::log(p_mass) + std::log(q_mass);
}

Result<std::vector<std::vector<int32_t>>> make_windows(std::span<const int32_t> tokens, int64_t length, int32_t bos) {
  const bool has_bos = bos >= 0;
  const int64_t of_text = length - (has_bos ? 1 : 0);
  if (of_text < 2) {
    return invalid_argument("the length of a window is ", length, ": it must be at least ",
                            has_bos ? "3, BOS and two tokens" : "2");
  }
  if (tokens.size() < 2) return invalid_argument("the text has fewer than two tokens: there is nothing to predict");
  std::vector<std::vector<int32_t>> windows;
  while (tokens.size() >= 2) {
    const std::span<const int32_t> piece = tokens.first(std::min(tokens.size(), static_cast<size_t>(of_text)));
    std::vector<int32_t>& window = windows.emplace_back();
    if (has_bos) window.push_back(bos);
    window.insert(window.end(), piece.begin(), piece.end());
    tokens = tokens.subspan(piece.size());
  }
  return windows;
}

const char* weights_name(DType dtype) { return dtype == DType::unset ? "auto" : dtype_name(dtype); }

std::string run_name(const QualityRun& run) {
  const KvFormat k_format = run.k_format.type == DType::unset ? computed_format(run.dtype) : run.k_format;
  const std::string k = kv_format_name(k_format), v = run.v_format.type == DType::unset ? k : kv_format_name(run.v_format);
  const std::string cache = k_format.type == DType::unset ? "" : str_cat(", cache ", k, v == k ? "" : str_cat(" ", v));
  const std::string of_v = run.v_hadamard_block == 0 ? "" : str_cat(", of V ", run.v_hadamard_block);
  return str_cat(weights_name(run.dtype), cache, run.hadamard_block == 0 ? "" : str_cat(", Hadamard ", run.hadamard_block), of_v);
}

Result<std::vector<RunQuality>> compare_runs(const EngineOptions& options, std::span<const QualityRun> runs,
                                             std::span<const std::vector<int32_t>> windows,
                                             const std::function<void(size_t window, const QualityRun& run)>& progress) {
  std::vector<RunQuality> results(runs.size());
  std::vector<float> reference;  // logits of the window, [predicted tokens, vocab_size]
  for (size_t w = 0; w < windows.size(); ++w) {
    const std::span<const int32_t> window = windows[w];
    for (size_t r = 0; r < runs.size(); ++r) {
      if (progress) progress(w, runs[r]);
      PROLOGUE_ASSIGN_OR_RETURN(const auto engine, load(options, runs[r]));
      RunQuality& result = results[r];
      result.run = {runs[r].dtype, engine->k_format(), engine->v_format(), runs[r].hadamard_block, runs[r].v_hadamard_block};
      result.bytes_per_token = bytes_per_token(*engine, engine->k_format(), engine->v_format());
      const KvFormat bfloat16 = computed_format(DType::bf16);
      result.of_bfloat16 =
          static_cast<double>(result.bytes_per_token) / static_cast<double>(bytes_per_token(*engine, bfloat16, bfloat16));
      if (r == 0) reference.resize((window.size() - 1) * static_cast<size_t>(engine->config().vocab_size));
      const auto compare = [&](size_t index, std::span<const float> logits) {
        const std::span<float> expected(reference.data() + index * logits.size(), logits.size());
        if (r == 0) std::copy(logits.begin(), logits.end(), expected.begin());
        result.tokens.kl.push_back(kl_divergence(expected, logits));
      };
      PROLOGUE_ASSIGN_OR_RETURN(const Score score, engine->score(window.first(1), window.subspan(1), {.on_logits = compare}));
      const auto bad = std::find_if(result.tokens.kl.begin(), result.tokens.kl.end(), [](double kl) { return std::isnan(kl); });
      if (bad != result.tokens.kl.end()) {
        return data_loss(run_name(result.run), ": the logits of predicted token ", bad - result.tokens.kl.begin(),
                         " are not numbers");
      }
      TokenQuality& tokens = result.tokens;
      tokens.logprob.insert(tokens.logprob.end(), score.logprob_of_token.begin(), score.logprob_of_token.end());
      tokens.argmax.insert(tokens.argmax.end(), score.argmax.begin(), score.argmax.end());
    }
  }
  return results;
}

QualitySummary summarise(const TokenQuality& tokens, const TokenQuality& reference) {
  const auto count = static_cast<double>(tokens.kl.size());
  std::vector<double> sorted = tokens.kl;
  std::sort(sorted.begin(), sorted.end());
  QualitySummary summary;
  summary.mean_kl = mean(tokens.kl);
  double squares = 0.0;
  for (const double kl : tokens.kl) squares += (kl - summary.mean_kl) * (kl - summary.mean_kl);
  if (tokens.kl.size() > 1) summary.mean_kl_error = std::sqrt(squares / (count - 1.0) / count);
  summary.p999_kl = percentile(sorted, 0.999);
  summary.max_kl = sorted.back();
  size_t same = 0;
  for (size_t i = 0; i < tokens.argmax.size(); ++i) same += tokens.argmax[i] == reference.argmax[i] ? 1 : 0;
  summary.same_argmax = static_cast<double>(same) / count;
  summary.perplexity = std::exp(-mean(tokens.logprob));
  for (size_t i = 0; i < tokens.logprob.size(); ++i)
    summary.logprob_change += std::fabs(tokens.logprob[i] - reference.logprob[i]) / count;
  return summary;
}

}  // namespace prologue::bench
