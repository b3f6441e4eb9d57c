#include "core/zero/sharded/sharded_model.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <exception>
#include <filesystem>
#include <set>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/division.h"
#include "core/base/logging.h"
#include "core/base/status_macros.h"
#include "core/base/time/loading.h"
#include "core/base/trace.h"
#include "core/comm/agreement.h"
#include "core/memory/accounted_tensor.h"
#include "core/memory/catch_exceptions.h"
#include "core/model/decoder/packed_attention.h"
#include "core/model/lora.h"
#include "core/model/scalar_head_check.h"
#include "core/safetensors/reader.h"
#include "core/zero/sharded/parameter_reader.h"
#include "core/zero/sharded/sharded_model_impl.h"

namespace quartet {
namespace {

// By which files are told from others that stand in their places later.
std::vector<std::string> StampsOf(const CheckpointReader& reader) {
  std::vector<std::string> stamps;
  for (const std::string& file : reader.files()) {
    std::error_code error;
    stamps.push_back(absl::StrCat(file, " ", std::filesystem::file_size(file, error), " ",
                                  std::filesystem::last_write_time(file, error).time_since_epoch().count()));
  }
  return stamps;
}

// Says which tensors of the folder the model has no place for.
void LogUnread(const CheckpointReader& reader, const ParameterLayout& layout, const ModelConfig& config,
               const std::string& folder) {
  std::set<std::string> unread;
  for (const auto& [name, info] : reader.tensors()) unread.insert(name);
  for (const ParameterGroup& group : layout.groups) {
    for (const ParameterSpec& parameter : group.parameters) unread.erase(NameInFolder(parameter, config));
  }
  if (unread.empty()) return;
  QUARTET_LOG(kInfo) << folder << ": left out " << unread.size() << " tensors that the model has no place for, such as "
                     << *unread.begin();
}

uint64_t SumOverRanks(ProcessGroup& group, at::Device device, uint64_t value) {
  if (group.size() == 1 || device.is_meta()) return value;
  const at::Tensor sum = at::full({1}, static_cast<int64_t>(value), at::TensorOptions(at::kLong).device(device));
  group.AllReduceSum(sum)->Wait();
  return static_cast<uint64_t>(sum.item<int64_t>());
}

absl::Status CheckOptions(const ShardedModelOptions& options) {
  if (options.zero_stage != 0 && options.zero_stage != 2 && options.zero_stage != 3) {
    return absl::InvalidArgumentError(
        absl::StrCat("zero_stage ", options.zero_stage, " is not known; allowed: 0, 2, 3"));
  }
  if (options.compute_dtype != at::kFloat && options.compute_dtype != at::kBFloat16 &&
      options.compute_dtype != at::kDouble) {
    return absl::InvalidArgumentError(
        absl::StrCat("compute type ", c10::toString(options.compute_dtype), " is not supported; allowed: bf16, fp32"));
  }
  if (options.adam_offload && (!options.trainable || options.zero_stage == 0)) {
    return absl::InvalidArgumentError(
        options.trainable ? "adam_offload needs zero_stage 2 or 3: at stage 0 every rank would update the whole model"
                          : "adam_offload needs a trainable model");
  }
  if (options.offload_param && options.zero_stage != 3) {
    return absl::InvalidArgumentError(absl::StrCat("offload_param needs zero_stage 3: at stage ", options.zero_stage,
                                                   " parameters stay whole on the device"));
  }
  if (options.offload_param && options.trainable && !options.adam_offload) {
    return absl::InvalidArgumentError(
        "offload_param needs adam_offload: without it gathers start from the master weights, which are on the device "
        "with the optimizer");
  }
  if (options.tensor_parallel.size > 1 && (options.trainable || options.zero_stage != 0)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "tensor_parallel needs a frozen model at zero_stage 0; ",
        options.trainable ? "the model is trainable" : absl::StrCat("zero_stage is ", options.zero_stage)));
  }
  return absl::OkStatus();
}

// A group of this rank alone on `device`.
absl::StatusOr<std::unique_ptr<ProcessGroup>> MakeLoneGroup(at::Device device) {
  ProcessGroupOptions options;
  options.device = c10::DeviceTypeName(device.type(), /*lower_case=*/true);
  return MakeProcessGroup(/*store=*/nullptr, options);
}

}  // namespace

