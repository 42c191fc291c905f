#include <prologue/kernels/collective/communicator.h>

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include <prologue/kernels/base/captured_graph.h>
#include <prologue/kernels/base/gpu.h>
#include <prologue/kernels/base/memory.h>
#include <prologue/kernels/collective/all_gather.h>
#include <prologue/kernels/collective/all_reduce.h>

#include "tests/support/ranks.h"

namespace prologue::test {
namespace {

TEST(Communicator, KnowsItsRank) {
  const Ranks ranks(Backend::cpu, 3);
  for (int64_t r = 0; r < 3; ++r) {
    EXPECT_EQ(ranks[r].device(), Device::cpu);
    EXPECT_EQ(ranks[r].rank(), r);
    EXPECT_EQ(ranks[r].num_ranks(), 3);
    EXPECT_TRUE(ranks[r].status().ok());
    EXPECT_STREQ(ranks[r].transport(), "memory");
  }
}

std::string refusal(Device device, int64_t num_ranks, const CommunicatorOptions& options = {}) {
  const auto made = create_communicators(device, num_ranks, options);
  EXPECT_FALSE(made.ok());
  EXPECT_EQ(made.status().code(), StatusCode::invalid_argument);
  return made.status().message();
}

TEST(Communicator, RefusesWhatTheContractForbids) {
  EXPECT_EQ(refusal(Device::cpu, 0), "communicator: num_ranks is 0: it must lie in 1..8");
  EXPECT_EQ(refusal(Device::cpu, 9), "communicator: num_ranks is 9: it must lie in 1..8");
  EXPECT_NE(refusal(static_cast<Device>(7), 2).find("communicator: device"), std::string::npos);
  CommunicatorOptions options;
  for (const double wait : {0.0, -1.0, std::numeric_limits<double>::infinity(), std::nan("")}) {
    options.wait_seconds = wait;
    EXPECT_EQ(refusal(Device::cpu, 2, options),
              str_cat("communicator: wait_seconds is ", wait, ": it must be a finite number above 0"));
  }
  options = {};
  options.gpus = {0};
  EXPECT_EQ(refusal(Device::cuda, 2, options),
            "communicator: gpus has 1 entries: it must have one for each of the 2 ranks, or none");
  options.gpus = {0, 1, 0};
  EXPECT_EQ(refusal(Device::cuda, 3, options),
            "communicator: gpus has GPU 0 for rank 0 and rank 2: each rank needs a GPU of its own");
}

TEST(Communicator, RanksThatCallSomethingElseAreNamed) {
  const auto reduce = [](const std::function<void(AllReduceParams&)>& change) {
    return [change](Communicator& communicator, float* x, float* y) {
      AllReduceParams p;
      p.num_tokens = 2, p.width = 4, p.dtype = DType::f32, p.x = x, p.y = y;
      change(p);
      return all_reduce(p, communicator, {});
    };
  };
  const auto gather = [](int64_t width, int64_t part_width) {
    return [=](Communicator& communicator, float* x, float* y) {
      AllGatherParams p;
      p.num_tokens = 1, p.width = width, p.part_width = part_width, p.dtype = DType::f32, p.x = x, p.y = y;
      return all_gather(p, communicator, {});
    };
  };
  using Call = std::function<Status(Communicator&, float*, float*)>;
  const Call usual = reduce([](AllReduceParams&) {});
  const struct {
    Call first, other;
    std::string message;
  } cases[] = {
      {usual, reduce([](AllReduceParams& p) { p.width = 3; }), "all_reduce: width is 4 on rank 0 and 3 on rank 1"},
      {usual, reduce([](AllReduceParams& p) { p.num_tokens = 1; }), "all_reduce: num_tokens is 2 on rank 0 and 1 on rank 1"},
      {usual, reduce([](AllReduceParams& p) { p.adds = 1; }), "all_reduce: adds is 0 on rank 0 and 1 on rank 1"},
      {usual, reduce([](AllReduceParams& p) { p.dtype = DType::bf16; }),
       "all_reduce: dtype is float32 on rank 0 and bfloat16 on rank 1"},
      {gather(5, 3), gather(4, 3), "all_gather: width is 5 on rank 0 and 4 on rank 1"},
      {gather(5, 3), gather(5, 4), "all_gather: part_width is 3 on rank 0 and 4 on rank 1"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.message);
    const Ranks ranks(Backend::cpu, 2);
    ranks.run([&](int64_t rank) {
      std::vector<float> x(8, 1.0f), y(8, 5.0f);
      const Status status = (rank == 0 ? c.first : c.other)(ranks[rank], x.data(), y.data());
      EXPECT_EQ(status.code(), StatusCode::invalid_argument);
      EXPECT_EQ(status.message(), c.message + ": all ranks must call it with the same");
      EXPECT_EQ(y, std::vector<float>(8, 5.0f));
    });
    EXPECT_FALSE(ranks[0].status().ok());
  }
  const Ranks ranks(Backend::cpu, 3);
  ranks.run([&](int64_t rank) {
    std::vector<float> x(8, 1.0f), y(8, 5.0f);
    const Status status = (rank < 2 ? usual : Call(gather(5, 2)))(ranks[rank], x.data(), y.data());
    EXPECT_EQ(status.message(),
              "communicator: rank 0 calls all_reduce and rank 2 all_gather: all ranks must call the same collectives in the "
              "same order");
    EXPECT_EQ(y, std::vector<float>(8, 5.0f));
  });
}

constexpr int64_t kManyValues = AllReduceParams::kFewBytes / 4 + 1000;  // of float32: more bytes than kernels push

// One value of a rank, among others that have none; and the stream of its collectives.
class OneValue {
 public:
  explicit OneValue(Backend backend, int64_t count = 1)
      : buffer_(std::move(Buffer::allocate(backend_device(backend), count * 4).value())), count_(count) {
    execution_.device = backend_device(backend);
    if (execution_.device == Device::cuda) stream_ = std::move(Stream::create().value()), execution_.stream = stream_.get();
  }

