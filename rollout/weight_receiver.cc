#include "rollout/weight_receiver.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "core/base/division.h"
#include "core/base/hash_text.h"
#include "core/base/status_macros.h"
#include "core/errors/exceptions.h"
#include "core/hardware/bf16.h"
#include "core/service/rpc/call_deadline.h"
#include "core/service/rpc/credentials.h"
#include "core/service/rpc/status_conversion.h"
#include "core/weights/tensor_hash.h"
#include "core/weights/tensor_range.h"
#include "core/weights/wire/chunk_message.h"
#include "proto/policy_trainer.grpc.pb.h"

namespace quartet {
namespace {

// Of a connection, two chunks: 2 GiB/s over a round trip of a millisecond, and memory that no plan has to know.
constexpr int kMostUnreadBytes = 2 << 20;

// Where elements of one of the manifest's tensors go.
struct Destination {
  int32_t tensor;
  StridedRange elements;
  char* data;
};

void StoreElements(const char* from, Dtype from_type, int64_t count, char* to, Dtype to_type) {
  if (from_type == to_type) {
    std::memcpy(to, from, count * DtypeSize(to_type));
  } else if (from_type == Dtype::kBF16) {
    for (int64_t i = 0; i < count; ++i) {
      uint16_t narrow;
      std::memcpy(&narrow, from + i * 2, 2);
      const float wide = FromBf16(narrow);
      std::memcpy(to + i * 4, &wide, 4);
    }
  } else {
    for (int64_t i = 0; i < count; ++i) {
      float wide;
      std::memcpy(&wide, from + i * 4, 4);
      const uint16_t narrow = ToBf16(wide);
      std::memcpy(to + i * 2, &narrow, 2);
    }
  }
}

// What one source has been asked for and has sent so far.
class SourcePull {
 public:
  SourcePull(std::string endpoint, size_t num_tensors) : endpoint_(std::move(endpoint)), hashes_(num_tensors) {}

  void Want(const Destination& destination) { wanted_.push_back(destination); }
  bool wanted() const { return !wanted_.empty(); }
  // The same in at most `parts` of about the same length, each without an element of nobody's.
  std::vector<SourcePull> Divided(int64_t parts, int64_t element_bytes) const {
    int64_t numel = 0;
    for (const Destination& destination : wanted_) numel += destination.elements.numel();
    const int64_t most = std::max<int64_t>(1, CeilDivide(numel, parts));
    std::vector<SourcePull> divided;
    int64_t room = 0;  // in the last one
    for (const Destination& destination : wanted_) {
      for (int64_t done = 0; done < destination.elements.numel();) {
        if (room == 0) {
          divided.emplace_back(endpoint_, hashes_.size());
          room = most;
        }
        const StridedRange part = NextPart(destination.elements, done, room);
        divided.back().Want({destination.tensor, part, destination.data + done * element_bytes});
        done += part.numel();
        room -= part.numel();
      }
    }
    return divided;
  }
  const std::string& endpoint() const { return endpoint_; }
  int64_t bytes() const { return bytes_; }
  const std::vector<uint64_t>& hashes() const { return hashes_; }

  absl::Status Run(grpc::ClientContext* context, const WeightManifest& manifest, Dtype wire, Dtype resident,
                   const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
    PullWeightsRequest request;
    request.set_version(manifest.version());
    for (const Destination& destination : wanted_) {
      *request.add_ranges() = MakeTensorRange(destination.tensor, destination.elements);
    }
    // As PolicyTrainer::Stub does it, but for messages that stay in gRPC's buffers.
    static const std::string& name =
        *new std::string(absl::StrCat("/", PolicyTrainer::service_full_name(), "/PullWeights"));
    const std::shared_ptr<grpc::Channel> channel = MakeChannel(endpoint_, credentials, kMostUnreadBytes);
    const grpc::internal::RpcMethod method(name.c_str(), grpc::internal::RpcMethod::SERVER_STREAMING, channel);
    const std::unique_ptr<grpc::ClientReader<grpc::ByteBuffer>> reader(
        grpc::internal::ClientReaderFactory<grpc::ByteBuffer>::Create(channel.get(), method, context, request));
    absl::Status status;
    grpc::ByteBuffer message;
    while (status.ok() && reader->Read(&message)) status = Take(&message, manifest, wire, resident);
    if (!status.ok()) context->TryCancel();
    const absl::Status finished = FromGrpc(reader->Finish());
    QUARTET_RETURN_IF_ERROR(status);
    QUARTET_RETURN_IF_ERROR(Prefixed(Where(manifest), finished));
    if (current_ != wanted_.size()) {
      return absl::DataLossError(
          absl::StrCat(Where(manifest), ": the stream ended after ", current_, " of ", wanted_.size(), " ranges"));
    }
    return absl::OkStatus();
  }

