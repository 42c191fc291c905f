#include <prologue/kernels/collective/communicator_cpu.h>

#include <chrono>

#include <prologue/kernels/base/host/spin.h>

namespace prologue::cpu {

namespace {

const char* name_of(Collective collective) {
  switch (collective) {
    case Collective::all_reduce: return "all_reduce";
    case Collective::all_gather: return "all_gather";
    case Collective::meet: return "meet";
  }
  return "";
}

template <class T>
Status check_same(const CollectiveCall& first, const char* name, const T& value, const T& other, int64_t rank) {
  if (value == other) return {};
  return invalid_argument(name_of(first.collective), ": ", name, " is ", value, " on rank 0 and ", other, " on rank ", rank,
                          ": all ranks must call it with the same");
}

}  // namespace

template <class Condition>
bool CommunicatorGroup::all(const Condition& condition) const {
  for (int64_t r = 0; r < num_ranks_; ++r) {
    if (!condition(ranks_[r])) return false;
  }
  return true;
}

// Returns whether done() became true before the limit.
template <class Done>
bool CommunicatorGroup::wait(const Done& done, bool limited) {
  if (spin_until(done)) return true;
  using Clock = std::chrono::steady_clock;
  const auto limit = std::chrono::duration<double>(wait_seconds_ < 1e9 ? wait_seconds_ : 1e9);
  const auto end = Clock::now() + std::chrono::duration_cast<Clock::duration>(limit);
  // A rank that changes what is waited for looks at sleepers_ afterwards. So it sees this sleeper, and waits for the mutex; or done() sees
  // the change. (All of these are sequentially consistent.)
  sleepers_.fetch_add(1);
  bool is_done = true;
  {
    std::unique_lock lock(mutex_);
    if (!limited) {
      changed_.wait(lock, done);
    } else {
      is_done = changed_.wait_until(lock, end, done);
    }
  }
  sleepers_.fetch_sub(1);
  return is_done;
}

void CommunicatorGroup::wake() {
  if (sleepers_.load() == 0) return;
  { const std::lock_guard lock(mutex_); }
  changed_.notify_all();
}

void CommunicatorGroup::fail(const Status& status) {
  {
    const std::lock_guard lock(mutex_);
    if (failed_.load()) return;
    error_ = status;
    failed_.store(true);
  }
  changed_.notify_all();
}

// Returns the group's error when no rank works any more.
Status CommunicatorGroup::leave(int64_t rank) {
  ranks_[rank].works.store(false);
  wake();
  wait([&] { return all([](const Rank& r) { return !r.works.load(); }); }, false);
  return error_;
}

Status CommunicatorGroup::check_calls() const {
  const CollectiveCall& first = ranks_[0].call;
  for (int64_t r = 1; r < num_ranks_; ++r) {
    const CollectiveCall& other = ranks_[r].call;
    if (first.collective != other.collective) {
      return invalid_argument("communicator: rank 0 calls ", name_of(first.collective), " and rank ", r, " ",
                              name_of(other.collective), ": all ranks must call the same collectives in the same order");
    }
    PROLOGUE_RETURN_IF_ERROR(check_same(first, "num_tokens", first.num_tokens, other.num_tokens, r));
    PROLOGUE_RETURN_IF_ERROR(check_same(first, "width", first.width, other.width, r));
    PROLOGUE_RETURN_IF_ERROR(check_same(first, "part_width", first.part_width, other.part_width, r));
    PROLOGUE_RETURN_IF_ERROR(check_same<int32_t>(first, "adds", first.adds, other.adds, r));
    if (first.dtype != other.dtype) {
      return check_same<std::string>(first, "dtype", dtype_name(first.dtype), dtype_name(other.dtype), r);
    }
  }
  return {};
}

Status CommunicatorGroup::begin(int64_t rank, const CollectiveCall& call) {
  if (failed_.load()) return error_;
  Rank& own = ranks_[rank];
  // No rank reads the call of the last collective: they have all ended it, or the group has failed.
  own.call = call;
  const uint64_t number = own.begun.load() + 1;
  own.begun.store(number);
  wake();
  const auto begun = [&](const Rank& r) { return r.begun.load() >= number; };
  if (!wait([&] { return all(begun) || failed_.load(); }, true)) {
    uint32_t absent = 0;
    for (int64_t r = 0; r < num_ranks_; ++r) absent |= begun(ranks_[r]) ? 0u : 1u << r;
    if (absent != 0) fail(did_not_come(absent, wait_seconds_));
  }
  // A rank that has seen the group fail waits until no rank works; so each says that it does, and then looks again.
  if (all(begun)) own.works.store(true);
  if (!failed_.load()) {
    const Status same = check_calls();
    if (same.ok()) return {};
    fail(same);
  }
  return leave(rank);
}

Status CommunicatorGroup::end(int64_t rank) {
  Rank& own = ranks_[rank];
  const uint64_t number = own.begun.load();
  own.works.store(false);
  own.ended.store(number);
  wake();
  const auto ended = [&] { return all([&](const Rank& r) { return r.ended.load() >= number; }); };
  wait([&] { return ended() || failed_.load(); }, false);  // all ranks have begun, so they end
  return ended() ? Status() : leave(rank);
}

Status CpuCommunicator::meet() {
  CollectiveCall call;
  call.collective = Collective::meet;
  PROLOGUE_RETURN_IF_ERROR(group_->begin(rank(), call));
  return group_->end(rank());
}

Result<Communicators> create_communicators(int64_t num_ranks, const CommunicatorOptions& options) {
  const auto group = std::make_shared<CommunicatorGroup>(num_ranks, options.wait_seconds);
  Communicators ranks;
  for (int64_t r = 0; r < num_ranks; ++r) ranks.push_back(std::make_unique<CpuCommunicator>(group, r, num_ranks));
  return ranks;
}

}  // namespace prologue::cpu
