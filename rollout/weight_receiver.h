// Pulls a published version of the weights into staging memory and hashes what arrives. gRPC; no LibTorch.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/time/deadline.h"
#include "core/model/model_config.h"
#include "core/model/parameter_layout.h"
#include "core/safetensors/reader.h"
#include "proto/weights.pb.h"
#include "rollout/engine/engine.h"

namespace grpc {
class ChannelCredentials;
}  // namespace grpc

namespace quartet {

// FAILED_PRECONDITION, naming what is wrong: a version that is not above `version_in_use`, or, with `released`, where
// the weights of that version are gone, below it; an element type other than BF16 and F32; tensors that are missing,
// unknown, twice or of another shape than in `tensors`; ranges outside of their tensor, or that do not cover every
// element exactly once.
absl::Status CheckManifest(const WeightManifest& manifest, const std::vector<ParameterSpec>& tensors,
                           uint64_t version_in_use, bool released = false);

// That weights of `manifest` are of the kind that this rollout takes: whole models, or, where it has `adapters` of a
// model in their folder whose hash is `base_hash`, adapters of the same one that are added as those are.
// FAILED_PRECONDITION names what differs.
absl::Status CheckKind(const WeightManifest& manifest, const AdapterConfig* adapters, uint64_t base_hash);

struct PulledWeights {
  int64_t bytes = 0;  // received
  // By the manifest's tensors: the hash's sum over the elements that were pulled.
  std::vector<uint64_t> hashes;
};

// How many connections a pull has at once where there are fewer sources than that: one takes a core here and one at the
// source.
int PullConnections();

// Pulls everything that `ranges` wants (tensors as indices into `tensors`), by a connection a source or, of few
// sources, by several that divide what it has, `connections` together; all at once. Returns when all are done or one
// failed. Elements are converted to `resident_dtype` after hashing. The manifest must have passed CheckManifest.
//
// UNAVAILABLE or DEADLINE_EXCEEDED names the source's endpoint; DATA_LOSS a source that sends other ranges or fewer
// bytes than asked for. After an error the memory holds anything.
absl::StatusOr<PulledWeights> PullWeights(const WeightManifest& manifest, const std::vector<ParameterSpec>& tensors,
                                          const std::vector<StagedRange>& ranges, Dtype resident_dtype,
                                          const std::shared_ptr<grpc::ChannelCredentials>& credentials,
                                          const Deadline& deadline, int connections = PullConnections());

// DATA_LOSS names the first tensor whose hash is not the manifest's. `ranks` has what each rank pulled, by the
// manifest's tensors; each `ranks_per_model` neighbours have the model between them, and of a tensor `copies` of those
// the same part, each in turn: what the first of each has adds up to the hash, and the others have what it has.
absl::Status CheckHashes(const WeightManifest& manifest, const std::vector<std::vector<uint64_t>>& ranks,
                         int ranks_per_model, const std::vector<int>& copies);

}  // namespace quartet
