#include <prologue/kernels/base/event.h>
#include <prologue/kernels/base/host/backends.h>

namespace prologue {

Event::~Event() {
  if (event_ != nullptr) cuda::destroy_event(event_);
}

Status Event::record(const Execution& execution) {
  if (execution.device == Device::cuda) return cuda::record_event(event_, execution.stream);
  time_ = std::chrono::steady_clock::now();
  return {};
}

Result<double> Event::seconds_between(const Event& start, const Event& end) {
  if (end.event_ != nullptr) return cuda::seconds_between(start.event_, end.event_);
  return std::chrono::duration<double>(end.time_ - start.time_).count();
}

}  // namespace prologue
