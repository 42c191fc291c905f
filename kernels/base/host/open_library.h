// Shared libraries that are opened while the program runs. Internal.
#pragma once

#include <dlfcn.h>

#include <string>
#include <vector>

#include <prologue/kernels/base/status.h>
#include <prologue/kernels/base/str_cat.h>

namespace prologue {

struct OpenLibrary {
  std::string name;  // the one of `names` that was opened
  void* handle;
};

// Opens the first of `names` that can be opened, and never closes it. A name without a slash is one that the system's loader searches for; it
// finds a library that the process has already loaded first. `what` begins the error's message, which contains why each was not opened.
inline Result<OpenLibrary> open_library(const char* what, const std::vector<std::string>& names) {
  std::string tried;
  for (const std::string& name : names) {
    if (void* const handle = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL); handle != nullptr) return OpenLibrary{name, handle};
    const char* const why = ::dlerror();
    tried += str_cat(tried.empty() ? "" : "; ", name, " (", why == nullptr ? "no reason given" : why, ")");
  }
  return unsupported(what, " was not found: install it, or name its folder in LD_LIBRARY_PATH; tried ", tried);
}

template <class Function>
Status find_function(const char* what, const OpenLibrary& library, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(::dlsym(library.handle, name));
  if (function != nullptr) return {};
  return unsupported(what, ": ", library.name, " has no function ", name);
}

}  // namespace prologue
