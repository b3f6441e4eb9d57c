#include "orchestrator/terminal/command_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace quartet {
namespace {

using ::testing::HasSubstr;

absl::StatusOr<CommandLine> Parse(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "program");
  return CommandLine::Parse(static_cast<int>(arguments.size()), arguments.data(),
                            {{"config", "FILE", "help"}, {"set", "X", "help", true}, {"launch", "", "help"}});
}

TEST(CommandLine, ReadsValuesSwitchesAndRepeatedFlags) {
  const auto line = Parse({"--config=a", "--set", "x=1", "--set=y=2", "--launch"});
  ASSERT_TRUE(line.ok()) << line.status();
  EXPECT_EQ(line->Get("config"), "a");
  EXPECT_EQ(line->GetAll("set"), (std::vector<std::string>{"x=1", "y=2"}));
  EXPECT_TRUE(line->Has("launch"));
  EXPECT_FALSE(line->help());
}

TEST(CommandLine, SaysWhatIsWrong) {
  EXPECT_THAT(std::string(Parse({"--confg=a"}).status().message()), HasSubstr("unknown flag --confg"));
  EXPECT_THAT(std::string(Parse({"--config"}).status().message()), HasSubstr("--config needs a value"));
  EXPECT_THAT(std::string(Parse({"--config=a", "--config=b"}).status().message()), HasSubstr("given twice"));
  EXPECT_THAT(std::string(Parse({"--launch=yes"}).status().message()), HasSubstr("takes no value"));
  EXPECT_THAT(std::string(Parse({"file"}).status().message()), HasSubstr("\"file\" is not a flag"));
}

}  // namespace
}  // namespace quartet
