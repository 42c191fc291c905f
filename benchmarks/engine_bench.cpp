// bench_engine: the engine under load, and its goals one by one.
//   bench_engine --model FILE.gguf --section all --json RESULT.json
// Sections:
//   throughput   --workload ... or --trace FILE: requests/s, output tokens/s, times to the first token and per token, prefix hits, cache
//                use over time; once more without overlap (CUDA); 16 of the requests one at a time
//   decode       batches of sequences of --context tokens: tokens/s, the host's part of a step, and the step alone (engine/replay.h)
//   prefill      16 prompts of 512 tokens at once: tokens/s
//   prefix       4096 tokens in the cache, 32 new ones: the first token, beside a step over the 32 tokens alone
//   first-token  a warm engine and a prompt of 32 tokens
// Prompts are random tokens, and no two runs share any. Throughput is sampled at temperature 0.6, the other sections are greedy.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include <prologue/engine/engine.h>

#include "benchmarks/engine/load.h"
#include "benchmarks/engine/replay.h"
#include "benchmarks/engine/statistics.h"
#include "benchmarks/engine/trace.h"
#include "benchmarks/engine/workload.h"
#include "benchmarks/harness.h"

namespace prologue::bench {
namespace {

using nlohmann::ordered_json;

struct Options {
  EngineOptions engine;
  std::vector<std::string> sections, workloads;
  std::string trace, json;
  int64_t num_requests = 0;  // 0: 256 on CUDA, 32 on the CPU
  double rate = 0.0;         // 0: 16 requests/s on CUDA, 0.2 on the CPU
  double trace_speed = 1.0;
  int64_t context = 512;         // of decode
  std::vector<int64_t> batches;  // empty: 1 to 256 on CUDA; 1, 4 and 16 on the CPU
};

// Three decimals are enough for what a clock measures in milliseconds.
double rounded(double value) { return std::round(value * 1e3) / 1e3; }
ordered_json rounded(std::vector<double> values) {
  for (double& value : values) value = rounded(value);
  return values;
}

class EngineBench {
 public:
  explicit EngineBench(const Options& options) : options_(options) {}

  Status run() {
    PROLOGUE_RETURN_IF_ERROR(load(options_.engine));
    const bool on_gpu = engine_->device() == Device::cuda;
    if (options_.num_requests == 0) options_.num_requests = on_gpu ? 256 : 32;
    if (options_.rate == 0.0) options_.rate = on_gpu ? 16.0 : 0.2;
    if (options_.batches.empty())
      options_.batches = on_gpu ? std::vector<int64_t>{1, 2, 4, 8, 16, 32, 64, 128, 256} : std::vector<int64_t>{1, 4, 16};
    const int32_t num_threads = options_.engine.num_threads > 0
                                    ? options_.engine.num_threads
                                    : static_cast<int32_t>(std::max(1u, std::thread::hardware_concurrency()));
    PROLOGUE_ASSIGN_OR_RETURN(const std::string device, describe_device(engine_->device(), num_threads));
    result_["date"] = utc_now();
    result_["commit"] = source_commit();
    result_["device"] = device;
    result_["model"] = engine_->config().name;
    result_["dtype"] = dtype_name(engine_->dtype());
    result_["weights"] = engine_->weight_types();
    result_["fp8_activations"] = engine_->quantizes_activations();
    result_["speculation"] = options_.engine.speculation == Speculation::prompt_lookup ? "ngram" : "off";
    result_["weight_bytes"] = engine_->weight_bytes();
    result_["ranks"] = engine_->num_ranks();
    std::printf("%s\n%s, %s, weights as %s%s, ranks: %lld, loaded in %.1f s\n", device.c_str(), engine_->config().name.c_str(),
                dtype_name(engine_->dtype()), engine_->weight_types().c_str(),
                engine_->quantizes_activations() ? ", prompts with fp8 activations" : "",
                static_cast<long long>(engine_->num_ranks()), engine_->load_seconds());

    using Section = Status (EngineBench::*)();
    const std::vector<std::pair<std::string, Section>> sections = {{"first-token", &EngineBench::first_token},
                                                                   {"throughput", &EngineBench::throughput},
                                                                   {"decode", &EngineBench::decode},
                                                                   {"prefill", &EngineBench::prefill},
                                                                   {"prefix", &EngineBench::prefix}};
    for (const auto& [name, section] : sections) {
      const auto chosen = [&](const char* word) {
        return std::find(options_.sections.begin(), options_.sections.end(), word) != options_.sections.end();
      };
      if (!chosen(name.c_str()) && !chosen("all")) continue;
      PROLOGUE_RETURN_IF_ERROR((this->*section)());
    }
    return {};
  }

