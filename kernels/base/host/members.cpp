#include <prologue/kernels/base/host/members.h>

#include <cstring>

#include <prologue/kernels/base/status.h>

namespace prologue {

std::string text_of(const MemberPath& path) {
  std::string text = path.within == nullptr ? "" : text_of(*path.within);
  if (path.within == nullptr || (path.name != nullptr && !text.empty() && std::strcmp(path.name, "data") == 0)) return text;
  if (path.name == nullptr) return str_cat(text, "[", path.index, "]");
  return str_cat(text, text.empty() ? "" : ".", path.name);
}

}  // namespace prologue
