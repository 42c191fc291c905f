#include "http.h"

#include <poll.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <boost/asio.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <condition_variable>
#include <limits>
#include <list>
#include <mutex>
#include <optional>
#include <sstream>
#include <thread>

#include "errors.h"
#include "http_rules.h"

namespace serve {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using namespace prologue;
using boost::system::error_code;
using tcp = asio::ip::tcp;
using Clock = std::chrono::steady_clock;

namespace {

constexpr uint32_t kMaxHeaderBytes = 16 << 10;  // of the request line and all headers
constexpr size_t kMaxTargetBytes = 8 << 10;
constexpr size_t kFirstBodyBytes = 4 << 10;      // the room for a body grows with what has arrived of it
constexpr size_t kBodyMemory = 256 << 20;        // of all bodies together, beside four of the longest
constexpr size_t kPiece = 64 << 10;              // of an answer: the client has HttpOptions::write_time to read each
constexpr size_t kMaxUnsent = 64 << 10;          // of a stream, before its handler waits
constexpr std::chrono::seconds kLinger{1};       // for a client that still sends what nobody reads
constexpr std::chrono::milliseconds kRetry{50};  // until connections are accepted again, after the system refused one
constexpr int64_t kMoreThreads = 8;              // beside HttpOptions::max_requests: they answer that there are too many requests
constexpr size_t kOtherFiles = 64;               // that the process opens beside its connections
constexpr size_t kMaxConnections = size_t{1} << 20;

std::string_view view(boost::beast::string_view text) { return {text.data(), text.size()}; }

// Raises the limit of open files; returns how many connections it leaves.
size_t connections_for_open_files() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return kOtherFiles;
  const rlimit highest = {limit.rlim_max, limit.rlim_max};
  if (setrlimit(RLIMIT_NOFILE, &highest) == 0) limit = highest;
  const auto files = static_cast<size_t>(std::min<rlim_t>(limit.rlim_cur, kMaxConnections));
  return files - std::min(kOtherFiles, files / 2);
}

const ApiError kLate = {408, "the request did not arrive in time"};

HttpResponse response_of(const ApiError& error) { return {.status = error.status, .body = error_body(error)}; }

// What `work` throws becomes the response.
template <class Work>
std::optional<HttpResponse> guard(const Work& work) {
  try {
    return work();
  } catch (const ApiError& error) {
    return response_of(error);
  } catch (const std::exception& error) {
    return response_of({500, str_cat("the server failed: ", error.what())});
  }
}

}  // namespace

// All but stop() runs in the thread that calls run().
class HttpServer::Impl {
 public:
  Impl(const HttpOptions& options, std::vector<HttpRoute> routes, OnExchange on_exchange)
      : options_(options), routes_(std::move(routes)), on_exchange_(std::move(on_exchange)) {}

  Result<int> bind(const std::string& host, int port);
  bool run();
  void stop();

 private:
  friend class Connection;

  void accept();
  void accept_later();
  void on_accept(error_code error, tcp::socket socket);
  void end();
  const HttpRoute* find(const std::string& path) const;

  const HttpOptions options_;
  const std::vector<HttpRoute> routes_;
  const OnExchange on_exchange_;
  const size_t max_connections_ = connections_for_open_files();
  HostRules host_rules_;
  asio::io_context context_;
  tcp::acceptor acceptor_{context_};
  asio::steady_timer accept_timer_{context_};
  bool accepting_ = false;  // now, or when the timer ends
  bool stopping_ = false;
  bool failed_ = false;
  std::list<Connection*> waiting_;  // for all of a request; first who has waited longest
  std::list<Connection*> at_work_;  // those with a request
  int64_t num_threads_ = 0;
  size_t body_memory_ = 0;  // of all requests
};

