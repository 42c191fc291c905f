// Errors are values. Nothing in the library throws, prints or aborts on input. An operation returns a Status; a function that makes a value
// returns a Result<T>. An error has a code and a message: one full sentence that names the value and the rule.
//
// Out of memory is an error too: resource_exhausted. If there is no memory even for a message, the message is "out of memory".
// Only functions that return text or lists directly, not in a Result (a decoded string, the names of keys, a printed graph), let
// std::bad_alloc through. catch_out_of_memory (out_of_memory.h) converts it to an error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iosfwd>  // names std::string
#include <type_traits>
#include <utility>
#include <variant>

#include <prologue/kernels/base/export.h>

namespace prologue {

enum class StatusCode : int32_t {
  ok = 0,
  invalid_argument,    // a value from the caller breaks a rule of the contract
  unsupported,         // valid, but not implemented
  not_found,           // a file, tensor or key that must be there is not
  data_loss,           // a file is inconsistent or truncated
  resource_exhausted,  // not enough pages or memory
  device_error,        // the GPU, its driver or a vendor library failed
};

PROLOGUE_API const char* status_code_name(StatusCode code);

// An empty Status is success; it costs one null pointer. Copies share the error.
class [[nodiscard]] PROLOGUE_API Status {
 public:
  Status() = default;
  // Becomes out_of_memory() if there is no memory for the message.
  Status(StatusCode code, std::string message) noexcept;
  // resource_exhausted, "out of memory". Allocates nothing.
  static Status out_of_memory() noexcept;

  Status(const Status& other) noexcept : error_(other.error_) {
    if (error_ != nullptr) share();
  }
  Status(Status&& other) noexcept : error_(std::exchange(other.error_, nullptr)) {}
  Status& operator=(Status other) noexcept {
    std::swap(error_, other.error_);
    return *this;
  }
  ~Status() {
    if (error_ != nullptr) release();
  }

  bool ok() const { return error_ == nullptr; }
  explicit operator bool() const { return ok(); }
  StatusCode code() const;
  const std::string& message() const;

 private:
  struct Error;
  void share() noexcept;
  void release() noexcept;

  Error* error_ = nullptr;
};

inline Status ok_status() { return {}; }

namespace detail {

// Whether a T has its characters as std::string and std::string_view have them.
template <class T, class = void>
struct HasCharacters : std::false_type {};
template <class T>
struct HasCharacters<T, std::void_t<decltype(std::declval<const T&>().size())>>
    : std::is_convertible<decltype(std::declval<const T&>().data()), const char*> {};

// A part of a message: a number, a character, text or an address. Nearly every source makes messages, so what writes them is compiled
// once, in status.cpp, and this header does without <ostream>.
class MessagePart {
 public:
  template <class T>
  MessagePart(const T& value) {  // NOLINT(google-explicit-constructor)
    if constexpr (std::is_same_v<T, char>) {
      kind_ = Kind::character;
      character_ = value;
    } else if constexpr (std::is_floating_point_v<T>) {
      kind_ = Kind::real;
      real_ = value;
    } else if constexpr (std::is_unsigned_v<T>) {
      kind_ = Kind::natural;
      natural_ = value;
    } else if constexpr (std::is_integral_v<T>) {
      kind_ = Kind::integer;
      integer_ = value;
    } else if constexpr (std::is_convertible_v<const T&, const char*>) {
      kind_ = Kind::text;
      text_ = {value, std::strlen(value)};
    } else if constexpr (HasCharacters<T>::value) {
      kind_ = Kind::text;
      text_ = {value.data(), value.size()};
    } else {
      kind_ = Kind::address;
      address_ = value;
    }
  }
  void write(std::ostream& out) const;

 private:
  enum class Kind { character, integer, natural, real, text, address };
  struct Text {
    const char* data;
    size_t size;
  };
  Kind kind_;
  union {
    char character_;
    int64_t integer_;
    uint64_t natural_;
    double real_;
    Text text_;
    const void* address_;
  };
};

PROLOGUE_API std::string written(const MessagePart* parts, size_t count);  // throws std::bad_alloc
PROLOGUE_API Status written_status(StatusCode code, const MessagePart* parts, size_t count) noexcept;

}  // namespace detail

// Holds a value, or the error that says why there is none.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::move(value)) {}          // NOLINT(google-explicit-constructor)
  Result(Status status) : state_(std::move(status)) {}   // NOLINT(google-explicit-constructor)

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }
  Status status() const { return ok() ? Status() : std::get<1>(state_); }

  T& value() & { return std::get<0>(state_); }
  const T& value() const& { return std::get<0>(state_); }
  T&& value() && { return std::get<0>(std::move(state_)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  std::variant<T, Status> state_;
};

// error_status(code, "head_dim is ", 7, ": ...") makes a message without a format string: of numbers, characters, text and addresses.
template <class... Parts>
Status error_status(StatusCode code, const Parts&... parts) {
  const detail::MessagePart all[] = {parts...};
  return detail::written_status(code, all, sizeof...(parts));
}

template <class... Parts>
Status invalid_argument(const Parts&... parts) {
  return error_status(StatusCode::invalid_argument, parts...);
}
template <class... Parts>
Status unsupported(const Parts&... parts) {
  return error_status(StatusCode::unsupported, parts...);
}
template <class... Parts>
Status not_found(const Parts&... parts) {
  return error_status(StatusCode::not_found, parts...);
}
template <class... Parts>
Status data_loss(const Parts&... parts) {
  return error_status(StatusCode::data_loss, parts...);
}
template <class... Parts>
Status resource_exhausted(const Parts&... parts) {
  return error_status(StatusCode::resource_exhausted, parts...);
}
template <class... Parts>
Status device_error(const Parts&... parts) {
  return error_status(StatusCode::device_error, parts...);
}

}  // namespace prologue

// nvcc reads a header three times, and <string> takes longer to read than a small kernel to compile: those of the library's CUDA sources
// that need text include it.
#if !defined(__CUDACC__) || !defined(PROLOGUE_HAS_CUDA)
#include <prologue/kernels/base/str_cat.h>
#endif

#define PROLOGUE_CONCAT_INNER(a, b) a##b
#define PROLOGUE_CONCAT(a, b) PROLOGUE_CONCAT_INNER(a, b)

// Returns the error of `expression` (a Status) from the enclosing function; does nothing if it is ok.
#define PROLOGUE_RETURN_IF_ERROR(expression)                                                                 \
  do {                                                                                                       \
    if (::prologue::Status prologue_status_ = (expression); !prologue_status_.ok()) return prologue_status_; \
  } while (false)

// PROLOGUE_ASSIGN_OR_RETURN(auto file, GgufFile::open(path));
#define PROLOGUE_ASSIGN_OR_RETURN(target, expression) \
  PROLOGUE_ASSIGN_OR_RETURN_INNER(PROLOGUE_CONCAT(prologue_result_, __LINE__), target, expression)
#define PROLOGUE_ASSIGN_OR_RETURN_INNER(result, target, expression) \
  auto result = (expression);                                       \
  if (!result.ok()) return result.status();                         \
  target = std::move(result).value()
