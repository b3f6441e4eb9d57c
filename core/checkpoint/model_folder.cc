#include "core/checkpoint/model_folder.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/base/files/files.h"
#include "core/base/status_macros.h"
#include "core/data/json.h"
#include "core/model/adapter_base.h"
#include "core/model/families.h"
#include "core/model/lora.h"
#include "core/safetensors/writer.h"

namespace quartet {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// What a tokenizer and generation need beside the weights, where the source has it.
constexpr const char* kCompanions[] = {"generation_config.json",
                                       "tokenizer.json",
                                       "tokenizer_config.json",
                                       "tokenizer.model",
                                       "special_tokens_map.json",
                                       "added_tokens.json",
                                       "vocab.json",
                                       "merges.txt",
                                       "chat_template.jinja",
                                       "chat_template.json"};

// tokenizer_config.json, where it names no class, with that by which transformers reads the model's own folder: one
// without config.json has no other place for it.
absl::Status NameTokenizerClass(const ModelConfig& config, std::map<std::string, std::string>* companions) {
  constexpr const char* kFile = "tokenizer_config.json";
  constexpr const char* kClass = "tokenizer_class";
  if (!companions->contains("tokenizer.json")) return absl::OkStatus();
  std::string& text = (*companions)[kFile];
  Json object = Json::object();
  if (!text.empty()) {
    QUARTET_ASSIGN_OR_RETURN(object, ParseOrderedJson(text, kFile));
  }
  if (!object.is_object() || (object.contains(kClass) && object[kClass].is_string())) return absl::OkStatus();
  const Json of_model = Json::parse(config.json, nullptr, /*allow_exceptions=*/false);
  const bool is_named = of_model.is_object() && of_model.contains(kClass) && of_model[kClass].is_string();
  object[kClass] = is_named ? of_model[kClass] : Json(FindFamily(config.model_type)->tokenizer);
  text = object.dump(2, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace) + "\n";
  return absl::OkStatus();
}

const char* TorchName(Dtype dtype) {
  return dtype == Dtype::kF32 ? "float32" : dtype == Dtype::kF16 ? "float16" : "bfloat16";
}

}  // namespace

absl::StatusOr<std::map<std::string, std::string>> ReadCompanions(const std::string& folder) {
  std::map<std::string, std::string> companions;
  for (const char* name : kCompanions) {
    const fs::path path = fs::path(folder) / name;
    std::error_code error;
    if (!fs::exists(path, error)) continue;
    QUARTET_ASSIGN_OR_RETURN(companions[name], ReadFile(path.string()));
  }
  return companions;
}

struct ModelFolderWriter::Impl {
  ModelFolderOptions options;
  fs::path temporary;
  // Which file and which of its tensors each parameter is.
  struct Place {
    int file;
    int entry;
  };
  std::vector<std::vector<Place>> places;
  std::vector<std::vector<int64_t>> bytes;
  std::vector<std::unique_ptr<SafetensorsWriter>> writers;
  int64_t written = 0;
  bool finished = false;

  ~Impl() {
    writers.clear();
    std::error_code ignored;  // nothing more can be done about what cannot be removed
    if (!finished && !temporary.empty()) fs::remove_all(temporary, ignored);
  }

  absl::Status WriteText(const std::string& name, const std::string& text) {
    QUARTET_RETURN_IF_ERROR(AtomicWriteFile((temporary / name).string(), text));
    written += static_cast<int64_t>(text.size());
    return absl::OkStatus();
  }
};

