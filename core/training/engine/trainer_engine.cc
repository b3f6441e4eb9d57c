#include "core/training/engine/trainer_engine.h"

#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "core/base/fail_point.h"
#include "core/base/status_macros.h"
#include "core/comm/agreed_error.h"
#include "core/comm/agreement.h"
#include "core/memory/accounted_tensor.h"
#include "core/memory/catch_exceptions.h"
#include "core/memory/ledger.h"
#include "core/model/lora_options.h"
#include "core/rank/rank_info.h"
#include "core/rank/rank_setup.h"
#include "core/training/engine/update.h"
#include "core/zero/state/training_state.h"
#include "core/zero/trainable_model.h"

namespace quartet {

namespace {

TrainableModelOptions TrainerOptions(const TrainerConfig& config, HeadKind head, uint64_t seed,
                                     const RankContext& context, int64_t vocabulary) {
  TrainableModelOptions options;
  options.model.head = head;
  options.model.zero_stage = config.zero_stage();
  options.model.compute_dtype = ComputeType(config.dtype());
  options.model.trainable = true;
  options.model.device = DeviceOf(context);
  options.model.initialize_missing_head = head == HeadKind::kScalar;
  options.model.seed = seed;
  options.model.vocabulary = vocabulary;
  options.model.lora = LoraOf(config);
  options.optimizer = MakeOptimizer(config);
  options.gradient_checkpointing = config.gradient_checkpointing();
  options.model.adam_offload = config.adam_offload();
  options.model.offload_param = config.offload_param();
  options.activation_offload = config.activation_offload();
  options.no_sync = config.no_sync();
  options.begins_offloaded = config.sleep_offload();
  options.ema_decay = config.ema_decay();
  return options;
}

// Writes the Hugging Face folder, where an average of the weights is kept another with "_ema" behind its name, and
// where call.state_folder() is set the training state; all or nothing.
// Collective. An error of one rank is every rank's and leaves them in step; so does the fail point `fail_point`, which
// is passed first.
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

}  // namespace

struct TrainerEngine::Impl {
  std::string name;
  TrainerConfig config;
  const RankContext* context = nullptr;
  Ledger ledger;
  std::unique_ptr<Mesh> ranks;
  std::unique_ptr<TrainableModel> trainable;
};

TrainerEngine::TrainerEngine() : impl_(std::make_unique<Impl>()) {}
TrainerEngine::~TrainerEngine() = default;

absl::Status TrainerEngine::Load(const std::string& name, HeadKind head, const TrainerConfig& config, uint64_t seed,
                                 const RankContext& context, int64_t vocabulary) {
  Impl& impl = *impl_;
  impl.name = name;
  impl.config = config;
  impl.context = &context;
  SetBudgets(context, &impl.ledger);
  return CatchExceptions(absl::StrCat("loading the ", name), impl.ledger, [&]() -> absl::Status {
    QUARTET_ASSIGN_OR_RETURN(impl.ranks, JoinMesh(context, name, config.shard_size()));
    QUARTET_ASSIGN_OR_RETURN(
        impl.trainable, TrainableModel::Load(config.pretrain(), TrainerOptions(config, head, seed, context, vocabulary),
                                             impl.ranks.get(), &impl.ledger));
    if (config.load_checkpoint().empty()) return absl::OkStatus();
    return LoadTrainingState(*impl.trainable, config.load_checkpoint(), head == HeadKind::kScalar ? "critic" : "actor");
  });
}

ShardedModel& TrainerEngine::model() const { return impl_->trainable->model(); }
ShardedModel& TrainerEngine::trained() const { return impl_->trainable->trained(); }
Ledger& TrainerEngine::ledger() const { return impl_->ledger; }

absl::Status TrainerEngine::Compute(const std::string& what, const std::function<absl::Status()>& work) const {
  return CatchExceptions(what, impl_->ledger, work);
}

absl::Status TrainerEngine::TakeStep(const UpdateCall& call, const std::vector<TrainingSequence>& sequences,
                                     const Loss& loss, UpdateSums* sums) {
  QUARTET_RETURN_IF_ERROR(FailPoint(absl::StrCat(impl_->name, "_trainer.update")));
  return Compute(absl::StrCat(impl_->name, " update"),
                 [&] { return UpdateModel(*impl_->trainable, call, sequences, impl_->config.max_norm(), loss, sums); });
}

absl::Status TrainerEngine::Save(const SaveCall& call, SaveSummary* summary) {
  return Compute(absl::StrCat("saving ", call.folder()), [&] {
    return SaveModel(*impl_->trainable, call, absl::StrCat(impl_->name, "_trainer.save"), summary);
  });
}

absl::Status TrainerEngine::Sleep() {
  return Compute("going to sleep", [this] {
    if (impl_->config.sleep_offload()) impl_->trainable->OffloadState();
    GiveBackFreedBlocks();
    return absl::OkStatus();
  });
}

RankInfo TrainerEngine::Info() const {
  RankInfo info = DescribeRank(*impl_->context, impl_->ledger);
  DescribeGroups(*impl_->ranks, &info);
  DescribeDevice(model().options().device, &info);
  info.set_model_parameters(model().layout().numel());
  info.set_gathered_bytes_per_parameter(static_cast<int32_t>(c10::elementSize(model().options().compute_dtype)));
  if (model().options().compute_dtype == at::kBFloat16) DescribeCpuKernels(*impl_->context, &info);
  info.set_optimizer_steps(impl_->trainable->steps());
  return info;
}

}  // namespace quartet
