// A step of tokenizer.json's pipeline as JSON: its fields, and the "Sequence" that each kind of step has.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace quartet {

// INVALID_ARGUMENT, with the step's type before `what`, as all errors below.
absl::Status StepError(const nlohmann::json& step, const std::string& what);
absl::Status StepNotSupported(const std::string& type);

absl::StatusOr<std::string> StepType(const nlohmann::json& step);
absl::StatusOr<bool> StepFlag(const nlohmann::json& step, const char* name, bool fallback);
absl::StatusOr<std::string> StepText(const nlohmann::json& step, const char* name);
absl::StatusOr<std::string> StepChar(const nlohmann::json& step, const char* name);

// "Sequence: [i]: ", before the error of a step within a sequence.
std::string PlaceInSequence(size_t i);

// Steps that can fail give an absl::StatusOr of what they are given, the others what they are given.
template <class Step>
constexpr bool kCanFail = requires(typename Step::result_type result) {
  result.status();
};

template <class Step>
Step InOrder(std::vector<Step> steps) {
  return Step([steps = std::move(steps)](auto value) {
    for (const Step& step : steps) value = step(std::move(value));
    return value;
  });
}

template <class Step>
Step InOrder(std::vector<Step> steps) requires kCanFail<Step> {
  return Step([steps = std::move(steps)](auto value) -> typename Step::result_type {
    for (size_t i = 0; i < steps.size(); ++i) {
      auto next = steps[i](std::move(value));
      if (!next.ok()) {
        return absl::InvalidArgumentError(absl::StrCat(PlaceInSequence(i), std::string(next.status().message())));
      }
      value = *std::move(next);
    }
    return value;
  });
}

// A "Sequence" of steps: `make` for each of `step[name]`, in order.
template <class Step>
absl::StatusOr<Step> Chain(const nlohmann::json& step, const char* name,
                           absl::StatusOr<Step> (*make)(const nlohmann::json&)) {
  const auto list = step.find(name);
  if (list == step.end() || !list->is_array()) return StepError(step, absl::StrCat("\"", name, "\" is not a list"));
  std::vector<Step> steps;
  for (size_t i = 0; i < list->size(); ++i) {
    auto made = make((*list)[i]);
    if (!made.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(PlaceInSequence(i), std::string(made.status().message())));
    }
    steps.push_back(*std::move(made));
  }
  return InOrder(std::move(steps));
}

}  // namespace quartet
