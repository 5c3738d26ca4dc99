#ifndef NRAM_BASE_METRICS_FIGURES_H_
#define NRAM_BASE_METRICS_FIGURES_H_

// The figures that a program shows to its monitoring (docs/watching.md, adr/0022).

#include <cstddef>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"

namespace nram {

// The figures of a program at one moment, by Prometheus' conventions. A name begins with "nram_" and has its unit
// behind it, in bytes or seconds; a counter's ends in "_total". Names and labels that break the form are bugs, and
// CHECKed. A name may be added several times, with other labels; the first call sets its help.
//
// For one thread at a time.
class Figures {
 public:
  enum class Kind { kGauge, kCounter };
  using Labels = std::vector<std::pair<std::string, std::string>>;
  struct Sample {
    Labels labels;
    double value = 0;
  };
  struct Family {
    std::string name;
    std::string help;
    Kind kind = Kind::kGauge;
    std::vector<Sample> samples;
  };

  // Longer values of labels are cut, and unprintable bytes are replaced.
  static constexpr size_t kLabelBytesMax = 200;
  // The most samples of a name; more are left out, so a scrape stays small in a pool of any size.
  static constexpr size_t kSamplesMax = 4096;

  // `common`: labels that all samples get.
  explicit Figures(Labels common = {}) : common_(std::move(common)) {}

  // The amount of something now.
  void Gauge(absl::string_view name, absl::string_view help, double value, Labels labels = {}) {
    Add(Kind::kGauge, name, help, value, std::move(labels));
  }
  // A sum that only rises while the program runs.
  void Counter(absl::string_view name, absl::string_view help, double value, Labels labels = {}) {
    Add(Kind::kCounter, name, help, value, std::move(labels));
  }

  // In the order in which they were told first.
  const std::vector<Family>& families() const { return families_; }
  // As /metrics and files for node_exporter have them.
  std::string ToText() const;

 private:
  void Add(Kind kind, absl::string_view name, absl::string_view help, double value, Labels labels);

  const Labels common_;
  std::vector<Family> families_;
  absl::flat_hash_map<std::string, size_t> places_;  // in families_, by name
};

// Tells the figures of now. It reads counters that are there anyway. Called by one thread at a time, never by one that
// moves pages; must not wait for a network.
using FigureSource = std::function<void(Figures* figures)>;

}  // namespace nram

#endif  // NRAM_BASE_METRICS_FIGURES_H_
