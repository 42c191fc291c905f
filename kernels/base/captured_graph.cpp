#include <prologue/kernels/base/captured_graph.h>

#include <prologue/kernels/base/host/backends.h>

namespace prologue {

CapturedGraph::~CapturedGraph() {
  if (graph_ != nullptr) cuda::destroy_graph(graph_);
}

Result<CapturedGraph> CapturedGraph::capture(const Execution& execution, const std::function<Status()>& enqueue) {
  if (execution.device != Device::cuda) {
    return unsupported("captured graph: device is ", device_name(execution.device), ": only work on cuda can be captured");
  }
  CapturedGraph captured;
  PROLOGUE_ASSIGN_OR_RETURN(captured.graph_, cuda::capture_graph(execution.stream, enqueue));
  return captured;
}

Status CapturedGraph::launch(const Execution& execution) const {
  if (graph_ == nullptr) return invalid_argument("captured graph: nothing was captured");
  return cuda::launch_graph(graph_, execution.stream);
}

}  // namespace prologue