 private:
  std::string Where(const WeightManifest& manifest) const {
    return absl::StrCat("source ", endpoint_, " of weight version ", manifest.version());
  }

  // Chunks come in the order of the ranges that were asked for, each a further part of the present range.
  absl::Status Take(grpc::ByteBuffer* message, const WeightManifest& manifest, Dtype wire, Dtype resident) {
    ChunkReader chunk(message);
    TensorRange range;
    int64_t bytes = 0;
    if (!chunk.ReadHead(&range, &bytes)) {
      return absl::DataLossError(absl::StrCat(Where(manifest), ": sent what is no WeightChunk"));
    }
    const int32_t tensor = range.tensor();
    const StridedRange sent = ElementsOf(range);
    const Destination* wanted = current_ < wanted_.size() ? &wanted_[current_] : nullptr;
    const int64_t left = wanted == nullptr ? 0 : wanted->elements.numel() - received_;
    if (wanted == nullptr || tensor != wanted->tensor || sent.count < 1 || sent.rows > left / sent.count ||
        sent != NextPart(wanted->elements, received_, sent.numel())) {
      return absl::DataLossError(absl::StrCat(Where(manifest), ": sent elements ", sent.begin, " + ", sent.count,
                                              sent.rows == 1 ? "" : absl::StrCat(" in each of ", sent.rows, " rows"),
                                              " of tensor ", tensor, ", which were not asked for next"));
    }
    const int64_t size = DtypeSize(wire);
    int64_t stored = 0, count = 0;
    const char* elements = nullptr;
    while (bytes == sent.numel() * size && chunk.Next(size, &elements, &count)) {
      bytes_ += count * size;
      while (count > 0) {
        const int64_t row = stored / sent.count, in_row = stored % sent.count,
                      run = std::min(count, sent.count - in_row);
        hashes_[tensor] += HashElements(elements, wire, sent.begin + row * sent.stride + in_row, run);
        StoreElements(elements, wire, run, wanted->data + (received_ + stored) * DtypeSize(resident), resident);
        stored += run;
        elements += run * size;
        count -= run;
      }
    }
    if (stored != sent.numel()) {
      return absl::DataLossError(absl::StrCat(Where(manifest), ": ", bytes, " bytes for ", sent.numel(),
                                              " elements of ", manifest.tensors(tensor).name()));
    }
    received_ += sent.numel();
    if (received_ == wanted->elements.numel()) {
      ++current_;
      received_ = 0;
    }
    return absl::OkStatus();
  }

  const std::string endpoint_;
  std::vector<Destination> wanted_;
  std::vector<uint64_t> hashes_;
  size_t current_ = 0;    // range that is being received
  int64_t received_ = 0;  // elements of it
  int64_t bytes_ = 0;
};

}  // namespace

absl::Status CheckKind(const WeightManifest& manifest, const AdapterConfig* adapters, uint64_t base_hash) {
  const auto refuse = [&manifest](const auto&... why) {
    return absl::FailedPreconditionError(absl::StrCat("weights of version ", manifest.version(), why...));
  };
  if (adapters == nullptr) {
    if (!manifest.has_adapters()) return absl::OkStatus();
    return refuse(" are adapters, and this rollout takes whole models: it was started without actor.lora");
  }
  if (!manifest.has_adapters()) {
    return refuse(" are a whole model's, and this rollout takes adapters of ", adapters->base_folder, " alone");
  }
  const AdapterManifest& sent = manifest.adapters();
  if (sent.base_hash() != base_hash) {
    return refuse(" are adapters of another model (its hash: ", HashText(sent.base_hash()),
                  ") than the rollout has in ", adapters->base_folder, " (", HashText(base_hash), ")");
  }
  if (sent.scale() != adapters->scale) {
    return refuse(" are adapters that are added times ", sent.scale(), ", and the rollout adds its own times ",
                  adapters->scale, ": actor.lora.alpha, r or use_rslora differ");
  }
  return absl::OkStatus();
}

absl::Status CheckManifest(const WeightManifest& manifest, const std::vector<ParameterSpec>& tensors,
                           uint64_t version_in_use, bool released) {
  const std::string who = absl::StrCat("weight version ", manifest.version());
  if (released && manifest.version() < version_in_use) {
    return absl::FailedPreconditionError(
        absl::StrCat(who, " is older than version ", version_in_use, ", whose weights were released"));
  }
  if (manifest.version() == 0 || (!released && manifest.version() <= version_in_use)) {
    return absl::FailedPreconditionError(
        absl::StrCat(who, " is not newer than version ", version_in_use, ", which is in use"));
  }
  if (manifest.dtype() != "BF16" && manifest.dtype() != "F32") {
    return absl::FailedPreconditionError(
        absl::StrCat(who, ": manifest.dtype is \"", manifest.dtype(), "\"; allowed: \"BF16\", \"F32\""));
  }
  absl::flat_hash_map<std::string, const TensorEntry*> published;
  for (const TensorEntry& entry : manifest.tensors()) {
    if (!published.emplace(entry.name(), &entry).second) {
      return absl::FailedPreconditionError(absl::StrCat(who, ": tensor ", entry.name(), " is listed twice"));
    }
  }
  for (const ParameterSpec& tensor : tensors) {
    const auto it = published.find(tensor.name);
    if (it == published.end()) {
      return absl::FailedPreconditionError(absl::StrCat(who, ": tensor ", tensor.name, " is missing"));
    }
    const std::vector<int64_t> shape(it->second->shape().begin(), it->second->shape().end());
    if (shape != tensor.stored_shape()) {
      return absl::FailedPreconditionError(absl::StrCat(who, ": tensor ", tensor.name, " has shape ", ShapeText(shape),
                                                        "; this model's is ", ShapeText(tensor.stored_shape())));
    }
    published.erase(it);
  }
  if (!published.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat(who, ": tensor ", published.begin()->first, " is not one of this model"));
  }

