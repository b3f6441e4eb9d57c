#include "orchestrator/clients/hello.h"

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "core/service/wire/protocol_version.h"

namespace quartet {

absl::StatusOr<ServiceInfo> CheckService(ServiceClient& client, int32_t tokenizer_vocab_size, int64_t longest_sequence,
                                         const OnLoading& on_loading) {
  const std::string place = absl::StrCat(client.service(), " at ", client.address());
  QUARTET_ASSIGN_OR_RETURN(ServiceInfo info, client.AwaitInfo([&] {
    on_loading(absl::StrCat("waiting for the ", place, ", which is loading its model"));
  }));
  if (info.service() != client.service()) {
    return absl::FailedPreconditionError(absl::StrCat("at ", client.address(), " is the service \"", info.service(),
                                                      "\", not \"", client.service(), "\""));
  }
  if (info.protocol_version() != kProtocolVersion) {
    return absl::FailedPreconditionError(absl::StrCat(place, " speaks protocol version ", info.protocol_version(),
                                                      "; this orchestrator speaks ", kProtocolVersion,
                                                      ". Build both from the same sources"));
  }
  for (const auto& [role, size] : info.vocab_size()) {
    if (tokenizer_vocab_size > size) {
      return absl::FailedPreconditionError(absl::StrCat(place, ": its ", role, " has a vocabulary of ", size,
                                                        " tokens but the tokenizer has ", tokenizer_vocab_size,
                                                        ". Give each model the tokenizer that it was trained with"));
    }
  }
  if (info.max_model_len() > 0 && longest_sequence > info.max_model_len()) {
    return absl::FailedPreconditionError(absl::StrCat(place, " takes sequences of at most ", info.max_model_len(),
                                                      " tokens, but prompt and answer "
                                                      "together can have ",
                                                      longest_sequence));
  }
  return info;
}

absl::StatusOr<Hello> SayHello(Services& services, const RunConfig& config, int32_t tokenizer_vocab_size,
                               const OnLoading& on_loading) {
  const int64_t longest = static_cast<int64_t>(config.data().prompt_max_len()) + config.rollout().generate_max_len();
  Hello hello;
  struct Peer {
    ServiceClient* client;
    ServiceInfo* info;
  };
  const std::vector<Peer> peers = {{services.rollout.get(), &hello.rollout},
                                   {services.policy_trainer.get(), &hello.policy_trainer},
                                   {services.critic_trainer.get(), &hello.critic_trainer},
                                   {services.scorer.get(), &hello.scorer}};
  std::string first_name;
  int32_t first_size = 0;
  for (const Peer& peer : peers) {
    QUARTET_ASSIGN_OR_RETURN(*peer.info, CheckService(*peer.client, tokenizer_vocab_size, longest, on_loading));
    for (const auto& [role, size] : peer.info->vocab_size()) {
      const std::string name = absl::StrCat(peer.client->service(), "'s ", role);
      if (first_name.empty()) {
        first_name = name;
        first_size = size;
      } else if (size != first_size) {
        return absl::FailedPreconditionError(absl::StrCat("vocabularies differ: ", first_name, " has ", first_size,
                                                          " tokens, ", name, " has ", size,
                                                          ". All models of a run must share one tokenizer"));
      }
    }
  }
  return hello;
}

}  // namespace quartet
