#include "tests/support/terminal.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>

namespace prologue::test {

Terminal::Terminal(const std::vector<std::string>& arguments) {
  terminal_ = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  if (terminal_ < 0 || grantpt(terminal_) != 0 || unlockpt(terminal_) != 0) return;
  const std::string name = ptsname(terminal_);
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  process_ = fork();
  if (process_ != 0) return;
  setsid();
  const int inside = open(name.c_str(), O_RDWR);  // the first one that a session opens becomes its controlling terminal
  if (inside < 0 || ioctl(inside, TIOCSCTTY, 0) != 0) _exit(126);
  for (const int descriptor : {0, 1, 2}) dup2(inside, descriptor);
  execv(argv[0], argv.data());
  _exit(127);
}

Terminal::~Terminal() {
  if (process_ > 0) {
    kill(process_, SIGKILL);
    waitpid(process_, nullptr, 0);
  }
  if (terminal_ >= 0) close(terminal_);
}

bool Terminal::read_more() {
  pollfd ready = {terminal_, POLLIN, 0};
  if (process_ <= 0 || poll(&ready, 1, 60000) <= 0) return false;
  std::array<char, 4096> block;
  const ssize_t count = read(terminal_, block.data(), block.size());  // fails after the end of the program
  if (count > 0) bytes_.append(block.data(), static_cast<size_t>(count));
  return count > 0;
}

bool Terminal::wait_for(std::string_view text) {
  size_t at = bytes_.find(text, searched_);
  while (at == std::string::npos) {
    if (!read_more()) return false;
    at = bytes_.find(text, searched_);
  }
  searched_ = at + text.size();
  return true;
}

void Terminal::type(std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = write(terminal_, text.data(), text.size());
    if (count <= 0) return;
    text.remove_prefix(static_cast<size_t>(count));
  }
}

int Terminal::wait() {
  while (read_more()) {
  }
  int status = 0;
  for (int i = 0; i < 600; ++i) {
    if (waitpid(process_, &status, WNOHANG) == process_) {
      process_ = -1;
      return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    }
    usleep(100000);
  }
  return -1;
}

std::string screen(std::string_view bytes) {
  constexpr std::string_view kEraseLine = "\033[K";
  std::string shown, line;
  size_t column = 0;
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] == '\r') {
      column = 0;
    } else if (bytes[i] == '\n') {
      shown += line + "\n";
      line.clear();
      column = 0;
    } else if (bytes.substr(i, kEraseLine.size()) == kEraseLine) {
      line.resize(column);
      i += kEraseLine.size() - 1;
    } else {
      if (column == line.size()) line += ' ';
      line[column++] = bytes[i];
    }
  }
  return shown + line;
}

}  // namespace prologue::test
