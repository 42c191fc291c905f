// This file has what C++ cannot express: single instructions of the GPU, and the shared memory whose size a launch decides. The tests'
// emulator of CUDA (tests/emulator) has this file once more, for the CPU.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include <cstdint>
#include <type_traits>

namespace prologue::cuda {

template <class T>
__device__ inline T* dynamic_shared() {
  extern __shared__ __align__(16) unsigned char dynamic_shared_bytes[];
  return reinterpret_cast<T*>(dynamic_shared_bytes);
}

// Returns the larger of |x| and |y|, or NaN if one is NaN.
__device__ inline float larger_magnitude(float x, float y) {
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(fabsf(x)), "f"(fabsf(y)));
  return result;
}

// Loads 16 bytes that are read again and again. They leave the L2 last.
__device__ inline void load_kept(const void* from, uint32_t (&words)[4]) {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  asm volatile("ld.global.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "l"(from), "l"(policy));
}

// Loads 16 bytes that are read once, from memory that no kernel writes while this one runs.
__device__ inline uint4 load_once(const void* from) {
  uint4 word;
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(word.x), "=r"(word.y), "=r"(word.z), "=r"(word.w)
               : "l"(from));
  return word;
}

// Loads a line of 128 bytes from memory into the L2. A later load from it waits less.
__device__ inline void prefetch_line(const void* in) { asm volatile("prefetch.global.L2 [%0];" ::"l"(in)); }

// Copies 16 bytes to shared memory, asynchronously and past the L1. Writes zeros unless `there`; then `from` may be any address.
__device__ inline void copy_or_clear(void* to, const void* from, bool there) {
  asm volatile("{\n.reg .pred ignored;\nsetp.eq.u32 ignored, %2, 0;\ncp.async.cg.shared.global [%0], [%1], 16, ignored;\n}" ::"r"(
                   static_cast<uint32_t>(__cvta_generic_to_shared(to))),
               "l"(from), "r"(there ? 1 : 0)
               : "memory");
}

// Adds 1 to a counter in global memory, and returns what it was. What this thread has written or seen written (after a barrier of its
// block: what the block has) is seen by whoever counts later.
__device__ inline uint32_t count_arrival(uint32_t* counter) {
  uint32_t before;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
  return before;
}

// ---- memory that other GPUs and the host read and write while a kernel runs -----------------------------------------------------

// Loads and stores of 16 bytes, each half of which is read and written as a whole. They are not ordered with others.
__device__ inline uint4 load_line(const uint4* from) {
  uint4 line;
  asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(line.x), "=r"(line.y), "=r"(line.z), "=r"(line.w)
               : "l"(from)
               : "memory");
  return line;
}
__device__ inline void store_line(uint4* to, const uint4& line) {
  asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(line.x), "r"(line.y), "r"(line.z), "r"(line.w)
               : "memory");
}
__device__ inline uint32_t load_word(const uint32_t* from) {
  uint32_t word;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(word) : "l"(from) : "memory");
  return word;
}
__device__ inline void store_word(uint32_t* to, uint32_t word) {
  asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(to), "r"(word) : "memory");
}
// What this thread has written or seen written before, is seen by whoever sees what it writes later, on all GPUs and the host. What it reads
// later is not older than what it has seen.
__device__ inline void fence_for_all_gpus() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }
// Stores 16 bytes in the memory of whichever GPU.
__device__ inline void store_global(void* to, const uint4& words) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(words.x), "r"(words.y), "r"(words.z), "r"(words.w)
               : "memory");
}
// A loop that waits for another GPU calls it in each pass.
__device__ inline void let_other_gpus_run() {}

// Returns nanoseconds of a clock that all kernels of a GPU read.
__device__ inline uint64_t nanoseconds() {
  uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

// Returns 2^x to about 2 ulp. Results below 2^-126 are 0.
__device__ inline float exp2_approximate(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

// ---- launches that overlap (programmatic edges), clusters: from sm_90 on -------------------------------------------------------

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define PROLOGUE_FROM_SM90(...) __VA_ARGS__
#else
#define PROLOGUE_FROM_SM90(...)
#endif

// Waits until the kernels before this one in the stream are done and what they wrote can be seen. A launch without a programmatic edge has
// waited already.
__device__ inline void wait_for_previous_kernels() { PROLOGUE_FROM_SM90(asm volatile("griddepcontrol.wait;" ::: "memory")); }
// Lets the next kernel start as soon as all blocks have come here; it waits before it reads what this one writes.
__device__ inline void let_next_kernel_start() {
  PROLOGUE_FROM_SM90(asm volatile("griddepcontrol.launch_dependents;" ::: "memory"));
}

__device__ inline uint32_t cluster_rank() {
  uint32_t rank = 0;
  PROLOGUE_FROM_SM90(asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank)));
  return rank;
}

