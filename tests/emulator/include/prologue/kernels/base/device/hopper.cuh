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
  static uint16_t at(uint32_t address) {
    return *reinterpret_cast<const uint16_t*>(emulator::dynamic_shared + swizzled(address));
  }
  // Its rows are m or n.
  uint16_t of_rows(int row, int k) const {
    if (first % 128 + 32 > 128) emulator::fail("multiplies a matrix that reaches beyond its row");
    return at(first + static_cast<uint32_t>(row / 8) * stride + static_cast<uint32_t>(row % 8 * 128 + k * 2));
  }
  // Its rows are k.
  uint16_t of_columns(int n, int k) const {
    if (first % 1024 != 0) emulator::fail("multiplies a transposed matrix that does not begin a swizzle");
    return at(first + static_cast<uint32_t>(n / 64) * leading + static_cast<uint32_t>(k / 8) * stride +
              static_cast<uint32_t>(k % 8 * 128 + n % 64 * 2));
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
  std::vector<float> saved = {};      // what d held; empty: another one in flight adds to it
  std::vector<float> decoded_b = {};  // [k, n], by the first thread that needs it
  std::vector<float> decoded_a = {};  // [m, k]
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

// Computes what this thread holds of the product. `all`: of the warpgroup, its own among them.
inline void multiply(Multiplication& m, const std::array<Multiplication*, kWarpgroup>& all) {
  const auto number = [&](uint16_t bits) { return m.bfloat16 ? __bfloat162float({bits}) : __half2float({bits}); };
  Multiplication& shared = *all[0];
  for (const Multiplication* other : all) {
    if (other->b_descriptor != m.b_descriptor || other->a_descriptor != m.a_descriptor || other->columns != m.columns ||
        other->own_rows != m.own_rows || other->add != m.add) {
      emulator::fail("multiplies something else than other threads of its warpgroup");
    }
  }
  if (shared.decoded_b.empty()) {
    const Matrix b(m.b_descriptor);
    for (int k = 0; k < 16; ++k) {
      for (int n = 0; n < m.columns; ++n) {
        shared.decoded_b.push_back(number(m.own_rows ? b.of_columns(n, k) : b.of_rows(n, k)));
      }
    }
    for (int row = 0; row < 64; ++row) {
      for (int k = 0; k < 16; ++k) {
        if (m.a == nullptr) {
          shared.decoded_a.push_back(number(Matrix(m.a_descriptor).of_rows(row, k)));
        } else {
          const uint32_t pair = all[static_cast<size_t>(row / 16 * 32 + row % 8 * 4 + k % 8 / 2)]->a[row % 16 / 8 + k / 8 * 2];
          shared.decoded_a.push_back(number(static_cast<uint16_t>(k % 2 == 0 ? pair : pair >> 16)));
        }
      }
    }
  }
  const int in_group = emulator::thread->number % kWarpgroup;
  const int lane = in_group % 32;
  const int first_row = in_group / 32 * 16 + lane / 4;
  for (int i = 0; i < m.columns / 2; ++i) {
    const int row = first_row + i / 2 % 2 * 8, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
    float sum = m.add ? m.d[i] : 0.0f;
    const float* a = &shared.decoded_a[static_cast<size_t>(row * 16)];
    const float* b = &shared.decoded_b[static_cast<size_t>(column)];
    double products = sum;
    for (int k = 0; k < 16; ++k) products += static_cast<double>(a[k]) * static_cast<double>(b[k * m.columns]);
    m.d[i] = static_cast<float>(products);
  }
}

// Does everything of the groups that are not among the last kPending.
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
  const int first = emulator::thread->number / kWarpgroup * kWarpgroup;
  size_t ending = 0;
  while (ending < self.issued.size() && self.issued[ending].group <= self.groups - kPending) ++ending;
  for (size_t i = 0; i < ending; ++i) {
    Multiplication& m = self.issued[i];
    std::array<Multiplication*, kWarpgroup> all;
    for (int t = 0; t < kWarpgroup; ++t) {
      auto& theirs = multiplying_thread(first + t).issued;
      if (theirs.size() != self.issued.size()) emulator::fail("waits for other multiplications than threads of its warpgroup");
      all[static_cast<size_t>(t)] = &theirs[i];
    }
    if (!m.saved.empty()) {
      for (size_t n = 0; n < m.saved.size(); ++n) {
        if (!std::isnan(m.d[n])) emulator::fail("writes a register that a multiplication is adding to");
        m.d[n] = m.saved[n];
      }
    }
    multiply(m, all);
  }
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
  sync_warpgroup();
  self.issued.erase(self.issued.begin(), self.issued.begin() + static_cast<std::ptrdiff_t>(ending));
  sync_warpgroup();
}

template <class Word, int kCount>
void keep_in_order(Word (&)[kCount]) {}

}  // namespace prologue::cuda
