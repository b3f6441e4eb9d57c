#include "core/zero/sharded_model.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <numbers>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/logging.h"
#include "core/base/status_macros.h"
#include "core/comm/agreement.h"
#include "core/safetensors/reader.h"
#include "core/zero/accounted_tensor.h"
#include "core/zero/catch_exceptions.h"
#include "core/zero/sharded_model_impl.h"

namespace quartet {
namespace {

// Elements read from a file at a time: what a rank holds beside its shard while it loads.
constexpr int64_t kReadElements = 1 << 20;

std::string ShapeName(const std::vector<int64_t>& shape) { return absl::StrCat("[", absl::StrJoin(shape, ", "), "]"); }

absl::StatusOr<at::ScalarType> ScalarTypeOf(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF32:
      return at::kFloat;
    case Dtype::kBF16:
      return at::kBFloat16;
    case Dtype::kF16:
      return at::kHalf;
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("type ", std::string(DtypeName(dtype)), " cannot be a parameter; allowed: F32, BF16, F16"));
  }
}

// Reads the elements of `piece` into `out` (flat, of piece.count elements, any type and device).
absl::Status ReadPiece(const CheckpointReader& reader, const ParameterSpec& parameter, const FlatPiece& piece,
                       const at::Tensor& out) {
  auto found = reader.tensors().find(parameter.name);
  const std::string files = absl::StrJoin(reader.files(), ", ");
  if (found == reader.tensors().end()) {
    return absl::NotFoundError(absl::StrCat(files, ": tensor ", parameter.name, " is missing"));
  }
  const TensorInfo& info = found->second;
  const std::string where = absl::StrCat(reader.files()[info.file], ": tensor ", parameter.name);
  if (info.shape != parameter.shape) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, " has shape ", ShapeName(info.shape), ", the model needs ", ShapeName(parameter.shape)));
  }
  auto dtype = ScalarTypeOf(info.dtype);
  if (!dtype.ok()) return absl::InvalidArgumentError(absl::StrCat(where, ": ", dtype.status().message()));
  std::vector<char> bytes(std::min(piece.count, kReadElements) * DtypeSize(info.dtype));
  for (int64_t done = 0; done < piece.count; done += kReadElements) {
    const int64_t count = std::min(piece.count - done, kReadElements);
    QUARTET_RETURN_IF_ERROR(reader.ReadRange(parameter.name, piece.begin + done, count, bytes.data()));
    out.narrow(0, done, count).copy_(at::from_blob(bytes.data(), {count}, at::TensorOptions(*dtype)));
  }
  return absl::OkStatus();
}

// SplitMix64's output function: a bijection of 64-bit numbers that passes for random.
uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// Draws element `position` from N(0, 1) by Box and Muller's transform: a function of its arguments alone, so that every
// world size draws the same values.
double NormalAt(uint64_t seed, int64_t position) {
  const uint64_t key = Mix(seed) ^ (2 * static_cast<uint64_t>(position));
  const double u = (static_cast<double>(Mix(key) >> 11) + 1) * 0x1p-53;  // (0, 1]
  const double v = static_cast<double>(Mix(key ^ 1) >> 11) * 0x1p-53;
  return std::sqrt(-2 * std::log(u)) * std::cos(2 * std::numbers::pi * v);
}

void InitializeHead(uint64_t seed, int64_t hidden_size, const FlatPiece& piece, const at::Tensor& out) {
  std::vector<float> values(piece.count);
  const double deviation = 1 / std::sqrt(static_cast<double>(hidden_size + 1));
  for (int64_t i = 0; i < piece.count; ++i) {
    values[i] = static_cast<float>(deviation * NormalAt(seed, piece.begin + i));
  }
  out.copy_(at::from_blob(values.data(), {piece.count}, at::TensorOptions(at::kFloat)));
}

// Says which tensors of the folder the model has no place for.
void LogUnread(const CheckpointReader& reader, const ParameterLayout& layout, const std::string& folder) {
  std::set<std::string> unread;
  for (const auto& [name, info] : reader.tensors()) unread.insert(name);
  for (const ParameterGroup& group : layout.groups) {
    for (const ParameterSpec& parameter : group.parameters) unread.erase(parameter.name);
  }
  if (unread.empty()) return;
  QUARTET_LOG(kInfo) << folder << ": left out " << unread.size() << " tensors that the model has no place for, such as "
                     << *unread.begin();
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
  return absl::OkStatus();
}

}  // namespace

