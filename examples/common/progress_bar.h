// Shows a bar on a terminal's stderr, and nothing elsewhere.
#pragma once

#include <string>

namespace examples {

class ProgressBar {
 public:
  ProgressBar(std::string label, bool enabled);
  ~ProgressBar() { clear(); }
  void update(double fraction);
  // Removes the bar: the next output begins at the start of an empty line.
  void clear();

 private:
  std::string label_;
  bool enabled_;
  int shown_ = -1;
};

}  // namespace examples
