#include "core/config/service_fields.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/text_format.h>

#include <vector>

#include "absl/strings/str_cat.h"
#include "core/config/field_difference.h"
#include "core/config/services.h"

namespace quartet {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

using Fields = std::map<std::string, std::string>;

void Flatten(const Message& message, const std::string& prefix, Fields* fields) {
  const Reflection& reflection = *message.GetReflection();
  std::vector<const FieldDescriptor*> set;
  reflection.ListFields(message, &set);
  for (const FieldDescriptor* field : set) {
    const std::string path = absl::StrCat(prefix, field->name());
    const int count = field->is_repeated() ? reflection.FieldSize(message, field) : 1;
    for (int i = 0; i < count; ++i) {
      const std::string place = field->is_repeated() ? absl::StrCat(path, ".", i) : path;
      if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
        Flatten(field->is_repeated() ? reflection.GetRepeatedMessage(message, field, i)
                                     : reflection.GetMessage(message, field),
                absl::StrCat(place, "."), fields);
        continue;
      }
      google::protobuf::TextFormat::PrintFieldValueToString(message, field, field->is_repeated() ? i : -1,
                                                            &(*fields)[place]);
    }
  }
}

}  // namespace

Fields ServiceFields(const RunConfig& config, std::string_view service) {
  RunConfig part;
  if (service == "rollout") {
    *part.mutable_rollout() = config.rollout();
    // What calls say; HTTP, and the longest sequence, which it makes another and GetInfo tells by itself.
    for (const char* field :
         {"rollout_batch_size", "over_sampling_batch_size", "n_samples_per_prompt", "generate_max_len", "temperature",
          "top_p", "top_k", "min_tokens", "http", "max_model_len"}) {
      ClearPath(field, part.mutable_rollout());
    }
  } else if (service == "policy_trainer") {
    part.set_run_dir(config.run_dir());
    *part.mutable_actor() = config.actor();
  } else if (service == "critic_trainer") {
    part.set_run_dir(config.run_dir());
    part.set_seed(config.seed());  // of a head that the model does not have
    *part.mutable_critic() = config.critic();
    part.mutable_actor()->set_pretrain(config.actor().pretrain());  // whose tokens it reads
  } else if (service == "scorer") {
    *part.mutable_reward() = config.reward();
    if (UsesReference(config)) {
      *part.mutable_reference() = config.reference();
      if (config.actor().has_micro_rollout_batch_size()) {
        part.mutable_actor()->set_micro_rollout_batch_size(config.actor().micro_rollout_batch_size());
      }
    }
    part.mutable_actor()->set_pretrain(config.actor().pretrain());
    part.mutable_actor()->set_max_len(config.actor().max_len());
  }
  Fields fields;
  Flatten(part, "", &fields);
  return fields;
}

}  // namespace quartet
