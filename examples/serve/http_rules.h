// This file has what a request must obey before it is routed: its target, its host, its key, and the headers of its body.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace serve {

// Holds the target of a request line: `/path?query`, or `http://authority/path?query`.
struct HttpTarget {
  std::string authority;  // empty: the header Host has it
  std::string path;       // percent-decoded, without the query
};
HttpTarget read_target(std::string_view target);  // ApiError: a % without two hexadecimal digits

// Says which names of this server a request may use. A page of another site can point its own name at 127.0.0.1 (DNS rebinding); then the
// browser takes this server for that site, but names it in Host. So a server on a loopback address answers to loopback names only:
// localhost, names below it, 127.0.0.0/8 and ::1. Others are allowed one by one.
class HostRules {
 public:
  // No rules: any name.
  HostRules() = default;
  // `allowed` has names and addresses without a port; "*": any.
  explicit HostRules(std::vector<std::string> allowed);

  // Both may be empty: then the header was not there. ApiError: neither a loopback name nor allowed.
  void check(std::string_view host, std::string_view origin) const;

 private:
  bool allows(std::string_view authority) const;

  bool any_ = true;
  std::vector<std::string> allowed_;
};

// Returns an empty string, or what is wrong with a name for HostRules.
std::string misuse_of_host(const std::string& name);
// Returns an empty string, or why no client could send this key.
std::string misuse_of_key(std::string_view key);

// Takes the same time for every key of the right length.
bool same_key(std::string_view given, std::string_view key);

// Holds the headers of a request that say what its body is.
struct BodyHeaders {
  std::string_view content_type, content_encoding, content_length, transfer_encoding;
  size_t num_lengths = 0, num_encodings = 0;  // how many Content-Length and Transfer-Encoding there are
};
// Returns the length that is announced; none: the body comes in chunks. ApiError: what is not acceptable.
std::optional<uint64_t> check_body_headers(const BodyHeaders& headers, uint64_t max_body_bytes);

std::string hexadecimal(uint64_t value);  // without 0x

struct ApiError;
ApiError body_too_large(uint64_t max_body_bytes);

}  // namespace serve
