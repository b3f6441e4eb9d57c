#include "core/comm/rank_watch.h"

#include <netdb.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "core/base/status_macros.h"
#include "core/base/time/running_wait.h"

namespace quartet {
namespace {

// A rank that does not answer for so long is missing. Its watching thread has nothing else to do.
constexpr absl::Duration kAnswerTime = absl::Seconds(2);
constexpr absl::Duration kAskAgain = absl::Milliseconds(200);
// Of how many collectives before the latest a rank remembers what they were; far more than are ever under way.
constexpr int kRemembered = 64;

enum class Type : int32_t { kQuestion, kAnswer, kVerdict, kLeft };

// All ranks run the same program: this goes over the wire as it lies in memory.
struct Message {
  uint64_t token;  // the receiver's, so that only members of the group are heard
  Type type;
  int32_t from;
  int64_t round;   // kQuestion, kAnswer: which questions these belong to
  int64_t number;  // kQuestion, kAnswer: the collective in question; kLeft: the last that the rank has finished
  int64_t begun;   // kAnswer: the latest that the rank has begun
  int32_t kind;    // kAnswer: of `number` where the rank has begun it and remembers it, else of `begun`; -1: none
  int32_t length;  // of `text`
  int64_t bytes;   // with `kind`
  char text[512];
};

struct Peer {
  uint64_t token = 0;
  sockaddr_storage address = {};
  socklen_t length = 0;
};

std::string Errno(const char* what) { return absl::StrCat(what, ": ", std::strerror(errno)); }

absl::StatusOr<Peer> Resolve(const std::string& host, const std::string& port) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(host.c_str(), port.c_str(), &hints, &found); error != 0) {
    return absl::UnavailableError(absl::StrCat("rank watch: address ", host, ": ", gai_strerror(error)));
  }
  Peer peer;
  std::memcpy(&peer.address, found->ai_addr, found->ai_addrlen);
  peer.length = found->ai_addrlen;
  freeaddrinfo(found);
  return peer;
}

struct Begun {
  int64_t number = 0;
  CollectiveKind kind = CollectiveKind::kBarrier;
  int64_t bytes = 0;
};

std::string Describe(int32_t kind, int64_t bytes) {
  const char* name = CollectiveName(static_cast<CollectiveKind>(kind));
  return absl::StrCat(name[0] == 'a' ? "an " : "a ", name, " of ", bytes, " bytes");
}

class UdpRankWatch final : public RankWatch {
 public:
  UdpRankWatch(int socket, uint64_t token, std::string address)
      : socket_(socket), wake_(eventfd(0, EFD_CLOEXEC)), token_(token), address_(std::move(address)) {}

  ~UdpRankWatch() override {
    if (thread_.joinable()) {
      Leave("");
      const uint64_t one = 1;
      // NOLINTNEXTLINE(bugprone-unused-return-value): an event counter at 0 takes it
      (void)!write(wake_, &one, sizeof(one));
      thread_.join();
    }
    close(wake_);
    close(socket_);
  }

  const std::string& address() const override { return address_; }

  absl::Status Start(int rank, const std::vector<std::string>& addresses, const std::vector<int>& names,
                     std::function<void(int64_t)> on_end) override {
    rank_ = rank;
    names_ = names;
    on_end_ = std::move(on_end);
    for (const std::string& address : addresses) {
      const std::vector<std::string> fields = absl::StrSplit(address, ',');
      uint64_t token = 0;
      if (fields.size() != 3 || !absl::SimpleAtoi(fields[2], &token)) {
        return absl::InternalError(absl::StrCat("rank watch: '", address, "' is not an address"));
      }
      QUARTET_ASSIGN_OR_RETURN(Peer peer, Resolve(fields[0], fields[1]));
      peer.token = token;
      peers_.push_back(peer);
    }
    answers_.resize(peers_.size());
    left_.resize(peers_.size());
    thread_ = std::thread([this] { Listen(); });
    return absl::OkStatus();
  }

  void Begin(int64_t number, CollectiveKind kind, int64_t bytes) override {
    std::lock_guard<std::mutex> lock(mutex_);
    begun_[number % kRemembered] = {number, kind, bytes};
    latest_ = number;
    unfinished_.insert(number);
  }

  void Finish(int64_t number) override {
    std::lock_guard<std::mutex> lock(mutex_);
    unfinished_.erase(number);
  }

  std::string Diagnose(int64_t number) override {
    std::unique_lock<std::mutex> lock(mutex_);
    // What else this rank had under way ends for the same reason.
    if (std::exchange(failed_, true)) return verdict_;
    ++round_;
    std::fill(answers_.begin(), answers_.end(), std::nullopt);
    const auto known = [&] { return !Ended(number).empty() || Silent(number).empty(); };
    // In turns, each of which this rank has run for: where it is stopped meanwhile it says nothing of the others.
    for (int turns = kAnswerTime / kAskAgain; turns > 0 && !known(); --turns) {
      for (const int rank : Silent(number)) {
        Message question = NewMessage(Type::kQuestion);
        question.round = round_;
        question.number = number;
        Send(rank, question);
      }
      WaitWhileRunning(changed_, lock, Deadline::In(kAskAgain), known);
    }
    if (!verdict_.empty() && number >= verdict_from_) return verdict_;
    // This rank is about to leave because another has left: the others must hear of the first, not of this one.
    std::string verdict = Ended(number);
    if (verdict.empty()) verdict = Judge(number);
    verdict_ = verdict;
    verdict_from_ = number;
    Message message = NewMessage(Type::kVerdict);
    message.number = number;
    SetText(absl::StrCat(verdict, " (found by rank ", names_[rank_], ")"), &message);
    Broadcast(message);
    lock.unlock();
    on_end_(number);
    return verdict;
  }