  // Adds up the ranks' values. Returns its error; on CUDA the group's, when the stream has ended.
  Status reduce(Communicator& communicator, float& value) {
    AllReduceParams p;
    p.num_tokens = 1, p.width = count_, p.dtype = DType::f32, p.x = p.y = buffer_.data();
    float* const last = buffer_.as<float>() + count_ - 1;
    PROLOGUE_RETURN_IF_ERROR(copy_to_device(last, &value, sizeof value, execution_));
    PROLOGUE_RETURN_IF_ERROR(all_reduce(p, communicator, execution_));
    PROLOGUE_RETURN_IF_ERROR(copy_to_host(&value, last, sizeof value, execution_));
    return execution_.device == Device::cuda ? communicator.status() : Status();
  }

 private:
  Buffer buffer_;
  int64_t count_;
  Stream stream_;
  Execution execution_;
};

class CommunicatorTest : public testing::TestWithParam<Backend> {
 protected:
  void SetUp() override { PROLOGUE_REQUIRE_BACKEND(GetParam()); }
  bool has_ranks(int64_t num_ranks) const { return Ranks::why_not(GetParam(), num_ranks).empty(); }
  bool is_cpu() const { return backend_device(GetParam()) == Device::cpu; }

  // Calls body(rank, its value) on the thread of each rank.
  void run(const Ranks& ranks, const std::function<void(int64_t, OneValue&)>& body, int64_t count = 1) const {
    ranks.run([&](int64_t rank) {
      OneValue one(GetParam(), count);
      ranks.meet();
      body(rank, one);
      ranks.meet();
    });
  }
};

TEST_P(CommunicatorTest, ARankThatDoesNotComeIsNamed) {
  CommunicatorOptions options;
  options.wait_seconds = 0.2;
  const struct {
    int64_t num_ranks;
    std::vector<int64_t> absent;
    std::string names;
  } cases[] = {{2, {1}, "rank 1"}, {2, {0}, "rank 0"}, {4, {0, 2}, "ranks 0 and 2"}, {4, {1, 2, 3}, "ranks 1, 2 and 3"}};
  for (const auto& c : cases) {
    if (!has_ranks(c.num_ranks)) continue;
    for (const int64_t count : {int64_t{1}, kManyValues}) {
      const Ranks ranks(GetParam(), c.num_ranks, options);
      const std::string message = str_cat("communicator: ", c.names, " did not come to a collective within 0.2 s");
      const auto comes = [&](int64_t rank) { return std::count(c.absent.begin(), c.absent.end(), rank) == 0; };
      const auto wait = [&](int64_t rank, OneValue& one) {
        float value = 1.0f;
        if (!comes(rank)) return;
        const Status status = one.reduce(ranks[rank], value);
        EXPECT_EQ(status.code(), StatusCode::device_error);
        EXPECT_EQ(status.message(), message);
      };
      run(ranks, wait, count);
      run(ranks, [&](int64_t rank, OneValue& one) {  // also on the ranks that did not come
        float value = 1.0f;
        EXPECT_EQ(ranks[rank].status().message(), message);
        EXPECT_EQ(one.reduce(ranks[rank], value).message(), message);
        EXPECT_EQ(value, 1.0f);
      });
    }
  }
}

TEST_P(CommunicatorTest, RanksMeetOnTheHost) {
  if (!has_ranks(2)) GTEST_SKIP();
  const Ranks ranks(GetParam(), 2, {.wait_seconds = 5.0});
  std::atomic<int> came = 0;
  ranks.run([&](int64_t rank) {
    for (int meeting = 1; meeting <= 20; ++meeting) {
      if (rank == meeting % 2) std::this_thread::sleep_for(std::chrono::microseconds(200));
      ++came;
      EXPECT_TRUE(ranks[rank].meet().ok());
      EXPECT_GE(came.load(), 2 * meeting);
    }
  });
}

TEST_P(CommunicatorTest, ARankThatDoesNotMeetIsNamed) {
  if (!has_ranks(2)) GTEST_SKIP();
  const Ranks ranks(GetParam(), 2, {.wait_seconds = 0.2});
  EXPECT_EQ(ranks[0].meet().message(), "communicator: rank 1 did not come to a collective within 0.2 s");
  EXPECT_EQ(ranks[1].meet().message(), "communicator: rank 1 did not come to a collective within 0.2 s");

  const Ranks ended(GetParam(), 2);
  std::thread other([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    ended[1].abort(data_loss("enough"));
  });
  EXPECT_EQ(ended[0].meet().message(), "enough");
  other.join();
}

TEST_P(CommunicatorTest, ARankMayComeLate) {
  if (!has_ranks(2)) GTEST_SKIP() << Ranks::why_not(GetParam(), 2);
  const Ranks ranks(GetParam(), 2);
  const auto reduce = [&](int64_t rank, OneValue& one) {
    for (int i = 0; i < 6; ++i) {
      if (i % 3 == rank) std::this_thread::sleep_for(std::chrono::milliseconds(3));
      float value = static_cast<float>(rank + i);
      EXPECT_TRUE(one.reduce(ranks[rank], value).ok());
      EXPECT_EQ(value, static_cast<float>(1 + 2 * i));
    }
  };
  run(ranks, reduce);
  run(ranks, reduce, kManyValues);
}

// Its kernel finds what the others have sent before they gave up. It must not use the addresses: their arrays may be gone.
TEST_P(CommunicatorTest, ARankThatComesTooLateTouchesNoArrays) {
  if (is_cpu()) GTEST_SKIP() << "a late call on the CPU returns the error";
  if (!has_ranks(2)) GTEST_SKIP() << Ranks::why_not(GetParam(), 2);
  const Ranks ranks(GetParam(), 2, {.wait_seconds = 0.1});
  ranks.run([&](int64_t rank) {
    Buffer buffer = std::move(Buffer::allocate(Device::cuda, kManyValues * 4).value());
    const Stream stream = std::move(Stream::create().value());
    Execution execution;
    execution.device = Device::cuda, execution.stream = stream.get();
    AllReduceParams p;
    p.num_tokens = 1, p.width = kManyValues, p.dtype = DType::f32, p.x = p.y = buffer.data();
    const auto graph = CapturedGraph::capture(execution, [&] { return all_reduce(p, ranks[rank], execution); });
    ASSERT_TRUE(graph.ok()) << graph.status().message();
    const std::vector<float> own(kManyValues, static_cast<float>(rank - 1));
    const auto launch = [&] { EXPECT_TRUE(graph->launch(execution).ok() && synchronize(execution).ok()); };
    ranks.meet();
    if (rank == 0) launch();
    EXPECT_TRUE(copy_to_device(buffer.data(), own.data(), kManyValues * 4, execution).ok());
    ranks.meet();
    if (rank == 1) launch();
    ranks.meet();
    std::vector<float> got(kManyValues);
    EXPECT_TRUE(copy_to_host(got.data(), buffer.data(), kManyValues * 4, execution).ok());
    EXPECT_EQ(got, own);
    EXPECT_EQ(ranks[rank].status().message(), "communicator: rank 1 did not come to a collective within 0.1 s");
    ranks.meet();
  });
}

TEST_P(CommunicatorTest, AbortWakesThoseThatWait) {
  const int64_t num_ranks = has_ranks(4) ? 4 : 2;
  if (!has_ranks(num_ranks)) GTEST_SKIP() << Ranks::why_not(GetParam(), num_ranks);
  const auto begin = std::chrono::steady_clock::now();
  for (const int64_t count : {int64_t{1}, kManyValues}) {
    const Ranks ranks(GetParam(), num_ranks);
    const auto wait = [&](int64_t rank, OneValue& one) {
      float value = 2.0f;
      if (rank == num_ranks - 1) {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));  // the others wait, and sleep
        ranks[rank].abort(data_loss("a rank has lost it"));
        ranks[rank].abort(data_loss("a later error"));
      }
      const Status status = one.reduce(ranks[rank], value);
      EXPECT_EQ(status.code(), StatusCode::data_loss);
      EXPECT_EQ(status.message(), "a rank has lost it");
    };
    run(ranks, wait, count);
    EXPECT_EQ(ranks[0].status().message(), "a rank has lost it");
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(9)) << "nobody has waited until the limit";
}

