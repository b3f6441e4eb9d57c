#include "core/prometheus/gpu_figures.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace quartet {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// core/prometheus/testing/fake_nvml.cc.
constexpr char kFakeNvml[] = "core/prometheus/testing/libnvidia-ml.so.1";

std::string FiguresOf(const std::string& library) {
  MetricFamilies families;
  AddGpuFigures(&families, library);
  return MetricsText(families);
}

TEST(GpuFigures, SayWhatEachGpuTells) {
  for (int scrape = 0; scrape < 2; ++scrape) {
    const std::string text = FiguresOf(kFakeNvml);
    for (const char* line : {"quartet_gpu_utilization_ratio{gpu=\"0\",uuid=\"GPU-0\"} 0.97\n",
                             "quartet_gpu_memory_bytes{gpu=\"1\",uuid=\"GPU-1\"} 85899345920\n",
                             "quartet_gpu_memory_used_bytes{gpu=\"0\",uuid=\"GPU-0\"} 64424509440\n",
                             "quartet_gpu_memory_used_bytes{gpu=\"1\",uuid=\"GPU-1\"} 1\n",
                             "quartet_gpu_power_watts{gpu=\"0\",uuid=\"GPU-0\"} 612.5\n",
                             "quartet_gpu_temperature_celsius{gpu=\"1\",uuid=\"GPU-1\"} 30\n"}) {
      EXPECT_THAT(text, HasSubstr(line));
    }
    EXPECT_THAT(text, Not(HasSubstr("quartet_gpu_power_watts{gpu=\"1\"")));
    EXPECT_THAT(text, Not(HasSubstr("quartet_gpu_utilization_ratio{gpu=\"1\"")));
  }
}

TEST(GpuFigures, AreNoneWhereThereIsNoDriver) {
  EXPECT_EQ(FiguresOf("libno-such-driver.so.1"), "");
  EXPECT_EQ(FiguresOf("libm.so.6"), "");  // another library
}

}  // namespace
}  // namespace quartet
