// Tests what an operation refuses, by a list with one call for each rule of its contract. The call breaks the rule, fails with the code and
// the sentence of the rule, and writes nothing.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>

#include <prologue/kernels/base/status.h>

#include "tests/support/arena.h"

namespace prologue::test {

// Holds a change that makes a valid call break a rule, and the error that the call then returns. An adapter's test may use the error codes
// of the other system.
template <class Params, class Code = StatusCode>
struct Refusal {
  using Change = std::function<void(Params&)>;
  Refusal(Change breakage, std::string sentence) : Refusal(std::move(breakage), Code::invalid_argument, std::move(sentence)) {}
  Refusal(Change breakage, Code error, std::string sentence) : Refusal(sentence, std::move(breakage), error, sentence) {}
  Refusal(std::string title, Change breakage, std::string sentence)
      : Refusal(std::move(title), std::move(breakage), Code::invalid_argument, std::move(sentence)) {}
  Refusal(std::string title, Change breakage, Code error, std::string sentence)
      : name(std::move(title)), change(std::move(breakage)), code(error), message(std::move(sentence)) {}

  std::string name;
  Change change;
  Code code;
  std::string message;  // what follows "operation: ", with '@' for an address; empty: any sentence
};

// Says what a changed call returned, and whether it wrote anything.
template <class Code = StatusCode>
struct Refused {
  Code code;
  std::string message;
  bool untouched = true;
};

// Describes a run in an arena that returned `status`.
inline Refused<> refused(const Status& status, const Arena& arena) {
  return {status.code(), status.message(), arena.untouched()};
}

// Replaces each address in a message by '@'.
inline std::string without_addresses(std::string message) {
  for (size_t at = 0; (at = message.find("0x", at)) != message.npos; ++at) {
    message.replace(at, message.find_first_not_of("0123456789abcdef", at + 2) - at, "@");
  }
  return message;
}

// Runs a list. call(change) makes the parameters of a valid call, applies `change` to them, runs the call, and returns a Refused. Messages
// begin with "operation: "; if `operation` is empty, the list has whole messages.
template <class Refusals, class Call>
void expect_refusals(const std::string& operation, const Refusals& refusals, const Call& call) {
  for (const auto& refusal : refusals) {
    SCOPED_TRACE(refusal.name);
    const auto result = call(refusal.change);
    EXPECT_EQ(result.code, refusal.code);
    EXPECT_FALSE(result.message.empty());
    if (!refusal.message.empty()) {
      const bool has_address = refusal.message.find('@') != refusal.message.npos;
      EXPECT_EQ(has_address ? without_addresses(result.message) : result.message,
                (operation.empty() ? "" : operation + ": ") + refusal.message);
    }
    EXPECT_TRUE(result.untouched);
  }
}

}  // namespace prologue::test
