// The lists of members that c/generate.py writes, and what follows from them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include <prologue/kernels/attention_prologue/attention_prologue.h>
#include <prologue/kernels/base/host/members.h>
#include <prologue/kernels/rotary/rotary.h>

#include "tests/support/changed_members.h"

namespace prologue::test {
namespace {

// The members are one after another, with no more between them than their alignment needs: none is missing.
template <class Struct>
void expect_complete() {
  const Struct object = {};
  const char* const begin = reinterpret_cast<const char*>(&object);
  size_t end = 0;
  const auto follows = [&](const char* name, const auto& member) {
    using Member = std::remove_reference_t<decltype(member)>;
    const auto offset = static_cast<size_t>(reinterpret_cast<const char*>(&member) - begin);
    EXPECT_EQ(offset, (end + alignof(Member) - 1) / alignof(Member) * alignof(Member)) << name;
    end = offset + sizeof(Member);
    return true;
  };
  Members<Struct>::visit(follows, object);
  EXPECT_EQ((end + alignof(Struct) - 1) / alignof(Struct) * alignof(Struct), sizeof(Struct));
}

TEST(Members, AreComplete) {
  expect_complete<Rope>();
  expect_complete<RotaryParams>();
  expect_complete<RotaryTensor>();
  expect_complete<AttentionPrologueParams>();
  expect_complete<HeadNorm>();
  expect_complete<TokenPlaces>();
  expect_complete<PagedKvView>();
}

TEST(Members, HaveTheNamesThatACallerWrites) {
  std::vector<std::string> names;
  with_each_member_changed(RotaryParams(), [&](const std::string& name, const RotaryParams&) { names.push_back(name); });
  for (const char* name : {"batch", "tensors[3].x", "tensors[0].y_strides.channel", "rope.cos", "rope.cos.row_stride",
                           "positions.ids", "positions.ids.type", "token_faults", "reserved[7]"}) {
    EXPECT_EQ(std::count(names.begin(), names.end(), name), 1) << name;
  }
}

TEST(Members, AreEqualIfNoneDiffers) {
  Rope rope;
  rope.rotary_dim = 64;
  EXPECT_TRUE(equal(rope, rope));
  int members = 0;
  with_each_member_changed(rope, [&](const std::string& name, const Rope& changed) {
    EXPECT_FALSE(equal(rope, changed)) << name;
    ++members;
  });
  EXPECT_GT(members, 25);
}

}  // namespace
}  // namespace prologue::test
