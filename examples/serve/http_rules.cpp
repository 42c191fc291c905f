#include "http_rules.h"

#include <algorithm>
#include <boost/asio/ip/address.hpp>
#include <boost/beast/core/string.hpp>
#include <charconv>
#include <limits>

#include <prologue/engine/base/printable.h>

#include "errors.h"

namespace serve {

using namespace prologue;

namespace {

bool iequals(std::string_view a, std::string_view b) { return boost::beast::iequals({a.data(), a.size()}, {b.data(), b.size()}); }

int hex_digit(char c) {
  return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

std::string percent_decoded(std::string_view text) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      decoded += text[i];
      continue;
    }
    const int high = i + 2 < text.size() ? hex_digit(text[i + 1]) : -1, low = high < 0 ? -1 : hex_digit(text[i + 2]);
    if (low < 0) throw ApiError{400, "the path has a % without two hexadecimal digits"};
    decoded += static_cast<char>(high * 16 + low);
    i += 2;
  }
  return decoded;
}

// Returns the name or address of `name:port`, in small letters; `[::1]` without its brackets. Empty: it has none.
std::string host_of(std::string_view authority) {
  size_t end;
  std::string_view host;
  if (authority.starts_with('[')) {
    end = authority.find(']');
    if (end == authority.npos) return {};
    host = authority.substr(1, end++ - 1);
  } else {
    end = std::min(authority.find(':'), authority.size());
    host = authority.substr(0, end);
    if (host.ends_with('.')) host.remove_suffix(1);
  }
  const std::string_view port = authority.substr(end);
  const bool is_port = port.empty() || (port[0] == ':' && port.find_first_not_of("0123456789", 1) == port.npos);
  if (!is_port) return {};
  std::string small(host);
  for (char& c : small) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c;
  return small;
}

bool is_loopback(const std::string& host) {
  boost::system::error_code not_an_address;
  const auto address = boost::asio::ip::make_address(host, not_an_address);
  return not_an_address ? host == "localhost" || host.ends_with(".localhost") : address.is_loopback();
}

}  // namespace

HttpTarget read_target(std::string_view target) {
  HttpTarget result;
  const size_t scheme = target.find("://");
  if (scheme != target.npos && (iequals(target.substr(0, scheme), "http") || iequals(target.substr(0, scheme), "https"))) {
    target.remove_prefix(scheme + 3);
    const size_t end = std::min(target.find_first_of("/?"), target.size());
    result.authority = target.substr(0, end);
    target.remove_prefix(end);
    if (!target.starts_with('/')) target = "/";
  }
  result.path = percent_decoded(target.substr(0, target.find_first_of("?#")));
  return result;
}

HostRules::HostRules(std::vector<std::string> allowed) : any_(false), allowed_(std::move(allowed)) {
  for (std::string& name : allowed_) {
    any_ = any_ || name == "*";
    const bool is_v6 = std::count(name.begin(), name.end(), ':') > 1 && !name.starts_with('[');
    name = host_of(is_v6 ? "[" + name + "]" : name);
  }
}

bool HostRules::allows(std::string_view authority) const {
  const std::string host = host_of(authority);
  return !host.empty() && (is_loopback(host) || std::find(allowed_.begin(), allowed_.end(), host) != allowed_.end());
}

void HostRules::check(std::string_view host, std::string_view origin) const {
  if (any_) return;
  const auto refuse = [](const char* header, std::string_view value) {
    throw ApiError{403,
                   str_cat("the request's ", header, " is ", in_quotes(value),
                           ", which is not a loopback name, and not one of the server's --allowed-hosts"),
                   {},
                   "host_not_allowed"};
  };
  if (!host.empty() && !allows(host)) refuse("Host", host);
  if (origin.empty()) return;
  const size_t scheme = origin.find("://");  // an Origin without one is "null": a page that hides where it is from
  if (scheme == origin.npos || !allows(origin.substr(scheme + 3))) refuse("Origin", origin);
}

std::string misuse_of_host(const std::string& name) {
  if (name == "*") return {};
  boost::system::error_code not_an_address;
  boost::asio::ip::make_address(name, not_an_address);
  const bool is_name = !name.empty() && name.find_first_of(":/[]@*, \t") == name.npos;
  if (is_name || !not_an_address) return {};
  return str_cat(in_quotes(name), " must be a name or an address without scheme and port, or '*' for any");
}

std::string misuse_of_key(std::string_view key) {
  if (key.empty()) return "is empty: it must have at least one character";
  const auto is_control = [](char c) { return static_cast<unsigned char>(c) < ' ' || c == 127; };
  if (std::any_of(key.begin(), key.end(), is_control)) return "has a control character, which no HTTP header can carry";
  if (key.front() == ' ' || key.back() == ' ') return "begins or ends with a space, which no HTTP header can carry";
  return {};
}

bool same_key(std::string_view given, std::string_view key) {
  if (given.size() != key.size()) return false;
  unsigned difference = 0;
  for (size_t i = 0; i < key.size(); ++i) difference |= static_cast<unsigned>(given[i] ^ key[i]);
  return difference == 0;
}

std::optional<uint64_t> check_body_headers(const BodyHeaders& headers, uint64_t max_body_bytes) {
  // A web page of another site can send forms and plain text without asking, but not this type.
  std::string_view type = headers.content_type.substr(0, headers.content_type.find(';'));
  while (type.ends_with(' ') || type.ends_with('\t')) type.remove_suffix(1);
  if (!iequals(type, "application/json")) throw ApiError{415, "the Content-Type must be application/json"};
  if (!headers.content_encoding.empty() && !iequals(headers.content_encoding, "identity")) {
    throw ApiError{415, str_cat("the body's Content-Encoding is ", in_quotes(headers.content_encoding), ": it must have none")};
  }
  if (headers.num_encodings > 0) {
    if (headers.num_lengths > 0) throw ApiError{400, "a request has either Content-Length or Transfer-Encoding, not both"};
    if (headers.num_encodings > 1 || !iequals(headers.transfer_encoding, "chunked")) {
      throw ApiError{501, "the only supported Transfer-Encoding is chunked"};
    }
    return std::nullopt;
  }
  if (headers.num_lengths == 0) throw ApiError{411, "the request has no Content-Length"};
  const std::string_view text = headers.content_length;
  uint64_t length = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), length);
  if (headers.num_lengths > 1 || rest != text.data() + text.size() || error != std::errc()) {
    throw ApiError{400, "Content-Length must be one whole number"};
  }
  if (length > max_body_bytes) throw body_too_large(max_body_bytes);
  return length;
}

std::string hexadecimal(uint64_t value) {
  char digits[16];
  return {digits, std::to_chars(digits, digits + sizeof digits, value, 16).ptr};
}

ApiError body_too_large(uint64_t max_body_bytes) {
  return {413, str_cat("the body is too large: at most ", max_body_bytes, " bytes are read"), {}, "body_too_large"};
}

}  // namespace serve