OwnedRange ShardedModel::Impl::Owned(int group, int rank) const {
  const int64_t part = flat[group].shard, share = part / replicas();
  // Ranks of a mesh: replica * shards + shard.
  const int64_t offset = rank / shard->size() * share;
  return {.begin = rank % shard->size() * part + offset, .offset = offset, .count = share};
}

void ShardedModel::Impl::CompleteFromOwners(int group, const at::Tensor& values) {
  if (replica == nullptr) return;
  const at::NoGradGuard no_grad;
  if (values.device() == options.device) {
    replica->AllGatherInPlace(values)->Wait();
    return;
  }
  const OwnedRange own = Owned(group, world->rank());
  const at::Tensor shares =
      AccountedEmpty(ledger, MemoryCategory::kCommunication, values.numel(), values.scalar_type(), options.device);
  shares.narrow(0, own.offset, own.count).copy_(values.narrow(0, own.offset, own.count));
  replica->AllGatherInPlace(shares)->Wait();
  values.copy_(shares);
}

bool ShardedModel::Impl::DrawsHead(const CheckpointReader& reader) const {
  if (options.head != HeadKind::kScalar) return false;
  if (!replaces_head() && (!options.initialize_missing_head || config.head == HeadKind::kScalar)) return false;
  return !reader.tensors().contains(NameInFolder(ScalarHeadOf(config), config));
}

absl::Status ShardedModel::Impl::Read(const CheckpointReader* reader, int group, int64_t begin, const at::Tensor& out,
                                      uint64_t* hash) const {
  const ParameterGroup& parameters = layout.groups[group];
  for (const FlatPiece& piece : PiecesWithin(parameters, flat[group], begin, out.numel())) {
    ParameterSpec parameter = parameters.parameters[piece.parameter];
    const at::Tensor elements = out.narrow(0, piece.offset, piece.count);
    if (are_new_adapters) {
      const AdapterPart part = PartOf(parameter);
      if (part == AdapterPart::kA) DrawFactorA(options.seed, parameter, piece, elements);
      if (part != AdapterPart::kHead) continue;
      parameter = ScalarHeadOf(config);
    }
    const bool may_be_drawn = IsScalarHead(parameter) && DrawsHead(*reader);
    parameter.name = NameInFolder(parameter, config);
    if (may_be_drawn) {
      DrawPiece(options.seed, config.hidden_size, piece, elements);
    } else {
      ReadHash of_piece{.sum = 0, .first_position = FirstPosition(group, piece.parameter)};
      // What several shares have is counted once.
      const auto [rank, size] = options.tensor_parallel;
      const bool counts = hashes_folder && rank % (parameter.slice.has_value() ? parameter.slice->copies : size) == 0;
      QUARTET_RETURN_IF_ERROR(ReadPiece(*reader, parameter, piece, elements, counts ? &of_piece : nullptr));
      *hash += of_piece.sum;
    }
  }
  return absl::OkStatus();
}

at::Tensor ShardedModel::Impl::Positions(const PackedSequences& batch) const {
  const int64_t tokens = batch.ids_T.numel();
  TORCH_CHECK(batch.ids_T.dim() == 1 && batch.ids_T.scalar_type() == at::kLong,
              "token ids must be a flat tensor of 64-bit integers");
  const SequenceRows rows = batch.rows();
  TORCH_CHECK(rows.IsValid() && rows.rows() == tokens, "sequences must cover the ", tokens, " tokens, in order");
  std::vector<int64_t> positions;
  positions.reserve(tokens);
  for (size_t i = 0; i < rows.count(); ++i) {
    for (int64_t position = rows.SharedOf(i); position < rows.LengthOf(i); ++position) positions.push_back(position);
  }
  return at::tensor(positions, at::TensorOptions(at::kLong)).to(options.device);
}

