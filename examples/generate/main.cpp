// generate: text from a model file. The use of the engine on one page: load, encode, generate, print.
#include <unistd.h>

#include <cstdio>
#include <iostream>
#include <new>
#include <string>
#include <vector>

#include <prologue/engine/engine.h>
#include <prologue/engine/tokenizer/chat.h>
#include <prologue/layers/graph/print.h>

#include "options.h"
#include "report.h"

using namespace prologue;
using namespace generate;

namespace {

int fail(const Status& status) {
  std::cerr << "generate: " << status.message() << "\n";
  return 1;
}

// The prompt's tokens: raw text with the model's special tokens in it, or the user's message in the model's chat format.
Status encode_prompt(const Engine& engine, const ChatFormat* chat, const std::string& prompt, Request& request) {
  if (chat != nullptr) {
    const ChatMessage message{"user", prompt};
    PROLOGUE_ASSIGN_OR_RETURN(request.prompt, chat->encode_chat({&message, 1}, true));
    request.stop_tokens = {chat->end_of_turn()};
  } else {
    PROLOGUE_ASSIGN_OR_RETURN(request.prompt, engine.tokenizer().encode(prompt, true, engine.tokenizer().add_bos()));
  }
  return {};
}

// All prompts as one batch. A single one is streamed; several are printed one after the other.
int run_prompts(Engine& engine, const ChatFormat* chat, const Options& options) {
  std::vector<Request> requests(options.prompts.size(), options.request);
  std::vector<Status> encoded(options.prompts.size());
  for (size_t i = 0; i < requests.size(); ++i) encoded[i] = encode_prompt(engine, chat, options.prompts[i], requests[i]);

  const bool stream = !options.json && requests.size() == 1;
  bool started = false;
  const auto show = [&](std::string_view text) {
    if (!started && !options.quiet && chat == nullptr) std::cout << options.prompts[0];
    started = true;
    std::cout << text << std::flush;
  };
  GenerationEvents events;
  if (stream) events.on_text = [&](size_t, std::string_view text) { show(text); };
  ProgressBar progress("reading", !options.quiet);
  events.on_prefill = [&](double fraction) { progress.update(fraction); };
  auto generated = engine.generate(requests, events);
  if (!generated.ok()) return fail(generated.status());
  std::vector<Completion>& completions = *generated;

  int exit_code = 0;
  for (size_t i = 0; i < completions.size(); ++i) {
    if (!encoded[i].ok()) completions[i].status = encoded[i];
    const Completion& completion = completions[i];
    if (!completion.status.ok()) exit_code = 1;
    if (options.json) {
      std::cout << json_line(engine, options.prompts[i], requests[i], completion) << "\n";
    } else if (!completion.status.ok()) {
      if (started) std::cout << "\n";
      std::cerr << "generate: " << (stream ? "" : str_cat("prompt ", i + 1, ": ")) << completion.status.message() << "\n";
    } else if (stream) {
      show("\n");
    } else {
      if (!options.quiet) std::cout << "--- prompt " << i + 1 << " ---\n" << (chat == nullptr ? options.prompts[i] : "");
      std::cout << completion.text << "\n";
    }
  }
  std::cout << std::flush;
  if (!options.json && !options.quiet && exit_code == 0) std::cerr << "\n" << summary_table(engine, completions);
  return exit_code;
}

// Turns from the terminal until the end of input; each answer sees the whole conversation.
int run_chat(Engine& engine, const ChatFormat& chat, const Options& options) {
  Request request = options.request;  // its prompt is the conversation so far
  request.stop_tokens = {chat.end_of_turn()};
  const bool terminal = isatty(STDIN_FILENO) != 0;
  while (true) {
    if (terminal) std::cout << "> " << std::flush;
    ChatMessage message{"user", ""};
    if (!std::getline(std::cin, message.content)) break;
    if (message.content.empty()) continue;
    const auto turn = request.prompt.empty() ? chat.encode_chat({&message, 1}, true) : chat.encode_next_turn(message);
    if (!turn.ok()) return fail(turn.status());
    request.prompt.insert(request.prompt.end(), turn->begin(), turn->end());
    GenerationEvents events;
    events.on_text = [](size_t, std::string_view text) { std::cout << text << std::flush; };
    const auto generated = engine.generate({&request, 1}, events);
    if (!generated.ok()) return fail(generated.status());
    const Completion& answer = generated->front();
    std::cout << std::endl;
    if (!answer.status.ok()) return fail(answer.status);
    request.prompt.insert(request.prompt.end(), answer.tokens.begin(), answer.tokens.end());
  }
  return 0;
}

int run_score(Engine& engine, const Options& options) {
  auto rows = read_score_file(options.score_file);
  if (!rows.ok()) return fail(rows.status());
  int exit_code = 0;
  for (const ScoreRow& row : *rows) {
    const auto score = engine.score(row.prompt_tokens, row.tokens);
    std::cout << (score.ok() ? json_line(*score) : json_error("", score.status().message())) << std::endl;
    if (!score.ok()) exit_code = 1;
  }
  return exit_code;
}

int run(int argc, char** argv) {
  ParsedOptions parsed = parse_options(argc, argv);
  if (!parsed.options) return parsed.exit_code;
  Options& options = *parsed.options;

  Result<std::unique_ptr<Engine>> loaded = [&] {
    ProgressBar progress("loading", !options.quiet);
    options.engine.on_load = [&](double fraction) { progress.update(fraction); };
    return Engine::load(options.engine);
  }();
  if (!loaded.ok()) return fail(loaded.status());
  Engine& engine = **loaded;

  if (!options.print_graph.empty()) {
    const auto graph = engine.graph();
    if (!graph.ok()) return fail(graph.status());
    std::cout << (options.print_graph == "dot" ? graph_dot(*graph) : graph_table(*graph));
    if (options.prompts.empty() && !options.chat && options.score_file.empty()) return 0;
  }

  int exit_code = 0;
  if (!options.score_file.empty()) {
    exit_code = run_score(engine, options);
  } else if (options.chat) {
    const auto chat = ChatFormat::detect(engine.tokenizer());
    if (!chat.ok()) return fail(chat.status());
    exit_code = options.prompts.empty() ? run_chat(engine, *chat, options) : run_prompts(engine, &*chat, options);
  } else {
    exit_code = run_prompts(engine, nullptr, options);
  }
  if (options.profile) std::cerr << profile_table(engine.take_profile());
  return exit_code;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::bad_alloc&) {  // of the program's own text and lists: the library returns it as a Status
    std::fputs("generate: out of memory\n", stderr);
    return 1;
  }
}
