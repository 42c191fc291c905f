// generate: generates text with a model file. It shows how to use the engine: load, encode, generate, print.
#include <chrono>
#include <cstdio>
#include <exception>
#include <iostream>
#include <new>
#include <string>
#include <vector>

#include <prologue/engine/engine.h>
#include <prologue/engine/tokenizer/chat.h>
#include <prologue/layers/graph/print.h>

#include "chat.h"
#include "examples/common/engine_options.h"
#include "io.h"
#include "options.h"
#include "report.h"

using namespace prologue;
using namespace generate;

namespace {

// Encodes the prompt: raw text with the model's special tokens in it, or the user's message in the model's chat format.
Status encode_prompt(const Engine& engine, const ChatFormat* chat, const Options& options, const std::string& prompt,
                     Request& request) {
  if (chat != nullptr) {
    std::vector<ChatMessage> messages;
    if (options.system) messages.push_back({"system", *options.system});
    messages.push_back({"user", prompt});
    PROLOGUE_ASSIGN_OR_RETURN(request.prompt, chat->encode_chat(messages));
    request.stop_tokens = chat->stop_tokens();
  } else {
    PROLOGUE_ASSIGN_OR_RETURN(request.prompt, engine.tokenizer().encode(prompt, true, engine.tokenizer().add_bos()));
  }
  return {};
}

// Runs all prompts as one batch. A single one is streamed; several are printed one after the other.
int run_prompts(Engine& engine, const ChatFormat* chat, const Options& options, StandardOutput& out) {
  std::vector<Request> requests(options.prompts.size(), options.request);
  std::vector<Status> encoded(options.prompts.size());
  for (size_t i = 0; i < requests.size(); ++i) encoded[i] = encode_prompt(engine, chat, options, options.prompts[i], requests[i]);

  ProgressBar progress("prefill", !options.quiet);
  const auto num_samples = static_cast<size_t>(options.request.num_samples);
  const bool stream = !options.json && requests.size() * num_samples == 1;
  bool started = false;
  const auto show = [&](std::string_view text) {
    if (!started) {
      progress.clear();
      if (!options.quiet && chat == nullptr) out.write(options.prompts[0]);
    }
    started = true;
    out.write(text);
  };
  GenerationEvents events;
  if (stream) events.on_text = [&](size_t, std::string_view text) { show(text); };
  events.on_prefill = [&](double fraction) { progress.update(fraction); };
  events.should_stop = [&] { return out.failed(); };
  const auto start = std::chrono::steady_clock::now();
  auto generated = engine.generate(requests, events);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  progress.clear();
  if (!generated.ok()) return fail(generated.status().message());
  std::vector<Completion>& completions = *generated;

  int exit_code = 0;
  for (size_t c = 0; c < completions.size(); ++c) {
    const size_t i = c / num_samples;
    if (!encoded[i].ok()) completions[c].status = encoded[i];
    const Completion& completion = completions[c];
    if (!completion.status.ok()) exit_code = 1;
    if (options.json) {
      out.write(json_line(engine, options.prompts[i], requests[i], completion) + "\n");
    } else if (!completion.status.ok()) {
      if (started) out.write("\n");
      fail((stream ? "" : str_cat("prompt ", i + 1, ": ")) + completion.status.message());
    } else if (stream) {
      show("\n");
    } else {
      const std::string sample = num_samples > 1 ? str_cat(", completion ", c % num_samples + 1) : "";
      if (!options.quiet) out.write(str_cat("--- prompt ", i + 1, sample, " ---\n", chat == nullptr ? options.prompts[i] : ""));
      out.write(completion.text + "\n");
    }
  }
  if (!options.json && !options.quiet && exit_code == 0 && !out.failed()) std::cerr << "\n" << summary_table(engine, completions, seconds);
  return exit_code;
}

int run_score(Engine& engine, const std::vector<ScoreRow>& rows, StandardOutput& out) {
  int exit_code = 0;
  for (const ScoreRow& row : rows) {
    const auto score = engine.score(row.prompt_tokens, row.tokens);
    out.write((score.ok() ? json_line(*score) : json_error("", score.status().message())) + "\n");
    if (!score.ok()) exit_code = 1;
    if (out.failed()) break;
  }
  return exit_code;
}

int run(int argc, char** argv, StandardOutput& out) {
  ParsedOptions parsed = parse_options(argc, argv, out);
  if (!parsed.options) return parsed.exit_code;
  Options& options = *parsed.options;

  std::vector<ScoreRow> score_rows;
  if (!options.score_file.empty()) {
    auto rows = read_score_file(options.score_file);
    if (!rows.ok()) return fail(rows.status().message());
    score_rows = std::move(rows).value();
  }

  Result<std::unique_ptr<Engine>> loaded = [&] {
    ProgressBar progress("loading", !options.quiet);
    options.engine.on_load = [&](double fraction) { progress.update(fraction); };
    return Engine::load(options.engine);
  }();
  if (!loaded.ok()) return fail(loaded.status().message());
  Engine& engine = **loaded;
  if (!options.quiet) {
    for (const std::string& note : examples::notes_about(engine, options.names_context ? options.engine.context_length : 0)) {
      std::cerr << "generate: " << note << "\n";
    }
  }
  options.request.sampling = options.chosen_sampling.over(engine.default_sampling().over(options.request.sampling));

  if (!options.print_graph.empty()) {
    const auto print = [&](const Graph& graph) {
      out.write(options.print_graph == "dot" ? graph_dot(graph) : graph_table(graph, options.print_graph == "table"));
    };
    print(engine.graph());
    if (const Graph* few = engine.graph_of_few_tokens()) {
      if (options.print_graph != "dot") out.write("\nsteps of few tokens:\n");
      print(*few);
    }
    if (options.prompts.empty() && !options.chat && options.score_file.empty()) return 0;
  }

  int exit_code = 0;
  if (!options.score_file.empty()) {
    exit_code = run_score(engine, score_rows, out);
  } else if (options.chat) {
    const auto chat = examples::create_chat_format(engine.tokenizer(), options.chat_template);
    if (!chat.ok()) return fail(chat.status().message());
    exit_code = options.prompts.empty() ? run_chat(engine, *chat, options, out) : run_prompts(engine, &*chat, options, out);
  } else {
    exit_code = run_prompts(engine, nullptr, options, out);
  }
  if (options.profile) std::cerr << profile_table(engine.take_profile());
  return exit_code;
}

}  // namespace

int main(int argc, char** argv) {
  reserve_standard_descriptors();
  try {
    StandardOutput out;
    return out.close(run(argc, argv, out));
  } catch (const std::bad_alloc&) {  // from the program's own strings and lists; the library returns a Status instead
    std::fputs("generate: out of memory\n", stderr);
    return 1;
  } catch (const std::exception& error) {  // from the standard library, for example if there is no source of random numbers
    std::fprintf(stderr, "generate: %s\n", error.what());
    return 1;
  }
}