  void Leave(const std::string& why) override {
    std::lock_guard<std::mutex> lock(mutex_);
    if (left_[rank_].has_value()) return;
    const int64_t finished = unfinished_.empty() ? latest_ : *unfinished_.begin() - 1;
    left_[rank_] = Left{finished, why};
    // It leaves because of the verdict, if there is one: whom that names is to blame for what it leaves unfinished.
    if (!verdict_.empty() && verdict_from_ <= finished + 1) return;
    Message message = NewMessage(verdict_.empty() ? Type::kLeft : Type::kVerdict);
    message.number = verdict_.empty() ? finished : finished + 1;
    SetText(verdict_.empty() ? why : verdict_, &message);
    Broadcast(message);
  }

 private:
  struct Left {
    int64_t after;
    std::string why;
  };

  Message NewMessage(Type type) const {
    Message message;
    std::memset(&message, 0, sizeof(message));
    message.type = type;
    message.from = rank_;
    message.kind = -1;
    return message;
  }

  static void SetText(const std::string& text, Message* message) {
    message->length = static_cast<int32_t>(std::min(text.size(), sizeof(message->text)));
    std::memcpy(message->text, text.data(), message->length);
  }

  void Send(int rank, Message message) const {
    message.token = peers_[rank].token;
    // One that is lost or refused is as good as one to a rank that is gone.
    sendto(socket_, &message, sizeof(message), MSG_DONTWAIT | MSG_NOSIGNAL,
           reinterpret_cast<const sockaddr*>(&peers_[rank].address), peers_[rank].length);
  }

  void Broadcast(const Message& message) const {
    for (int rank = 0; rank < static_cast<int>(peers_.size()); ++rank) {
      if (rank != rank_) Send(rank, message);
    }
  }

  // Under the lock: why a collective cannot succeed; empty where nothing is known against it.
  std::string Ended(int64_t number) const {
    if (!verdict_.empty() && number >= verdict_from_) return verdict_;
    for (size_t rank = 0; rank < left_.size(); ++rank) {
      if (left_[rank].has_value() && left_[rank]->after < number) {
        return absl::StrCat("rank ", names_[rank], " has left the group after collective ", left_[rank]->after,
                            left_[rank]->why.empty() ? "" : ": ", left_[rank]->why);
      }
    }
    return "";
  }

  // Ranks that have not answered the present round. One that left after it had finished the collective need not.
  std::vector<int> Silent(int64_t number) const {
    std::vector<int> silent;
    for (int rank = 0; rank < static_cast<int>(peers_.size()); ++rank) {
      if (rank != rank_ && !answers_[rank].has_value() && !(left_[rank].has_value() && left_[rank]->after >= number)) {
        silent.push_back(rank);
      }
    }
    return silent;
  }

  std::string Names(const std::vector<int>& ranks) const {
    std::vector<int> names;
    names.reserve(ranks.size());
    for (const int rank : ranks) names.push_back(names_[rank]);
    return absl::StrCat("rank ", absl::StrJoin(names, " and rank "));
  }

  std::string Judge(int64_t number) const {
    if (const std::vector<int> silent = Silent(number); !silent.empty()) {
      return absl::StrCat(Names(silent), silent.size() == 1 ? " does" : " do",
                          " not answer: the process has ended, is stopped or cannot be reached");
    }
    std::vector<std::pair<int, Message>> states = {{rank_, StateFor(number)}};
    for (int rank = 0; rank < static_cast<int>(peers_.size()); ++rank) {
      if (answers_[rank].has_value()) states.emplace_back(rank, *answers_[rank]);
    }
    // Others may be waiting one collective earlier for the same rank: the one that is furthest behind holds all up.
    int64_t behind = number;
    for (const auto& [rank, state] : states) behind = std::min(behind, state.begun);
    if (behind < number) {
      std::vector<int> late;
      for (const auto& [rank, state] : states) {
        if (state.begun == behind) late.push_back(rank);
      }
      return absl::StrCat(Names(late), late.size() == 1 ? " has" : " have", " not come to collective ", behind + 1);
    }
    // All are in it: do all mean the same? The few are wrong, or, of two, the other.
    std::map<std::pair<int32_t, int64_t>, std::vector<int>> meanings;
    for (const auto& [rank, state] : states) {
      if (state.kind >= 0 && state.number == number) meanings[{state.kind, state.bytes}].push_back(rank);
    }
    if (meanings.size() > 1) {
      const Message mine = StateFor(number);
      auto odd = meanings.begin();
      for (auto it = meanings.begin(); it != meanings.end(); ++it) {
        const bool is_mine = it->first == std::make_pair(mine.kind, mine.bytes);
        const bool odd_is_mine = odd->first == std::make_pair(mine.kind, mine.bytes);
        if (it->second.size() < odd->second.size() ||
            (it->second.size() == odd->second.size() && odd_is_mine && !is_mine)) {
          odd = it;
        }
      }
      const auto other = odd == meanings.begin() ? std::next(odd) : meanings.begin();
      return absl::StrCat(Names(odd->second),
                          " takes part in another collective: ", Describe(odd->first.first, odd->first.second),
                          " where the others have ", Describe(other->first.first, other->first.second));
    }
    return "all ranks answer and are in the same collective; a connection between them is lost or too slow";
  }

