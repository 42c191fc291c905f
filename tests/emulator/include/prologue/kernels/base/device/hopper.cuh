// This file has the instructions of kernels/base/device/hopper.cuh on the CPU, from their descriptions in the PTX manual. Each says what is
// wrong with its use, as far as it can see that:
//   TMA     copies at once, into the addresses that the swizzle gives
//   wgmma   does nothing before its group is waited for. Then it reads its operands, so an operand that was changed too early gives
//           wrong results. Until then the registers that it adds to hold NaN
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <vector>

#define PROLOGUE_HOPPER 1

namespace prologue::cuda {

inline constexpr int kWarpgroup = 128;

template <class T>
T* swizzled_dynamic_shared() {
  return reinterpret_cast<T*>(emulator::dynamic_shared);
}

inline uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(static_cast<const unsigned char*>(p) - emulator::dynamic_shared);
}

// ---- barriers

struct Barrier {
  static constexpr unsigned kMark = 0x5a;  // other bits: it was not initialised
  unsigned mark : 8;
  unsigned phase : 1;  // the parity of the one that is running
  unsigned arrivals : 11;
  unsigned pending : 12;
  int bytes;  // that are expected and have not come

  void init(int count) {
    if (count < 1 || count > 2047) emulator::fail("a barrier for so many threads");
    *this = {kMark, 0, static_cast<unsigned>(count), static_cast<unsigned>(count), 0};
  }
  void arrive() { arrive_and_expect(0); }
  void arrive_and_expect(int expected) {
    check();
    if (pending == 0) emulator::fail("arrives at a barrier where everybody has arrived");
    bytes += expected;
    --pending;
    end_phase();
  }
  void arrive_at(uint32_t rank) { static_cast<Barrier*>(emulator::in_block_of_cluster(this, rank))->arrive(); }
  void copied(int count) {
    check();
    bytes -= count;
    end_phase();
  }
  void wait(unsigned parity) {
    check();
    if (parity > 1) emulator::fail("waits for a parity that is neither 0 nor 1");
    emulator::wait_until([&] { return phase != parity; });
  }

 private:
  void check() const {
    if (mark != kMark) emulator::fail("uses a barrier that is not initialised");
  }
  void end_phase() {
    emulator::progress();
    if (pending != 0 || bytes != 0) return;
    phase ^= 1;
    pending = arrivals;
  }
};
static_assert(sizeof(Barrier) == 8);

inline void fence_barrier_init() {}
inline void fence_shared_for_async() {}
inline void sync_barrier(int id, int threads) { emulator::sync_named(id, threads); }
inline void arrive_barrier(int id, int threads) { emulator::arrive_named(id, threads); }

template <int kRegisters>
void release_registers() {
  static_assert(kRegisters % 8 == 0 && kRegisters >= 24 && kRegisters <= 256);
}
template <int kRegisters>
void claim_registers() {
  static_assert(kRegisters % 8 == 0 && kRegisters >= 24 && kRegisters <= 256);
}

// ---- TMA

inline void prefetch_map(const CUtensorMap&) {}

// A row has 128 bytes. The chunks of 16 bytes are exchanged by the bits of the address above them.
inline uint32_t swizzled(uint32_t address) { return address ^ ((address >> 7 & 7) << 4); }