  Status write_json(const std::string& command) {
    if (options_.json.empty() || result_.is_null()) return {};
    result_["method"] = "steady clock, on the thread that runs the steps; times count from a request's arrival";
    result_["command"] = command;
    std::ofstream out(options_.json);
    std::string head = result_.dump(1);
    head.resize(head.rfind('\n'));
    out << head << ",\n \"rows\": [";
    for (size_t i = 0; i < rows_.size(); ++i) out << (i == 0 ? "\n  " : ",\n  ") << rows_[i].dump();
    out << "\n ]\n}\n";
    return out.flush() ? Status() : data_loss(options_.json, ": this file cannot be written");
  }

 private:
  // Loads the engine again with other options, and runs one request: libraries load their kernels at their first call.
  Status load(const EngineOptions& engine_options) {
    engine_.reset();
    PROLOGUE_ASSIGN_OR_RETURN(engine_, Engine::load(engine_options));
    return serve(single(random_prompts(1, 64, vocab_size(), 1)[0], 16)).status();
  }
  Status restore() {  // the engine of the command line's options
    return load(options_.engine);
  }

  int64_t vocab_size() const { return engine_->config().vocab_size; }

  static Workload single(std::vector<int32_t> prompt, int64_t max_tokens) {
    Workload workload(1);
    workload[0].prompt = std::move(prompt);
    workload[0].max_tokens = max_tokens;
    return workload;
  }
  Workload equal(int64_t count, int64_t prompt_length, int64_t max_tokens) {
    Workload workload;
    for (auto& prompt : random_prompts(count, prompt_length, vocab_size(), 1))
      workload.push_back({0.0, std::move(prompt), max_tokens});
    return workload;
  }

  // Runs the workload with other tokens than every run before it, so that nothing of it is in the cache.
  Result<LoadResult> serve(Workload workload, const LoadOptions& load_options = {}) {
    shift_tokens(workload);
    return run_load(*engine_, workload, load_options);
  }
  void shift_tokens(Workload& workload) {
    ++num_runs_;
    for (Arrival& each : workload) {
      for (int32_t& token : each.prompt) token = static_cast<int32_t>((token + num_runs_) % vocab_size());
    }
  }

  void add(ordered_json row) {
    rows_.push_back(std::move(row));
    std::fflush(stdout);
  }

  // ---- throughput ----

  Result<std::vector<std::pair<std::string, Workload>>> make_workloads() {
    std::vector<std::pair<std::string, Workload>> workloads;
    for (const std::string& name : options_.workloads) {
      PROLOGUE_ASSIGN_OR_RETURN(Workload workload, make_workload(name, {options_.num_requests, options_.rate, vocab_size(),
                                                                        engine_->context_length()}));
      workloads.emplace_back(name, std::move(workload));
    }
    if (options_.trace.empty()) return workloads;
    PROLOGUE_ASSIGN_OR_RETURN(const Trace trace, read_trace(options_.trace, options_.num_requests));
    int64_t num_left_out = 0;
    Workload workload = trace_workload(trace, {vocab_size(), engine_->context_length(), options_.trace_speed}, num_left_out);
    if (num_left_out > 0)
      std::printf("trace: %lld requests are longer than the context and are left out\n", static_cast<long long>(num_left_out));
    if (workload.empty())
      return invalid_argument(options_.trace, ": every request is longer than the context, ", engine_->context_length(),
                              " tokens");
    workloads.emplace_back("trace", std::move(workload));
    return workloads;
  }

