// The allowed arrows between folders (docs/architecture.md): nothing points back, and kernels share code only through kernels/base,
// but for operations that consist of others. Of the internal headers of kernels/, the floors above include only kernels/internal/run.h.
// kernels/cuda_stubs.cpp is in place of the CUDA code of all.
#include <gtest/gtest.h>

#include <cctype>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>

#include "tests/support/source_path.h"

namespace {

namespace fs = std::filesystem;

// The part of the tree that a path (relative to the source root, or to <prologue/...>) belongs to.
std::string part_of(const fs::path& path) {
  auto it = path.begin();
  const std::string top = it->string();
  if (top != "kernels") return top;
  return "kernels/" + (++it)->string();
}

bool allowed(const std::string& from, const std::string& to) {
  if (from == to || to == "kernels/base") return true;
  static const std::map<std::string, std::set<std::string>> arrows = {
      {"adapters", {"kernels/rotary", "kernels/attention_prologue"}},
      {"kernels/cuda_stubs.cpp", {"kernels/"}},
      {"kernels/internal", {"kernels/"}},
      {"kernels/mla_prologue", {"kernels/attention_prologue"}},
      {"kernels/moe", {"kernels/gemm"}},
      {"kernels/projection", {"kernels/gemm", "kernels/token_ops", "kernels/attention_prologue"}},
      {"kernels/qkv_prologue", {"kernels/gemm", "kernels/token_ops", "kernels/projection", "kernels/attention_prologue"}},
      {"kernels/rerope", {"kernels/rotary", "kernels/attention_prologue"}},
      {"kvcache", {}},
      {"layers", {"kvcache", "kernels/"}},
      {"c", {"layers", "kvcache", "kernels/"}},
      {"engine", {"layers", "kvcache", "kernels/"}},
      {"python", {"layers", "kvcache", "kernels/"}},
      {"examples", {"engine", "layers", "kvcache", "kernels/"}},
      {"benchmarks", {"c", "engine", "layers", "kvcache", "kernels/"}},
  };
  const auto found = arrows.find(from);
  if (found == arrows.end()) return false;
  for (const std::string& target : found->second) {
    if (to == target || (target == "kernels/" && to.rfind(target, 0) == 0)) return true;
  }
  return false;
}

// Returns the headers of kernels/ that are installed, as their CMakeLists.txt lists them.
std::set<std::string> public_kernel_headers() {
  std::ifstream file(prologue::test::source_path("kernels/CMakeLists.txt"));
  std::set<std::string> headers;
  std::string word;
  while (file >> word && word != "PUBLIC_HEADERS") continue;
  for (bool last = false; !last && file >> word;) {
    last = word.back() == ')';
    headers.insert("kernels/" + word.substr(0, word.size() - (last ? 1 : 0)));
  }
  return headers;
}

// Returns whether a file in the folder `from` may include the header `target` of kernels/. Benchmarks measure what is internal, too.
bool open_to(const std::string& from, const std::string& target, const std::set<std::string>& public_headers) {
  return from.rfind("kernels", 0) == 0 || from == "benchmarks" || target.rfind("kernels/", 0) != 0 ||
         target == "kernels/internal/run.h" || public_headers.count(target) == 1;
}

// Returns whether a line of code names something in one of the namespaces of the backends.
bool names_a_backend(const std::string& line) {
  const std::string code = line.substr(0, line.find("//"));
  for (const char* backend : {"cpu::", "cuda::"}) {
    for (size_t at = code.find(backend); at != code.npos; at = code.find(backend, at + 1)) {
      if (at == 0 || (std::isalnum(static_cast<unsigned char>(code[at - 1])) == 0 && code[at - 1] != '_')) return true;
    }
  }
  return false;
}

// What a line includes, without its brackets; empty for every other line.
std::string included(const std::string& line) {
  const std::string include = "#include ";
  if (line.rfind(include, 0) != 0 || line.size() < include.size() + 2) return {};
  return line.substr(include.size() + 1, line.find_last_of(">\"") - include.size() - 1);
}

TEST(Tree, IncludesFollowTheArrows) {
  const fs::path root = prologue::test::source_path(".");
  const std::set<std::string> public_headers = public_kernel_headers();
  EXPECT_GT(public_headers.size(), 30u);
  int num_includes = 0;
  for (const char* top : {"kernels", "adapters", "kvcache", "layers", "c", "engine", "python/src", "examples", "benchmarks"}) {
    for (const auto& entry : fs::recursive_directory_iterator(root / top)) {
      const std::string extension = entry.path().extension().string();
      if (extension != ".h" && extension != ".cpp" && extension != ".cu" && extension != ".cuh") continue;
      std::ifstream file(entry.path());
      const std::string from = part_of(fs::relative(entry.path(), root));
      for (std::string line; std::getline(file, line);) {
        if (from.rfind("kernels", 0) != 0 && from != "benchmarks") {
          EXPECT_FALSE(names_a_backend(line)) << entry.path() << ": " << line;
        }
        const std::string include = included(line);
        if (include.rfind("prologue/", 0) != 0) continue;
        ++num_includes;
        const std::string target = include.substr(9);
        EXPECT_TRUE(allowed(from, part_of(fs::path(target)))) << entry.path() << ": " << line;
        EXPECT_TRUE(open_to(from, target, public_headers))
            << entry.path() << ": " << line << " is an internal header of kernels/";
      }
    }
  }
  EXPECT_GT(num_includes, 50);
}

TEST(Tree, TheRuleCanFail) {
  EXPECT_FALSE(allowed("kernels/gemm", "layers"));
  EXPECT_FALSE(allowed("kernels/gemm", "kernels/rotary"));
  EXPECT_FALSE(allowed("kernels/rotary", "adapters"));
  EXPECT_FALSE(allowed("layers", "adapters"));
  EXPECT_FALSE(allowed("adapters", "layers"));
  EXPECT_FALSE(allowed("kvcache", "kernels/gemm"));
  EXPECT_FALSE(allowed("layers", "engine"));
  EXPECT_FALSE(allowed("layers", "c"));
  EXPECT_FALSE(allowed("kernels/gemm", "kernels/internal"));
  EXPECT_FALSE(allowed("kvcache", "kernels/internal"));
  const std::set<std::string> public_headers = public_kernel_headers();
  EXPECT_TRUE(open_to("layers", "kernels/gemm/gemm.h", public_headers));
  EXPECT_TRUE(open_to("layers", "kernels/token_ops/take_tokens.h", public_headers)) << "the last of the list";
  EXPECT_TRUE(open_to("engine", "kernels/internal/run.h", public_headers));
  EXPECT_FALSE(open_to("layers", "kernels/gemm/backends.h", public_headers));
  EXPECT_FALSE(open_to("engine", "kernels/base/host/parallel.h", public_headers));
  EXPECT_TRUE(names_a_backend("  return cuda::gemm(params);"));
  EXPECT_TRUE(names_a_backend("prologue::cpu::gemm(params);"));
  EXPECT_FALSE(names_a_backend("  if (device == Device::cuda) return;  // cuda::gemm"));
}

// Public headers must not need the CUDA toolkit.
TEST(Tree, HeadersDoNotIncludeCuda) {
  for (const char* top : {"kernels", "adapters", "kvcache", "layers", "c", "engine"}) {
    for (const auto& entry : fs::recursive_directory_iterator(fs::path(prologue::test::source_path(top)))) {
      if (entry.path().extension() != ".h") continue;
      if (entry.path().string().find("/base/compile/headers/") != std::string::npos) continue;  // they take the place of CUDA's
      std::ifstream file(entry.path());
      for (std::string line; std::getline(file, line);) {
        const std::string target = included(line);
        for (const char* toolkit : {"cuda", "cublas", "cub/"})
          EXPECT_NE(target.rfind(toolkit, 0), 0u) << entry.path() << ": " << line;
      }
    }
  }
}

}  // namespace
