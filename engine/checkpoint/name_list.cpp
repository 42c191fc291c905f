#include <prologue/engine/checkpoint/name_list.h>

#include <algorithm>

#include <prologue/engine/base/printable.h>

namespace prologue {

std::string name_list(const std::vector<std::string>& names) {
  constexpr size_t kMost = 20;
  const size_t shown = std::min(names.size(), kMost), left = names.size() - shown;
  std::string list;
  for (size_t i = 0; i < shown; ++i) {
    if (i > 0) list += i + 1 == shown && left == 0 ? " and " : ", ";
    list += in_quotes(names[i]);
  }
  return left == 0 ? list : list + " and " + std::to_string(left) + " more";
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + "]";
}

}  // namespace prologue
