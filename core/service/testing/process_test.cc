// A service as users start it: real processes, real sockets.
#include <arpa/inet.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "core/base/files/files.h"
#include "core/hardware/topology.h"
#include "core/service/process/child_process.h"
#include "core/service/process/launcher.h"
#include "core/service/ranks/addresses/host_address.h"
#include "core/service/ranks/addresses/port_reservation.h"
#include "core/service/rpc/credentials.h"
#include "core/service/rpc/health.grpc.pb.h"
#include "core/service/rpc/status_conversion.h"
#include "proto/rollout.grpc.pb.h"

namespace quartet {
namespace {

using grpc::health::v1::HealthCheckResponse;
using Strings = std::vector<std::string>;
using Variables = std::map<std::string, std::string>;

constexpr absl::Duration kLong = absl::Seconds(60);

std::string NewFolder() {
  // As programs name it, without doubled slashes.
  std::string folder = (std::filesystem::path(::testing::TempDir()) / "process_XXXXXX").string();
  return mkdtemp(folder.data());
}

// A port that was free a moment ago.
int FreePort() { return PortReservation::Make({.host = "127.0.0.1", .port = 0}).value().address().port; }

// As /proc writes it; X where there is none.
char StateOf(pid_t pid) {
  const std::string stat = ReadFile(absl::StrCat("/proc/", pid, "/stat")).value_or(") X");
  return stat.at(stat.rfind(')') + 2);
}

bool IsAlive(pid_t pid) {
  // A zombie has ended too, and may stay one where nobody collects orphans.
  return StateOf(pid) != 'Z' && StateOf(pid) != 'X';
}

bool AllEndWithin(const std::set<pid_t>& pids, absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  for (pid_t pid : pids) {
    while (IsAlive(pid)) {
      if (absl::Now() > deadline) return false;
      absl::SleepFor(absl::Milliseconds(20));
    }
  }
  return true;
}

class Toy {
 public:
  explicit Toy(const Strings& flags, const Variables& variables = {})
      : folder_(NewFolder()), address_file_(folder_ + "/address"), log_file_(folder_ + "/log") {
    ChildProcessOptions options;
    options.argv = {ExecutableFolder() + "/toy", "--set=rollout.pretrain=/nowhere", "--address_file=" + address_file_};
    options.argv.insert(options.argv.end(), flags.begin(), flags.end());
    options.environment = variables;
    options.log_file = log_file_;
    process_ = ChildProcess::Start(options).value();
  }

  ChildProcess& process() { return *process_; }
  std::string Log() const { return ReadFile(log_file_).value(); }

  // Until the log has `words`, or the service has ended.
  void WaitForLog(const std::string& words) const {
    const absl::Time deadline = absl::Now() + kLong;
    while (Log().find(words) == std::string::npos && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(10));
  }

  // Of a launcher's child; -1: there is no such rank.
  pid_t PidOfRank(int rank) const {
    const pid_t launcher = process_->pid();
    const std::string end(1, '\0');
    const std::string variable = absl::StrCat(end, "RANK=", rank, end);
    std::istringstream children(
        ReadFile(absl::StrCat("/proc/", launcher, "/task/", launcher, "/children")).value_or(""));
    for (pid_t pid; children >> pid;) {
      const std::string environment = ReadFile(absl::StrCat("/proc/", pid, "/environ")).value_or("");
      if (environment.find(variable) != std::string::npos) return pid;
    }
    return -1;
  }

  // The leader's address, once the service serves.
  std::string Address() {
    const absl::Time deadline = absl::Now() + kLong;
    while (absl::Now() < deadline && !process_->Poll().has_value()) {
      absl::StatusOr<std::string> address = ReadFile(address_file_);
      if (address.ok()) return *address;
      absl::SleepFor(absl::Milliseconds(10));
    }
    ADD_FAILURE() << "does not serve: " << Log();
    return "127.0.0.1:1";
  }

  // `patient`: goes on trying to connect, since a first connection may fail by itself on a busy machine.
  absl::StatusOr<ServiceInfo> Info(const TlsConfig& tls = {}, bool patient = true,
                                   std::chrono::seconds timeout = std::chrono::seconds(20)) {
    auto stub = Rollout::NewStub(MakeChannel(Address(), MakeChannelCredentials(tls).value()));
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + timeout);
    context.set_wait_for_ready(patient);
    ServiceInfo info;
    const grpc::Status status = stub->GetInfo(&context, GetInfoRequest(), &info);
    if (!status.ok()) return FromGrpc(status);
    return info;
  }

  std::set<pid_t> RankPids() {
    absl::StatusOr<ServiceInfo> info = Info();
    EXPECT_TRUE(info.ok()) << info.status() << Log();
    std::set<pid_t> pids;
    if (info.ok()) {
      for (const RankInfo& rank : info->ranks()) pids.insert(rank.pid());
    }
    return pids;
  }

