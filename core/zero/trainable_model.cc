#include "core/zero/trainable_model.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/fail_point.h"
#include "core/base/status_macros.h"
#include "core/base/trace.h"
#include "core/checkpoint/model_folder.h"
#include "core/checkpoint/state_use.h"
#include "core/comm/agreement.h"
#include "core/memory/accounted_tensor.h"
#include "core/memory/catch_exceptions.h"
#include "core/model/lora.h"
#include "core/zero/trainable_model_impl.h"
#include "proto/run_config.pb.h"

namespace quartet {
namespace {

absl::Status CheckOptions(const TrainableModelOptions& options) {
  if (options.activation_offload && !options.gradient_checkpointing) {
    return absl::InvalidArgumentError(
        "activation_offload needs gradient_checkpointing: what else would be kept is a graph, which stays");
  }
  if (options.no_sync && options.model.zero_stage == 0) {
    return absl::InvalidArgumentError("no_sync has no effect at zero_stage 0, which reduces once a step anyway");
  }
  if (!(options.ema_decay >= 0 && options.ema_decay < 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("ema_decay ", options.ema_decay, " is not allowed; it must be at least 0 and below 1"));
  }
  return absl::OkStatus();
}

}  // namespace

TrainableModel::TrainableModel(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TrainableModel::~TrainableModel() = default;

absl::StatusOr<std::unique_ptr<TrainableModel>> TrainableModel::Load(const std::string& folder,
                                                                     const TrainableModelOptions& options,
                                                                     ProcessGroup* group, Ledger* ledger) {
  return Load(options,
              [&](const ShardedModelOptions& model) { return ShardedModel::Load(folder, model, group, ledger); });
}

absl::StatusOr<std::unique_ptr<TrainableModel>> TrainableModel::Load(const std::string& folder,
                                                                     const TrainableModelOptions& options, Mesh* mesh,
                                                                     Ledger* ledger) {
  return Load(options,
              [&](const ShardedModelOptions& model) { return ShardedModel::Load(folder, model, mesh, ledger); });
}

absl::StatusOr<std::unique_ptr<TrainableModel>> TrainableModel::Load(
    const TrainableModelOptions& options,
    const std::function<absl::StatusOr<std::unique_ptr<ShardedModel>>(const ShardedModelOptions&)>& load) {
  QUARTET_RETURN_IF_ERROR(CheckOptions(options));
  auto impl = std::make_unique<Impl>();
  impl->options = options;
  impl->options.model.trainable = true;
  QUARTET_ASSIGN_OR_RETURN(impl->model, load(impl->options.model));
  impl->sharded = impl->model->impl_.get();
  ShardedModel* const adapters = impl->model->adapters();
  impl->trained = adapters == nullptr ? impl->sharded : adapters->impl_.get();
  // Whatever happens to this rank, all meet before the first micro-batch.
  absl::Status mine;
  try {
    impl->gradient = std::make_unique<ShardedGradient>(impl->trained, options.no_sync, options.begins_offloaded);
    impl->optimizer = std::make_unique<ShardedOptimizer>(
        impl->trained, options.optimizer == nullptr ? MakeOptimizer(TrainerConfig()) : options.optimizer,
        options.begins_offloaded ? MemoryTier::kHost : impl->trained->shard_tier());
    if (options.ema_decay != 0) impl->average = std::make_unique<WeightsAverage>(impl->trained, options.ema_decay);
    if (impl->sharded->world->rank() == 0 && !options.model.device.is_meta()) {
      const absl::StatusOr<std::string> folder = TokenizerFolder(impl->trained->folder);
      auto companions = folder.ok() ? ReadCompanions(*folder) : folder.status();
      mine = companions.status();
      if (companions.ok()) impl->companions = *std::move(companions);
    }
  } catch (const std::exception& error) {
    mine = StatusOf(error, "making gradients and optimizer state", *impl->sharded->ledger);
  }
  try {
    QUARTET_RETURN_IF_ERROR(AgreeOnStatus(*impl->sharded->world, mine, options.model.device));
  } catch (const std::exception& error) {
    return absl::UnavailableError(absl::StrCat("making the optimizer state: ", error.what()));
  }
  return std::unique_ptr<TrainableModel>(new TrainableModel(std::move(impl)));
}

ShardedModel& TrainableModel::model() { return *impl_->model; }

ShardedModel& TrainableModel::trained() { return impl_->trains_adapters() ? *impl_->model->adapters() : *impl_->model; }

const Optimizer& TrainableModel::optimizer() const { return impl_->optimizer->optimizer(); }

int64_t TrainableModel::steps() const { return impl_->optimizer->steps(); }

std::vector<NamedState> TrainableModel::state(int group) const {
  std::vector<NamedState> state = impl_->optimizer->state(group);
  if (impl_->average != nullptr) state.push_back({kAverageKind, impl_->average->of(group)});
  return state;
}

void TrainableModel::Restore(int64_t steps) {
  impl_->optimizer->set_steps(steps);
  impl_->RefreshComputeWeights();
}

const at::Tensor& TrainableModel::gradient(int group) const { return impl_->gradient->parts()[group]; }

void TrainableModel::OffloadState() {
  impl_->gradient->Release();
  impl_->optimizer->MoveStateTo(MemoryTier::kHost);
}

double TrainableModel::ForwardBackward(const PackedSequences& batch, const LossFunction& loss) {
  impl_->gradient->Allocate();
  return impl_->ForwardBackward(batch, loss);
}

void TrainableModel::Impl::RefreshComputeWeights() {
  for (int g = 0; g < static_cast<int>(trained->flat.size()); ++g) {
    ThrowAtFailPoint("trainable_model.refresh");
    trained->RefreshComputeWeights(g);
  }
}

StepResult TrainableModel::Step(double learning_rate, double max_norm) {
  const TraceScope span("optimizer");
  Impl& impl = *impl_;
  const at::NoGradGuard no_grad;
  const MemoryScope temporaries(impl.sharded->ledger, MemoryCategory::kOptimizer);
  StepResult result;
  impl.gradient->Allocate();
  impl.gradient->FinishSync();
  result.grad_norm = impl.gradient->Norm();
  ThrowAtFailPoint("trainable_model.step");
  if (std::isfinite(result.grad_norm)) {
    // As torch.nn.utils.clip_grad_norm_ does it.
    const double clip = max_norm > 0 ? std::min(1.0, max_norm / (result.grad_norm + 1e-6)) : 1.0;
    impl.optimizer->MoveStateTo(impl.trained->shard_tier());
    impl.optimizer->Step(impl.gradient->parts(), 1 / clip, learning_rate);
    if (impl.average != nullptr) impl.average->Update();
    impl.RefreshComputeWeights();
  } else {
    result.skipped = true;
  }
  impl.gradient->Clear();
  return result;
}

absl::StatusOr<int64_t> TrainableModel::Save(const std::string& folder) {
  return impl_->Save(folder, [this](int group, int next) { return impl_->trained->Gather(group, next); });
}

bool TrainableModel::keeps_average() const { return impl_->average != nullptr; }

absl::StatusOr<int64_t> TrainableModel::SaveAverage(const std::string& folder) {
  if (!keeps_average()) return absl::FailedPreconditionError("no average of the weights is kept: ema_decay is 0");
  return impl_->Save(folder,
                     [&](int group, int) { return impl_->trained->GatherCopy(group, impl_->average->of(group)); });
}

absl::StatusOr<int64_t> TrainableModel::Impl::Save(const std::string& folder,
                                                   const std::function<GatheredGroup(int group, int next)>& gather) {
  ProcessGroup& world = *sharded->world;
  const at::Device device = sharded->options.device;
  const at::ScalarType type = sharded->options.compute_dtype == at::kBFloat16 ? at::kBFloat16 : at::kFloat;
  // Rank 0 writes what all ranks gather. An error of its own waits until all have heard of it, so that they stay in
  // step; the writer, and with it what it wrote, has gone by then.
  std::unique_ptr<ModelFolderWriter> writer;
  absl::Status mine;
  const auto write = [&](const std::function<absl::Status()>& work) {
    const bool writes = world.rank() == 0 && mine.ok();
    const absl::Status status =
        WithoutDeadline(world, device, "saving to " + folder, [&] { return writes ? work() : absl::OkStatus(); });
    if (!writes) return;
    mine = status;
    if (!mine.ok()) writer.reset();
  };
  try {
    write([&]() -> absl::Status {
      ModelFolderOptions options;
      options.companions = companions;
      options.target = folder;
      options.dtype = type == at::kFloat ? Dtype::kF32 : Dtype::kBF16;
      options.head = sharded->options.head;
      QUARTET_ASSIGN_OR_RETURN(writer, ModelFolderWriter::Create(sharded->config, trained->layout, options));
      return absl::OkStatus();
    });
    QUARTET_RETURN_IF_ERROR(AgreeOnStatus(world, mine, device));

    const int groups = static_cast<int>(trained->flat.size());
    for (int g = 0; g < groups; ++g) {
      GatheredGroup gathered = gather(g, g + 1 < groups ? g + 1 : -1);
      write([&]() -> absl::Status {
        for (int p = 0; p < static_cast<int>(gathered.tensors().size()); ++p) {
          const at::Tensor values = gathered.tensors()[p].to(at::kCPU, type);
          QUARTET_RETURN_IF_ERROR(writer->Write(g, p, values.const_data_ptr()));
        }
        return absl::OkStatus();
      });
    }
    int64_t bytes = 0;
    write([&]() -> absl::Status {
      QUARTET_RETURN_IF_ERROR(FailPoint("trainable_model.save"));
      QUARTET_ASSIGN_OR_RETURN(bytes, writer->Finish());
      return absl::OkStatus();
    });
    QUARTET_RETURN_IF_ERROR(AgreeOnStatus(world, mine, device));
    const at::Tensor total = at::full({1}, bytes, at::TensorOptions(at::kLong).device(device));
    world.AllReduceSum(total)->Wait();
    return total.item<int64_t>();
  } catch (const std::exception& error) {
    trained->DropPending();
    return absl::UnavailableError(absl::StrCat("saving to ", folder, ": ", error.what()));
  }
}

}  // namespace quartet
