// Kernels that are compiled while the program runs, from the headers that the library has with it. NVRTC needs no GPU; where it is not installed,
// the tests are skipped. Those at the end run what was compiled.
#include <gtest/gtest.h>

#ifdef PROLOGUE_HAS_CUDA

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include <prologue/kernels/attention_prologue/described/described.h>
#include <prologue/kernels/base/captured_graph.h>
#include <prologue/kernels/base/compile/compiler.h>
#include <prologue/kernels/base/compile/nvrtc.h>
#include <prologue/kernels/base/dtype.h>
#include <prologue/kernels/base/gpu.h>
#include <prologue/kernels/base/memory.h>
#include <prologue/kernels/base/device/cuda_launch.cuh>

#include "tests/support/combinations.h"
#include "tests/support/environment.h"

namespace prologue::cuda {
namespace {

using test::ScopedVariable;
using test::TemporaryFolder;

constexpr const char* kLean = "#include <prologue/kernels/attention_prologue/lean/";
constexpr const char* kGeneral = "#include <prologue/kernels/attention_prologue/general/";

const KernelSource kPlain = {std::string(kLean) + "plain_schedule.cuh>",
                             "prologue::cuda::plain_prologue_kernel<__nv_bfloat16, 8, 2, prologue::cuda::kNoHints, 0>"};

// No kernel of an earlier run is found, and none is kept.
class Compile : public testing::Test {
 protected:
  void SetUp() override {
    const ScopedVariable no_files("PROLOGUE_CACHE_DIR", "");
    const Result<CompiledKernel> tried = compile_to_cubin({"extern \"C\" __global__ void nothing() {}", "nothing"}, "sm_80");
    if (tried.status().code() == StatusCode::unsupported) GTEST_SKIP() << tried.status().message();
    ASSERT_TRUE(tried.ok()) << tried.status().message();
    before_ = kernels_compiled();
  }
  int64_t compiled() const { return kernels_compiled() - before_; }

  const TemporaryFolder folder_;
  const ScopedVariable cache_{"PROLOGUE_CACHE_DIR", folder_.path().c_str()};

