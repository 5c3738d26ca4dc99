#ifndef NRAM_BASE_VERSION_H_
#define NRAM_BASE_VERSION_H_

namespace nram {

inline constexpr char kVersion[] = "0.1";

}  // namespace nram

#endif  // NRAM_BASE_VERSION_H_
