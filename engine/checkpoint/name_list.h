// This file writes names in messages.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace prologue {

// Returns "'a', 'b' and 3 more": each name quoted and printable, at most 20 of them.
std::string name_list(const std::vector<std::string>& names);
// Returns "[2, 3]".
std::string shape_text(const std::vector<int64_t>& shape);

}  // namespace prologue
