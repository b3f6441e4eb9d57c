#include "planner/step_time.h"

#include <algorithm>
#include <cstdint>
#include <map>

#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "core/config/batches/call_sizes.h"
#include "core/config/gpus.h"
#include "core/config/run_config.h"
#include "core/model/model_config.h"
#include "core/model/model_work.h"
#include "core/training/batch/sequence_cost.h"
#include "planner/cache_use.h"
#include "planner/links.h"

namespace quartet {
namespace {

// Of a step's sequences, each of the greatest lengths.
struct Lengths {
  double prompt;
  double answer;
  double samples;  // of each prompt
};

struct Shape {
  ModelWork work;
  double element_bytes = 2;
  double flops_per_second = 0;  // in the type that it is computed in
  bool shares = false;          // trainers and scorers compute a prompt once for its samples
};

absl::StatusOr<Shape> ShapeOf(const std::string& folder, HeadKind head, const std::string& dtype,
                              const GpuRates& rates) {
  QUARTET_ASSIGN_OR_RETURN(const ModelConfig model, ReadModelConfig(folder));
  return Shape{.work = WorkOf(model, head),
               .element_bytes = dtype == "fp32" ? 4.0 : 2.0,
               .flops_per_second = dtype == "fp32" ? rates.fp32_flops : rates.bf16_flops,
               .shares = SharingOn(/*cpu=*/false, dtype == "bf16", model.head_dim) != Sharing::kNone};
}

// Of a prompt.
double PromptFlops(const Shape& shape, const Lengths& lengths) {
  return shape.work.BlockFlops(lengths.prompt, lengths.prompt * lengths.prompt / 2);
}

// Of a sequence, and of its part of the prompt where that is shared.
double BlockFlops(const Shape& shape, const Lengths& lengths) {
  const double pairs = lengths.answer * (lengths.prompt + lengths.answer / 2);
  return PromptFlops(shape, lengths) / (shape.shares ? lengths.samples : 1) +
         shape.work.BlockFlops(lengths.answer, pairs);
}

// The head is computed for the answer alone.
double ForwardFlops(const Shape& shape, const Lengths& lengths) {
  return BlockFlops(shape, lengths) + shape.work.HeadFlops(lengths.answer);
}

// A backward pass computes two products for each of the forward's, but for a matrix that is not trained one; what is
// not kept is computed again before it. What adapters themselves take is left out. A scalar head is trained with them.
double TrainFlops(const Shape& shape, const Lengths& lengths, const TrainerConfig& trainer, HeadKind head) {
  Shape attention = shape;
  attention.work.block_weights = 0;
  const bool trains_matrices = !trainer.has_lora();
  const double forward = BlockFlops(shape, lengths);
  const double of_matrices = trains_matrices ? forward - BlockFlops(attention, lengths) : 0;
  const double backward = forward + BlockFlops(attention, lengths) + of_matrices;
  return (trainer.gradient_checkpointing() ? 2 : 1) * forward + backward +
         (trains_matrices || head == HeadKind::kScalar ? 4 : 3) * shape.work.HeadFlops(lengths.answer);
}

void Add(double flops, const Shape& shape, ServiceTime* time) {
  time->flops += flops;
  time->computing_seconds += flops / shape.flops_per_second;
}

absl::Status AddRollout(const RunConfig& config, const ServicePlan& service, const GpuRates& rates,
                        const Lengths& lengths, double sequences, ServiceTime* time) {
  const RolloutConfig& rollout = config.rollout();
  QUARTET_ASSIGN_OR_RETURN(const Shape shape,
                           ShapeOf(rollout.pretrain(), HeadKind::kVocabulary, rollout.dtype(), rates));
  const double parallel = rollout.tensor_parallel_size(), engines = service.ranks / parallel;
  const double own = sequences / engines;
  // Each prompt once: its samples share it.
  Add(rollout.rollout_batch_size() / engines * PromptFlops(shape, lengths) / parallel, shape, time);
  // Each further token: its products, and attention over all before it.
  const double pairs = lengths.answer * (lengths.prompt + lengths.answer / 2);
  const ModelWork& work = shape.work;
  const double flops = own * (work.BlockFlops(lengths.answer, pairs) + work.HeadFlops(lengths.answer)) / parallel;
  // What a forward can draw a token for: as many sequences as could run, and no more than the cache holds of them while
  // they grow, with a prompt that the samples share.
  const auto cache_tokens = static_cast<double>(service.use.kv_cache_blocks * rollout.block_size());
  const double held = cache_tokens / (lengths.prompt / rollout.n_samples_per_prompt() + lengths.answer / 2);
  const double forwards =
      own * lengths.answer / std::min({own, held, static_cast<double>(CacheUseOf(config, service).could_run)});
  const double bytes = forwards * (work.block_weights + work.head_weights) * shape.element_bytes / parallel +
                       own * pairs * work.cached_elements * shape.element_bytes / parallel;
  time->flops += flops;
  time->bytes = bytes;
  time->computing_seconds += std::max(flops / shape.flops_per_second, bytes / rates.bytes);
  return absl::OkStatus();
}

}  // namespace

GpuRates RatesOf(const RunConfig& config) {
  const Gpu* gpu = FindGpu(config.cluster().gpu());
  if (gpu == nullptr) return {};
  return {.bf16_flops = gpu->bf16_flops, .fp32_flops = gpu->fp32_flops, .bytes = gpu->bytes_per_second};
}

absl::StatusOr<StepTime> EstimateStep(const RunConfig& config, const Plan& plan, const GpuRates& rates) {
  for (const ServicePlan& service : plan.services) {
    if (service.on_gpu) continue;
    return absl::InvalidArgumentError(absl::StrCat(service.service,
                                                   " is on CPUs, of which no rates are known: they are stated of GPUs "
                                                   "alone, also by --tflops and --gb_per_second"));
  }
  if (rates.bf16_flops == 0 || rates.fp32_flops == 0 || rates.bytes == 0) {
    return absl::InvalidArgumentError("no rates are known; set cluster.gpu, or --tflops and --gb_per_second");
  }
  const Lengths lengths = {.prompt = static_cast<double>(config.data().prompt_max_len()),
                           .answer = static_cast<double>(LongestSequence(config) - config.data().prompt_max_len()),
                           .samples = static_cast<double>(config.rollout().n_samples_per_prompt())};
  const double sequences =
      static_cast<double>(config.rollout().rollout_batch_size()) * config.rollout().n_samples_per_prompt();
  StepTime step;
  for (const ServicePlan& service : plan.services) {
    ServiceTime& time = step.services.emplace_back();
    time.service = service.service;
    const double own = sequences / service.ranks;
    const auto add_forward = [&](const std::string& folder, HeadKind head, const std::string& dtype) -> absl::Status {
      QUARTET_ASSIGN_OR_RETURN(const Shape shape, ShapeOf(folder, head, dtype, rates));
      Add(own * ForwardFlops(shape, lengths), shape, &time);
      return absl::OkStatus();
    };
    const auto add_trainer = [&](const TrainerConfig& trainer, HeadKind head, int epochs) -> absl::Status {
      QUARTET_RETURN_IF_ERROR(add_forward(trainer.pretrain(), head, trainer.dtype()));
      QUARTET_ASSIGN_OR_RETURN(const Shape shape, ShapeOf(trainer.pretrain(), head, trainer.dtype(), rates));
      Add(epochs * own * TrainFlops(shape, lengths, trainer, head), shape, &time);
      return absl::OkStatus();
    };
    if (service.service == "rollout") {
      QUARTET_RETURN_IF_ERROR(AddRollout(config, service, rates, lengths, sequences, &time));
    } else if (service.service == "policy_trainer") {
      QUARTET_RETURN_IF_ERROR(add_trainer(config.actor(), HeadKind::kVocabulary, config.algorithm().max_epochs()));
      if (UsesReference(config) && ReferenceIsBase(config)) {
        QUARTET_RETURN_IF_ERROR(add_forward(config.actor().pretrain(), HeadKind::kVocabulary, config.actor().dtype()));
      }
    } else if (service.service == "critic_trainer") {
      QUARTET_RETURN_IF_ERROR(add_trainer(config.critic(), HeadKind::kScalar, config.algorithm().critic_epochs()));
    } else {
      for (const ScoringModel& model : ScoringModels(config)) {
        const HeadKind head = model.is_reference() ? HeadKind::kVocabulary : HeadKind::kScalar;
        QUARTET_RETURN_IF_ERROR(add_forward(model.folder, head, model.dtype));
      }
    }
  }

  std::map<std::string, std::optional<double>> collectives;
  for (const LinkUse& link : LinksOf(config, plan)) {
    const auto [known, first] = collectives.try_emplace(link.service, 0);
    const std::optional<double> seconds = link.seconds();
    known->second =
        known->second.has_value() && seconds.has_value() ? std::optional(*known->second + *seconds) : std::nullopt;
  }
  std::map<std::string, double> taken;
  for (ServiceTime& time : step.services) {
    const auto known = collectives.find(time.service);
    time.collectives = known == collectives.end() ? std::optional<double>(0) : known->second;
    const double sending = time.collectives.value_or(0);
    time.seconds =
        time.service == "rollout" ? time.computing_seconds + sending : std::max(time.computing_seconds, sending);
    if (time.service == "rollout") {
      step.generating_seconds = time.seconds;
    } else {
      taken[time.service] = time.seconds;
    }
  }
  for (const PlaceUse& device : plan.devices) {
    double together = 0;
    for (const auto& [service, ranks] : device.ranks) {
      if (const auto known = taken.find(service); known != taken.end()) together += ranks * known->second;
    }
    step.training_seconds = std::max(step.training_seconds, together);
  }
  return step;
}

}  // namespace quartet
