// This file has the options of programs that chat: which template, its variables and its date.
#pragma once

#include <optional>
#include <string>

#include <prologue/engine/tokenizer/chat.h>

namespace CLI {
class App;
}

namespace examples {

struct ChatTemplateOptions {
  std::string chosen;     // a file, or the name of one of the model's; empty: the model's default
  std::string variables;  // a JSON object
  std::string date;       // YYYY-MM-DD; empty: today
};

// Adds --chat-template, --chat-template-kwargs and --chat-date.
class ChatTemplateFlags {
 public:
  ChatTemplateFlags(CLI::App& app, ChatTemplateOptions& options, const char* group);
  // Called after the command line was read. Empty: no error.
  std::string apply() const;

 private:
  const CLI::App& app_;
  const ChatTemplateOptions& options_;
};

// Returns the format that the options name. A file that cannot be read, and is no name of a template either, is an error.
prologue::Result<prologue::ChatFormat> create_chat_format(const prologue::Tokenizer& tokenizer,
                                                          const ChatTemplateOptions& options);

}  // namespace examples
