// Debian builds gRPC without ThreadSanitizer's instrumentation: the sanitizer sees gRPC's system calls and memory, but
// not the atomics that order them. It therefore leaves out races that have a stack frame of gRPC (or of its
// absl::Mutex) in them, and reports all others (docs/adr/0003). Where the stack does not lead from libstdc++ back to
// gRPC, the sanitizer sees only the copying of a string. One line leaves that out, and with it races of
// our own in such a copy (not in other uses of a string). Code that gRPC's headers compile into us (grpc::internal::)
// reads and frees objects that its library orders; so does the last owner of a channel, which may be a stub of ours.
// glog asks the C library for the time zone, which orders its own memory by a lock that the sanitizer does not see.
// OpenSSL is built likewise, and gRPC's threads hand its objects to each other.

extern "C" const char* __tsan_default_suppressions();

extern "C" const char* __tsan_default_suppressions() {
  return "race:libgrpc\n"
         "race:libgpr.so\n"
         "race:grpc::internal::\n"
         "race:nram::v1::Control::Stub::~Stub\n"
         "race:libprotobuf\n"
         "race:libupb\n"
         "race:libabsl\n"
         "race:absl::debian3::Status::Unref\n"
         "race:std::__cxx11::basic_string*_M_assign\n"
         "race:tzset_internal\n"
         "race:libssl.so\n"
         "race:libcrypto.so\n"
         "deadlock:libgrpc\n";
}
