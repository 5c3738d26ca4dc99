#include "client/run/call_filter.h"

#include <glog/logging.h>
#include <linux/audit.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/shm.h>
#include <sys/syscall.h>

#include <cerrno>
#include <cstddef>
#include <cstring>

#include "client/run/helper_code.h"

#ifndef MADV_DONTNEED_LOCKED
#define MADV_DONTNEED_LOCKED 24
#endif

namespace nram {
namespace {

constexpr uint32_t kMadviseGuardInstall = 102;
constexpr uint32_t kX32Bit = 0x40000000;
constexpr long kI386Fork = 2;
constexpr long kI386Clone = 120;

// Builds the program. Jumps of this filter go forward to the next rule. So each rule is a list of tests that all must
// hold, and the value that it returns then.
class Builder {
 public:
  struct Test {
    enum Kind { kEqual, kNotEqual, kAnySet, kNoneSet, kAtLeast };
    uint32_t offset;  // of a word of seccomp_data
    Kind kind;
    uint32_t value;
  };

  void Rule(const std::vector<Test>& tests, uint32_t returns) {
    // Each test is a load and a jump; those that fail go behind the return.
    for (size_t i = 0; i < tests.size(); ++i) {
      const auto out = static_cast<uint8_t>((tests.size() - 1 - i) * 2 + 1);
      const Test& test = tests[i];
      code_.push_back(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, test.offset));
      switch (test.kind) {
        case Test::kEqual:
          code_.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, test.value, 0, out));
          break;
        case Test::kNotEqual:
          code_.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, test.value, out, 0));
          break;
        case Test::kAnySet:
          code_.push_back(BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, test.value, 0, out));
          break;
        case Test::kNoneSet:
          code_.push_back(BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, test.value, out, 0));
          break;
        case Test::kAtLeast:
          code_.push_back(BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, test.value, 0, out));
          break;
      }
    }
    code_.push_back(BPF_STMT(BPF_RET | BPF_K, returns));
  }
  std::vector<sock_filter> Take() { return std::move(code_); }

 private:
  std::vector<sock_filter> code_;
};

using Test = Builder::Test;

constexpr uint32_t kNumber = offsetof(seccomp_data, nr);
constexpr uint32_t Low(int argument) {
  return static_cast<uint32_t>(offsetof(seccomp_data, args)) + static_cast<uint32_t>(argument) * 8;
}
constexpr uint32_t High(int argument) { return Low(argument) + 4; }
Test Is(long number) { return {kNumber, Test::kEqual, static_cast<uint32_t>(number)}; }

void AddMemoryCalls(Builder* builder) {
  constexpr uint32_t kTell = SECCOMP_RET_USER_NOTIF;
  // Anything may be mapped over remote memory.
  builder->Rule({Is(SYS_mmap), {Low(3), Test::kAnySet, MAP_FIXED}}, kTell);
  const std::vector<Test> may_be_remote = {Is(SYS_mmap),
                                           {Low(3), Test::kAnySet, MAP_ANONYMOUS},
                                           {Low(3), Test::kAnySet, MAP_PRIVATE},
                                           {Low(3), Test::kNoneSet, MAP_STACK | MAP_HUGETLB | MAP_GROWSDOWN}};
  for (const Test& large : {Test{High(1), Test::kNotEqual, 0}, Test{Low(1), Test::kAtLeast, kRemoteBytesMin}}) {
    std::vector<Test> tests = may_be_remote;
    tests.push_back(large);
    builder->Rule(tests, kTell);
  }
  for (const long number : {SYS_brk, SYS_munmap, SYS_mremap, SYS_mlock, SYS_mlock2, SYS_mlockall})
    builder->Rule({Is(number)}, kTell);
  // The order of access is advice that keeps areas apart while they move. Some advice is for fork(2).
  for (const uint32_t advice : {uint32_t{MADV_DONTNEED}, uint32_t{MADV_FREE}, uint32_t{MADV_DONTNEED_LOCKED},
                                kMadviseGuardInstall, uint32_t{MADV_NORMAL}, uint32_t{MADV_RANDOM},
                                uint32_t{MADV_SEQUENTIAL}, uint32_t{MADV_DONTFORK}, uint32_t{MADV_WIPEONFORK}}) {
    builder->Rule({Is(SYS_madvise), {Low(2), Test::kEqual, advice}}, kTell);
  }
}

}  // namespace

