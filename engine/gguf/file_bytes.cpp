#include <prologue/engine/gguf/file_bytes.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include <prologue/engine/tokenizer/utf8.h>

namespace prologue {
namespace {

std::string system_message(int error) { return std::generic_category().message(error); }

}  // namespace

FileBytes::~FileBytes() {
  if (mapping_ != nullptr) munmap(mapping_, bytes_.size());
}

void FileBytes::discard(const std::byte* begin, size_t size) const {
  if (mapping_ == nullptr) return;
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t offset = static_cast<size_t>(begin - bytes_.data());
  const size_t first = (offset + page - 1) / page * page;  // whole pages only: a neighbour may still need the others
  const size_t last = (offset + size) / page * page;
  if (first < last) madvise(static_cast<std::byte*>(mapping_) + first, last - first, MADV_DONTNEED);
}

Result<FileBytes> FileBytes::map(const std::string& file_path) {
  const std::string path = printable_path(file_path);  // as messages show it
  struct Descriptor {
    int number;
    ~Descriptor() {
      if (number >= 0) close(number);
    }
  };
  // O_NONBLOCK: opening a named pipe must not wait for a writer.
  const Descriptor file{::open(file_path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (file.number < 0) {
    const int error = errno;
    if (error == ENOENT || error == ENOTDIR) return not_found(path, ": there is no such file");
    return invalid_argument(path, ": the file cannot be opened for reading: ", system_message(error));
  }
  struct stat info;
  if (fstat(file.number, &info) != 0) return invalid_argument(path, ": the file cannot be examined: ", system_message(errno));
  if (S_ISDIR(info.st_mode)) return invalid_argument(path, ": this is a directory, but a file is expected");
  if (!S_ISREG(info.st_mode)) return invalid_argument(path, ": this is not a regular file");

  FileBytes result;
  if (info.st_size == 0) return result;
  const size_t size = static_cast<size_t>(info.st_size);
  void* mapping = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.number, 0);
  if (mapping == MAP_FAILED) {
    return resource_exhausted(path, ": the file of ", size, " bytes cannot be mapped: ", system_message(errno));
  }
  madvise(mapping, size, MADV_WILLNEED);  // the whole file is read once, soon
  result.mapping_ = mapping;
  result.bytes_ = {static_cast<const std::byte*>(mapping), size};
  return result;
}

}  // namespace prologue
