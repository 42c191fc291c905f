// A Text is a string that knows who wrote it: the template, or the caller whose values the template writes out.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace prologue::jinja {

// Describes the bytes before `end`, from the end of the previous run on.
struct Run {
  size_t end;
  bool from_caller;
};

// The string is valid UTF-8. Positions are bytes unless they are called characters. Characters are code points, as in Python.
class Text {
 public:
  Text() = default;
  explicit Text(std::string_view bytes, bool from_caller = false) { append(bytes, from_caller); }

  const std::string& bytes() const { return bytes_; }
  const std::vector<Run>& runs() const { return runs_; }  // two neighbours differ in from_caller
  size_t size() const { return bytes_.size(); }
  bool empty() const { return bytes_.empty(); }
  size_t num_characters() const { return num_characters_; }

  bool from_caller_at(size_t position) const;  // position < size()
  bool is_from_caller() const;                 // any byte of it
  Text part(size_t begin, size_t end) const;   // between two characters; markup stays markup
  // Returns where a character begins, or size() for those after the end.
  size_t position_of(size_t character) const;
  size_t character_at(size_t position) const;

  // Whether the filters safe and escape have marked the text, as HTML that needs no escaping: adding other text to it with + escapes that.
  bool is_markup() const { return is_markup_; }
  void set_markup() { is_markup_ = true; }

  void append(std::string_view bytes, bool from_caller);
  void append(const Text& text) { append_part(text, 0, text.size()); }
  void append_part(const Text& text, size_t begin, size_t end);

 private:
  std::string bytes_;
  std::vector<Run> runs_;
  size_t num_characters_ = 0;
  bool is_markup_ = false;
};

// Where `what` begins in `in`, at or after `from`, or the last one that ends at or before `to`. The time is linear.
std::optional<size_t> find_first(std::string_view in, std::string_view what, size_t from);
std::optional<size_t> find_last(std::string_view in, std::string_view what, size_t to);

}  // namespace prologue::jinja
