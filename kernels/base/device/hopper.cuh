// This file has instructions of sm_90a: barriers in shared memory (mbarrier), copies of boxes of a tensor (TMA), and matrix multiplications
// of a warpgroup, four warps, that read shared memory (wgmma). A kernel may use them where PROLOGUE_HOPPER is 1. The tests' emulator of
// CUDA (tests/emulator) has this file once more, for the CPU.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

// Host code sees 1: it declares and launches the kernels.
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define PROLOGUE_HOPPER 1
#else
#define PROLOGUE_HOPPER 0
#endif

namespace prologue::cuda {

inline constexpr int kWarpgroup = 128;  // threads

// Swizzled rows of 128 bytes must begin at multiples of 1024: their address says how the 16-byte chunks of each are exchanged.
template <class T>
__device__ inline T* swizzled_dynamic_shared() {
  extern __shared__ __align__(1024) unsigned char swizzled_dynamic_shared_bytes[];
  return reinterpret_cast<T*>(swizzled_dynamic_shared_bytes);
}

__device__ inline uint32_t shared_address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

// ---------------------------------------------------------------------------------------------------------------------
// Barriers

// This is an mbarrier. Its phase ends when `arrivals` threads have arrived and the bytes that they expect have been copied. What a thread
// did before it arrived is seen by those that wait.
struct Barrier {
  uint64_t state;

  __device__ void init(int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(this)), "r"(arrivals) : "memory");
  }
  __device__ void arrive() { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(this)) : "memory"); }
  __device__ void arrive_and_expect(int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(this)), "r"(bytes) : "memory");
  }
  // Arrives at the barrier that has the same address in block `rank` of the cluster. The cluster has at least two blocks.
  __device__ void arrive_at(uint32_t rank) {
    asm volatile(
        "{\n.reg .b32 there;\n"
        "mapa.shared::cluster.u32 there, %0, %1;\n"
        "mbarrier.arrive.shared::cluster.b64 _, [there];\n}" ::"r"(shared_address(this)),
        "r"(rank)
        : "memory");
  }
  // Waits until the phase of this parity has ended. Before the first phase, that of parity 1 counts as ended.
  __device__ void wait(unsigned parity) {
    const uint32_t address = shared_address(this);
    uint32_t done;
    do {
      asm volatile(
          "{\n.reg .pred done;\n"
          "mbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2;\n"
          "selp.b32 %0, 1, 0, done;\n}"
          : "=r"(done)
          : "r"(address), "r"(parity)
          : "memory");
    } while (done == 0);
  }
};

// Makes the barriers visible to TMA. Called after init() by the thread that called it, before a __syncthreads().
__device__ inline void fence_barrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Makes what this thread has written to shared memory visible to TMA and wgmma, once the thread that issues them is told so.
__device__ inline void fence_shared_for_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// A block has 16 named barriers, for any number of whole warps; 0 is that of __syncthreads().
__device__ inline void sync_barrier(int id, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory"); }
__device__ inline void arrive_barrier(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Sets the number of registers of each thread of a warpgroup from now on. Called by all its threads.
template <int kRegisters>
__device__ inline void release_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ inline void claim_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// ---------------------------------------------------------------------------------------------------------------------
// TMA. Elements outside of the tensor become zeros, and count as copied bytes.

__device__ inline void prefetch_map(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(reinterpret_cast<uint64_t>(&map)) : "memory");
}

__device__ inline void load_box(void* to, const CUtensorMap& map, Barrier& barrier, int x, int y, int z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];" ::"r"(
          shared_address(to)),
      "l"(reinterpret_cast<uint64_t>(&map)), "r"(shared_address(&barrier)), "r"(x), "r"(y), "r"(z)
      : "memory");
}

__device__ inline void load_box(void* to, const CUtensorMap& map, Barrier& barrier, int x, int y, int z, int w) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], [%2];" ::
          "r"(shared_address(to)),
      "l"(reinterpret_cast<uint64_t>(&map)), "r"(shared_address(&barrier)), "r"(x), "r"(y), "r"(z), "r"(w)
      : "memory");
}

__device__ inline void load_box(void* to, const CUtensorMap& map, Barrier& barrier, int x, int y, int z, int w, int v) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6, %7}], "
      "[%2];" ::"r"(shared_address(to)),
      "l"(reinterpret_cast<uint64_t>(&map)), "r"(shared_address(&barrier)), "r"(x), "r"(y), "r"(z), "r"(w), "r"(v)
      : "memory");
}

