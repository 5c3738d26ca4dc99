// gRPC comes from Debian without ThreadSanitizer's instrumentation: it sees gRPC's system calls and memory, but not the
// atomics that order them. Races with a frame of gRPC (or of its absl::Mutex) in them are therefore not told; all
// others are. docs/adr/0003.

extern "C" const char* __tsan_default_suppressions();

extern "C" const char* __tsan_default_suppressions() {
  return "race:libgrpc\n"
         "race:libgpr.so\n"
         "race:libprotobuf\n"
         "race:libupb\n"
         "race:libabsl\n"
         "race:absl::debian3::Status::Unref\n"
         "deadlock:libgrpc\n";
}
