// The allowed arrows between folders (docs/architecture.md): nothing points back, and kernels share code only through kernels/base,
// but for operations that consist of others.
// kernels/coming_from is no kernel: it fills in the structs of two. kernels/cuda_stubs.cpp is in place of the CUDA code of all.
#include <gtest/gtest.h>

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
      {"kernels/coming_from", {"kernels/rotary", "kernels/attention_prologue"}},
      {"kernels/cuda_stubs.cpp", {"kernels/"}},
      {"kernels/mla_prologue", {"kernels/attention_prologue"}},
      {"kernels/moe", {"kernels/gemm"}},
      {"kernels/projection", {"kernels/gemm", "kernels/token_ops"}},
      {"kernels/qkv_prologue", {"kernels/gemm", "kernels/token_ops", "kernels/projection", "kernels/attention_prologue"}},
      {"kvcache", {}},
      {"layers", {"kvcache", "kernels/"}},
      {"c", {"layers", "kvcache", "kernels/"}},
      {"engine", {"layers", "kvcache", "kernels/"}},
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

// What a line includes, without its brackets; empty for every other line.
std::string included(const std::string& line) {
  const std::string include = "#include ";
  if (line.rfind(include, 0) != 0 || line.size() < include.size() + 2) return {};
  return line.substr(include.size() + 1, line.find_last_of(">\"") - include.size() - 1);
}

TEST(Tree, IncludesFollowTheArrows) {
  const fs::path root = prologue::test::source_path(".");
  int num_includes = 0;
  for (const char* top : {"kernels", "kvcache", "layers", "c", "engine", "examples", "benchmarks"}) {
    for (const auto& entry : fs::recursive_directory_iterator(root / top)) {
      const std::string extension = entry.path().extension().string();
      if (extension != ".h" && extension != ".cpp" && extension != ".cu" && extension != ".cuh") continue;
      std::ifstream file(entry.path());
      const std::string from = part_of(fs::relative(entry.path(), root));
      for (std::string line; std::getline(file, line);) {
        const std::string target = included(line);
        if (target.rfind("prologue/", 0) != 0) continue;
        ++num_includes;
        EXPECT_TRUE(allowed(from, part_of(fs::path(target.substr(9))))) << entry.path() << ": " << line;
      }
    }
  }
  EXPECT_GT(num_includes, 50);
}

TEST(Tree, TheRuleCanFail) {
  EXPECT_FALSE(allowed("kernels/gemm", "layers"));
  EXPECT_FALSE(allowed("kernels/gemm", "kernels/rotary"));
  EXPECT_FALSE(allowed("kernels/rotary", "kernels/coming_from"));
  EXPECT_FALSE(allowed("kvcache", "kernels/gemm"));
  EXPECT_FALSE(allowed("layers", "engine"));
  EXPECT_FALSE(allowed("layers", "c"));
}

// Public headers must not need the CUDA toolkit.
TEST(Tree, HeadersDoNotIncludeCuda) {
  for (const char* top : {"kernels", "kvcache", "layers", "c", "engine"}) {
    for (const auto& entry : fs::recursive_directory_iterator(fs::path(prologue::test::source_path(top)))) {
      if (entry.path().extension() != ".h") continue;
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
