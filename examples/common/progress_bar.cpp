#include "progress_bar.h"

#include <unistd.h>

#include <algorithm>
#include <iostream>

namespace examples {

ProgressBar::ProgressBar(std::string label, bool enabled)
    : label_(std::move(label)), enabled_(enabled && isatty(STDERR_FILENO) != 0) {}

void ProgressBar::clear() {
  if (shown_ >= 0) std::cerr << "\r\033[K" << std::flush;
  shown_ = -1;
}

void ProgressBar::update(double fraction) {
  constexpr int kWidth = 40;
  const int filled = std::clamp(static_cast<int>(fraction * kWidth), 0, kWidth);
  if (!enabled_ || filled == shown_) return;
  shown_ = filled;
  std::cerr << "\r" << label_ << " [" << std::string(static_cast<size_t>(filled), '=')
            << std::string(static_cast<size_t>(kWidth - filled), ' ') << "] " << static_cast<int>(fraction * 100) << " %"
            << std::flush;
}

}  // namespace examples
