#include "orchestrator/session/run_session.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "orchestrator/testing/scratch_folder.h"

namespace quartet {
namespace {

class TemplateDateTest : public ::testing::Test {
 protected:
  TemplateDateTest() {
    config_.set_run_dir(scratch_.path() + "/run");
    config_.mutable_actor()->set_pretrain("core/tokenizer/testdata/byte_level");
    config_.mutable_data()->set_apply_chat_template(true);
    config_.mutable_data()->set_tokenizer_chat_template(
        scratch_.Write("dated.jinja", "{{ strftime_now('%d %b %Y') }}: {{ messages[0].content }}"));
  }
  // What the model reads of a run that begins, or goes on, on this day.
  static std::string Text(absl::CivilDay today, RunConfig* config, bool continues = true) {
    const auto tokenizer = LoadTokenizerOfRun("actor", continues, today, config);
    if (!tokenizer.ok()) return std::string(tokenizer.status().message());
    return (*tokenizer)->ApplyChatTemplate({{"user", "hi"}}, true).value();
  }
  // The run has begun with `config`.
  void Begin(const RunConfig& config) { scratch_.Write("run/run.textproto", PrintRunConfig(config)); }

  const absl::CivilDay first_{2025, 12, 31}, second_{2026, 1, 1};
  const ScratchFolder scratch_;
  RunConfig config_;
};

TEST_F(TemplateDateTest, StaysThatOfTheFirstDay) {
  RunConfig begun = config_;
  EXPECT_EQ(Text(first_, &begun), "31 Dec 2025: hi");
  EXPECT_EQ(begun.data().template_date(), "2025-12-31");
  Begin(begun);
  RunConfig again = config_;
  again.mutable_train()->set_load_checkpoint(true);
  EXPECT_EQ(Text(second_, &again), "31 Dec 2025: hi");
  EXPECT_EQ(again.data().template_date(), "2025-12-31") << "for run.textproto, which is written anew";
}

TEST_F(TemplateDateTest, OfARunThatIsNotContinuedIsItsOwn) {
  RunConfig begun = config_;
  EXPECT_EQ(Text(first_, &begun), "31 Dec 2025: hi");
  Begin(begun);
  RunConfig anew = config_;
  EXPECT_EQ(Text(second_, &anew), "01 Jan 2026: hi");
  RunConfig evaluated = config_;
  evaluated.mutable_train()->set_load_checkpoint(true);
  EXPECT_EQ(Text(second_, &evaluated, /*continues=*/false), "01 Jan 2026: hi");
}

TEST_F(TemplateDateTest, IsWhatTheConfigurationSays) {
  config_.mutable_data()->set_template_date("2024-02-29");
  EXPECT_EQ(Text(first_, &config_), "29 Feb 2024: hi");
  EXPECT_EQ(config_.data().template_date(), "2024-02-29");
}

TEST_F(TemplateDateTest, IsOfNoConfigurationWhoseTemplateWritesNone) {
  RunConfig plain = config_;
  plain.mutable_data()->set_apply_chat_template(false);
  ASSERT_TRUE(LoadTokenizerOfRun("actor", true, first_, &plain).ok());
  EXPECT_EQ(plain.data().template_date(), "");
  config_.mutable_data()->set_tokenizer_chat_template(scratch_.Write("plain.jinja", "{{ messages[0].content }}"));
  EXPECT_EQ(Text(first_, &config_), "hi");
  EXPECT_EQ(config_.data().template_date(), "");
}

}  // namespace
}  // namespace quartet
