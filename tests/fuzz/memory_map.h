// Holds the memory of one fuzzed call. A target declares each array of the parameter struct with the extent that the operation's header
// states; the map allocates exactly that many bytes, so that AddressSanitizer sees every read past them, and poisons the bytes between rows
// that no array claims. Where the case is hostile, arrays are null, misaligned, or placed over one another. After the call it checks that
// nothing has changed that was not permitted, nothing at all after an error, and that what the contract forbids for every operation (an
// output that overlaps something, a misaligned or missing array) has been refused.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <prologue/kernels/base/shared/any_type.h>
#include <prologue/kernels/base/status.h>

#include "tests/fuzz/choices.h"

namespace prologue::fuzz {

// Rows of `width` bytes, repeated in up to four dimensions; strides in bytes.
struct Extent {
  struct Dim {
    int64_t count = 1;
    int64_t stride = 0;
  };
  int64_t width = 0;
  int64_t alignment = 1;
  Dim dims[4] = {};

  bool empty() const;
  // Counts from the first byte to past the last. It is negative if no memory can have it (a stride is negative, or it leaves 2^60).
  int64_t bytes() const;
};

Extent dense(int64_t count, int64_t element_size);
// Strides and dim in elements of `bits`.
Extent rows(int64_t num_rows, int64_t row_stride, int64_t dim, int64_t bits);
Extent heads(int64_t num_tokens, int64_t token_stride, int64_t num_heads, int64_t head_stride, int64_t dim, int64_t bits);

enum class Use { read, write };

class MemoryMap {
 public:
  explicit MemoryMap(Choices& choices) : choices_(choices) {}
  ~MemoryMap();
  MemoryMap(const MemoryMap&) = delete;
  MemoryMap& operator=(const MemoryMap&) = delete;

  // Declares an array; the pointer is set by allocate(). An empty extent gets any pointer: it must not be looked at.
  template <class P>
  int array(const char* name, P*& pointer, const Extent& extent, Use use, DType contents = DType::f32) {
    return declare(
        {name, extent, use, contents, &pointer, [](void* to, void* at) { *static_cast<P**>(to) = static_cast<P*>(at); }});
  }
  // Declares an array that the contract allows to be null.
  template <class P>
  int optional(const char* name, P*& pointer, const Extent& extent, Use use, DType contents = DType::f32) {
    const int index = array(name, pointer, extent, use, contents);
    requests_.back().may_be_null = true;
    return index;
  }
  // Other arrays are declared for a call that has this one: it is never null.
  void never_null(int array) { requests_[static_cast<size_t>(array)].never_null = true; }
  // Puts the array into the memory of one declared before, `offset` bytes after its first byte: columns of one buffer.
  void place(int array, int in, int64_t offset) { requests_[static_cast<size_t>(array)].place = {in, offset}; }
  // The contract allows the output to be the input itself, all strides being equal; `here`: it is. There may be several such inputs.
  void in_place(int output, int input, bool here) {
    if (here) place(output, input, 0);
    requests_[static_cast<size_t>(output)].in_place_of.push_back(input);
  }

  // Returns false if a declared extent is too large to be real, and too small to be refused.
  [[nodiscard]] bool allocate();

  // After the contents are filled in, before the call.
  void freeze();
  void permit(const void* array, int64_t offset, int64_t num_bytes);
  // The call looks at no array, or not at all of them: none need be refused.
  void forgive() { forbidden_.clear(); }
  // Stops the program with a sentence where the call broke the contract.
  void check(const Status& status);

 private:
  struct Place {
    int in = -1;
    int64_t offset = 0;
  };
  struct Request {
    const char* name;
    Extent extent;
    Use use;
    DType contents;
    void* pointer;
    void (*set)(void* to, void* at);
    bool may_be_null = false;
    bool never_null = false;
    Place place = {};
    std::vector<int> in_place_of = {};
    bool null = false;
    int64_t misalignment = 0;
    // Says where the array is.
    int block = -1;
    int64_t offset = 0;
  };
  struct Block {
    std::byte* memory = nullptr;
    int64_t size = 0;
    std::vector<std::byte> before;
    std::vector<bool> permitted;
  };

  int declare(Request request);
  static bool same_rows(const Request& a, const Request& b);
  void fill(const Request& request);
  void find_forbidden();
  void poison_gaps(bool on);

  Choices& choices_;
  std::vector<Request> requests_;
  std::vector<Block> blocks_;
  std::vector<std::vector<uint8_t>> claimed_;  // by block: whether an array has the byte
  std::string forbidden_;                      // why the call must be refused; empty: it need not be
};

// Prints and stops, so that the fuzzer keeps the input.
[[noreturn]] void fail(const std::string& sentence);

// Counts what was accepted and what was refused, and says so when the program ends.
class Tally {
 public:
  explicit Tally(const char* target) : target_(target) {}
  ~Tally();
  void count(bool accepted) { ++(accepted ? accepted_ : refused_); }

 private:
  const char* target_;
  int64_t accepted_ = 0;
  int64_t refused_ = 0;
};

}  // namespace prologue::fuzz
