#include <algorithm>

#include <prologue/engine/text_stream.h>

namespace prologue {

std::string TextStream::push(int32_t token) {
  pending_ += decoder_.push(token);
  return take(cut_at_stop() ? pending_.size() : pending_.size() - held_back());
}

std::string TextStream::finish() {
  pending_ += decoder_.finish();
  cut_at_stop();
  return take(pending_.size());
}

bool TextStream::cut_at_stop() {
  size_t first = std::string::npos;
  for (const std::string& stop : stop_) first = std::min(first, pending_.find(stop));
  if (first == std::string::npos) return false;
  pending_.resize(first);
  stopped_ = true;
  return true;
}

// Returns the number of bytes at the end of the pending text that may be the beginning of a stop text.
size_t TextStream::held_back() const {
  size_t longest = 0;
  for (const std::string& stop : stop_) {
    for (size_t length = std::min(stop.size() - 1, pending_.size()); length > longest; --length) {
      if (pending_.compare(pending_.size() - length, length, stop, 0, length) == 0) longest = length;
    }
  }
  return longest;
}

std::string TextStream::take(size_t count) {
  std::string text = pending_.substr(0, count);
  pending_.erase(0, count);
  return text;
}

}  // namespace prologue
