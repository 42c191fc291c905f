#include "http.h"

#include <httplib.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <condition_variable>
#include <deque>
#include <limits>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>

#include "errors.h"

namespace serve {

using namespace prologue;
using Clock = std::chrono::steady_clock;

namespace {

constexpr int64_t kMaxHeaderBytes = 64 << 10;  // of the request line and all headers
constexpr std::chrono::seconds kLinger{1};     // for a client that still sends what nobody reads
constexpr int kBacklog = 1024;                 // connections that the system keeps until they are accepted
constexpr size_t kSpareThreads = 8;            // /health and /metrics answer while every connection is used

int milliseconds_until(Clock::time_point time) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(time - Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 1 << 30));
}

// Readable after set(), for all who poll it.
class StopEvent {
 public:
  StopEvent() : descriptor_(eventfd(0, EFD_CLOEXEC)) {
    if (descriptor_ < 0) throw std::system_error(errno, std::generic_category(), "eventfd");
  }
  ~StopEvent() { close(descriptor_); }
  StopEvent(const StopEvent&) = delete;
  StopEvent& operator=(const StopEvent&) = delete;

  int descriptor() const { return descriptor_; }
  void set() const {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(descriptor_, &one, sizeof one);
  }

 private:
  int descriptor_;
};

// The socket of a client, as cpp-httplib reads and writes it. Its own sockets limit the time of each read, but not that of a request,
// and neither the length of a line nor the number of headers.
//
// No function says `override`: which ones are virtual depends on the version of cpp-httplib.
class Socket : public httplib::Stream, public Peer {
 public:
  Socket(int socket, const HttpOptions& options, const StopEvent& stop)
      : socket_(socket), options_(options), stop_(stop), read_until_(Clock::now() + options.read_time) {}

  bool gone() const {
    pollfd state = {socket_, POLLRDHUP, 0};
    return poll(&state, 1, 0) > 0;  // POLLHUP and POLLERR come without being asked for
  }
  bool timed_out() const { return timed_out_; }
  bool too_long() const { return unread_bytes_ == 0; }
  // The headers have been read: the body follows. What frames its chunks takes room, too.
  void expect_body() { unread_bytes_ = kMaxHeaderBytes + 8 * options_.max_body_bytes; }

  ssize_t read(char* data, size_t size) {
    if (begin_ == end_) {
      begin_ = end_ = 0;
      const int64_t room = std::min(unread_bytes_, static_cast<int64_t>(buffer_.size()));
      if (room == 0 || !wait_readable()) return -1;
      const ssize_t count = recv(socket_, buffer_.data(), static_cast<size_t>(room), 0);
      if (count <= 0) return count;
      unread_bytes_ -= count;
      end_ = static_cast<size_t>(count);
    }
    const size_t count = std::min(size, end_ - begin_);
    std::copy_n(buffer_.data() + begin_, count, data);
    begin_ += count;
    return static_cast<ssize_t>(count);
  }