  // What this rank answers.
  Message StateFor(int64_t number) const {
    Message state = NewMessage(Type::kAnswer);
    state.number = number;
    state.begun = latest_;
    const Begun& asked = begun_[number % kRemembered];
    if (number > 0 && asked.number == number) {
      state.kind = static_cast<int32_t>(asked.kind);
      state.bytes = asked.bytes;
    }
    return state;
  }

  void Listen() {
    pollfd ready[2] = {{socket_, POLLIN, 0}, {wake_, POLLIN, 0}};
    while (true) {
      if (poll(ready, 2, -1) < 0 && errno != EINTR) return;
      if ((ready[1].revents & POLLIN) != 0) return;
      Message message;
      const ssize_t size = recv(socket_, &message, sizeof(message), MSG_DONTWAIT);
      if (size != sizeof(message) || message.token != token_ || message.from < 0 ||
          message.from >= static_cast<int>(peers_.size()) || message.length < 0 ||
          message.length > static_cast<int>(sizeof(message.text)) || message.kind >= kCollectiveKinds ||
          message.number < 0) {
        continue;
      }
      Handle(message);
    }
  }

  void Handle(const Message& message) {
    std::unique_lock<std::mutex> lock(mutex_);
    int64_t ended_from = std::numeric_limits<int64_t>::max();
    switch (message.type) {
      case Type::kQuestion: {
        Message answer = StateFor(message.number);
        answer.round = message.round;
        Send(message.from, answer);
        return;
      }
      case Type::kAnswer:
        if (message.round == round_) answers_[message.from] = message;
        break;
      case Type::kVerdict:
        if (verdict_.empty() || message.number < verdict_from_) {
          verdict_ = std::string(message.text, message.length);
          verdict_from_ = message.number;
        }
        ended_from = message.number;
        break;
      case Type::kLeft:
        left_[message.from] = Left{message.number, std::string(message.text, message.length)};
        ended_from = message.number + 1;
        break;
    }
    changed_.notify_all();
    lock.unlock();
    if (ended_from != std::numeric_limits<int64_t>::max()) on_end_(ended_from);
  }

  const int socket_, wake_;
  const uint64_t token_;
  const std::string address_;

  // Set by Start.
  int rank_ = 0;
  std::vector<int> names_;
  std::vector<Peer> peers_;
  std::function<void(int64_t)> on_end_;

  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  std::array<Begun, kRemembered> begun_;
  int64_t latest_ = 0;
  std::set<int64_t> unfinished_;
  int64_t round_ = 0;
  std::vector<std::optional<Message>> answers_;
  std::vector<std::optional<Left>> left_;  // this rank too
  // Why collectives from `verdict_from_` on cannot succeed. Ranks that are behind may still finish earlier ones.
  std::string verdict_;
  int64_t verdict_from_ = 0;
  bool failed_ = false;  // a collective of this rank

  std::thread thread_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<RankWatch>> RankWatch::Open(const std::string& host) {
  QUARTET_ASSIGN_OR_RETURN(const Peer local, Resolve(host, "0"));
  const int socket_fd = socket(local.address.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (socket_fd < 0) return absl::UnavailableError(Errno("rank watch: socket"));
  sockaddr_storage bound = {};
  socklen_t length = sizeof(bound);
  char name[NI_MAXHOST], port[NI_MAXSERV];
  uint64_t token = 0;
  if (bind(socket_fd, reinterpret_cast<const sockaddr*>(&local.address), local.length) != 0 ||
      getsockname(socket_fd, reinterpret_cast<sockaddr*>(&bound), &length) != 0 ||
      getrandom(&token, sizeof(token), 0) != sizeof(token)) {
    absl::Status status = absl::UnavailableError(Errno(absl::StrCat("rank watch: a port of ", host).c_str()));
    close(socket_fd);
    return status;
  }
  if (const int error = getnameinfo(reinterpret_cast<sockaddr*>(&bound), length, name, sizeof(name), port, sizeof(port),
                                    NI_NUMERICHOST | NI_NUMERICSERV);
      error != 0) {
    close(socket_fd);
    return absl::UnavailableError(absl::StrCat("rank watch: ", gai_strerror(error)));
  }
  return std::make_unique<UdpRankWatch>(socket_fd, token, absl::StrCat(name, ",", port, ",", token));
}

}  // namespace quartet
