#include "base/metrics/metrics_file.h"

#include <pthread.h>
#include <unistd.h>

#include <filesystem>
#include <set>
#include <string>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/signals.h"
#include "base/status.h"
#include "base/utf8.h"

namespace nram {

namespace {

constexpr char kEnd[] = ".prom";
constexpr size_t kNameBytesMax = 100;

// The files that this process has now.
struct OwnFiles {
  Mutex mu;
  std::set<std::string> paths ABSL_GUARDED_BY(mu);
};

OwnFiles& Own() {
  static auto* const own = new OwnFiles();
  return *own;
}

// "job.prom", or "job-2.prom" if this process has the first already.
std::string Claim(absl::string_view path_without_end) {
  OwnFiles& own = Own();
  MutexLock lock(&own.mu);
  for (int n = 1;; ++n) {
    std::string path = absl::StrCat(path_without_end, n == 1 ? "" : absl::StrCat("-", n), kEnd);
    if (own.paths.insert(path).second) return path;
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<MetricsFile>> MetricsFile::Start(absl::string_view path, FigureSource source,
                                                                int64_t period_ms) {
  const std::string full = absl::StrReplaceAll(path, {{"%p", absl::StrCat(getpid())}});
  const absl::string_view without_end = absl::StripSuffix(full, kEnd);
  const size_t name_bytes = without_end.size() - (without_end.rfind('/') + 1);
  if (without_end.size() == full.size() || name_bytes == 0 || name_bytes > kNameBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", Printable(path, 200),
                     "\" is not accepted: expected a file NAME.prom in the directory that node_exporter ",
                     "reads (--collector.textfile.directory), NAME of at most ", kNameBytesMax, " bytes"));
  }
  // The program may change its directory.
  std::error_code error;
  const std::string absolute = std::filesystem::absolute(std::string(without_end), error).string();
  std::unique_ptr<MetricsFile> file(new MetricsFile(Claim(absolute), std::move(source), period_ms));
  NRAM_RETURN_IF_ERROR(file->Write());
  const SignalsBlocked quiet;
  file->thread_ = std::thread([raw = file.get()] { raw->Run(); });
  pthread_setname_np(file->thread_.native_handle(), "nram-figures");
  return file;
}

MetricsFile::~MetricsFile() {
  if (thread_.joinable()) {
    {
      MutexLock lock(&mu_);
      stopping_ = true;
      changed_.SignalAll();
    }
    thread_.join();
    unlink(path_.c_str());
  }
  OwnFiles& own = Own();
  MutexLock lock(&own.mu);
  own.paths.erase(path_);
}

absl::Status MetricsFile::Write() const {
  const absl::string_view name = absl::string_view(path_).substr(path_.rfind('/') + 1);
  Figures figures(Figures::Labels{{"program", std::string(absl::StripSuffix(name, kEnd))}});
  source_(&figures);
  return WriteFileAtomically(path_, figures.ToText());
}

void MetricsFile::Run() {
  MutexLock lock(&mu_);
  while (!stopping_) {
    changed_.WaitUntil(&mu_, DeadlineAfterMs(period_ms_));
    if (stopping_) return;
    mu_.Unlock();
    (void)Write();  // a failure shows in the file's age
    mu_.Lock();
  }
}

}  // namespace nram
