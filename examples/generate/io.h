// This file has standard output, standard input, the terminal and files, as `generate` uses them.
#pragma once

#include <string>
#include <string_view>

#include <prologue/kernels/base/status.h>

#include "examples/common/progress_bar.h"

namespace generate {

// Prints "generate: MESSAGE" on stderr, always on one line. Returns 1, the exit code of a failure.
int fail(std::string_view message);

// Opens the standard descriptors that are closed at the start of the program, so that no other file gets their numbers. Reads and
// writes on them still fail.
void reserve_standard_descriptors();

// Writes to standard output. Every write is checked: a full disk is an error, not a shorter output.
class StandardOutput {
 public:
  StandardOutput();
  // On a terminal, control characters except newline and tab are written as \xNN. Elsewhere the bytes pass unchanged. Unbuffered.
  void write(std::string_view text);
  bool failed() const { return error_ != 0; }
  // Called at the end of the program: returns `exit_code`, or 1 after saying why something could not be written.
  int close(int exit_code);

 private:
  bool terminal_;
  int error_ = 0;
};

using examples::ProgressBar;

// No larger file and no longer line is read.
inline constexpr size_t kMaxInputBytes = size_t{64} << 20;

// Returns the content of a file, pipe or device, to its end. Errors begin with the option that named it: "--score PATH: ...".
prologue::Result<std::string> read_file(const std::string& option, const std::string& path);

// Has a descriptor from which standard input is read after poll() has said that there is something. Ctrl-C discards what was typed at a
// terminal; if it does so in between, a read that waits would go on waiting, and nobody would see the Ctrl-C. So a terminal is opened once
// more, with reads that do not wait. (The flags of standard input itself belong to other programs, too.)
class StandardInput {
 public:
  StandardInput();
  ~StandardInput();
  StandardInput(const StandardInput&) = delete;
  StandardInput& operator=(const StandardInput&) = delete;

  int descriptor() const { return descriptor_; }

 private:
  int descriptor_;
};

// Reads standard input, line by line.
class LineReader {
 public:
  enum class Event { line, end, interrupted, failed };
  // line: `line` is the next one, without its newline. interrupted: `interrupts`, a descriptor or -1, became readable first.
  // failed: error() says why.
  Event read(std::string& line, int interrupts);
  const std::string& error() const { return error_; }

 private:
  StandardInput input_;
  std::string buffer_;  // read, but not yet returned
  bool ended_ = false;
  std::string error_;
};

}  // namespace generate
