// The pages of the tree (Markdown files) and its other texts, for the tests that read them.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/support/source_path.h"

namespace prologue::test {

inline std::vector<std::string> lines_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

// Every file of the project for which `wanted` is true: no hidden ones, no builds, no models.
template <class Wanted>
std::vector<std::filesystem::path> files_of_tree(const Wanted& wanted) {
  namespace fs = std::filesystem;
  const fs::path root = source_path(".");
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(root)) {
    if (entry.is_regular_file() && wanted(entry.path())) found.push_back(entry.path());
  }
  for (const char* top : {"adapters", "benchmarks", "c", "cmake", "docs", "engine", "examples", "kernels", "kvcache", "layers",
                          "python", "scripts", "tests"}) {
    for (auto it = fs::recursive_directory_iterator(root / top); it != fs::recursive_directory_iterator(); ++it) {
      const std::string name = it->path().filename().string();
      const bool is_other = name[0] == '.' || name == "build" || name == "node_modules";
      if (it->is_directory() && is_other) it.disable_recursion_pending();
      if (it->is_regular_file() && wanted(it->path())) found.push_back(it->path());
    }
  }
  return found;
}

inline std::vector<std::filesystem::path> pages() {
  return files_of_tree([](const std::filesystem::path& path) { return path.extension() == ".md"; });
}

}  // namespace prologue::test
