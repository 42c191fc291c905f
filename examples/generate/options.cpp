#include "options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <thread>

#include <prologue/engine/tokenizer/utf8.h>
#include <prologue/kernels/base/host/view_checks.h>

namespace generate {

using namespace prologue;

namespace {

// Defaults of --chat, if the options do not set them. Greedy answers of small models repeat themselves; the sampling defaults are those
// of llama.cpp.
constexpr int64_t kChatMaxTokens = 8192;
constexpr int64_t kChatContext = 8192;  // of an interactive chat
constexpr SamplingOptions kChatSampling = {.temperature = 0.8f, .top_k = 40, .top_p = 0.95f, .min_p = 0.05f};

struct Raw {
  std::string prompt_file;
  std::string device = "auto";
  std::string dtype = "auto";
  std::string kv_cache_dtype = "auto";
  bool unfused = false;
  std::string rounding = "once";
  std::string bad_number;  // the message about the first one
};

template <class T>
struct Range {
  T min, max;
  const char* note = "";  // what a special value means
  bool open = false;      // min itself is not allowed
};

// An option whose value is a decimal number in a range, and nothing else: no sign before unsigned ones, no hexadecimal, no nan.
template <class T>
CLI::Option* add_number(CLI::App& app, Raw& raw, const std::string& name, T& target, const Range<T>& range,
                        const std::string& help) {
  const auto parse = [&raw, &target, name, range](const std::string& text) {
    const char* end = text.data() + text.size();
    T value{};
    const auto [rest, error] = std::from_chars(text.data(), end, value);
    bool valid =
        error == std::errc() && rest == end && value <= range.max && (range.open ? value > range.min : value >= range.min);
    if constexpr (std::is_floating_point_v<T>) valid = valid && std::isfinite(value);
    if (valid) {
      target = value;
    } else if (raw.bad_number.empty()) {
      raw.bad_number = str_cat(name, " is ", in_quotes(text), ": it must be a ", std::is_integral_v<T> ? "whole " : "", "number ",
                               range.open ? str_cat("above ", range.min, " and at most ", range.max)
                                          : str_cat("between ", range.min, " and ", range.max),
                               *range.note != 0 ? str_cat(" (", range.note, ")") : "");
    }
  };
  return app.add_option_function<std::string>(name, parse, help)->type_name("N")->default_str(str_cat(target));
}

// An option whose value is one of some words.
CLI::Option* add_choice(CLI::App& app, const std::string& name, std::string& target, const std::vector<std::string>& words,
                        const std::string& help) {
  std::string list;
  for (const std::string& word : words) list += (list.empty() ? "" : "|") + word;
  return app.add_option(name, target, help)->check(CLI::IsMember(words).description(""))->type_name(list)->capture_default_str();
}

// The type of a cache of this name; unset if there is none.
DType kv_type_of(std::string_view name) {
  for (auto type = static_cast<int32_t>(DType::f32); dtype_valid(static_cast<DType>(type)); ++type) {
    if (dtype_is_kv(static_cast<DType>(type)) && name == dtype_name(static_cast<DType>(type))) return static_cast<DType>(type);
  }
  return DType::unset;
}

// "TYPE" or "K,V". Empty: no error.
std::string set_cache_types(const std::string& text, EngineOptions& engine) {
  if (text == "auto") return {};
  const size_t comma = text.find(',');
  const DType k = kv_type_of(std::string_view(text).substr(0, comma));
  const DType v = comma == std::string::npos ? k : kv_type_of(std::string_view(text).substr(comma + 1));
  if (k == DType::unset || v == DType::unset) {
    return str_cat("--kv-cache-dtype is ", in_quotes(text),
                   ": it must be auto, a type, or the types of K and V with a comma between ", "them; supported are ",
                   kv_type_names());
  }
  engine.kv_type = k;
  engine.v_type = v;
  return {};
}

// Checks rules about several options. Empty: no error.
std::string find_misuse(const Options& options, const Raw& raw) {
  if (!raw.bad_number.empty()) return raw.bad_number;
  if (!raw.prompt_file.empty() && !options.prompts.empty()) return "--prompt and --prompt-file exclude each other";
  if (!options.score_file.empty() && (options.chat || !options.prompts.empty() || !raw.prompt_file.empty())) {
    return "--score takes its tokens from its file: --prompt, --prompt-file and --chat do not go with it";
  }
  const bool has_prompt = !options.prompts.empty() || !raw.prompt_file.empty();
  if (!has_prompt && !options.chat && options.score_file.empty() && options.print_graph.empty()) {
    return "there is nothing to do: give --prompt TEXT, --prompt-file FILE, --chat, --score FILE or --print-graph";
  }
  if (options.chat && !has_prompt && options.json)
    return "--json needs --prompt or --prompt-file: an interactive chat is not JSON";
  if (options.system && !options.chat) return "--system needs --chat: other prompts have no system prompt";
  for (const std::string& stop : options.request.stop) {
    if (stop.empty()) return "--stop is empty: it would end every generation at once";
  }
  return {};
}

}  // namespace

ParsedOptions parse_options(int argc, char** argv, Output& out) {
  Options options;
  Raw raw;
  CLI::App app("Generates text with a GGUF model.", "generate");
  app.get_formatter()->column_width(36);
  app.set_version_flag("--version", "prologue " PROLOGUE_VERSION);

  constexpr int32_t kMaxInt = std::numeric_limits<int32_t>::max();
  EngineOptions& engine = options.engine;
  SamplingOptions& sampling = options.request.sampling;

  const auto group = [](const char* name, std::initializer_list<CLI::Option*> added) {
    for (CLI::Option* option : added) option->group(name);
  };
  group("Input",
        {app.add_option("--model", engine.model_path, "the model: a GGUF file")->required()->type_name("FILE.gguf"),
         app.add_option("--prompt", options.prompts, "prompt text; repeat the option to run several prompts as one batch")
             ->type_name("TEXT")
             ->allow_extra_args(false),
         app.add_option("--prompt-file", raw.prompt_file, "read the prompt from this file (at most 64 MiB)")->type_name("FILE"),
         app.add_flag("--chat", options.chat, "use the model's chat format; without a prompt: an interactive chat"),
         app.add_option("--system", options.system, "chat: the system prompt (default: the model's own, if it has one)")
             ->type_name("TEXT"),
         app.add_option("--score", options.score_file,
                        "print log probabilities; FILE is a JSON list of {prompt_tokens, tokens} (at most 64 MiB)")
             ->type_name("FILE")});

  CLI::Option* max_tokens = add_number<int64_t>(app, raw, "--max-tokens", options.request.max_tokens, {1, kMaxInt},
                                                str_cat("tokens to generate per prompt, at most; chat: ", kChatMaxTokens));
  CLI::Option* temperature =
      add_number<float>(app, raw, "--temperature", sampling.temperature, {0.0f, 100.0f, "0 = greedy"},
                        str_cat("0 = greedy: always the most likely token; chat: ", kChatSampling.temperature));
  CLI::Option* top_k = add_number<int32_t>(app, raw, "--top-k", sampling.top_k, {0, kMaxInt, "0 = off"},
                                           str_cat("sample from the N most likely tokens; 0 = off; chat: ", kChatSampling.top_k));
  CLI::Option* top_p = add_number<float>(
      app, raw, "--top-p", sampling.top_p, {0.0f, 1.0f, "1 = off", true},
      str_cat("sample from the most likely tokens whose probabilities sum to N; 1 = off; chat: ", kChatSampling.top_p));
  CLI::Option* min_p = add_number<float>(
      app, raw, "--min-p", sampling.min_p, {0.0f, 1.0f, "0 = off"},
      str_cat("exclude tokens less likely than N times the most likely one; 0 = off; chat: ", kChatSampling.min_p));
  CLI::Option* seed = add_number<uint64_t>(app, raw, "--seed", sampling.seed, {0, std::numeric_limits<uint64_t>::max()},
                                           "seed of the sampling; interactive chat: random");
  group("Sampling", {max_tokens, temperature, top_k, top_p, min_p, seed,
                     app.add_option("--stop", options.request.stop, "end before this text; may be repeated")
                         ->type_name("TEXT")
                         ->allow_extra_args(false),
                     app.add_flag("--ignore-eos", options.request.ignore_eos, "continue after an end-of-text token")});

  CLI::Option* context = add_number<int64_t>(
      app, raw, "--context", engine.context_length, {0, std::numeric_limits<int64_t>::max(), "0 = the model's"},
      str_cat("tokens of a prompt and its output together, at most; 0 = the model's; interactive chat: ", kChatContext));
  const int32_t num_cpus = std::max(1, static_cast<int32_t>(std::thread::hardware_concurrency()));
  group("Execution",
        {add_choice(app, "--device", raw.device, {"auto", "cpu", "cuda"}, "auto: cuda if there is a GPU, else cpu"),
         add_choice(app, "--dtype", raw.dtype, {"auto", "float32", "bfloat16", "float16"},
                    "type of weights and activations; auto: float32 on the CPU, bfloat16 on CUDA"),
         app.add_option("--kv-cache-dtype", raw.kv_cache_dtype,
                        str_cat("type of the KV cache, or one for K and one for V: ", kv_type_names(),
                                "; auto: as --dtype; fp8 and integers have a scale per token and head"))
             ->type_name("TYPE[,TYPE]")
             ->capture_default_str(),
         add_number<int64_t>(app, raw, "--hadamard-block", engine.hadamard_block, {0, 512, "0 = off"},
                             "Hadamard transform of Q and K in blocks of N channels: a quantised K loses less; 0 = off"),
         add_number<int64_t>(app, raw, "--page-size", engine.page_size, {1, 1024}, "tokens per page of the KV cache"), context,
         add_number<int32_t>(app, raw, "--threads", engine.num_threads, {0, std::max(64, num_cpus), "0 = one per CPU"},
                             "CPU threads; 0 = one per CPU"),
         app.add_flag("--unfused", raw.unfused, "run the graph without the fused prologue"),
         add_choice(app, "--rounding", raw.rounding, {"once", "per_step"},
                    "of the fused prologue: once, or per_step as the unfused nodes round")});

  group("Output", {app.add_flag("--json", options.json, "print one JSON object per prompt"),
                   app.add_flag("--quiet", options.quiet, "print only the generated text"),
                   add_choice(app, "--print-graph", options.print_graph, {"table", "full", "dot"},
                              "print the graph; table: equal layers share rows; full: a row for each node")
                       ->expected(0, 1)
                       ->default_str("table"),
                   app.add_flag("--profile", options.profile, "print the time of each node of the graph")});

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {
      std::ostringstream text;
      app.exit(error, text, text);
      out.write(text.str());
      return {};
    }
    fail(str_cat(error.what(), " (generate --help lists the options)"));
    return {{}, 2};
  }
  std::string misuse = find_misuse(options, raw);
  if (misuse.empty()) misuse = set_cache_types(raw.kv_cache_dtype, engine);
  if (!misuse.empty()) {
    fail(misuse);
    return {{}, 2};
  }
  if (!raw.prompt_file.empty()) {
    auto content = read_file("--prompt-file", raw.prompt_file);
    if (!content.ok()) return {{}, fail(content.status().message())};
    options.prompts.push_back(std::move(content).value());
  }

