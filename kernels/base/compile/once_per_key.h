// Makes a value for each key once, whatever number of threads ask for it. Internal.
#pragma once

#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>

#include <prologue/kernels/base/status.h>

namespace prologue::cuda {

template <class Value>
class OncePerKey {
 public:
  // Returns the value of the key; if there is none yet, that of make(), a Result<Value>. Meanwhile those who ask for the same key wait, and the
  // others do not. An error is kept like a value, since the next attempt would take as long and fail, too; but if memory ran out it may not.
  template <class Make>
  Result<Value> get(const std::string& key, const Make& make) {
    Entry* entry = nullptr;
    {
      const std::scoped_lock lock(mutex_);
      entry = &entries_[key];  // stays where it is
    }
    const std::scoped_lock lock(entry->mutex);
    if (!entry->result.has_value()) {
      Result<Value> made = make();
      if (!made.ok() && made.status().code() == StatusCode::resource_exhausted) return made;
      entry->result.emplace(std::move(made));
    }
    return *entry->result;
  }

 private:
  struct Entry {
    std::mutex mutex;
    std::optional<Result<Value>> result;
  };
  std::mutex mutex_;
  std::unordered_map<std::string, Entry> entries_;
};

}  // namespace prologue::cuda
