#include "core/training/engine/model_save.h"

#include <filesystem>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "core/base/fail_point.h"
#include "core/base/status_macros.h"
#include "core/comm/agreed_error.h"
#include "core/comm/agreement.h"
#include "core/memory/catch_exceptions.h"
#include "core/zero/state/training_state.h"

namespace quartet {

absl::Status SaveModel(TrainableModel& model, const SaveCall& call, const std::string& fail_point,
                       SaveSummary* summary) {
  return CatchExceptions(absl::StrCat("saving ", call.folder()), model.model().ledger(), [&]() -> absl::Status {
    ProcessGroup& ranks = model.model().process_group();
    QUARTET_RETURN_IF_ERROR(AgreeOnStatus(ranks, FailPoint(fail_point), model.model().options().device));
    // What has been written, which goes again where a later part fails.
    std::vector<std::string> written;
    const auto keep = [&](const absl::Status& status, const std::string& folder) -> absl::Status {
      if (status.ok()) {
        written.push_back(folder);
        return status;
      }
      std::error_code ignored;  // the save has failed anyway
      for (const std::string& done : written) {
        if (ranks.rank() == 0) std::filesystem::remove_all(done, ignored);
      }
      if (IsAgreed(status)) ranks.Barrier();
      return status;
    };
    SavedState state;
    if (!call.state_folder().empty()) {
      auto saved = SaveTrainingState(model, call.state_folder());
      QUARTET_RETURN_IF_ERROR(keep(saved.status(), call.state_folder()));
      state = *saved;
    }
    int64_t bytes = state.bytes;
    const absl::StatusOr<int64_t> weights = model.Save(call.folder());
    QUARTET_RETURN_IF_ERROR(keep(weights.status(), call.folder()));
    bytes += *weights;
    if (model.keeps_average()) {
      const std::string folder = call.folder() + "_ema";
      const absl::StatusOr<int64_t> average = model.SaveAverage(folder);
      QUARTET_RETURN_IF_ERROR(keep(average.status(), folder));
      bytes += *average;
    }
    summary->set_bytes(bytes);
    summary->set_state_hash(state.manifest_hash);
    return absl::OkStatus();
  });
}

}  // namespace quartet
