// This is the HTTP side of the server, on Boost.Beast. It knows paths, methods, keys, hosts and limits, not the API.
//
// One thread waits for all connections, reads their requests and sends their answers. A request with a body that has arrived gets a
// thread until it is answered. So clients that are idle, send slowly or read slowly cost a socket and a few kilobytes.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <prologue/kernels/base/status.h>

namespace serve {

struct HttpOptions {
  std::string api_key;                     // empty: nobody needs one
  std::vector<std::string> allowed_hosts;  // which Host and Origin may name, see http_rules.h
  int64_t max_requests = 512;              // in work at once, each in a thread; others get status 429
  int64_t max_body_bytes = 4 << 20;
  std::chrono::seconds read_time{30};   // from the connection, or the first byte of a later request, to its last byte
  std::chrono::seconds write_time{30};  // for each 64 KB of an answer
  std::chrono::seconds idle_time{15};   // between two requests of a connection
};

// A handler may find out about the connection while it works.
class Peer {
 public:
  virtual ~Peer() = default;
  virtual bool gone() const = 0;                  // the client has closed the connection: nobody reads the answer
  virtual void note(std::string text) const = 0;  // becomes HttpExchange::note
};

struct HttpRequest {
  std::string path;  // percent-decoded, without the query
  std::string body;
};

struct HttpResponse {
  // Writes some of the body; waits while the client has not read what was written before. False: the client is gone.
  using Write = std::function<bool(std::string_view data)>;

  int status = 200;
  std::string content_type = "application/json";
  std::string body = {};
  std::vector<std::pair<std::string, std::string>> headers = {};
  // Instead of `body`: called once, after the status and the headers have been sent. It writes all of the body and returns true, or
  // returns false, and the connection ends without the end of the body.
  std::function<bool(const Write& write)> stream = {};
};

using HttpHandler = std::function<HttpResponse(const HttpRequest& request, const Peer& peer)>;

struct HttpRoute {
  std::string
      method;        // GET, which serves HEAD, too: the handler is called by the thread of all connections, and must be quick and
                     // have no `stream`. Or POST, whose body must be JSON: the handler has a thread of its own
  std::string path;  // with a slash at its end: everything below it
  bool needs_key = true;  // if HttpOptions::api_key is set
  HttpHandler handler;    // what it throws becomes an answer: ApiError (errors.h), or status 500
};

// Holds a request and its answer, after the last byte has been sent or the client has gone.
struct HttpExchange {
  std::string client;                              // its address
  std::string method;                              // empty: the request was not HTTP
  std::string route;                               // the path of a route, or "other"
  int status = 0;                                  // of the answer
  int64_t num_bytes = 0;                           // of the answer with its headers, as far as they were sent
  bool complete = false;                           // all of the answer was sent
  std::string note = {};                           // of the handler
  std::chrono::steady_clock::duration duration{};  // since the headers of the request had arrived
};

class HttpServer {
 public:
  using OnExchange = std::function<void(const HttpExchange& exchange)>;

  // Raises the limit of open files of this process as far as the system lets it.
  HttpServer(const HttpOptions& options, std::vector<HttpRoute> routes, OnExchange on_exchange);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // Listens on an address; port 0: any free one. Returns the port. From here on, clients can connect.
  prologue::Result<int> bind(const std::string& host, int port);
  // Serves until stop(). False: the system took the socket away.
  bool run();
  // May be called in any thread, after bind(). Connections that wait for a request are closed; run() returns after the handlers have.
  void stop();

 private:
  class Connection;
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace serve
