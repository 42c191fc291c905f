#include "tests/fuzz/memory_map.h"

#include <sanitizer/asan_interface.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace prologue::fuzz {

namespace {

constexpr int64_t kLargest = int64_t{1} << 20;  // bytes that one array may have here
constexpr int64_t kMostRows = int64_t{1} << 16;

int64_t num_rows(const Extent& e) {
  return times(times(e.dims[0].count, e.dims[1].count), times(e.dims[2].count, e.dims[3].count));
}

template <class F>
void for_each_row(const Extent& e, F f) {
  for (int64_t a = 0; a < e.dims[0].count; ++a)
    for (int64_t b = 0; b < e.dims[1].count; ++b)
      for (int64_t c = 0; c < e.dims[2].count; ++c)
        for (int64_t d = 0; d < e.dims[3].count; ++d)
          f(a * e.dims[0].stride + b * e.dims[1].stride + c * e.dims[2].stride + d * e.dims[3].stride);
}

}  // namespace

void fail(const std::string& sentence) {
  std::fprintf(stderr, "\ncontract broken: %s\n", sentence.c_str());
  std::abort();
}

Tally::~Tally() {
  if (accepted_ + refused_ > 0)
    std::fprintf(stderr, "%s: %lld accepted, %lld refused\n", target_, static_cast<long long>(accepted_),
                 static_cast<long long>(refused_));
}

bool Extent::empty() const {
  return width <= 0 || std::any_of(std::begin(dims), std::end(dims), [](const Dim& dim) { return dim.count <= 0; });
}

int64_t Extent::bytes() const {
  if (empty()) return 0;
  if (width > (int64_t{1} << 60)) return -1;
  __int128 total = width;
  for (const Dim& dim : dims) {
    if (dim.count == 1) continue;
    if (dim.stride < 0) return -1;
    total += static_cast<__int128>(dim.count - 1) * dim.stride;
    if (total > (__int128{1} << 60)) return -1;
  }
  return static_cast<int64_t>(total);
}

Extent dense(int64_t count, int64_t element_size) { return {times(count, element_size), element_size, {}}; }

Extent rows(int64_t num_rows, int64_t row_stride, int64_t dim, int64_t bits) {
  return heads(num_rows, row_stride, 1, 0, dim, bits);
}

Extent heads(int64_t num_tokens, int64_t token_stride, int64_t num_heads, int64_t head_stride, int64_t dim, int64_t bits) {
  return {times(dim, bits) / 8,
          std::max<int64_t>(bits / 8, 1),
          {{num_tokens, times(token_stride, bits) / 8}, {num_heads, times(head_stride, bits) / 8}}};
}

int MemoryMap::declare(Request request) {
  requests_.push_back(request);
  return static_cast<int>(requests_.size()) - 1;
}

MemoryMap::~MemoryMap() {
  poison_gaps(false);
  for (const Block& block : blocks_) std::free(block.memory);
}