  ssize_t write(const char* data, size_t size) {
    while (true) {
      const ssize_t count = send(socket_, data, size, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (count >= 0) return count;
      if (errno == EINTR) continue;
      if ((errno != EAGAIN && errno != EWOULDBLOCK) || !wait_writable()) return -1;
    }
  }

  // Lets the client read the answer before the connection ends: closing a socket that has unread data would discard it.
  void finish() {
    shutdown(socket_, SHUT_WR);
    const auto until = Clock::now() + kLinger;
    while (wait(POLLIN, until) && recv(socket_, buffer_.data(), buffer_.size(), 0) > 0) {
    }
    close(socket_);
  }

  bool is_readable() const { return begin_ < end_ || wait(POLLIN, Clock::now()); }
  bool is_writable() const { return wait_writable() && !gone(); }
  bool wait_readable() const {
    const bool ready = wait(POLLIN, read_until_);
    timed_out_ = !ready && Clock::now() >= read_until_;
    return ready;
  }
  bool wait_writable() const {
    const auto until = Clock::now() + options_.write_time;
    // At the end of the server, a client that reads still gets its last words.
    return wait(POLLOUT, until) || wait_for(POLLOUT, std::min(until, Clock::now() + kLinger), -1);
  }
  void get_remote_ip_and_port(std::string&, int&) const {}
  void get_local_ip_and_port(std::string&, int&) const {}
  socket_t socket() const { return socket_; }
  time_t duration() const { return 0; }

 private:
  // False: the time is over, or the server stops.
  bool wait(int16_t events, Clock::time_point until) const { return wait_for(events, until, stop_.descriptor()); }
  bool wait_for(int16_t events, Clock::time_point until, int stop) const {
    pollfd ready[] = {{socket_, events, 0}, {stop, POLLIN, 0}};
    int count;
    do {
      count = poll(ready, 2, milliseconds_until(until));
    } while (count < 0 && errno == EINTR);
    return count > 0 && ready[0].revents != 0;
  }

  const int socket_;
  const HttpOptions& options_;
  const StopEvent& stop_;
  const Clock::time_point read_until_;
  int64_t unread_bytes_ = kMaxHeaderBytes;  // that may still be received
  mutable bool timed_out_ = false;
  std::array<char, 4096> buffer_;
  size_t begin_ = 0, end_ = 0;  // of what is in the buffer
};

// The socket whose request this thread serves: cpp-httplib passes it to no handler.
thread_local Socket* current_socket = nullptr;

// A thread for each connection, up to a limit; they are made when they are needed.
class ConnectionThreads : public httplib::TaskQueue {
 public:
  using Accepted = decltype(std::declval<httplib::TaskQueue&>().enqueue({}));  // void in old versions, bool in new ones

  explicit ConnectionThreads(size_t max_threads) : max_threads_(max_threads) {}

  Accepted enqueue(std::function<void()> job) override {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
    if (jobs_.size() > num_idle_ && threads_.size() < max_threads_) {
      try {
        threads_.emplace_back([this] { work(); });
      } catch (const std::system_error&) {
        if (threads_.empty()) throw;  // else those that exist do the work
      }
    }
    changed_.notify_one();
    return static_cast<Accepted>(true);
  }

  void shutdown() override {
    {
      const std::lock_guard lock(mutex_);
      shutdown_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      ++num_idle_;
      changed_.wait(lock, [this] { return !jobs_.empty() || shutdown_; });
      --num_idle_;
      if (jobs_.empty()) return;
      const std::function<void()> job = std::move(jobs_.front());
      jobs_.pop_front();
      lock.unlock();
      job();
      lock.lock();
    }
  }

  const size_t max_threads_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_;
  std::vector<std::thread> threads_;
  size_t num_idle_ = 0;
  bool shutdown_ = false;
};

// Takes the same time for every key of the right length.
bool same_key(std::string_view given, std::string_view key) {
  if (given.size() != key.size()) return false;
  unsigned difference = 0;
  for (size_t i = 0; i < key.size(); ++i) difference |= static_cast<unsigned>(given[i] ^ key[i]);
  return difference == 0;
}

// The length of the body that the headers announce; none: it comes in chunks. ApiError: neither, or both, or nonsense.
std::optional<uint64_t> body_length(const httplib::Request& request) {
  const std::string encoding = request.get_header_value("Transfer-Encoding");
  const size_t num_lengths = request.get_header_value_count("Content-Length");
  if (!encoding.empty()) {
    if (num_lengths > 0) throw ApiError{400, "a request has either Content-Length or Transfer-Encoding, not both"};
    if (strcasecmp(encoding.c_str(), "chunked") != 0) throw ApiError{501, "the only supported Transfer-Encoding is chunked"};
    return std::nullopt;
  }
  if (num_lengths == 0) throw ApiError{411, "the request has no Content-Length"};
  const std::string text = request.get_header_value("Content-Length");
  uint64_t length = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), length);
  if (num_lengths > 1 || text.empty() || rest != text.data() + text.size() || error == std::errc::invalid_argument) {
    throw ApiError{400, "Content-Length must be one whole number"};
  }
  return error == std::errc::result_out_of_range ? std::numeric_limits<uint64_t>::max() : length;
}

}  // namespace