// A connection lives as long as something is to happen to it: what it waits for, and the thread of its handler, hold shared pointers.
// The handler of a POST runs in a thread of its own and calls gone(), send() and write(); all the rest runs in the server's thread.
class HttpServer::Connection : public Peer, public std::enable_shared_from_this<Connection> {
 public:
  Connection(tcp::socket socket, Impl& server) : server_(server), socket_(std::move(socket)) {
    place_ = server_.waiting_.insert(server_.waiting_.end(), this);
    error_code ignored;
    socket_.set_option(tcp::no_delay(true), ignored);
    const tcp::endpoint client = socket_.remote_endpoint(ignored);
    if (!ignored) client_ = client.address().to_string();
  }
  ~Connection() override {
    forget_request();
    (is_waiting_ ? server_.waiting_ : server_.at_work_).erase(place_);
  }

  void read_request() {
    set_deadline(server_.options_.read_time);
    parser_.emplace();
    parser_->header_limit(kMaxHeaderBytes);
    parser_->body_limit(std::numeric_limits<uint64_t>::max());  // set later: other errors come first
    http::async_read_header(socket_, buffer_, *parser_,
                            [self = shared_from_this()](error_code error, size_t) { self->on_headers(error); });
  }
  // Closes the connection without an answer. What it waits for ends with an error.
  void close() {
    error_code ignored;
    socket_.close(ignored);
  }
  // The server stops: a client that reads still gets the end of its answer.
  void hurry() {
    const std::lock_guard lock(mutex_);
    if (is_sending_) set_deadline(kLinger);
  }

  bool gone() const override {
    pollfd state = {descriptor_, POLLRDHUP, 0};
    return failed_ || poll(&state, 1, 0) > 0;  // POLLHUP and POLLERR are always reported
  }
  void note(std::string text) const override { note_ = std::move(text); }

 private:
  void set_deadline(Clock::duration time) {
    timed_out_ = false;
    timer_.expires_after(time);
    timer_.async_wait([weak = weak_from_this()](error_code error) {
      const std::shared_ptr<Connection> self = weak.lock();
      if (error || self == nullptr || self->timer_.expiry() > Clock::now()) return;
      self->timed_out_ = true;
      error_code ignored;
      self->socket_.cancel(ignored);  // what the connection waits for ends with operation_aborted
    });
  }

  void move_to(std::list<Connection*>& list) {
    list.splice(list.end(), is_waiting_ ? server_.waiting_ : server_.at_work_, place_);
    is_waiting_ = &list == &server_.waiting_;
  }

  void forget_request() {
    server_.body_memory_ -= body_memory_;
    body_memory_ = num_body_ = 0;
    request_ = {};
  }

  // ---- The request ----

  void on_headers(error_code error) {
    begin_ = Clock::now();
    exchange_ = {.client = client_, .method = {}, .route = "other"};
    more_headers_.clear();
    keep_alive_ = chunked_ = answered_ = complete_ = false;
    if (error) return refuse_what_is_not_http(error);
    const auto& headers = parser_->get();
    std::optional<uint64_t> length;
    std::optional<HttpResponse> early = guard([&]() -> std::optional<HttpResponse> {
      if (headers.method() == http::verb::unknown) throw ApiError{400, "this is not a valid HTTP request: unknown method"};
      exchange_.method = view(headers.method_string());
      const HttpRoute& route = find_route();
      if (route.method == "GET") return route.handler(request_, *this);
      length = check_body();
      handler_ = &route.handler;
      return std::nullopt;
    });
    if (early) return answer(*early);
    max_body_ = static_cast<size_t>(length.value_or(static_cast<uint64_t>(server_.options_.max_body_bytes)));
    parser_->body_limit(max_body_);
    const bool client_waits = headers.version() == 11 && boost::beast::iequals(headers[http::field::expect], "100-continue");
    if (!client_waits) return read_body();
    asio::async_write(socket_, asio::buffer("HTTP/1.1 100 Continue\r\n\r\n", 25),
                      [self = shared_from_this()](error_code failure, size_t) {
                        if (failure) return self->close();
                        self->read_body();
                      });
  }

