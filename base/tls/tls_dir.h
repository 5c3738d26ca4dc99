#ifndef NRAM_BASE_TLS_TLS_DIR_H_
#define NRAM_BASE_TLS_TLS_DIR_H_

// Where a process finds its certificates. All programs have the flag --tls-dir, which stands for the variable: so the
// programs that they start find the same.

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace nram {

inline constexpr char kTlsDirVariable[] = "NRAM_TLS_DIR";
inline constexpr char kTlsDirDefault[] = "/etc/nram/tls";
inline constexpr char kNoTls[] = "none";  // in place of a directory

// A server's directory: the variable's, else the default one if it has a server's certificate; "" if neither. A server
// without the right to look there gets the directory, and an error when it reads the files: none goes on plain by
// mistake.
std::string ServerTlsDir();

// Whether a file is there, or may be for all that this process can tell.
bool MayExist(const std::string& path);

// Sets the variable to the directory's absolute path. Not thread-safe: for a command line. INVALID_ARGUMENT: "".
absl::Status SetTlsDir(absl::string_view directory);

}  // namespace nram

#endif  // NRAM_BASE_TLS_TLS_DIR_H_
