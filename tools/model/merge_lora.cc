// Writes a whole model of a folder of adapters: their sums with the products of the model that they belong to.
//
// A sum is made in fp32 and rounded once, to the type that is written. What of the update that loses is told.
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/mm.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <exception>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "core/base/status_macros.h"
#include "core/checkpoint/model_folder.h"
#include "core/command_line/command_line.h"
#include "core/errors/exceptions.h"
#include "core/model/lora.h"
#include "core/model/scalar_head_check.h"
#include "core/safetensors/reader.h"
#include "core/zero/sharded/parameter_reader.h"

namespace quartet {
namespace {

// The part of an update that may be lost unremarked.
constexpr double kLittle = 0.1;

struct Type {
  Dtype stored;
  at::ScalarType computed;
};
constexpr Type kFp32 = {Dtype::kF32, at::kFloat}, kBf16 = {Dtype::kBF16, at::kBFloat16},
               kFp16 = {Dtype::kF16, at::kHalf};

std::string_view TypeName(const Type& type) {
  return type.stored == Dtype::kF32 ? "fp32" : type.stored == Dtype::kF16 ? "fp16" : "bf16";
}

struct Flags {
  std::string model, to;
  std::optional<Type> dtype;
};

CommandLine MergeLoraCommandLine(Flags* flags) {
  return {
      .program = "merge_lora",
      .before =
          R"(usage: merge_lora --model=DIR --to=DIR [--dtype=fp32|bf16|fp16]

Writes a Hugging Face folder of the model that adapters belong to, with these added to its weights, and tells as JSON
which part of the update (by its norm) rounding has lost: on average over the products, at most, and in which.
)",
      .flags = {{"model", "DIR", "adapters as PEFT writes them: adapter_config.json, adapter_model.safetensors",
                 UserPath(&flags->model)},
                {"to", "DIR", "must not exist; appears whole or not at all", UserPath(&flags->to)},
                {"dtype", "TYPE", "of what is written: fp32, bf16 or fp16 (that of the model the adapters belong to)",
                 OneOf<std::optional<Type>>({{"fp32", kFp32}, {"bf16", kBf16}, {"fp16", kFp16}}, &flags->dtype)}},
      .after =
          "\nExit codes: 0; 2 for wrong flags or models, 1 for all else (the message says why), without a folder.\n",
      .check =
          [flags] {
            for (const auto& [flag, value] : {std::pair{"--model", &flags->model}, {"--to", &flags->to}}) {
              if (value->empty()) {
                return absl::InvalidArgumentError(absl::StrCat(flag, "=DIR is missing; --help tells what there is"));
              }
            }
            return absl::OkStatus();
          },
      .column = 22};
}

// Of all tensors that `layout` names in the model.
absl::StatusOr<Type> TypeOf(const CheckpointReader& model, const ParameterLayout& layout) {
  std::map<Dtype, std::string> names;  // of a tensor of each type
  for (const ParameterGroup& group : layout.groups) {
    for (const ParameterSpec& parameter : group.parameters) {
      const auto found = model.tensors().find(parameter.name);
      if (found != model.tensors().end()) names.emplace(found->second.dtype, parameter.name);
    }
  }
  const std::string files = absl::StrJoin(model.files(), ", ");
  if (names.size() > 1) {
    const auto& [first, a] = *names.begin();
    const auto& [second, b] = *names.rbegin();
    return absl::InvalidArgumentError(absl::StrCat(files, ": ", a, " is ", std::string(DtypeName(first)), " and ", b,
                                                   " is ", std::string(DtypeName(second)),
                                                   "; say with --dtype which type is to be written"));
  }
  for (const Type& type : {kFp32, kBf16, kFp16}) {
    if (names.contains(type.stored)) return type;
  }
  return absl::InvalidArgumentError(
      absl::StrCat(files, ": no tensor of the model is F32, BF16 or F16, the types that are merged"));
}

absl::StatusOr<at::Tensor> ReadWhole(const CheckpointReader& reader, const ParameterSpec& parameter) {
  const at::Tensor whole = at::empty(parameter.shape, at::kFloat);
  const FlatPiece piece = {.parameter = 0, .begin = 0, .count = parameter.numel(), .offset = 0};
  QUARTET_RETURN_IF_ERROR(ReadPiece(reader, parameter, piece, whole.view({-1})));
  return whole;
}

double NormOf(const at::Tensor& tensor) {
  return at::linalg_vector_norm(tensor, 2, /*dim=*/std::nullopt, /*keepdim=*/false, at::kDouble).item<double>();
}

class Merge {
 public:
  static absl::StatusOr<nlohmann::ordered_json> Run(const Flags& flags);