  const bool interactive = options.chat && options.prompts.empty();
  if (options.chat) {
    if (max_tokens->count() == 0) options.request.max_tokens = kChatMaxTokens;
    if (temperature->count() == 0) sampling.temperature = kChatSampling.temperature;
    if (top_k->count() == 0) sampling.top_k = kChatSampling.top_k;
    if (top_p->count() == 0) sampling.top_p = kChatSampling.top_p;
    if (min_p->count() == 0) sampling.min_p = kChatSampling.min_p;
  }
  if (interactive) {
    if (seed->count() == 0) sampling.seed = std::random_device()();
    if (context->count() == 0) engine.context_length = kChatContext;
  }

  const std::map<std::string, Device> devices = {{"cpu", Device::cpu}, {"cuda", Device::cuda}};
  const std::map<std::string, DType> dtypes = {{"float32", DType::f32}, {"bfloat16", DType::bf16}, {"float16", DType::f16}};
  if (raw.device != "auto") engine.device = devices.at(raw.device);
  if (raw.dtype != "auto") engine.dtype = dtypes.at(raw.dtype);
  engine.fused = !raw.unfused;
  if (raw.rounding == "per_step") engine.rounding = Rounding::per_step;
  engine.profile = options.profile;
  return {std::move(options), 0};
}

}  // namespace generate
