#ifndef NRAM_CLIENT_RUN_CALL_FILTER_H_
#define NRAM_CLIENT_RUN_CALL_FILTER_H_

#include <linux/filter.h>
#include <linux/seccomp.h>

#include <cstdint>
#include <vector>

namespace nram {

// The least anonymous mapping that may be remote.
inline constexpr uint64_t kRemoteBytesMin = 128 << 10;

// A filter for seccomp(2) that tells a supervisor of the calls that change a program's memory or the access to it,
// begin processes or programs, or name words that the kernel clears when a thread ends. All other calls, and those of
// the helper, pass. clone3(2) does not exist under it: a filter cannot see its flags, and C libraries then use
// clone(2). Neither does process_madvise(2). shmat(2) with SHM_REMAP is refused. Of calls of another kind of machine it
// tells of those that fork (IsForeign). Pure.
std::vector<sock_filter> MakeCallFilter();

// Whether a call that was told is one of i386 or of x32, whose numbers mean other calls than those of x86-64.
bool IsForeign(const seccomp_data& call);

// The filter's answer to a call, for tests: SECCOMP_RET_ALLOW and so on.
uint32_t RunCallFilter(const std::vector<sock_filter>& filter, const seccomp_data& data);

}  // namespace nram

#endif  // NRAM_CLIENT_RUN_CALL_FILTER_H_