TEST_P(CommunicatorTest, AbortWithoutAnErrorIsOne) {
  if (!has_ranks(2)) GTEST_SKIP() << Ranks::why_not(GetParam(), 2);
  const Ranks ranks(GetParam(), 2);
  ranks[1].abort({});
  float value = 1.0f;
  EXPECT_EQ(OneValue(GetParam()).reduce(ranks[0], value).message(), "communicator: the group was ended by abort()");
}

// Whenever the group ends, no rank touches the arrays of one that has returned (CPU).
TEST_P(CommunicatorTest, AbortAtAnyTime) {
  const int64_t num_ranks = has_ranks(3) ? 3 : 2;
  if (!has_ranks(num_ranks)) GTEST_SKIP() << Ranks::why_not(GetParam(), num_ranks);
  for (int i = 0; i < (is_cpu() ? 60 : 20); ++i) {
    const int64_t count = i % 2 == 0 ? 20000 : kManyValues;
    const Ranks ranks(GetParam(), num_ranks);
    std::thread aborts([&] {
      std::this_thread::sleep_for(std::chrono::microseconds((is_cpu() ? 20 : 500) * i));
      ranks[0].abort(data_loss("stop"));
    });
    ranks.run([&](int64_t rank) {
      const std::vector<float> ones(static_cast<size_t>(count), 1.0f);
      std::vector<float> got(static_cast<size_t>(count));
      Stream stream;
      Execution execution;
      execution.device = backend_device(GetParam());
      if (!is_cpu()) stream = std::move(Stream::create().value()), execution.stream = stream.get();
      const auto allocate = [&] { return std::move(Buffer::allocate(execution.device, count * 4).value()); };
      Buffer y = allocate();
      ranks.meet();
      while (true) {
        if (is_cpu()) y = allocate();
        EXPECT_TRUE(copy_to_device(y.data(), ones.data(), count * 4, execution).ok());
        AllReduceParams p;
        p.num_tokens = 1, p.width = count, p.dtype = DType::f32, p.x = p.y = y.data();
        Status status = all_reduce(p, ranks[rank], execution);
        EXPECT_TRUE(copy_to_host(got.data(), y.data(), count * 4, execution).ok());
        if (status.ok() && !is_cpu()) status = ranks[rank].status();
        const auto sum = static_cast<float>(num_ranks);
        if (status.ok()) {
          EXPECT_EQ(got, std::vector<float>(static_cast<size_t>(count), sum));
          continue;
        }
        EXPECT_EQ(status.message(), "stop");
        for (const float value : got) ASSERT_TRUE(value == 1.0f || value == sum);
        if (is_cpu()) {
          std::fill_n(y.as<float>(), count, -1.0f);
          for (int64_t at = 0; at < count; ++at) ASSERT_EQ(y.as<float>()[at], -1.0f);
        }
        break;
      }
      ranks.meet();
    });
    aborts.join();
  }
}

