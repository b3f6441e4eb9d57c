// A plan as text for people; docs/memory.md explains it.
#pragma once

#include <string>
#include <vector>

#include "orchestrator/launch/launch_plan.h"
#include "planner/plan.h"
#include "planner/search.h"
#include "planner/step_time.h"
#include "proto/run_config.pb.h"

namespace quartet {

// Memory by service and category, by GPU and host, what a micro-batch and the KV cache hold, and what goes over the
// links.
std::string PrintPlan(const RunConfig& config, const Plan& plan);

// Seconds by service, and of the step.
std::string PrintStepTime(const RunConfig& config, const StepTime& step, const GpuRates& rates);

// What the run fits on, one line a GPU.
std::string PrintOffers(const std::vector<Suggestion>& offers);

// A plan for programs: one object, {"fits", "services": {name: {"ranks", "device", "host", "device_outside",
// "host_outside"}}, "launch": [...]}, where "device" and "host" are peak bytes of one rank by category and "total", and
// "launch" is as orchestrator/launch/launch_plan.h has it.
std::string PlanAsJson(const Plan& plan, const std::vector<RankLaunch>& launch);

// One line a suggestion.
std::string PrintSuggestions(const std::vector<Suggestion>& suggestions);

}  // namespace quartet
