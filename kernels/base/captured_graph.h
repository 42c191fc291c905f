// A CapturedGraph holds work that was captured from a stream once and is launched as a whole: a CUDA graph.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>

#include <prologue/kernels/base/execution.h>

struct CUgraphExec_st;

namespace prologue {

// It can be moved, not copied.
class PROLOGUE_API CapturedGraph {
 public:
  CapturedGraph() = default;
  CapturedGraph(CapturedGraph&& other) noexcept { *this = std::move(other); }
  CapturedGraph& operator=(CapturedGraph&& other) noexcept {
    std::swap(graph_, other.graph_);
    return *this;
  }
  CapturedGraph(const CapturedGraph&) = delete;
  CapturedGraph& operator=(const CapturedGraph&) = delete;
  ~CapturedGraph();

  // Captures what `enqueue` puts on execution.stream; nothing runs. The pointers and host values of that work are fixed for every
  // launch. unsupported: the device is not cuda. Errors of `enqueue` end the capture and are returned.
  static Result<CapturedGraph> capture(const Execution& execution, const std::function<Status()>& enqueue);

  explicit operator bool() const { return graph_ != nullptr; }
  // Enqueues all of it. invalid_argument: nothing was captured.
  Status launch(const Execution& execution) const;

 private:
  CUgraphExec_st* graph_ = nullptr;
};

}  // namespace prologue
