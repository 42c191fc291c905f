#include <prologue/kernels/base/status.h>

namespace prologue {

const char* status_code_name(StatusCode code) {
  switch (code) {
    case StatusCode::ok: return "ok";
    case StatusCode::invalid_argument: return "invalid argument";
    case StatusCode::unsupported: return "unsupported";
    case StatusCode::not_found: return "not found";
    case StatusCode::data_loss: return "data loss";
    case StatusCode::resource_exhausted: return "resource exhausted";
    case StatusCode::device_error: return "device error";
  }
  return "unknown";
}

const std::string& Status::message() const {
  static const std::string empty;
  return ok() ? empty : error_->message;
}

}  // namespace prologue
