#include "json_size.h"

#include <algorithm>

namespace examples {

JsonSize json_size(std::string_view text) {
  JsonSize size = {0, 1};
  int64_t depth = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    switch (text[i]) {
      case '"':  // to the end of the string
        for (++i; i < text.size() && text[i] != '"'; ++i) {
          if (text[i] == '\\') ++i;
        }
        break;
      case '[':
      case '{':
        size.depth = std::max(size.depth, ++depth);
        ++size.values;
        break;
      case ']':
      case '}': --depth; break;
      case ',': ++size.values; break;
      default: break;
    }
  }
  return size;
}

}  // namespace examples
