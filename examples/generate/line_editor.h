// Reads lines that a person types at a terminal, with editing keys and a history in memory, by libedit.
#pragma once

#include <memory>
#include <string>

#include "io.h"

namespace generate {

class LineEditor {
 public:
  // Returns null where nobody edits: standard input or stderr is no terminal, or its type (TERM) is not set or "dumb".
  static std::unique_ptr<LineEditor> create();
  ~LineEditor();
  LineEditor(const LineEditor&) = delete;
  LineEditor& operator=(const LineEditor&) = delete;

  // Does what LineReader::read does, after the prompt on stderr. A line that is not blank becomes the newest of the history. Bytes that are
  // not UTF-8 are in `line` as they were typed.
  LineReader::Event read(const char* prompt, std::string& line, int interrupts);
  const std::string& error() const;

 private:
  class Impl;
  explicit LineEditor(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace generate
