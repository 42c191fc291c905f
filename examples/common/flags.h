// This file has flags of a command line whose values are checked: numbers in a range, sizes in bytes, words of a list.
#pragma once

#include <CLI/CLI.hpp>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <type_traits>
#include <vector>

#include <prologue/engine/base/printable.h>
#include <prologue/kernels/base/status.h>

namespace examples {

template <class T>
struct Range {
  T min, max;
  const char* note = "";  // what a special value means
  bool open = false;      // min itself is not allowed
};

// Says what is wrong with a command line; an option that does not exist comes first, with the one that may have been meant.
std::string message_of(const CLI::ParseError& error, const CLI::App& app);

// Returns what is wrong with options of text that were given and are empty, which is mostly a variable of a script that is not set.
std::string misuse_of_empty(const CLI::App& app, std::initializer_list<const char*> names);

class Flags {
 public:
  explicit Flags(CLI::App& app) : app_(&app) {}

  CLI::App& app() { return *app_; }
  // Returns the message about the first wrong value; empty: none. Known after the command line has been parsed.
  const std::string& misuse() const { return misuse_; }

  // Reads a decimal number in a range, and nothing else: no sign before unsigned ones, no hexadecimal, no nan.
  template <class T>
  CLI::Option* number(const std::string& name, T& target, const Range<T>& range, const std::string& help) {
    const auto parse = [this, &target, name, range](const std::string& text) {
      const char* end = text.data() + text.size();
      T value{};
      const auto [rest, error] = std::from_chars(text.data(), end, value);
      bool valid =
          error == std::errc() && rest == end && value <= range.max && (range.open ? value > range.min : value >= range.min);
      if constexpr (std::is_floating_point_v<T>) valid = valid && std::isfinite(value);
      if (valid) {
        target = value;
      } else {
        using prologue::str_cat;
        refuse(name, text,
               str_cat(std::is_integral_v<T> ? "whole " : "", "number ",
                       range.open ? str_cat("above ", range.min, " and at most ", range.max)
                                  : str_cat("between ", range.min, " and ", range.max),
                       *range.note != 0 ? str_cat(" (", range.note, ")") : ""));
      }
    };
    return app_->add_option_function<std::string>(name, parse, help)->type_name("N")->default_str(prologue::str_cat(target));
  }

  // Reads a number of bytes: a whole number, which may end with K, M, G or T (powers of 1024).
  CLI::Option* size(const std::string& name, int64_t& target, int64_t min, const std::string& help,
                    int64_t max = std::numeric_limits<int64_t>::max());

  // Reads one of some words.
  CLI::Option* choice(const std::string& name, std::string& target, const std::vector<std::string>& words,
                      const std::string& help);

 private:
  void refuse(const std::string& name, const std::string& text, const std::string& rule) {
    if (misuse_.empty()) misuse_ = prologue::str_cat(name, " is ", prologue::in_quotes(text), ": it must be a ", rule);
  }

  CLI::App* app_;
  std::string misuse_;
};

}  // namespace examples
