#include <prologue/engine/base/file_bytes.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include <prologue/engine/base/printable.h>

namespace prologue {
namespace {

constexpr uint64_t kHeadStep = uint64_t{1} << 20;
constexpr uint64_t kMaxHead = uint64_t{256} << 20;  // the largest vocabularies take some 20 MB

std::string system_message(int error) { return std::generic_category().message(error); }

int64_t modified_ns(const struct stat& info) { return int64_t{info.st_mtim.tv_sec} * 1000000000 + info.st_mtim.tv_nsec; }

}  // namespace

FileBytes::~FileBytes() {
  if (descriptor_ < 0) return;
  if (head_ != nullptr) munmap(head_, size_);
  close(descriptor_);
}

void FileBytes::swap(FileBytes& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  std::swap(owned_, other.owned_);
  std::swap(size_, other.size_);
  std::swap(modified_ns_, other.modified_ns_);
  std::swap(head_, other.head_);
  std::swap(head_size_, other.head_size_);
}

Result<FileBytes> FileBytes::open(const std::string& file_path) {
  const std::string path = printable_path(file_path);  // as messages show it
  FileBytes file;
  file.path_ = path;
  // O_NONBLOCK is set because opening a named pipe must not wait for a writer.
  file.descriptor_ = ::open(file_path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file.descriptor_ < 0) {
    const int error = errno;
    if (error == ENOENT || error == ENOTDIR) return not_found(path, ": there is no such file");
    return invalid_argument(path, ": the file cannot be opened for reading: ", system_message(error));
  }
  struct stat info;
  if (fstat(file.descriptor_, &info) != 0) {
    return invalid_argument(path, ": the file cannot be examined: ", system_message(errno));
  }
  if (S_ISDIR(info.st_mode)) return invalid_argument(path, ": this is a directory, but a file is expected");
  if (!S_ISREG(info.st_mode)) return invalid_argument(path, ": this is not a regular file");
  file.modified_ns_ = modified_ns(info);
  if (info.st_size == 0) return file;

  // Reserves addresses for the head, so that it can grow without moving. Only the part that has been read uses memory.
  const auto size = static_cast<uint64_t>(info.st_size);
  void* const range = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (range == MAP_FAILED) {
    return resource_exhausted(path, ": there is no address space for the file of ", size, " bytes: ", system_message(errno));
  }
  file.head_ = static_cast<std::byte*>(range);
  file.size_ = size;
  posix_fadvise(file.descriptor_, 0, 0, POSIX_FADV_WILLNEED);  // the whole file is read once, soon
  return file;
}

Status FileBytes::read_head(uint64_t size) {
  if (size <= head_size_) return {};
  if (size > kMaxHead) {
    return unsupported(path_, ": the metadata takes more than ", kMaxHead >> 20, " MiB: that is more than is supported");
  }
  const uint64_t end = std::min(size_, std::max(size, head_size_ + kHeadStep));
  PROLOGUE_RETURN_IF_ERROR(read(head_size_, end - head_size_, head_ + head_size_));
  head_size_ = end;
  return {};
}

Status FileBytes::read(uint64_t offset, uint64_t size, void* out) const {
  if (descriptor_ < 0) {
    if (size > 0) std::memcpy(out, owned_.data() + offset, size);
    return {};
  }
  auto* target = static_cast<std::byte*>(out);
  const uint64_t end = offset + size;
  while (offset < end) {
    const ssize_t count = pread(descriptor_, target, end - offset, static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return device_error(path_, ": the file cannot be read at byte ", offset, ": ", system_message(errno));
    if (count == 0) {
      return data_loss(path_, ": the file was cut short while it was read: it had ", size_, " bytes, and ends at ", offset);
    }
    offset += static_cast<uint64_t>(count);
    target += count;
  }
  return {};
}

Status FileBytes::check_unchanged() const {
  if (descriptor_ < 0) return {};
  struct stat info;
  if (fstat(descriptor_, &info) != 0) return device_error(path_, ": the file cannot be examined: ", system_message(errno));
  if (static_cast<uint64_t>(info.st_size) == size_ && modified_ns(info) == modified_ns_) return {};
  return data_loss(path_, ": the file was changed while it was read");
}

}  // namespace prologue
