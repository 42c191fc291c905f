#include <prologue/kernels/base/event.h>

namespace prologue {

namespace cuda {
Status record_event(CUevent_st*& event, CUstream_st* stream);
Result<double> seconds_between(CUevent_st* start, CUevent_st* end);
void destroy_event(CUevent_st* event);
}  // namespace cuda

#ifndef PROLOGUE_HAS_CUDA
namespace cuda {
Status record_event(CUevent_st*&, CUstream_st*) { return cuda_not_built("event"); }
Result<double> seconds_between(CUevent_st*, CUevent_st*) { return cuda_not_built("event"); }
void destroy_event(CUevent_st*) {}
}  // namespace cuda
#endif

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
