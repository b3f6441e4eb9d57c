#include "orchestrator/loop/experience/batch_sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "orchestrator/loop/testing/ppo_test_base.h"

namespace quartet {
namespace {

using ::testing::ElementsAre;

class NoAnswers final : public AnswerSource {
 public:
  absl::StatusOr<std::vector<PromptAnswer>> Draw(const DrawPlace&, const GenerateHeader&,
                                                 const std::vector<const PromptRecord*>&, int64_t,
                                                 const AnswerFunction&) override {
    return absl::UnavailableError("no answer");
  }
  std::vector<std::string> TakeWarnings() override { return {"it is late"}; }
};

class BatchSamplerTest : public PpoTest {};

TEST_F(BatchSamplerTest, TellsWhatThereIsToKnowOfADrawThatFails) {
  const RunConfig config = services_.MakeConfig(scratch_.path(), 1);
  const auto prompts = Prompts::Open(config, tokenizer_).value();
  const Services clients = ConnectServices(config, &cancellation_).value();
  NoAnswers answers;
  std::vector<std::string> warnings;
  BatchSampler sampler(config, *prompts, tokenizer_, answers, *clients.scorer, 0,
                       {.begin = [](const std::string&, int64_t) {},
                        .done = [](int64_t) {},
                        .warn =
                            [&warnings](const std::string& warning) {
                              warnings.push_back(warning);
                              return absl::CancelledError("the disk is full");
                            }});
  Metrics metrics;
  EXPECT_EQ(sampler.Draw(2, 0, &metrics).status(), absl::UnavailableError("no answer"));
  EXPECT_THAT(warnings, ElementsAre("step 3: it is late"));
}

}  // namespace
}  // namespace quartet
