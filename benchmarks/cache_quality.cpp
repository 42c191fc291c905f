// bench_cache_quality: what the types of the KV cache cost in quality, over a text.
//   bench_cache_quality --model FILE --text benchmarks/text/alice.txt --json RESULT.json
// The text is cut into windows of --context tokens, each a sequence of its own. Every run predicts every token of a window; the whole
// distribution is compared with that of the reference, which is the first --dtype with a cache of that type and no Hadamard transform.
// Runs are all combinations of --hadamard-blocks, --v-hadamard-blocks and --cache-types with the first --dtype (a transform is only for a
// quantised K, or V), and every other --dtype with a cache of that type: what weights and activations cost. auto is the engine's choice,
// but matrices that are quantised in the file stay so on CUDA, too.
#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <prologue/engine/engine.h>
#include <prologue/kernels/base/kv_types.h>

#include "benchmarks/engine/cache_quality.h"
#include "benchmarks/harness.h"

namespace prologue::bench {
namespace {

using nlohmann::ordered_json;

struct Options {
  EngineOptions engine;
  std::string text, json;
  int64_t num_tokens = 0;  // 0: all
  int64_t context = 2048;
  std::vector<std::string> dtypes = {"float32"};
  std::vector<int64_t> hadamard_blocks = {0, 64}, v_hadamard_blocks = {0};
  std::vector<std::string> cache_types = {"float16",    "bfloat16",       "int8",           "fp8_e4m3",   "fp8_e5m2",
                                          "uint4",      "int4",           "bfloat16,uint4", "int8,uint4", "int8,int4",
                                          "uint4,int8", "fp8_e4m3,uint4", "fp8_e4m3,int4"};
};

// Parses "TYPE" or "K,V".
Result<QualityRun> parse_cache_types(const std::string& text) {
  const size_t comma = text.find(',');
  QualityRun run;
  run.k_format = kv_format_of(std::string_view(text).substr(0, comma));
  run.v_format = comma == std::string::npos ? run.k_format : kv_format_of(std::string_view(text).substr(comma + 1));
  if (run.k_format.type == DType::unset || run.v_format.type == DType::unset) {
    return invalid_argument("--cache-types has \"", text,
                            "\": it must be a type, or the types of K and V with a comma between them; ", "supported are ",
                            kv_format_names());
  }
  return run;
}

Result<std::vector<QualityRun>> make_runs(const Options& options) {
  static const std::map<std::string, DType> kDTypes = {
      {"auto", DType::unset}, {"float32", DType::f32}, {"bfloat16", DType::bf16}, {"float16", DType::f16}};
  std::vector<QualityRun> runs;
  for (const std::string& name : options.dtypes) runs.push_back({.dtype = kDTypes.at(name)});
  const DType first = runs.front().dtype;
  for (const std::string& types : options.cache_types) {
    PROLOGUE_ASSIGN_OR_RETURN(QualityRun run, parse_cache_types(types));
    run.dtype = first;
    for (const int64_t block : options.hadamard_blocks) {
      for (const int64_t of_v : options.v_hadamard_blocks) {
        run.hadamard_block = block;
        run.v_hadamard_block = of_v;
        const bool is_known = run.k_format.type == first && run.v_format.type == first;
        const bool k_is_worth_it = block == 0 || dtype_is_quantized(run.k_format.type);
        const bool v_is_worth_it = of_v == 0 || dtype_is_quantized(run.v_format.type);
        if (k_is_worth_it && v_is_worth_it && !is_known) runs.push_back(run);
      }
    }
  }
  return runs;
}

Result<std::string> read_text(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  if (!in) return not_found(path, ": this file cannot be read");
  return text.str();
}

// Returns the windows, and in `head` what the file of results says about the model and the text.
Result<std::vector<std::vector<int32_t>>> read_windows(const Options& options, ordered_json& head) {
  PROLOGUE_ASSIGN_OR_RETURN(const std::string text, read_text(options.text));
  PROLOGUE_ASSIGN_OR_RETURN(const auto engine, Engine::load(options.engine));
  const Tokenizer& tokenizer = engine->tokenizer();
  PROLOGUE_ASSIGN_OR_RETURN(std::vector<int32_t> tokens, tokenizer.encode(text, false, false));
  if (options.num_tokens > static_cast<int64_t>(tokens.size())) {
    return invalid_argument("--tokens is ", options.num_tokens, ": the text has ", tokens.size());
  }
  if (options.num_tokens > 0) tokens.resize(static_cast<size_t>(options.num_tokens));
  PROLOGUE_ASSIGN_OR_RETURN(auto windows, make_windows(tokens, options.context, tokenizer.add_bos() ? tokenizer.bos_id() : -1));
  PROLOGUE_ASSIGN_OR_RETURN(const std::string device, describe_device(engine->device(), engine->options().num_threads));
  head["date"] = utc_now();
  head["commit"] = source_commit();
  head["device"] = device;
  head["model"] = engine->config().name;
  head["layers"] = engine->config().num_layers;
  head["kv_heads"] = engine->config().num_kv_heads;
  head["head_dim"] = engine->config().head_dim;
  head["text"] = options.text.substr(options.text.rfind('/') + 1);
  head["text_tokens"] = tokens.size();
  head["windows"] = windows.size();
  head["context"] = options.context;
  std::fprintf(stderr, "%s\n%s, %zu tokens in %zu windows of %lld\n", device.c_str(), engine->config().name.c_str(),
               tokens.size(), windows.size(), static_cast<long long>(options.context));
  return windows;
}

// Returns the table, as Markdown and as rows of JSON.
std::vector<ordered_json> report(const std::vector<RunQuality>& results) {
  const RunQuality& reference = results.front();
  const QualitySummary expected = summarise(reference.tokens, reference.tokens);
  std::printf(
      "\n| weights | K | V | Hadamard | of V | bytes a token | of bfloat16 | mean KL | 99.9 %% | largest | same argmax | "
      "perplexity | "
      "of the reference's | change of log p |\n"
      "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n");
  std::vector<ordered_json> rows;
  for (const RunQuality& result : results) {
    const QualitySummary summary = summarise(result.tokens, reference.tokens);
    const double ratio = summary.perplexity / expected.perplexity;
    const auto block = [](int64_t of) { return of == 0 ? std::string() : str_cat(of); };
    std::printf("| %s | %s | %s | %s | %s | %lld | %.3f | %.3g ± %.1g | %.3g | %.3g | %.2f %% | %.4f | %.4f | %.4f |\n",
                weights_name(result.run.dtype), kv_format_name(result.run.k_format), kv_format_name(result.run.v_format),
                block(result.run.hadamard_block).c_str(), block(result.run.v_hadamard_block).c_str(),
                static_cast<long long>(result.bytes_per_token), result.of_bfloat16, summary.mean_kl, summary.mean_kl_error,
                summary.p999_kl, summary.max_kl, 100.0 * summary.same_argmax, summary.perplexity, ratio, summary.logprob_change);
    rows.push_back({{"name", run_name(result.run)},
                    {"dtype", weights_name(result.run.dtype)},
                    {"k_type", kv_format_name(result.run.k_format)},
                    {"v_type", kv_format_name(result.run.v_format)},
                    {"hadamard_block", result.run.hadamard_block},
                    {"v_hadamard_block", result.run.v_hadamard_block},
                    {"bytes_per_token", result.bytes_per_token},
                    {"of_bfloat16", result.of_bfloat16},
                    {"predicted_tokens", result.tokens.kl.size()},
                    {"mean_kl", summary.mean_kl},
                    {"mean_kl_error", summary.mean_kl_error},
                    {"p999_kl", summary.p999_kl},
                    {"max_kl", summary.max_kl},
                    {"same_argmax", summary.same_argmax},
                    {"perplexity", summary.perplexity},
                    {"perplexity_ratio", ratio},
                    {"logprob_change", summary.logprob_change}});
  }
  return rows;
}

Status write_json(const std::string& path, const ordered_json& head, const std::vector<ordered_json>& rows) {
  if (path.empty()) return {};
  std::string text = head.dump(1);
  text.resize(text.rfind('\n'));
  std::ofstream out(path);
  out << text << ",\n \"rows\": [";
  for (size_t i = 0; i < rows.size(); ++i) out << (i == 0 ? "\n  " : ",\n  ") << rows[i].dump();
  out << "\n ]\n}\n";
  return out.flush() ? Status() : data_loss(path, ": this file cannot be written");
}

Status run(Options& options, const std::string& command) {
  PROLOGUE_ASSIGN_OR_RETURN(const std::vector<QualityRun> runs, make_runs(options));
  options.engine.max_seqs = 1;
  options.engine.context_length = options.context;
  options.engine.prefix_cache = false;
  ordered_json head;
  PROLOGUE_ASSIGN_OR_RETURN(const auto windows, read_windows(options, head));
  head["command"] = command;
  const auto start = std::chrono::steady_clock::now();
  const auto progress = [&](size_t window, const QualityRun& next) {
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    std::fprintf(stderr, "%6.0f s  window %zu, %s\n", seconds.count(), window + 1, run_name(next).c_str());
  };
  PROLOGUE_ASSIGN_OR_RETURN(const std::vector<RunQuality> results, compare_runs(options.engine, runs, windows, progress));
  return write_json(options.json, head, report(results));
}

int main_of(int argc, char** argv) {
  Options options;
  std::string device = "auto";
  CLI::App app("What the types of the KV cache cost in quality: KL divergence and perplexity over a text.",
               "bench_cache_quality");
  app.add_option("--model", options.engine.model_path, "the model, as generate takes it")->required()->type_name("FILE|DIR");
  app.add_option("--text", options.text, "a text in UTF-8")->required()->type_name("FILE");
  app.add_option("--tokens", options.num_tokens, "of the text, from its beginning; 0 = all")->check(CLI::NonNegativeNumber);
  app.add_option("--context", options.context, "tokens of a window")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--dtype", options.dtypes, "types of weights and activations; the first one's cache is the reference")
      ->check(CLI::IsMember({"auto", "float32", "bfloat16", "float16"}))
      ->capture_default_str();
  app.add_option("--cache-types", options.cache_types,
                 str_cat("TYPE or K,V, several with spaces between; of ", kv_format_names()))
      ->type_name("TYPE[,TYPE]")
      ->default_str("the list in benchmarks/cache_quality.cpp");
  app.add_option("--hadamard-blocks", options.hadamard_blocks, "blocks of the Hadamard transform of Q and K; 0 = none")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--v-hadamard-blocks", options.v_hadamard_blocks, "blocks of the Hadamard transform of V; 0 = none")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--device", device, "auto: cuda if there is a GPU, else cpu")->check(CLI::IsMember({"auto", "cpu", "cuda"}));
  app.add_option("--threads", options.engine.num_threads, "CPU threads; 0 = one per CPU")->check(CLI::NonNegativeNumber);
  app.add_option("--json", options.json, "keep the rows")->type_name("FILE");
  CLI11_PARSE(app, argc, argv);
  if (device != "auto") options.engine.device = device == "cpu" ? Device::cpu : Device::cuda;

  std::string command;
  for (int i = 0; i < argc; ++i) command += str_cat(i == 0 ? "" : " ", argv[i]);
  const Status status = run(options, command);
  if (status.ok()) return 0;
  std::fprintf(stderr, "bench_cache_quality: %s\n", status.message().c_str());
  return 1;
}

}  // namespace
}  // namespace prologue::bench

int main(int argc, char** argv) { return prologue::bench::main_of(argc, argv); }
