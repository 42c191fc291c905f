// Holds the chat page, index.html; the build makes a string of it. @NONCE@ stands for the word that its policy names.
#pragma once

#include <string_view>

namespace serve {

extern const std::string_view kWebPage;

}  // namespace serve