// The others have the group until they end, too.
TEST_P(CommunicatorTest, ARankMayBeDestroyedFirst) {
  if (!has_ranks(2)) GTEST_SKIP() << Ranks::why_not(GetParam(), 2);
  CommunicatorOptions options;
  options.wait_seconds = 0.05;
  Ranks ranks(GetParam(), 2, options);
  ranks.destroy(1);
  float value = 1.0f;
  EXPECT_EQ(OneValue(GetParam()).reduce(ranks[0], value).message(),
            "communicator: rank 1 did not come to a collective within 0.05 s");
}

// The same where NCCL waits: a thread of the group looks whether all ranks come.
TEST_P(CommunicatorTest, NcclIsEndedToo) {
  if (is_cpu()) GTEST_SKIP() << "NCCL is CUDA's";
  CommunicatorOptions options;
  options.use_peer_memory = false;
  options.wait_seconds = 1.0;
  const std::string why_not = Ranks::why_not(GetParam(), 2, options);
  if (!why_not.empty()) GTEST_SKIP() << why_not;
  for (const bool aborts : {false, true}) {
    const Ranks ranks(GetParam(), 2, options);
    run(ranks, [&](int64_t rank, OneValue& one) {
      float value = 1.0f;
      EXPECT_TRUE(one.reduce(ranks[rank], value).ok());
      EXPECT_EQ(value, 2.0f);
      ranks.meet();
      if (rank == 1) {
        if (!aborts) return;
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        return ranks[1].abort(data_loss("a rank has lost it"));
      }
      EXPECT_EQ(one.reduce(ranks[0], value).message(),
                aborts ? "a rank has lost it" : "communicator: rank 1 did not come to a collective within 1 s");
      EXPECT_FALSE(one.reduce(ranks[0], value).ok());
    });
  }
}