ShardedModel::ShardedModel(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

ShardedModel::~ShardedModel() { impl_->DropPending(); }

absl::StatusOr<std::unique_ptr<ShardedModel>> ShardedModel::Load(const std::string& folder,
                                                                 const ShardedModelOptions& options,
                                                                 ProcessGroup* group, Ledger* ledger) {
  auto impl = std::make_unique<Impl>();
  impl->world = group;
  impl->shard = group;
  return Load(folder, options, ledger, std::move(impl));
}

absl::StatusOr<std::unique_ptr<ShardedModel>> ShardedModel::Load(const std::string& folder,
                                                                 const ShardedModelOptions& options, Mesh* mesh,
                                                                 Ledger* ledger) {
  auto impl = std::make_unique<Impl>();
  impl->world = &mesh->world();
  impl->shard = &mesh->shard();
  if (mesh->replica().size() > 1) impl->replica = &mesh->replica();
  return Load(folder, options, ledger, std::move(impl));
}

absl::StatusOr<std::unique_ptr<ShardedModel>> ShardedModel::Load(const std::string& folder,
                                                                 const ShardedModelOptions& options, Ledger* ledger,
                                                                 std::unique_ptr<Impl> impl) {
  QUARTET_RETURN_IF_ERROR(CheckOptions(options));
  QUARTET_CHECK(options.tensor_parallel.size == 1 || impl->world->size() == 1) << "shares are not sharded";
  if (impl->replica != nullptr && options.zero_stage == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("zero_stage 0 shards nothing: shard_size must be the number of ranks, ", impl->world->size()));
  }
  impl->folder = folder;
  impl->options = options;
  impl->ledger = ledger;
  const auto open = [&folder](Impl* model) { return OpenModel(folder, model); };
  if (!IsAdapterFolder(folder) && !options.lora.has_value()) return Read(std::move(impl), open);

  auto adapters = std::make_unique<Impl>();
  adapters->folder = folder;
  adapters->options = options;
  adapters->options.zero_stage = options.zero_stage == 0 ? 0 : 2;
  adapters->options.offload_param = false;
  adapters->world = impl->world;
  adapters->shard = impl->shard;
  adapters->replica = impl->replica;
  adapters->ledger = ledger;
  impl->hashes_folder = true;
  impl->options.trainable = false;
  impl->options.adam_offload = false;
  QUARTET_ASSIGN_OR_RETURN(std::unique_ptr<ShardedModel> model, Read(std::move(impl), open));
  const Impl& base = *model->impl_;
  QUARTET_ASSIGN_OR_RETURN(model->impl_->adapters, Read(std::move(adapters), [&base](Impl* of_adapters) {
                             return OpenAdaptersOf(base, of_adapters);
                           }));
  return model;
}

absl::StatusOr<std::unique_ptr<CheckpointReader>> ShardedModel::OpenModel(const std::string& folder, Impl* impl) {
  Impl& model = *impl;
  const ShardedModelOptions& options = model.options;
  QUARTET_ASSIGN_OR_RETURN(model.config, ReadTrainedConfig(folder, options.lora, options.head));
  QUARTET_RETURN_IF_ERROR(CheckHead(model.config, folder, options.head));
  if (model.config.lora.has_value()) model.folder = model.config.lora->base_folder;
  if (!options.scalar_head.empty()) model.config.scalar_head = options.scalar_head;
  std::unique_ptr<CheckpointReader> reader;  // null on the meta device
  if (!options.device.is_meta()) {
    QUARTET_ASSIGN_OR_RETURN(reader, CheckpointReader::Open(model.folder));
    model.file_stamps = StampsOf(*reader);
  }
  QUARTET_RETURN_IF_ERROR(CheckTensorParallel(model.config, options.tensor_parallel.size));
  model.layout = ShareOfLayout(model.config, options.head, options.tensor_parallel);
  model.config = ShareOfConfig(model.config, options.tensor_parallel.size);
  if (options.head == HeadKind::kScalar && reader != nullptr && !model.replaces_head()) {
    QUARTET_RETURN_IF_ERROR(CheckScalarHead(model.config, model.folder, *reader));
  }
  if (!model.logs() || reader == nullptr) return reader;
  LogUnread(*reader, model.layout, model.config, model.folder);
  if (model.DrawsHead(*reader) && !model.replaces_head()) {
    QUARTET_LOG(kInfo) << model.folder << ": there is no " << model.config.scalar_head
                       << ".weight; the scalar head begins at random weights, drawn with seed " << options.seed;
  }
  return reader;
}