GatheredGroup::State::~State() {
  tensors.clear();
  if (buffer.defined()) FreeStorage(buffer);
}

GatheredGroup::GatheredGroup(std::unique_ptr<State> state) : state_(std::move(state)) {}
GatheredGroup::GatheredGroup(GatheredGroup&&) noexcept = default;
GatheredGroup& GatheredGroup::operator=(GatheredGroup&&) noexcept = default;
GatheredGroup::~GatheredGroup() = default;
const std::vector<at::Tensor>& GatheredGroup::tensors() const { return state_->tensors; }

at::Tensor ShardedModel::Impl::OwnPart(int group, const at::Tensor& buffer) const {
  return buffer.narrow(0, process_group->rank() * flat[group].shard, flat[group].shard);
}

std::vector<at::Tensor> ShardedModel::Impl::Views(int group, const at::Tensor& buffer) const {
  std::vector<at::Tensor> views;
  const auto& parameters = layout.groups[group].parameters;
  for (size_t p = 0; p < parameters.size(); ++p) {
    views.push_back(buffer.narrow(0, flat[group].offsets[p], parameters[p].numel()).view(parameters[p].shape));
  }
  return views;
}

void ShardedModel::Impl::StartGather(int group) {
  if (!whole.empty()) return;
  at::NoGradGuard no_grad;
  Pending gather;
  gather.group = group;
  if (refill[group].defined()) {
    gather.buffer = std::exchange(refill[group], at::Tensor());
    RefillStorage(ledger, MemoryCategory::kGathered, gather.buffer);
  } else {
    gather.buffer =
        AccountedEmpty(ledger, MemoryCategory::kGathered, flat[group].total, options.compute_dtype, options.device);
  }
  try {
    const MemoryScope communication(ledger, MemoryCategory::kCommunication);
    OwnPart(group, gather.buffer).copy_(resident[group]);
    gather.work = process_group->AllGatherInPlace(gather.buffer);
  } catch (...) {
    FreeStorage(gather.buffer);
    throw;
  }
  pending = std::move(gather);
}

void ShardedModel::Impl::DropPending() noexcept {
  if (!pending.has_value()) return;
  try {
    pending->work->Wait();
  } catch (const std::exception&) {
    // The error that brought us here has the same cause and is on its way up already.
  }
  FreeStorage(pending->buffer);
  pending.reset();
}

GatheredGroup ShardedModel::Impl::Gather(int group, int prefetch) {
  auto state = std::make_unique<GatheredGroup::State>();
  if (!whole.empty()) {
    state->tensors = Views(group, whole[group]);
    return GatheredGroup(std::move(state));
  }
  if (pending.has_value() && pending->group != group) DropPending();
  if (!pending.has_value()) StartGather(group);
  state->buffer = pending->buffer;  // from here on freed with `state`
  std::unique_ptr<CollectiveWork> work = std::move(pending->work);
  pending.reset();
  work->Wait();
  at::NoGradGuard no_grad;
  state->tensors = Views(group, state->buffer);
  if (prefetch >= 0) StartGather(prefetch);
  return GatheredGroup(std::move(state));
}

void ShardedModel::Impl::RefreshWhole(int group) {
  if (whole.empty()) return;
  at::NoGradGuard no_grad;
  const bool shared = whole[group].dtype() == resident[group].dtype();
  if (resident_is_whole) {
    if (!shared) whole[group].copy_(resident[group]);
    return;
  }
  if (!shared) OwnPart(group, whole[group]).copy_(resident[group]);
  process_group->AllGatherInPlace(whole[group])->Wait();
}

int ShardedModel::Impl::FindParameter(int group, const std::string& name) const {
  const auto& parameters = layout.groups[group].parameters;
  for (size_t p = 0; p < parameters.size(); ++p) {
    if (parameters[p].name == name) return static_cast<int>(p);
  }
  return -1;
}

int ShardedModel::Impl::head_parameter() const {
  for (const char* name : {"score.weight", "lm_head.weight", "model.embed_tokens.weight"}) {
    const int found = FindParameter(layout.head_group, name);
    if (found >= 0) return found;
  }
  return -1;
}

