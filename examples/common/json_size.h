// This file finds out how large a JSON text is, before it is parsed. (Parsing with a callback that looks at the depth takes a time that
// grows with the square of the number of objects in a list, in nlohmann-json 3.11; and an ordered_json does so with the number of names in
// an object.)
#pragma once

#include <cstdint>
#include <string_view>

namespace examples {

struct JsonSize {
  int64_t depth = 0;   // lists and objects in each other, at most
  int64_t values = 0;  // at most; those in lists and objects, and these themselves
};

// The text need not be JSON. Reads every byte once.
JsonSize json_size(std::string_view text);

}  // namespace examples