absl::StatusOr<std::unique_ptr<ShardedModel>> ShardedModel::Read(std::unique_ptr<Impl> impl, const OpenFolder& open) {
  Impl& model = *impl;
  const ShardedModelOptions& options = model.options;
  if (options.zero_stage == 0 || (options.zero_stage == 2 && !options.trainable)) {
    QUARTET_ASSIGN_OR_RETURN(model.alone, MakeLoneGroup(options.device));
    model.shard = model.alone.get();
    model.replica = model.world->size() > 1 ? model.world : nullptr;
  }
  const int64_t element_bytes = static_cast<int64_t>(c10::elementSize(options.compute_dtype));
  const std::string what = "loading " + model.folder;

  // Whatever happens to this rank's part, all ranks meet below before the first other collective.
  auto read = [&]() -> absl::Status {
    QUARTET_ASSIGN_OR_RETURN(const std::unique_ptr<CheckpointReader> reader, open(&model));
    const auto& groups = model.layout.groups;
    for (const ParameterGroup& group : groups) {
      model.flat.push_back(MakeFlatGroup(group, element_bytes, model.shard->size(), model.replicas()));
    }
    model.compute_weights = model.ChooseComputeWeights();
    std::vector<at::Tensor> frozen;
    if (!options.trainable) frozen = model.NewBuffers(model.shard_tier());
    for (int g = 0; g < static_cast<int>(groups.size()); ++g) {
      const FlatGroup& flat = model.flat[g];
      model.groups.push_back(options.trainable ? model.NewTrainedGroup(g) : ShardedGroup{frozen[g], frozen[g], {}});
      for (const FlatPiece& piece : PiecesWithin(groups[g], flat, model.shard_begin(g), flat.shard)) {
        model.parameter_shards.push_back({g, piece.parameter, piece.begin, piece.count, piece.offset});
      }

      // No two ranks read the same, also where they will keep the same.
      if (options.device.is_meta()) continue;
      const OwnedRange range = model.Owned(g, model.world->rank());
      QUARTET_RETURN_IF_ERROR(model.Read(reader.get(), g, range.begin,
                                         model.groups[g].shard.narrow(0, range.offset, range.count),
                                         &model.folder_hash));
      if (model.logs()) ReportLoading("reading weights", g + 1, static_cast<int64_t>(groups.size()));
    }
    return absl::OkStatus();
  };

  at::NoGradGuard no_grad;
  try {
    QUARTET_RETURN_IF_ERROR(AgreeOnStatus(*model.world,
                                          WithoutDeadline(*model.world, options.device, what,
                                                          [&] {
                                                            try {
                                                              return read();
                                                            } catch (const std::exception& error) {
                                                              return StatusOf(error, what, *model.ledger);
                                                            }
                                                          }),
                                          options.device));
    for (int g = 0; g < static_cast<int>(model.groups.size()); ++g) {
      model.CompleteFromOwners(g, model.groups[g].shard);
      model.RefreshComputeWeights(g);
    }
    if (model.hashes_folder) model.folder_hash = SumOverRanks(*model.world, options.device, model.folder_hash);
  } catch (const std::exception& error) {
    return absl::UnavailableError(absl::StrCat(what, ": ", error.what()));
  }
  return std::unique_ptr<ShardedModel>(new ShardedModel(std::move(impl)));
}

const ModelConfig& ShardedModel::config() const { return impl_->config; }
const ParameterLayout& ShardedModel::layout() const { return impl_->layout; }
const ShardedModelOptions& ShardedModel::options() const { return impl_->options; }
int64_t ShardedModel::vocabulary() const {
  const ModelConfig& config = impl_->config;
  const ShardedModelOptions& options = impl_->options;
  const VocabularyRows rows = VocabularyRowsOf(config, options.tensor_parallel);
  const int64_t tokens = options.vocabulary > 0 ? options.vocabulary : config.vocab_size;
  return std::clamp<int64_t>(tokens - rows.begin, 0, rows.count);
}

ProcessGroup& ShardedModel::process_group() { return *impl_->world; }

Ledger& ShardedModel::ledger() { return *impl_->ledger; }

