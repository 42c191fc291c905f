#include <prologue/kernels/collective/communicator.h>

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <thread>
#include <vector>

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

// A collective of one value on a rank of the CPU.
Status reduce_one(Communicator& communicator, float& value) {
  AllReduceParams p;
  p.num_tokens = 1, p.width = 1, p.dtype = DType::f32, p.x = p.y = &value;
  return all_reduce(p, communicator, {});
}

TEST(Communicator, ARankThatDoesNotComeIsNamed) {
  CommunicatorOptions options;
  options.wait_seconds = 0.2;
  const struct {
    int64_t num_ranks;
    std::vector<int64_t> absent;
    std::string names;
  } cases[] = {{2, {1}, "rank 1"}, {2, {0}, "rank 0"}, {4, {0, 2}, "ranks 0 and 2"}, {4, {1, 2, 3}, "ranks 1, 2 and 3"}};
  for (const auto& c : cases) {
    const Ranks ranks(Backend::cpu, c.num_ranks, options);
    const std::string message = str_cat("communicator: ", c.names, " did not come to a collective within 0.2 s");
    const auto comes = [&](int64_t rank) { return std::count(c.absent.begin(), c.absent.end(), rank) == 0; };
    ranks.run([&](int64_t rank) {
      float value = 1.0f;
      if (!comes(rank)) return;
      const Status status = reduce_one(ranks[rank], value);
      EXPECT_EQ(status.code(), StatusCode::device_error);
      EXPECT_EQ(status.message(), message);
      EXPECT_EQ(value, 1.0f);
    });
    for (int64_t r = 0; r < c.num_ranks; ++r) {  // also on the ranks that did not come
      float value = 1.0f;
      EXPECT_EQ(ranks[r].status().message(), message);
      EXPECT_EQ(reduce_one(ranks[r], value).message(), message);
    }
  }
}

TEST(Communicator, ARankMayComeLate) {
  const Ranks ranks(Backend::cpu, 3);
  ranks.run([&](int64_t rank) {
    for (int i = 0; i < 5; ++i) {
      if (i % 3 == rank) std::this_thread::sleep_for(std::chrono::milliseconds(3));
      float value = static_cast<float>(rank + i);
      EXPECT_TRUE(reduce_one(ranks[rank], value).ok());
      EXPECT_EQ(value, static_cast<float>(3 + 3 * i));
    }
  });
}

TEST(Communicator, AbortWakesThoseThatWait) {
  const Ranks ranks(Backend::cpu, 4);
  ranks.run([&](int64_t rank) {
    float value = 2.0f;
    if (rank == 3) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));  // the others sleep
      ranks[3].abort(data_loss("rank 3 has lost it"));
      ranks[3].abort(data_loss("a later error"));
    }
    const Status status = reduce_one(ranks[rank], value);
    EXPECT_EQ(status.code(), StatusCode::data_loss);
    EXPECT_EQ(status.message(), "rank 3 has lost it");
    EXPECT_EQ(value, 2.0f);
  });
  EXPECT_EQ(ranks[0].status().message(), "rank 3 has lost it");
}

TEST(Communicator, AbortWithoutAnErrorIsOne) {
  const Ranks ranks(Backend::cpu, 2);
  ranks[1].abort({});
  float value = 1.0f;
  EXPECT_EQ(reduce_one(ranks[0], value).message(), "communicator: the group was ended by abort()");
}

// Whenever the group ends, no rank touches the arrays of one that has returned.
TEST(Communicator, AbortAtAnyTime) {
  for (int i = 0; i < 60; ++i) {
    const Ranks ranks(Backend::cpu, 3);
    std::thread aborts([&] {
      std::this_thread::sleep_for(std::chrono::microseconds(20 * i));
      ranks[0].abort(data_loss("stop"));
    });
    ranks.run([&](int64_t rank) {
      while (true) {
        auto values = std::make_unique<std::vector<float>>(20000, 1.0f);
        AllReduceParams p;
        p.num_tokens = 1, p.width = 20000, p.dtype = DType::f32, p.x = p.y = values->data();
        const Status status = all_reduce(p, ranks[rank], {});
        if (!status.ok()) {
          EXPECT_EQ(status.message(), "stop");
          values->assign(20000, -1.0f);
          for (const float value : *values) ASSERT_EQ(value, -1.0f);
          return;
        }
        for (const float value : *values) ASSERT_EQ(value, 3.0f);
      }
    });
    aborts.join();
  }
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

// The others have the group until they end, too.
TEST(Communicator, ARankMayBeDestroyedFirst) {
  CommunicatorOptions options;
  options.wait_seconds = 0.05;
  Ranks ranks(Backend::cpu, 2, options);
  ranks.destroy(1);
  float value = 1.0f;
  EXPECT_EQ(reduce_one(ranks[0], value).message(), "communicator: rank 1 did not come to a collective within 0.05 s");
}

}  // namespace
}  // namespace prologue::test
