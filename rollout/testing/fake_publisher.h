// For tests: a policy trainer that publishes given weights, well or badly.
#pragma once

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/model/parameter_layout.h"
#include "core/weights/tensor_hash.h"
#include "core/weights/tensor_range.h"
#include "proto/policy_trainer.grpc.pb.h"

namespace quartet {

// Serves `values` (one buffer of elements a tensor) from several servers of this process. Each tensor is cut into one
// range a source, of different lengths.
class FakePublisher {
 public:
  enum class Fault {
    kNone,
    kFlipsABit,          // in the middle of the tensor `faulty_tensor`
    kSkipsAChunk,        // of the tensor `faulty_tensor`
    kEndsEarly,          // the stream ends well, half way
    kSendsAnotherRange,  // shifted by one element
    kBreaks,             // the stream ends with an error
  };

  FakePublisher(uint64_t version, Dtype dtype, std::vector<ParameterSpec> tensors,
                std::vector<std::vector<char>> values, int num_sources, int64_t chunk_elements = 1000)
      : dtype_(dtype), values_(std::move(values)), chunk_elements_(chunk_elements) {
    manifest_.set_version(version);
    manifest_.set_dtype(std::string(DtypeName(dtype)));
    for (size_t i = 0; i < tensors.size(); ++i) {
      TensorEntry& entry = *manifest_.add_tensors();
      entry.set_name(tensors[i].name);
      for (const int64_t size : tensors[i].shape) entry.add_shape(size);
      entry.set_hash(HashElements(values_[i].data(), dtype, 0, tensors[i].numel()));
    }
    for (int s = 0; s < num_sources; ++s) {
      sources_.push_back(std::make_unique<Source>(this));
      WeightSource& source = *manifest_.add_sources();
      source.set_endpoint(sources_.back()->endpoint);
      for (size_t i = 0; i < tensors.size(); ++i) {
        const int64_t numel = tensors[i].numel();
        // Cuts at numel * s^2 / n^2.
        const int64_t begin = numel * s * s / (num_sources * num_sources);
        const int64_t end = numel * (s + 1) * (s + 1) / (num_sources * num_sources);
        if (begin == end) continue;
        TensorRange& range = *source.add_ranges();
        range.set_tensor(static_cast<int32_t>(i));
        range.set_begin(begin);
        range.set_count(end - begin);
      }
    }
  }

  const WeightManifest& manifest() const { return manifest_; }
  void set_fault(Fault fault, int tensor) {
    faulty_tensor_ = tensor;
    fault_ = fault;
  }
  // From now on nothing listens at source `s`.
  void Stop(int s) { sources_[s]->server->Shutdown(std::chrono::system_clock::now()); }
  int pulls() const { return pulls_; }

 private:
  struct Source : public PolicyTrainer::Service {
    explicit Source(FakePublisher* p) : publisher(p) {
      grpc::ServerBuilder builder;
      int port = 0;
      builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
      builder.RegisterService(this);
      server = builder.BuildAndStart();
      endpoint = absl::StrCat("127.0.0.1:", port);
    }
    ~Source() override { server->Shutdown(std::chrono::system_clock::now()); }
    grpc::Status PullWeights(grpc::ServerContext*, const PullWeightsRequest* request,
                             grpc::ServerWriter<WeightChunk>* writer) override {
      return publisher->Send(*request, writer);
    }
    FakePublisher* publisher;
    std::unique_ptr<grpc::Server> server;
    std::string endpoint;
  };

  grpc::Status Send(const PullWeightsRequest& request, grpc::ServerWriter<WeightChunk>* writer) {
    ++pulls_;
    if (request.version() != manifest_.version()) return {grpc::StatusCode::NOT_FOUND, "that version is not frozen"};
    const Fault fault = fault_;
    const int64_t size = DtypeSize(dtype_);
    for (const TensorRange& range : request.ranges()) {
      const bool faulty = range.tensor() == faulty_tensor_;
      const StridedRange elements = ElementsOf(range);
      int sent = 0;
      for (int64_t done = 0, part_numel = 0; done < elements.numel(); done += part_numel, ++sent) {
        const StridedRange part = NextPart(elements, done, chunk_elements_);
        part_numel = part.numel();
        if (faulty && fault == Fault::kSkipsAChunk && sent == 0) continue;
        if (faulty && fault == Fault::kEndsEarly) return grpc::Status::OK;
        if (faulty && fault == Fault::kBreaks) return {grpc::StatusCode::UNAVAILABLE, "going away"};
        WeightChunk chunk;
        *chunk.mutable_range() = MakeTensorRange(range.tensor(), part);
        if (faulty && fault == Fault::kSendsAnotherRange) chunk.mutable_range()->set_begin(part.begin + 1);
        for (int64_t row = 0; row < part.rows; ++row) {
          chunk.mutable_data()->append(values_[range.tensor()].data() + (part.begin + row * part.stride) * size,
                                       part.count * size);
        }
        if (faulty && fault == Fault::kFlipsABit) (*chunk.mutable_data())[part_numel * size / 2] ^= 4;
        if (!writer->Write(chunk)) return grpc::Status::CANCELLED;
      }
    }
    return grpc::Status::OK;
  }

  const Dtype dtype_;
  const std::vector<std::vector<char>> values_;
  const int64_t chunk_elements_;
  WeightManifest manifest_;
  std::atomic<Fault> fault_ = Fault::kNone;
  std::atomic<int> faulty_tensor_ = -1;
  std::atomic<int> pulls_ = 0;
  std::vector<std::unique_ptr<Source>> sources_;  // last: their servers end first
};

}  // namespace quartet
