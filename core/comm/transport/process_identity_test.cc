#include "core/comm/transport/process_identity.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

namespace quartet {
namespace {

TEST(ProcessIdentity, SurvivesBeingWrittenDown) {
  const ProcessIdentity own = OwnProcessIdentity();
  EXPECT_EQ(own.pid, getpid());
  EXPECT_FALSE(own.host.empty());
  EXPECT_EQ(own.ToString().find(' '), std::string::npos);
  const auto parsed = ProcessIdentity::Parse(own.ToString());
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->host, own.host);
  EXPECT_EQ(parsed->pid, own.pid);
  EXPECT_EQ(parsed->start_time, own.start_time);
  for (const char* wrong : {"", "host", "host,1", "host,x,1", "host,1,2,3"}) {
    EXPECT_EQ(ProcessIdentity::Parse(wrong).status().code(), absl::StatusCode::kInvalidArgument) << wrong;
  }
}

TEST(ProcessIdentity, AStoppedProcessLivesAndAKilledOneDoesNot) {
  int identity_pipe[2];
  ASSERT_EQ(pipe(identity_pipe), 0);
  const pid_t child = fork();
  if (child == 0) {
    const std::string identity = OwnProcessIdentity().ToString();
    if (write(identity_pipe[1], identity.data(), identity.size()) < 0) _exit(1);
    while (true) pause();
  }
  char text[512];
  const ssize_t length = read(identity_pipe[0], text, sizeof(text));
  ASSERT_GT(length, 0);
  const auto identity = ProcessIdentity::Parse(std::string(text, length));
  ASSERT_TRUE(identity.ok()) << identity.status();
  EXPECT_EQ(identity->host, OwnProcessIdentity().host);
  EXPECT_TRUE(IsAlive(*identity));

  int status = 0;
  kill(child, SIGSTOP);
  ASSERT_EQ(waitpid(child, &status, WUNTRACED), child);
  EXPECT_TRUE(IsAlive(*identity));

  kill(child, SIGKILL);
  siginfo_t ended;
  ASSERT_EQ(waitid(P_PID, child, &ended, WEXITED | WNOWAIT), 0);
  EXPECT_FALSE(IsAlive(*identity)) << "ended, but not yet reaped";
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_FALSE(IsAlive(*identity));
  close(identity_pipe[0]);
  close(identity_pipe[1]);
}

TEST(ProcessIdentity, ALaterProcessWithTheSameIdIsAnother) {
  ProcessIdentity earlier = OwnProcessIdentity();
  EXPECT_TRUE(IsAlive(earlier));
  --earlier.start_time;
  EXPECT_FALSE(IsAlive(earlier));
}

}  // namespace
}  // namespace quartet
