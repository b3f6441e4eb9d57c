#include "core/prometheus/families.h"

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace quartet {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Families, AValueStandsBesideTheOthersOfItsName) {
  MetricFamilies families;
  AddFigure(prometheus::MetricType::Gauge, "quartet_bytes", "Bytes.", {{"kind", "a"}}, 3, &families);
  AddFigure(prometheus::MetricType::Counter, "quartet_things_total", "Things.", {}, 1e15, &families);
  AddFigure(prometheus::MetricType::Gauge, "quartet_bytes", "Bytes.", {{"kind", "b \"\n"}}, 0.5, &families);
  EXPECT_EQ(MetricsText(families),
            "# HELP quartet_bytes Bytes.\n# TYPE quartet_bytes gauge\n"
            "quartet_bytes{kind=\"a\"} 3\nquartet_bytes{kind=\"b \\\"\\n\"} 0.5\n"
            "# HELP quartet_things_total Things.\n# TYPE quartet_things_total counter\n"
            "quartet_things_total 1000000000000000\n");
}

TEST(Families, SayWhenTheProcessWasStarted) {
  MetricFamilies families;
  AddProcessFigures(&families);
  const double now = absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch());
  const prometheus::MetricFamily& start = families.back();
  ASSERT_EQ(start.name, "process_start_time_seconds");
  EXPECT_NEAR(start.metric.at(0).gauge.value, now, 60);
}

TEST(Families, SayWhatTheProcessTakes) {
  MetricFamilies families;
  AddProcessFigures(&families);
  for (const prometheus::MetricFamily& family : families) {
    const prometheus::ClientMetric& metric = family.metric.at(0);
    EXPECT_GT(metric.counter.value + metric.gauge.value, 0) << family.name;
  }
  EXPECT_THAT(MetricsText(families), HasSubstr("process_cpu_seconds_total"));
}

TEST(Families, BucketsOfDurationsGoFromTheLeastToTheMost) {
  EXPECT_THAT(DurationBuckets(1, 90), ElementsAre(1, 2.5, 5, 10, 25, 50, 100));
  EXPECT_THAT(DurationBuckets(1, 1), ElementsAre(1));
}

}  // namespace
}  // namespace quartet