  std::vector<std::vector<std::pair<int64_t, int64_t>>> covered(manifest.tensors_size());
  for (const WeightSource& source : manifest.sources()) {
    for (const TensorRange& range : source.ranges()) {
      if (range.tensor() < 0 || range.tensor() >= manifest.tensors_size()) {
        return absl::FailedPreconditionError(absl::StrCat(who, ": source ", source.endpoint(),
                                                          " has a range of tensor ", range.tensor(), "; there are ",
                                                          manifest.tensors_size()));
      }
      const TensorEntry& entry = manifest.tensors(range.tensor());
      if (range.rows() > 1) {
        return absl::FailedPreconditionError(absl::StrCat(who, ": source ", source.endpoint(), " has a range of ",
                                                          range.rows(), " rows of ", entry.name(),
                                                          "; allowed: runs of elements"));
      }
      if (range.begin() < 0 || range.count() < 1 || range.begin() > NumelOf(entry.shape()) - range.count()) {
        return absl::FailedPreconditionError(absl::StrCat(who, ": source ", source.endpoint(), " has elements ",
                                                          range.begin(), " + ", range.count(), " of ", entry.name(),
                                                          ", which has ", NumelOf(entry.shape())));
      }
      covered[range.tensor()].emplace_back(range.begin(), range.count());
    }
  }
  for (int i = 0; i < manifest.tensors_size(); ++i) {
    std::sort(covered[i].begin(), covered[i].end());
    int64_t next = 0;
    for (const auto& [begin, count] : covered[i]) {
      if (begin != next) {
        return absl::FailedPreconditionError(absl::StrCat(who, ": element ", std::min(begin, next), " of ",
                                                          manifest.tensors(i).name(),
                                                          begin < next ? " has two sources" : " has no source"));
      }
      next = begin + count;
    }
    if (next != NumelOf(manifest.tensors(i).shape())) {
      return absl::FailedPreconditionError(
          absl::StrCat(who, ": element ", next, " of ", manifest.tensors(i).name(), " has no source"));
    }
  }
  return absl::OkStatus();
}

int PullConnections() {
  constexpr int kMost = 8;
  return std::clamp(static_cast<int>(std::thread::hardware_concurrency()) / 2, 1, kMost);
}

