// No exception leaves a C function: every allocation of a call fails once, and the answer is resource_exhausted.
#include <gtest/gtest.h>
#include <prologue.h>

#include <cstdlib>
#include <functional>
#include <new>
#include <string>

namespace {
thread_local int64_t fail_at = 0;  // the allocation that fails: 1 is the next one; 0 = none
}

// NOLINTBEGIN(misc-new-delete-overloads)
// All of them: the sanitizer knows whose memory is whose. (Inlined, new and delete look mismatched to the compiler.)
[[gnu::noinline]] void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  if (fail_at > 0 && --fail_at == 0) return nullptr;
  return std::malloc(bytes == 0 ? 1 : bytes);
}
[[gnu::noinline]] void* operator new(size_t bytes) {
  void* const memory = operator new(bytes, std::nothrow);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
[[gnu::noinline]] void* operator new[](size_t bytes) { return operator new(bytes); }
[[gnu::noinline]] void* operator new[](size_t bytes, const std::nothrow_t&) noexcept { return operator new(bytes, std::nothrow); }
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete[](void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete[](void* memory, size_t) noexcept { std::free(memory); }
// NOLINTEND(misc-new-delete-overloads)

namespace {

// How many allocations of `call` were made to fail, each in a call of its own.
int fail_each(const std::function<prologue_status()>& call) {
  for (int64_t n = 1;; ++n) {
    fail_at = n;
    const prologue_status status = call();
    const bool failed = fail_at == 0;
    fail_at = 0;
    if (!failed) return static_cast<int>(n - 1);
    EXPECT_EQ(status, PROLOGUE_STATUS_RESOURCE_EXHAUSTED) << "allocation " << n;
    EXPECT_STREQ(prologue_last_error_message(), "out of memory") << "allocation " << n;
  }
}

TEST(COutOfMemory, IsAStatus) {
  prologue_rope_table_params table;
  prologue_rope_table_params_init(&table);
  table.rotary_dim = 64;
  static float cos_sin[16 * 64];
  EXPECT_GT(fail_each([&] { return prologue_rope_cos_sin(&table, 16, cos_sin); }), 1);

  EXPECT_GT(fail_each([] {
              prologue_gemm_context* context = nullptr;
              const prologue_status status = prologue_gemm_context_create(PROLOGUE_DEVICE_CPU, &context);
              prologue_gemm_context_destroy(context);
              return status;
            }),
            0);

  EXPECT_GT(fail_each([] {
              prologue_communicators_params params;
              prologue_communicators_params_init(&params);
              params.num_ranks = 2;
              prologue_communicator* ranks[2] = {};
              const prologue_status status = prologue_create_communicators(&params, ranks);
              for (prologue_communicator* rank : ranks) prologue_communicator_destroy(rank);
              return status;
            }),
            2);

  prologue_execution execution;
  prologue_execution_init(&execution);
  prologue_attention_prologue_params p;
  prologue_attention_prologue_params_init(&p);
  float q[2 * 8] = {};
  p.num_tokens = 1, p.num_q_heads = 2, p.head_dim = 8, p.dtype = PROLOGUE_DTYPE_F32;
  p.q.data = p.q_out.data = q, p.q.token_stride = p.q_out.token_stride = 16, p.q.head_stride = p.q_out.head_stride = 8;
  EXPECT_GT(fail_each([&] {
              prologue_attention_prologue_plan* plan = nullptr;
              const prologue_status status = prologue_attention_prologue_plan_create(&p, 1, &execution, &plan);
              EXPECT_EQ(plan == nullptr, status != PROLOGUE_STATUS_OK);
              prologue_attention_prologue_plan_destroy(plan);
              return status;
            }),
            0);
}

// There is no memory for the sentence of an error.
TEST(COutOfMemory, OfASentenceIsAStatus) {
  fail_at = 1;
  EXPECT_EQ(prologue_rotary_validate(nullptr), PROLOGUE_STATUS_RESOURCE_EXHAUSTED);
  fail_at = 0;
  EXPECT_STREQ(prologue_last_error_message(), "out of memory");
  EXPECT_EQ(prologue_rotary_validate(nullptr), PROLOGUE_STATUS_INVALID_ARGUMENT);
  EXPECT_STREQ(prologue_last_error_message(), "prologue_rotary_validate: params is null");
}

}  // namespace