// Copies neighbouring bytes. Both addresses and their number are multiples of 16.
__device__ inline void copy_bytes(void* to, const void* from, int bytes, Barrier& barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(&barrier))
      : "memory");
}

// Copies a box to the address `to` in each block of the cluster whose bit is set in `blocks`. The barrier at the address of `barrier` in
// each of them counts the bytes.
__device__ inline void load_box_into_blocks(unsigned blocks, void* to, const CUtensorMap& map, Barrier& barrier, int x, int y,
                                            int z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%4, %5, "
      "%6}], [%2], %3;" ::"r"(shared_address(to)),
      "l"(reinterpret_cast<uint64_t>(&map)), "r"(shared_address(&barrier)), "h"(static_cast<uint16_t>(blocks)), "r"(x), "r"(y),
      "r"(z)
      : "memory");
}

// ---------------------------------------------------------------------------------------------------------------------
// wgmma. Operands in shared memory are 64 elements of 16 bits (128 bytes) a row, swizzled as TMA does it, and panels of such rows.

// Returns the descriptor of a matrix: the address of a row's first element or a multiple of 16 of them further, and two strides in bytes,
// whose meaning depends on the operand's order:
//   rows are m or n    stride: of 8 rows; leading: not used                                                (K in Q K^T)
//   rows are k         stride: of 8 rows; leading: of 64 columns, from panel to panel                      (V in P V)
__device__ inline uint64_t matrix_descriptor(const void* first, int leading, int stride) {
  constexpr uint64_t kSwizzle128 = 1;
  const auto field = [](uint32_t bytes) { return static_cast<uint64_t>((bytes & 0x3ffff) >> 4); };
  return field(shared_address(first)) | field(static_cast<uint32_t>(leading)) << 16 | field(static_cast<uint32_t>(stride)) << 32 |
         kSwizzle128 << 62;
}
// Returns the descriptor that is so many bytes further. The address does not reach into the next field, since shared memory ends below
// 2^18, so a 32-bit sum is enough.
__device__ inline uint64_t advance(uint64_t descriptor, int bytes) {
  const uint32_t low = static_cast<uint32_t>(descriptor) + static_cast<uint32_t>(bytes >> 4);
  return (descriptor & ~uint64_t{0xffffffff}) | low;
}

// Called between writes to registers that wgmma reads or adds to, and the wgmma.
__device__ inline void multiply_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void multiply_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits until at most kPending groups are in flight.
template <int kPending>
__device__ inline void multiply_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// The compiler does not know that wgmma writes registers after the instruction, up to the wait. It moves no access to them over this.
template <class Word, int kCount>
__device__ inline void keep_in_order(Word (&words)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if constexpr (std::is_same_v<Word, float>) {
      asm volatile("" : "+f"(words[i])::"memory");
    } else {
      asm volatile("" : "+r"(words[i])::"memory");
    }
  }
}

#define PROLOGUE_D8(i) \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define PROLOGUE_D16(i) PROLOGUE_D8(i), PROLOGUE_D8(i + 8)
#define PROLOGUE_D32(i) PROLOGUE_D16(i), PROLOGUE_D16(i + 16)
#define PROLOGUE_NAMES8 "%0,%1,%2,%3,%4,%5,%6,%7"
#define PROLOGUE_NAMES16 PROLOGUE_NAMES8 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define PROLOGUE_NAMES24 PROLOGUE_NAMES16 ",%16,%17,%18,%19,%20,%21,%22,%23"
#define PROLOGUE_NAMES32 PROLOGUE_NAMES16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define PROLOGUE_NAMES64                                                                                  \
  PROLOGUE_NAMES32                                                                                        \
  ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56," \
  "%57,%58,%59,%60,%61,%62,%63"
#define PROLOGUE_NAMES96                                                                                  \
  PROLOGUE_NAMES64                                                                                        \
  ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88," \
  "%89,%90,%91,%92,%93,%94,%95"
#define PROLOGUE_NAMES128                                                                                    \
  PROLOGUE_NAMES64                                                                                           \
  ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,"    \
  "%89,%90,%91,%92,%93,%94,%95,%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111," \
  "%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
// d is +f for every register; A, B, P: the numbers of the operands after them.
#define PROLOGUE_MULTIPLY_SHARED(N, TYPE, NAMES, A, B, P, ...)                                                                   \
  asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %" #P ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE \
               " {" NAMES "}, %" #A ", %" #B                                                                                     \
               ", add, "                                                                                                         \
               "1, 1, 0, 0;\n}"                                                                                                  \
               : __VA_ARGS__                                                                                                     \
               : "l"(a), "l"(b), "r"(static_cast<int>(add)))
