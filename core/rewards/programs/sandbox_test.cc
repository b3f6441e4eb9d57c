#include "core/rewards/programs/sandbox.h"

#include <errno.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/bpf.h>
#include <linux/sched.h>
#include <sys/syscall.h>

#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"

namespace quartet {
namespace {

using ::testing::AllOf;
using ::testing::Ge;
using ::testing::Le;

// Long, as machines that run tests are busy.
constexpr SandboxLimits kLimits = {.timeout = absl::Seconds(120), .memory_bytes = 512 << 20};

SandboxedRun InSandbox(const std::string& program) {
  const auto run = RunSandboxed(program, "", "", kLimits, {});
  EXPECT_TRUE(run.ok()) << run.status();
  return run.value_or(SandboxedRun());
}

// What it prints, without the last line end.
std::string Printed(const std::string& program) {
  const SandboxedRun run = InSandbox(program);
  EXPECT_EQ(run.end, SandboxedRun::End::kExited) << program;
  return run.output.substr(0, run.output.find_last_not_of('\n') + 1);
}

// `call(number, arguments...)`: 0, or the error of a system call.
constexpr char kCall[] = R"py(
import ctypes, mmap, os, resource, sys, threading
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
def call(*arguments):
    ctypes.set_errno(0)
    return ctypes.get_errno() if libc.syscall(*(ctypes.c_long(x) if isinstance(x, int) else x for x in arguments)) == -1 else 0
)py";

struct Attack {
  const char* name;
  long number;
  const char* arguments;  // with which the kernel alone would not refuse it as the filter does
};

TEST(Sandbox, RefusesSystemCallsThatReachBeyondIt) {
  const std::vector<Attack> attacks = {
#if defined(__x86_64__)
    {"fork", SYS_fork, ""},
    {"vfork", SYS_vfork, ""},
    {"inotify_init", SYS_inotify_init, ""},
    {"signalfd", SYS_signalfd, "-1, bytes(8), 8"},
    {"modify_ldt", SYS_modify_ldt, "0, bytes(16), 16"},
#endif
    {"clone of a process", SYS_clone, "17, 0, 0, 0, 0"},
    {"clone into a user namespace", SYS_clone, "0x10000011, 0, 0, 0, 0"},
    {"clone3", SYS_clone3, "0, 0"},
    {"unshare", SYS_unshare, "0"},
    {"setns", SYS_setns, "-1, 0"},
    {"mount", SYS_mount, "b'x', b'/tmp', b'tmpfs', 0, 0"},
    {"umount2", SYS_umount2, "b'/tmp', 0"},
    {"pivot_root", SYS_pivot_root, "b'/', b'/'"},
    {"chroot", SYS_chroot, "b'/tmp'"},
    {"open_tree", SYS_open_tree, "-100, b'/', 1"},
    {"fsopen", SYS_fsopen, "b'tmpfs', 0"},
    {"mount_setattr", SYS_mount_setattr, "-1, b'', 0, 0, 0"},
    {"ptrace", SYS_ptrace, "0, 0, 0, 0"},
    {"process_vm_readv", SYS_process_vm_readv, "1, 0, 0, 0, 0, 0"},
    {"process_vm_writev", SYS_process_vm_writev, "1, 0, 0, 0, 0, 0"},
    {"kcmp", SYS_kcmp, "1, 1, 0, 0, 0"},
    {"pidfd_open", SYS_pidfd_open, "1, 0"},
    {"pidfd_getfd", SYS_pidfd_getfd, "-1, 0, 0"},
    {"pidfd_send_signal", SYS_pidfd_send_signal, "-1, 0, 0, 0"},
    {"process_madvise", SYS_process_madvise, "-1, 0, 0, 0, 0"},
    {"keyctl", SYS_keyctl, "0, -3, 0"},
    {"add_key", SYS_add_key, "b'user', b'x', b'x', 1, -2"},
    {"request_key", SYS_request_key, "b'user', b'x', 0, 0"},
    {"bpf", SYS_bpf, "0, 0, 0"},
    {"perf_event_open", SYS_perf_event_open, "0, 0, 0, 0, 0"},
    {"userfaultfd", SYS_userfaultfd, "1"},
    {"io_uring_setup", SYS_io_uring_setup, "8, bytes(120)"},
    {"io_uring_enter", SYS_io_uring_enter, "-1, 0, 0, 0, 0, 0"},
    {"io_setup", SYS_io_setup, "64, bytes(8)"},
    {"inotify_init1", SYS_inotify_init1, "0"},
    {"inotify_add_watch", SYS_inotify_add_watch, "-1, b'/usr', 2"},
    {"fanotify_init", SYS_fanotify_init, "0x200, 0"},
    {"timerfd_create", SYS_timerfd_create, "1, 0"},
    {"timer_create", SYS_timer_create, "1, 0, bytes(8)"},
    {"mq_open", SYS_mq_open, "b'x', 0x42, 0o600, 0"},
    {"msgget", SYS_msgget, "0, 0o1600"},
    {"semget", SYS_semget, "0, 1, 0o1600"},
    {"shmget", SYS_shmget, "0, 4096, 0o1600"},
    {"memfd_create", SYS_memfd_create, "b'x', 0"},
    {"memfd_secret", SYS_memfd_secret, "0"},
    {"signalfd4", SYS_signalfd4, "-1, bytes(8), 8, 0"},
    {"mlock", SYS_mlock, "0, 0"},
    {"setxattr", SYS_setxattr, "b'/tmp', b'user.x', b'x', 1, 0"},
    {"mknodat", SYS_mknodat, "-100, b'/tmp/pipe', 0o10600, 0"},
    {"name_to_handle_at", SYS_name_to_handle_at, "-100, b'/', bytes(64), bytes(8), 0"},
    {"open_by_handle_at", SYS_open_by_handle_at, "-1, 0, 0"},
    {"sync", SYS_sync, ""},
    {"syncfs", SYS_syncfs, "0"},
    {"readahead", SYS_readahead, "-1, 0, 0"},
    {"splice", SYS_splice, "-1, 0, -1, 0, 0, 0"},
    {"tee", SYS_tee, "-1, -1, 0, 0"},
    {"vmsplice", SYS_vmsplice, "-1, 0, 0, 0"},
    {"socket", SYS_socket, "1, 1, 0"},
    {"bind", SYS_bind, "-1, 0, 0"},
    {"listen", SYS_listen, "-1, 0"},
    {"sendmsg", SYS_sendmsg, "-1, 0, 0"},
    {"setsockopt", SYS_setsockopt, "-1, 0, 0, 0, 0"},
    {"setuid", SYS_setuid, "0"},
    {"setgroups", SYS_setgroups, "0, 0"},
    {"capset", SYS_capset, "0, 0"},
    {"seccomp", SYS_seccomp, "2, 0, 0"},
    {"personality", SYS_personality, "0x0040000"},
    {"execveat", SYS_execveat, "-1, b'', 0, 0, 0"},
    {"sched_setscheduler", SYS_sched_setscheduler, "0, 3, bytes(8)"},
    {"setpriority", SYS_setpriority, "0, 0, 1"},
    {"ioprio_set", SYS_ioprio_set, "1, 0, 0"},
    {"rt_sigqueueinfo", SYS_rt_sigqueueinfo, "1, 0, bytes(128)"},
    {"remap_file_pages", SYS_remap_file_pages, "0, 0, 0, 0, 0"},
    {"mbind", SYS_mbind, "0, 0, 0, 0, 0, 0"},
    {"syslog", SYS_syslog, "10, 0, 0"},
    {"quotactl", SYS_quotactl, "0, 0, 0, 0"},
    {"clock_settime", SYS_clock_settime, "-1, 0"},
    {"landlock_create_ruleset", SYS_landlock_create_ruleset, "0, 0, 1"},
    {"a call that nobody knows", 1000, ""},
  };
  std::string program = kCall;
  for (const Attack& attack : attacks) {
    absl::StrAppend(&program, "error = call(", attack.number, ", ", attack.arguments,
                    ")\nif error != ", attack.number < 424 ? EPERM : ENOSYS, ": print('", attack.name, "', error)\n");
  }
  EXPECT_EQ(Printed(program), "");
}

TEST(Sandbox, RefusesWhatCallsThatProgramsNeedCanDoBeside) {
  EXPECT_EQ(Printed(absl::StrCat(kCall, R"py(
import fcntl, socket
def error(f, *arguments):
    try: f(*arguments)
    except OSError as e: return e.errno
a, b = os.pipe()
print([error(fcntl.fcntl, a, command, value) for command, value in ((1031, 1 << 20), (1026, 1), (1024, 0))],
      error(fcntl.ioctl, 0, 0x5412, b'x'), error(fcntl.ioctl, os.open("/tmp", 0), 0x80086601, bytes(8)),
      error(socket.socketpair, 30),
      [call()py",
                                 SYS_prctl,
                                 R"py(, *x) for x in ((22, 2, 0), (38, 1, 0, 0, 0), (1, 9), (62, 1, 0, 0, 0))]))py")),
            "[1, 1, 1] 25 25 97 [22, 22, 22, 22]");
}

TEST(Sandbox, LetsPythonDoWhatItsLibraryNeeds) {
  EXPECT_EQ(Printed(R"py(
import asyncio, concurrent.futures, decimal, fractions, json, os, random, select, shutil, signal, socket, sqlite3, sys
import tempfile, threading, time
with concurrent.futures.ThreadPoolExecutor(32) as pool: assert sum(pool.map(lambda x: x * x, range(100))) == 328350
async def wait(x):
    await asyncio.sleep(0.001)
    return await asyncio.to_thread(lambda: x)
async def all(): return await asyncio.gather(*map(wait, range(5)))
assert asyncio.run(all()) == [0, 1, 2, 3, 4]
with tempfile.TemporaryDirectory() as folder:
    with open(folder + "/a", "w") as f: f.write("text")
    shutil.copy2(folder + "/a", folder + "/b")
    os.rename(folder + "/b", folder + "/c")
    assert open(folder + "/c").read() == "text" and sorted(os.listdir(folder)) == ["a", "c"]
    assert shutil.disk_usage(folder).total and [x.name for x in os.scandir(folder)]
    base = sqlite3.connect(folder + "/base")
    base.execute("create table t (x)")
    base.execute("insert into t values (1)")
    base.commit()
    assert base.execute("select * from t").fetchall() == [(1,)]
a, b = socket.socketpair()
a.sendall(b"hello")
assert b.recv(5) == b"hello" and not sys.stdin.isatty()
signal.signal(signal.SIGALRM, lambda *_: None)
signal.setitimer(signal.ITIMER_REAL, 0.01)
signal.pause()
print(len(os.urandom(4)), random.random() < 1, open("/dev/stdin").read(), open("/dev/null").read(), os.cpu_count() > 0))py"),
            "4 True   True");
}

// Asks for `tasks` threads that share one stack and do nothing, as fast as it can.
TEST(Sandbox, BoundsTheTasksOfAProgramHoweverItMakesThem) {
  EXPECT_THAT(std::stoi(Printed(R"py(
import threading
threading.stack_size(65536)
stop, started = threading.Event(), 0
try:
    while started < 1000:
        threading.Thread(target=stop.wait, daemon=True).start()
        started += 1
except RuntimeError: pass
stop.set()
print(started))py")),
              AllOf(Ge(100), Le(127)));
#if defined(__x86_64__)
  // clone(CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM), up to 8000 times, of
  // threads that pause; how many there are.
  EXPECT_THAT(std::stoi(Printed(absl::StrCat(kCall, R"py(
code = bytes.fromhex("5331db" "b838000000" "bf000f0500" "31f631d24531d24531c0" "0f05" "4885c0" "7410" "780a" "ffc3"
                     "81fb401f0000" "7cd9" "89d85bc3" "b822000000" "0f05" "ebf7")
page = mmap.mmap(-1, 4096, prot=7)
page.write(code)
made = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
os.write(1, b"%d\n" % made)
os._exit(0))py"))),
              AllOf(Ge(100), Le(127)));
#endif
  // The limit is no program's to lift.
  EXPECT_EQ(Printed(R"py(
import resource
try: resource.setrlimit(resource.RLIMIT_NPROC, (1000, 1000))
except ValueError: print("refused"))py"),
            "refused");
}

TEST(Sandbox, HasNobodyWhoCouldBeMadeToSayHowTheProgramEnds) {
  // It is the first process; there is no other one to take descriptors from.
  EXPECT_EQ(Printed("import os\nprint(os.getpid(), [x for x in os.listdir('/proc') if x.isdigit()])"), "1 ['1']");
  EXPECT_EQ(InSandbox("import os\nos.abort()").end, SandboxedRun::End::kFailed);
  EXPECT_EQ(InSandbox("import ctypes\nctypes.string_at(0)").end, SandboxedRun::End::kFailed);
  EXPECT_EQ(InSandbox("import os\nos._exit(3)").end, SandboxedRun::End::kFailed);
  EXPECT_EQ(
      InSandbox("import os, signal\nsignal.pthread_kill(__import__('threading').get_ident(), 9)\nos._exit(1)").end,
      SandboxedRun::End::kFailed);
  // Each attempt at the event of bwrap's first process, by which it used to say so.
  EXPECT_EQ(InSandbox(absl::StrCat(kCall, R"py(
for process in range(1, 8):
    handle = libc.syscall()py",
                                   SYS_pidfd_open, R"py(, process, 0)
    for fd in range(64):
        taken = libc.syscall()py",
                                   SYS_pidfd_getfd, R"py(, handle, fd, 0)
        if taken >= 0:
            try: os.write(taken, (1).to_bytes(8, "little"))
            except OSError: pass
os._exit(3))py"))
                .end,
            SandboxedRun::End::kFailed);
}

TEST(Sandbox, IsNotRoots) {
  EXPECT_EQ(Printed(R"py(
import os
readable = []
for folder, folders, files in os.walk("/proc"):
    folders[:] = [x for x in folders if not x.isdigit() and x not in ("self", "thread-self", "net")]
    for file in files:
        path = os.path.join(folder, file)
        try:
            if os.stat(path).st_mode & 0o004: continue
            os.close(os.open(path, os.O_RDONLY))
        except OSError: continue
        readable.append(path)
print(readable, os.getuid()))py"),
            "[] 65534");
}

TEST(Sandbox, BoundsWhatTheKernelKeepsForAProgram) {
  // Signals that wait.
  EXPECT_THAT(std::stoi(Printed(R"py(
import os, re, signal
signal.pthread_sigmask(signal.SIG_BLOCK, [40])
for i in range(10000): os.kill(os.getpid(), 40)
print(re.search(r"SigQ:\s*(\d+)", open("/proc/self/status").read())[1]))py")),
              AllOf(Ge(10), Le(64)));
}

}  // namespace
}  // namespace quartet
