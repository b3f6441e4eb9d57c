#include "orchestrator/agents/episode_answers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/testing/scratch_folder.h"
#include "core/clients/testing/fake_services.h"
#include "orchestrator/agents/testing/template_tokenizer.h"

namespace quartet {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// Asks the policy once, and goes on for long where that is an error.
constexpr char kAgent[] = R"(python3 -c '
import json, sys, time, urllib.error, urllib.request
episode = json.loads(sys.stdin.readline())
request = urllib.request.Request(episode["base_url"] + "/chat/completions", data=b"{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}]}",
                                 headers={"Authorization": "Bearer " + episode["api_key"], "Content-Type": "application/json"})
try:
    urllib.request.urlopen(request).read()
except urllib.error.HTTPError as error:
    print(error.read().decode(), file=sys.stderr, flush=True)
    time.sleep(10000)
print(json.dumps({"reward": 1}))
')";

class EpisodeAnswersTest : public ::testing::Test {
 protected:
  EpisodeAnswersTest() : config_(services_.MakeConfig(scratch_.path(), 1)) {
    scratch_.Write("config.json", json({{"architectures", {"LlamaForCausalLM"}},
                                        {"model_type", "llama"},
                                        {"vocab_size", 1000},
                                        {"hidden_size", 64},
                                        {"intermediate_size", 96},
                                        {"num_hidden_layers", 3},
                                        {"num_attention_heads", 8},
                                        {"num_key_value_heads", 4},
                                        {"max_position_embeddings", 512}})
                                      .dump());
    config_.mutable_rollout()->set_pretrain(scratch_.path());
    config_.mutable_actor()->set_max_len(512);
    AgentConfig& agent = *config_.mutable_agent();
    agent.set_command(kAgent);
    agent.set_command_folder("/");
    agent.set_processes(2);
    agent.set_max_turns(16);
    agent.set_timeout_seconds(86400);
    agent.set_max_tries(3);
    agent.set_on_error("drop");
  }

  const ScratchFolder scratch_;
  FakeServices services_;
  RunConfig config_;
};

TEST_F(EpisodeAnswersTest, EndAtOnceWhereTheRolloutIsGone) {
  const std::unique_ptr<Tokenizer> tokenizer = TemplateTokenizer("{% for m in messages %}{{ m.content }}{% endfor %}");
  Cancellation cancellation;
  const Services clients = ConnectServices(config_, &cancellation).value();
  const auto source = MakeAnswerSource(config_, tokenizer.get(), clients.rollout.get(), &cancellation).value();
  services_.Kill("rollout");
  GenerateHeader header;
  header.mutable_sampling()->set_n_samples(2);
  header.mutable_sampling()->set_max_new_tokens(8);
  header.mutable_sampling()->set_temperature(1);
  header.mutable_sampling()->set_top_p(1);
  PromptRecord prompt;
  prompt.place = "rows.jsonl, line 1";
  const absl::Status status =
      source->Draw({}, header, {&prompt}, 1, [](const PromptAnswer&) { return absl::OkStatus(); }).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(StartsWith(absl::StrCat("rollout at ", services_.address("rollout"), ", Generate: ")),
                    HasSubstr("Does it run?")));
}

}  // namespace
}  // namespace quartet