GatheredGroup ShardedModel::Gather(int group, int prefetch) { return impl_->Gather(group, prefetch); }

void ShardedModel::Forward(const PackedSequences& batch,
                           const std::function<void(const at::Tensor&, const at::Tensor&)>& use, bool with_adapters) {
  Impl& model = *impl_;
  QUARTET_CHECK(model.options.tensor_parallel.size == 1) << "a share of a model has no forward of its own";
  at::NoGradGuard no_grad;
  const MemoryScope activations(model.ledger, MemoryCategory::kActivations);
  try {
    const at::Tensor positions = model.Positions(batch);
    const bool empty = positions.numel() == 0;
    const int blocks = static_cast<int>(model.config.num_hidden_layers);
    const PackedCausalAttention attention(batch.rows());
    RotaryTable rotary;
    if (!empty) rotary = MakeRotaryTable(model.config, positions, model.state_dtype());
    const at::Tensor ids = batch.ids_T.to(model.options.device);
    auto next_of = [&](int block) {
      return block + 1 < blocks ? model.layout.block_group(block + 1) : model.layout.head_group;
    };
    at::Tensor hidden;
    {
      GatheredGroup group = model.Gather(0, next_of(-1));
      if (!empty) hidden = Stem(model.config, group.tensors()[ParameterLayout::embedding], ids);
    }
    for (int b = 0; b < blocks; ++b) {
      const int g = model.layout.block_group(b);
      GatheredGroup group = model.Gather(g, next_of(b));
      if (empty) continue;
      const TraceScope span("forward block ", b);
      BlockWeights weights(model.layout.groups[g], group.tensors());
      if (with_adapters) Adapt(g, &weights);
      hidden = DecoderBlock(model.config, weights, rotary, attention, hidden);
    }
    GatheredGroup head = model.Gather(model.layout.head_group, -1);
    if (!empty) {
      const TraceScope span("head");
      hidden = FinalNorm(model.config, model.options.head, head.tensors()[model.layout.final_norm], hidden);
      const MemoryScope logits(model.ledger, MemoryCategory::kLogits);
      use(hidden, model.has_adapters_head() ? model.AdaptersHead() : head.tensors()[model.layout.head]);
    }
  } catch (...) {
    model.DropPending();
    throw;
  }
}

const std::vector<ParameterShard>& ShardedModel::parameter_shards() const { return impl_->parameter_shards; }
const at::Tensor& ShardedModel::shard(int group) const { return impl_->groups[group].shard; }

OwnedRange ShardedModel::owned(int group, int rank) const { return impl_->Owned(group, rank); }
void ShardedModel::CompleteFromOwners(int group, const at::Tensor& values) { impl_->CompleteFromOwners(group, values); }

std::vector<at::Tensor> ShardedModel::Views(int group, const at::Tensor& buffer) const {
  return impl_->Views(group, buffer);
}

ComputeWeights ShardedModel::Impl::ChooseComputeWeights() const {
  const bool types_equal = shard_dtype() == options.compute_dtype;
  const bool on_device = shard_tier() == MemoryTier::kDevice;
  if (options.zero_stage != 3 || (shard->size() == 1 && types_equal && on_device)) {
    return types_equal && on_device ? ComputeWeights::kWhole : ComputeWeights::kWholeCopy;
  }
  const bool copies = options.adam_offload && !(options.offload_param && types_equal);
  return copies ? ComputeWeights::kGatheredFromCopies : ComputeWeights::kGatheredFromShards;
}

ShardedGroup ShardedModel::Impl::NewTrainedGroup(int group) const {
  const auto zeros = [&](MemoryTier tier, int64_t numel, at::ScalarType dtype) {
    return Zeros(tier, MemoryCategory::kParameters, numel, dtype);
  };
  ShardedGroup weights;
  if (!gathers()) weights.compute = zeros(MemoryTier::kDevice, flat[group].total, options.compute_dtype);
  if (compute_weights == ComputeWeights::kWhole) {
    weights.shard = OwnShard(group, weights.compute);
    return weights;
  }
  weights.shard = zeros(shard_tier(), flat[group].shard, shard_dtype());
  if (compute_weights == ComputeWeights::kGatheredFromShards) weights.compute = weights.shard;
  if (compute_weights == ComputeWeights::kGatheredFromCopies) {
    const MemoryTier tier = options.offload_param ? MemoryTier::kHost : MemoryTier::kDevice;
    weights.compute = zeros(tier, flat[group].shard, options.compute_dtype);
  }
  return weights;
}