// Both collectives in one captured graph, which is replayed: kernels count in the memory of their GPU.
TEST_P(CommunicatorTest, GraphsAreReplayed) {
  if (is_cpu()) GTEST_SKIP() << "graphs are CUDA's";
  for (const int64_t num_ranks : group_sizes(GetParam())) {
    const Ranks ranks(GetParam(), num_ranks);
    ranks.run([&](int64_t rank) {
      constexpr int64_t kWidth = 1500, kColumns = 300;
      constexpr int kReplays = 30;
      const auto buffer = [](int64_t count) { return std::move(Buffer::allocate(Device::cuda, count * 4).value()); };
      Buffer x = buffer(kWidth), y = buffer(kWidth), gathered = buffer(num_ranks * kColumns);
      auto stream = Stream::create();
      ASSERT_TRUE(stream.ok()) << stream.status().message();
      Execution execution;
      execution.device = Device::cuda, execution.stream = stream->get();
      AllReduceParams reduce;
      reduce.num_tokens = 1, reduce.width = kWidth, reduce.dtype = DType::f32, reduce.x = x.data(), reduce.y = y.data();
      AllReduceParams add = reduce;  // y = 2 * (the sum)
      add.adds = 1, add.overlaps = true;
      AllGatherParams gather;
      gather.num_tokens = 1, gather.width = num_ranks * kColumns, gather.part_width = kColumns, gather.dtype = DType::f32;
      gather.x = x.data(), gather.y = gathered.data();
      Buffer many_x = buffer(kManyValues), many_y = buffer(kManyValues);
      AllReduceParams reduce_many = reduce;
      reduce_many.width = kManyValues, reduce_many.x = many_x.data(), reduce_many.y = many_y.data(), reduce_many.overlaps = true;
      const auto graph = CapturedGraph::capture(execution, [&] {
        PROLOGUE_RETURN_IF_ERROR(all_reduce(reduce, ranks[rank], execution));
        PROLOGUE_RETURN_IF_ERROR(all_reduce(reduce_many, ranks[rank], execution));
        PROLOGUE_RETURN_IF_ERROR(all_gather(gather, ranks[rank], execution));
        return all_reduce(add, ranks[rank], execution);
      });
      ASSERT_TRUE(graph.ok()) << graph.status().message();
      ranks.meet();
      for (int i = 0; i < kReplays; ++i) {
        const auto part = [&](int64_t r) { return static_cast<float>(100 * i + r); };
        std::vector<float> sums(kWidth), columns(static_cast<size_t>(num_ranks * kColumns)), many(kManyValues, part(rank));
        EXPECT_TRUE(copy_to_device(x.data(), std::vector<float>(kWidth, part(rank)).data(), kWidth * 4, execution).ok());
        EXPECT_TRUE(copy_to_device(many_x.data(), many.data(), kManyValues * 4, execution).ok());
        EXPECT_TRUE(graph->launch(execution).ok());
        EXPECT_TRUE(copy_to_host(many.data(), many_y.data(), kManyValues * 4, execution).ok());
        EXPECT_TRUE(copy_to_host(sums.data(), y.data(), kWidth * 4, execution).ok());
        EXPECT_TRUE(copy_to_host(columns.data(), gathered.data(), num_ranks * kColumns * 4, execution).ok());
        float sum = 0.0f;
        for (int64_t r = 0; r < num_ranks; ++r) sum += part(r);
        for (const float value : sums) ASSERT_EQ(value, 2.0f * sum);
        for (const float value : many) ASSERT_EQ(value, sum);
        for (size_t c = 0; c < columns.size(); ++c) ASSERT_EQ(columns[c], part(static_cast<int64_t>(c) / kColumns));
        ASSERT_TRUE(ranks[rank].status().ok()) << ranks[rank].status().message();
      }
      ranks.meet();
    });
  }
}