ModelFolderWriter::ModelFolderWriter(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ModelFolderWriter::~ModelFolderWriter() = default;

absl::StatusOr<std::unique_ptr<ModelFolderWriter>> ModelFolderWriter::Create(const ModelConfig& config,
                                                                             const ParameterLayout& layout,
                                                                             const ModelFolderOptions& options) {
  auto impl = std::make_unique<Impl>();
  impl->options = options;
  const fs::path target = fs::path(options.target).lexically_normal();
  std::error_code error;
  if (fs::exists(target, error)) {
    return absl::AlreadyExistsError(absl::StrCat("cannot save a model to ", options.target, ": it exists already"));
  }
  std::string temporary = absl::StrCat(options.target, ".XXXXXX");
  const fs::path parent = fs::absolute(target).parent_path();
  QUARTET_RETURN_IF_ERROR(MakeDirs(parent.string()));
  // Made again, as others may read it as far as the umask lets them.
  if (mkdtemp(temporary.data()) == nullptr || rmdir(temporary.c_str()) != 0 || mkdir(temporary.c_str(), 0755) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("making folder ", temporary));
  }
  impl->temporary = temporary;

  const bool of_adapters = config.lora.has_value();
  if (of_adapters) {
    QUARTET_RETURN_IF_ERROR(impl->WriteText(std::string(kAdapterConfigFile), config.lora->json));
    QUARTET_RETURN_IF_ERROR(NameTokenizerClass(config, &impl->options.companions));
    if (const std::optional<uint64_t>& base = config.lora->base_hash) {
      QUARTET_RETURN_IF_ERROR(impl->WriteText(std::string(kAdapterBaseFile), AdapterBaseJson(*base)));
    }
  } else {
    QUARTET_RETURN_IF_ERROR(
        impl->WriteText("config.json", TrainedConfigJson(config, options.head, TorchName(options.dtype))));
  }
  for (const auto& [name, bytes] : impl->options.companions) QUARTET_RETURN_IF_ERROR(impl->WriteText(name, bytes));

  // Parameters in their order, a new file where the next would not fit.
  std::vector<std::vector<SafetensorsWriter::Entry>> files(1);
  int64_t file_bytes = 0, total_bytes = 0;
  for (const ParameterGroup& group : layout.groups) {
    auto& places = impl->places.emplace_back();
    auto& bytes = impl->bytes.emplace_back();
    for (const ParameterSpec& parameter : group.parameters) {
      const int64_t size = parameter.numel() * DtypeSize(options.dtype);
      if (!of_adapters && file_bytes > 0 && file_bytes + size > options.max_file_bytes) {
        files.emplace_back();
        file_bytes = 0;
      }
      places.push_back({static_cast<int>(files.size()) - 1, static_cast<int>(files.back().size())});
      bytes.push_back(size);
      files.back().push_back({NameInFolder(parameter, config), options.dtype, parameter.shape});
      file_bytes += size;
      total_bytes += size;
    }
  }
  Json index = {{"metadata", {{"total_size", total_bytes}}}, {"weight_map", Json::object()}};
  for (size_t i = 0; i < files.size(); ++i) {
    const std::string name = of_adapters ? std::string(kAdapterWeightsFile)
                             : files.size() == 1
                                 ? std::string("model.safetensors")
                                 : absl::StrFormat("model-%05d-of-%05d.safetensors", i + 1, files.size());
    for (const auto& entry : files[i]) index["weight_map"][entry.name] = name;
    QUARTET_ASSIGN_OR_RETURN(auto writer,
                             SafetensorsWriter::Create((impl->temporary / name).string(), std::move(files[i])));
    impl->written += static_cast<int64_t>(writer->file_bytes());
    impl->writers.push_back(std::move(writer));
  }
  if (files.size() > 1) QUARTET_RETURN_IF_ERROR(impl->WriteText("model.safetensors.index.json", index.dump(2) + "\n"));
  return std::unique_ptr<ModelFolderWriter>(new ModelFolderWriter(std::move(impl)));
}

absl::Status ModelFolderWriter::Write(int group, int parameter, const void* data) {
  const Impl::Place place = impl_->places[group][parameter];
  return impl_->writers[place.file]->Write(place.entry, 0, data, impl_->bytes[group][parameter]);
}

absl::StatusOr<int64_t> ModelFolderWriter::Finish() {
  for (auto& writer : impl_->writers) QUARTET_RETURN_IF_ERROR(writer->Close());
  QUARTET_RETURN_IF_ERROR(SyncFolder(impl_->temporary.string()));
  const fs::path target = fs::absolute(fs::path(impl_->options.target).lexically_normal());
  if (rename(impl_->temporary.c_str(), target.c_str()) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("renaming ", impl_->temporary.string(), " to ", target.string()));
  }
  impl_->finished = true;
  QUARTET_RETURN_IF_ERROR(SyncFolder(target.parent_path().string()));
  return impl_->written;
}

}  // namespace quartet