 private:
  int64_t before_ = 0;
};

bool is_cubin(const Result<CompiledKernel>& kernel) {
  return kernel.ok() && kernel->cubin.size() > 4 &&
         std::string(kernel->cubin.data(), 4) ==
             "\x7f"
             "ELF";
}

// Every header that is embedded, for every architecture that a release has.
TEST_F(Compile, TheEmbeddedHeadersAreComplete) {
  const std::vector<KernelSource> sources = {
      kPlain,
      {std::string(kLean) + "steps_schedule.cuh>",
       "prologue::cuda::steps_prologue_kernel<__half, 8, 2, 0, prologue::cuda::kNorm | prologue::cuda::kDerived>"},
      {std::string(kLean) + "most_steps_schedule.cuh>",
       "prologue::cuda::most_steps_prologue_kernel<float, 4, 0, prologue::cuda::kMostSteps | prologue::cuda::kEveryStep>"},
      {std::string(kGeneral) + "schedule.cuh>", "prologue::cuda::general_prologue_kernel<__half, 8>"}};
  for (const char* architecture : {"sm_80", "sm_90a", "sm_100"}) {
    for (const KernelSource& source : sources) {
      if (&source != &sources[0] && std::string(architecture) != "sm_90a") continue;
      const Result<CompiledKernel> kernel = compile_to_cubin(source, architecture);
      if (!kernel.ok() && std::string(architecture) == "sm_100" &&
          kernel.status().message().find("invalid value") != std::string::npos) {
        continue;  // NVRTC before 12.8 does not know it
      }
      EXPECT_TRUE(is_cubin(kernel)) << architecture << ": " << kernel.status().message();
      if (kernel.ok()) {
        EXPECT_NE(kernel->symbol.find("prologue_kernel"), std::string::npos) << kernel->symbol;
        // `x = {}` of a struct is a variable KERNEL$NUMBER in global memory, which the kernel loads: device code says `x = Struct()`.
        const std::string code(kernel->cubin.begin(), kernel->cubin.end());
        EXPECT_EQ(code.find(kernel->symbol + "$"), std::string::npos) << source.expression << " loads constants from memory";
      }
    }
  }
}

// The facts of calls of the attention prologue are constants of their kernels. If a compiler keeps them in memory (loops over the tensors that it
// does not evaluate), nothing is left out, and a kernel has tens of thousands of instructions.
TEST_F(Compile, AKernelThatIsMadeForACallHasNothingElse) {
  CallFacts usual;
  for (HeadFacts& head : usual.heads) head.width = head.cut_dim = 128, head.has_out = 1;
  usual.heads[0].rotates = usual.heads[1].rotates = 1;
  usual.rotary_dim = 128;
  usual.table = DType::bf16;
  usual.positions = usual.slots = DType::int64;
  CallFacts partial = usual;
  partial.rotary_dim = partial.heads[0].cut_dim = partial.heads[1].cut_dim = 64;
  CallFacts normed = partial;
  for (int i = 0; i < 2; ++i) {
    normed.heads[i].norm = NormPlacement::after_rope, normed.heads[i].weighted = normed.heads[i].float_weights = 1;
  }
  CallFacts derived = usual;
  derived.positions = derived.slots = DType::unset;
  derived.derives_position = derived.derives_slot = derived.lists_pages = 1;
  derived.source = RopeSource::inv_freq;
  CallFacts blocks = usual;
  blocks.few_heads = 1;
  for (int i = 1; i < 3; ++i) {
    blocks.heads[i].store = DType::fp4_e2m1;
    blocks.heads[i].scale_from = ScaleFrom::blocks, blocks.heads[i].block_scaling = KvScaling::nv;
  }
  const std::vector<CallFacts> calls = {usual, partial, normed, derived, blocks};
  for (size_t call = 0; call < calls.size(); ++call) {
    const std::vector<DescribedSize> sizes = described_sizes(DType::bf16, calls[call], 8);
    for (size_t size = 0; size < sizes.size(); ++size) {
      // The last size of each call has the most code; of the others one is made, as each takes seconds.
      if (size + 1 < sizes.size() && call + size > 0 && !test::tests_all_combinations()) continue;
      const KernelSource source = {"#include <prologue/kernels/attention_prologue/described/schedule.cuh>",
                                   described_name(DType::bf16, calls[call], sizes[size])};
      const Result<CompiledKernel> kernel = compile_to_cubin(source, "sm_90a");
      ASSERT_TRUE(is_cubin(kernel)) << kernel.status().message();
      EXPECT_LT(kernel->cubin.size(), 64 * 1024) << source.expression;  // 10 to 57 KB
    }
  }
}

TEST_F(Compile, AnErrorHasTheCompilersMessage) {
  const Result<CompiledKernel> wrong = compile_to_cubin({"#include <cstdint>\nint32_t is_missing;;\n)", "kernel"}, "sm_90a");
  EXPECT_EQ(wrong.status().code(), StatusCode::device_error);
  EXPECT_NE(wrong.status().message().find("could not compile kernel for sm_90a: NVRTC_ERROR_COMPILATION"), std::string::npos)
      << wrong.status().message();
  EXPECT_NE(wrong.status().message().find("kernel.cu(3): error: expected a declaration"), std::string::npos)
      << wrong.status().message();
  const Result<CompiledKernel> unknown = compile_to_cubin(kPlain, "sm_1");
  EXPECT_NE(unknown.status().message().find("sm_1"), std::string::npos) << unknown.status().message();
  const Result<CompiledKernel> header = compile_to_cubin({"#include <vector>", "kernel"}, "sm_90a");
  EXPECT_NE(header.status().message().find("could not open source file \"vector\""), std::string::npos)
      << header.status().message();
  EXPECT_EQ(compiled(), 3);
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path())) << "errors are not kept in files";
}

