// The helper of the refusal tests can fail: on another code, another message, no message, and on something written.
#include "tests/support/refusals.h"

#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace prologue::test {
namespace {

struct Count {
  int value = 1;
};

TEST(Refusals, FailWhereTheCallDoesNotRefuse) {
  const std::vector<Refusal<Count>> refusals = {{[](Count& count) { count.value = -1; }, "value is -1"}};
  const auto expect = [&](Refused<> result) {
    expect_refusals("count", refusals, [&](const auto& change) {
      Count count;
      change(count);
      EXPECT_EQ(count.value, -1);
      return result;
    });
  };
  expect({StatusCode::invalid_argument, "count: value is -1"});
  EXPECT_NONFATAL_FAILURE(expect({StatusCode::unsupported, "count: value is -1"}), "refusal.code");
  EXPECT_NONFATAL_FAILURE(expect({StatusCode::invalid_argument, "count: value is -2"}), "value is -2");
  EXPECT_NONFATAL_FAILURE(expect({StatusCode::invalid_argument, "value is -1"}), "count: value is -1");
  EXPECT_NONFATAL_FAILURE(expect({StatusCode::invalid_argument, "count: value is -1", false}), "untouched");

  const std::vector<Refusal<Count>> any = {{"any sentence", [](Count&) {}, StatusCode::unsupported, ""}};
  const auto call = [](const auto&) { return Refused<>{StatusCode::unsupported, ""}; };
  EXPECT_NONFATAL_FAILURE(expect_refusals("count", any, call), "message.empty()");
}

TEST(Refusals, AddressesAreLeftOutOnlyWhereTheListSaysSo) {
  EXPECT_EQ(without_addresses("y (96 bytes at 0x7f00) overlaps x (at 0x10)"), "y (96 bytes at @) overlaps x (at @)");
  const auto call = [](const auto&) { return Refused<>{StatusCode::invalid_argument, "x is at 0x18"}; };
  expect_refusals("", std::vector<Refusal<Count>>{{[](Count&) {}, "x is at @"}}, call);
  expect_refusals("", std::vector<Refusal<Count>>{{[](Count&) {}, "x is at 0x18"}}, call);
  EXPECT_NONFATAL_FAILURE(expect_refusals("", std::vector<Refusal<Count>>({{[](Count&) {}, "x is at 0x28"}}), call), "0x28");
}

}  // namespace
}  // namespace prologue::test