// `memory` is the dynamic shared memory of the block that receives the box; `to` is an address in this one.
inline void load_box(void* to, unsigned char* memory, const CUtensorMap& map, Barrier& barrier, const std::array<int, 5>& start,
                     unsigned rank) {
  if (rank != map.rank) emulator::fail("copies a box of a tensor of another rank");
  const uint32_t first = shared_address(to);
  if (first % 1024 != 0) {  // the manual wants 128; everything here begins an atom of the swizzle or is 8 rows further
    emulator::fail("copies a box to an address that is no multiple of 1024");
  }
  int rows = 1;
  for (unsigned i = 1; i < rank; ++i) rows *= static_cast<int>(map.box[i]);
  for (int row = 0; row < rows; ++row) {
    bool inside = true;
    uint64_t address = map.data;
    int rest = row;
    for (unsigned i = 1; i < rank; ++i) {
      const int64_t at = int64_t{start[i]} + rest % static_cast<int>(map.box[i]);
      rest /= static_cast<int>(map.box[i]);
      inside = inside && at >= 0 && at < static_cast<int64_t>(map.sizes[i]);
      if (inside) address += static_cast<uint64_t>(at) * map.strides[i - 1];
    }
    for (int c = 0; c < 64; ++c) {
      const int64_t channel = int64_t{start[0]} + c;
      uint16_t element = 0;
      if (inside && channel >= 0 && channel < static_cast<int64_t>(map.sizes[0])) {
        element = reinterpret_cast<const uint16_t*>(address)[channel];
      }
      const uint32_t place = swizzled(first + static_cast<uint32_t>(row * 128 + c * 2));
      *reinterpret_cast<uint16_t*>(memory + place) = element;
    }
  }
  barrier.copied(rows * 128);
}
inline void copy_bytes(void* to, const void* from, int bytes, Barrier& barrier) {
  if (shared_address(to) % 16 != 0 || reinterpret_cast<uintptr_t>(from) % 16 != 0 || bytes % 16 != 0 || bytes <= 0) {
    emulator::fail("copies bytes that are not whole chunks of 16");
  }
  std::memcpy(to, from, static_cast<size_t>(bytes));
  barrier.copied(bytes);
}
inline void load_box(void* to, const CUtensorMap& map, Barrier& barrier, int x, int y, int z) {
  load_box(to, emulator::dynamic_shared, map, barrier, {x, y, z}, 3);
}
inline void load_box(void* to, const CUtensorMap& map, Barrier& barrier, int x, int y, int z, int w) {
  load_box(to, emulator::dynamic_shared, map, barrier, {x, y, z, w}, 4);
}
inline void load_box(void* to, const CUtensorMap& map, Barrier& barrier, int x, int y, int z, int w, int v) {
  load_box(to, emulator::dynamic_shared, map, barrier, {x, y, z, w, v}, 5);
}
inline void load_box_into_blocks(unsigned blocks, void* to, const CUtensorMap& map, Barrier& barrier, int x, int y, int z) {
  for (uint32_t rank = 0; blocks >> rank != 0; ++rank) {
    if ((blocks >> rank & 1) == 0) continue;
    auto* const memory = static_cast<unsigned char*>(emulator::in_block_of_cluster(emulator::dynamic_shared, rank));
    load_box(to, memory, map, *static_cast<Barrier*>(emulator::in_block_of_cluster(&barrier, rank)), {x, y, z}, 3);
  }
}

// ---- wgmma

inline uint64_t matrix_descriptor(const void* first, int leading, int stride) {
  constexpr uint64_t kSwizzle128 = 1;
  const auto field = [](uint32_t bytes) { return static_cast<uint64_t>((bytes & 0x3ffff) >> 4); };
  return field(shared_address(first)) | field(static_cast<uint32_t>(leading)) << 16 | field(static_cast<uint32_t>(stride)) << 32 |
         kSwizzle128 << 62;
}
inline uint64_t advance(uint64_t descriptor, int bytes) { return descriptor + static_cast<uint64_t>(bytes >> 4); }

// Holds what a descriptor says.
struct Matrix {
  uint32_t first, leading, stride;