#define PROLOGUE_MULTIPLY_REGISTERS(N, TYPE, NAMES, A0, A1, A2, A3, B, C, ...)                                             \
  asm volatile("{\n.reg .pred add;\nsetp.eq.b32 add, 0, 0;\nwgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE \
               " {" NAMES "}, {%" #A0 ", %" #A1 ", %" #A2 ", %" #A3 "}, %" #B ", add, 1, 1, %" #C ";\n}"                   \
               : __VA_ARGS__                                                                                               \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(kOwnRows ? 1 : 0))

// Computes d [64, N] = a [64, 16] b [16, N] + (add ? d : 0) over a warpgroup. a and b are in shared memory, as rows of a and of b's
// transpose. A lane has rows lane / 4 and lane / 4 + 8 of the 16 of its warp, columns 2 * (lane % 4) and the next of every 8: the fragments
// of mma.m16n8k16, one after the other.
template <class T, int kCount>
__device__ inline void multiply_async(float (&d)[kCount], uint64_t a, uint64_t b, bool add) {
  static_assert(kCount == 16 || kCount == 24 || kCount == 32 || kCount == 64 || kCount == 96 || kCount == 128);
  constexpr bool kBFloat16 = std::is_same_v<T, __nv_bfloat16>;
  if constexpr (kCount == 16 && kBFloat16) {
    PROLOGUE_MULTIPLY_SHARED(32, "bf16", PROLOGUE_NAMES16, 16, 17, 18, PROLOGUE_D16(0));
  } else if constexpr (kCount == 16) {
    PROLOGUE_MULTIPLY_SHARED(32, "f16", PROLOGUE_NAMES16, 16, 17, 18, PROLOGUE_D16(0));
  } else if constexpr (kCount == 24 && kBFloat16) {
    PROLOGUE_MULTIPLY_SHARED(48, "bf16", PROLOGUE_NAMES24, 24, 25, 26, PROLOGUE_D16(0), PROLOGUE_D8(16));
  } else if constexpr (kCount == 24) {
    PROLOGUE_MULTIPLY_SHARED(48, "f16", PROLOGUE_NAMES24, 24, 25, 26, PROLOGUE_D16(0), PROLOGUE_D8(16));
  } else if constexpr (kCount == 32 && kBFloat16) {
    PROLOGUE_MULTIPLY_SHARED(64, "bf16", PROLOGUE_NAMES32, 32, 33, 34, PROLOGUE_D32(0));
  } else if constexpr (kCount == 32) {
    PROLOGUE_MULTIPLY_SHARED(64, "f16", PROLOGUE_NAMES32, 32, 33, 34, PROLOGUE_D32(0));
  } else if constexpr (kCount == 64 && kBFloat16) {
    PROLOGUE_MULTIPLY_SHARED(128, "bf16", PROLOGUE_NAMES64, 64, 65, 66, PROLOGUE_D32(0), PROLOGUE_D32(32));
  } else if constexpr (kCount == 64) {
    PROLOGUE_MULTIPLY_SHARED(128, "f16", PROLOGUE_NAMES64, 64, 65, 66, PROLOGUE_D32(0), PROLOGUE_D32(32));
  } else if constexpr (kCount == 96 && kBFloat16) {
    PROLOGUE_MULTIPLY_SHARED(192, "bf16", PROLOGUE_NAMES96, 96, 97, 98, PROLOGUE_D32(0), PROLOGUE_D32(32), PROLOGUE_D32(64));
  } else if constexpr (kCount == 96) {
    PROLOGUE_MULTIPLY_SHARED(192, "f16", PROLOGUE_NAMES96, 96, 97, 98, PROLOGUE_D32(0), PROLOGUE_D32(32), PROLOGUE_D32(64));
  } else if constexpr (kBFloat16) {
    PROLOGUE_MULTIPLY_SHARED(256, "bf16", PROLOGUE_NAMES128, 128, 129, 130, PROLOGUE_D32(0), PROLOGUE_D32(32), PROLOGUE_D32(64),
                             PROLOGUE_D32(96));
  } else {
    PROLOGUE_MULTIPLY_SHARED(256, "f16", PROLOGUE_NAMES128, 128, 129, 130, PROLOGUE_D32(0), PROLOGUE_D32(32), PROLOGUE_D32(64),
                             PROLOGUE_D32(96));
  }
}