  Status throughput() {
    PROLOGUE_ASSIGN_OR_RETURN(const auto workloads, make_workloads());
    std::printf("\n%-28s %8s %10s %28s %28s %7s %7s\n", "throughput", "req/s", "tokens/s", "first token ms: mean/p50/p99",
                "per token ms: mean/p50/p99", "hits %", "cache %");
    for (const auto& [name, workload] : workloads) PROLOGUE_RETURN_IF_ERROR(measure_load(name, workload));
    if (engine_->device() == Device::cuda && options_.engine.overlap) {
      EngineOptions without = options_.engine;
      without.overlap = false;
      PROLOGUE_RETURN_IF_ERROR(load(without));
      for (const auto& [name, workload] : workloads) PROLOGUE_RETURN_IF_ERROR(measure_load(name + ", no overlap", workload));
      PROLOGUE_RETURN_IF_ERROR(restore());
    }
    return {};
  }

  Status measure_load(const std::string& name, const Workload& workload) {
    LoadOptions load_options;
    load_options.temperature = 0.6f;
    PROLOGUE_ASSIGN_OR_RETURN(const LoadResult load, serve(workload, load_options));
    const double batched = add_load(name, load);
    if (name != "mini-sglang") return {};
    // The first 16 requests are sent one at a time.
    double seconds = 0.0;
    std::vector<Served> requests;
    for (size_t i = 0; i < std::min<size_t>(16, workload.size()); ++i) {
      PROLOGUE_ASSIGN_OR_RETURN(const LoadResult one, serve(single(workload[i].prompt, workload[i].max_tokens), load_options));
      seconds += one.seconds;
      requests.push_back(one.requests[0]);
    }
    const double alone = static_cast<double>(num_output_tokens(requests)) / seconds;
    std::printf("%-28s %8.3f %10.1f   batching: %.1fx\n", str_cat(requests.size(), " of them one at a time").c_str(),
                static_cast<double>(requests.size()) / seconds, alone, batched / alone);
    add({{"name", name + ", one at a time"},
         {"section", "throughput"},
         {"requests", requests.size()},
         {"seconds", rounded(seconds)},
         {"output_tokens_per_s", rounded(alone)},
         {"batching", rounded(batched / alone)}});
    return {};
  }

  // Returns output tokens/s.
  double add_load(const std::string& name, const LoadResult& load) {
    const std::vector<double> first = first_token_ms(load.requests), per_token = per_token_ms(load.requests);
    const Summary ttft = summarise(first), tpot = summarise(per_token);
    int64_t prompt_tokens = 0, cached_tokens = 0, preemptions = 0;
    std::vector<double> arrivals;
    for (const Served& each : load.requests) {
      prompt_tokens += each.prompt_tokens;
      cached_tokens += each.cached_tokens;
      preemptions += each.num_preemptions;
      arrivals.push_back(each.arrival);
    }
    ordered_json cache = ordered_json::array();
    double peak = 0.0;
    for (const CacheUse& each : load.cache_use) {
      cache.push_back({rounded(each.seconds), rounded(each.used), rounded(each.cached)});
      peak = std::max(peak, each.used);
    }
    const auto num_requests = static_cast<double>(load.requests.size());
    const int64_t output_tokens = num_output_tokens(load.requests);
    const double tokens_per_s = static_cast<double>(output_tokens) / load.seconds;
    const double hits = static_cast<double>(cached_tokens) / static_cast<double>(prompt_tokens);
    const auto three = [](const Summary& s) {
      char text[64];
      std::snprintf(text, sizeof text, "%.1f / %.1f / %.1f", s.mean, s.p50, s.p99);
      return std::string(text);
    };
    std::printf("%-28s %8.3f %10.1f %28s %28s %7.1f %7.1f\n", name.c_str(), num_requests / load.seconds, tokens_per_s,
                three(ttft).c_str(), three(tpot).c_str(), 100.0 * hits, 100.0 * peak);
    const auto summary = [](const Summary& s) {
      return ordered_json{{"mean", rounded(s.mean)}, {"p50", rounded(s.p50)}, {"p99", rounded(s.p99)}};
    };
    add({{"name", name},
         {"section", "throughput"},
         {"requests", load.requests.size()},
         {"seconds", rounded(load.seconds)},
         {"requests_per_s", rounded(num_requests / load.seconds)},
         {"output_tokens_per_s", rounded(tokens_per_s)},
         {"prompt_tokens", prompt_tokens},
         {"output_tokens", output_tokens},
         {"cached_tokens", cached_tokens},
         {"preemptions", preemptions},
         {"draft_tokens", load.after.draft_tokens - load.before.draft_tokens},
         {"accepted_tokens", load.after.accepted_tokens - load.before.accepted_tokens},
         {"steps", load.after.steps - load.before.steps},
         {"replayed_steps", load.after.replayed_steps - load.before.replayed_steps},
         {"captured_graphs", load.after.captured_graphs - load.before.captured_graphs},
         {"step_s", rounded(load.after.step_seconds - load.before.step_seconds)},
         {"wait_s", rounded(load.after.wait_seconds - load.before.wait_seconds)},
         {"first_token_ms", summary(ttft)},
         {"per_token_ms", summary(tpot)},
         {"arrival_s", rounded(arrivals)},
         {"first_token_ms_of_requests", rounded(first)},
         {"per_token_ms_of_requests", rounded(per_token)},
         {"cache_columns", {"seconds", "used", "cached"}},
         {"cache", std::move(cache)}});
    return tokens_per_s;
  }

