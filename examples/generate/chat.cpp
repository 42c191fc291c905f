#include "chat.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <iomanip>
#include <iostream>
#include <sstream>
#include <vector>

#include <prologue/engine/base/printable.h>

#include "examples/common/engine_options.h"

#include "line_editor.h"
#include "report.h"

namespace generate {

using namespace prologue;

namespace {

constexpr const char* kHelp =
    "/help   show this list\n"
    "/clear  forget the conversation (the system prompt stays)\n"
    "/stats  show tokens, speed and context\n"
    "/exit   leave, as /bye and Ctrl-D do\n"
    "A line that ends with \\ continues on the next line. \"\"\" starts and ends a message of several lines.\n"
    "The arrow keys move in the line and bring back earlier ones, Ctrl-R searches them; they are kept until you leave.\n"
    "Ctrl-C stops an answer. At the prompt, Ctrl-C twice leaves.\n"
    "To send a message that starts with /, put a space before it.\n";

// While this object exists, the first Ctrl-C is only recorded. A second one before the first was handled ends the program.
class Interrupts {
 public:
  Interrupts() {
    if (pipe2(pipe_, O_CLOEXEC | O_NONBLOCK) != 0) return;  // Ctrl-C ends the program
    struct sigaction action = {};
    action.sa_flags = SA_RESTART;
    action.sa_handler = [](int) {
      if (pending_ != 0) _exit(128 + SIGINT);
      pending_ = 1;
      const int error = errno;
      [[maybe_unused]] const ssize_t written = write(pipe_[1], "", 1);
      errno = error;
    };
    sigaction(SIGINT, &action, &before_);
  }
  ~Interrupts() {
    if (pipe_[0] < 0) return;
    sigaction(SIGINT, &before_, nullptr);
    for (int& descriptor : pipe_) {
      close(descriptor);
      descriptor = -1;
    }
  }
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;

  static bool pending() { return pending_ != 0; }
  // Becomes readable while pending(): waiting for this and for input at once misses no Ctrl-C, whichever thread the signal came to.
  static int descriptor() { return pipe_[0]; }
  static void clear() {
    char byte;
    while (read(pipe_[0], &byte, 1) > 0) {
    }
    pending_ = 0;
  }

 private:
  static inline volatile sig_atomic_t pending_ = 0;
  static inline int pipe_[2] = {-1, -1};
  struct sigaction before_;
};

std::string_view strip(std::string_view text) {
  constexpr std::string_view kWhiteSpace = " \t\r\n\v\f";
  const size_t begin = text.find_first_not_of(kWhiteSpace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kWhiteSpace) - begin + 1);
}

bool remove_suffix(std::string& text, std::string_view suffix) {
  if (!text.ends_with(suffix)) return false;
  text.resize(text.size() - suffix.size());
  return true;
}

class Chat {
 public:
  Chat(Engine& engine, const ChatFormat& format, const Options& options, StandardOutput& out)
      : engine_(engine), format_(format), options_(options), out_(out), request_(options.request) {
    request_.stop_tokens = format.stop_tokens();
  }

  int run() {
    std::optional<Interrupts> interrupts;
    if (terminal_) interrupts.emplace();
    if (terminal_) {
      note(str_cat(printable(engine_.config().name), " on ", device_name(engine_.device()), ", ", examples::types_of(engine_),
                   ". /help lists the commands, /exit or Ctrl-D leaves."));
    }
    int exit_code = 0;
    bool interrupted = false;  // the last input was Ctrl-C
    while (!out_.failed()) {
      std::string message;
      const LineReader::Event event = read_message(message);
      if (event == LineReader::Event::end) break;
      if (event == LineReader::Event::failed) return fail(editor_ ? editor_->error() : reader_.error());
      if (event == LineReader::Event::interrupted) {
        Interrupts::clear();
        std::cerr << "\n";
        if (interrupted) break;
        note("Ctrl-C again, Ctrl-D or /exit leaves");
        interrupted = true;
        continue;
      }
      interrupted = false;
      if (strip(message).empty()) continue;
      if (message[0] != '/') {
        if (!answer(message)) exit_code = 1;
      } else if (!run_command(strip(message))) {
        break;
      }
    }
    return exit_code;
  }