at::Tensor ShardedModel::Impl::Positions(const PackedSequences& batch) const {
  const int64_t tokens = batch.ids_T.numel();
  TORCH_CHECK(batch.ids_T.dim() == 1 && batch.ids_T.scalar_type() == at::kLong,
              "token ids must be a flat tensor of 64-bit integers");
  TORCH_CHECK(tokens == 0 || (batch.starts.size() >= 2 && batch.starts.front() == 0 && batch.starts.back() == tokens),
              "sequence starts must go from 0 to the number of tokens, ", tokens);
  std::vector<int64_t> positions;
  positions.reserve(tokens);
  for (size_t i = 0; tokens > 0 && i + 1 < batch.starts.size(); ++i) {
    TORCH_CHECK(batch.starts[i] <= batch.starts[i + 1], "sequence starts must not fall");
    for (int64_t t = batch.starts[i]; t < batch.starts[i + 1]; ++t) positions.push_back(t - batch.starts[i]);
  }
  return at::tensor(positions, at::TensorOptions(at::kLong)).to(options.device);
}

ShardedModel::ShardedModel(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

ShardedModel::~ShardedModel() { impl_->DropPending(); }

absl::StatusOr<std::unique_ptr<ShardedModel>> ShardedModel::Load(const std::string& folder,
                                                                 const ShardedModelOptions& options,
                                                                 ProcessGroup* group, Ledger* ledger) {
  QUARTET_RETURN_IF_ERROR(CheckOptions(options));
  auto impl = std::make_unique<Impl>();
  Impl& model = *impl;
  model.folder = folder;
  model.options = options;
  model.process_group = group;
  model.ledger = ledger;
  const int64_t element_bytes = static_cast<int64_t>(c10::elementSize(options.compute_dtype));

  // Whatever happens to this rank's part, all ranks meet below before the first other collective.
  auto read = [&]() -> absl::Status {
    QUARTET_ASSIGN_OR_RETURN(model.config, ReadModelConfig(folder));
    QUARTET_ASSIGN_OR_RETURN(std::unique_ptr<CheckpointReader> reader, CheckpointReader::Open(folder));
    model.layout = MakeParameterLayout(model.config, options.head);
    if (group->rank() == 0) LogUnread(*reader, model.layout, folder);
    const auto& groups = model.layout.groups;
    model.resident_is_whole = options.zero_stage == 0 || (options.zero_stage == 2 && !options.trainable);
    const bool types_equal = model.resident_dtype() == options.compute_dtype;
    const bool keeps_whole = options.zero_stage != 3 || (group->size() == 1 && types_equal);
    model.refill.resize(groups.size());
    for (int g = 0; g < static_cast<int>(groups.size()); ++g) {
      model.flat.push_back(MakeFlatGroup(groups[g], element_bytes, group->size()));
      const FlatGroup& flat = model.flat[g];
      auto zeros = [&](int64_t numel, at::ScalarType dtype) {
        return AccountedZeros(ledger, MemoryCategory::kParameters, numel, dtype, options.device);
      };
      if (keeps_whole) model.whole.push_back(zeros(flat.total, options.compute_dtype));
      at::Tensor& resident = model.resident.emplace_back();
      if (keeps_whole && types_equal) {
        resident = model.resident_is_whole ? model.whole[g] : model.OwnPart(g, model.whole[g]);
      } else {
        resident = zeros(model.resident_count(g), model.resident_dtype());
      }
      for (const FlatPiece& piece : PiecesWithin(groups[g], flat, model.resident_begin(g), model.resident_count(g))) {
        model.pieces.push_back({g, piece.parameter, piece.begin, piece.count, piece.offset});
      }

      // Every rank reads its own part, also where all will keep the whole.
      const at::Tensor own = model.resident_is_whole ? model.OwnPart(g, resident) : resident;
      for (const FlatPiece& piece : PiecesWithin(groups[g], flat, group->rank() * flat.shard, flat.shard)) {
        const ParameterSpec& parameter = groups[g].parameters[piece.parameter];
        const at::Tensor out = own.narrow(0, piece.offset, piece.count);
        if (parameter.name == "score.weight" && options.initialize_missing_head &&
            reader->tensors().count(parameter.name) == 0) {
          InitializeHead(options.seed, model.config.hidden_size, piece, out);
        } else {
          QUARTET_RETURN_IF_ERROR(ReadPiece(*reader, parameter, piece, out));
        }
      }
    }
    return absl::OkStatus();
  };

  at::NoGradGuard no_grad;
  try {
    absl::Status mine;
    try {
      mine = read();
    } catch (const std::exception& error) {
      mine = StatusOf(error, "loading " + folder, *ledger);
    }
    QUARTET_RETURN_IF_ERROR(AgreeOnStatus(*group, mine, options.device));
    for (int g = 0; g < static_cast<int>(model.resident.size()); ++g) {
      if (model.resident_is_whole) group->AllGatherInPlace(model.resident[g])->Wait();
      model.RefreshWhole(g);
    }
  } catch (const std::exception& error) {
    return absl::UnavailableError(absl::StrCat("loading ", folder, ": ", error.what()));
  }
  return std::unique_ptr<ShardedModel>(new ShardedModel(std::move(impl)));
}

const ModelConfig& ShardedModel::config() const { return impl_->config; }
const ParameterLayout& ShardedModel::layout() const { return impl_->layout; }
const ShardedModelOptions& ShardedModel::options() const { return impl_->options; }
ProcessGroup& ShardedModel::process_group() { return *impl_->process_group; }
Ledger& ShardedModel::ledger() { return *impl_->ledger; }

GatheredGroup ShardedModel::Gather(int group, int prefetch) { return impl_->Gather(group, prefetch); }

void ShardedModel::Forward(const PackedSequences& batch,
                           const std::function<void(const at::Tensor&, const at::Tensor&)>& use) {
  Impl& model = *impl_;
  at::NoGradGuard no_grad;
  const MemoryScope activations(model.ledger, MemoryCategory::kActivations);
  try {
    const at::Tensor positions = model.Positions(batch);
    const bool empty = positions.numel() == 0;
    const int blocks = static_cast<int>(model.config.num_hidden_layers);
    const PackedCausalAttention attention(batch.starts);
    RotaryTable rotary;
    if (!empty) rotary = MakeRotaryTable(model.config, positions, model.state_dtype());
    const at::Tensor ids = batch.ids_T.to(model.options.device);
    auto next_of = [&](int block) {
      return block + 1 < blocks ? model.layout.block_group(block + 1) : model.layout.head_group;
    };
    at::Tensor hidden;
    {
      const int embedding = model.FindParameter(0, "model.embed_tokens.weight");
      GatheredGroup group = model.Gather(0, next_of(-1));
      if (!empty) hidden = Embed(group.tensors()[embedding], ids);
    }
    for (int b = 0; b < blocks; ++b) {
      const int g = model.layout.block_group(b);
      GatheredGroup group = model.Gather(g, next_of(b));
      if (empty) continue;
      hidden = DecoderBlock(model.config, MakeBlockWeights(model.layout.groups[g], group.tensors()), rotary, attention,
                            hidden);
    }
    GatheredGroup head = model.Gather(model.layout.head_group, -1);
    if (!empty) {
      hidden = RmsNorm(hidden, head.tensors()[model.norm_parameter()], model.config.rms_norm_eps);
      const MemoryScope logits(model.ledger, MemoryCategory::kLogits);
      use(hidden, head.tensors()[model.head_parameter()]);
    }
  } catch (...) {
    model.DropPending();
    throw;
  }
}

const std::vector<ResidentPiece>& ShardedModel::pieces() const { return impl_->pieces; }
const at::Tensor& ShardedModel::resident(int group) const { return impl_->resident[group]; }

std::vector<at::Tensor> ShardedModel::NewResidentBuffers() const {
  std::vector<at::Tensor> buffers;
  for (const at::Tensor& resident : impl_->resident) {
    buffers.push_back(AccountedZeros(impl_->ledger, MemoryCategory::kParameters, resident.numel(),
                                     resident.scalar_type(), impl_->options.device));
  }
  return buffers;
}

void ShardedModel::SwapResident(std::vector<at::Tensor> buffers) {
  Impl& model = *impl_;
  QUARTET_CHECK(!model.options.trainable) << "a trainable model's weights change by its optimizer only";
  QUARTET_CHECK(buffers.size() == model.resident.size()) << buffers.size() << " buffers";
  for (size_t g = 0; g < buffers.size(); ++g) {
    QUARTET_CHECK(buffers[g].numel() == model.resident[g].numel() && buffers[g].dtype() == model.resident[g].dtype())
        << "buffer of group " << g;
  }
  model.DropPending();
  model.resident = std::move(buffers);
  // A frozen model that is never gathered computes with its resident buffers themselves.
  if (!model.whole.empty()) model.whole = model.resident;
}

}  // namespace quartet
