// This file has the instructions of kernels/base/device/instructions.cuh on the CPU, from their descriptions in the PTX manual.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

namespace prologue::cuda {

template <class T>
T* dynamic_shared() {
  return reinterpret_cast<T*>(emulator::dynamic_shared);
}

inline float larger_magnitude(float x, float y) {
  if (std::isnan(x) || std::isnan(y)) return __uint_as_float(0x7fffffff);
  return std::fmax(std::fabs(x), std::fabs(y));
}

inline void load_kept(const void* from, uint32_t (&words)[4]) {
  const uint4 word = *static_cast<const uint4*>(from);
  words[0] = word.x, words[1] = word.y, words[2] = word.z, words[3] = word.w;
}

inline uint4 load_once(const void* from) { return *static_cast<const uint4*>(from); }

inline uint32_t count_arrival(uint32_t* counter) { return (*counter)++; }

inline void require_line(const void* address) {
  if (reinterpret_cast<uintptr_t>(address) % 16 != 0)
    emulator::fail("loads or stores 16 bytes at an address that is not aligned");
}
inline uint4 load_line(const uint4* from) {
  require_line(from);
  return *from;
}
inline void store_line(uint4* to, const uint4& line) {
  require_line(to);
  *to = line;
}
inline uint32_t load_word(const uint32_t* from) { return __atomic_load_n(from, __ATOMIC_RELAXED); }
inline void store_word(uint32_t* to, uint32_t word) { __atomic_store_n(to, word, __ATOMIC_RELAXED); }
inline void fence_for_all_gpus() { __atomic_thread_fence(__ATOMIC_ACQ_REL); }
inline void store_global(void* to, const uint4& words) { store_line(static_cast<uint4*>(to), words); }
inline void let_other_gpus_run() { emulator::let_other_grids_run(); }
inline uint64_t nanoseconds() { return emulator::nanoseconds(); }

inline void prefetch_line(const void* in) {
  static_cast<void>(*static_cast<const volatile char*>(in));  // so sanitizers see an address that is not there
}

inline void copy_or_clear(void* to, const void* from, bool there) {
  if (there) {
    std::memcpy(to, from, 16);
  } else {
    std::memset(to, 0, 16);
  }
}

inline float exp2_approximate(float x) {
  const float result = std::exp2(x);
  return result < 0x1p-126f ? 0.0f : result;
}
inline uint32_t halves_of_e4m3(uint32_t word, int half) {
  const __half2_raw pair = __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(word >> (16 * half)), __NV_E4M3);
  return pair.x | static_cast<uint32_t>(pair.y) << 16;
}

inline void wait_for_previous_kernels() {}
inline void let_next_kernel_start() {}
inline uint32_t cluster_rank() { return emulator::cluster_rank(); }
inline void arrive_at_cluster() { emulator::arrive_at_cluster(); }
inline void wait_for_cluster() { emulator::wait_for_cluster(); }

inline void sync_cluster() {
  emulator::arrive_at_cluster();
  emulator::wait_for_cluster();
}
template <class T>
T* in_block_of_cluster(T* shared, uint32_t rank) {
  return static_cast<T*>(emulator::in_block_of_cluster(shared, rank));
}

class Arrivals {
 public:
  void open(uint32_t num_bytes) { missing_ = num_bytes; }
  void store(uint32_t rank, float* to, const float4& values) { store_bytes(rank, to, &values, sizeof values); }
  void store(uint32_t rank, void* to, const uint4& words) { store_bytes(rank, to, &words, sizeof words); }
  void store(uint32_t rank, float* to, float value) { store_bytes(rank, to, &value, sizeof value); }
  void wait() {
    emulator::wait_until([&] { return missing_ == 0; });
  }

 private:
  void store_bytes(uint32_t rank, void* to, const void* from, size_t num_bytes) {
    if (reinterpret_cast<uintptr_t>(to) % num_bytes != 0)
      emulator::fail("stores in another block at an address that is not aligned");
    std::memcpy(emulator::in_block_of_cluster(to, rank), from, num_bytes);
    auto& there = *static_cast<Arrivals*>(emulator::in_block_of_cluster(this, rank));
    there.missing_ -= static_cast<int64_t>(num_bytes);
    emulator::progress();
    if (there.missing_ < 0) emulator::fail("stores more in another block than that block expects");
  }
  int64_t missing_;
};

// ldmatrix: a lane has elements 2 * (lane % 4) and the next of row lane / 4. With .trans rows and columns are exchanged.
struct LaneOfLoad {
  const void* row;
  uint32_t out[4];
  bool done;
};
inline void load_matrices(uint32_t (&out)[4], const void* row) {
  LaneOfLoad mine = {row, {}, false};
  emulator::together(0xffffffffu, mine, [](LaneOfLoad* const* lanes) {
    for (int lane = 0; lane < 32; ++lane) {
      for (int matrix = 0; matrix < 4; ++matrix) {
        lanes[lane]->out[matrix] = static_cast<const uint32_t*>(lanes[8 * matrix + lane / 4]->row)[lane % 4];
      }
    }
  });
  std::memcpy(out, mine.out, sizeof out);
}
inline void load_matrices_transposed(uint32_t (&out)[4], const void* row) {
  LaneOfLoad mine = {row, {}, false};
  emulator::together(0xffffffffu, mine, [](LaneOfLoad* const* lanes) {
    for (int lane = 0; lane < 32; ++lane) {
      for (int matrix = 0; matrix < 4; ++matrix) {
        const auto element = [&](int r) { return static_cast<const uint16_t*>(lanes[8 * matrix + r]->row)[lane / 4]; };
        lanes[lane]->out[matrix] = element(2 * (lane % 4)) | static_cast<uint32_t>(element(2 * (lane % 4) + 1)) << 16;
      }
    }
  });
  std::memcpy(out, mine.out, sizeof out);
}

