// Trains a model on fixed token blocks and prints one JSON line with what each step came to, for comparison with other
// programs that are given the same model and blocks:
//
//   training_comparison --model=DIR --blocks=FILE [--ranks=2] [--zero_stage=3] [--gradient_checkpointing=false]
//                       [--dtype=bf16] [--steps=5] [--learning_rate=2e-5] [--micro_batch=4] [--length=256]
//                       [--gradients=FILE] [--device=cuda] [--samples=1] [--prompt=1] [--share=true]
//
// FILE holds int32 token ids, [steps, ranks, micro-batches, micro_batch, length]; one optimizer step takes
// [ranks, micro-batches], and is a call in which freed memory is used again (core/memory/block_cache.h). The loss is
// the mean next-token cross entropy over all ranks, before the step's update; AdamW with betas 0.9 and 0.95, eps 1e-8,
// no decay, no clipping. The ranks are threads of this process with one computing thread each. Seconds are of whole
// steps, optimizer included. --gradients writes the last step's gradient as a safetensors file, fp32, by the
// parameters' names; for one rank. --device=cuda trains on the first GPU, of --config=cuda; for one rank, too.
//
// Each --samples sequences have the first --prompt tokens of the first of them, which are computed once, or, with
// --share=false, in each; the loss is that of the other tokens, and tokens a second are those of whole sequences.
#include <ATen/TensorOperators.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/tensor.h>
#include <sys/resource.h>

#include <atomic>
#include <cstdint>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "core/base/time/stopwatch.h"
#include "core/comm/testing/rank_threads.h"
#include "core/hardware/device.h"
#include "core/memory/block_cache.h"
#include "core/memory/ledger.h"
#include "core/model/decoder/vocabulary_head.h"
#include "core/rl/losses.h"
#include "core/safetensors/writer.h"
#include "core/zero/trainable_model.h"

namespace quartet {
namespace {

struct Flags {
  std::map<std::string, std::string> text = {{"model", ""},
                                             {"blocks", ""},
                                             {"ranks", "2"},
                                             {"zero_stage", "3"},
                                             {"gradient_checkpointing", "false"},
                                             {"dtype", "bf16"},
                                             {"steps", "5"},
                                             {"micro_batches", "4"},
                                             {"micro_batch", "4"},
                                             {"length", "256"},
                                             {"learning_rate", "2e-5"},
                                             {"gradients", ""},
                                             {"device", "cpu"},
                                             {"samples", "1"},
                                             {"prompt", "1"},
                                             {"share", "true"}};

  int64_t Integer(const std::string& name) const {
    int64_t value = 0;
    if (!absl::SimpleAtoi(text.at(name), &value) || value < 1) Fail(name, "a whole number above 0");
    return value;
  }
  double Number(const std::string& name) const {
    double value = 0;
    if (!absl::SimpleAtod(text.at(name), &value)) Fail(name, "a number");
    return value;
  }
  bool OneOf(const std::string& name, const std::string& yes, const std::string& no) const {
    if (text.at(name) != yes && text.at(name) != no) Fail(name, yes + " or " + no);
    return text.at(name) == yes;
  }
  [[noreturn]] void Fail(const std::string& name, const std::string& allowed) const {
    std::cerr << "training_comparison: --" << name << " is \"" << text.at(name) << "\"; allowed: " << allowed << '\n';
    std::exit(2);
  }
};

Flags ReadFlags(int argc, char** argv) {
  Flags flags;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const size_t equals = argument.find('=');
    if (!argument.starts_with("--") || equals == std::string::npos ||
        !flags.text.count(argument.substr(2, equals - 2))) {
      std::cerr << "training_comparison: unknown argument \"" << argument << "\"; the head of the source tells them\n";
      std::exit(2);
    }
    flags.text[argument.substr(2, equals - 2)] = argument.substr(equals + 1);
  }
  return flags;
}

// Sequences that are alike in every micro-batch: which tokens of its block are computed, where sequences begin, and
// which tokens are predicted of which row.
struct Layout {
  Layout(int64_t sequences, int64_t length, int64_t samples, int64_t prompt, bool share) {
    std::vector<int64_t> row_of(length);
    for (int64_t s = 0; s < sequences; ++s) {
      const int64_t shared = share && s % samples > 0 ? prompt : 0;
      for (int64_t t = 0; t < length; ++t) {
        if (t >= shared) {
          row_of[t] = static_cast<int64_t>(tokens.size());
          tokens.push_back((t < prompt ? s - s % samples : s) * length + t);
        }
        if (t < prompt) continue;
        rows.push_back(row_of[t - 1]);
        predicted.push_back(s * length + t);
      }
      cu_seqlens.push_back(static_cast<int64_t>(tokens.size()));
      this->shared.push_back(shared);
    }
    if (static_cast<int64_t>(tokens.size()) == sequences * length) this->shared.clear();
  }

