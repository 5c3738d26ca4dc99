#ifndef NRAM_BASE_SANITIZERS_H_
#define NRAM_BASE_SANITIZERS_H_

namespace nram {

// Whether this build has one. A sanitizer keeps memory of its own for each allocation, and the address sanitizer keeps
// freed memory, so figures of resident memory mean nothing there. GCC defines macros for them, clang has features.
#ifndef __has_feature
#define __has_feature(feature) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || __has_feature(address_sanitizer)
inline constexpr bool kHasAddressSanitizer = true;
#else
inline constexpr bool kHasAddressSanitizer = false;
#endif
#if defined(__SANITIZE_THREAD__) || __has_feature(thread_sanitizer)
inline constexpr bool kHasThreadSanitizer = true;
#else
inline constexpr bool kHasThreadSanitizer = false;
#endif
inline constexpr bool kIsSanitized = kHasAddressSanitizer || kHasThreadSanitizer;

}  // namespace nram

#endif  // NRAM_BASE_SANITIZERS_H_