TEST_F(Compile, TheSecondTimeAFileIsFound) {
  const Result<CompiledKernel> first = compile_to_cubin(kPlain, "sm_90a");
  ASSERT_TRUE(first.ok()) << first.status().message();
  const Result<CompiledKernel> second = compile_to_cubin(kPlain, "sm_90a");
  EXPECT_EQ(compiled(), 1);
  EXPECT_EQ(second->symbol, first->symbol);
  EXPECT_EQ(second->cubin, first->cubin);

  ASSERT_TRUE(compile_to_cubin(kPlain, "sm_80").ok());
  KernelSource other = kPlain;
  other.expression = "prologue::cuda::plain_prologue_kernel<__half, 8, 2, prologue::cuda::kNoHints, 0>";
  ASSERT_TRUE(compile_to_cubin(other, "sm_90a").ok());
  other.text += "\n#define ANOTHER_TEXT";
  ASSERT_TRUE(compile_to_cubin(other, "sm_90a").ok());
  EXPECT_EQ(compiled(), 4) << "another architecture, kernel or text is another file";
}

TEST_F(Compile, ADamagedFileIsReplaced) {
  ASSERT_TRUE(compile_to_cubin(kPlain, "sm_90a").ok());
  const auto path = std::filesystem::directory_iterator(folder_.path())->path();
  std::filesystem::resize_file(path, std::filesystem::file_size(path) / 2);
  EXPECT_TRUE(is_cubin(compile_to_cubin(kPlain, "sm_90a")));
  EXPECT_EQ(compiled(), 2);
  EXPECT_TRUE(is_cubin(compile_to_cubin(kPlain, "sm_90a")));
  EXPECT_EQ(compiled(), 2);
}

TEST_F(Compile, AFolderThatCannotBeWrittenToCostsOnlyTheFile) {
  for (const char* folder : {"", "/proc/prologue"}) {
    const ScopedVariable variable("PROLOGUE_CACHE_DIR", folder);
    EXPECT_TRUE(is_cubin(compile_to_cubin(kPlain, "sm_90a")));
  }
  EXPECT_EQ(compiled(), 2);
}

TEST_F(Compile, TheEnvironmentTurnsItOff) {
  const ScopedVariable off("PROLOGUE_COMPILE", "0");
  const std::string message = "compiling kernels: PROLOGUE_COMPILE=0 has turned it off";
  EXPECT_EQ(compile_to_cubin(kPlain, "sm_90a").status().message(), message);
  EXPECT_EQ(compile(kPlain).status().message(), message);
  EXPECT_EQ(check_compiler().message(), message);
  EXPECT_FALSE(compiler_available());
  EXPECT_EQ(compiled(), 0);
}

TEST_F(Compile, WithoutADriverItSaysSo) {
  if (check_gpu().ok()) GTEST_SKIP() << "there is a GPU";
  EXPECT_NE(compile(kPlain).status().message().find("there is no driver that can load them"), std::string::npos)
      << compile(kPlain).status().message();
  EXPECT_FALSE(compiler_available());
}

