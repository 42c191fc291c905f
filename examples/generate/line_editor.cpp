#include "line_editor.h"

#include <histedit.h>
#include <locale.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cwchar>
#include <string_view>
#include <system_error>
#include <utility>

#include <prologue/kernels/base/status.h>

namespace generate {

using namespace prologue;

namespace {

constexpr int kHistoryLines = 1000;

// libedit works on wide characters. A byte that is no part of UTF-8 passes it as a lone surrogate, which no text has.
constexpr wchar_t kRawByte = 0xdc00;

// The character set of this thread is UTF-8 while this object exists, whatever the environment says: the model's is.
class Utf8 {
 public:
  explicit Utf8(locale_t locale) : before_(uselocale(locale)) {}
  ~Utf8() { uselocale(before_); }
  Utf8(const Utf8&) = delete;
  Utf8& operator=(const Utf8&) = delete;

 private:
  const locale_t before_;
};

// While this object exists, a call of poll() ends when the terminal's size changes and when the program goes on after Ctrl-Z.
class Redraws {
 public:
  Redraws() {
    struct sigaction action = {};
    action.sa_handler = [](int) { pending_ = 1; };
    sigaction(SIGWINCH, &action, &size_before_);
    sigaction(SIGCONT, &action, &continue_before_);
  }
  ~Redraws() {
    sigaction(SIGWINCH, &size_before_, nullptr);
    sigaction(SIGCONT, &continue_before_, nullptr);
  }
  Redraws(const Redraws&) = delete;
  Redraws& operator=(const Redraws&) = delete;

  static bool take() { return std::exchange(pending_, 0) != 0; }