class HttpServer::Impl : public httplib::Server {
 public:
  Impl(const HttpOptions& options, std::vector<HttpRoute> routes, OnResponse on_response)
      : options_(options), routes_(std::move(routes)), on_response_(std::move(on_response)) {
    new_task_queue = [this] { return new ConnectionThreads(static_cast<size_t>(options_.max_connections) + kSpareThreads); };
    set_tcp_nodelay(true);
    set_socket_options([](socket_t socket) {  // not SO_REUSEPORT: a second server on the same port is a mistake
      const int yes = 1;
      setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    });
    set_pre_routing_handler([this](const httplib::Request& request, httplib::Response& response) {
      return route(request, response) ? HandlerResponse::Handled : HandlerResponse::Unhandled;
    });
    for (const HttpRoute& each : routes_) {
      if (each.method != "POST") continue;
      Post(each.path,
           [this, &each](const httplib::Request& request, httplib::Response& response, const httplib::ContentReader& reader) {
             guard(response, [&] { fill(response, each.handler({request.path, read_body(response, reader)}, *current_socket)); });
           });
    }
    // Errors of cpp-httplib itself: requests that are not HTTP.
    set_error_handler([](const httplib::Request&, httplib::Response& response) {
      if (!response.body.empty()) return;
      if (current_socket->timed_out()) {
        response.status = 408;
      } else if (response.status == 400 && current_socket->too_long()) {
        response.status = 431;
      }
      const char* message = response.status == 408   ? "the request did not arrive in time"
                            : response.status == 414 ? "the path is too long"
                            : response.status == 431 ? "the headers are too long"
                            : response.status >= 500 ? "the request could not be served"
                                                     : "this is not a valid HTTP request";
      set_error(response, {response.status, message});
    });
    set_logger([this](const httplib::Request& request, const httplib::Response& response) {
      const HttpRoute* found = find(request.path);
      on_response_(found != nullptr ? found->path : "other", response.status);
    });
  }

  Result<int> bind(const std::string& host, int port) {
    const int bound = port == 0 ? bind_to_any_port(host) : bind_to_port(host, port) ? port : -1;
    if (bound < 0) {
      return invalid_argument("the server cannot listen on ", host, " port ", port,
                              ": the address must be of this machine, and the port must be free");
    }
    ::listen(svr_sock_, kBacklog);  // cpp-httplib's own backlog of 5 makes clients of a burst wait for a second
    return bound;
  }

  void stop_all() {
    stop_event_.set();
    wait_until_running();
    stop();
  }