// Two threads ask for the same kernel, and get the same; it runs, also from a captured graph.
TEST_F(Compile, RunsOnTheGpu) {
  if (!check_gpu().ok()) GTEST_SKIP() << check_gpu().message();
  if (!compiler_available()) GTEST_SKIP() << check_compiler().message();
  const KernelSource source = {
      "#include <prologue/kernels/base/device/cuda_types.cuh>\n"
      "template <class T> __global__ void scale_all(T* x, float by, int count) {\n"
      "  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);\n"
      "  if (i < count) x[i] = prologue::cuda::from_float<T>(prologue::cuda::to_float(x[i]) * by);\n"
      "}\n",
      "scale_all<__half>"};
  const void* kernels[2] = {};
  std::vector<std::thread> threads;
  for (const void*& kernel : kernels) {
    threads.emplace_back([&] {
      const Result<const void*> made = compile(source);
      EXPECT_TRUE(made.ok()) << made.status().message();
      if (made.ok()) kernel = *made;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(compiled(), 1);
  ASSERT_NE(kernels[0], nullptr);
  EXPECT_EQ(kernels[0], kernels[1]);

  const Result<Stream> stream = Stream::create();
  ASSERT_TRUE(stream.ok());
  const Execution gpu = {Device::cuda, 1, stream->get()};
  std::vector<Float16> x(1000, to_float16(1.0f));
  const auto bytes = static_cast<int64_t>(x.size() * sizeof x[0]);
  const Result<Buffer> buffer = Buffer::allocate(Device::cuda, bytes);
  ASSERT_TRUE(buffer.ok());
  ASSERT_TRUE(copy_to_device(buffer->data(), x.data(), bytes, gpu).ok());
  const auto scale = [&] {
    return launch("scale_all", kernels[0], {dim3(4), dim3(256)}, gpu.stream, buffer->data(), 3.0f, int{999});
  };
  EXPECT_TRUE(scale().ok()) << scale().message();
  Result<CapturedGraph> graph = CapturedGraph::capture(gpu, scale);
  ASSERT_TRUE(graph.ok()) << graph.status().message();
  ASSERT_TRUE(graph->launch(gpu).ok());
  ASSERT_TRUE(copy_to_host(x.data(), buffer->data(), bytes, gpu).ok());
  EXPECT_EQ(to_float(x[0]), 9.0f);
  EXPECT_EQ(to_float(x[998]), 9.0f);
  EXPECT_EQ(to_float(x[999]), 1.0f);

  const Status wrong = launch("scale_all", kernels[0], {dim3(4), dim3(2000)}, gpu.stream, buffer->data(), 3.0f, int{999});
  EXPECT_NE(wrong.message().find("launching scale_all with a grid of 4 x 1 x 1 blocks of 2000 threads"), std::string::npos)
      << wrong.message();
}

TEST(CompileArchitecture, IsTheNearestThatRunsOnTheGpu) {
  Nvrtc nvrtc = {};
  nvrtc.version = [](int* major, int* minor) { return *major = 12, *minor = 8, 0; };
  nvrtc.num_supported_archs = [](int* count) { return *count = 6, 0; };
  nvrtc.supported_archs = [](int* archs) {
    for (const int arch : {75, 80, 86, 90, 100, 120}) *archs++ = arch;
    return 0;
  };
  const auto for_gpu = [&](int major, int minor) {
    const Result<std::string> found = architecture_for(nvrtc, major, minor);
    return found.ok() ? *found : found.status().message();
  };
  EXPECT_EQ(for_gpu(8, 0), "sm_80");
  EXPECT_EQ(for_gpu(8, 9), "sm_86");
  EXPECT_EQ(for_gpu(9, 0), "sm_90a");
  EXPECT_EQ(for_gpu(10, 0), "sm_100");
  EXPECT_EQ(for_gpu(10, 3), "sm_100");
  EXPECT_EQ(for_gpu(12, 1), "sm_120");
  EXPECT_EQ(for_gpu(11, 0), "compiling kernels: NVRTC 12.8 does not know the GPU's compute capability, 11.0");
  EXPECT_EQ(for_gpu(7, 0), "compiling kernels: NVRTC 12.8 does not know the GPU's compute capability, 7.0");
}

// NVRTC is searched for once in a process: another one must look.
TEST(CompileDeathTest, APathThatIsNotNvrtcIsNamed) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const ScopedVariable path("PROLOGUE_NVRTC", "/proc/prologue/libnvrtc.so");
  EXPECT_EXIT(
      {
        const Status status = compile_to_cubin(kPlain, "sm_90a").status();
        fputs(status.message().c_str(), stderr);
        std::exit(status.code() == StatusCode::unsupported ? 0 : 1);
      },
      testing::ExitedWithCode(0), "NVRTC was not found: .*; tried /proc/prologue/libnvrtc.so");
}

}  // namespace
}  // namespace prologue::cuda

#endif  // PROLOGUE_HAS_CUDA