  std::vector<int64_t> tokens, cu_seqlens = {0}, shared, rows, predicted;
};

absl::Status WriteGradients(TrainableModel& model, const std::string& path) {
  ShardedModel& sharded = model.model();
  std::vector<SafetensorsWriter::Entry> entries;
  for (const ParameterShard& piece : sharded.parameter_shards()) {
    const ParameterSpec& parameter = sharded.layout().groups[piece.group].parameters[piece.parameter];
    entries.push_back({parameter.name, Dtype::kF32, parameter.shape});
  }
  QUARTET_ASSIGN_OR_RETURN(const std::unique_ptr<SafetensorsWriter> writer, SafetensorsWriter::Create(path, entries));
  for (size_t i = 0; i < entries.size(); ++i) {
    const ParameterShard& piece = sharded.parameter_shards()[i];
    const at::Tensor values = model.gradient(piece.group).narrow(0, piece.shard_offset, piece.count).cpu();
    QUARTET_RETURN_IF_ERROR(
        writer->Write(static_cast<int>(i), 0, values.const_data_ptr<float>(), piece.count * sizeof(float)));
  }
  return writer->Close();
}

int Main(int argc, char** argv) {
  const Flags flags = ReadFlags(argc, argv);
  const int64_t ranks = flags.Integer("ranks"), steps = flags.Integer("steps"),
                micro_batches = flags.Integer("micro_batches"), sequences = flags.Integer("micro_batch"),
                length = flags.Integer("length");
  const int64_t tokens = sequences * length, samples = flags.Integer("samples"), prompt = flags.Integer("prompt");
  if (prompt >= length) flags.Fail("prompt", "less than --length");
  const Layout layout(sequences, length, samples, prompt, flags.OneOf("share", "true", "false"));
  const auto targets = static_cast<int64_t>(layout.rows.size());
  const double learning_rate = flags.Number("learning_rate");
  const std::string& gradients = flags.text.at("gradients");
  if (!gradients.empty() && ranks != 1) flags.Fail("gradients", "nothing where --ranks is not 1");
  const bool on_cuda = flags.OneOf("device", "cuda", "cpu");
  if (on_cuda && ranks != 1) flags.Fail("device", "cpu where --ranks is not 1");
  const at::Device device = on_cuda ? at::Device(at::kCUDA, 0) : at::Device(at::kCPU);

  std::ifstream file(flags.text.at("blocks"), std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (static_cast<int64_t>(bytes.size()) < steps * ranks * micro_batches * tokens * 4) {
    flags.Fail("blocks", absl::StrCat("a file of at least ", steps * ranks * micro_batches * tokens, " int32 ids"));
  }
  const at::Tensor ids =
      at::from_blob(const_cast<char*>(bytes.data()), {static_cast<int64_t>(bytes.size()) / 4}, at::kInt).to(at::kLong);

  TrainableModelOptions options;
  options.model.zero_stage = static_cast<int>(flags.Integer("zero_stage"));
  options.model.device = device;
  options.model.compute_dtype = flags.OneOf("dtype", "bf16", "fp32") ? at::kBFloat16 : at::kFloat;
  options.gradient_checkpointing = flags.OneOf("gradient_checkpointing", "true", "false");

  if (const absl::Status entered = EnterDevice(device); !entered.ok()) {
    std::cerr << "training_comparison: " << entered.message() << '\n';
    return 1;
  }
  const at::Tensor tokens_T = at::tensor(layout.tokens, at::kLong),
                   predicted_A = at::tensor(layout.predicted, at::kLong),
                   rows_A = at::tensor(layout.rows, at::kLong).to(device);
  const at::Tensor weights_A = at::full({targets}, 1.0 / static_cast<double>(targets * micro_batches * ranks),
                                        at::TensorOptions(at::kFloat).device(device));

  nlohmann::json report = flags.text;
  std::atomic<int64_t> peak_total = 0;  // of the ranks, added up
  RunRanks(static_cast<int>(ranks), [&](ProcessGroup& group) {
    Ledger ledger;
    auto model = TrainableModel::Load(flags.text.at("model"), options, &group, &ledger);
    if (!model.ok()) throw std::runtime_error(std::string(model.status().message()));
    if (on_cuda) ResetPeakTensors(device);
    for (int64_t step = 0; step < steps; ++step) {
      group.Barrier();
      const Stopwatch whole_step;
      std::optional<ReuseScope> reuse(std::in_place);
      double loss = 0;
      for (int64_t m = 0; m < micro_batches; ++m) {
        PackedSequences batch;
        const at::Tensor block = ids.narrow(0, ((step * ranks + group.rank()) * micro_batches + m) * tokens, tokens);
        batch.ids_T = block.index_select(0, tokens_T);
        batch.cu_seqlens = layout.cu_seqlens;
        batch.shared = layout.shared;
        loss += (*model)->ForwardBackward(batch, [&](const at::Tensor& hidden_TD, const at::Tensor& head_VD) {
          const TokenLogProbs now = ChunkedLogProbs(hidden_TD.index_select(0, rows_A), head_VD,
                                                    block.index_select(0, predicted_A).to(device), 1.0, {});
          return SftLoss(now.log_prob_T, weights_A);
        });
      }
      if (step + 1 == steps && !gradients.empty()) {
        if (const absl::Status s = WriteGradients(**model, gradients); !s.ok()) {
          throw std::runtime_error(std::string(s.message()));
        }
      }
      const StepResult result = (*model)->Step(learning_rate, /*max_norm=*/0);
      reuse.reset();
      group.Barrier();
      const double seconds = whole_step.Seconds();
      const at::Tensor total = at::full({1}, loss, at::kDouble);
      group.AllReduceSum(total)->Wait();
      if (group.rank() != 0) continue;
      report["loss"].push_back(total.item<double>());
      report["grad_norm"].push_back(result.grad_norm);
      report["step_s"].push_back(seconds);
      report["tok_s"].push_back(static_cast<double>(ranks * micro_batches * tokens) / seconds);
    }
    peak_total += ledger.peak_total(MemoryTier::kDevice);
    group.Barrier();
    if (group.rank() != 0) return;
    if (on_cuda) report["peak_bytes"]["cuda"] = ReadDeviceMemory(device).peak_tensors;
    for (int c = 0; c < kNumMemoryCategories; ++c) {
      const auto category = static_cast<MemoryCategory>(c);
      report["peak_bytes"][std::string(MemoryCategoryName(category))] = ledger.peak(category);
    }
  });
  if (!report.contains("peak_bytes")) return 1;
  report["peak_bytes"]["total_of_ranks"] = peak_total.load();
  const BlockCache::Stats blocks = HostBlocks().stats();
  report["blocks"] = {{"peak_in_use", blocks.peak_in_use},
                      {"peak_held", blocks.peak_held},
                      {"mapped", blocks.mapped},
                      {"moved", blocks.moved}};
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  report["process"] = {{"peak_rss_bytes", int64_t{usage.ru_maxrss} * 1024},  // Linux counts KiB
                       {"minor_faults", usage.ru_minflt},
                       {"user_s", static_cast<double>(usage.ru_utime.tv_sec) + 1e-6 * usage.ru_utime.tv_usec},
                       {"system_s", static_cast<double>(usage.ru_stime.tv_sec) + 1e-6 * usage.ru_stime.tv_usec}};
  std::cout << report.dump() << std::endl;
  return 0;
}

}  // namespace
}  // namespace quartet

int main(int argc, char** argv) { return quartet::Main(argc, argv); }
