// The parts of the template engine report errors by this exception to Template::parse and Template::render, which convert it into a Status.
// It is the one exception of the engine that is thrown on purpose, and it never leaves this folder.
#pragma once

#include <string>
#include <utility>

#include <prologue/kernels/base/status.h>

namespace prologue::jinja {

struct Failure {
  StatusCode code;
  std::string message;
};

template <class... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  throw Failure{StatusCode::invalid_argument, str_cat(parts...)};
}

template <class... Parts>
[[noreturn]] void fail_as(StatusCode code, const Parts&... parts) {
  throw Failure{code, str_cat(parts...)};
}

}  // namespace prologue::jinja