  void refuse_what_is_not_http(error_code error) {
    const bool is_not_http = error.category() == http::make_error_code(http::error::bad_method).category();
    if (error == http::error::end_of_stream) return close();
    if (error == http::error::header_limit || error == http::error::buffer_overflow) {
      return answer(response_of({431, str_cat("the headers are too long: at most ", kMaxHeaderBytes, " bytes are read")}));
    }
    if (is_not_http) return answer(response_of({400, str_cat("this is not a valid HTTP request: ", error.message())}));
    if (timed_out_ && buffer_.size() > 0) return answer(response_of(kLate));
    close();
  }

  // Throws what is wrong with the request line or the headers that every request has.
  const HttpRoute& find_route() {
    const auto& headers = parser_->get();
    if (headers.target().size() > kMaxTargetBytes) {
      throw ApiError{414, str_cat("the path is too long: at most ", kMaxTargetBytes, " bytes are read")};
    }
    const HttpTarget target = read_target(view(headers.target()));
    if (headers.count(http::field::host) > 1) throw ApiError{400, "the request has more than one Host"};
    server_.host_rules_.check(target.authority, {});
    server_.host_rules_.check(view(headers[http::field::host]), view(headers[http::field::origin]));
    const HttpRoute* found = server_.find(target.path);
    if (found == nullptr) throw ApiError{404, str_cat("there is nothing at ", target.path), {}, "not_found"};
    exchange_.route = found->path;
    const std::string& key = server_.options_.api_key;
    if (found->needs_key && !key.empty() && !same_key(view(headers[http::field::authorization]), "Bearer " + key)) {
      more_headers_ = {{"WWW-Authenticate", "Bearer"}};
      throw ApiError{
          401, "the API key is missing or wrong: the header Authorization must be 'Bearer KEY'", {}, "invalid_api_key"};
    }
    if (found->method != (exchange_.method == "HEAD" ? "GET" : exchange_.method)) {
      more_headers_ = {{"Allow", found->method == "GET" ? "GET, HEAD" : found->method}};
      throw ApiError{405, str_cat(found->path, " takes ", found->method, ", not ", exchange_.method), {}, "method_not_allowed"};
    }
    request_.path = target.path;
    return *found;
  }

  std::optional<uint64_t> check_body() const {
    const auto& headers = parser_->get();
    return check_body_headers({view(headers[http::field::content_type]), view(headers[http::field::content_encoding]),
                               view(headers[http::field::content_length]), view(headers[http::field::transfer_encoding]),
                               headers.count(http::field::content_length), headers.count(http::field::transfer_encoding)},
                              static_cast<uint64_t>(server_.options_.max_body_bytes));
  }

  void read_body() {
    if (parser_->is_done()) return work_on_request();
    std::string& body = request_.body;
    if (const auto refused = guard([&] { return make_room_for_body(); })) return answer(*refused);
    parser_->get().body() = {.data = body.data() + num_body_, .size = body.size() - num_body_, .more = true};
    http::async_read(socket_, buffer_, *parser_, [self = shared_from_this()](error_code error, size_t) { self->on_body(error); });
  }

  std::optional<HttpResponse> make_room_for_body() {
    std::string& body = request_.body;
    if (num_body_ < body.size()) return std::nullopt;
    const size_t size = std::min(std::max(2 * body.size(), kFirstBodyBytes), max_body_), more = size - body.size();
    if (server_.body_memory_ + more > kBodyMemory + 4 * static_cast<size_t>(server_.options_.max_body_bytes)) {
      throw ApiError{429, "the server receives too many long requests at once: try again later", {}, "rate_limit_exceeded"};
    }
    body.resize(size);
    body_memory_ += more;
    server_.body_memory_ += more;
    return std::nullopt;
  }

  void on_body(error_code error) {
    num_body_ = request_.body.size() - parser_->get().body().size;
    if (!error || error == http::error::need_buffer) return read_body();
    if (error == http::error::body_limit) {
      return answer(response_of(body_too_large(static_cast<uint64_t>(server_.options_.max_body_bytes))));
    }
    if (error.category() == http::make_error_code(http::error::bad_method).category()) {
      return answer(response_of({400, "the body is incomplete or its chunks are malformed"}));
    }
    if (timed_out_) return answer(response_of(kLate));
    close();
  }

