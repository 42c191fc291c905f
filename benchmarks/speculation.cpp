// bench_speculation: tokens/s with drafts over tokens/s without, of the same requests in the same run.
//   bench_speculation --model FILE --oracle     an oracle proposes, which is right with a given probability: what verification costs
//   bench_speculation --model FILE --texts DIR  prompt lookup, or --draft PATH, on texts (benchmarks/text/speculation), one request at a time
// The oracle needs no trained weights. A bias makes every token the same one, so it knows what comes; what attention reads, and all that a
// step computes, are as ever. Its drafts are wrong at random. "ideal" is the mean number of tokens of a step: the ratio if a step with drafts
// cost as much as one without. Without --all-drafts the engine decides how many are verified.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include <prologue/engine/engine.h>
#include <prologue/engine/tokenizer/chat.h>

#include "benchmarks/engine/statistics.h"
#include "benchmarks/engine/workload.h"
#include "benchmarks/harness.h"

namespace prologue::bench {
namespace {

using nlohmann::ordered_json;

constexpr int32_t kRight = 7, kWrong = 8;  // tokens

class Oracle : public Proposer {
 public:
  Status propose(std::span<DraftSequence> sequences) override {
    for (DraftSequence& sequence : sequences) {
      sequence.evidence = 1;
      for (int64_t i = 0; i < sequence.max_drafts; ++i) {
        sequence.drafts.push_back(std::uniform_real_distribution<double>()(random_) < right ? kRight : kWrong);
      }
    }
    return {};
  }
  void forget(int64_t) override {}
  bool is_cheap() const override { return true; }

  double right = 0.0;

 private:
  std::mt19937_64 random_{1};
};

struct Options {
  EngineOptions engine;
  bool oracle = false, all_drafts = false;
  std::string texts, draft, json;
  float temperature = 0.0f;                           // of texts
  std::vector<int64_t> batches = {1, 8, 64}, depths;  // empty depths: 7 of the oracle, all of texts
  std::vector<double> right = {0.6, 0.8, 0.9};
  int64_t context = 512, num_tokens = 128;
  int repeats = 3;
};

class SpeculationBench {
 public:
  explicit SpeculationBench(const Options& options) : options_(options) {}

  Status run() {
    if (options_.oracle) PROLOGUE_RETURN_IF_ERROR(run_oracle());
    if (!options_.texts.empty()) PROLOGUE_RETURN_IF_ERROR(run_texts());
    return {};
  }

  Status write_json(const std::string& command) {
    if (options_.json.empty()) return {};
    result_["command"] = command;
    result_["rows"] = rows_;
    std::ofstream out(options_.json);
    out << result_.dump(1) << "\n";
    return out.flush() ? Status() : data_loss(options_.json, ": this file cannot be written");
  }

 private:
  Status describe(const Engine& engine) {
    PROLOGUE_ASSIGN_OR_RETURN(const std::string device, describe_device(engine.device(), engine.options().num_threads));
    result_ = {{"date", utc_now()},
               {"commit", source_commit()},
               {"device", device},
               {"model", engine.config().name},
               {"dtype", dtype_name(engine.dtype())},
               {"weights", engine.weight_types()},
               {"ranks", engine.num_ranks()},
               {"method", "tokens/s of each sequence from its first token to its last, added up; the median of the runs"}};
    std::printf("%s\n%s, %s, weights as %s\n", device.c_str(), engine.config().name.c_str(), dtype_name(engine.dtype()),
                engine.weight_types().c_str());
    return {};
  }

  struct Rate {
    double tokens_per_s = 0.0;
    double tokens_per_step = 0.0;  // of a sequence
    double accepted = 0.0;         // of the drafts
    double wasted = 0.0;           // rows of drafts that were not accepted, by generated tokens
  };
  static Result<Rate> measure(Engine& engine, const std::vector<Request>& requests) {
    PROLOGUE_ASSIGN_OR_RETURN(const std::vector<Completion> completions, engine.generate(requests));
    Rate rate;
    double tokens = 0.0, drafts = 0.0, accepted = 0.0;
    for (const Completion& each : completions) {
      PROLOGUE_RETURN_IF_ERROR(each.status);
      const double decoded = static_cast<double>(each.tokens.size()) - 1.0;
      if (each.decode_seconds > 0.0) rate.tokens_per_s += decoded / each.decode_seconds;
      tokens += decoded;
      drafts += static_cast<double>(each.draft_tokens);
      accepted += static_cast<double>(each.accepted_tokens);
    }
    rate.tokens_per_step = tokens / (tokens - accepted);
    rate.accepted = drafts > 0.0 ? accepted / drafts : 0.0;
    rate.wasted = (drafts - accepted) / tokens;
    return rate;
  }
  static Result<Rate> median_of(Engine& engine, const std::vector<Request>& requests, int repeats) {
    std::vector<Rate> rates;
    PROLOGUE_RETURN_IF_ERROR(measure(engine, requests).status());  // prompts are in the cache then, and steps captured
    for (int i = 0; i < repeats; ++i) {
      PROLOGUE_ASSIGN_OR_RETURN(const Rate rate, measure(engine, requests));
      rates.push_back(rate);
    }
    std::sort(rates.begin(), rates.end(), [](const Rate& a, const Rate& b) { return a.tokens_per_s < b.tokens_per_s; });
    return rates[rates.size() / 2];
  }