  // ---- decode ----

  Status decode() {
    std::vector<int64_t> batches;
    for (const int64_t batch : options_.batches) {
      if (batch <= engine_->options().max_seqs) batches.push_back(batch);
    }
    if (batches.empty())
      return invalid_argument("--batches has no batch of at most ", engine_->options().max_seqs,
                              " sequences, which is what --parallel allows");
    if (2 * options_.context > engine_->context_length())
      return invalid_argument("--context ", options_.context, ": the engine's context, ", engine_->context_length(),
                              " tokens, must be at least twice that");
    engine_.reset();  // the memory is needed twice otherwise
    PROLOGUE_ASSIGN_OR_RETURN(const std::vector<double> alone, time_decode_steps(options_.engine, batches, options_.context));
    PROLOGUE_RETURN_IF_ERROR(restore());
    std::printf("\n%-28s %10s %10s %12s %14s %10s %14s\n", "decode", "tokens/s", "step us", "alone us", "alone/step %", "host us",
                "host/alone %");
    for (size_t i = 0; i < batches.size(); ++i) PROLOGUE_RETURN_IF_ERROR(measure_decode(batches[i], 1e6 * alone[i]));
    return {};
  }

  Status measure_decode(int64_t batch, double alone_us) {
    // These are more steps than it takes to read all prompts; half of them come before the context, half after it.
    const int64_t num_tokens = std::min(engine_->device() == Device::cuda ? 256 : 64 + batch / 2, 2 * (options_.context - 1));
    LoadOptions load_options;
    load_options.record_steps = true;
    const Workload workload = equal(batch, options_.context - num_tokens / 2, num_tokens);
    PROLOGUE_RETURN_IF_ERROR(serve(workload).status());  // captures the steps
    PROLOGUE_ASSIGN_OR_RETURN(const LoadResult load, serve(workload, load_options));
    // Counts the steps between two in which all sequences get a token, without the first and the last.
    const auto full = [&](const StepTimes& step) { return step.num_tokens == batch; };
    auto first = std::find_if(load.steps.begin(), load.steps.end(), full);
    auto last = std::find_if_not(first, load.steps.end(), full);
    if (last - first < 8)
      return resource_exhausted("decode of ", batch,
                                " sequences: they are never in one step for long; the KV cache or --parallel is too small");
    ++first;
    --last;
    const auto num_steps = static_cast<double>(last - first);
    const double step_us = 1e6 * ((last - 1)->end - (first - 1)->end) / num_steps;
    double host_us = 0.0;
    for (auto step = first; step != last; ++step) host_us += 1e6 * (step->end - step->begin - step->waited) / num_steps;
    const double tokens_per_s = 1e6 * static_cast<double>(batch) / step_us;
    const bool on_gpu = engine_->device() == Device::cuda;  // the CPU does the device's work in the host's time
    std::printf("%-28s %10.1f %10.1f %12.1f %14.1f", str_cat("batch ", batch).c_str(), tokens_per_s, step_us, alone_us,
                100.0 * alone_us / step_us);
    if (on_gpu) std::printf(" %10.1f %14.1f", host_us, 100.0 * host_us / alone_us);
    std::printf("\n");
    ordered_json row = {{"name", str_cat("decode, batch ", batch)},
                        {"section", "decode"},
                        {"batch", batch},
                        {"context", options_.context},
                        {"output_tokens_per_s", rounded(tokens_per_s)},
                        {"step_us", rounded(step_us)},
                        {"alone_us", rounded(alone_us)}};
    if (on_gpu) {
      row["host_us"] = rounded(host_us);
      row["timeline_columns"] = {"begin_us", "wait_us", "first_output_us", "end_us"};
      row["timeline"] = timeline(first, last);
    }
    add(std::move(row));
    return {};
  }