  void work_on_request() {
    request_.body.resize(num_body_);
    begin_answer();
    if (server_.num_threads_ >= server_.options_.max_requests + kMoreThreads) {
      return answer(
          response_of({429, "the server works on as many requests as it can: try again later", {}, "rate_limit_exceeded"}));
    }
    try {
      thread_ = std::thread([self = shared_from_this(), running = asio::make_work_guard(server_.context_)]() mutable {
        self->work();
        asio::io_context& context = self->server_.context_;
        asio::post(context, [self = std::move(self)] { self->end_work(); });
      });
      ++server_.num_threads_;
    } catch (const std::system_error&) {
      answer(response_of({503, "the system grants no thread for the request: try again later", {}, "rate_limit_exceeded"}));
    }
  }

  // Runs in the thread of the handler.
  void work() {
    try {
      const HttpResponse response =
          *guard([&]() -> std::optional<HttpResponse> { return (*handler_)(std::exchange(request_, {}), *this); });
      complete_ =
          send_response(response) && (!response.stream || response.stream([this](std::string_view data) { return write(data); }));
      if (complete_ && chunked_) send("0\r\n\r\n");
    } catch (const std::exception&) {  // out of memory in the middle of an answer
      complete_ = false;
    }
  }

  // ---- The answer ----

  void answer(const HttpResponse& response) {
    begin_answer();
    complete_ = send_response(response);
    end_answer();
  }

  void begin_answer() {
    timer_.cancel();
    move_to(server_.at_work_);
    // What is left of a request that was not read is never taken for the next one.
    keep_alive_ = !server_.stopping_ && parser_->is_done() && parser_->get().version() == 11 && parser_->keep_alive();
  }

  bool send_response(const HttpResponse& response) {
    exchange_.status = response.status;
    keep_alive_ = keep_alive_ && response.status < 400;
    http::response<http::empty_body> head;
    head.version(11);
    head.result(static_cast<unsigned>(response.status));
    head.set(http::field::content_type, response.content_type);
    for (const auto* headers : {&response.headers, &std::as_const(more_headers_)}) {
      for (const auto& [name, value] : *headers) head.set(name, value);
    }
    chunked_ = response.stream && parser_->get().version() == 11;  // older clients read until the connection ends
    if (chunked_) head.chunked(true);
    if (!response.stream) head.content_length(response.body.size());
    head.keep_alive(keep_alive_);
    std::ostringstream text;
    text << head.base();
    if (exchange_.method != "HEAD") text << response.body;
    return send(text.str());
  }

