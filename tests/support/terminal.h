// Runs a program in a pseudo-terminal: what a person sees and types.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>
#include <vector>

namespace prologue::test {

class Terminal {
 public:
  // Starts the program with the terminal as its stdin, stdout and stderr.
  explicit Terminal(const std::vector<std::string>& arguments);
  ~Terminal();
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  // Waits until `text` is in what the program has written since the last match. False: it ended, or a minute has passed.
  bool wait_for(std::string_view text);
  void type(std::string_view text);  // "\x03" is Ctrl-C, "\x04" is Ctrl-D
  // Waits for the end of the program: its exit code, or -1 when a signal ended it or a minute has passed.
  int wait();

  const std::string& bytes() const { return bytes_; }  // all that was written, and the echo of what was typed

 private:
  bool read_more();

  pid_t process_ = -1;
  int terminal_ = -1;
  std::string bytes_;
  size_t searched_ = 0;
};

// Returns what a terminal shows after these bytes: knows carriage return, newline and "erase to the end of the line" (ESC [ K). Each byte
// of any other kind takes one column.
std::string screen(std::string_view bytes);

}  // namespace prologue::test
