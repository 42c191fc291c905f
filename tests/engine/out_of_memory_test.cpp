// Every allocation of a small run fails once, alone and with all that follow it: the answer is a Status, nothing leaks, and what has
// worked before works again.
#include <gtest/gtest.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include <prologue/engine/checkpoint/checkpoint.h>
#include <prologue/engine/engine.h>
#include <prologue/engine/gguf/tokenizer_data.h>
#include <prologue/engine/tokenizer/chat.h>
#include <prologue/kernels/attention_prologue/attention_prologue.h>
#include <prologue/kernels/base/out_of_memory.h>
#include <prologue/kvcache/kv_cache.h>
#include <prologue/kvcache/kv_storage.h>
#include <prologue/layers/graph/fusion.h>
#include <prologue/layers/rope/position_axes.h>

#include "tests/support/gguf_writer.h"
#include "tests/support/safetensors_writer.h"
#include "tests/support/sanitizers.h"

namespace {

// Says which allocation fails: the n-th since the counting began, and perhaps all after it. Only one thread counts at a time.
struct Plan {
  bool counting = false;
  bool lasting = false;
  int64_t fail_at = 0;
  int64_t count = 0;
  int64_t live = 0;  // blocks that were allocated and not released
};
Plan plan;

bool must_fail() {
  if (!plan.counting) return false;
  ++plan.count;
  return plan.lasting ? plan.count >= plan.fail_at : plan.count == plan.fail_at;
}

}  // namespace

#if defined(__GLIBC__) && !defined(PROLOGUE_ADDRESS_SANITIZER) && !defined(PROLOGUE_THREAD_SANITIZER)
// All of malloc is replaced, for every library of the process.
#define PROLOGUE_TEST_WHOLE_MALLOC 1
extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);
void __libc_free(void*);
}

namespace {

template <class Allocate>
void* allocate_or_fail(const Allocate& allocate) {
  if (plan.counting && must_fail()) {
    errno = ENOMEM;
    return nullptr;
  }
  void* const block = allocate();
  if (plan.counting && block != nullptr) ++plan.live;
  return block;
}

}  // namespace

#pragma GCC visibility push(default)  // for the shared libraries too
extern "C" {
void* malloc(size_t size) {
  return allocate_or_fail([&] { return __libc_malloc(size); });
}
void* calloc(size_t count, size_t size) {
  return allocate_or_fail([&] { return __libc_calloc(count, size); });
}
void* realloc(void* block, size_t size) {
  void* const moved = allocate_or_fail([&] { return __libc_realloc(block, size); });
  if (plan.counting && block != nullptr && moved != nullptr) --plan.live;
  return moved;
}
void* memalign(size_t alignment, size_t size) {
  return allocate_or_fail([&] { return __libc_memalign(alignment, size); });
}
void* aligned_alloc(size_t alignment, size_t size) {
  return allocate_or_fail([&] { return __libc_memalign(alignment, size); });
}
int posix_memalign(void** block, size_t alignment, size_t size) {
  *block = allocate_or_fail([&] { return __libc_memalign(alignment, size); });
  return *block == nullptr ? ENOMEM : 0;
}
void free(void* block) {
  if (plan.counting && block != nullptr) --plan.live;
  __libc_free(block);
}
}
#pragma GCC visibility pop
#else
// What C++ allocates; the sanitizer looks for leaks. (Inlined, new and delete look mismatched to the compiler.)
[[gnu::noinline]] void* operator new(size_t size) {
  void* const block = must_fail() ? nullptr : std::malloc(size == 0 ? 1 : size);
  if (block == nullptr) throw std::bad_alloc();
  return block;
}
[[gnu::noinline]] void* operator new[](size_t size) { return operator new(size); }
[[gnu::noinline]] void* operator new(size_t size, const std::nothrow_t&) noexcept {
  return must_fail() ? nullptr : std::malloc(size == 0 ? 1 : size);
}
[[gnu::noinline]] void operator delete(void* block) noexcept { std::free(block); }
[[gnu::noinline]] void operator delete[](void* block) noexcept { std::free(block); }
[[gnu::noinline]] void operator delete(void* block, size_t) noexcept { std::free(block); }
[[gnu::noinline]] void operator delete[](void* block, size_t) noexcept { std::free(block); }
#endif

