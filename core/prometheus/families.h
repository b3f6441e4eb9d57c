// What stands behind Prometheus's figures: families of prometheus-cpp, and how they are made.
#pragma once

#include <prometheus/metric_family.h>
#include <prometheus/metric_type.h>

#include <string>
#include <utility>
#include <vector>

#include "core/http/http_server.h"

namespace quartet {

using MetricFamilies = std::vector<prometheus::MetricFamily>;
using MetricLabels = std::vector<std::pair<std::string, std::string>>;

// Adds a value to the family of this name, which is made where it is not there. `type`: Counter, whose name ends in
// "_total", or Gauge.
void AddFigure(prometheus::MetricType type, const std::string& name, const std::string& help,
               const MetricLabels& labels, double value, MetricFamilies* families);

// Of this process, under the names that Prometheus's clients have for them: CPU seconds, memory, open files, start.
void AddProcessFigures(MetricFamilies* families);

// In Prometheus's text format; and as what a scrape is answered with.
std::string MetricsText(const MetricFamilies& families);
HttpReply MetricsReply(const MetricFamilies& families);

// Bounds of histograms of durations from `least` on, each about 2.5 times the one before, up to at least `most`;
// seconds.
std::vector<double> DurationBuckets(double least, double most);

}  // namespace quartet