bool MemoryMap::allocate() {
  for (size_t i = 0; i < requests_.size(); ++i) {
    Request& r = requests_[i];
    const int64_t bytes = r.extent.bytes();
    if (bytes > kLargest || (bytes > 0 && num_rows(r.extent) > kMostRows)) return false;
    if (bytes <= 0) {
      if (bytes < 0) forbidden_ = str_cat(r.name, " has an extent that no memory has");
      continue;
    }
    if (choices_.hostile()) {  // over another array: at its begin, or anywhere
      const auto other = static_cast<int>(choices_.integer(0, static_cast<int64_t>(requests_.size()) - 1));
      if (static_cast<size_t>(other) < i && requests_[static_cast<size_t>(other)].block >= 0) {
        const int64_t there = requests_[static_cast<size_t>(other)].extent.bytes();
        r.place = {other, choices_.chance(2) ? 0 : choices_.integer(0, there - 1) / r.extent.alignment * r.extent.alignment};
      }
    } else if (!r.never_null && choices_.hostile()) {
      r.null = true;
      continue;
    } else if (choices_.hostile() && r.extent.alignment > 1) {
      r.misalignment = choices_.integer(1, r.extent.alignment - 1);
    }
    const bool joins = r.place.in >= 0 && requests_[static_cast<size_t>(r.place.in)].block >= 0;
    if (joins) {
      const Request& other = requests_[static_cast<size_t>(r.place.in)];
      r.block = other.block;
      r.offset = other.offset + r.place.offset;
    } else {
      r.block = static_cast<int>(blocks_.size());
      blocks_.emplace_back();
    }
    r.offset += r.misalignment;
    blocks_[static_cast<size_t>(r.block)].size = std::max(blocks_[static_cast<size_t>(r.block)].size, r.offset + bytes);
  }
  for (Block& block : blocks_) block.memory = static_cast<std::byte*>(std::malloc(static_cast<size_t>(block.size)));
  for (const Request& r : requests_) {
    // What must not be looked at lies at an address that no program has.
    void* at = reinterpret_cast<void*>(uintptr_t{64});
    if (r.block >= 0) at = blocks_[static_cast<size_t>(r.block)].memory + r.offset;
    if (r.null || (r.extent.empty() && !r.may_be_null && choices_.chance(2))) at = nullptr;
    r.set(r.pointer, at);
    if (r.null && !r.may_be_null) forbidden_ = str_cat(r.name, " is null");
    const int64_t alignment = r.extent.alignment;
    if (r.block >= 0 && reinterpret_cast<uintptr_t>(at) % static_cast<uintptr_t>(alignment) != 0)
      forbidden_ = str_cat(r.name, " is not aligned to ", alignment, " bytes");
    if (r.block >= 0) fill(r);
  }
  find_forbidden();
  for (const Request& r : requests_)
    if (r.null && r.may_be_null) forgive();  // what goes with it is not looked at either
  return true;
}

// Floats near 1 mostly, so that sums stay finite; now and then any bits at all.
void MemoryMap::fill(const Request& r) {
  const bool any = choices_.chance(8);
  uint64_t keep = ~uint64_t{0}, set = 0;
  switch (r.contents) {
    case DType::f32: keep = 0x80ffffff80ffffff, set = 0x3f0000003f000000; break;
    case DType::f16: keep = 0x83ff83ff83ff83ff, set = 0x3800380038003800; break;
    case DType::bf16: keep = 0x80ff80ff80ff80ff, set = 0x3f003f003f003f00; break;
    case DType::f64: keep = 0x800fffffffffffff, set = 0x3fe0000000000000; break;
    default: break;  // any bits
  }
  std::byte* at = blocks_[static_cast<size_t>(r.block)].memory + r.offset;
  for (int64_t left = r.extent.bytes(); left > 0; left -= 8, at += 8) {
    const uint64_t word = any ? choices_.random() : (choices_.random() & keep) | set;
    std::memcpy(at, &word, static_cast<size_t>(std::min<int64_t>(left, 8)));
  }
}

// Alike but for strides that repeat nothing.
bool MemoryMap::same_rows(const Request& a, const Request& b) {
  for (int i = 0; i < 4; ++i) {
    if (a.extent.dims[i].count != b.extent.dims[i].count) return false;
    if (a.extent.dims[i].count > 1 && a.extent.dims[i].stride != b.extent.dims[i].stride) return false;
  }
  return a.offset == b.offset && a.extent.width == b.extent.width;
}

