#include "scorer/rewards/programs/system_call_filter.h"

#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <sys/syscall.h>

#include <cstdint>
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

constexpr int kRefused[] = {
#ifdef SYS_fork
    SYS_fork,
#endif
#ifdef SYS_vfork
    SYS_vfork,
#endif
    SYS_unshare,
    SYS_setns,
    SYS_mount,
    SYS_umount2,
    SYS_pivot_root,
    SYS_chroot,
    SYS_ptrace,
    SYS_process_vm_readv,
    SYS_process_vm_writev,
    SYS_keyctl,
    SYS_add_key,
    SYS_request_key,
    SYS_bpf,
    SYS_perf_event_open,
    SYS_userfaultfd,
    SYS_io_uring_setup,
    SYS_open_by_handle_at,
    SYS_fsopen,
    SYS_fsmount,
    SYS_move_mount,
    SYS_open_tree,
    SYS_init_module,
    SYS_finit_module,
    SYS_kexec_load,
    SYS_reboot,
    SYS_swapon,
    SYS_swapoff,
    SYS_personality,
    SYS_seccomp,
    SYS_memfd_create,
#ifdef SYS_memfd_secret
    SYS_memfd_secret,
#endif
    SYS_shmget,
    SYS_msgget,
    SYS_semget,
    // What waits for accept, in TCP's sockets or local ones, is counted to no process.
    SYS_socket,
};

constexpr uint32_t Refuse(int error) { return SECCOMP_RET_ERRNO | static_cast<uint32_t>(error); }

}  // namespace

std::string SystemCallFilter() {
  if (kArchitecture == 0) return "";
  std::vector<sock_filter> code;
  const auto load = [&](size_t offset) {
    code.push_back(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, static_cast<uint32_t>(offset)));
  };
  // Skips what follows, `length` instructions, where the value is not `value`.
  const auto only_if = [&](uint32_t value, uint8_t length) {
    code.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, length));
  };
  const auto answer = [&](uint32_t action) { code.push_back(BPF_STMT(BPF_RET | BPF_K, action)); };

  load(offsetof(seccomp_data, arch));
  code.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kArchitecture, 1, 0));
  answer(SECCOMP_RET_KILL_PROCESS);
  load(offsetof(seccomp_data, nr));
  code.push_back(BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, kX32, 0, 1));
  answer(SECCOMP_RET_KILL_PROCESS);
  for (const int call : kRefused) {
    only_if(static_cast<uint32_t>(call), 1);
    answer(Refuse(EPERM));
  }
  // Its flags are behind a pointer, where they cannot be looked at; libraries that are told so use clone instead.
  only_if(SYS_clone3, 1);
  answer(Refuse(ENOSYS));
  // Threads are what clone is for here.
  only_if(SYS_clone, 3);
  load(offsetof(seccomp_data, args[0]));
  code.push_back(BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, CLONE_THREAD, 1, 0));
  answer(Refuse(EPERM));
  answer(SECCOMP_RET_ALLOW);
  return std::string(reinterpret_cast<const char*>(code.data()), code.size() * sizeof(sock_filter));
}

}  // namespace quartet
