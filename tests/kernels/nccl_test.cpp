// NCCL is opened when the first group of GPUs needs it, which takes no GPU. A program that needs none does not load it.
#include <gtest/gtest.h>

#if defined(PROLOGUE_HAS_CUDA) && !defined(PROLOGUE_CUDA_EMULATED)

#include <dlfcn.h>

#include <string>

#include <prologue/kernels/collective/nccl.h>

namespace prologue::cuda {
namespace {

TEST(NcclLibrary, IsNotLoadedWhenAProgramStarts) { EXPECT_EQ(::dlopen("libnccl.so.2", RTLD_LAZY | RTLD_NOLOAD), nullptr); }

TEST(NcclLibrary, IsFoundOrNamed) {
  const Result<const Nccl*> found = nccl();
  if (!found.ok()) GTEST_SKIP() << found.status().message();
  EXPECT_GE((*found)->version, 21000);
  EXPECT_NE(std::string((*found)->error_string(0)), "");
}

TEST(NcclLibrary, AMissingLibraryIsAnErrorThatNamesWhatWasTried) {
  const Status status = open_nccl({"libnccl.so.0", "/no/such/folder/libnccl.so.2"}).status();
  EXPECT_EQ(status.code(), StatusCode::unsupported);
  EXPECT_EQ(status.message().rfind("communicator: NCCL was not found: install it, or name its folder in LD_LIBRARY_PATH; tried "
                                   "libnccl.so.0 (",
                                   0),
            0u)
      << status.message();
  EXPECT_NE(status.message().find("; /no/such/folder/libnccl.so.2 ("), std::string::npos) << status.message();
}

TEST(NcclLibrary, AnotherLibraryIsAnErrorThatNamesTheMissingFunction) {
  EXPECT_EQ(open_nccl({"libm.so.6"}).status().message(), "communicator: NCCL: libm.so.6 has no function ncclGetVersion");
}

}  // namespace
}  // namespace prologue::cuda

#endif
