// The files of compiled kernels: whatever is in the folder, a kernel comes back as it was stored, or not at all.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <prologue/kernels/base/compile/kernel_cache.h>
#include <prologue/kernels/base/compile/once_per_key.h>

#include "tests/support/environment.h"

namespace prologue::cuda {
namespace {

namespace fs = std::filesystem;
using test::ScopedVariable;
using test::TemporaryFolder;

const CompiledKernel kKernel = {"_Z6kernelv", {'\x7f', 'E', 'L', 'F', '\0', '\n', '\xff'}};

int num_files(const std::string& folder) {
  return static_cast<int>(std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}
fs::path only_file(const std::string& folder) { return fs::directory_iterator(folder)->path(); }

bool is_kept(const std::string& folder, const std::string& key, const CompiledKernel& kernel = kKernel) {
  const std::optional<CompiledKernel> found = find_kernel(folder, key);
  return found.has_value() && found->symbol == kernel.symbol && found->cubin == kernel.cubin;
}

std::string read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}
void write(const fs::path& path, const std::string& bytes) { std::ofstream(path, std::ios::binary) << bytes; }

TEST(KernelCache, KeepsWhatWasStored) {
  const TemporaryFolder root;
  const std::string folder = root.path() + "/deeper/prologue";
  EXPECT_FALSE(find_kernel(folder, "key").has_value()) << "there is no folder";
  store_kernel(folder, "key", kKernel);
  EXPECT_TRUE(is_kept(folder, "key"));
  EXPECT_FALSE(find_kernel(folder, "other key").has_value());
  store_kernel(folder, "empty", {});
  EXPECT_TRUE(is_kept(folder, "empty", {}));
  const CompiledKernel newer = {"newer", {'1'}};
  store_kernel(folder, "key", newer);
  EXPECT_TRUE(is_kept(folder, "key", newer));
  EXPECT_EQ(num_files(folder), 2);
  EXPECT_EQ(fs::status(folder).permissions(), fs::perms::owner_all);
}

TEST(KernelCache, TakesNoDamagedFile) {
  const TemporaryFolder folder;
  store_kernel(folder.path(), "key", kKernel);
  const fs::path path = only_file(folder.path());
  const std::string good = read(path);
  for (size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 0x40);
    write(path, bad);
    EXPECT_FALSE(find_kernel(folder.path(), "key").has_value()) << "byte " << i << " is another one";
    write(path, good.substr(0, i));
    EXPECT_FALSE(find_kernel(folder.path(), "key").has_value()) << "the file ends after " << i << " bytes";
  }
  write(path, good + "x");
  EXPECT_FALSE(find_kernel(folder.path(), "key").has_value()) << "the file is longer";
  store_kernel(folder.path(), "key", kKernel);
  EXPECT_TRUE(is_kept(folder.path(), "key")) << "a damaged file is replaced";
  EXPECT_EQ(read(path), good);
}

TEST(KernelCache, ComparesTheWholeKey) {
  const TemporaryFolder folder;
  store_kernel(folder.path(), "key", kKernel);
  const fs::path path = only_file(folder.path());
  store_kernel(folder.path(), "yek", kKernel);
  for (const auto& entry : fs::directory_iterator(folder.path())) {
    if (entry.path() != path) fs::rename(entry.path(), path);  // as if the two keys had the same hash
  }
  EXPECT_FALSE(find_kernel(folder.path(), "key").has_value());
}

TEST(KernelCache, DoesWithoutAFolder) {
  const TemporaryFolder root;
  store_kernel("", "key", kKernel);
  EXPECT_FALSE(find_kernel("", "key").has_value());
  write(root.path() + "/file", "");
  store_kernel(root.path() + "/file", "key", kKernel);
  store_kernel(root.path() + "/file/below", "key", kKernel);
  EXPECT_FALSE(find_kernel(root.path() + "/file", "key").has_value());
  store_kernel("/proc/prologue", "key", kKernel);  // where root may not write either
  EXPECT_FALSE(find_kernel("/proc/prologue", "key").has_value());
}

// Code from a folder that others write to would be theirs.
TEST(KernelCache, TakesNothingFromAFolderThatOthersMayWriteTo) {
  const TemporaryFolder folder;
  store_kernel(folder.path(), "key", kKernel);
  for (const mode_t mode : {0770, 0702}) {
    ::chmod(folder.path().c_str(), mode);
    EXPECT_FALSE(find_kernel(folder.path(), "key").has_value());
    store_kernel(folder.path(), "second", kKernel);
    EXPECT_EQ(num_files(folder.path()), 1);
  }
  ::chmod(folder.path().c_str(), 0755);
  EXPECT_TRUE(is_kept(folder.path(), "key"));
}

TEST(KernelCache, RemovesTheLeastRecentlyUsedAndNothingElse) {
  const TemporaryFolder folder;
  write(folder.path() + "/notes.txt", "of the user");
  store_kernel(folder.path(), "0", kKernel);
  const fs::path first = [&] {
    for (const auto& entry : fs::directory_iterator(folder.path()))
      if (entry.path().filename() != "notes.txt") return entry.path();
    return fs::path();
  }();
  const fs::path unfinished = first.string() + ".1.2.unfinished";  // left by a process that was killed
  write(unfinished, "");
  const auto long_ago = fs::last_write_time(first) - std::chrono::hours(1);
  fs::last_write_time(first, long_ago);
  fs::last_write_time(unfinished, long_ago);
  for (int i = 1; i < kMostKernelFiles - 1; ++i) store_kernel(folder.path(), std::to_string(i), kKernel);
  EXPECT_EQ(num_files(folder.path()), kMostKernelFiles + 1);
  EXPECT_TRUE(is_kept(folder.path(), "0")) << "and now used again";
  store_kernel(folder.path(), "one more", kKernel);
  EXPECT_FALSE(fs::exists(unfinished));
  EXPECT_TRUE(is_kept(folder.path(), "0"));
  EXPECT_TRUE(is_kept(folder.path(), "one more"));
  EXPECT_TRUE(fs::exists(folder.path() + "/notes.txt"));
  EXPECT_EQ(num_files(folder.path()), kMostKernelFiles + 1);
}

TEST(KernelCache, TheEnvironmentNamesTheFolder) {
  const ScopedVariable home("HOME", "/home/somebody");
  {
    const ScopedVariable named("PROLOGUE_CACHE_DIR", "/somewhere");
    EXPECT_EQ(kernel_cache_folder(), "/somewhere");
  }
  {
    const ScopedVariable named("PROLOGUE_CACHE_DIR", "");
    EXPECT_EQ(kernel_cache_folder(), "") << "turned off";
  }
  const ScopedVariable not_named("PROLOGUE_CACHE_DIR", nullptr);
  {
    const ScopedVariable caches("XDG_CACHE_HOME", "/caches");
    EXPECT_EQ(kernel_cache_folder(), "/caches/prologue");
  }
  for (const char* useless : {static_cast<const char*>(nullptr), "", "relative"}) {
    const ScopedVariable caches("XDG_CACHE_HOME", useless);
    EXPECT_EQ(kernel_cache_folder(), "/home/somebody/.cache/prologue");
  }
  const ScopedVariable caches("XDG_CACHE_HOME", nullptr), homeless("HOME", nullptr);
  EXPECT_EQ(kernel_cache_folder(), "");
}

TEST(KernelCache, ManyThreadsStoreAndFind) {
  const TemporaryFolder folder;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&] {
      for (int i = 0; i < 50; ++i) {
        store_kernel(folder.path(), "key", kKernel);
        EXPECT_TRUE(is_kept(folder.path(), "key"));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(num_files(folder.path()), 1);
}

TEST(OncePerKey, ThreadsMakeAValueOnce) {
  OncePerKey<int> values;
  std::atomic<int> made = 0;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&] {
      const Result<int> value = values.get("key", [&]() -> Result<int> {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        return 40 + ++made;
      });
      EXPECT_EQ(*value, 41);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(made, 1);
  EXPECT_EQ(*values.get("other", [&]() -> Result<int> { return 7; }), 7);
}

TEST(OncePerKey, KeepsErrorsButOutOfMemory) {
  OncePerKey<int> values;
  int attempts = 0;
  const auto fail_with = [&](StatusCode code) {
    return [&attempts, code]() -> Result<int> {
      ++attempts;
      return error_status(code, "attempt ", attempts);
    };
  };
  EXPECT_EQ(values.get("a", fail_with(StatusCode::resource_exhausted)).status().message(), "attempt 1");
  EXPECT_EQ(values.get("a", fail_with(StatusCode::device_error)).status().message(), "attempt 2");
  EXPECT_EQ(values.get("a", fail_with(StatusCode::device_error)).status().message(), "attempt 2");
}

}  // namespace
}  // namespace prologue::cuda
