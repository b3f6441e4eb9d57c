#include "core/training/model_save.h"

#include <filesystem>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "core/base/fail_point.h"
#include "core/base/status_macros.h"
#include "core/comm/agreed_error.h"
#include "core/comm/agreement.h"
#include "core/zero/catch_exceptions.h"
#include "core/zero/training_state.h"

namespace quartet {

absl::Status SaveModel(TrainableModel& model, const SaveCall& call, const std::string& fail_point,
                       SaveSummary* summary) {
  return CatchExceptions(absl::StrCat("saving ", call.folder()), model.model().ledger(), [&]() -> absl::Status {
    ProcessGroup& ranks = model.model().process_group();
    QUARTET_RETURN_IF_ERROR(AgreeOnStatus(ranks, FailPoint(fail_point), model.model().options().device));
    SavedState state;
    if (!call.state_folder().empty()) {
      QUARTET_ASSIGN_OR_RETURN(state, SaveTrainingState(model, call.state_folder()));
    }
    const absl::StatusOr<int64_t> bytes = model.Save(call.folder());
    if (!bytes.ok()) {
      if (!call.state_folder().empty() && IsAgreed(bytes.status())) {
        std::error_code ignored;  // the save has failed anyway
        if (ranks.rank() == 0) std::filesystem::remove_all(call.state_folder(), ignored);
        ranks.Barrier();
      }
      return bytes.status();
    }
    summary->set_bytes(*bytes + state.bytes);
    summary->set_state_hash(state.manifest_hash);
    return absl::OkStatus();
  });
}

}  // namespace quartet