// Computes d [64, N] += a [64, 16] b [16, N]. a is in registers, as fragments of mma.m16n8k16. b is in shared memory, with rows of its own
// (kOwnRows) or as rows of its transpose.
template <class T, bool kOwnRows, int kCount>
__device__ inline void multiply_registers_async(float (&d)[kCount], const uint32_t (&a)[4], uint64_t b) {
  static_assert(kCount == 8 || kCount == 16 || kCount == 24 || kCount == 32 || kCount == 64 || kCount == 128);
  constexpr bool kBFloat16 = std::is_same_v<T, __nv_bfloat16>;
  if constexpr (kCount == 8 && kBFloat16) {
    PROLOGUE_MULTIPLY_REGISTERS(16, "bf16", PROLOGUE_NAMES8, 8, 9, 10, 11, 12, 13, PROLOGUE_D8(0));
  } else if constexpr (kCount == 8) {
    PROLOGUE_MULTIPLY_REGISTERS(16, "f16", PROLOGUE_NAMES8, 8, 9, 10, 11, 12, 13, PROLOGUE_D8(0));
  } else if constexpr (kCount == 16 && kBFloat16) {
    PROLOGUE_MULTIPLY_REGISTERS(32, "bf16", PROLOGUE_NAMES16, 16, 17, 18, 19, 20, 21, PROLOGUE_D16(0));
  } else if constexpr (kCount == 16) {
    PROLOGUE_MULTIPLY_REGISTERS(32, "f16", PROLOGUE_NAMES16, 16, 17, 18, 19, 20, 21, PROLOGUE_D16(0));
  } else if constexpr (kCount == 24 && kBFloat16) {
    PROLOGUE_MULTIPLY_REGISTERS(48, "bf16", PROLOGUE_NAMES24, 24, 25, 26, 27, 28, 29, PROLOGUE_D16(0), PROLOGUE_D8(16));
  } else if constexpr (kCount == 24) {
    PROLOGUE_MULTIPLY_REGISTERS(48, "f16", PROLOGUE_NAMES24, 24, 25, 26, 27, 28, 29, PROLOGUE_D16(0), PROLOGUE_D8(16));
  } else if constexpr (kCount == 32 && kBFloat16) {
    PROLOGUE_MULTIPLY_REGISTERS(64, "bf16", PROLOGUE_NAMES32, 32, 33, 34, 35, 36, 37, PROLOGUE_D32(0));
  } else if constexpr (kCount == 32) {
    PROLOGUE_MULTIPLY_REGISTERS(64, "f16", PROLOGUE_NAMES32, 32, 33, 34, 35, 36, 37, PROLOGUE_D32(0));
  } else if constexpr (kCount == 64 && kBFloat16) {
    PROLOGUE_MULTIPLY_REGISTERS(128, "bf16", PROLOGUE_NAMES64, 64, 65, 66, 67, 68, 69, PROLOGUE_D32(0), PROLOGUE_D32(32));
  } else if constexpr (kCount == 64) {
    PROLOGUE_MULTIPLY_REGISTERS(128, "f16", PROLOGUE_NAMES64, 64, 65, 66, 67, 68, 69, PROLOGUE_D32(0), PROLOGUE_D32(32));
  } else if constexpr (kBFloat16) {
    PROLOGUE_MULTIPLY_REGISTERS(256, "bf16", PROLOGUE_NAMES128, 128, 129, 130, 131, 132, 133, PROLOGUE_D32(0), PROLOGUE_D32(32),
                                PROLOGUE_D32(64), PROLOGUE_D32(96));
  } else {
    PROLOGUE_MULTIPLY_REGISTERS(256, "f16", PROLOGUE_NAMES128, 128, 129, 130, 131, 132, 133, PROLOGUE_D32(0), PROLOGUE_D32(32),
                                PROLOGUE_D32(64), PROLOGUE_D32(96));
  }
}
template <class T, int kCount>
__device__ inline void multiply_async(float (&d)[kCount], const uint32_t (&a)[4], uint64_t b) {
  multiply_registers_async<T, true>(d, a, b);
}

#undef PROLOGUE_D8
#undef PROLOGUE_D16
#undef PROLOGUE_D32
#undef PROLOGUE_NAMES8
#undef PROLOGUE_NAMES16
#undef PROLOGUE_NAMES24
#undef PROLOGUE_NAMES32
#undef PROLOGUE_NAMES64
#undef PROLOGUE_NAMES96
#undef PROLOGUE_NAMES128
#undef PROLOGUE_MULTIPLY_SHARED
#undef PROLOGUE_MULTIPLY_REGISTERS

}  // namespace prologue::cuda