namespace prologue {
namespace {

// Runs `work` with the n-th allocation failing, for n = 1, 2, ... until it makes fewer than n. It may be ok where what failed only
// costs time (a JIT, a temporary buffer), and then checks its result itself.
void fail_each_allocation(const std::function<Status()>& work) {
  {
    const Status status = work();  // what is made once in a process is made now
    ASSERT_TRUE(status.ok()) << status.message();
  }
  for (const bool lasting : {false, true}) {
    int64_t num_failed = 0;
    for (int64_t n = 1;; ++n) {
      plan = {true, lasting, n, 0, 0};
      StatusCode code = StatusCode::ok;
      {
        const Status status = work();
        code = status.code();
      }
      plan.counting = false;
      ASSERT_TRUE(code == StatusCode::ok || code == StatusCode::resource_exhausted)
          << "allocation " << n << ", lasting " << lasting << ": " << status_code_name(code);
#ifdef PROLOGUE_TEST_WHOLE_MALLOC
      ASSERT_EQ(plan.live, 0) << "allocation " << n << ", lasting " << lasting << " leaks";
#endif
      num_failed += code == StatusCode::resource_exhausted;
      if (plan.count < n) {
        ASSERT_EQ(code, StatusCode::ok);
        EXPECT_GT(num_failed, n / 2);
        testing::Test::RecordProperty(lasting ? "lasting" : "single", std::to_string(n - 1));
        break;
      }
    }
  }
}

constexpr const char* kChatMl =
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% "
    "endfor %}"
    "'<|im_start|>system\nA system message that is longer than a short string.<|im_end|>'";

// Whatever has failed, no page is held and the books are right.
void expect_at_rest(Engine& engine) {
  const bool counting = std::exchange(plan.counting, false);
  const Status status = engine.check_integrity();
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(engine.stats().running, 0);
  plan.counting = counting;
}

class OutOfMemory : public testing::Test {
 protected:
  void SetUp() override {
    test::TinyLlamaOptions model;
    model.num_layers = 1;
    model.hidden_size = 16;
    model.num_q_heads = 2;
    model.num_kv_heads = 1;
    model.head_dim = 8;
    model.ffn_size = 16;
    model.context_length = 64;
    model.qkv_bias = true;
    model.rope_freqs = true;
    options_.model_path = testing::TempDir() + "prologue_out_of_memory_test_" +
                          testing::UnitTest::GetInstance()->current_test_info()->name() + ".gguf";
    options_.device = Device::cpu;
    options_.num_threads = 1;
    options_.profile = true;
    ASSERT_TRUE(test::write_tiny_llama(options_.model_path, model));
  }

  std::unique_ptr<Engine> load() { return Engine::load(options_).value(); }