std::vector<at::Tensor> ShardedModel::Impl::NewBuffers(MemoryTier tier) const {
  // One block of memory: few of its pages are too near to an end to be huge.
  constexpr int64_t kAlignment = 256;
  const int64_t step = kAlignment / static_cast<int64_t>(c10::elementSize(shard_dtype()));
  std::vector<int64_t> begins;
  int64_t numel = 0;
  for (int g = 0; g < static_cast<int>(flat.size()); ++g) {
    begins.push_back(numel);
    numel += RoundUp(flat[g].shard, step);
  }
  const at::Tensor block = Zeros(tier, MemoryCategory::kParameters, numel, shard_dtype());
  std::vector<at::Tensor> buffers;
  for (int g = 0; g < static_cast<int>(flat.size()); ++g) {
    buffers.push_back(block.narrow(0, begins[g], flat[g].shard));
  }
  return buffers;
}

bool ShardedModel::stages_apart() const { return impl_->host_is_apart() && !impl_->shard_is_apart(); }

std::vector<at::Tensor> ShardedModel::NewStagedBuffers() const {
  return impl_->NewBuffers(stages_apart() ? MemoryTier::kHost : impl_->shard_tier());
}

std::vector<at::Tensor> ShardedModel::SwapWeights(std::vector<at::Tensor> staged) {
  Impl& model = *impl_;
  if (!stages_apart()) return SwapShards(std::move(staged));
  const at::NoGradGuard no_grad;
  model.DropPending();
  if (!model.groups.front().shard.defined()) SwapShards(model.NewBuffers(model.shard_tier()));
  for (size_t g = 0; g < staged.size(); ++g) model.groups[g].shard.copy_(staged[g]);
  return staged;
}

std::vector<at::Tensor> ShardedModel::SwapShards(std::vector<at::Tensor> buffers) {
  Impl& model = *impl_;
  QUARTET_CHECK(!model.options.trainable) << "a trainable model's weights change by its optimizer only";
  QUARTET_CHECK(buffers.size() == model.groups.size()) << buffers.size() << " buffers";
  model.DropPending();
  for (int g = 0; g < static_cast<int>(buffers.size()); ++g) {
    QUARTET_CHECK(buffers[g].numel() == model.flat[g].shard && buffers[g].scalar_type() == model.shard_dtype())
        << "buffer of group " << g;
    // A frozen model computes with, or gathers from, the shard itself.
    model.groups[g].compute = buffers[g];
    std::swap(model.groups[g].shard, buffers[g]);
  }
  if (!buffers.front().defined()) buffers.clear();
  return buffers;
}

void ShardedModel::ReleaseShards() {
  Impl& model = *impl_;
  QUARTET_CHECK(!model.options.trainable) << "a trainable model's weights have no other copy";
  model.DropPending();
  for (ShardedGroup& weights : model.groups) weights = {};
}

absl::StatusOr<uint64_t> ShardedModel::ReadShards(const std::vector<at::Tensor>& buffers) const {
  uint64_t hash = 0;
  if (impl_->options.device.is_meta()) return hash;
  const at::NoGradGuard no_grad;
  QUARTET_ASSIGN_OR_RETURN(const std::unique_ptr<CheckpointReader> reader, CheckpointReader::Open(impl_->folder));
  // What adapters belong to is told by its hash.
  if (impl_->adapters == nullptr && StampsOf(*reader) != impl_->file_stamps) {
    return absl::FailedPreconditionError(
        absl::StrCat("the weights in ", impl_->folder,
                     " have changed since they were loaded: start what reads them again, with the weights as they "
                     "are to be"));
  }
  for (int g = 0; g < static_cast<int>(buffers.size()); ++g) {
    QUARTET_RETURN_IF_ERROR(impl_->Read(reader.get(), g, impl_->shard_begin(g), buffers[g], &hash));
  }
  return hash;
}

}  // namespace quartet
