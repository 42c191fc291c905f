// This is the CUDA side of memory, events, streams and graphs (memory.h, event.h, gpu.h, captured_graph.h say what it does). Internal.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include <prologue/kernels/base/execution.h>

struct CUevent_st;
struct CUgraphExec_st;

namespace prologue::cuda {

Status check_gpu();
Result<std::string> gpu_name();
Result<int32_t> num_gpus();
Status use_gpu(int32_t gpu);
Result<CUstream_st*> create_stream();
void destroy_stream(CUstream_st* stream);

Status record_event(CUevent_st*& event, CUstream_st* stream);  // a null event is created first
Result<double> seconds_between(CUevent_st* start, CUevent_st* end);
void destroy_event(CUevent_st* event);

Result<CUgraphExec_st*> capture_graph(CUstream_st* stream, const std::function<Status()>& enqueue);
Status launch_graph(CUgraphExec_st* graph, CUstream_st* stream);
void destroy_graph(CUgraphExec_st* graph);

Result<void*> allocate(int64_t num_bytes);
void release(void* data);
Result<int64_t> available_bytes();
Status copy(void* target, const void* source, int64_t num_bytes, CUstream_st* stream, bool to_host);
Status copy_strided(void* target, const void* source, int64_t num_rows, int64_t row_bytes, int64_t stride_bytes,
                    CUstream_st* stream);
Status fill_zero(void* target, int64_t num_bytes, CUstream_st* stream);
Status synchronize(CUstream_st* stream);
Result<void*> allocate_pinned(int64_t num_bytes);
void release_pinned(void* data);
Result<CUevent_st*> create_copy_event();
Status copy_from_pinned(void* target, const void* pinned, int64_t num_bytes, CUstream_st* stream, CUevent_st* copied);
Status copy_to_pinned(void* pinned, const void* source, int64_t num_bytes, CUstream_st* stream, CUevent_st* copied);
Status wait_for_copy(CUevent_st* copied);
Result<bool> copy_is_done(CUevent_st* copied);

}  // namespace prologue::cuda
