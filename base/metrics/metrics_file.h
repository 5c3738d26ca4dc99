#ifndef NRAM_BASE_METRICS_METRICS_FILE_H_
#define NRAM_BASE_METRICS_METRICS_FILE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/metrics/figures.h"
#include "base/sync.h"

namespace nram {

// A file of figures for node_exporter's textfile collector, for programs that are too many, or too short-lived, for a
// port each. It is written anew every period, in one step, on a thread of its own. Thread-safe.
class MetricsFile {
 public:
  static constexpr int64_t kPeriodMs = 10'000;

  // `path` ends in ".prom"; "%p" in it stands for the process id. All figures get the label program="...", the file's
  // name without its end: two files of one directory must not have the same figures. If this process has such a file
  // already, "-2" (and so on) stands behind the name. INVALID_ARGUMENT: another end, or a name that is too long. Else
  // the error of the first write.
  static absl::StatusOr<std::unique_ptr<MetricsFile>> Start(absl::string_view path, FigureSource source,
                                                            int64_t period_ms = kPeriodMs);
  // Removes the file. The source is not being asked any more when this returns.
  ~MetricsFile();
  MetricsFile(const MetricsFile&) = delete;
  MetricsFile& operator=(const MetricsFile&) = delete;

  const std::string& path() const { return path_; }

 private:
  MetricsFile(std::string path, FigureSource source, int64_t period_ms)
      : path_(std::move(path)), source_(std::move(source)), period_ms_(period_ms) {}
  absl::Status Write() const;
  void Run();

  const std::string path_;
  const FigureSource source_;
  const int64_t period_ms_;
  Mutex mu_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace nram

#endif  // NRAM_BASE_METRICS_METRICS_FILE_H_