  // Writes a part of a stream.
  bool write(std::string_view data) {
    if (data.empty()) return !failed_;
    if (!send(chunked_ ? str_cat(hexadecimal(data.size()), "\r\n", data, "\r\n") : std::string(data))) return false;
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return unsent_.size() < kMaxUnsent || failed_; });
    return !failed_;
  }

  bool send(const std::string& bytes) {
    const std::lock_guard lock(mutex_);
    if (failed_) return false;
    unsent_ += bytes;
    if (!is_sending_) asio::post(server_.context_, [self = shared_from_this()] { self->send_piece(); });
    is_sending_ = true;
    return true;
  }

  void send_piece() {
    if (num_sent_ == sending_.size() && !take_unsent()) return finish_if_answered();
    try {
      set_deadline(server_.stopping_ ? kLinger : server_.options_.write_time);
      asio::async_write(socket_, asio::buffer(sending_.data() + num_sent_, std::min(kPiece, sending_.size() - num_sent_)),
                        [self = shared_from_this()](error_code error, size_t size) {
                          self->num_sent_ += size;
                          self->exchange_.num_bytes += static_cast<int64_t>(size);
                          error ? self->stop_sending() : self->send_piece();
                        });
    } catch (const std::exception&) {  // out of memory
      stop_sending();
    }
  }

  bool take_unsent() {
    const std::lock_guard lock(mutex_);
    sending_ = std::exchange(unsent_, {});
    num_sent_ = 0;
    is_sending_ = !sending_.empty();
    changed_.notify_all();
    return is_sending_;
  }

  // The client has gone, or does not read.
  void stop_sending() {
    {
      const std::lock_guard lock(mutex_);
      failed_ = true;
      is_sending_ = false;
      changed_.notify_all();
    }
    finish_if_answered();
  }

  void end_work() {
    thread_.join();
    --server_.num_threads_;
    end_answer();
  }

  void end_answer() {
    answered_ = true;
    finish_if_answered();
  }

  void finish_if_answered() {
    {
      const std::lock_guard lock(mutex_);
      if (is_sending_ || !answered_) return;
    }
    exchange_.complete = complete_ && !failed_;
    exchange_.note = std::exchange(note_, {});
    exchange_.duration = Clock::now() - begin_;
    server_.on_exchange_(exchange_);
    forget_request();
    if (failed_) return close();
    if (keep_alive_ && complete_ && !server_.stopping_) return wait_for_next_request();
    error_code ignored;
    socket_.shutdown(tcp::socket::shutdown_send, ignored);
    set_deadline(kLinger);
    discard_rest();
  }

  // Lets the client read the answer before the connection ends: closing a socket that has unread data would discard it.
  void discard_rest() {
    buffer_.clear();
    socket_.async_read_some(buffer_.prepare(kMaxHeaderBytes), [self = shared_from_this()](error_code error, size_t) {
      if (!error && !self->timed_out_) self->discard_rest();
    });
  }

  void wait_for_next_request() {
    move_to(server_.waiting_);
    if (buffer_.size() > 0) {  // it came with the one before
      return asio::post(server_.context_, [self = shared_from_this()] { self->read_request(); });
    }
    buffer_.shrink_to_fit();
    set_deadline(server_.options_.idle_time);
    socket_.async_wait(tcp::socket::wait_read, [self = shared_from_this()](error_code error) {
      if (!error) self->read_request();
    });
  }

  Impl& server_;
  tcp::socket socket_;
  const int descriptor_ = socket_.native_handle();
  asio::steady_timer timer_{server_.context_};
  bool timed_out_ = false;
  std::string client_;
  std::list<Connection*>::iterator place_;
  bool is_waiting_ = true;  // which list that is

  // These belong to the request in work.
  boost::beast::flat_buffer buffer_{kMaxHeaderBytes};
  std::optional<http::request_parser<http::buffer_body>> parser_;
  HttpRequest request_;
  const HttpHandler* handler_ = nullptr;
  size_t num_body_ = 0;     // bytes of the body that have arrived; after them it has room
  size_t max_body_ = 0;     // its length, or its limit if the client does not say its length
  size_t body_memory_ = 0;  // that the server's sum has of it
  std::thread thread_;
  Clock::time_point begin_;
  HttpExchange exchange_;

  // These belong to its answer.
  std::vector<std::pair<std::string, std::string>> more_headers_;
  bool keep_alive_ = false;
  bool chunked_ = false;
  bool complete_ = false;  // the handler has written all of it
  mutable std::string note_;
  bool answered_ = false;  // the handler has ended
  std::string sending_;
  size_t num_sent_ = 0;  // of these

  std::mutex mutex_;
  std::condition_variable changed_;
  std::string unsent_;                // comes after `sending_`
  bool is_sending_ = false;           // send_piece() runs until all has been sent
  std::atomic<bool> failed_ = false;  // nothing more can be sent; the mutex is held when it changes
};

