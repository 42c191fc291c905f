#include "options.h"

#include <limits>
#include <random>

#include "examples/common/engine_options.h"
#include "examples/common/flags.h"
#include "report.h"

namespace generate {

using namespace prologue;
using namespace examples;

namespace {

// These are defaults of --chat, if the options do not set them. Greedy answers of small models repeat themselves; the sampling defaults are
// those of llama.cpp.
constexpr int64_t kChatMaxTokens = 8192;
constexpr int64_t kChatContext = 8192;  // of an interactive chat
constexpr SamplingOptions kChatSampling = {.temperature = 0.8f, .top_k = 40, .top_p = 0.95f, .min_p = 0.05f};

// Checks rules about several options. Empty: no error.
std::string find_misuse(const Options& options, const std::string& prompt_file, const std::string& prompts_file) {
  const int sources = (prompt_file.empty() ? 0 : 1) + (prompts_file.empty() ? 0 : 1) + (options.prompts.empty() ? 0 : 1);
  if (sources > 1) return "--prompt, --prompt-file and --prompts exclude each other";
  if (!options.score_file.empty() && (options.chat || sources > 0)) {
    return "--score takes its tokens from its file: --prompt, --prompt-file, --prompts and --chat do not go with it";
  }
  if (sources == 0 && !options.chat && options.score_file.empty() && options.print_graph.empty()) {
    return "there is nothing to do: give --prompt TEXT, --prompt-file FILE, --prompts FILE, --chat, --score FILE or "
           "--print-graph";
  }
  const bool interactive = options.chat && sources == 0;
  if (interactive && options.json) return "--json needs --prompt, --prompt-file or --prompts: an interactive chat is not JSON";
  if (interactive && options.request.num_samples > 1)
    return "--n needs --prompt, --prompt-file or --prompts: a chat goes on with one answer";
  if (options.request.num_logprobs >= 0 && !options.json) return "--logprobs needs --json";
  if (options.system && !options.chat) return "--system needs --chat: other prompts have no system prompt";
  for (const std::string& stop : options.request.stop) {
    if (stop.empty()) return "--stop is empty: it would end every generation at once";
  }
  return {};
}

}  // namespace

ParsedOptions parse_options(int argc, char** argv, StandardOutput& out) {
  Options options;
  std::string prompt_file, prompts_file;
  CLI::App app("Generates text with a language model.", "generate");
  Flags flags(app);
  app.get_formatter()->column_width(36);
  app.set_version_flag("--version", "prologue " PROLOGUE_VERSION);

  constexpr int32_t kMaxInt = std::numeric_limits<int32_t>::max();
  EngineOptions& engine = options.engine;
  SamplingOptions& sampling = options.request.sampling;

  EngineFlags engine_flags(flags, engine, str_cat("; interactive chat: ", kChatContext));
  const auto group = [](const char* name, std::initializer_list<CLI::Option*> added) {
    for (CLI::Option* option : added) option->group(name);
  };
  group("Input",
        {app.add_option("--prompt", options.prompts, "prompt text; repeat the option to run several prompts as one batch")
             ->type_name("TEXT")
             ->allow_extra_args(false),
         app.add_option("--prompt-file", prompt_file, "read the prompt from this file (at most 64 MiB)")->type_name("FILE"),
         app.add_option("--prompts", prompts_file,
                        "read prompts from a JSONL file: each line is a string, or an object with \"prompt\" (at most 64 MiB)")
             ->type_name("FILE.jsonl"),
         app.add_flag("--chat", options.chat, "use the model's chat format; without a prompt: an interactive chat"),
         app.add_option("--system", options.system, "chat: the system prompt (default: the model's own, if it has one)")
             ->type_name("TEXT"),
         app.add_option("--score", options.score_file,
                        "print log probabilities; FILE is a JSON list of {prompt_tokens, tokens} (at most 64 MiB)")
             ->type_name("FILE")});

  ChatTemplateFlags chat_template_flags(app, options.chat_template, "Input");
  CLI::Option* max_tokens = flags.number<int64_t>("--max-tokens", options.request.max_tokens, {1, kMaxInt},
                                                  str_cat("tokens to generate per prompt, at most; chat: ", kChatMaxTokens));
  CLI::Option* temperature =
      flags.number<float>("--temperature", sampling.temperature, {0.0f, 100.0f, "0 = greedy"},
                          str_cat("0 = greedy: always the most likely token; chat: ", kChatSampling.temperature));
  CLI::Option* top_k =
      flags.number<int32_t>("--top-k", sampling.top_k, {0, kMaxInt, "0 = off"},
                            str_cat("sample from the N most likely tokens; 0 = off; chat: ", kChatSampling.top_k));
  CLI::Option* top_p = flags.number<float>(
      "--top-p", sampling.top_p, {0.0f, 1.0f, "1 = off", true},
      str_cat("sample from the most likely tokens whose probabilities sum to N; 1 = off; chat: ", kChatSampling.top_p));
  CLI::Option* min_p = flags.number<float>(
      "--min-p", sampling.min_p, {0.0f, 1.0f, "0 = off"},
      str_cat("exclude tokens less likely than N times the most likely one; 0 = off; chat: ", kChatSampling.min_p));
  CLI::Option* seed = flags.number<uint64_t>("--seed", sampling.seed, {0, std::numeric_limits<uint64_t>::max()},
                                             "seed of the sampling; interactive chat: random");
  constexpr float kLargest = std::numeric_limits<float>::max();
  CLI::Option* repetition_penalty =
      flags.number<float>("--repetition-penalty", sampling.repetition_penalty, {0.0f, kLargest, "1 = off", true},
                          "of tokens in the prompt or generated; 1 = off");
  group("Sampling (without an option the value of the model's files, else the default here)",
        {max_tokens, temperature, top_k, top_p, min_p, seed, repetition_penalty,
         flags.number<float>("--presence-penalty", sampling.presence_penalty, {-kLargest, kLargest, "0 = off"},
                             "of tokens that were generated; 0 = off"),
         flags.number<float>("--frequency-penalty", sampling.frequency_penalty, {-kLargest, kLargest, "0 = off"},
                             "for each time that a token was generated; 0 = off"),
         flags.number<int64_t>("--n", options.request.num_samples, {1, kMaxSamples},
                               "completions of each prompt; completion i has the seed + i"),
         flags.number<int64_t>("--logprobs", options.request.num_logprobs, {-1, kMaxTopLogprobs, "-1 = none"},
                               "with --json: log probabilities of each token and of the N most likely ones; -1 = none"),
         app.add_option("--stop", options.request.stop, "end before this text; may be repeated")
             ->type_name("TEXT")
             ->allow_extra_args(false),
         app.add_flag("--ignore-eos", options.request.ignore_eos, "continue after an end-of-text token")});

  group("Output", {app.add_flag("--json", options.json, "print one JSON object per prompt"),
                   app.add_flag("--quiet", options.quiet, "print only the generated text"),
                   flags
                       .choice("--print-graph", options.print_graph, {"table", "full", "dot"},
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
    fail(str_cat(message_of(error, app), " (generate --help lists the options)"));
    return {{}, 2};
  }
  std::string misuse = flags.misuse();
  if (misuse.empty()) misuse = misuse_of_empty(app, {"--model", "--prompt-file", "--prompts", "--score"});
  if (misuse.empty()) misuse = find_misuse(options, prompt_file, prompts_file);
  if (misuse.empty()) misuse = engine_flags.apply();
  if (misuse.empty()) misuse = chat_template_flags.apply();
  if (!misuse.empty()) {
    fail(misuse);
    return {{}, 2};
  }
  if (!prompt_file.empty()) {
    auto content = read_file("--prompt-file", prompt_file);
    if (!content.ok()) return {{}, fail(content.status().message())};
    options.prompts.push_back(std::move(content).value());
  }
  if (!prompts_file.empty()) {
    auto prompts = read_prompts(prompts_file);
    if (!prompts.ok()) return {{}, fail(prompts.status().message())};
    options.prompts = std::move(prompts).value();
  }

  const bool interactive = options.chat && options.prompts.empty();
  SamplingDefaults& chosen = options.chosen_sampling;
  if (temperature->count() > 0) chosen.temperature = sampling.temperature;
  if (top_k->count() > 0) chosen.top_k = sampling.top_k;
  if (top_p->count() > 0) chosen.top_p = sampling.top_p;
  if (min_p->count() > 0) chosen.min_p = sampling.min_p;
  if (repetition_penalty->count() > 0) chosen.repetition_penalty = sampling.repetition_penalty;
  if (options.chat) {
    if (max_tokens->count() == 0) options.request.max_tokens = kChatMaxTokens;
    sampling.temperature = kChatSampling.temperature;
    sampling.top_k = kChatSampling.top_k;
    sampling.top_p = kChatSampling.top_p;
    sampling.min_p = kChatSampling.min_p;
  }
  options.names_context = engine_flags.has_context();
  if (interactive) {
    if (seed->count() == 0) sampling.seed = std::random_device()();
    if (!engine_flags.has_context()) engine.context_length = kChatContext;
  }

  engine.profile = options.profile;
  return {std::move(options), 0};
}

}  // namespace generate