// Two arrays have a byte in common and one of them is written, or an output has one twice.
void MemoryMap::find_forbidden() {
  claimed_.resize(blocks_.size());
  for (size_t i = 0; i < blocks_.size(); ++i) claimed_[i].assign(static_cast<size_t>(blocks_[i].size), 0);
  for (const Request& w : requests_) {
    if (w.block < 0) continue;
    std::vector<uint8_t>& claimed = claimed_[static_cast<size_t>(w.block)];
    for_each_row(w.extent,
                 [&](int64_t at) { std::memset(claimed.data() + w.offset + at, 1, static_cast<size_t>(w.extent.width)); });
  }
  std::vector<uint8_t> written;
  for (const Request& w : requests_) {
    if (w.block < 0 || w.use != Use::write) continue;
    written.assign(static_cast<size_t>(blocks_[static_cast<size_t>(w.block)].size), 0);
    for_each_row(w.extent, [&](int64_t at) {
      uint8_t* row = written.data() + w.offset + at;
      if (std::find(row, row + w.extent.width, 1) != row + w.extent.width) forbidden_ = str_cat("rows of ", w.name, " overlap");
      std::memset(row, 1, static_cast<size_t>(w.extent.width));
    });
    for (const Request& other : requests_) {
      if (&other == &w || other.block != w.block) continue;
      const bool may_be_in_place = std::any_of(w.in_place_of.begin(), w.in_place_of.end(),
                                               [&](int input) { return &other == &requests_[static_cast<size_t>(input)]; });
      if (may_be_in_place && same_rows(w, other)) continue;
      for_each_row(other.extent, [&](int64_t at) {
        const uint8_t* row = written.data() + other.offset + at;
        if (std::find(row, row + other.extent.width, 1) != row + other.extent.width)
          forbidden_ = str_cat(w.name, " overlaps ", other.name);
      });
    }
  }
}

void MemoryMap::poison_gaps(bool on) {
  for (size_t i = 0; i < blocks_.size(); ++i) {
    const Block& block = blocks_[i];
    if (!on) {
      ASAN_UNPOISON_MEMORY_REGION(block.memory, static_cast<size_t>(block.size));
      continue;
    }
    const std::vector<uint8_t>& claimed = claimed_[i];
    for (auto begin = claimed.begin(); begin != claimed.end();) {
      begin = std::find(begin, claimed.end(), 0);
      const auto end = std::find(begin, claimed.end(), 1);
      ASAN_POISON_MEMORY_REGION(block.memory + (begin - claimed.begin()), static_cast<size_t>(end - begin));
      begin = end;
    }
  }
}

void MemoryMap::freeze() {
  for (Block& block : blocks_) {
    block.before.assign(block.memory, block.memory + block.size);
    block.permitted.assign(static_cast<size_t>(block.size), false);
  }
  poison_gaps(true);
}

void MemoryMap::permit(const void* array, int64_t offset, int64_t num_bytes) {
  if (array == nullptr || offset < 0 || offset > kLargest) return;
  const auto first = reinterpret_cast<uintptr_t>(array) + static_cast<uintptr_t>(offset);
  for (Block& block : blocks_) {
    const auto begin = reinterpret_cast<uintptr_t>(block.memory);
    if (first < begin || first >= begin + static_cast<uintptr_t>(block.size)) continue;
    const auto at = static_cast<int64_t>(first - begin);
    for (int64_t i = at; i < std::min(plus(at, num_bytes), block.size); ++i) block.permitted[static_cast<size_t>(i)] = true;
  }
}

void MemoryMap::check(const Status& status) {
  poison_gaps(false);
  if (!status.ok() && (status.message().empty() || status.code() == StatusCode::ok))
    fail("an error without a sentence or a code");
  if (status.ok() && !forbidden_.empty()) fail(str_cat("accepted, although ", forbidden_));
  for (size_t i = 0; i < blocks_.size(); ++i) {
    const Block& block = blocks_[i];
    for (int64_t chunk = 0; chunk < block.size; chunk += 64) {
      const int64_t end = std::min(chunk + 64, block.size);
      if (std::memcmp(block.memory + chunk, block.before.data() + chunk, static_cast<size_t>(end - chunk)) == 0) continue;
      for (int64_t at = chunk; at < end; ++at) {
        if (block.memory[at] == block.before[static_cast<size_t>(at)]) continue;
        if (status.ok() && block.permitted[static_cast<size_t>(at)]) continue;
        std::string where;
        for (const Request& r : requests_)
          if (r.block == static_cast<int>(i) && at >= r.offset && at < r.offset + r.extent.bytes())
            where += str_cat(where.empty() ? "" : ", ", r.name, " byte ", at - r.offset);
        fail(str_cat("changed ", where, status.ok() ? ", which nothing names" : str_cat(", then refused: ", status.message())));
      }
    }
  }
}

}  // namespace prologue::fuzz