// arrive_at_cluster() and wait_for_cluster() are the barrier of a cluster: every thread arrives, then waits. It orders nothing but Arrivals
// that were opened before.
__device__ inline void arrive_at_cluster() {
  PROLOGUE_FROM_SM90(asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"));
}
__device__ inline void wait_for_cluster() {
  PROLOGUE_FROM_SM90(asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"));
}

// Makes all threads of the cluster wait for each other; what each has written before is seen by all.
__device__ inline void sync_cluster() {
  PROLOGUE_FROM_SM90(asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory"));
}
// Returns the address in block `rank` of the cluster that corresponds to `shared`, which is in this block's dynamic shared memory. The
// cluster has at least two blocks.
template <class T>
__device__ inline T* in_block_of_cluster(T* shared, uint32_t rank) {
  PROLOGUE_FROM_SM90(asm volatile("mapa.u64 %0, %1, %2;" : "=l"(shared) : "l"(shared), "r"(rank)));
  return shared;
}

// Receives what other blocks of the cluster, which has at least two, store in this block's shared memory: so many bytes, once. One thread
// opens it before the barrier of the cluster; then any thread of the cluster stores; then all that read wait.
class Arrivals {
 public:
  __device__ void open(uint32_t num_bytes) {
    PROLOGUE_FROM_SM90(
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(address(&state_))
                     : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::
                         : "memory");
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address(&state_)), "r"(num_bytes)
                     : "memory"));
  }
  // Stores to block `rank` at the address that `to` is in this block, aligned to the bytes stored. `this` is an address of this block, too.
  __device__ void store(uint32_t rank, float* to, const float4& values) {
    PROLOGUE_FROM_SM90(asm volatile(
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%2, %3, %4, %5}, [%1];" ::"r"(in_block(rank, to)),
        "r"(in_block(rank, &state_)), "f"(values.x), "f"(values.y), "f"(values.z), "f"(values.w)
        : "memory"));
  }
  __device__ void store(uint32_t rank, void* to, const uint4& words) {
    PROLOGUE_FROM_SM90(asm volatile(
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%2, %3, %4, %5}, [%1];" ::"r"(in_block(rank, to)),
        "r"(in_block(rank, &state_)), "r"(words.x), "r"(words.y), "r"(words.z), "r"(words.w)
        : "memory"));
  }
  __device__ void store(uint32_t rank, float* to, float value) {
    PROLOGUE_FROM_SM90(
        asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %2, [%1];" ::"r"(in_block(rank, to)),
                     "r"(in_block(rank, &state_)), "f"(value)
                     : "memory"));
  }
  __device__ void wait() {
    uint32_t done = 0;
    while (done == 0) {
      done = 1;
      PROLOGUE_FROM_SM90(asm volatile(
          "{\n.reg .pred p;\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], 0;\nselp.u32 %0, 1, 0, p;\n}"
          : "=r"(done)
          : "r"(address(&state_))
          : "memory"));
    }
  }

 private:
  __device__ static uint32_t address(const void* shared) { return static_cast<uint32_t>(__cvta_generic_to_shared(shared)); }
  __device__ static uint32_t in_block(uint32_t rank, const void* shared) {
    uint32_t there = 0;
    PROLOGUE_FROM_SM90(asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address(shared)), "r"(rank)));
    return there;
  }
  uint64_t state_;
};

// Loads four 8 x 8 matrices of 16-bit elements from shared memory. Lane i gives the address of row i % 8 of matrix i / 8.
__device__ inline void load_matrices(uint32_t (&out)[4], const void* row) {
  const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(address));
}

__device__ inline void load_matrices_transposed(uint32_t (&out)[4], const void* row) {
  const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(address));
}

