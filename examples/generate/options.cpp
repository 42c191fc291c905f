#include "options.h"

#include <CLI/CLI.hpp>
#include <fstream>
#include <iostream>
#include <map>
#include <sstream>

namespace generate {

namespace {

struct Raw {
  std::string prompt_file;
  std::string device = "auto";
  std::string dtype = "auto";
  std::string kv_cache_dtype = "auto";
  bool unfused = false;
  std::string rounding = "once";
};

// Rules that the parser does not know. Empty: all is well.
std::string find_misuse(const Options& options, const Raw& raw) {
  using prologue::str_cat;
  if (!raw.prompt_file.empty() && !options.prompts.empty()) return "--prompt and --prompt-file exclude each other";
  if (!options.score_file.empty() && (options.chat || !options.prompts.empty() || !raw.prompt_file.empty())) {
    return "--score takes its tokens from its file: --prompt, --prompt-file and --chat do not go with it";
  }
  const bool has_prompt = !options.prompts.empty() || !raw.prompt_file.empty();
  if (!has_prompt && !options.chat && options.score_file.empty() && options.print_graph.empty()) {
    return "there is nothing to do: give --prompt TEXT, --prompt-file FILE, --chat, --score FILE or --print-graph";
  }
  if (options.chat && !has_prompt && options.json) return "--json needs --prompt or --prompt-file: an interactive chat is not JSON";
  if (options.request.max_tokens < 1) return str_cat("--max-tokens is ", options.request.max_tokens, ": it must be at least 1");
  const prologue::SamplingOptions& sampling = options.request.sampling;
  if (!(sampling.temperature >= 0.0f)) return str_cat("--temperature is ", sampling.temperature, ": it must be 0 (greedy) or positive");
  if (sampling.top_k < 0) return str_cat("--top-k is ", sampling.top_k, ": it must be 0 (off) or positive");
  if (!(sampling.top_p > 0.0f && sampling.top_p <= 1.0f)) return str_cat("--top-p is ", sampling.top_p, ": it must be above 0 and at most 1");
  if (!(sampling.min_p >= 0.0f && sampling.min_p <= 1.0f)) return str_cat("--min-p is ", sampling.min_p, ": it must be between 0 and 1");
  for (const std::string& stop : options.request.stop) {
    if (stop.empty()) return "--stop is empty: it would end every generation at once";
  }
  const prologue::EngineOptions& engine = options.engine;
  if (engine.page_size < 1 || engine.page_size > 1024) return str_cat("--page-size is ", engine.page_size, ": it must be between 1 and 1024");
  if (engine.cache_tokens < 0) return str_cat("--context is ", engine.cache_tokens, ": it must be at least 1");
  if (engine.num_threads < 0 || engine.num_threads > 4096) {
    return str_cat("--threads is ", engine.num_threads, ": it must be between 1 and 4096 (0 = all cores)");
  }
  return {};
}

}  // namespace

ParsedOptions parse_options(int argc, char** argv) {
  Options options;
  Raw raw;
  CLI::App app("Generates text with a GGUF model: the layer graph, the QKV GEMM, the fused attention prologue and paged attention.",
               "generate");
  app.set_version_flag("--version", "prologue " PROLOGUE_VERSION);
  app.add_option("--model", options.engine.model_path, "the model: a GGUF file")->required()->type_name("FILE.gguf");
  app.add_option("--prompt", options.prompts, "a text to go on from; repeat it to run several as one batch")
      ->type_name("TEXT")
      ->allow_extra_args(false);
  app.add_option("--prompt-file", raw.prompt_file, "the prompt is the content of this file")->type_name("FILE");
  app.add_flag("--chat", options.chat, "use the model's chat format; without a prompt: an interactive chat");
  app.add_option("--max-tokens", options.request.max_tokens, "tokens to generate at most, per prompt")->capture_default_str();
  app.add_option("--temperature", options.request.sampling.temperature, "0 = greedy")->capture_default_str();
  app.add_option("--top-k", options.request.sampling.top_k, "draw among the k likeliest tokens; 0 = off")->capture_default_str();
  app.add_option("--top-p", options.request.sampling.top_p, "draw among the likeliest tokens of this total probability; 1 = off")
      ->capture_default_str();
  app.add_option("--min-p", options.request.sampling.min_p, "leave out tokens below this share of the likeliest; 0 = off")
      ->capture_default_str();
  app.add_option("--seed", options.request.sampling.seed, "of the random choice")->capture_default_str();
  app.add_option("--stop", options.request.stop, "end before this text; may be repeated")->type_name("TEXT")->allow_extra_args(false);
  app.add_flag("--ignore-eos", options.request.ignore_eos, "go on after the end-of-text token");
  app.add_option("--device", raw.device, "where to run: auto = the GPU where there is one")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}))
      ->type_name("auto|cpu|cuda")
      ->capture_default_str();
  app.add_option("--dtype", raw.dtype, "of weights and activations: auto = float32 on the CPU, bfloat16 on CUDA")
      ->check(CLI::IsMember({"auto", "float32", "bfloat16", "float16"}))
      ->type_name("auto|float32|bfloat16|float16")
      ->capture_default_str();
  app.add_option("--kv-cache-dtype", raw.kv_cache_dtype,
                 "of the KV cache: auto = as --dtype; fp8 and integers have a scale for each token and head")
      ->check(CLI::IsMember({"auto", "float32", "float16", "bfloat16", "fp8_e4m3", "fp8_e5m2", "int8", "int4"}))
      ->type_name("auto|float32|float16|bfloat16|fp8_e4m3|fp8_e5m2|int8|int4")
      ->capture_default_str();
  app.add_option("--page-size", options.engine.page_size, "tokens in a page of the KV cache")->capture_default_str();
  app.add_option("--context", options.engine.cache_tokens, "tokens in the KV cache, all prompts together; 0 = what they need")
      ->capture_default_str();
  app.add_option("--threads", options.engine.num_threads, "CPU threads; 0 = all cores")->capture_default_str();
  app.add_flag("--unfused", raw.unfused, "run the graph as the model writes it down, without the fused prologue");
  app.add_option("--rounding", raw.rounding, "of the fused prologue: once, or per_step as the unfused nodes round")
      ->check(CLI::IsMember({"once", "per_step"}))
      ->type_name("once|per_step")
      ->capture_default_str();
  app.add_option("--print-graph", options.print_graph, "print the graph (table or dot)")
      ->expected(0, 1)
      ->default_str("table")
      ->check(CLI::IsMember({"table", "dot"}))
      ->type_name("table|dot");
  app.add_flag("--profile", options.profile, "print the time of each node of the graph");
  app.add_option("--score", options.score_file, "force the tokens of this JSON list of {prompt_tokens, tokens}, print their scores")
      ->type_name("FILE");
  app.add_flag("--json", options.json, "print one JSON object per prompt");
  app.add_flag("--quiet", options.quiet, "print the generated text alone");

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {
      app.exit(error);
      return {};
    }
    std::cerr << "generate: " << error.what() << " (generate --help lists the options)\n";
    return {{}, 2};
  }
  if (const std::string misuse = find_misuse(options, raw); !misuse.empty()) {
    std::cerr << "generate: " << misuse << "\n";
    return {{}, 2};
  }

  using prologue::Device;
  using prologue::DType;
  using prologue::KvType;
  const std::map<std::string, Device> devices = {{"cpu", Device::cpu}, {"cuda", Device::cuda}};
  const std::map<std::string, DType> dtypes = {{"float32", DType::f32}, {"bfloat16", DType::bf16}, {"float16", DType::f16}};
  if (raw.device != "auto") options.engine.device = devices.at(raw.device);
  if (raw.dtype != "auto") options.engine.dtype = dtypes.at(raw.dtype);
  for (auto type = static_cast<int32_t>(KvType::f32); prologue::kv_type_valid(static_cast<KvType>(type)); ++type) {
    if (raw.kv_cache_dtype == prologue::kv_type_name(static_cast<KvType>(type))) options.engine.kv_type = static_cast<KvType>(type);
  }
  options.engine.fused = !raw.unfused;
  if (raw.rounding == "per_step") options.engine.rounding = prologue::Rounding::per_step;
  options.engine.profile = options.profile;
  if (!raw.prompt_file.empty()) {
    std::ifstream file(raw.prompt_file, std::ios::binary);
    std::ostringstream content;
    if (!file || !(content << file.rdbuf() || file.peek() == std::ifstream::traits_type::eof())) {
      std::cerr << "generate: --prompt-file " << raw.prompt_file << ": the file cannot be read\n";
      return {{}, 1};
    }
    options.prompts.push_back(content.str());
  }
  return {std::move(options), 0};
}

}  // namespace generate