// movmatrix
inline uint32_t transpose_matrix(uint32_t pair) {
  struct Lane {
    uint32_t pair, result;
    bool done;
  } mine = {pair, 0, false};
  emulator::together(0xffffffffu, mine, [](Lane* const* lanes) {
    const auto element = [&](int row, int column) { return lanes[4 * row + column / 2]->pair >> (column % 2 * 16) & 0xffffu; };
    for (int lane = 0; lane < 32; ++lane) {
      const int row = lane / 4, column = 2 * (lane % 4);
      lanes[lane]->result = element(column, row) | element(column + 1, row) << 16;
    }
  });
  return mine.result;
}

inline uint32_t subtract_halves(uint32_t x, uint32_t y) {
  const auto half = [](uint32_t pair, int i) { return __half2float({static_cast<uint16_t>(pair >> (16 * i))}); };
  const __half2 difference = __floats2half2_rn(half(x, 0) - half(y, 0), half(x, 1) - half(y, 1));
  return difference.x.bits | static_cast<uint32_t>(difference.y.bits) << 16;
}

inline uint32_t multiply_add_halves(uint32_t x, uint32_t y, uint32_t z) {
  const auto half = [](uint32_t pair, int i) {
    return static_cast<double>(__half2float({static_cast<uint16_t>(pair >> (16 * i))}));
  };
  const auto sum = [&](int i) { return static_cast<float>(half(x, i) * half(y, i) + half(z, i)); };  // exact in double
  const __half2 result = __floats2half2_rn(sum(0), sum(1));
  return result.x.bits | static_cast<uint32_t>(result.y.bits) << 16;
}

// Rounds to float32 before it rounds to bfloat16, where the GPU rounds once: so it may differ if z is far below x * y.
template <class T>
uint32_t multiply_add_pairs(uint32_t x, uint32_t y, uint32_t z) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    const auto value = [](uint32_t pair, int i) {
      return static_cast<double>(__bfloat162float({static_cast<uint16_t>(pair >> (16 * i))}));
    };
    const auto sum = [&](int i) { return static_cast<float>(value(x, i) * value(y, i) + value(z, i)); };
    const __nv_bfloat162 result = __floats2bfloat162_rn(sum(0), sum(1));
    return result.x.bits | static_cast<uint32_t>(result.y.bits) << 16;
  } else {
    return multiply_add_halves(x, y, z);
  }
}
template <class T>
uint32_t multiply_pairs(uint32_t x, uint32_t y) {
  return multiply_add_pairs<T>(x, y, 0x80008000u);
}
template <class T>
uint32_t subtract_pairs(uint32_t x, uint32_t y) {
  return std::is_same_v<T, __nv_bfloat16> ? multiply_add_pairs<T>(y, 0xbf80bf80u, x) : subtract_halves(x, y);
}

inline uint32_t lower_twice(uint32_t pair) { return (pair & 0xffffu) * 0x10001u; }
inline uint32_t upper_twice(uint32_t pair) { return (pair >> 16) * 0x10001u; }

inline uint32_t and_or(uint32_t x, uint32_t y, uint32_t z) { return (x & y) | z; }
inline uint32_t and_xor(uint32_t x, uint32_t y, uint32_t z) { return (x & y) ^ z; }

// mma.m16n8k16
template <class T>
void multiply_matrices(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  emulator::LaneOfMultiplication mine = {{a[0], a[1], a[2], a[3]}, {b0, b1}, {c[0], c[1], c[2], c[3]}, false};
  emulator::together(0xffffffffu, mine, [](emulator::LaneOfMultiplication* const* lanes) {
    emulator::multiply(std::is_same_v<T, __nv_bfloat16>, lanes);
  });
  std::memcpy(c, mine.c, sizeof c);
}

template <class T>
void multiply_matrices(float (&c)[4], const uint32_t (&a)[2], uint32_t b) {
  multiply_matrices<T>(c, {a[0], a[1], 0, 0}, b, 0);
}

// mma.m16n8k32 of s8
inline void multiply_integers(int32_t (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, int32_t base) {
  emulator::LaneOfIntegers mine = {{a[0], a[1], a[2], a[3]}, {b0, b1}, {base, base, base, base}, false};
  emulator::together(0xffffffffu, mine, [](emulator::LaneOfIntegers* const* lanes) { emulator::multiply_integers(lanes); });
  std::memcpy(d, mine.c, sizeof d);
}
inline void multiply_integers(int32_t (&d)[4], const uint32_t (&a)[2], uint32_t b, int32_t base) {
  multiply_integers(d, {a[0], a[1], 0, 0}, b, 0, base);
}

}  // namespace prologue::cuda