TEST_P(CommunicatorTest, RanksAreGpusInAnyOrder) {
  if (is_cpu()) GTEST_SKIP() << "GPUs are CUDA's";
  CommunicatorOptions options;
  options.gpus = {1, 0};
  if (!Ranks::why_not(GetParam(), 2).empty()) GTEST_SKIP() << Ranks::why_not(GetParam(), 2);
  const Ranks ranks(GetParam(), 2, options);
  run(ranks, [&](int64_t gpu, OneValue& one) {
    Communicator& communicator = ranks[1 - gpu];
    float value = gpu == 0 ? 3.0f : 4.0f;
    EXPECT_TRUE(one.reduce(communicator, value).ok());
    EXPECT_EQ(value, 7.0f);
    const Status status = one.reduce(ranks[gpu], value);
    EXPECT_EQ(status.code(), StatusCode::invalid_argument);
    EXPECT_EQ(status.message(),
              str_cat("all_reduce: the thread's current device is GPU ", gpu, ", but rank ", gpu, " is GPU ", 1 - gpu));
  });
  options.gpus = {0, 99};
  const auto made = create_communicators(Device::cuda, 2, options);
  EXPECT_EQ(made.status().code(), StatusCode::invalid_argument);
  EXPECT_NE(made.status().message().find("communicator: rank 1 needs GPU 99: there are GPUs 0 to "), std::string::npos)
      << made.status().message();
  options.gpus = {0, 1};
  options.use_nccl = options.use_peer_memory = false;
  const auto neither = create_communicators(Device::cuda, 2, options);
  EXPECT_EQ(neither.status().code(), StatusCode::unsupported);
  EXPECT_EQ(
      neither.status().message(),
      "communicator: ranks on GPUs need peer access or NCCL. No peer access: use_peer_memory is false. No NCCL: use_nccl is "
      "false");
}

INSTANTIATE_TEST_SUITE_P(Backends, CommunicatorTest, testing::Values(Backend::cpu, Backend::cuda),
                         [](const auto& backend) { return backend_name(backend.param); });

}  // namespace
}  // namespace prologue::test