  explicit Matrix(uint64_t descriptor)
      : first((descriptor & 0x3fff) << 4), leading((descriptor >> 16 & 0x3fff) << 4), stride((descriptor >> 32 & 0x3fff) << 4) {
    if (descriptor >> 62 != 1) emulator::fail("multiplies a matrix without the swizzle of 128 bytes");
    if ((descriptor & ~uint64_t{0xc000'3fff'3fff'3fff}) != 0)
      emulator::fail("multiplies a matrix whose descriptor has other bits");
    if (first / 128 % 8 != 0) emulator::fail("multiplies a matrix that does not begin in the first of 8 rows");
  }
  // Copies 8 neighbours, which the swizzle leaves together.
  static void copy(uint32_t address, uint16_t* to) { std::memcpy(to, emulator::dynamic_shared + swizzled(address), 16); }
  // [rows, 16]; the rows are m or n.
  void copy_rows(int rows, uint16_t* to) const {
    if (first % 128 + 32 > 128) emulator::fail("multiplies a matrix that reaches beyond its row");
    for (int row = 0; row < rows; ++row) {
      const uint32_t start = first + static_cast<uint32_t>(row / 8) * stride + static_cast<uint32_t>(row % 8 * 128);
      copy(start, to + row * 16), copy(start + 16, to + row * 16 + 8);
    }
  }
  // [16, columns]; the rows are k.
  void copy_columns(int columns, uint16_t* to) const {
    if (first % 1024 != 0) emulator::fail("multiplies a transposed matrix that does not begin a swizzle");
    for (int k = 0; k < 16; ++k) {
      for (int n = 0; n < columns; n += 8) {
        copy(first + static_cast<uint32_t>(n / 64) * leading + static_cast<uint32_t>(k / 8) * stride +
                 static_cast<uint32_t>(k % 8 * 128 + n % 64 * 2),
             to + k * columns + n);
      }
    }
  }
};

// Describes a multiplication that a thread has issued. All threads of the warpgroup issue the same ones.
struct Multiplication {
  bool bfloat16;
  int columns;
  bool add;
  uint64_t a_descriptor;  // 0: in registers
  const uint32_t* a;      // of this thread
  uint64_t b_descriptor;
  bool own_rows;  // of b, not of its transpose
  float* d;       // of this thread
  int group = 0;  // 0: in none yet
  std::vector<float> saved = {};  // what d held; empty: another one in flight adds to it
};
struct MultiplyingThread {
  std::deque<Multiplication> issued;
  int groups = 0;
};
inline std::array<MultiplyingThread, 8 * 1024> multiplying;  // of the blocks of a cluster

inline MultiplyingThread& multiplying_thread(int number) {
  return multiplying[emulator::cluster_rank() * 1024 + static_cast<size_t>(number)];
}
inline MultiplyingThread& multiplying_thread() { return multiplying_thread(emulator::thread->number); }
inline void sync_warpgroup() {  // named barriers 8 .. 15 are not used by kernels with wgmma
  emulator::sync_named(8 + emulator::thread->number / kWarpgroup, kWarpgroup);
}

inline void multiply_fence() {}
inline void multiply_commit() {
  MultiplyingThread& self = multiplying_thread();
  ++self.groups;
  for (Multiplication& m : self.issued) {
    if (m.group == 0) m.group = self.groups;
  }
}

inline void issue(Multiplication m, int count) {
  MultiplyingThread& self = multiplying_thread();
  bool in_flight = false;
  for (const Multiplication& other : self.issued) in_flight = in_flight || other.d == m.d;
  if (!in_flight) {
    m.saved.assign(m.d, m.d + count);
    std::fill(m.d, m.d + count, std::nanf(""));
  }
  self.issued.push_back(std::move(m));
}

template <class T, int kCount>
void multiply_async(float (&d)[kCount], uint64_t a, uint64_t b, bool add) {
  issue({std::is_same_v<T, __nv_bfloat16>, 2 * kCount, add, a, nullptr, b, false, d}, kCount);
}
template <class T, bool kOwnRows, int kCount>
void multiply_registers_async(float (&d)[kCount], const uint32_t (&a)[4], uint64_t b) {
  issue({std::is_same_v<T, __nv_bfloat16>, 2 * kCount, true, 0, a, b, kOwnRows, d}, kCount);
}
template <class T, int kCount>
void multiply_async(float (&d)[kCount], const uint32_t (&a)[4], uint64_t b) {
  multiply_registers_async<T, true>(d, a, b);
}

// Gives back what the registers held before, and adds the products first .. last - 1, all to the same registers. `all`: the threads of the
// warpgroup.
inline void multiply(const std::array<const std::deque<Multiplication>*, kWarpgroup>& all, size_t first, size_t last) {
  constexpr int kRows = 64, kDepth = 16, kMaxColumns = 256;
  static uint16_t bits_a[kRows * kDepth], bits_b[kDepth * kMaxColumns];
  static float numbers_a[kRows * kDepth], numbers_b[kDepth * kMaxColumns], sums[kRows * kMaxColumns];
  const int columns = (*all[0])[first].columns;
  const auto row_of = [](int t) { return t / 32 * 16 + t % 32 / 4; };  // of a thread's first registers
  // Calls use(the register, its place in sums) for two neighbours at a time.
  const auto for_each_pair = [&](int t, const auto& use) {
    float* const d = (*all[static_cast<size_t>(t)])[first].d;
    float* const row = sums + row_of(t) * columns + t % 4 * 2;
    for (int i = 0; i < columns / 8; ++i) use(d + 4 * i, row + 8 * i), use(d + 4 * i + 2, row + 8 * columns + 8 * i);
  };
  for (int t = 0; t < kWarpgroup; ++t) {
    const Multiplication& theirs = (*all[static_cast<size_t>(t)])[first];
    for (size_t n = 0; n < theirs.saved.size(); ++n) {
      if (!std::isnan(theirs.d[n])) emulator::fail("writes a register that a multiplication is adding to");
      theirs.d[n] = theirs.saved[n];
    }
    for_each_pair(t, [](const float* d, float* sum) { sum[0] = d[0], sum[1] = d[1]; });
  }
  for (size_t step = first; step < last; ++step) {
    const Multiplication& m = (*all[0])[step];
    for (int t = 0; t < kWarpgroup; ++t) {
      const Multiplication& theirs = (*all[static_cast<size_t>(t)])[step];
      if (theirs.b_descriptor != m.b_descriptor || theirs.a_descriptor != m.a_descriptor || theirs.columns != columns ||
          theirs.own_rows != m.own_rows || theirs.add != m.add) {
        emulator::fail("multiplies something else than other threads of its warpgroup");
      }
      for (int i = 0; m.a != nullptr && i < 4; ++i) {
        uint16_t* const pair = bits_a + (row_of(t) + i % 2 * 8) * kDepth + t % 4 * 2 + i / 2 * 8;
        pair[0] = static_cast<uint16_t>(theirs.a[i]), pair[1] = static_cast<uint16_t>(theirs.a[i] >> 16);
      }
    }
    if (m.a == nullptr) Matrix(m.a_descriptor).copy_rows(kRows, bits_a);
    if (m.own_rows) {
      Matrix(m.b_descriptor).copy_columns(columns, bits_b);
    } else {
      uint16_t transposed[kMaxColumns * kDepth];
      Matrix(m.b_descriptor).copy_rows(columns, transposed);
      for (int n = 0; n < columns; ++n) {
        for (int k = 0; k < kDepth; ++k) bits_b[k * columns + n] = transposed[n * kDepth + k];
      }
    }
    if (!m.add) std::fill(sums, sums + kRows * columns, 0.0f);
    emulator::widen(m.bfloat16, bits_a, kRows * kDepth, numbers_a);
    emulator::widen(m.bfloat16, bits_b, kDepth * columns, numbers_b);
    emulator::multiply_matrices(kRows, columns, numbers_a, numbers_b, sums);
  }
  for (int t = 0; t < kWarpgroup; ++t) {
    for_each_pair(t, [](float* d, const float* sum) { d[0] = sum[0], d[1] = sum[1]; });
  }
}

// Does everything of the groups that are not among the last kPending. One thread computes for its warpgroup.
template <int kPending>
void multiply_wait() {
  MultiplyingThread& self = multiplying_thread();
  for (const Multiplication& m : self.issued) {
    if (m.group == 0) emulator::fail("waits for a multiplication that is in no group");
  }
  sync_warpgroup();
  for (int rounds = 0; rounds < 3; ++rounds) {  // who was told too early that the operands are no longer needed overwrites them now
    emulator::progress();
    emulator::let_others_run();
  }
  size_t ending = 0;
  while (ending < self.issued.size() && self.issued[ending].group <= self.groups - kPending) ++ending;
  if (emulator::thread->number % kWarpgroup == 0) {
    std::array<const std::deque<Multiplication>*, kWarpgroup> all;
    for (int t = 0; t < kWarpgroup; ++t) {
      const auto& theirs = multiplying_thread(emulator::thread->number + t).issued;
      if (theirs.size() != self.issued.size()) emulator::fail("waits for other multiplications than threads of its warpgroup");
      all[static_cast<size_t>(t)] = &theirs;
    }
    for (size_t i = 0, next = 0; i < ending; i = next) {
      while (next < ending && self.issued[next].d == self.issued[i].d) ++next;
      multiply(all, i, next);
    }
  }
  sync_warpgroup();
  // Multiplications in flight continue to add to what has ended.
  for (size_t i = ending; i < self.issued.size(); ++i) {
    Multiplication& m = self.issued[i];
    const auto same = [&](const Multiplication& other) { return other.d == m.d; };
    const auto pending = self.issued.begin() + static_cast<std::ptrdiff_t>(ending);
    const auto here = self.issued.begin() + static_cast<std::ptrdiff_t>(i);
    if (std::none_of(self.issued.begin(), pending, same) || std::any_of(pending, here, same)) continue;
    const auto count = static_cast<size_t>(m.columns / 2);
    m.saved.assign(m.d, m.d + count);
    std::fill(m.d, m.d + count, std::nanf(""));
  }
  self.issued.erase(self.issued.begin(), self.issued.begin() + static_cast<std::ptrdiff_t>(ending));
}

template <class Word, int kCount>
void keep_in_order(Word (&)[kCount]) {}

}  // namespace prologue::cuda