// Transposes an 8 x 8 matrix of 16-bit elements, of which lane i has elements 2 * (i % 4) and the next of row i / 4.
__device__ inline uint32_t transpose_matrix(uint32_t pair) {
  uint32_t result;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(result) : "r"(pair));
  return result;
}

// Returns x - y, of two float16 each.
__device__ inline uint32_t subtract_halves(uint32_t x, uint32_t y) {
  uint32_t result;
  asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(result) : "r"(x), "r"(y));
  return result;
}

// Returns x * y + z, of two float16 each, rounded once.
__device__ inline uint32_t multiply_add_halves(uint32_t x, uint32_t y, uint32_t z) {
  uint32_t result;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(x), "r"(y), "r"(z));
  return result;
}

// Return x * y + z, x * y and x - y, of two 16-bit values each, rounded once. T is __half or __nv_bfloat16.
template <class T>
__device__ inline uint32_t multiply_add_pairs(uint32_t x, uint32_t y, uint32_t z) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    uint32_t result;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(x), "r"(y), "r"(z));
    return result;
  } else {
    return multiply_add_halves(x, y, z);
  }
}
template <class T>
__device__ inline uint32_t multiply_pairs(uint32_t x, uint32_t y) {
  constexpr uint32_t kMinusZeros = 0x80008000u;  // add nothing, not to -0 either
  return multiply_add_pairs<T>(x, y, kMinusZeros);
}
template <class T>
__device__ inline uint32_t subtract_pairs(uint32_t x, uint32_t y) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    constexpr uint32_t kMinusOnes = 0xbf80bf80u;
    return multiply_add_pairs<T>(y, kMinusOnes, x);
  } else {
    return subtract_halves(x, y);
  }
}

// Return the lower or the upper half of a word twice: an instruction that takes pairs reads it as it is.
__device__ inline uint32_t lower_twice(uint32_t pair) {
  uint32_t result;
  asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %1;\nmov.b32 %0, {low, low};\n}" : "=r"(result) : "r"(pair));
  return result;
}
__device__ inline uint32_t upper_twice(uint32_t pair) {
  uint32_t result;
  asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %1;\nmov.b32 %0, {high, high};\n}" : "=r"(result) : "r"(pair));
  return result;
}

// Return (x & y) | z and (x & y) ^ z, in one instruction also where two of them are constants.
__device__ inline uint32_t and_or(uint32_t x, uint32_t y, uint32_t z) {
  uint32_t result;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(result) : "r"(x), "r"(y), "r"(z));
  return result;
}
__device__ inline uint32_t and_xor(uint32_t x, uint32_t y, uint32_t z) {
  uint32_t result;
  asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(result) : "r"(x), "r"(y), "r"(z));
  return result;
}

// Two codes of e4m3, the lower (half 0) or the upper ones of a word, as float16, exactly.
__device__ inline uint32_t halves_of_e4m3(uint32_t word, int half) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  uint32_t result;
  if (half == 0) {
    asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %1;\ncvt.rn.f16x2.e4m3x2 %0, low;\n}" : "=r"(result) : "r"(word));
  } else {
    asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %1;\ncvt.rn.f16x2.e4m3x2 %0, high;\n}" : "=r"(result) : "r"(word));
  }
  return result;
#else
  const __half2_raw pair = __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(word >> (16 * half)), __NV_E4M3);
  return pair.x | static_cast<uint32_t>(pair.y) << 16;
#endif
}

// Computes c [16, 8] += a [16, 16] b [16, 8] over a warp. T is __half or __nv_bfloat16.
template <class T>
__device__ inline void multiply_matrices(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

// Computes c [16, 8] += a [16, 8] b [8, 8] over a warp.
template <class T>
__device__ inline void multiply_matrices(float (&c)[4], const uint32_t (&a)[2], uint32_t b) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(b));
  } else {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(b));
  }
}

// Compute d [16, 8] = a [16, 32] b [32, 8] + base over a warp, and the same of 16 channels, of signed whole numbers of 8 bits. Four neighbours in
// k are a word.
__device__ inline void multiply_integers(int32_t (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, int32_t base) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, %10};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(base));
}
__device__ inline void multiply_integers(int32_t (&d)[4], const uint32_t (&a)[2], uint32_t b, int32_t base) {
  asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%7, %7, %7, %7};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(b), "r"(base));
}

}  // namespace prologue::cuda
