#include "core/config/text/field_names.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace quartet {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;

// Characters to insert, drop, replace, or swap with their neighbour (optimal string alignment).
size_t EditDistance(absl::string_view a, absl::string_view b) {
  std::vector<std::vector<size_t>> distance(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) {
    for (size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        distance[i][j] = i + j;
        continue;
      }
      distance[i][j] = std::min({distance[i - 1][j] + 1, distance[i][j - 1] + 1,
                                 distance[i - 1][j - 1] + static_cast<size_t>(a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        distance[i][j] = std::min(distance[i][j], distance[i - 2][j - 2] + 1);
      }
    }
  }
  return distance[a.size()][b.size()];
}

// What other systems and their users call a field.
struct NameElsewhere {
  absl::string_view name;
  absl::string_view here;  // empty: nothing is
};
constexpr NameElsewhere kNamesElsewhere[] = {
    {"lr", "learning_rate"},
    {"actor_learning_rate", "learning_rate"},
    {"critic_learning_rate", "learning_rate"},
    {"l2", "weight_decay"},
    {"adv_estimator", "advantage_estimator"},
    {"lam", "lambd"},
    {"cliprange", "eps_clip"},
    {"clip_ratio", "eps_clip"},
    {"cliprange_value", "value_clip"},
    {"clip_grad", "max_norm"},
    {"max_grad_norm", "max_norm"},
    {"entropy_coeff", "entropy_coef"},
    {"entropy_loss_coef", "entropy_coef"},
    {"kl_coef", "init_kl_coef"},
    {"max_tokens", "generate_max_len"},
    {"max_new_tokens", "generate_max_len"},
    {"response_length", "generate_max_len"},
    {"max_completion_length", "generate_max_len"},
    {"max_prompt_length", "prompt_max_len"},
    {"num_generations", "n_samples_per_prompt"},
    {"n", "n_samples_per_prompt"},
    {"vllm_gpu_memory_utilization", "gpu_memory_utilization"},
    {"vllm_tensor_parallel_size", "tensor_parallel_size"},
    {"gen_tp", "tensor_parallel_size"},
    {"per_device_train_batch_size", "micro_train_batch_size"},
    {"zero_shard_size", "shard_size"},
    {"warmup_ratio", "lr_warmup_ratio"},
    {"model_name_or_path", "pretrain"},
    {"reward_pretrain", "model"},
    {"lora_rank", ""},
    {"lora_alpha", ""},
    {"target_modules", ""},
    {"load_in_4bit", ""},
};

// Of the messages below `message` that have a field of that name.
void FindPaths(absl::string_view name, const Descriptor& message, const std::string& path,
               std::vector<std::string>* paths) {
  for (int i = 0; i < message.field_count(); ++i) {
    const FieldDescriptor& field = *message.field(i);
    if (field.name() == name) paths->push_back(path.empty() ? "the top level" : path);
    if (field.cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) continue;
    FindPaths(name, *field.message_type(), absl::StrCat(path, path.empty() ? "" : ".", field.name()), paths);
  }
}

}  // namespace

std::string MeantField(absl::string_view name, const Descriptor& message, const Descriptor& root) {
  std::vector<std::string> paths;
  FindPaths(name, root, "", &paths);
  if (!paths.empty()) return absl::StrCat("; it is a field of ", absl::StrJoin(paths, ", "));
  for (const NameElsewhere& elsewhere : kNamesElsewhere) {
    if (elsewhere.name != name) continue;
    if (elsewhere.here.empty()) return "; what other systems mean by it is not there";
    if (message.FindFieldByName(std::string(elsewhere.here)) != nullptr) {
      return absl::StrCat("; did you mean '", elsewhere.here, "'?");
    }
    FindPaths(elsewhere.here, root, "", &paths);
    return absl::StrCat("; did you mean '", elsewhere.here, "', a field of ", absl::StrJoin(paths, ", "), "?");
  }
  std::string nearest;
  // Of three characters one may be wrong.
  size_t least = name.size() / 3 + 1;
  for (int i = 0; i < message.field_count(); ++i) {
    const size_t distance = EditDistance(name, message.field(i)->name());
    if (distance >= least) continue;
    least = distance;
    nearest = message.field(i)->name();
  }
  return nearest.empty() ? "" : absl::StrCat("; did you mean '", nearest, "'?");
}

}  // namespace quartet