  EngineOptions options_;
};

TEST_F(OutOfMemory, Load) {
  fail_each_allocation([&] { return Engine::load(options_).status(); });
}

TEST_F(OutOfMemory, OpenAHuggingFaceDirectory) {
  const test::TemporaryDirectory directory(testing::TempDir());
  test::SafetensorsWriter shard;
  shard.add("a tensor with a long name", "F32", {2, 2}, std::vector<float>(4));
  shard.add("a quantised tensor.weight", "F8_E4M3", {2, 128}, std::vector<uint8_t>(256));
  shard.add("a quantised tensor.weight_scale", "BF16", {2, 1}, std::vector<uint16_t>(2));
  directory.write("1.safetensors", shard.bytes());
  directory.write("model.safetensors.index.json", std::string(R"({"weight_map": {"a tensor with a long name": "1.safetensors",
    "a quantised tensor.weight": "1.safetensors", "a quantised tensor.weight_scale": "1.safetensors"}})"));
  directory.write("config.json", std::string(R"({"model_type": "a type that is longer than a short string", "list": [1, 2, [{}]],
    "quantization_config": {"quant_method": "compressed-tensors", "format": "float-quantized",
                            "config_groups": {"g": {"weights": {"num_bits": 8, "type": "float", "strategy": "channel"}}}}})"));
  fail_each_allocation([&]() -> Status {
    PROLOGUE_ASSIGN_OR_RETURN(const std::unique_ptr<Checkpoint> checkpoint, Checkpoint::open(directory.path()));
    PROLOGUE_RETURN_IF_ERROR(checkpoint->architecture().status());
    unsigned char block[132];
    PROLOGUE_RETURN_IF_ERROR(checkpoint->read(*checkpoint->tensor("a quantised tensor.weight"), 132, 132, block));
    const Status wrong = checkpoint->integers("list").status();
    return wrong.code() == StatusCode::data_loss ? Status() : wrong;
  });
}

TEST_F(OutOfMemory, Generate) {
  const auto engine = load();
  std::vector<Request> requests(2);
  requests[0].prompt = {3, 4, 5, 6, 7};
  requests[0].max_tokens = 6;
  requests[0].stop = {"a stop text that is longer than a short string"};
  requests[1].prompt = std::vector<int32_t>(40, 9);
  requests[1].max_tokens = 4;
  requests[1].sampling.temperature = 0.8f;
  std::vector<std::vector<int32_t>> tokens;
  const std::vector<Completion> alone = engine->generate(requests).value();
  for (const Completion& completion : alone) tokens.push_back(completion.tokens);
  fail_each_allocation([&]() -> Status {
    const auto completions = engine->generate(requests);
    engine->take_profile();
    expect_at_rest(*engine);
    if (!completions.ok()) return completions.status();
    for (size_t i = 0; i < requests.size(); ++i) {
      if (!(*completions)[i].status.ok()) return (*completions)[i].status;
      if ((*completions)[i].tokens != tokens[i]) return data_loss("other tokens");
    }
    return {};
  });
}

// Drafts of prompt lookup, and of a draft model.
TEST_F(OutOfMemory, Drafts) {
  options_.page_size = 4;
  options_.max_seqs = 4;
  options_.profile = false;
  options_.batch_invariant = true;
  options_.all_drafts = true;
  options_.max_drafts = 3;
  Request request;
  request.prompt = {3, 4, 5, 6, 3, 4, 5, 6, 3, 4};
  request.prediction = {7, 8, 9};
  request.max_tokens = 6;
  request.ignore_eos = true;
  request.sampling.frequency_penalty = 0.5f;
  for (const Speculation speculation : {Speculation::prompt_lookup, Speculation::draft_model}) {
    options_.speculation = speculation;
    options_.draft_model_path = speculation == Speculation::draft_model ? options_.model_path : "";
    const auto engine = load();
    const std::vector<int32_t> want = engine->generate({&request, 1}).value().front().tokens;
    fail_each_allocation([&]() -> Status {
      const auto completions = engine->generate({&request, 1});
      expect_at_rest(*engine);
      if (!completions.ok()) return completions.status();
      if (!completions->front().status.ok()) return completions->front().status;
      return completions->front().tokens == want ? Status() : data_loss("other tokens");
    });
  }
}

// Requests that share pages, are preempted and forked, have penalties and log probabilities.
TEST_F(OutOfMemory, Serve) {
  options_.page_size = 4;
  options_.max_seqs = 4;
  options_.profile = false;
  options_.batch_invariant = true;
  options_.kv_memory = load()->options().kv_memory / load()->stats().kv.groups.front().num_pages * 9;
  const auto engine = load();
  std::vector<Request> requests(3);
  requests[0].prompt = {3, 4, 5, 6, 7};
  requests[0].max_tokens = 8;
  requests[0].num_samples = 2;
  requests[0].sampling.frequency_penalty = 0.5f;
  requests[1].prompt = std::vector<int32_t>(20, 9);
  requests[1].max_tokens = 6;
  requests[1].num_logprobs = 2;
  requests[2].prompt = {3, 4, 5, 6, 8};
  requests[2].max_tokens = 9;
  for (Request& each : requests) each.ignore_eos = true;
  const std::vector<Completion> want = engine->generate(requests).value();
  fail_each_allocation([&]() -> Status {
    const auto completions = engine->generate(requests);
    expect_at_rest(*engine);
    if (!completions.ok()) return completions.status();
    for (size_t i = 0; i < want.size(); ++i) {
      if (!(*completions)[i].status.ok()) return (*completions)[i].status;
      if ((*completions)[i].tokens != want[i].tokens) return data_loss("other tokens");
    }
    return {};
  });
}

TEST_F(OutOfMemory, Score) {
  const auto engine = load();
  const std::vector<int32_t> prompt = {3, 4, 5}, tokens = {6, 7, 8, 9};
  fail_each_allocation([&] {
    const Status status = engine->score(prompt, tokens).status();
    engine->take_profile();
    return status;
  });
}

TEST_F(OutOfMemory, EncodeAndChat) {
  Result<TokenizerData> data = read_tokenizer_data(options_.model_path);
  ASSERT_TRUE(data.ok()) << data.status().message();
  data->chat_template = kChatMl;
  const Tokenizer tokenizer = Tokenizer::create(*data).value();
  const std::vector<ChatMessage> messages = {{"user", "a message that is longer than a short string"}};
  const std::string text = "hello <|im_end|> world, \xff and a text that is longer than a short string";
  fail_each_allocation([&]() -> Status {
    PROLOGUE_RETURN_IF_ERROR(tokenizer.encode(text, true, false).status());
    PROLOGUE_ASSIGN_OR_RETURN(const ChatFormat chat, ChatFormat::create(tokenizer));
    return chat.encode_chat(messages).status();
  });
}

TEST_F(OutOfMemory, Graph) {
  const auto engine = load();
  fail_each_allocation([&]() -> Status {
    GraphBuilder g(DType::f32);
    const float data[12] = {};
    const GraphBuilder::Scope scope(g, "layers");
    const Value x = g.norm("a", g.embedding("b", {data, 2, 2, DType::f32}, 1.0f), {NormKind::rms, {data, 1, 2, DType::f32}});
    const auto [q, k, v] = g.split_heads(g.linear("c", x, {data, 6, 2, DType::f32}), 1, 1, 2);
    g.kv_write("d", k, v, 1, 0, {});
    return std::move(g).finish(g.paged_attention("e", q, 1, {1.0f}, 0)).status();
  });
}

TEST_F(OutOfMemory, CacheStepAndTables) {
  StepBuffers buffers = StepBuffers::create({8, 2, 8, 4}, Device::cpu).value();
  const std::vector<int32_t> tokens = {1, 2, 3, 4, 5};
  const std::vector<int64_t> sections = {16, 8, 8};
  RopeConfig rope;
  rope.rotary_dim = 8;
  const KvCacheConfig config{2, {{8, 0}, {8, 3}}};
  const KvStorageConfig storage{2, 0, 2, 1, 2, {DType::f32}, {}, {0, 1}, {3, 1}};
  const KvSizing sizing{{0, 3}, 1, 1};
  fail_each_allocation([&]() -> Status {
    PROLOGUE_ASSIGN_OR_RETURN(KvCache cache, KvCache::create(config));
    PROLOGUE_ASSIGN_OR_RETURN(const SequenceId id, cache.add_sequence());
    for (int i = 0; i < 2; ++i) {
      const int64_t length = cache.length(id).value(), num_free = cache.num_free_pages();
      if (const Status status = cache.append(id, 3); !status.ok()) {
        const bool unchanged = cache.length(id).value() == length && cache.num_free_pages() == num_free;
        return unchanged ? status : data_loss("the cache has changed");
      }
    }
    PROLOGUE_RETURN_IF_ERROR(cache.insert(id, tokens));
    PROLOGUE_ASSIGN_OR_RETURN(const SequenceId hit, cache.add_sequence(tokens, 4));
    if (cache.length(hit).value() != 4) return data_loss("there is no hit");
    PROLOGUE_RETURN_IF_ERROR(cache.truncate(id, 5));
    PROLOGUE_ASSIGN_OR_RETURN(const SequenceId forked, cache.fork(id));
    if (const Status status = cache.append(forked, 1); !status.ok()) {
      return cache.length(forked).value() == 5 && cache.copies().empty() ? status : data_loss("the cache has changed");
    }
    PROLOGUE_ASSIGN_OR_RETURN(const std::vector<int32_t>* const pages, cache.pages(id));
    StepBatch batch;
    batch.add_sequence(tokens.data(), 5, 0, *pages, 2, 1);
    PROLOGUE_RETURN_IF_ERROR(buffers.upload(batch, {Device::cpu, 1}).status());
    PROLOGUE_RETURN_IF_ERROR(RopeTable::create(rope, 16, RopePrecision::exact, {Device::cpu, 1}).status());
    PROLOGUE_RETURN_IF_ERROR(mrope_pair_axis(sections, false).status());
    PROLOGUE_RETURN_IF_ERROR(StepBuffers::create({8, 2, 8, 4}, Device::cpu).status());
    for (const SequenceId each : {id, hit, forked}) PROLOGUE_RETURN_IF_ERROR(cache.free(each));
    PROLOGUE_RETURN_IF_ERROR(KvStorage::create(storage, Device::cpu).status());
    PROLOGUE_RETURN_IF_ERROR(pages_that_fit(storage, sizing, 1000).status());
    return cache.check_integrity();
  });
}

// The sentence of an error needs memory too. Operations check their arguments and may find none for what they have to say.
TEST(OutOfMemoryStatus, AnErrorThatCannotBeSaidIsOutOfMemory) {
  AttentionPrologueParams params;
  params.num_tokens = -1;
  for (int64_t n = 1; n < 20; ++n) {
    for (const bool lasting : {false, true}) {
      plan = {true, lasting, n, 0, 0};
      StatusCode code;
      bool is_short;
      {
        const Status status = attention_prologue(params, {Device::cpu, 1});
        code = status.code();
        is_short = status.message() == "out of memory";
      }
      plan.counting = false;
      if (plan.count < n) {
        EXPECT_EQ(code, StatusCode::invalid_argument);
        EXPECT_GT(n, 1);
      } else {
        EXPECT_EQ(code, StatusCode::resource_exhausted) << n;
        EXPECT_TRUE(is_short) << n;
      }
    }
  }
}

TEST(OutOfMemoryStatus, IsAStatusLikeAnyOther) {
  const Status status = Status::out_of_memory();
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(status.code(), StatusCode::resource_exhausted);
  EXPECT_EQ(status.message(), "out of memory");
  const auto too_long = catch_out_of_memory([]() -> Result<int> {
    std::vector<int>().reserve(SIZE_MAX);
    return 1;
  });
  EXPECT_EQ(too_long.status().message(), "out of memory");
}

}  // namespace
}  // namespace prologue
