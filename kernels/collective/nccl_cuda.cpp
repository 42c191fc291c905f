#include <prologue/kernels/collective/nccl.h>

#include <cstdlib>

#include <prologue/kernels/base/host/open_library.h>

namespace prologue::cuda {

namespace {

constexpr const char* kWhat = "communicator: NCCL";

Result<Nccl> search_nccl() {
#if defined(PROLOGUE_CUDA_EMULATED)
  return unsupported(kWhat, ": the emulator has none");
#else
  if (const char* const named = std::getenv("PROLOGUE_NCCL"); named != nullptr && *named != '\0') return open_nccl({named});
  return open_nccl({"libnccl.so.2"});
#endif
}

}  // namespace

Result<Nccl> open_nccl(const std::vector<std::string>& names) {
  PROLOGUE_ASSIGN_OR_RETURN(const OpenLibrary library, open_library(kWhat, names));
  Nccl nccl = {};
  nccl.name = library.name;
  const auto find = [&](const char* name, auto& function) { return find_function(kWhat, library, name, function); };
  PROLOGUE_RETURN_IF_ERROR(find("ncclGetVersion", nccl.get_version));
  PROLOGUE_RETURN_IF_ERROR(find("ncclGetErrorString", nccl.error_string));
  PROLOGUE_RETURN_IF_ERROR(find("ncclCommInitAll", nccl.init_all));
  PROLOGUE_RETURN_IF_ERROR(find("ncclAllReduce", nccl.all_reduce));
  PROLOGUE_RETURN_IF_ERROR(find("ncclAllGather", nccl.all_gather));
  PROLOGUE_RETURN_IF_ERROR(find("ncclGroupStart", nccl.group_start));
  PROLOGUE_RETURN_IF_ERROR(find("ncclGroupEnd", nccl.group_end));
  PROLOGUE_RETURN_IF_ERROR(find("ncclCommAbort", nccl.abort));
  PROLOGUE_RETURN_IF_ERROR(find("ncclCommDestroy", nccl.destroy));
  PROLOGUE_RETURN_IF_ERROR(find("ncclCommGetAsyncError", nccl.async_error));
  if (nccl.get_version(&nccl.version) != Nccl::kSuccess || nccl.version < 21000) {
    return unsupported(kWhat, ": ", library.name, " says that its version is ", nccl.version, ": 2.10 or later is needed");
  }
  return nccl;
}

Result<const Nccl*> nccl() {
  static const Result<Nccl> found = search_nccl();
  if (!found.ok()) return found.status();
  return &*found;
}

}  // namespace prologue::cuda
