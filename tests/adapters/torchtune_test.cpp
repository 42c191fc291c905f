#include <prologue/adapters/torchtune.h>

#include "tests/adapters/golden.h"

namespace prologue::test {
namespace {

namespace ours = adapters::torchtune;

PROLOGUE_ADAPTER(Torchtune);

// Runs the block of the page over the tensors of a call.
Status page(const ours::RotaryPositionalEmbeddings& c, FaultRecord* faults, const Execution& execution) {
  const void* const x = c.x;
  void* const out = c.out;
  const float* const cache = c.cache;
  const DType dtype = c.dtype;
  const int64_t b = c.b, s = c.s, n_h = c.n_h, h_d = c.h_d, max_seq_len = c.max_seq_len;
  const IndexView input_pos = c.input_pos;
#include "torchtune.inc"
  return status;
}

struct Outcome {
  Bytes out;
  Fault fault;
};

Outcome run(Backend backend, const Golden& g, const Golden* cache, const std::vector<int64_t>& input_pos,
            bool as_on_page = false) {
  const DType type = g.array("out").type;
  Arena arena(backend);
  ours::RotaryPositionalEmbeddings call;
  call.dtype = type;
  call.b = g.integer("b");
  call.s = g.integer("s");
  call.n_h = g.integer("n_h");
  call.h_d = g.integer("h_d");
  call.max_seq_len = g.integer("max_seq_len");
  call.base = g.number("base");
  const Bytes x = encode(type, fill(1, call.b * call.s * call.n_h * call.h_d));
  call.x = arena.input(x);
  auto* out = arena.output<unsigned char>(static_cast<int64_t>(x.size()));
  call.out = out;
  if (cache != nullptr) {
    const Values& values = cache->array("cache").values;
    call.cache = arena.input(std::vector<float>(values.begin(), values.end()));
  }
  if (!input_pos.empty()) call.input_pos = index_view(arena.input(input_pos));
  call.input_pos_per_batch = static_cast<int64_t>(input_pos.size()) > call.s;
  FaultRecord* faults = arena.inout(std::vector<FaultRecord>(1));
  const Status status = arena.run([&](const Execution& execution) {
    return as_on_page ? page(call, faults, execution) : ours::forward(call, faults, execution);
  });
  EXPECT_TRUE(status.ok()) << status.message();
  return {arena.read(out), read_fault(arena, faults)};
}

const double kRounding = std::ldexp(3.0, -24);  // torchtune rounds both products; a fused multiply-add rounds one

TEST_P(Torchtune, Goldens) {
  Golden cache;
  for (const Golden& g : read_goldens("torchtune")) {
    SCOPED_TRACE(g.name);
    if (g.has("cache")) {
      cache = g;
      continue;
    }
    const auto input_pos = g.has("input_pos") ? g.integers("input_pos") : std::vector<int64_t>();
    expect_golden(run(GetParam(), g, &cache, input_pos).out, g.array("out"), kRounding);
    // Without the cache, torchtune's angles, formed in float32 below position 20, are off by up to 4 * 2^-24 of them.
    expect_golden(run(GetParam(), g, nullptr, input_pos).out, g.array("out"), std::ldexp(2.0 * 4.0 * 20.0, -24));
  }
}

TEST_P(Torchtune, AsOnThePage) {
  const auto goldens = read_goldens("torchtune");
  int cases = 0;
  for (const Golden& g : goldens) {
    if (g.name.find("base10000_shared") != 0) continue;
    SCOPED_TRACE(g.name);
    expect_golden(run(GetParam(), g, &goldens.front(), g.integers("input_pos"), true).out, g.array("out"), kRounding);
    ++cases;
  }
  EXPECT_EQ(cases, 3);
}

TEST(TorchtuneCall, IsChecked) {
  ours::RotaryPositionalEmbeddings call;
  call.max_seq_len = 0;
  EXPECT_EQ(ours::forward(call, nullptr, {}).message(), "torchtune: max_seq_len is 0: it must be positive");
  call.s = -1;
  EXPECT_EQ(ours::forward(call, nullptr, {}).message(), "torchtune: s is -1: it must lie in 0..2147483647");
}

// A negative position wraps in PyTorch: here its token is padding. One past the cache is an error there, zeros and a record here.
TEST_P(Torchtune, PositionsOutsideTheCache) {
  const auto goldens = read_goldens("torchtune");
  for (const bool with_cache : {false, true}) {
    for (const Golden& g : goldens) {
      if (g.name.find("base10000_shared") != 0) continue;
      SCOPED_TRACE(g.name);
      auto positions = g.integers("input_pos");
      positions[0] = -1;
      positions[1] = 20;
      const Outcome result = run(GetParam(), g, with_cache ? &goldens.front() : nullptr, positions);
      EXPECT_EQ(result.fault.code, FaultCode::position_out_of_range);
      EXPECT_EQ(result.fault.token, 1);
      EXPECT_EQ(result.fault.count, 2u);  // of two sequences
      const auto row = static_cast<int64_t>(result.out.size()) / (g.integer("b") * g.integer("s"));
      EXPECT_EQ(Bytes(result.out.begin(), result.out.begin() + row), Bytes(static_cast<size_t>(row), kPoison));
      EXPECT_EQ(Bytes(result.out.begin() + row, result.out.begin() + 2 * row), Bytes(static_cast<size_t>(row), 0));
    }
  }
}

}  // namespace
}  // namespace prologue::test