  void ExpectEnd(int code, const Strings& words) {
    const std::optional<ExitState> end = process_->Wait(kLong);
    ASSERT_TRUE(end.has_value()) << Log();
    EXPECT_EQ(end->signal, 0) << Log();
    EXPECT_EQ(end->code, code) << Log();
    const std::string log = Log();
    for (const std::string& word : words) EXPECT_NE(log.find(word), std::string::npos) << word << "\n" << log;
  }

 private:
  const std::string folder_, address_file_, log_file_;
  std::unique_ptr<ChildProcess> process_;
};

// SERVING, NOT_SERVING, or the call's error.
std::string Health(const std::string& address, const std::string& service) {
  auto stub = grpc::health::v1::Health::NewStub(MakeChannel(address, grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  context.set_wait_for_ready(true);
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
  grpc::health::v1::HealthCheckRequest request;
  request.set_service(service);
  HealthCheckResponse response;
  const grpc::Status status = stub->Check(&context, request, &response);
  return status.ok() ? HealthCheckResponse::ServingStatus_Name(response.status()) : absl::StrCat(status.error_code());
}

const Strings kTwoRanks = {"--ranks=2", "--listen=127.0.0.1:0"};

TEST(Process, ServesOnAllRanksAndLeavesOnSigterm) {
  Toy toy(kTwoRanks);
  const std::set<pid_t> pids = toy.RankPids();
  EXPECT_EQ(pids.size(), 2);
  EXPECT_EQ(Health(toy.Address(), ""), "SERVING");
  EXPECT_EQ(Health(toy.Address(), "quartet.Rollout"), "SERVING");
  EXPECT_EQ(Health(toy.Address(), "quartet.Nonsense"), absl::StrCat(grpc::StatusCode::NOT_FOUND));
  toy.process().Signal(SIGTERM);
  toy.ExpectEnd(0, {"stopping: SIGTERM", "[rollout/0]", "[rollout/1]", "[rollout]"});
  EXPECT_TRUE(AllEndWithin(pids, absl::ZeroDuration()));
}

// Is there for a service, as an orchestrator is, until its end.
class Watch {
 public:
  explicit Watch(const std::string& address)
      : stub_(grpc::health::v1::Health::NewStub(MakeChannel(address, grpc::InsecureChannelCredentials()))) {
    context_.set_wait_for_ready(true);
    reader_ = stub_->Watch(&context_, {});
    HealthCheckResponse response;
    EXPECT_TRUE(reader_->Read(&response));
  }
  ~Watch() {
    context_.TryCancel();
    HealthCheckResponse response;
    while (reader_->Read(&response)) {
    }
    reader_->Finish();
  }

 private:
  grpc::ClientContext context_;
  const std::unique_ptr<grpc::health::v1::Health::Stub> stub_;
  std::unique_ptr<grpc::ClientReader<HealthCheckResponse>> reader_;
};

class SigtermIsLeft : public ::testing::Test {
 protected:
  static Strings Flags() {
    Strings flags = kTwoRanks;
    flags.push_back("--set=train.save_on_sigterm=true");
    return flags;
  }
  void ExpectGoesOn() {
    for (const char* name : {"rollout/0", "rollout/1", "rollout"}) {
      toy_.WaitForLog(absl::StrCat("[", name, "] SIGTERM: this goes on until no orchestrator is there"));
    }
    EXPECT_EQ(Health(toy_.Address(), ""), "SERVING");
  }

  Toy toy_{Flags()};
  const std::set<pid_t> pids_ = toy_.RankPids();
};

TEST_F(SigtermIsLeft, ToAnOrchestratorAsLongAsOneIsThere) {
  {
    const Watch orchestrator(toy_.Address());
    toy_.process().Signal(SIGTERM);
    ExpectGoesOn();
  }
  toy_.ExpectEnd(0, {"[rollout/0] stopping: SIGTERM, and no orchestrator is there"});
  EXPECT_TRUE(AllEndWithin(pids_, absl::ZeroDuration()));
}

TEST_F(SigtermIsLeft, AndSigintEndsAServiceAtOnce) {
  const Watch orchestrator(toy_.Address());
  for (const pid_t rank : pids_) kill(rank, SIGTERM);
  toy_.process().Signal(SIGTERM);
  ExpectGoesOn();
  toy_.process().Signal(SIGINT);
  toy_.ExpectEnd(0, {"stopping: SIGINT"});
  EXPECT_TRUE(AllEndWithin(pids_, absl::ZeroDuration()));
}

// Of a process: the value of a variable of its environment, "" where it is not there; "0-3,8".
std::string Variable(pid_t pid, const std::string& name) {
  const std::string environment = ReadFile(absl::StrCat("/proc/", pid, "/environ")).value_or("");
  for (const std::string& one : std::vector<std::string>(absl::StrSplit(environment, '\0'))) {
    if (absl::StartsWith(one, name + "=")) return one.substr(name.size() + 1);
  }
  return "";
}
std::string AllowedCores(pid_t pid) {
  const std::string status = ReadFile(absl::StrCat("/proc/", pid, "/status")).value_or("");
  const std::string label = "Cpus_allowed_list:\t";
  const size_t begin = status.find(label) + label.size();
  return status.substr(begin, status.find('\n', begin) - begin);
}

TEST(Process, EndsWhereNoOrchestratorComes) {
  Strings flags = kTwoRanks;
  flags.push_back("--set=services.orchestrator_timeout_seconds=1");
  Toy toy(flags);
  toy.ExpectEnd(1, {"serving on", "no orchestrator has been there for 1s (services.orchestrator_timeout_seconds)"});
}

TEST(Process, EachRankRunsOnItsOwnCores) {
  const std::vector<int> cores = ReadTopology().cores();
  const std::string first = absl::StrCat(cores.front()), last = absl::StrCat(cores.back());
  Toy toy(kTwoRanks, {{kRankCores, first + ";" + last}});
  EXPECT_EQ(toy.RankPids().size(), 2);
  for (const auto& [rank, core] : {std::pair(0, first), std::pair(1, last)}) {
    EXPECT_EQ(AllowedCores(toy.PidOfRank(rank)), core);
    EXPECT_EQ(Variable(toy.PidOfRank(rank), "OMP_NUM_THREADS"), "1");
    EXPECT_EQ(Variable(toy.PidOfRank(rank), kRankCores), "") << "it is the launcher's";
  }
}

TEST(Process, RefusesCoresThatAreNotOfItsRanks) {
  Toy toy(kTwoRanks, {{kRankCores, "0"}});
  toy.ExpectEnd(2, {kRankCores, "is \"0\"", "each of 2 ranks"});
}

TEST(Process, EachRankWritesATraceOfItsOwn) {
  const std::string folder = NewFolder();
  Toy toy({"--ranks=2", "--listen=127.0.0.1:0", "--trace=" + folder + "/toy.json"});
  toy.RankPids();
  toy.process().Signal(SIGTERM);
  toy.ExpectEnd(0, {});
  for (const char* rank : {"rank0", "rank1"}) {
    const absl::StatusOr<std::string> trace = ReadFile(absl::StrCat(folder, "/toy.", rank, ".json"));
    ASSERT_TRUE(trace.ok()) << trace.status();
    EXPECT_EQ(trace->substr(0, 2), "[\n");
    EXPECT_NE(trace->find("\"rollout\""), std::string::npos) << *trace;
  }
}

TEST(Process, LeavesOnSigint) {
  Toy toy(kTwoRanks);
  const std::set<pid_t> pids = toy.RankPids();
  toy.process().Signal(SIGINT);
  toy.ExpectEnd(0, {"stopping: SIGINT"});
  EXPECT_TRUE(AllEndWithin(pids, absl::ZeroDuration()));
}

TEST(Process, LeavesNoOrphanWhereTheLauncherIsKilled) {
  Toy toy(kTwoRanks);
  const std::set<pid_t> pids = toy.RankPids();
  toy.process().Signal(SIGKILL);
  EXPECT_EQ(toy.process().Wait(kLong)->signal, SIGKILL);
  EXPECT_TRUE(AllEndWithin(pids, absl::Seconds(5))) << toy.Log();
}

TEST(Process, NeedsNoFolderToMeetInAndLeavesNone) {
  const std::string folder = NewFolder();
  Toy toy({"--ranks=3", "--listen=127.0.0.1:0"}, {{"TMPDIR", folder}});
  while (toy.PidOfRank(0) < 0) absl::SleepFor(absl::Milliseconds(1));
  const pid_t leader = toy.PidOfRank(0);
  toy.process().Signal(SIGKILL);
  EXPECT_EQ(toy.process().Wait(kLong)->signal, SIGKILL);
  EXPECT_TRUE(AllEndWithin({leader}, kLong));
  EXPECT_TRUE(std::filesystem::is_empty(folder));
  Toy without(kTwoRanks, {{"TMPDIR", folder + "/none"}});
  EXPECT_EQ(without.RankPids().size(), 2u);
}

TEST(Process, EndsWhereARankIsKilledAndSaysWhich) {
  Toy toy({"--ranks=3", "--listen=127.0.0.1:0"});
  std::set<pid_t> pids = toy.RankPids();
  ASSERT_EQ(pids.size(), 3);
  const absl::StatusOr<ServiceInfo> info = toy.Info();
  ASSERT_TRUE(info.ok()) << info.status();
  kill(info->ranks(1).pid(), SIGKILL);
  toy.ExpectEnd(1, {"rank 1", "killed by SIGKILL (signal 9): out of memory?"});
  EXPECT_TRUE(AllEndWithin(pids, absl::ZeroDuration()));
}

// No rank is missing then: it was told to end, and so are the others.
TEST(Process, EndsInOrderWhereOneRankIsToldToAndSaysWhich) {
  for (const int told : {0, 1}) {
    Toy toy({"--ranks=3", "--listen=127.0.0.1:0"});
    const std::set<pid_t> pids = toy.RankPids();
    const pid_t pid = toy.PidOfRank(told);
    kill(pid, SIGTERM);
    toy.ExpectEnd(0, {"ended: exit code 0: SIGTERM", "[rollout] a rank was told to end; ending the others"});
    // By itself, or by another that ends before it because of it.
    const std::string log = toy.Log();
    EXPECT_TRUE(log.find(absl::StrCat("rank ", told, " (pid ", pid, ") ended: exit code 0: SIGTERM")) != log.npos ||
                log.find(absl::StrCat("ended: exit code 0: SIGTERM (of rank ", told, ")")) != log.npos)
        << log;
    EXPECT_EQ(toy.Log().find("missing"), std::string::npos) << toy.Log();
    EXPECT_TRUE(AllEndWithin(pids, absl::ZeroDuration()));
  }
}

TEST(Process, EndsWithItsParentsPipe) {
  // The shell between us and the toy holds the only other end of the pipe that the toy watches.
  ChildProcessOptions options;
  const std::string folder = NewFolder();
  options.argv = {
      "/bin/sh", "-c",
      absl::StrCat("mkfifo ", folder, "/pipe; (exec 9<", folder, "/pipe; QUARTET_PARENT_FD=9 exec ", ExecutableFolder(),
                   "/toy --set=rollout.pretrain=/x --listen=127.0.0.1:0 --address_file=", folder, "/address) & exec 8>",
                   folder, "/pipe; while [ ! -e ", folder,
                   "/address ]; do sleep 0.05; done; exec 8>&-; wait $!; echo ended with $? > ", folder, "/result")};
  std::unique_ptr<ChildProcess> shell = ChildProcess::Start(options).value();
  ASSERT_TRUE(shell->Wait(kLong).has_value());
  EXPECT_EQ(ReadFile(folder + "/result").value(), "ended with 0\n");
}

TEST(Process, LeavesEvenWhereACallIsStuck) {
  Toy toy(kTwoRanks, {{"TOY_CALL", "stuck"}});
  auto stub = Rollout::NewStub(MakeChannel(toy.Address(), grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(500));
  ServiceInfo info;
  EXPECT_EQ(stub->GetInfo(&context, GetInfoRequest(), &info).error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  toy.process().Signal(SIGTERM);
  toy.ExpectEnd(0, {"leaving a computation that nobody waits for"});
}

// Whatever the leader is at, and whoever notices first.
TEST(Process, ACallUnderWayIsToldWhichRankDied) {
  for (const std::string what : {"stuck", "alone"}) {
    SCOPED_TRACE(what);
    Toy toy({"--ranks=3", "--listen=127.0.0.1:0"}, {{"TOY_CALL", what}});
    toy.Address();
    const pid_t doomed = toy.PidOfRank(1);
    ASSERT_GT(doomed, 0);
    std::thread killer([&] {
      toy.WaitForLog("at work");
      kill(doomed, SIGKILL);
    });
    const absl::Status status = toy.Info().status();
    killer.join();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_NE(status.message().find("rank 1 (pid "), std::string::npos) << status;
    EXPECT_NE(status.message().find("killed by SIGKILL"), std::string::npos) << status;
    toy.ExpectEnd(1, {"killed by SIGKILL"});
  }
}

// Before its own time is over, of which it would know nothing but that.
TEST(Process, ACallerIsToldWhichRankIsStopped) {
  Toy toy({"--ranks=3", "--listen=127.0.0.1:0"});
  toy.Address();
  const pid_t stopped = toy.PidOfRank(1);
  ASSERT_GT(stopped, 0);
  kill(stopped, SIGSTOP);
  while (StateOf(stopped) != 'T') absl::SleepFor(absl::Milliseconds(1));
  absl::SleepFor(absl::Milliseconds(200));  // for 100 ms it counts as one that has just been heard
  for (const auto& [timeout, what] : {std::pair(3, ": not all ranks were ready in time: rank 1 (127.0.0.1:"),
                                      std::pair(300, ") has not answered for 15s: stopped, or its host is gone")}) {
    const absl::Status status = toy.Info({}, true, std::chrono::seconds(timeout)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
    EXPECT_NE(status.message().find(what), std::string::npos) << status;
    EXPECT_NE(status.message().find("rank 1 (127.0.0.1:"), std::string::npos) << status;
    EXPECT_EQ(status.message().find("rank 2"), std::string::npos) << status;
  }
  kill(stopped, SIGCONT);
}

TEST(Process, ACallUnderWayIsToldThatTheServiceStops) {
  Toy toy(kTwoRanks, {{"TOY_CALL", "stuck"}});
  toy.Address();
  std::thread stopper([&] {
    toy.WaitForLog("at work");
    toy.process().Signal(SIGTERM);
  });
  const absl::Status status = toy.Info().status();
  stopper.join();
  // The leader's own word, or that of the other rank, which stops too.
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(status.message().find("the rollout stops: SIGTERM"), std::string::npos) << status;
  toy.ExpectEnd(0, {"leaving a computation that nobody waits for"});
}

TEST(Process, EndsWhereACollectiveBreaks) {
  Toy toy(kTwoRanks, {{"TOY_CALL", "fail"}});
  const absl::Status status = toy.Info().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_NE(std::string(status.message()).find("rank 1 (127.0.0.1:"), std::string::npos) << status;
  toy.ExpectEnd(1, {"the ranks cannot work together any more", "the toy broke", "rank 1 (127.0.0.1:"});
}

TEST(Process, ServesOnlyOnceAllRanksHaveLoaded) {
  const std::string gate = NewFolder() + "/gate";
  const std::string address = absl::StrCat("127.0.0.1:", FreePort());
  Toy toy({"--ranks=2", "--listen=" + address}, {{"TOY_LOAD_GATE", gate}});
  EXPECT_EQ(Health(address, ""), "NOT_SERVING");
  absl::SleepFor(absl::Milliseconds(300));
  EXPECT_EQ(Health(address, "quartet.Rollout"), "NOT_SERVING");
  ASSERT_TRUE(AtomicWriteFile(gate, "").ok());
  EXPECT_EQ(toy.Address(), address);
  EXPECT_EQ(Health(address, ""), "SERVING");
}

TEST(Process, EndsWhereARankCannotLoad) {
  Toy toy({"--ranks=2", "--listen=127.0.0.1:0"}, {{"TOY_BAD_RANK", "1"}});
  toy.ExpectEnd(2,
                {"[rollout/1] stopping: ", "rank 1 (127.0.0.1:", "cannot load: no toy here", "[rollout/0] stopping: "});
}

TEST(Process, ListsItsServicesByReflection) {
  Toy toy({"--listen=127.0.0.1:0"});
  grpc::GenericStub stub(MakeChannel(toy.Address(), grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
  grpc::CompletionQueue queue;
  void* tag = nullptr;
  bool ok = false;
  auto call = stub.PrepareCall(&context, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", &queue);
  call->StartCall(&tag);
  ASSERT_TRUE(queue.Next(&tag, &ok) && ok);
  // ServerReflectionRequest{list_services: ""}
  const grpc::Slice request(std::string("\x3a\x00", 2));
  call->WriteLast(grpc::ByteBuffer(&request, 1), grpc::WriteOptions(), nullptr);
  ASSERT_TRUE(queue.Next(&tag, &ok) && ok);
  grpc::ByteBuffer reply;
  call->Read(&reply, nullptr);
  ASSERT_TRUE(queue.Next(&tag, &ok) && ok);
  std::vector<grpc::Slice> slices;
  ASSERT_TRUE(reply.Dump(&slices).ok());
  std::string text;
  for (const grpc::Slice& slice : slices) text.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  for (const char* name : {"quartet.Rollout", "quartet.Rank", "quartet.Rendezvous", "grpc.health.v1.Health"}) {
    EXPECT_NE(text.find(name), std::string::npos) << name;
  }
  grpc::Status status;
  call->Finish(&status, nullptr);
  ASSERT_TRUE(queue.Next(&tag, &ok));
}

// What a connection gets within two seconds: the first byte of a server's settings, or its end.
Strings ConnectAsNobody(const std::string& address) {
  const HostPort place = ParseHostPort(address).value();
  ChildProcessOptions options;
  options.argv = {
      "/usr/bin/setpriv",
      "--reuid=65534",
      "--clear-groups",
      "/bin/bash",
      "-c",
      absl::StrCat("exec 3<>/dev/tcp/", place.host, "/", place.port,
                   " && if (($(timeout 20 head -c 1 <&3 | wc -c) == 1)); then echo served; else echo closed; fi")};
  options.log_file = NewFolder() + "/nobody.log";
  EXPECT_TRUE(ChildProcess::Start(options).value()->Wait(kLong).has_value());
  return absl::StrSplit(ReadFile(options.log_file).value(), '\n', absl::SkipEmpty());
}

TEST(Process, TakesNoCallsOfOtherUsersOfTheMachine) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  {
    Toy toy({"--listen=127.0.0.1:0"});
    EXPECT_EQ(ConnectAsNobody(toy.Address()), Strings{"closed"});
    toy.WaitForLog("refused a connection of nobody (65534)");
    EXPECT_TRUE(toy.Info().ok()) << toy.Log();
  }
  Toy open({"--listen=127.0.0.1:0", "--set=services.allow_other_users=true"});
  EXPECT_EQ(ConnectAsNobody(open.Address()), Strings{"served"});
}

TEST(Process, RefusesAPortInUse) {
  Toy first({"--listen=127.0.0.1:0"});
  const std::string address = first.Address();
  Toy second({"--listen=" + address});
  second.ExpectEnd(1, {"cannot listen on " + address, "in use", "--listen"});
}

TEST(Process, RefusesWrongFlagsAndConfigurations) {
  Toy({"--rank=2"}).ExpectEnd(2, {"unknown flag --rank", "--ranks"});
  Toy({"run.textproto"}).ExpectEnd(2, {"\"run.textproto\" is not a flag"});
  Toy({"--ranks=0"}).ExpectEnd(2, {"--ranks is \"0\"", "at least 1"});
  Toy({"--listen=0.0.0.0:0"}).ExpectEnd(2, {"0.0.0.0:0", "tls"});
  Toy({"--config=/nonexistent.textproto"}).ExpectEnd(2, {"/nonexistent.textproto"});
  Toy({"--set=rollout.pretrain="}).ExpectEnd(2, {"rollout.pretrain", "not set"});
  const std::string config = NewFolder() + "/run.textproto";
  ASSERT_TRUE(AtomicWriteFile(config, "seed: 1\nrolout { }\n").ok());
  Toy({"--config=" + config}).ExpectEnd(2, {config + ":2:", "rolout"});
}

TEST(Process, ExplainsItself) {
  Toy toy({"--help"});
  toy.ExpectEnd(0, {"--config", "--set", "--ranks", "--listen", "--address_file", "--trace", "WORLD_SIZE",
                    "SLURM_PROCID", "a service without models", "rollout_batch_size", "Exit codes"});
}

// Certificates in `folder`, for `names` in openssl's form.
TlsConfig MakeTls(const std::string& folder, const std::string& names) {
  const std::string script = absl::StrCat(
      "cd ", folder,
      " && openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=ca -keyout ca.key -out ca.pem"
      " && openssl req -newkey rsa:2048 -nodes -subj /CN=quartet -keyout key.pem -out csr.pem"
      " && printf 'subjectAltName=",
      names,
      "' > ext"
      " && openssl x509 -req -in csr.pem -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile ext -out cert.pem"
      " && chmod 600 key.pem");
  ChildProcessOptions options;
  options.argv = {"/bin/sh", "-c", script};
  options.log_file = folder + "/openssl.log";
  EXPECT_TRUE(ChildProcess::Start(options).value()->Wait(kLong)->ok()) << ReadFile(options.log_file).value();
  TlsConfig tls;
  tls.set_ca_file(folder + "/ca.pem");
  tls.set_cert_file(folder + "/cert.pem");
  tls.set_key_file(folder + "/key.pem");
  return tls;
}

Strings TlsFlags(const TlsConfig& tls) {
  return {"--set=tls.ca_file=" + tls.ca_file(), "--set=tls.cert_file=" + tls.cert_file(),
          "--set=tls.key_file=" + tls.key_file()};
}

TEST(Process, TalksTlsWithCertificatesFromFiles) {
  const TlsConfig tls = MakeTls(NewFolder(), "IP:127.0.0.1,DNS:localhost");
  Strings flags = kTwoRanks;
  for (const std::string& flag : TlsFlags(tls)) flags.push_back(flag);
  {
    Toy toy(flags);
    absl::StatusOr<ServiceInfo> info = toy.Info(tls);
    ASSERT_TRUE(info.ok()) << info.status() << toy.Log();
    EXPECT_EQ(info->ranks_size(), 2);
    EXPECT_EQ(toy.Info({}, /*patient=*/false).status().code(), absl::StatusCode::kUnavailable)
        << "a client without TLS was let in";
  }
  ASSERT_EQ(chmod(tls.key_file().c_str(), 0644), 0);
  Toy(flags).ExpectEnd(1, {tls.key_file(), "chmod 600"});
}

TEST(Process, RefusesACertificateForAnotherNameOrOfAnotherAuthorityAtOnce) {
  const TlsConfig tls = MakeTls(NewFolder(), "IP:10.1.2.3,DNS:node7");
  Strings flags = kTwoRanks;
  for (const std::string& flag : TlsFlags(tls)) flags.push_back(flag);
  Toy(flags).ExpectEnd(2, {tls.cert_file(), "is for IP:10.1.2.3, DNS:node7, and not for 127.0.0.1"});
  TlsConfig foreign = MakeTls(NewFolder(), "IP:127.0.0.1");
  foreign.set_ca_file(tls.ca_file());
  flags = kTwoRanks;
  for (const std::string& flag : TlsFlags(foreign)) flags.push_back(flag);
  Toy(flags).ExpectEnd(2, {foreign.cert_file(), "is signed by no authority in tls.ca_file " + tls.ca_file()});
}

// Whoever can connect can have as many as he likes.
TEST(Process, TellsOnceOfManyHandshakesThatFail) {
  const TlsConfig tls = MakeTls(NewFolder(), "IP:127.0.0.1");
  Strings flags = TlsFlags(tls);
  flags.push_back("--listen=127.0.0.1:0");
  Toy toy(flags);
  const HostPort place = ParseHostPort(toy.Address()).value();
  ChildProcessOptions options;
  options.argv = {"/bin/bash", "-c",
                  absl::StrCat("for i in {1..50}; do exec 3<>/dev/tcp/", place.host, "/", place.port,
                               " && echo neither TLS nor anything else >&3 && cat <&3 >/dev/null; exec 3>&-; done")};
  options.log_file = NewFolder() + "/connects.log";
  ASSERT_TRUE(ChildProcess::Start(options).value()->Wait(kLong).has_value());
  toy.WaitForLog("andshake failed");
  const absl::StatusOr<ServiceInfo> info = toy.Info(tls);
  EXPECT_TRUE(info.ok()) << info.status();
  const std::vector<std::string> around = absl::StrSplit(toy.Log(), "andshake failed");
  EXPECT_EQ(around.size(), 2u) << toy.Log();
}

TEST(Process, RanksThatListenOnAllAddressesAreFoundUnderOne) {
  const absl::StatusOr<std::string> host = OwnReachableHost("0.0.0.0");
  if (!host.ok()) GTEST_SKIP() << host.status();
  in_addr numeric;
  const bool is_numeric = inet_pton(AF_INET, host->c_str(), &numeric) == 1;
  const TlsConfig tls = MakeTls(NewFolder(), absl::StrCat(is_numeric ? "IP:" : "DNS:", *host));
  Strings flags = TlsFlags(tls);
  flags.insert(flags.end(), {"--ranks=2", "--listen=0.0.0.0:0"});
  Toy toy(flags);
  const absl::StatusOr<ServiceInfo> info = toy.Info(tls);
  ASSERT_TRUE(info.ok()) << info.status() << toy.Log();
  ASSERT_EQ(info->ranks_size(), 2);
  for (const RankInfo& rank : info->ranks()) EXPECT_EQ(rank.endpoint().rfind(*host + ":", 0), 0u) << rank.endpoint();
}

// As torchrun starts two nodes of one rank each, here on one host.
Variables Node(int rank) {
  return {{"RANK", absl::StrCat(rank)}, {"WORLD_SIZE", "2"},          {"LOCAL_RANK", "0"},
          {"LOCAL_WORLD_SIZE", "1"},    {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", absl::StrCat(FreePort())}};
}

TEST(Process, TakesItsPlaceFromTorchrun) {
  const std::string listen = absl::StrCat("--listen=127.0.0.1:", FreePort());
  Toy second({listen}, Node(1));
  Toy first({listen}, Node(0));
  absl::StatusOr<ServiceInfo> info = first.Info();
  ASSERT_TRUE(info.ok()) << info.status() << first.Log();
  ASSERT_EQ(info->ranks_size(), 2);
  EXPECT_EQ(info->ranks(0).pid(), first.process().pid());
  EXPECT_EQ(info->ranks(1).pid(), second.process().pid());
  EXPECT_EQ(Health(info->ranks(1).endpoint(), ""), "SERVING");
  // The other node leaves when the leader's host is lost.
  first.process().Signal(SIGKILL);
  second.ExpectEnd(1, {"rank 0 (127.0.0.1:", "is gone"});
}

// Nobody calls, and no launcher watches.
TEST(Process, ARankThatDiesBetweenCallsEndsTheOthers) {
  const std::string listen = absl::StrCat("--listen=127.0.0.1:", FreePort());
  Toy leader({listen}, Node(0));
  Toy follower({listen}, Node(1));
  ASSERT_EQ(leader.RankPids().size(), 2u);
  follower.process().Signal(SIGKILL);
  leader.ExpectEnd(1, {"the ranks cannot work together any more: rank 1 (127.0.0.1:", "is gone"});
}

// Both hear what was wrong: the one that goes on again has nothing to say against the others.
TEST(Process, ARankThatIsStoppedIsGivenUpAndTakesNobodyElseForGone) {
  for (const int stopped : {0, 1}) {
    const std::string listen = absl::StrCat("--listen=127.0.0.1:", FreePort());
    std::vector<std::unique_ptr<Toy>> ranks;
    for (const int rank : {0, 1}) {
      Variables variables = Node(rank);
      variables["TOY_HEARTBEAT"] = "100ms";
      ranks.push_back(std::make_unique<Toy>(Strings{listen}, variables));
    }
    ASSERT_EQ(ranks[0]->RankPids().size(), 2u);
    ranks[stopped]->process().Signal(SIGSTOP);
    const std::string why = "has not answered for 2.5s: it is stopped, or its host is gone";
    ranks[1 - stopped]->ExpectEnd(
        1, {absl::StrCat("the ranks cannot work together any more: rank ", stopped, " (127.0.0.1:"), why});
    ranks[stopped]->process().Signal(SIGCONT);
    ranks[stopped]->ExpectEnd(1, {"the ranks cannot work together any more: "});
    // What the other said of it as it ended may be lost.
    const std::string log = ranks[stopped]->Log();
    EXPECT_TRUE(log.find(why) != std::string::npos || log.find(": this one was stopped") != std::string::npos) << log;
    for (const auto& rank : ranks) EXPECT_EQ(rank->Log().find(") is gone"), std::string::npos) << rank->Log();
  }
}

// Not the first to end because of it.
TEST(Process, TheOthersOfALauncherNameTheRankThatIsStopped) {
  Toy toy({"--ranks=3", "--listen=127.0.0.1:0"}, {{"TOY_HEARTBEAT", "100ms"}});
  toy.Address();
  kill(toy.PidOfRank(1), SIGSTOP);
  toy.ExpectEnd(1, {"[rollout/0] stopping: the ranks cannot work together any more: rank 1 (127.0.0.1:",
                    "[rollout/2] stopping: the ranks cannot work together any more: rank 1 (127.0.0.1:"});
}

TEST(Process, HasTheGpusAndCoresThatSlurmsStepGivesIt) {
  const std::string listen = absl::StrCat("--listen=127.0.0.1:", FreePort());
  const std::vector<int> cores = ReadTopology().cores();
  const auto task = [&](int rank, const std::string& gpus) {
    return Variables{{"SLURM_PROCID", absl::StrCat(rank)},
                     {"SLURM_NTASKS", "2"},
                     {"SLURM_LOCALID", "0"},
                     {"SLURM_NODEID", absl::StrCat(rank)},
                     {"SLURM_CPUS_PER_TASK", "7"},
                     {"CUDA_VISIBLE_DEVICES", "4,5,6"},
                     {kNodeGpus, gpus},
                     {kRankCores, absl::StrCat(cores.front(), ";", cores.back())}};
  };
  Toy first({listen}, task(0, "0,2;1"));
  Toy second({listen, "--set=services.rollout.threads=3"}, task(1, "0,2;1"));
  ASSERT_EQ(first.RankPids().size(), 2u);
  EXPECT_EQ(Variable(first.process().pid(), "CUDA_VISIBLE_DEVICES"), "4,6");
  EXPECT_EQ(Variable(second.process().pid(), "CUDA_VISIBLE_DEVICES"), "5");
  EXPECT_EQ(Variable(first.process().pid(), "OMP_NUM_THREADS"), "1") << "of its core, not of the task's";
  EXPECT_EQ(Variable(second.process().pid(), "OMP_NUM_THREADS"), "3");
  EXPECT_EQ(AllowedCores(first.process().pid()), absl::StrCat(cores.front()));
  EXPECT_EQ(AllowedCores(second.process().pid()), absl::StrCat(cores.back()));

  Toy wrong({listen}, task(1, "0;3"));
  wrong.ExpectEnd(2, {"QUARTET_NODE_GPUS is \"0;3\", of which \"3\" is no position among", "4,5,6"});
  Toy missing({listen}, task(1, "0"));
  missing.ExpectEnd(2, {"QUARTET_NODE_GPUS is \"0\"", "node 1"});
}

TEST(Process, ComputesWithAsManyThreadsAsSlurmsTaskHasCores) {
  const std::string listen = absl::StrCat("--listen=127.0.0.1:", FreePort());
  Toy only({listen}, {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}, {"SLURM_CPUS_PER_TASK", "7"}});
  ASSERT_EQ(only.RankPids().size(), 1u);
  EXPECT_EQ(Variable(only.process().pid(), "OMP_NUM_THREADS"), "7");
}

TEST(Process, TakesItsPlaceFromSlurm) {
  const std::string listen = absl::StrCat("--listen=127.0.0.1:", FreePort());
  const auto task = [](int rank) {
    return Variables{{"SLURM_PROCID", absl::StrCat(rank)}, {"SLURM_NTASKS", "2"}, {"SLURM_LOCALID", "0"}};
  };
  Toy first({listen}, task(0));
  Toy second({listen}, task(1));
  EXPECT_EQ(first.RankPids(), (std::set<pid_t>{first.process().pid(), second.process().pid()}));
  // The others end with one that is told to.
  second.process().Signal(SIGTERM);
  second.ExpectEnd(0, {"stopping: SIGTERM"});
  first.ExpectEnd(0, {"stopping: SIGTERM (of rank 1)"});
}

TEST(Process, ExplainsAnEnvironmentThatDoesNotFit) {
  Toy({"--listen=127.0.0.1:0"}, Node(1)).ExpectEnd(2, {"port", "127.0.0.1:0"});
  Toy({"--ranks=4"}, Node(1)).ExpectEnd(2, {"--ranks=4", "2 ranks"});
  Toy({}, {{"RANK", "0"}}).ExpectEnd(2, {"WORLD_SIZE"});
  Toy({}, {{"RANK", "x"}, {"WORLD_SIZE", "2"}}).ExpectEnd(2, {"RANK", "'x'"});
  Toy({}, {{"RANK", "2"}, {"WORLD_SIZE", "2"}}).ExpectEnd(2, {"RANK=2", "WORLD_SIZE=2"});
  Toy({}, {{"WORLD_SIZE", "2"}}).ExpectEnd(2, {"WORLD_SIZE is set", "RANK is not"});
}

}  // namespace
}  // namespace quartet
