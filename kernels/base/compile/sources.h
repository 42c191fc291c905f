// The library's headers with device code, as text: the build writes sources.cpp (cmake/EmbedSources.cmake) from the list of roots in
// kernels/CMakeLists.txt and all that they include. What they include of the standard library and of the CUDA toolkit is in headers/ of this
// folder, as far as device code needs it, and so is what takes the place of a header that only the host can compile. Internal.
#pragma once

#include <span>

namespace prologue::cuda {

struct SourceHeader {
  const char* name;  // as it is included
  const char* text;
};

std::span<const SourceHeader> source_headers();
const char* source_digest();  // of all names and texts

}  // namespace prologue::cuda