  // Returns some steps in the middle.
  static ordered_json timeline(std::vector<StepTimes>::const_iterator first, std::vector<StepTimes>::const_iterator last) {
    constexpr std::ptrdiff_t kShown = 6;
    const auto begin = first + std::max<std::ptrdiff_t>(0, (last - first - kShown) / 2);
    ordered_json steps = ordered_json::array();
    for (auto step = begin; step != last && step - begin < kShown; ++step) {
      const auto us = [&](double seconds) { return rounded(1e6 * (seconds - begin->begin)); };
      steps.push_back({us(step->begin), us(step->first_output - step->waited), us(step->first_output), us(step->end)});
    }
    return steps;
  }

  // ---- prefill, prefix, first-token ----

  int num_repeats() const { return engine_->device() == Device::cuda ? 5 : 2; }

  Status prefill() {
    constexpr int64_t kPrompts = 16, kLength = 512;
    std::vector<double> seconds;
    for (int i = 0; i < 1 + num_repeats(); ++i) {
      PROLOGUE_ASSIGN_OR_RETURN(const LoadResult load, serve(equal(kPrompts, kLength, 1)));
      if (i > 0) seconds.push_back(load.seconds);
    }
    const double tokens_per_s = kPrompts * kLength / median(seconds);
    std::printf("\nprefill, 16 prompts of 512 tokens: %.1f tokens/s\n", tokens_per_s);
    add({{"name", "prefill, 16 prompts of 512 tokens"},
         {"section", "prefill"},
         {"prompt_tokens_per_s", rounded(tokens_per_s)},
         {"seconds", rounded(seconds)}});
    return {};
  }

