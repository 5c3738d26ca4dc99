#include "base/metrics/figures.h"

#include <glog/logging.h>
#include <prometheus/text_serializer.h>

#include <algorithm>

#include "absl/strings/match.h"
#include "base/metrics/families.h"
#include "base/utf8.h"

namespace nram {
namespace {

bool IsWord(absl::string_view text) {
  const auto fits = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_'; };
  return !text.empty() && text[0] >= 'a' && text[0] <= 'z' && std::all_of(text.begin(), text.end(), fits);
}

}  // namespace

void Figures::Add(Kind kind, absl::string_view name, absl::string_view help, double value, Labels labels) {
  CHECK(IsWord(name) && absl::StartsWith(name, "nram_")) << name;
  CHECK_EQ(absl::EndsWith(name, "_total"), kind == Kind::kCounter) << name;
  CHECK(!help.empty()) << name;
  const auto [place, is_new] = places_.try_emplace(std::string(name), families_.size());
  if (is_new) families_.push_back({std::string(name), std::string(help), kind, {}});
  Family& family = families_[place->second];
  CHECK(family.kind == kind) << name;
  if (family.samples.size() >= kSamplesMax) return;
  labels.insert(labels.begin(), common_.begin(), common_.end());
  for (auto& [label, text] : labels) {
    CHECK(IsWord(label)) << name << ": " << label;
    text = Printable(text, kLabelBytesMax);
  }
  family.samples.push_back({std::move(labels), value});
}

std::vector<prometheus::MetricFamily> ToFamilies(const Figures& figures) {
  std::vector<prometheus::MetricFamily> families;
  families.reserve(figures.families().size());
  for (const Figures::Family& family : figures.families()) {
    const bool counts = family.kind == Figures::Kind::kCounter;
    prometheus::MetricFamily out;
    out.name = family.name;
    out.help = family.help;
    out.type = counts ? prometheus::MetricType::Counter : prometheus::MetricType::Gauge;
    out.metric.reserve(family.samples.size());
    for (const Figures::Sample& sample : family.samples) {
      prometheus::ClientMetric metric;
      for (const auto& [name, value] : sample.labels) metric.label.push_back({name, value});
      (counts ? metric.counter.value : metric.gauge.value) = sample.value;
      out.metric.push_back(std::move(metric));
    }
    families.push_back(std::move(out));
  }
  return families;
}

std::string Figures::ToText() const { return prometheus::TextSerializer().Serialize(ToFamilies(*this)); }

}  // namespace nram