absl::StatusOr<PulledWeights> PullWeights(const WeightManifest& manifest, const std::vector<ParameterSpec>& tensors,
                                          const std::vector<StagedRange>& ranges, Dtype resident_dtype,
                                          const std::shared_ptr<grpc::ChannelCredentials>& credentials,
                                          const Deadline& deadline, int connections) {
  const Dtype wire = manifest.dtype() == "F32" ? Dtype::kF32 : Dtype::kBF16;
  absl::flat_hash_map<std::string, int32_t> index;
  for (int i = 0; i < manifest.tensors_size(); ++i) index[manifest.tensors(i).name()] = i;
  // By tensor and first element; the sources' ranges are disjoint.
  std::map<std::pair<int32_t, int64_t>, std::pair<int64_t, size_t>> owners;
  std::vector<SourcePull> pulls;
  for (int s = 0; s < manifest.sources_size(); ++s) {
    pulls.emplace_back(manifest.sources(s).endpoint(), manifest.tensors_size());
    for (const TensorRange& range : manifest.sources(s).ranges()) {
      owners[{range.tensor(), range.begin()}] = {range.count(), static_cast<size_t>(s)};
    }
  }
  for (const StagedRange& wanted : ranges) {
    const int32_t tensor = index.at(tensors[wanted.tensor].name);
    for (int64_t done = 0; done < wanted.elements.numel();) {
      const int64_t first = NextPart(wanted.elements, done, 1).begin;
      const auto owner = std::prev(owners.upper_bound({tensor, first}));
      const int64_t owned = ElementsBefore(wanted.elements, owner->first.second + owner->second.first);
      const StridedRange part = NextPart(wanted.elements, done, owned - done);
      pulls[owner->second.second].Want(
          {tensor, part, static_cast<char*>(wanted.data) + done * DtypeSize(resident_dtype)});
      done += part.numel();
    }
  }

  const auto sources = std::count_if(pulls.begin(), pulls.end(), [](const SourcePull& pull) { return pull.wanted(); });
  if (sources > 0 && connections > sources) {
    std::vector<SourcePull> divided;
    for (const SourcePull& pull : pulls) {
      for (SourcePull& part : pull.Divided(connections / sources, DtypeSize(resident_dtype))) {
        divided.push_back(std::move(part));
      }
    }
    pulls = std::move(divided);
  }

  // The first failure cancels the others.
  std::mutex mutex;
  absl::Status first_error;
  std::vector<grpc::ClientContext> contexts(pulls.size());
  std::vector<std::jthread> threads;
  for (size_t i = 0; i < pulls.size(); ++i) {
    if (!pulls[i].wanted()) continue;
    SetDeadline(&contexts[i], deadline);
    threads.emplace_back([&, i] {
      const absl::Status status =
          CatchAll([&] { return pulls[i].Run(&contexts[i], manifest, wire, resident_dtype, credentials); });
      if (status.ok()) return;
      const std::lock_guard lock(mutex);
      if (!first_error.ok()) return;
      first_error = status;
      for (size_t other = 0; other < contexts.size(); ++other) {
        if (other != i) contexts[other].TryCancel();
      }
    });
  }
  threads.clear();  // joins them
  QUARTET_RETURN_IF_ERROR(first_error);

  PulledWeights result;
  result.hashes.resize(manifest.tensors_size());
  for (const SourcePull& pull : pulls) {
    result.bytes += pull.bytes();
    for (size_t i = 0; i < result.hashes.size(); ++i) result.hashes[i] += pull.hashes()[i];
  }
  return result;
}

absl::Status CheckHashes(const WeightManifest& manifest, const std::vector<std::vector<uint64_t>>& ranks,
                         int ranks_per_model, const std::vector<int>& copies) {
  const auto all = static_cast<int>(ranks.size());
  for (int i = 0; i < manifest.tensors_size(); ++i) {
    const TensorEntry& tensor = manifest.tensors(i);
    const auto check = [&](int first, int last, uint64_t hash, uint64_t expected, const std::string& whose) {
      if (hash == expected) return absl::OkStatus();
      const std::string who = first == last            ? absl::StrCat("rank ", first, ": ")
                              : ranks_per_model == all ? ""
                                                       : absl::StrCat("ranks ", first, " to ", last, ": ");
      return absl::DataLossError(absl::StrCat(who, "weight version ", manifest.version(), ": tensor ", tensor.name(),
                                              " arrived with hash ", HashText(hash), ", ", whose, " ",
                                              HashText(expected), "; they are not taken over"));
    };
    constexpr char kPublished[] = "was published with";
    for (int model = 0; model < all; model += ranks_per_model) {
      const int last = model + ranks_per_model - 1;
      if (copies[i] == ranks_per_model) {
        for (int rank = model; rank <= last; ++rank) {
          QUARTET_RETURN_IF_ERROR(check(rank, rank, ranks[rank][i], tensor.hash(), kPublished));
        }
        continue;
      }
      uint64_t sum = 0;
      for (int rank = model; rank <= last; ++rank) {
        const int first = rank - (rank - model) % copies[i];
        if (rank == first) sum += ranks[rank][i];
        QUARTET_RETURN_IF_ERROR(
            check(rank, rank, ranks[rank][i], ranks[first][i], absl::StrCat("the same part on rank ", first, " with")));
      }
      QUARTET_RETURN_IF_ERROR(check(model, last, sum, tensor.hash(), kPublished));
    }
  }
  return absl::OkStatus();
}

}  // namespace quartet