std::vector<sock_filter> MakeCallFilter() {
  constexpr uint32_t kTell = SECCOMP_RET_USER_NOTIF;
  constexpr uint32_t kNoSuchCall = SECCOMP_RET_ERRNO | ENOSYS;
  Builder builder;
  // 32-bit programs are local, and a 64-bit one may make their calls: its fork would miss the remote pages.
  const Test i386 = {offsetof(seccomp_data, arch), Test::kEqual, AUDIT_ARCH_I386};
  const Test none_of_memory = {Low(0), Test::kNoneSet, CLONE_VM};
  builder.Rule({i386, Is(kI386Fork)}, kTell);
  builder.Rule({i386, Is(kI386Clone), none_of_memory}, kTell);
  builder.Rule({i386, Is(SYS_clone3)}, kNoSuchCall);
  builder.Rule({{offsetof(seccomp_data, arch), Test::kNotEqual, AUDIT_ARCH_X86_64}}, SECCOMP_RET_ALLOW);
  builder.Rule({Is(kX32Bit | SYS_fork)}, kTell);
  builder.Rule({Is(kX32Bit | SYS_clone), none_of_memory}, kTell);
  builder.Rule({Is(kX32Bit | SYS_clone3)}, kNoSuchCall);
  builder.Rule({{kNumber, Test::kAtLeast, kX32Bit}}, SECCOMP_RET_ALLOW);
  // The helper's code; no other lies in the four GiB above its address.
  constexpr auto kHelperLow = static_cast<uint32_t>(HelperPlace::kBase);
  constexpr auto kHelperHigh = static_cast<uint32_t>(HelperPlace::kBase >> 32);
  constexpr uint32_t kPointer = offsetof(seccomp_data, instruction_pointer);
  builder.Rule({{kPointer + 4, Test::kEqual, kHelperHigh}, {kPointer, Test::kAtLeast, kHelperLow}}, SECCOMP_RET_ALLOW);
  // The helper's own pages, before there is a helper.
  for (const long number : {SYS_mmap, SYS_madvise}) {
    builder.Rule({Is(number), {High(0), Test::kEqual, kHelperHigh}, {Low(0), Test::kEqual, kHelperLow}},
                 SECCOMP_RET_ALLOW);
  }
  AddMemoryCalls(&builder);
  // Processes and threads. A child that shares the memory until it executes something is none of ours.
  builder.Rule({Is(SYS_clone), {Low(0), Test::kNoneSet, CLONE_VM}}, kTell);
  builder.Rule({Is(SYS_clone), {Low(0), Test::kAnySet, CLONE_THREAD | CLONE_CHILD_CLEARTID}}, kTell);
  builder.Rule({Is(SYS_fork)}, kTell);
  builder.Rule({Is(SYS_clone3)}, kNoSuchCall);
  builder.Rule({Is(SYS_process_madvise)}, kNoSuchCall);
  // It would replace remote memory.
  builder.Rule({Is(SYS_shmat), {Low(2), Test::kAnySet, SHM_REMAP}}, SECCOMP_RET_ERRNO | EINVAL);
  builder.Rule({Is(SYS_prctl), {Low(0), Test::kEqual, PR_SET_DUMPABLE}}, kTell);
  for (const long number : {SYS_execve, SYS_execveat, SYS_set_tid_address, SYS_set_robust_list}) {
    builder.Rule({Is(number)}, kTell);
  }
  builder.Rule({}, SECCOMP_RET_ALLOW);
  return builder.Take();
}

bool IsForeign(const seccomp_data& call) {
  return call.arch != AUDIT_ARCH_X86_64 || (static_cast<uint32_t>(call.nr) & kX32Bit) != 0;
}

uint32_t RunCallFilter(const std::vector<sock_filter>& filter, const seccomp_data& data) {
  uint32_t loaded = 0;
  for (size_t at = 0; at < filter.size(); ++at) {
    const sock_filter& one = filter[at];
    switch (one.code) {
      case BPF_LD | BPF_W | BPF_ABS:
        memcpy(&loaded, reinterpret_cast<const char*>(&data) + one.k, sizeof(loaded));
        break;
      case BPF_JMP | BPF_JEQ | BPF_K:
        at += loaded == one.k ? one.jt : one.jf;
        break;
      case BPF_JMP | BPF_JSET | BPF_K:
        at += (loaded & one.k) != 0 ? one.jt : one.jf;
        break;
      case BPF_JMP | BPF_JGE | BPF_K:
        at += loaded >= one.k ? one.jt : one.jf;
        break;
      case BPF_RET | BPF_K:
        return one.k;
      default:
        LOG(FATAL) << "an instruction that the filter does not have: " << one.code;
    }
  }
  LOG(FATAL) << "the filter has no end";
}

}  // namespace nram
