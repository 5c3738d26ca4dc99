#ifndef NRAM_TESTS_FUZZ_TARGETS_H_
#define NRAM_TESTS_FUZZ_TARGETS_H_

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"

namespace nram {

// Parsers of bytes from outside. Each target survives any input, leaves nothing behind for the next one, and crashes if
// its subject does something wrong. Not thread-safe.

// The message reader and codec. It must read the same messages as a simple decoder does, however the bytes are cut up,
// and a header that decodes must encode to itself.
void FuzzMessages(const uint8_t* data, size_t size);
// A server's session after hello: requests that are well-formed messages with any contents. Reads must agree with a
// model, and nothing must be left when the regions are destroyed.
void FuzzSession(const uint8_t* data, size_t size);
// A client's connection with calls under way: a server's answers, well-formed and not. Each call ends, and one that
// succeeds has the bytes of its answer.
void FuzzReplies(const uint8_t* data, size_t size);
// The handlers of the control service with any messages. No room is lost or handed out twice.
void FuzzControl(const uint8_t* data, size_t size);
// Requests as the kernel sends them, through libfuse into a filesystem in memory. Each has one well-formed answer.
void FuzzFuse(const uint8_t* data, size_t size);
// Sort keys and records: the order is one, and agrees with its prefixes; records are cut and sorted as a simple
// program does it.
void FuzzSort(const uint8_t* data, size_t size);
// Bytes on a connection with TLS: a server's handshake, and records of a peer that has the keys, with an attacker in
// between. The delivered bytes are the beginning of the sent ones.
void FuzzTls(const uint8_t* data, size_t size);
// HTTP/2 of a client and of a server through the frame meter, and of a client that is refused. A verdict does not
// depend on the pieces in which the bytes come; the bytes that pass are within the bounds.
void FuzzHttp2(const uint8_t* data, size_t size);
// Records of published versions. A record that is read encodes to the same record.
void FuzzPublication(const uint8_t* data, size_t size);
// Sizes, identifiers, access rules, pool specifications, host files, flags.
void FuzzText(const uint8_t* data, size_t size);

struct FuzzTarget {
  const char* name;  // its corpus is corpus/<name>.pack
  void (*run)(const uint8_t* data, size_t size);
};
absl::Span<const FuzzTarget> FuzzTargets();

}  // namespace nram

#endif  // NRAM_TESTS_FUZZ_TARGETS_H_
