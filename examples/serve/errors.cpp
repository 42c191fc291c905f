#include "errors.h"

#include <nlohmann/json.hpp>

namespace serve {

using nlohmann::ordered_json;
using namespace prologue;

namespace {

// Returns the API's word for a kind of error.
const char* type_of(int status) {
  if (status == 429) return "rate_limit_error";
  if (status == 408) return "timeout_error";
  return status < 500 ? "invalid_request_error" : "server_error";
}

}  // namespace

std::string error_body(const ApiError& error) {
  const auto text_or_null = [](const std::string& text) { return text.empty() ? ordered_json() : ordered_json(text); };
  const ordered_json body = {{"error",
                              {{"message", error.message},
                               {"type", type_of(error.status)},
                               {"param", text_or_null(error.param)},
                               {"code", text_or_null(error.code)}}}};
  return body.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

ApiError error_of(const Status& status) {
  switch (status.code()) {
    case StatusCode::invalid_argument: return {400, status.message()};
    case StatusCode::resource_exhausted: return {429, status.message(), {}, "rate_limit_exceeded"};
    default: return {500, status.message()};
  }
}

ApiError shutting_down() { return {503, "the server is shutting down", {}, "shutting_down"}; }

}  // namespace serve