  // A prompt of 4096 + 32 tokens is read in two steps, the second one over the last 32 tokens: this is the yardstick for prompts that find
  // the 4096 tokens in the cache. Steps do not overlap here, so that both times have a whole step of the host and the device.
  Status prefix() {
    constexpr int64_t kPrefix = 4096, kTail = 32;
    if (engine_->context_length() < kPrefix + kTail + 1) {
      std::printf("\nprefix: left out, the context has only %lld tokens\n", static_cast<long long>(engine_->context_length()));
      return {};
    }
    EngineOptions options = options_.engine;
    options.max_step_tokens = kPrefix;
    options.overlap = false;
    PROLOGUE_RETURN_IF_ERROR(load(options));
    std::vector<double> cold_ms, tail_ms, hit_ms;
    int64_t fewest_cached = kPrefix;
    for (int i = 0; i < 1 + num_repeats(); ++i) {
      Workload workload = equal(6, kPrefix + kTail, 1);
      for (Arrival& each : workload) std::copy_n(workload[0].prompt.begin(), kPrefix, each.prompt.begin());
      shift_tokens(workload);
      for (size_t j = 0; j < workload.size(); ++j) {
        PROLOGUE_ASSIGN_OR_RETURN(const LoadResult load, run_load(*engine_, {workload[j]}, {}));
        const Served& served = load.requests[0];
        const double first_token = 1e3 * served.token_times[0];
        const auto& chunks = load.prefilled[0];
        const bool as_planned = j == 0 ? chunks.size() >= 2 && chunks[chunks.size() - 2].first == kPrefix : true;
        if (!as_planned) return unsupported("prefix: the prompt of 4096 + 32 tokens was not read in steps of 4096 and 32 tokens");
        if (i == 0) continue;
        if (j == 0) {
          cold_ms.push_back(first_token);
          tail_ms.push_back(1e3 * (served.token_times[0] - chunks[chunks.size() - 2].second));
        } else {
          hit_ms.push_back(first_token);
          fewest_cached = std::min(fewest_cached, served.cached_tokens);
        }
      }
    }
    const double cold = median(cold_ms), tail = median(tail_ms), hit = median(hit_ms);
    std::printf(
        "\nprefix of 4096 tokens, 32 new ones: first token after %.2f ms (%lld tokens from the cache); the 32 tokens alone %.2f "
        "ms: %.2fx; no hit %.2f ms\n",
        hit, static_cast<long long>(fewest_cached), tail, hit / tail, cold);
    add({{"name", "prefix of 4096 tokens, 32 new ones"},
         {"section", "prefix"},
         {"first_token_ms", rounded(hit)},
         {"tail_alone_ms", rounded(tail)},
         {"ratio", rounded(hit / tail)},
         {"no_hit_ms", rounded(cold)},
         {"cached_tokens", fewest_cached}});
    return restore();
  }

  Status first_token() {
    std::vector<double> ms;
    for (int i = 0; i < 21; ++i) {
      PROLOGUE_ASSIGN_OR_RETURN(const LoadResult load, serve(equal(1, 32, 1)));
      if (i > 0) ms.push_back(1e3 * load.requests[0].token_times[0]);
    }
    const Summary summary = summarise(ms);
    std::printf("\nfirst token of a prompt of 32 tokens: %.2f ms (p50), %.2f ms (p99)\n", summary.p50, summary.p99);
    add({{"name", "first token, 32 tokens"},
         {"section", "first-token"},
         {"first_token_ms", {{"mean", rounded(summary.mean)}, {"p50", rounded(summary.p50)}, {"p99", rounded(summary.p99)}}}});
    return {};
  }

