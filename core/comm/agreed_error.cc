#include "core/comm/agreed_error.h"

#include "absl/strings/cord.h"

namespace quartet {
namespace {

constexpr char kAgreed[] = "quartet/agreed";

}  // namespace

void MarkAgreed(absl::Status* error) { error->SetPayload(kAgreed, absl::Cord()); }

bool IsAgreed(const absl::Status& error) { return error.GetPayload(kAgreed).has_value(); }

}  // namespace quartet
