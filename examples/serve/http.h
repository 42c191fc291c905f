// The HTTP side of the server: cpp-httplib, with sockets and threads of our own. It knows paths, methods, keys and limits, not the API.
//
// A connection serves one request and is closed. So an idle client holds no thread, and a body that was refused unread is never taken
// for the next request.
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
  std::string api_key;            // empty: nobody needs one
  int64_t max_connections = 512;  // threads; more connections wait
  int64_t max_body_bytes = 4 << 20;
  std::chrono::seconds read_time{30};   // from the connection to the last byte of its request
  std::chrono::seconds write_time{30};  // without progress, because the client does not read
};

// What a handler may ask about the connection while it works.
class Peer {
 public:
  virtual ~Peer() = default;
  virtual bool gone() const = 0;  // the client has closed the connection: nobody reads the answer
};

struct HttpRequest {
  std::string path;
  std::string body;
};

struct HttpResponse {
  // Writes some of the body. False: the client is gone.
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
  std::string method;     // GET, which serves HEAD, too; or POST, whose body must be JSON
  std::string path;       // with a slash at its end: everything below it
  bool needs_key = true;  // if HttpOptions::api_key is set
  HttpHandler handler;    // what it throws becomes an answer: ApiError (errors.h), or status 500
};

class HttpServer {
 public:
  // Called after every response with its status. `route` is the path of a route, or "other".
  using OnResponse = std::function<void(const std::string& route, int status)>;

  HttpServer(const HttpOptions& options, std::vector<HttpRoute> routes, OnResponse on_response);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // Listens on an address; port 0: any free one. Returns the port. From here on, clients can connect.
  prologue::Result<int> bind(const std::string& host, int port);
  // Serves until stop(). False: the system took the socket away.
  bool run();
  // Any thread, after bind(). Connections that wait for a request are closed; run() returns after the handlers have.
  void stop();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace serve