 private:
  struct Turn {
    std::string message;
    std::string answer;
  };

  void note(const std::string& text) const {
    if (!options_.quiet) std::cerr << "[" << text << "]\n";
  }

  LineReader::Event read_line(const char* prompt, std::string& line) {
    if (editor_) return editor_->read(prompt, line, Interrupts::descriptor());
    if (terminal_) std::cerr << prompt << std::flush;
    return reader_.read(line, Interrupts::descriptor());
  }

  // Reads a message: one line; several lines, where all but the last end with a backslash; or all text between two """.
  LineReader::Event read_message(std::string& message) {
    constexpr std::string_view kQuotes = "\"\"\"";
    std::string line;
    LineReader::Event event = read_line("> ", line);
    const bool is_block = line.starts_with(kQuotes);
    if (is_block) line.erase(0, kQuotes.size());
    while (event == LineReader::Event::line) {
      message += line;
      if (!(is_block ? !remove_suffix(message, kQuotes) : remove_suffix(message, "\\"))) return event;
      message += '\n';
      if (message.size() > kMaxInputBytes) message.resize(kMaxInputBytes);  // no context is that long: the request will fail with an error
      event = read_line("... ", line);
    }
    // The end of the input ends an unfinished message, too; the next call finds it again.
    return event == LineReader::Event::end && !message.empty() ? LineReader::Event::line : event;
  }

  // Returns false to end the chat.
  bool run_command(std::string_view command) {
    if (command == "/exit" || command == "/bye") return false;
    if (command == "/help") {
      std::cerr << kHelp;
    } else if (command == "/clear") {
      turns_.clear();
      context_used_ = 0;
      note("the conversation is forgotten");
    } else if (command == "/stats") {
      std::cerr << stats();
    } else {
      fail(str_cat("there is no command ", in_quotes(command), ": /help lists them"));
    }
    return true;
  }

  // Encodes the conversation from message `first` on, up to where the last answer begins. The template may write earlier messages
  // differently than before (without their thoughts, say), so all of it is written each time; the engine has what is as before in its
  // prefix cache.
  Result<std::vector<int32_t>> encode(size_t first) const {
    std::vector<ChatMessage> messages;
    if (options_.system) messages.push_back({"system", *options_.system});
    for (size_t i = first; i < turns_.size(); ++i) {
      if (i > first) messages.push_back({"assistant", turns_[i - 1].answer});
      messages.push_back({"user", turns_[i].message});
    }
    return format_.encode_chat(messages);
  }

  // Makes the prompt of the last message, with as many earlier ones as fit while a quarter of the context stays free for the answer.
  Status make_prompt() {
    const int64_t context = engine_.context_length();
    const int64_t room = std::min(request_.max_tokens, std::max<int64_t>(1, context / 4));
    const size_t last = turns_.size() - 1;
    size_t first = 0;
    for (; first <= last; ++first) {
      PROLOGUE_ASSIGN_OR_RETURN(request_.prompt, encode(first));
      const int64_t length = static_cast<int64_t>(request_.prompt.size());
      if (length + (first < last ? room : 1) <= context) break;
    }
    if (first > last) {
      return invalid_argument("the message needs ", request_.prompt.size(), " tokens with the system prompt: the context is ",
                              context, ", and at least one token must be left for the answer (--context sets it)");
    }
    if (first > 0)
      note(str_cat("the context of ", context, " tokens is full: forgot the oldest ", first, first == 1 ? " turn" : " turns"));
    turns_.erase(turns_.begin(), turns_.begin() + static_cast<std::ptrdiff_t>(first));
    return {};
  }

