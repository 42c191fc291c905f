#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <prologue/kernels/base/status.h>

namespace prologue {
namespace {

TEST(Messages, HoldNumbersCharactersTextAndAddresses) {
  const int8_t small = -3;
  const uint8_t byte = 200;
  EXPECT_EQ(
      str_cat(small, ' ', byte, ' ', std::numeric_limits<int64_t>::min(), ' ', std::numeric_limits<uint64_t>::max(), ' ', true),
      "-3 200 -9223372036854775808 18446744073709551615 1");
  EXPECT_EQ(str_cat(0.1f, ' ', 1e-6, ' ', 123456789.0, ' ', 2.5), "0.1 1e-06 1.23457e+08 2.5");
  char array[] = "array";
  const char* pointer = "pointer";
  char* written = array;
  EXPECT_EQ(str_cat(array, ' ', pointer, ' ', written, ' ', std::string("string"), ' ', std::string_view("view of it", 4)),
            "array pointer array string view");
  EXPECT_EQ(str_cat(std::string_view("a\0b", 3)), std::string("a\0b", 3));
  const void* address = reinterpret_cast<const void*>(uintptr_t{0x1234});
  EXPECT_EQ(str_cat(address, " ", reinterpret_cast<const float*>(uintptr_t{0x10})), "0x1234 0x10");
}

TEST(StatusTest, CopiesShareTheError) {
  Status error = invalid_argument("head_dim is ", 7);
  const Status copy = error;
  EXPECT_EQ(&copy.message(), &error.message());
  const Status moved = std::move(error);
  EXPECT_TRUE(error.ok());  // NOLINT(bugprone-use-after-move)
  EXPECT_EQ(error.code(), StatusCode::ok);
  EXPECT_EQ(error.message(), "");
  EXPECT_EQ(moved.code(), StatusCode::invalid_argument);
  error = copy;
  error = *&error;
  EXPECT_EQ(error.message(), "head_dim is 7");
  error = Status();
  EXPECT_TRUE(error.ok());
  EXPECT_EQ(copy.message(), "head_dim is 7");
}

TEST(StatusTest, ThreadsShareAnError) {
  for (const Status& error : {not_found("a message that is too long for the string object itself"), Status::out_of_memory()}) {
    const std::string message = error.message();
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([error, &message] {
        for (int n = 0; n < 10000; ++n) {
          Status copy = error;
          const Status moved = std::move(copy);
          ASSERT_EQ(moved.message(), message);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(error.message(), message);
  }
  EXPECT_EQ(Status::out_of_memory().code(), StatusCode::resource_exhausted);
}

}  // namespace
}  // namespace prologue
