#include <atomic>
#include <new>
#include <ostream>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>

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

struct Status::Error {
  StatusCode code;
  std::string message;
  std::atomic<int64_t> owners{1};
};

Status::Status(StatusCode code, std::string message) noexcept {
  *this = catch_out_of_memory([&] {
    Status status;
    status.error_ = new Error{code, std::move(message)};
    return status;
  });
}

Status Status::out_of_memory() noexcept {
  static Error error{StatusCode::resource_exhausted, "out of memory"};  // short enough for the string object itself
  Status status;
  status.error_ = &error;  // which owns itself, too, and so is never deleted
  status.share();
  return status;
}

void Status::share() noexcept { error_->owners.fetch_add(1, std::memory_order_relaxed); }

void Status::release() noexcept {
  if (error_->owners.fetch_sub(1, std::memory_order_acq_rel) == 1) delete error_;
}

StatusCode Status::code() const { return ok() ? StatusCode::ok : error_->code; }

const std::string& Status::message() const {
  static const std::string empty;
  return ok() ? empty : error_->message;
}

namespace detail {

void MessagePart::write(std::ostream& out) const {
  switch (kind_) {
    case Kind::character: out << character_; break;
    case Kind::integer: out << integer_; break;
    case Kind::natural: out << natural_; break;
    case Kind::real: out << real_; break;
    case Kind::text: out << std::string_view(text_.data, text_.size); break;
    case Kind::address: out << address_; break;
  }
}

std::string written(const MessagePart* parts, size_t count) {
  std::ostringstream out;
  for (size_t i = 0; i < count; ++i) parts[i].write(out);
  if (out.bad()) throw std::bad_alloc();  // a std::ostream hides the exceptions of its buffer
  return std::move(out).str();
}

Status written_status(StatusCode code, const MessagePart* parts, size_t count) noexcept {
  return catch_out_of_memory([&] { return Status(code, written(parts, count)); });
}

}  // namespace detail
}  // namespace prologue
