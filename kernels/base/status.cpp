#include <new>
#include <sstream>

#include <prologue/kernels/base/out_of_memory.h>
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

Status::Status(StatusCode code, std::string message) noexcept {
  *this = catch_out_of_memory([&] {
    Status status;
    status.error_ = std::make_shared<const Error>(Error{code, std::move(message)});
    return status;
  });
}

Status Status::out_of_memory() noexcept {
  static const Error error{StatusCode::resource_exhausted, "out of memory"};  // short enough for the string object itself
  Status status;
  status.error_ = std::shared_ptr<const Error>(std::shared_ptr<const Error>(), &error);  // owns nothing
  return status;
}

const std::string& Status::message() const {
  static const std::string empty;
  return ok() ? empty : error_->message;
}

namespace detail {

std::string written(WriteText write, const void* parts) {
  std::ostringstream out;
  write(out, parts);
  if (out.bad()) throw std::bad_alloc();  // a std::ostream hides the exceptions of its buffer
  return std::move(out).str();
}

Status written_status(StatusCode code, WriteText write, const void* parts) noexcept {
  return catch_out_of_memory([&] { return Status(code, written(write, parts)); });
}

}  // namespace detail
}  // namespace prologue