 private:
  static inline volatile sig_atomic_t pending_ = 0;
  struct sigaction size_before_, continue_before_;
};

}  // namespace

class LineEditor::Impl {
 public:
  explicit Impl(locale_t locale) : locale_(locale), edit_(el_init("generate", stdin, stderr, stderr)), history_(history_winit()) {
    if (edit_ == nullptr || history_ == nullptr) return;
    HistEventW event;
    history_w(history_, &event, H_SETSIZE, kHistoryLines);
    history_w(history_, &event, H_SETUNIQUE, 1);
    el_wset(edit_, EL_CLIENTDATA, this);
    el_wset(edit_, EL_EDITOR, L"emacs");
    el_wset(edit_, EL_HIST, history_w, history_);
    el_wset(edit_, EL_GETCFN, &next_character);
    el_wset(edit_, EL_PROMPT, &prompt_of);
    el_wset(edit_, EL_BIND, L"^I", L"ed-insert", nullptr);  // pasted text has tabs
    el_wset(edit_, EL_BIND, L"^R", L"em-inc-search-prev", nullptr);
  }
  ~Impl() {
    if (history_ != nullptr) history_wend(history_);
    if (edit_ != nullptr) el_end(edit_);
    freelocale(locale_);
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  bool is_made() const { return edit_ != nullptr && history_ != nullptr; }

  LineReader::Event read(const char* prompt, std::string& line, int interrupts) {
    const Utf8 utf8(locale_);
    const Redraws redraws;
    prompt_.assign(prompt, prompt + std::string_view(prompt).size());
    interrupts_ = interrupts;
    event_ = LineReader::Event::line;
    num_characters_ = 0;
    el_resize(edit_);
    el_wset(edit_, EL_PREP_TERM, 1);  // before the prompt is there: what is typed after it is not echoed twice
    int count = 0;
    const wchar_t* typed = el_wgets(edit_, &count);
    if (event_ != LineReader::Event::line) return event_;
    if (typed == nullptr || count <= 0) return LineReader::Event::end;  // Ctrl-D
    std::wstring_view text(typed, static_cast<size_t>(count));
    if (text.ends_with(L'\n')) text.remove_suffix(1);
    line = narrow(text);
    if (text.find_first_not_of(L" \t") != text.npos) {
      HistEventW event;
      history_w(history_, &event, H_ENTER, std::wstring(text).c_str());
    }
    return LineReader::Event::line;
  }

  const std::string& error() const { return error_; }

 private:
  static Impl& of(EditLine* edit) {
    void* self = nullptr;
    el_wget(edit, EL_CLIENTDATA, &self);
    return *static_cast<Impl*>(self);
  }
  static wchar_t* prompt_of(EditLine* edit) { return of(edit).prompt_.data(); }
  static int next_character(EditLine* edit, wchar_t* character) { return of(edit).next(*character); }

  static std::string narrow(std::wstring_view text) {
    std::string bytes;
    std::array<char, MB_LEN_MAX> encoded;
    for (const wchar_t each : text) {
      mbstate_t state = {};
      if (each >= kRawByte + 0x80 && each <= kRawByte + 0xff) {
        bytes += static_cast<char>(each - kRawByte);
      } else if (const size_t size = wcrtomb(encoded.data(), each, &state); size != static_cast<size_t>(-1)) {
        bytes.append(encoded.data(), size);
      }
    }
    return bytes;
  }

  // libedit calls this for a character. It returns 1 if there is one, 0 at the end of the input, -1 to end the line; event_ says why.
  int next(wchar_t& character) {
    if (++num_characters_ > kMaxInputBytes) {
      error_ = str_cat("the line is too long: at most ", kMaxInputBytes, " characters are read");
      event_ = LineReader::Event::failed;
      return -1;
    }
    while (true) {
      char byte;
      if (const int got = next_byte(byte); got != 1) return got;
      pending_ += byte;
      mbstate_t state = {};
      const size_t used = mbrtowc(&character, pending_.data(), pending_.size(), &state);
      if (used == static_cast<size_t>(-2)) continue;
      if (used == static_cast<size_t>(-1)) {
        character = kRawByte + static_cast<unsigned char>(pending_[0]);
        input_.insert(0, pending_, 1);
      }
      pending_.clear();
      return 1;
    }
  }

  int next_byte(char& byte) {
    while (input_.empty()) {
      if (Redraws::take()) {
        el_resize(edit_);
        el_wset(edit_, EL_PREP_TERM, 1);
        el_wset(edit_, EL_REFRESH);
      }
      pollfd ready[] = {{terminal_.descriptor(), POLLIN, 0}, {interrupts_, POLLIN, 0}};
      if (poll(ready, 2, -1) < 0 && errno == EINTR) continue;
      if (ready[1].revents != 0) {
        input_.clear();
        pending_.clear();
        event_ = LineReader::Event::interrupted;
        return -1;
      }
      std::array<char, 4096> block;
      const ssize_t count = ::read(terminal_.descriptor(), block.data(), block.size());
      if (count < 0 && (errno == EINTR || errno == EAGAIN)) continue;
      if (count <= 0) {
        event_ = count == 0 ? LineReader::Event::end : LineReader::Event::failed;
        if (count < 0) error_ = "standard input cannot be read: " + std::generic_category().message(errno);
        return static_cast<int>(count);
      }
      input_.assign(block.data(), static_cast<size_t>(count));
    }
    byte = input_.front();
    input_.erase(0, 1);
    return 1;
  }

  const StandardInput terminal_;
  const locale_t locale_;
  EditLine* const edit_;
  HistoryW* const history_;
  std::wstring prompt_;
  std::string input_;    // read, but not yet a part of a character
  std::string pending_;  // the beginning of a character
  size_t num_characters_ = 0;
  int interrupts_ = -1;
  LineReader::Event event_ = LineReader::Event::line;
  std::string error_;
};

std::unique_ptr<LineEditor> LineEditor::create() {
  const char* type = std::getenv("TERM");
  if (type == nullptr || *type == 0 || std::string_view(type) == "dumb") return nullptr;
  if (isatty(STDIN_FILENO) == 0 || isatty(STDERR_FILENO) == 0) return nullptr;
  const locale_t locale = newlocale(LC_CTYPE_MASK, "C.UTF-8", locale_t{});
  if (locale == locale_t{}) return nullptr;
  const Utf8 utf8(locale);  // libedit looks at it when it makes its table of keys
  auto impl = std::make_unique<Impl>(locale);
  return impl->is_made() ? std::unique_ptr<LineEditor>(new LineEditor(std::move(impl))) : nullptr;
}

LineEditor::LineEditor(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
LineEditor::~LineEditor() = default;

LineReader::Event LineEditor::read(const char* prompt, std::string& line, int interrupts) {
  return impl_->read(prompt, line, interrupts);
}
const std::string& LineEditor::error() const { return impl_->error(); }

}  // namespace generate