 private:
  // What adds to the product of that name in a block, or takes the place of the scalar head.
  struct Part {
    ParameterSpec a, b;  // or the head, as `a`
  };

  absl::StatusOr<at::Tensor> Merged(const ParameterSpec& parameter);
  nlohmann::ordered_json Told() const;

  std::string folder_;
  Type type_ = kFp32;
  double scale_ = 1;
  std::unique_ptr<CheckpointReader> base_, adapters_;
  std::map<std::string, Part> parts_;   // by the names of the model's parameters
  std::map<std::string, double> lost_;  // of updates that are not 0: the part, by the product's name
};

// The parameter in the type that is written, of the shape that it has.
absl::StatusOr<at::Tensor> Merge::Merged(const ParameterSpec& parameter) {
  const auto part = parts_.find(parameter.name);
  const bool is_head = part != parts_.end() && IsScalarHead(parameter);
  QUARTET_ASSIGN_OR_RETURN(const at::Tensor weight,
                           is_head ? ReadWhole(*adapters_, part->second.a) : ReadWhole(*base_, parameter));
  at::Tensor sum = weight, update;
  if (part != parts_.end() && !is_head) {
    QUARTET_ASSIGN_OR_RETURN(const at::Tensor a, ReadWhole(*adapters_, part->second.a));
    QUARTET_ASSIGN_OR_RETURN(const at::Tensor b, ReadWhole(*adapters_, part->second.b));
    update = at::mm(b, a).mul_(scale_);
    sum = weight.add(update);
  }
  const at::Tensor rounded = sum.to(type_.computed);
  if (!std::isfinite(NormOf(rounded))) {
    return absl::InvalidArgumentError(absl::StrCat(folder_, ": with the adapters ", parameter.name,
                                                   " has elements that are no finite numbers in ",
                                                   std::string(TypeName(type_))));
  }
  if (!update.defined()) return rounded;
  const double norm = NormOf(update);
  // In this order the difference of two numbers that lie close to each other is exact.
  if (norm > 0) lost_[parameter.name] = NormOf(rounded.to(at::kFloat).sub(weight).sub_(update)) / norm;
  return rounded;
}

nlohmann::ordered_json Merge::Told() const {
  nlohmann::ordered_json told = {{"dtype", TypeName(type_)}, {"products", 0}, {"changed", lost_.size()}};
  told["products"] = std::ranges::count_if(parts_, [](const auto& part) { return !part.second.b.name.empty(); });
  if (lost_.empty()) return told;
  double sum = 0;
  for (const auto& [name, lost] : lost_) sum += lost;
  const auto most = std::ranges::max_element(lost_, {}, [](const auto& lost) { return lost.second; });
  told["lost"] = {{"mean", sum / static_cast<double>(lost_.size())}, {"most", most->second}, {"in", most->first}};
  return told;
}

absl::StatusOr<nlohmann::ordered_json> Merge::Run(const Flags& flags) {
  if (!IsAdapterFolder(flags.model)) {
    return absl::NotFoundError(absl::StrCat("--model is ", flags.model, "; it must be a folder of adapters as PEFT ",
                                            "writes it, with ", std::string(kAdapterConfigFile)));
  }
  Merge merge;
  merge.folder_ = flags.model;
  QUARTET_ASSIGN_OR_RETURN(ModelConfig config, ReadModelConfig(flags.model));
  const std::string base = config.lora->base_folder;
  const ParameterLayout layout = MakeParameterLayout(config, config.head);
  const ParameterLayout lora = MakeLoraLayout(config, layout);
  merge.scale_ = config.lora->scale;
  QUARTET_ASSIGN_OR_RETURN(merge.adapters_, OpenAdapters(flags.model, lora));
  QUARTET_ASSIGN_OR_RETURN(merge.base_, CheckpointReader::Open(base));
  if (config.head == HeadKind::kScalar && !config.lora->has_head) {
    QUARTET_RETURN_IF_ERROR(CheckScalarHead(config, base, *merge.base_));
  }
  if (flags.dtype.has_value()) {
    merge.type_ = *flags.dtype;
  } else {
    QUARTET_ASSIGN_OR_RETURN(merge.type_, TypeOf(*merge.base_, layout));
  }
  for (size_t g = 0; g < lora.groups.size(); ++g) {
    const auto& factors = lora.groups[g].parameters;
    if (config.lora->has_head && static_cast<int>(g) == lora.head_group) {
      merge.parts_[layout.groups[layout.head_group].parameters[layout.head].name] = {.a = factors[0], .b = {}};
      continue;
    }
    for (size_t f = 0; f < factors.size(); f += 2) {
      for (const ParameterSpec& weight : layout.groups[layout.block_group(static_cast<int>(g))].parameters) {
        if (weight.in_block == factors[f].in_block) merge.parts_[weight.name] = {factors[f], factors[f + 1]};
      }
    }
  }
  config.lora.reset();  // what is written has none
  ModelFolderOptions options{.target = flags.to, .dtype = merge.type_.stored, .head = config.head};
  QUARTET_ASSIGN_OR_RETURN(const std::string tokenizer, TokenizerFolder(flags.model));
  QUARTET_ASSIGN_OR_RETURN(options.companions, ReadCompanions(tokenizer));
  QUARTET_ASSIGN_OR_RETURN(auto of_base, ReadCompanions(base));
  constexpr const char* kGeneration = "generation_config.json";  // which PEFT does not save
  if (of_base.contains(kGeneration)) options.companions.try_emplace(kGeneration, std::move(of_base[kGeneration]));
  QUARTET_ASSIGN_OR_RETURN(const auto writer, ModelFolderWriter::Create(config, layout, options));
  for (size_t g = 0; g < layout.groups.size(); ++g) {
    const auto& parameters = layout.groups[g].parameters;
    for (size_t p = 0; p < parameters.size(); ++p) {
      ParameterSpec parameter = parameters[p];
      parameter.name = merge.parts_.contains(parameter.name) ? parameter.name : NameInFolder(parameter, config);
      QUARTET_ASSIGN_OR_RETURN(const at::Tensor merged, merge.Merged(parameter));
      QUARTET_RETURN_IF_ERROR(
          writer->Write(static_cast<int>(g), static_cast<int>(p), merged.contiguous().const_data_ptr()));
    }
  }
  QUARTET_RETURN_IF_ERROR(writer->Finish().status());
  return merge.Told();
}

int Main(int argc, char** argv) {
  Flags flags;
  if (const auto code = ReadCommandLine(argc, argv, MergeLoraCommandLine(&flags))) return *code;
  const c10::NoGradGuard no_grad;
  const absl::StatusOr<nlohmann::ordered_json> told = CatchAll([&] { return Merge::Run(flags); });
  if (!told.ok()) return Finish("merge_lora", told.status());
  std::cout << told->dump() << "\n";
  if (told->at("changed") == 0) {
    std::cerr << "merge_lora: warning: the adapters add nothing to the products of the model that they belong to\n";
  } else if (const double most = told->at("lost").at("most"); most > kLittle) {
    std::cerr << "merge_lora: warning: "
              << absl::StrFormat(
                     "rounding to %s has lost %.0f %% of the update of %s, and %.0f %% on average; "
                     "--dtype=fp32 keeps it, and so do the adapters beside their model\n",
                     told->at("dtype").get<std::string>(), 100 * most, told->at("lost").at("in").get<std::string>(),
                     100 * told->at("lost").at("mean").get<double>());
  }
  return 0;
}

}  // namespace
}  // namespace quartet

int main(int argc, char** argv) { return quartet::Main(argc, argv); }
