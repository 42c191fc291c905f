#include <prologue/engine/template/text.h>

#include <string.h>

#include <algorithm>

namespace prologue::jinja {
namespace {

bool begins_character(char byte) { return (static_cast<unsigned char>(byte) & 0xc0) != 0x80; }

}  // namespace

void Text::append(std::string_view bytes, bool from_caller) {
  if (bytes.empty()) return;
  bytes_ += bytes;
  num_characters_ += static_cast<size_t>(std::count_if(bytes.begin(), bytes.end(), begins_character));
  if (runs_.empty() || runs_.back().from_caller != from_caller) runs_.push_back({0, from_caller});
  runs_.back().end = bytes_.size();
}

void Text::append_part(const Text& text, size_t begin, size_t end) {
  const auto first = std::upper_bound(text.runs_.begin(), text.runs_.end(), begin,
                                      [](size_t position, const Run& run) { return position < run.end; });
  const std::string_view bytes = text.bytes_;
  for (auto run = first; begin < end && run != text.runs_.end(); ++run) {
    const size_t stop = std::min(end, run->end);
    append(bytes.substr(begin, stop - begin), run->from_caller);
    begin = stop;
  }
}

bool Text::from_caller_at(size_t position) const {
  return std::upper_bound(runs_.begin(), runs_.end(), position, [](size_t p, const Run& run) { return p < run.end; })
      ->from_caller;
}

bool Text::is_from_caller() const {
  return std::any_of(runs_.begin(), runs_.end(), [](const Run& run) { return run.from_caller; });
}

Text Text::part(size_t begin, size_t end) const {
  Text result;
  result.append_part(*this, begin, end);
  result.is_markup_ = is_markup_;
  return result;
}

size_t Text::position_of(size_t character) const {
  if (character >= num_characters_) return size();
  if (num_characters_ == size()) return character;
  size_t position = 0;
  for (size_t seen = 0;; ++position) {
    if (begins_character(bytes_[position]) && seen++ == character) return position;
  }
}

size_t Text::character_at(size_t position) const {
  if (num_characters_ == size()) return position;
  return static_cast<size_t>(
      std::count_if(bytes_.begin(), bytes_.begin() + static_cast<std::ptrdiff_t>(position), begins_character));
}

std::optional<size_t> find_first(std::string_view in, std::string_view what, size_t from) {
  if (from > in.size()) return std::nullopt;
  if (what.empty()) return from;
  const void* const found = memmem(in.data() + from, in.size() - from, what.data(), what.size());
  if (found == nullptr) return std::nullopt;
  return static_cast<size_t>(static_cast<const char*>(found) - in.data());
}

std::optional<size_t> find_last(std::string_view in, std::string_view what, size_t to) {
  in = in.substr(0, to);
  if (what.empty()) return in.size();
  if (what.size() > in.size()) return std::nullopt;
  const std::string backwards(in.rbegin(), in.rend()), what_backwards(what.rbegin(), what.rend());
  const std::optional<size_t> found = find_first(backwards, what_backwards, 0);
  if (!found) return std::nullopt;
  return in.size() - *found - what.size();
}

}  // namespace prologue::jinja
