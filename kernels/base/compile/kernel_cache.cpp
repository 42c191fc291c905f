#include <prologue/kernels/base/compile/kernel_cache.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <utility>

#include <prologue/kernels/base/status.h>

namespace prologue::cuda {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kFileName = ".kernel", kUnfinished = ".unfinished";

// What a file begins with. The key, the symbol and the code follow.
struct FileHeader {
  char magic[8] = {'p', 'r', 'o', 'l', 'o', 'g', 'u', '1'};
  uint64_t checksum = 0;  // of all that follows this member
  uint64_t key_bytes = 0;
  uint64_t symbol_bytes = 0;
  uint64_t cubin_bytes = 0;
};
constexpr size_t kSummedFrom = offsetof(FileHeader, key_bytes);

// FNV-1a: it tells damage and other keys apart, not malice. From that the folder's owner and permissions protect.
uint64_t hash_of(std::string_view bytes) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char byte : bytes) hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001b3u;
  return hash;
}

std::string name_of(const std::string& key) {
  std::string name(16, '0');
  uint64_t hash = hash_of(key);
  for (size_t i = name.size(); i-- > 0; hash >>= 4) name[i] = "0123456789abcdef"[hash & 15u];
  return name.append(kFileName);
}

// Whether a name is one that this file gives: nothing else is ever removed.
bool is_ours(std::string_view name) {
  return name.size() > 16 && name.find_first_not_of("0123456789abcdef") == 16 && name.substr(16, kFileName.size()) == kFileName &&
         (name.size() == 16 + kFileName.size() ||
          (name.size() > kUnfinished.size() && name.substr(name.size() - kUnfinished.size()) == kUnfinished));
}

bool usable(const std::string& folder) {
  struct stat found = {};
  return !folder.empty() && ::stat(folder.c_str(), &found) == 0 && S_ISDIR(found.st_mode) && found.st_uid == ::geteuid() &&
         (found.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

std::string contents_of(const std::string& key, const CompiledKernel& kernel) {
  FileHeader header;
  header.key_bytes = key.size();
  header.symbol_bytes = kernel.symbol.size();
  header.cubin_bytes = kernel.cubin.size();
  std::string bytes(sizeof header, '\0');
  std::memcpy(bytes.data(), &header, sizeof header);
  bytes.append(key).append(kernel.symbol).append(kernel.cubin.data(), kernel.cubin.size());
  header.checksum = hash_of(std::string_view(bytes).substr(kSummedFrom));
  std::memcpy(bytes.data(), &header, sizeof header);
  return bytes;
}

bool write_new_file(const std::string& path, std::string_view bytes) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, S_IRUSR | S_IWUSR);
  if (file < 0) return false;
  bool good = true;
  while (good && !bytes.empty()) {
    const ssize_t written = ::write(file, bytes.data(), bytes.size());
    good = written > 0;
    if (good) bytes.remove_prefix(static_cast<size_t>(written));
  }
  return ::close(file) == 0 && good;
}

void remove_least_recently_used(const std::string& folder) {
  std::error_code error;
  std::vector<std::pair<fs::file_time_type, fs::path>> files;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    std::error_code gone;
    const fs::file_time_type used = it->last_write_time(gone);
    if (!gone && is_ours(it->path().filename().string())) files.emplace_back(used, it->path());
  }
  if (files.size() <= kMostKernelFiles) return;
  std::sort(files.begin(), files.end());
  for (size_t i = 0; i < files.size() - kMostKernelFiles; ++i) fs::remove(files[i].second, error);
}

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

std::string kernel_cache_folder() {
  if (const char* const named = std::getenv("PROLOGUE_CACHE_DIR")) return named;
  const std::string caches = variable("XDG_CACHE_HOME"), home = variable("HOME");
  if (!caches.empty() && caches.front() == '/') return caches + "/prologue";
  return home.empty() ? "" : home + "/.cache/prologue";
}

std::optional<CompiledKernel> find_kernel(const std::string& folder, const std::string& key) {
  const std::string path = folder + "/" + name_of(key);
  std::error_code error;
  if (!usable(folder) || !fs::is_regular_file(path, error)) return std::nullopt;
  std::ifstream file(path, std::ios::binary);
  FileHeader header;
  const FileHeader expected;
  if (!file.read(reinterpret_cast<char*>(&header), sizeof header) ||
      std::memcmp(header.magic, expected.magic, sizeof header.magic) != 0 || header.key_bytes != key.size()) {
    return std::nullopt;
  }
  // Sizes that the file does not have are never allocated, nor those that no kernel has.
  constexpr uint64_t kMost = uint64_t{1} << 28;
  const uint64_t rest = fs::file_size(path, error) - sizeof header;
  if (error || rest > kMost || header.symbol_bytes > rest || header.cubin_bytes > rest ||
      header.key_bytes + header.symbol_bytes + header.cubin_bytes != rest) {
    return std::nullopt;
  }
  CompiledKernel kernel;
  std::string found_key(key.size(), '\0');
  kernel.symbol.resize(header.symbol_bytes);
  kernel.cubin.resize(header.cubin_bytes);
  for (const auto& [data, size] :
       {std::pair(found_key.data(), found_key.size()), std::pair(kernel.symbol.data(), kernel.symbol.size()),
        std::pair(kernel.cubin.data(), kernel.cubin.size())}) {
    if (!file.read(data, static_cast<std::streamsize>(size))) return std::nullopt;
  }
  FileHeader sealed;
  const std::string same = contents_of(found_key, kernel);
  std::memcpy(&sealed, same.data(), sizeof sealed);
  if (sealed.checksum != header.checksum) return std::nullopt;
  if (found_key != key) return std::nullopt;
  ::utimensat(AT_FDCWD, path.c_str(), nullptr, 0);  // it was used now
  return kernel;
}

void store_kernel(const std::string& folder, const std::string& key, const CompiledKernel& kernel) {
  if (folder.empty()) return;
  std::error_code error;
  fs::create_directories(fs::path(folder).parent_path(), error);
  ::mkdir(folder.c_str(), S_IRWXU);  // if it is there already, or cannot be made, is seen next
  if (!usable(folder)) return;
  static std::atomic<int> number = 0;  // two threads may store the same key
  const std::string path = folder + "/" + name_of(key);
  const std::string unfinished = str_cat(path, ".", ::getpid(), ".", number.fetch_add(1)).append(kUnfinished);
  if (!write_new_file(unfinished, contents_of(key, kernel)) || ::rename(unfinished.c_str(), path.c_str()) != 0) {
    ::unlink(unfinished.c_str());
    return;
  }
  remove_least_recently_used(folder);
}

}  // namespace prologue::cuda