Result<int> HttpServer::Impl::bind(const std::string& host, int port) {
  error_code error = asio::error::invalid_argument;
  tcp::resolver::results_type found;
  if (!host.empty()) found = tcp::resolver(context_).resolve(host, std::to_string(port), tcp::resolver::numeric_service, error);
  for (const auto& each : found) {
    const tcp::endpoint endpoint = each.endpoint();
    acceptor_.open(endpoint.protocol(), error);
    if (error) continue;
    acceptor_.set_option(tcp::acceptor::reuse_address(true), error);  // not SO_REUSEPORT: a second server on a port is a mistake
    acceptor_.set_option(tcp::acceptor::enable_connection_aborted(true), error);
    if (endpoint.address().is_v6()) acceptor_.set_option(asio::ip::v6_only(false), error);
    acceptor_.bind(endpoint, error);
    if (!error) acceptor_.listen(tcp::acceptor::max_listen_connections, error);
    if (!error) {
      std::vector<std::string> allowed = options_.allowed_hosts;
      if (endpoint.address().is_loopback() || !allowed.empty()) {
        allowed.push_back(host);
        host_rules_ = HostRules(std::move(allowed));
      }
      return acceptor_.local_endpoint().port();
    }
    error_code ignored;
    acceptor_.close(ignored);
  }
  return invalid_argument("the server cannot listen on ", host, " port ", port, " (", error.message(),
                          "): the address must be of this machine, and the port must be free");
}

bool HttpServer::Impl::run() {
  while (true) {
    try {
      if (!accepting_) accept();
      context_.run();
      return !failed_;
    } catch (const std::exception&) {  // out of memory: the connection that is being served ends, others are served on
    }
  }
}

void HttpServer::Impl::accept() {
  accepting_ = false;
  if (stopping_) return;
  if (waiting_.size() + at_work_.size() < max_connections_) {
    acceptor_.async_accept([this](error_code error, tcp::socket socket) { on_accept(error, std::move(socket)); });
  } else if (!waiting_.empty()) {  // who waits longest makes room for the next
    waiting_.front()->close();
    asio::post(context_, [this] { accept(); });  // after it has ended
  } else {
    return accept_later();
  }
  accepting_ = true;
}

void HttpServer::Impl::on_accept(error_code error, tcp::socket socket) {
  accepting_ = false;
  if (stopping_) return;
  if (error == asio::error::bad_descriptor || error == asio::error::invalid_argument || error == asio::error::not_socket) {
    failed_ = true;
    return end();
  }
  if (!error) {
    std::make_shared<Connection>(std::move(socket), *this)->read_request();
  } else if (error != asio::error::connection_aborted) {  // the system is short of files or memory
    if (!waiting_.empty()) waiting_.front()->close();
    return accept_later();
  }
  accept();
}

void HttpServer::Impl::accept_later() {
  accept_timer_.expires_after(kRetry);
  accept_timer_.async_wait([this](error_code) { accept(); });
  accepting_ = true;
}

void HttpServer::Impl::end() {
  stopping_ = true;
  error_code ignored;
  acceptor_.close(ignored);
  accept_timer_.cancel();
  for (Connection* each : waiting_) each->close();
  for (Connection* each : at_work_) each->hurry();
}

void HttpServer::Impl::stop() {
  asio::post(context_, [this] { end(); });
}

const HttpRoute* HttpServer::Impl::find(const std::string& path) const {
  const auto matches = [&](const HttpRoute& each) {
    return each.path == path || (each.path.size() > 1 && each.path.ends_with('/') && path.starts_with(each.path));
  };
  const auto found = std::find_if(routes_.begin(), routes_.end(), matches);
  return found == routes_.end() ? nullptr : &*found;
}

HttpServer::HttpServer(const HttpOptions& options, std::vector<HttpRoute> routes, OnExchange on_exchange)
    : impl_(std::make_unique<Impl>(options, std::move(routes), std::move(on_exchange))) {}
HttpServer::~HttpServer() = default;

Result<int> HttpServer::bind(const std::string& host, int port) { return impl_->bind(host, port); }
bool HttpServer::run() { return impl_->run(); }
void HttpServer::stop() { impl_->stop(); }

}  // namespace serve
