#include "io.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <iostream>
#include <system_error>

#include <prologue/engine/base/printable.h>

namespace generate {

using namespace prologue;

namespace {

std::string system_message(int error) { return std::generic_category().message(error); }

}  // namespace

int fail(std::string_view message) {
  std::cerr << "generate: " << printable(message, 4096) << "\n";
  return 1;
}

void reserve_standard_descriptors() {
  for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(descriptor, F_GETFD) != -1) continue;
    // The lowest free number is this one. The wrong direction makes reading stdin and writing stdout fail.
    if (open("/dev/null", descriptor == STDOUT_FILENO ? O_RDONLY : O_WRONLY) != descriptor) return;
  }
}

StandardOutput::StandardOutput() : terminal_(isatty(STDOUT_FILENO) != 0) {}

void StandardOutput::write(std::string_view text) {
  const std::string shown = terminal_ ? escape_controls(text, "\n\t") : std::string();
  if (terminal_) text = shown;
  while (!text.empty() && error_ == 0) {
    const ssize_t written = ::write(STDOUT_FILENO, text.data(), text.size());
    if (written >= 0) {
      text.remove_prefix(static_cast<size_t>(written));
    } else if (errno == EAGAIN) {  // another program has made the terminal or pipe non-blocking
      pollfd ready = {STDOUT_FILENO, POLLOUT, 0};
      poll(&ready, 1, -1);
    } else if (errno != EINTR) {
      error_ = errno;
    }
  }
}

int StandardOutput::close(int exit_code) {
  // Only here do some file systems report that a disk is full.
  if (error_ == 0 && ::close(STDOUT_FILENO) != 0) error_ = errno;
  return error_ == 0 ? exit_code : fail("standard output cannot be written: " + system_message(error_));
}

Result<std::string> read_file(const std::string& option, const std::string& path) {
  const std::string name = option + " " + printable_path(path);
  struct Descriptor {
    int number;
    ~Descriptor() {
      if (number >= 0) close(number);
    }
  };
  const Descriptor file{open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (file.number < 0) {
    const int error = errno;
    return error == ENOENT ? not_found(name, ": there is no such file")
                           : invalid_argument(name, ": the file cannot be opened: ", system_message(error));
  }
  struct stat info;
  if (fstat(file.number, &info) == 0 && S_ISDIR(info.st_mode)) {
    return invalid_argument(name, ": this is a directory, but a file is expected");
  }
  std::string content;
  std::array<char, 1 << 16> block;
  while (true) {
    const ssize_t count = read(file.number, block.data(), block.size());
    if (count == 0) return content;
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return data_loss(name, ": the file cannot be read: ", system_message(errno));
    if (content.size() + static_cast<size_t>(count) > kMaxInputBytes) {
      return invalid_argument(name, ": the file is too large: at most ", kMaxInputBytes, " bytes are read");
    }
    content.append(block.data(), static_cast<size_t>(count));
  }
}

StandardInput::StandardInput() : descriptor_(STDIN_FILENO) {
  std::array<char, 256> name;
  if (isatty(STDIN_FILENO) == 0 || ttyname_r(STDIN_FILENO, name.data(), name.size()) != 0) return;
  const int opened = open(name.data(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
  if (opened >= 0) descriptor_ = opened;
}

StandardInput::~StandardInput() {
  if (descriptor_ != STDIN_FILENO) close(descriptor_);
}

LineReader::Event LineReader::read(std::string& line, int interrupts) {
  std::array<char, 1 << 16> block;
  size_t searched = 0;
  while (true) {
    if (const size_t newline = buffer_.find('\n', searched); newline != std::string::npos) {
      line = buffer_.substr(0, newline);
      buffer_.erase(0, newline + 1);
      return Event::line;
    }
    searched = buffer_.size();
    if (ended_) {  // the last line may lack its newline
      if (buffer_.empty()) return Event::end;
      line = std::exchange(buffer_, {});
      return Event::line;
    }
    if (buffer_.size() > kMaxInputBytes) {
      error_ = str_cat("standard input has a line that is too long: at most ", kMaxInputBytes, " bytes are read");
      return Event::failed;
    }
    pollfd ready[] = {{input_.descriptor(), POLLIN, 0}, {interrupts, POLLIN, 0}};
    if (poll(ready, 2, -1) < 0 && errno == EINTR) continue;
    if (ready[1].revents != 0) return Event::interrupted;
    const ssize_t count = ::read(input_.descriptor(), block.data(), block.size());
    if (count < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (count < 0) {
      error_ = "standard input cannot be read: " + system_message(errno);
      return Event::failed;
    }
    ended_ = count == 0;
    buffer_.append(block.data(), static_cast<size_t>(count));
  }
}

}  // namespace generate
