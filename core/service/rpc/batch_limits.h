// How much clients may bring to a service in calls that are batches of items.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/byte_budget.h"

namespace quartet {

// Of one call, and of all calls of the service together. Thread safe.
class BatchLimits {
 public:
  // `fields` is where a configuration has them, such as "services.scorer"; their defaults are its.
  explicit BatchLimits(std::string fields, int64_t max_call_items = int64_t{1} << 20,
                       int64_t max_call_bytes = int64_t{1} << 30, int64_t max_calls_bytes = int64_t{4} << 30)
      : fields_(std::move(fields)),
        max_call_items_(max_call_items),
        max_call_bytes_(max_call_bytes),
        budget_(max_calls_bytes) {}

  absl::Status CheckItems(uint64_t num_items) const {
    if (num_items <= static_cast<uint64_t>(max_call_items_)) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("header.num_items is ", num_items, "; allowed: at most ", fields_,
                                                   ".max_call_items = ", max_call_items_));
  }
  // INVALID_ARGUMENT where one call takes too much, RESOURCE_EXHAUSTED where all that are there do.
  absl::Status Grow(ByteBudget::Share* share, int64_t bytes) const {
    if (share->bytes() + bytes > max_call_bytes_) {
      return absl::InvalidArgumentError(absl::StrCat("the call's items take more than ", fields_,
                                                     ".max_call_bytes = ", max_call_bytes_, " bytes of memory"));
    }
    if (share->Grow(bytes)) return absl::OkStatus();
    return absl::ResourceExhaustedError(absl::StrCat("the items of all calls take ", fields_, ".max_calls_bytes = ",
                                                     budget_.limit(), " bytes of memory; try again later"));
  }
  ByteBudget::Share NewShare() { return ByteBudget::Share(&budget_); }

 private:
  const std::string fields_;
  const int64_t max_call_items_;
  const int64_t max_call_bytes_;
  ByteBudget budget_;
};

}  // namespace quartet
