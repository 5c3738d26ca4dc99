// gRPC comes from Debian without ThreadSanitizer's instrumentation: it sees gRPC's system calls and memory, but not the
// atomics that order them. Races with a frame of gRPC (or of its absl::Mutex) in them are therefore not told; all
// others are. docs/adr/0003. Where the way back from libstdc++ to gRPC is not found, the copying of a string is all
// that is seen of it: the last but one line leaves out that, and with it races of our own in such a copy (not in other
// uses of a string). What gRPC's headers compile into us (grpc::internal::) reads and frees objects that its library
// orders; so does the last owner of a channel, which a stub of ours may be.

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
         "deadlock:libgrpc\n";
}
