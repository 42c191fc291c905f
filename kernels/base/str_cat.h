// Makes text of values, as messages of errors are made (status.h).
#pragma once

#include <string>

#include <prologue/kernels/base/status.h>

namespace prologue {

// str_cat("head_dim is ", 7, ": ...") without a format string: of numbers, characters, text and addresses.
template <class... Parts>
std::string str_cat(const Parts&... parts) {
  const detail::MessagePart all[] = {parts...};
  return detail::written(all, sizeof...(parts));
}

}  // namespace prologue