  Options options_;
  std::unique_ptr<Engine> engine_;
  int64_t num_runs_ = 0;
  ordered_json result_;
  std::vector<ordered_json> rows_;
};

int main_of(int argc, char** argv) {
  Options options;
  std::string device = "auto", dtype = "auto", activations = "auto", speculate = "off";
  bool keep_quantized = false, no_overlap = false, no_cuda_graphs = false, unfused_projections = false;
  std::vector<std::string> workload_words;
  for (const std::string_view name : workload_names()) workload_words.emplace_back(name);

  CLI::App app("The engine under load, and its goals one by one.", "bench_engine");
  app.add_option("--model", options.engine.model_path, "the model: a GGUF file (make_random_model writes one)")
      ->required()
      ->type_name("FILE.gguf");
  app.add_option("--section", options.sections, "what to measure; may be repeated")
      ->check(CLI::IsMember({"throughput", "decode", "prefill", "prefix", "first-token", "all"}))
      ->allow_extra_args(false);
  app.add_option("--workload", options.workloads, "of throughput; may be repeated (default: mini-sglang)")
      ->check(CLI::IsMember(workload_words))
      ->allow_extra_args(false);
  app.add_option("--trace", options.trace, "throughput of a Mooncake or Bailian trace, in place of the default workload")
      ->type_name("FILE.jsonl");
  app.add_option("--trace-speed", options.trace_speed, "the trace's requests arrive so many times as fast")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--requests", options.num_requests,
                 "of a workload; of a trace, its first rows (default: 256 on CUDA, 32 on the CPU)")
      ->check(CLI::PositiveNumber);
  app.add_option("--rate", options.rate, "requests per second (default: 16 on CUDA, 0.2 on the CPU)")->check(CLI::PositiveNumber);
  app.add_option("--batches", options.batches, "of decode (default: 1,2,4,...,256 on CUDA; 1,4,16 on the CPU)")
      ->delimiter(',')
      ->check(CLI::PositiveNumber);
  app.add_option("--context", options.context, "of decode: the tokens of a sequence, on average")
      ->check(CLI::Range(int64_t{16}, int64_t{1} << 20))
      ->capture_default_str();
  app.add_option("--device", device, "auto: cuda if there is a GPU, else cpu")->check(CLI::IsMember({"auto", "cpu", "cuda"}));
  app.add_option("--dtype", dtype, "auto: bfloat16 on CUDA, and on the CPU float32 with quantised weights as the file has them")
      ->check(CLI::IsMember({"auto", "float32", "bfloat16", "float16"}));
  app.add_flag("--keep-quantized", keep_quantized, "quantised weights stay as the file has them");
  app.add_option("--activations", activations, "of prompts, with weights that stay float8: auto, as the model's files say")
      ->check(CLI::IsMember({"auto", "16bit", "fp8"}));
  app.add_option("--threads", options.engine.num_threads, "CPU threads; 0 = one per CPU")->check(CLI::NonNegativeNumber);
  app.add_option("--tensor-parallel", options.engine.tensor_parallel, "ranks that share the model")->check(CLI::PositiveNumber);
  app.add_option("--parallel", options.engine.max_seqs, "sequences of one step; 0 = the engine's choice")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--kv-memory", options.engine.kv_memory, "bytes of the KV cache, 4GiB for example; 0 = the engine's choice")
      ->transform(CLI::AsSizeValue(false));
  app.add_option("--speculate", speculate, "ngram: prompt lookup proposes drafts")->check(CLI::IsMember({"off", "ngram"}));
  app.add_flag("--no-overlap", no_overlap, "every step waits for the tokens of the one before it");
  app.add_flag("--no-cuda-graphs", no_cuda_graphs, "decode steps are launched, not replayed");
  app.add_flag("--unfused-projections", unfused_projections, "projections are kernels of their own");
  app.add_option("--json", options.json, "keep the rows")->type_name("FILE");
  CLI11_PARSE(app, argc, argv);
  const std::map<std::string, Device> devices = {{"cpu", Device::cpu}, {"cuda", Device::cuda}};
  const std::map<std::string, DType> dtypes = {{"float32", DType::f32}, {"bfloat16", DType::bf16}, {"float16", DType::f16}};
  if (device != "auto") options.engine.device = devices.at(device);
  if (dtype != "auto") options.engine.dtype = dtypes.at(dtype);
  if (keep_quantized) options.engine.keep_quantized = true;
  if (activations == "16bit") options.engine.activations = ActivationQuantization::as_dtype;
  if (activations == "fp8") options.engine.activations = ActivationQuantization::fp8;
  if (speculate == "ngram") options.engine.speculation = Speculation::prompt_lookup;
  options.engine.overlap = !no_overlap;
  options.engine.cuda_graphs = !no_cuda_graphs;
  options.engine.fused_projections = !unfused_projections;
  if (options.sections.empty()) options.sections = {"throughput"};
  if (options.workloads.empty() && options.trace.empty()) options.workloads = {"mini-sglang"};

  std::string command;
  for (int i = 0; i < argc; ++i) command += str_cat(i == 0 ? "" : " ", argv[i]);
  EngineBench bench(options);
  Status status = bench.run();
  const Status written = bench.write_json(command);  // the rows up to an error, too
  if (status.ok()) status = written;
  if (status.ok()) return 0;
  std::fprintf(stderr, "bench_engine: %s\n", status.message().c_str());
  return 1;
}

}  // namespace
}  // namespace prologue::bench

int main(int argc, char** argv) { return prologue::bench::main_of(argc, argv); }
