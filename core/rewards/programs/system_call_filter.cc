#include "core/rewards/programs/system_call_filter.h"

#include <asm/ioctls.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/prctl.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <cstdint>
#include <span>
#include <vector>

namespace quartet {
namespace {

#if defined(__x86_64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_AARCH64;
#else
constexpr uint32_t kArchitecture = 0;
#endif

// Calls of the other ABI of x86-64 processors, x32, have this bit.
constexpr uint32_t kX32 = 0x40000000;
// From here on calls have the same number on all processors: those of Linux 5.1 and later.
constexpr uint32_t kFirstOfLinux5 = 424;

// Not among them, though Docker allows it: what the kernel keeps for the caller beside memory and descriptors, which
// have limits (inotify, fanotify, timers of POSIX, message queues, shared memory and semaphores of System V, AIO,
// memfd, extended attributes, locked memory), what has effects on the whole machine (sync, readahead, priorities), and
// sockets that can be connected: what waits for accept is counted to no process.
constexpr uint32_t kAllowed[] = {
    // Memory.
    SYS_brk,
    SYS_mmap,
    SYS_munmap,
    SYS_mprotect,
    SYS_mremap,
    SYS_madvise,
    SYS_msync,
    SYS_membarrier,
    // Files.
    SYS_read,
    SYS_write,
    SYS_readv,
    SYS_writev,
    SYS_pread64,
    SYS_pwrite64,
    SYS_preadv,
    SYS_pwritev,
    SYS_preadv2,
    SYS_pwritev2,
    SYS_sendfile,
    SYS_copy_file_range,
    SYS_lseek,
    SYS_openat,
    SYS_close,
    SYS_dup,
    SYS_dup3,
    SYS_pipe2,
    SYS_fstat,
    SYS_newfstatat,
    SYS_statx,
    SYS_statfs,
    SYS_fstatfs,
    SYS_faccessat,
    SYS_readlinkat,
    SYS_getdents64,
    SYS_getcwd,
    SYS_chdir,
    SYS_fchdir,
    SYS_mkdirat,
    SYS_unlinkat,
    SYS_renameat2,
    SYS_linkat,
    SYS_symlinkat,
    SYS_fchmod,
    SYS_fchmodat,
    SYS_fchown,
    SYS_fchownat,
    SYS_utimensat,
    SYS_truncate,
    SYS_ftruncate,
    SYS_fallocate,
    SYS_fadvise64,
    SYS_fsync,
    SYS_fdatasync,
    SYS_flock,
    SYS_umask,
    SYS_getxattr,
    SYS_lgetxattr,
    SYS_fgetxattr,
    SYS_listxattr,
    SYS_llistxattr,
    SYS_flistxattr,
    // Waiting for descriptors.
    SYS_ppoll,
    SYS_pselect6,
    SYS_epoll_create1,
    SYS_epoll_ctl,
    SYS_epoll_pwait,
    SYS_eventfd2,
    // Socket pairs.
    SYS_sendto,
    SYS_recvfrom,
    SYS_recvmsg,
    SYS_shutdown,
    SYS_getsockname,
    SYS_getpeername,
    SYS_getsockopt,
    // Signals and time.
    SYS_rt_sigaction,
    SYS_rt_sigprocmask,
    SYS_rt_sigreturn,
    SYS_rt_sigpending,
    SYS_rt_sigsuspend,
    SYS_rt_sigtimedwait,
    SYS_sigaltstack,
    SYS_kill,
    SYS_tkill,
    SYS_tgkill,
    SYS_restart_syscall,
    SYS_getitimer,
    SYS_setitimer,
    SYS_nanosleep,
    SYS_clock_nanosleep,
    SYS_clock_gettime,
    SYS_clock_getres,
    SYS_gettimeofday,
    SYS_times,
    // Threads, and what a process is told of itself and the machine.
    SYS_futex,
    SYS_set_robust_list,
    SYS_get_robust_list,
    SYS_set_tid_address,
    SYS_rseq,
    SYS_sched_yield,
    SYS_sched_getaffinity,
    SYS_sched_setaffinity,
    SYS_sched_getparam,
    SYS_sched_getscheduler,
    SYS_sched_get_priority_max,
    SYS_sched_get_priority_min,
    SYS_getpriority,
    SYS_getcpu,
    SYS_gettid,
    SYS_getpid,
    SYS_getppid,
    SYS_getpgid,
    SYS_getsid,
    SYS_getuid,
    SYS_geteuid,
    SYS_getgid,
    SYS_getegid,
    SYS_getresuid,
    SYS_getresgid,
    SYS_getgroups,
    SYS_capget,
    SYS_getrlimit,
    SYS_setrlimit,
    SYS_prlimit64,
    SYS_getrusage,
    SYS_sysinfo,
    SYS_uname,
    SYS_getrandom,
    SYS_wait4,
    SYS_waitid,
    SYS_execve,
    SYS_exit,
    SYS_exit_group,
#if defined(__x86_64__)
    SYS_arch_prctl,
    SYS_open,
    SYS_creat,
    SYS_stat,
    SYS_lstat,
    SYS_access,
    SYS_readlink,
    SYS_getdents,
    SYS_mkdir,
    SYS_rmdir,
    SYS_unlink,
    SYS_rename,
    SYS_renameat,
    SYS_link,
    SYS_symlink,
    SYS_chmod,
    SYS_chown,
    SYS_lchown,
    SYS_utime,
    SYS_utimes,
    SYS_futimesat,
    SYS_pipe,
    SYS_dup2,
    SYS_poll,
    SYS_select,
    SYS_epoll_create,
    SYS_epoll_wait,
    SYS_eventfd,
    SYS_pause,
    SYS_alarm,
    SYS_time,
    SYS_getpgrp,
#endif
};

// Of a descriptor: whether it is a terminal, what there is to read, and how it is read and inherited.
constexpr uint32_t kControls[] = {TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIOCLEX, FIONCLEX};
// A larger pipe takes from what all processes of the user have together; the others call for signals.
constexpr uint32_t kRefusedFileCommands[] = {F_SETPIPE_SZ, F_NOTIFY, F_SETLEASE};
// Names of threads and of memory, and what a process may.
constexpr uint32_t kProcessOptions[] = {PR_SET_NAME,     PR_GET_NAME,         PR_SET_VMA,        PR_GET_DUMPABLE,
                                        PR_CAPBSET_READ, PR_GET_NO_NEW_PRIVS, PR_GET_TIMERSLACK, PR_GET_SECCOMP};
constexpr uint32_t kNewNamespaces =
    CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET;

constexpr uint32_t Refuse(int error) { return SECCOMP_RET_ERRNO | static_cast<uint32_t>(error); }

}  // namespace

std::string SystemCallFilter(bool threads) {
  if (kArchitecture == 0) return "";
  std::vector<sock_filter> code;
  const auto load = [&](size_t offset) {
    code.push_back(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, static_cast<uint32_t>(offset)));
  };
  const auto answer = [&](uint32_t action) { code.push_back(BPF_STMT(BPF_RET | BPF_K, action)); };
  // Answers where the value that is loaded is (BPF_JEQ), is at least (BPF_JGE), or has bits of (BPF_JSET) `value`.
  const auto answer_if = [&](uint16_t comparison, uint32_t value, uint32_t action) {
    code.push_back(BPF_JUMP(static_cast<uint16_t>(BPF_JMP | comparison | BPF_K), value, 0, 1));
    answer(action);
  };
  // Of `call`, the lower half of an argument, which is all that the kernel looks at: `listed` where it is one of
  // `values`, else `otherwise`.
  const auto decide = [&](uint32_t call, size_t argument, std::span<const uint32_t> values, uint32_t listed,
                          uint32_t otherwise) {
    code.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, static_cast<uint8_t>(2 + 2 * values.size())));
    load(offsetof(seccomp_data, args) + argument * sizeof(uint64_t));
    for (const uint32_t value : values) answer_if(BPF_JEQ, value, listed);
    answer(otherwise);
  };

  load(offsetof(seccomp_data, arch));
  code.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kArchitecture, 1, 0));
  answer(SECCOMP_RET_KILL_PROCESS);
  load(offsetof(seccomp_data, nr));
  answer_if(BPF_JGE, kX32, SECCOMP_RET_KILL_PROCESS);
  // clone3, whose flags are behind a pointer where they cannot be looked at, is one of them: libraries use clone.
  answer_if(BPF_JGE, kFirstOfLinux5, Refuse(ENOSYS));
  for (const uint32_t call : kAllowed) answer_if(BPF_JEQ, call, SECCOMP_RET_ALLOW);
  decide(SYS_ioctl, 1, kControls, SECCOMP_RET_ALLOW, Refuse(ENOTTY));
  decide(SYS_fcntl, 1, kRefusedFileCommands, Refuse(EPERM), SECCOMP_RET_ALLOW);
  decide(SYS_prctl, 0, kProcessOptions, SECCOMP_RET_ALLOW, Refuse(EINVAL));
  const uint32_t local[] = {AF_UNIX};
  decide(SYS_socketpair, 0, local, SECCOMP_RET_ALLOW, Refuse(EAFNOSUPPORT));
  if (threads) {
    code.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 0, 5));
    load(offsetof(seccomp_data, args[0]));
    answer_if(BPF_JSET, kNewNamespaces, Refuse(EPERM));
    answer_if(BPF_JSET, CLONE_THREAD, SECCOMP_RET_ALLOW);
  }
  answer(Refuse(EPERM));
  return std::string(reinterpret_cast<const char*>(code.data()), code.size() * sizeof(sock_filter));
}

}  // namespace quartet
