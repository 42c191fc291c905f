#include "request_log.h"

#include <poll.h>
#include <unistd.h>

#include <ctime>

#include <prologue/engine/base/printable.h>
#include <prologue/kernels/base/status.h>

namespace serve {

using namespace prologue;

std::string log_line(const HttpExchange& exchange) {
  const std::time_t now = std::time(nullptr);
  std::tm utc = {};
  gmtime_r(&now, &utc);
  char time[32];
  std::strftime(time, sizeof time, "%Y-%m-%dT%H:%M:%SZ", &utc);
  return str_cat(time, " ", exchange.method.empty() ? "-" : printable(exchange.method, 16), " ", exchange.route, " ",
                 exchange.status, " ", exchange.note.empty() ? "" : exchange.note + ", ",
                 std::chrono::duration_cast<std::chrono::milliseconds>(exchange.duration).count(), " ms",
                 exchange.complete ? "" : ", not all was sent", "\n");
}

void RequestLog::write(const HttpExchange& exchange) {
  if (exchange.status == 200 && (exchange.route == "/health" || exchange.route == "/metrics")) return;
  pollfd ready = {STDERR_FILENO, POLLOUT, 0};
  if (poll(&ready, 1, 0) != 1 || (ready.revents & POLLOUT) == 0) {
    ++num_left_out_;
    return;
  }
  const std::string line =
      (num_left_out_ > 0 ? str_cat("(", num_left_out_, " requests are not in this log)\n") : "") + log_line(exchange);
  num_left_out_ = 0;
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace serve