  bool answer(const std::string& message) {
    turns_.push_back({message, {}});
    const auto refuse = [&](const Status& status) {
      turns_.pop_back();
      fail(status.message());
      return false;
    };
    if (const Status status = make_prompt(); !status.ok()) return refuse(status);

    ProgressBar progress("prefill", !options_.quiet && terminal_);
    GenerationEvents events;
    events.on_prefill = [&](double fraction) { progress.update(fraction); };
    events.on_text = [&](size_t, std::string_view text) {
      progress.clear();
      out_.write(text);
    };
    events.should_stop = [&] { return out_.failed() || Interrupts::pending(); };
    auto generated = engine_.generate({&request_, 1}, events);
    progress.clear();
    Interrupts::clear();
    out_.write("\n");
    if (out_.failed()) return true;  // run() ends
    if (!generated.ok()) return refuse(generated.status());
    last_ = std::move(generated->front());
    if (!last_.status.ok()) return refuse(last_.status);

    if (last_.finish_reason == FinishReason::length) note(str_cat("cut after ", request_.max_tokens, " tokens: --max-tokens"));
    if (last_.finish_reason == FinishReason::context)
      note(str_cat("cut: the context of ", engine_.context_length(), " tokens is full (--context)"));
    if (last_.finish_reason == FinishReason::cancelled) note("stopped");
    if (terminal_) std::cerr << "\n";
    ++num_answers_;
    num_generated_ += static_cast<int64_t>(last_.tokens.size());
    context_used_ = last_.prompt_tokens + static_cast<int64_t>(last_.tokens.size());
    turns_.back().answer = last_.text;
    if (last_.tokens.empty() && last_.finish_reason == FinishReason::cancelled) turns_.pop_back();  // forget the message
    return true;
  }

  std::string stats() const {
    const auto rate = [](int64_t tokens, double seconds) { return seconds > 0.0 ? static_cast<double>(tokens) / seconds : 0.0; };
    std::ostringstream out;
    out << std::fixed << std::setprecision(1);
    out << "context      " << context_used_ << " of " << engine_.context_length() << " tokens, " << turns_.size()
        << (turns_.size() == 1 ? " turn\n" : " turns\n") << "session      " << num_generated_ << " tokens in " << num_answers_
        << (num_answers_ == 1 ? " answer\n" : " answers\n");
    if (num_answers_ > 0) {
      out << "last answer  " << last_.tokens.size() << " tokens (" << finish_reason_name(last_.finish_reason) << "), "
          << rate(decoded_tokens(last_), last_.decode_seconds) << " tokens/s\n"
          << "its prompt   " << last_.prompt_tokens << " tokens, " << last_.cached_tokens << " of them cached, the others at "
          << rate(last_.prompt_tokens - last_.cached_tokens, last_.prefill_seconds) << " tokens/s\n";
    }
    out << "sampling     temperature " << std::defaultfloat << std::setprecision(6) << request_.sampling.temperature << ", top-k "
        << request_.sampling.top_k << ", top-p " << request_.sampling.top_p << ", min-p " << request_.sampling.min_p << ", seed "
        << request_.sampling.seed << "\n";
    return out.str();
  }

  Engine& engine_;
  const ChatFormat& format_;
  const Options& options_;
  StandardOutput& out_;
  const bool terminal_ = isatty(STDIN_FILENO) != 0;
  const std::unique_ptr<LineEditor> editor_ = LineEditor::create();
  LineReader reader_;  // without an editor
  Request request_;  // its prompt is the conversation so far
  std::vector<Turn> turns_;
  Completion last_;
  int64_t num_answers_ = 0;
  int64_t num_generated_ = 0;
  int64_t context_used_ = 0;
};

}  // namespace

int run_chat(Engine& engine, const ChatFormat& format, const Options& options, StandardOutput& out) {
  return Chat(engine, format, options, out).run();
}

}  // namespace generate