  // ---- oracle ----

  Status run_oracle() {
    std::map<int64_t, double> without;  // tokens/s by batch
    std::map<int64_t, std::vector<Request>> requests;
    {
      PROLOGUE_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, Engine::load(options_.engine));
      PROLOGUE_RETURN_IF_ERROR(describe(*engine));
      for (const int64_t batch : options_.batches) {
        for (auto& prompt : random_prompts(batch, options_.context, engine->config().vocab_size, 1)) {
          Request request;
          request.prompt = std::move(prompt);
          request.max_tokens = options_.num_tokens;
          request.ignore_eos = true;
          request.sampling.logit_bias = {{kRight, 1e6f}};
          requests[batch].push_back(std::move(request));
        }
        PROLOGUE_ASSIGN_OR_RETURN(const Rate rate, median_of(*engine, requests[batch], options_.repeats));
        without[batch] = rate.tokens_per_s;
        std::printf("batch %-4lld without drafts %30.1f tokens/s\n", static_cast<long long>(batch), rate.tokens_per_s);
      }
    }
    const auto oracle = std::make_shared<Oracle>();
    const std::vector<int64_t> depths = options_.depths.empty() ? std::vector<int64_t>{7} : options_.depths;
    for (const int64_t depth : depths) {
      EngineOptions engine_options = options_.engine;
      engine_options.speculation = Speculation::custom;
      engine_options.proposer = oracle;
      engine_options.max_drafts = depth;
      engine_options.all_drafts = options_.all_drafts;
      PROLOGUE_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, Engine::load(engine_options));
      for (const int64_t batch : options_.batches) {
        for (const double right : options_.right) {
          oracle->right = right;
          PROLOGUE_ASSIGN_OR_RETURN(const Rate rate, median_of(*engine, requests[batch], options_.repeats));
          const double ratio = rate.tokens_per_s / without[batch];
          std::printf("batch %-4lld depth %-3lld right %.2f %20.1f tokens/s  %5.2fx  ideal %.2fx, wasted rows %.2f a token\n",
                      static_cast<long long>(batch), static_cast<long long>(depth), right, rate.tokens_per_s, ratio,
                      rate.tokens_per_step, rate.wasted);
          std::fflush(stdout);
          rows_.push_back({{"name", str_cat("oracle, batch ", batch, ", depth ", depth, ", right ", right)},
                           {"all_drafts", options_.all_drafts},
                           {"context", options_.context},
                           {"tokens_per_s", rate.tokens_per_s},
                           {"without_tokens_per_s", without[batch]},
                           {"ratio", ratio},
                           {"ideal", rate.tokens_per_step},
                           {"accepted", rate.accepted},
                           {"wasted", rate.wasted}});
        }
      }
    }
    return {};
  }

  // ---- texts ----