 private:
  // stop() does nothing before listen_after_bind() has begun.
  void wait_until_running() const {
    while (!is_running() && !has_run_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

  // In place of cpp-httplib's own loop over the requests of a connection.
  bool process_and_close_socket(socket_t descriptor) override {
    Socket socket(descriptor, options_, stop_event_);
    current_socket = &socket;
    const bool served = serve(*this, socket);
    current_socket = nullptr;
    socket.finish();
    return served;
  }

  template <class Self>  // a template, so that only the call that this version of cpp-httplib has must compile
  static bool serve(Self& self, Socket& socket) {
    bool closed = false;
    const auto on_headers = [&socket](httplib::Request& request) {
      socket.expect_body();
      request.ranges.clear();                    // whole answers only
      request.headers.erase("Accept-Encoding");  // and as they are
    };
    try {
      if constexpr (requires { self.process_request(socket, true, closed, on_headers); }) {
        return self.process_request(socket, true, closed, on_headers);
      } else {
        return self.process_request(socket, "", 0, "", 0, true, closed, on_headers);
      }
    } catch (const std::exception&) {  // out of memory while a request is read: there is nothing to answer
      return false;
    }
  }

  const HttpRoute* find(const std::string& path) const {
    const auto matches = [&](const HttpRoute& each) {
      return each.path == path || (each.path.size() > 1 && each.path.ends_with('/') && path.starts_with(each.path));
    };
    const auto found = std::find_if(routes_.begin(), routes_.end(), matches);
    return found == routes_.end() ? nullptr : &*found;
  }

  // All that can be done before the body is read. True: the response is complete.
  bool route(const httplib::Request& request, httplib::Response& response) {
    bool complete = true;
    guard(response, [&] {
      const HttpRoute* found = find(request.path);
      if (found == nullptr) throw ApiError{404, str_cat("there is nothing at ", request.path), {}, "not_found"};
      if (found->needs_key && !options_.api_key.empty() &&
          !same_key(request.get_header_value("Authorization"), "Bearer " + options_.api_key)) {
        response.set_header("WWW-Authenticate", "Bearer");
        throw ApiError{
            401, "the API key is missing or wrong: the header Authorization must be 'Bearer KEY'", {}, "invalid_api_key"};
      }
      const std::string method = request.method == "HEAD" ? "GET" : request.method;
      if (method != found->method) {
        response.set_header("Allow", found->method == "GET" ? "GET, HEAD" : found->method);
        throw ApiError{405, str_cat(found->path, " takes ", found->method, ", not ", request.method), {}, "method_not_allowed"};
      }
      if (method == "GET") {
        fill(response, found->handler({request.path, {}}, *current_socket));
      } else {
        check_body_headers(request);
        complete = false;
      }
    });
    return complete;
  }

  void check_body_headers(const httplib::Request& request) const {
    // A web page of another site can send forms and plain text without asking, but not this type.
    std::string type = request.get_header_value("Content-Type");
    type.resize(std::min(type.size(), type.find(';')));
    if (strcasecmp(type.c_str(), "application/json") != 0) throw ApiError{415, "the Content-Type must be application/json"};
    if (request.has_header("Content-Encoding")) throw ApiError{415, "the body must have no Content-Encoding"};
    if (body_length(request).value_or(0) > static_cast<uint64_t>(options_.max_body_bytes)) throw too_large();
  }

  ApiError too_large() const {
    return {413, str_cat("the body is too large: at most ", options_.max_body_bytes, " bytes are read"), {}, "body_too_large"};
  }

  std::string read_body(httplib::Response& response, const httplib::ContentReader& reader) const {
    std::string body;
    bool fits = true;
    const bool complete = reader([&](const char* data, size_t size) {
      fits = body.size() + size <= static_cast<size_t>(options_.max_body_bytes);
      if (fits) body.append(data, size);
      return fits;
    });
    response.status = -1;  // cpp-httplib has set its own
    if (!fits) throw too_large();
    if (complete) return body;
    if (current_socket->timed_out()) throw ApiError{408, "the request did not arrive in time"};
    throw ApiError{400, "the body is incomplete or its chunks are malformed"};
  }

  static void fill(httplib::Response& response, const HttpResponse& made) {
    for (const auto& [name, value] : made.headers) response.set_header(name, value);
    response.status = made.status;
    if (!made.stream) {
      response.set_content(made.body, made.content_type);
      return;
    }
    response.set_chunked_content_provider(made.content_type, [stream = made.stream](size_t, httplib::DataSink& sink) {
      const bool complete = stream([&](std::string_view data) { return sink.write(data.data(), data.size()); });
      if (complete) sink.done();
      return complete;
    });
  }

  static void set_error(httplib::Response& response, const ApiError& error) {
    response.status = error.status;
    response.set_content(error_body(error), "application/json");
  }

  // What `work` throws becomes the response.
  template <class Work>
  static void guard(httplib::Response& response, const Work& work) {
    try {
      work();
    } catch (const ApiError& error) {
      set_error(response, error);
    } catch (const std::exception& error) {
      set_error(response, {500, str_cat("the server failed: ", error.what())});
    }
  }

  const HttpOptions options_;
  const std::vector<HttpRoute> routes_;
  const OnResponse on_response_;
  const StopEvent stop_event_;
  std::atomic<bool> has_run_ = false;

  friend class HttpServer;
};

HttpServer::HttpServer(const HttpOptions& options, std::vector<HttpRoute> routes, OnResponse on_response)
    : impl_(std::make_unique<Impl>(options, std::move(routes), std::move(on_response))) {}
HttpServer::~HttpServer() = default;

Result<int> HttpServer::bind(const std::string& host, int port) { return impl_->bind(host, port); }

bool HttpServer::run() {
  const bool ended_well = impl_->listen_after_bind();
  impl_->has_run_ = true;
  return ended_well;
}

void HttpServer::stop() { impl_->stop_all(); }

}  // namespace serve
