// cuBLASLt is opened when the first context of a GPU needs it, which takes no GPU. A program that needs none does not load it.
#include <gtest/gtest.h>

#if defined(PROLOGUE_HAS_CUDA) && !defined(PROLOGUE_CUDA_EMULATED)

#include <dlfcn.h>

#include <string>

#include <prologue/kernels/base/gpu.h>
#include <prologue/kernels/gemm/gemm.h>
#include <prologue/kernels/gemm/cublaslt.cuh>

namespace prologue::cuda {
namespace {

const std::string kLibrary = "libcublasLt.so." + std::to_string(CUBLAS_VER_MAJOR);

bool is_loaded() { return ::dlopen(kLibrary.c_str(), RTLD_LAZY | RTLD_NOLOAD) != nullptr; }

const bool kLoadedAtStart = is_loaded();

// This program links the GEMM: what is linked is loaded before main().
TEST(CublasLt, IsNotLoadedWhenAProgramStarts) {
  EXPECT_FALSE(kLoadedAtStart) << "a program with a GEMM loads " << kLibrary << " at its start";
  ASSERT_TRUE(GemmContext::create(Device::cpu).ok());
  EXPECT_FALSE(is_loaded()) << "a context of the CPU loads " << kLibrary;
}

TEST(CublasLt, IsFoundInTheToolkitOfTheBuild) {
  const Result<CublasLt> lt = cublaslt();
  ASSERT_TRUE(lt.ok()) << lt.status().message();
  EXPECT_TRUE(is_loaded());
  EXPECT_STREQ(lt->status_name(CUBLAS_STATUS_NOT_SUPPORTED), "CUBLAS_STATUS_NOT_SUPPORTED");
}

TEST(CublasLt, ACopyThatIsLoadedIsFoundByItsName) {
  ASSERT_TRUE(cublaslt().ok());
  const Result<CublasLt> lt = open_cublaslt({"libcublasLt.so.0", kLibrary});
  EXPECT_TRUE(lt.ok()) << lt.status().message();
}

TEST(CublasLt, AMissingLibraryIsAnErrorThatNamesWhatWasTried) {
  const Result<CublasLt> lt = open_cublaslt({"libcublasLt.so.0", "/no/such/folder/libcublasLt.so.0"});
  ASSERT_FALSE(lt.ok());
  const Status status = lt.status();
  EXPECT_EQ(status.code(), StatusCode::unsupported);
  const std::string& message = status.message();
  EXPECT_EQ(message.rfind(
                "gemm: cuBLASLt was not found: install it, or name its folder in LD_LIBRARY_PATH; tried libcublasLt.so.0 (", 0),
            0u)
      << message;
  EXPECT_NE(message.find("; /no/such/folder/libcublasLt.so.0 ("), std::string::npos) << message;
}

TEST(CublasLt, AMissingFunctionIsAnErrorThatNamesIt) {
  const Result<CublasLt> lt = open_cublaslt({"libm.so.6"});
  ASSERT_FALSE(lt.ok());
  EXPECT_EQ(lt.status().code(), StatusCode::unsupported);
  EXPECT_EQ(lt.status().message(), "gemm: cuBLASLt: libm.so.6 has no function cublasLtCreate");
}

// Runs on a GPU.
TEST(CublasLt, AContextOfTheGpuLoadsIt) {
  if (const Status gpu = check_gpu(); !gpu.ok()) GTEST_SKIP() << gpu.message();
  const Result<std::unique_ptr<GemmContext>> context = GemmContext::create(Device::cuda);
  ASSERT_TRUE(context.ok()) << context.status().message();
  EXPECT_TRUE(is_loaded());
}

}  // namespace
}  // namespace prologue::cuda

#endif