  Result<std::vector<std::pair<std::string, std::string>>> read_texts() const {
    std::vector<std::pair<std::string, std::string>> texts;
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(options_.texts, error)) {
      if (entry.path().extension() != ".txt") continue;
      std::ifstream in(entry.path());
      texts.emplace_back(entry.path().stem().string(), std::string(std::istreambuf_iterator<char>(in), {}));
    }
    std::sort(texts.begin(), texts.end());
    if (error || texts.empty()) return not_found(options_.texts, ": there are no texts (*.txt)");
    return texts;
  }

  Status run_texts() {
    PROLOGUE_ASSIGN_OR_RETURN(const auto texts, read_texts());
    EngineOptions drafting = options_.engine;
    drafting.speculation = options_.draft.empty() ? Speculation::prompt_lookup : Speculation::draft_model;
    drafting.draft_model_path = options_.draft;
    if (!options_.depths.empty()) drafting.max_drafts = options_.depths.back();
    drafting.all_drafts = options_.all_drafts;
    PROLOGUE_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> without, Engine::load(options_.engine));
    PROLOGUE_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> with, Engine::load(drafting));
    PROLOGUE_RETURN_IF_ERROR(describe(*without));
    PROLOGUE_ASSIGN_OR_RETURN(const ChatFormat chat, ChatFormat::create(without->tokenizer()));
    std::map<std::string, std::vector<double>> ratios;  // by the first word of the name
    for (const auto& [name, text] : texts) {
      const ChatMessage message{"user", text};
      Request request;
      PROLOGUE_ASSIGN_OR_RETURN(request.prompt, chat.encode_chat({&message, 1}));
      request.stop_tokens = chat.stop_tokens();
      request.max_tokens = 2 * options_.num_tokens;
      request.sampling.temperature = options_.temperature;
      std::vector<double> of_text;
      Rate plain, drafted;
      for (int i = 0; i <= options_.repeats; ++i) {  // in turn, since other work comes and goes
        PROLOGUE_ASSIGN_OR_RETURN(plain, measure(*without, {request}));
        PROLOGUE_ASSIGN_OR_RETURN(drafted, measure(*with, {request}));
        if (i > 0) of_text.push_back(drafted.tokens_per_s / plain.tokens_per_s);
      }
      const double ratio = median(of_text);
      ratios[name.substr(0, name.find('_'))].push_back(ratio);
      std::printf("%-28s %10.1f %10.1f tokens/s  %5.2fx  tokens a step %.2f, accepted %.0f %%\n", name.c_str(),
                  plain.tokens_per_s, drafted.tokens_per_s, ratio, drafted.tokens_per_step, 100.0 * drafted.accepted);
      std::fflush(stdout);
      rows_.push_back({{"name", str_cat(options_.draft.empty() ? "lookup, " : "draft model, ", name)},
                       {"temperature", options_.temperature},
                       {"tokens_per_s", drafted.tokens_per_s},
                       {"without_tokens_per_s", plain.tokens_per_s},
                       {"ratio", ratio},
                       {"ideal", drafted.tokens_per_step},
                       {"accepted", drafted.accepted}});
    }
    for (const auto& [kind, of_kind] : ratios) {
      double log_sum = 0.0;
      for (const double ratio : of_kind) log_sum += std::log(ratio);
      std::printf("%-28s geometric mean %.2fx\n", kind.c_str(), std::exp(log_sum / static_cast<double>(of_kind.size())));
    }
    return {};
  }

  Options options_;
  ordered_json result_;
  ordered_json rows_ = ordered_json::array();
};

int main_of(int argc, char** argv) {
  Options options;
  std::string device = "auto";
  CLI::App app("Tokens/s with drafts over tokens/s without.", "bench_speculation");
  app.add_option("--model", options.engine.model_path, "the model: a GGUF file or a directory of Hugging Face")
      ->required()
      ->type_name("PATH");
  app.add_flag("--oracle", options.oracle, "an oracle proposes that is right with a probability");
  app.add_option("--texts", options.texts, "prompt lookup on the texts (*.txt) of this folder, as chats")->type_name("DIR");
  app.add_option("--batches", options.batches, "of the oracle: sequences")
      ->delimiter(',')
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--depths", options.depths, "drafts of a step; of texts the last one (default: 7 of the oracle, 15 of texts)")
      ->delimiter(',')
      ->check(CLI::Range(int64_t{1}, kMaxDrafts));
  app.add_option("--right", options.right, "of the oracle: probabilities")
      ->delimiter(',')
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  app.add_option("--draft", options.draft, "texts: a draft model in place of prompt lookup")->type_name("PATH");
  app.add_option("--temperature", options.temperature, "of texts")->check(CLI::Range(0.0, 2.0))->capture_default_str();
  app.add_flag("--all-drafts", options.all_drafts, "all drafts are verified, whether that pays or not");
  app.add_option("--context", options.context, "tokens of the oracle's prompts")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--tokens", options.num_tokens, "generated tokens; of texts twice as many, at most")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--repeats", options.repeats, "runs of which the median counts")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--device", device, "auto: cuda if there is a GPU, else cpu")->check(CLI::IsMember({"auto", "cpu", "cuda"}));
  app.add_flag(
      "--keep-quantized", [&](int64_t) { options.engine.keep_quantized = true; }, "quantised weights stay as the file has them");
  app.add_option("--threads", options.engine.num_threads, "CPU threads; 0 = one per CPU")->check(CLI::NonNegativeNumber);
  app.add_option("--tensor-parallel", options.engine.tensor_parallel, "ranks that share the model")->check(CLI::PositiveNumber);
  app.add_option("--kv-memory", options.engine.kv_memory, "bytes of the KV cache, 4GiB for example; 0 = the engine's choice")
      ->transform(CLI::AsSizeValue(false));
  app.add_option("--json", options.json, "keep the rows")->type_name("FILE");
  CLI11_PARSE(app, argc, argv);
  if (device == "cpu") options.engine.device = Device::cpu;
  if (device == "cuda") options.engine.device = Device::cuda;
  std::string command;
  for (int i = 0; i < argc; ++i) command += str_cat(i == 0 ? "" : " ", argv[i]);
  SpeculationBench bench(options);
  Status status = bench.run();
  const Status written = bench.write_json(command);  // the rows up to an error, too
  if (status.ok()) status = written;
  if (status.ok()) return 0;
  std::fprintf(stderr, "bench_speculation: %s\n", status.message().c_str());
  return 1;
}

}  // namespace
}  // namespace prologue::bench

int main(int argc, char** argv) { return prologue::bench::main_of(argc, argv); }
