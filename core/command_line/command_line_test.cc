#include "core/command_line/command_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstdlib>
#include <new>
#include <string>
#include <thread>

#include "core/base/files/files.h"

namespace quartet {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Optional;

struct Values {
  std::string config, dtype = "bf16";
  std::vector<std::string> set;
  bool launch = false;
  std::optional<int> ranks;
  double rate = 2, tflops = 0;
};

CommandLine LineOf(Values* values) {
  return {
      .program = "program",
      .before = "Flags:\n",
      .flags = {{"config", "FILE", "What is read.", Text(&values->config)},
                {"set", "PATH=VALUE", "Overrides\none field.", Texts(&values->set)},
                {"launch", "", "Starts it.", Switch(&values->launch)},
                {"ranks", "N", "Processes.", AtLeast(1, &values->ranks)},
                {"rate", "R", "Of learning.", AtLeast(0.0, &values->rate)},
                {"tflops", "N", "Of a GPU.", Positive(&values->tflops, 1e12)},
                {"dtype", "NAME", "Of all.", OneOf<std::string>({{"bf16", "bf16"}, {"fp32", "fp32"}}, &values->dtype)}},
      .after = "Behind them.\n",
      .check =
          [values] { return values->launch ? absl::OkStatus() : absl::InvalidArgumentError("--launch is missing"); },
      .column = 22};
}

absl::StatusOr<Asked> Parse(std::vector<const char*> arguments, Values* values) {
  arguments.insert(arguments.begin(), "program");
  return ParseFlags(static_cast<int>(arguments.size()), arguments.data(), LineOf(values).flags);
}

std::string ErrorOf(const std::vector<const char*>& arguments) {
  Values values;
  return std::string(Parse(arguments, &values).status().message());
}

std::optional<int> CodeOf(std::vector<const char*> arguments) {
  Values values;
  arguments.insert(arguments.begin(), "program");
  return ReadCommandLine(static_cast<int>(arguments.size()), arguments.data(), LineOf(&values));
}

TEST(ParseFlags, StoresValuesSwitchesAndRepeatedFlags) {
  Values values;
  const auto asked = Parse({"--config=a", "--set", "x=1", "--set=y=2", "--launch", "--ranks=2", "--rate=0",
                            "--tflops=2.5", "--dtype", "fp32"},
                           &values);
  ASSERT_TRUE(asked.ok()) << asked.status();
  EXPECT_EQ(*asked, Asked::kNothing);
  EXPECT_EQ(values.config, "a");
  EXPECT_THAT(values.set, ElementsAre("x=1", "y=2"));
  EXPECT_TRUE(values.launch);
  EXPECT_EQ(values.ranks, 2);
  EXPECT_EQ(values.rate, 0);
  EXPECT_EQ(values.tflops, 2.5e12);
  EXPECT_EQ(values.dtype, "fp32");
}

TEST(ParseFlags, LeavesWhatIsNotGivenAsItIs) {
  Values values;
  EXPECT_EQ(Parse({"--help"}, &values).value(), Asked::kHelp);
  EXPECT_EQ(Parse({"--version"}, &values).value(), Asked::kVersion);
  EXPECT_EQ(Parse({"--help", "--version"}, &values).value(), Asked::kHelp);
  EXPECT_EQ(values.dtype, "bf16");
  EXPECT_EQ(values.rate, 2);
  EXPECT_FALSE(values.ranks.has_value() || values.launch);
}

TEST(ParseFlags, SaysWhatIsWrong) {
  EXPECT_EQ(ErrorOf({"--confg=a"}),
            "unknown flag --confg; there are --config, --set, --launch, --ranks, --rate, --tflops, --dtype, --help, "
            "--version (--help explains them)");
  EXPECT_EQ(ErrorOf({"--config"}), "--config needs a value: --config=FILE");
  EXPECT_EQ(ErrorOf({"--config="}), "--config needs a value: --config=FILE");
  EXPECT_EQ(ErrorOf({"--config=a", "--config=b"}), "--config is given twice");
  EXPECT_EQ(ErrorOf({"--launch", "--launch"}), "--launch is given twice");
  EXPECT_EQ(ErrorOf({"--launch=yes"}), "--launch takes no value");
  EXPECT_THAT(ErrorOf({"file"}), HasSubstr("\"file\" is not a flag; there are --config, "));
}

TEST(ParseFlags, SaysWhichValuesAreAllowed) {
  for (const char* ranks : {"0", "1.5", "two", "99999999999"}) {
    EXPECT_EQ(ErrorOf({"--ranks", ranks}),
              absl::StrCat("--ranks is \"", ranks, "\"; allowed: a whole number of at least 1"));
  }
  for (const char* rate : {"-1", "nan", "inf", "fast"}) {
    EXPECT_EQ(ErrorOf({"--rate", rate}), absl::StrCat("--rate is \"", rate, "\"; allowed: a number of at least 0"));
  }
  for (const char* tflops : {"0", "nan", "inf", "many"}) {
    EXPECT_EQ(ErrorOf({"--tflops", tflops}), absl::StrCat("--tflops is \"", tflops, "\"; allowed: a number above 0"));
  }
  EXPECT_EQ(ErrorOf({"--dtype=fp16"}), "--dtype is \"fp16\"; allowed: bf16, fp32");
}

TEST(HelpText, HasOneColumnForWhatFlagsDo) {
  Values values;
  EXPECT_EQ(HelpText(LineOf(&values)),
            "Flags:\n"
            "  --config=FILE       What is read.\n"
            "  --set=PATH=VALUE    Overrides\n"
            "                      one field.\n"
            "  --launch            Starts it.\n"
            "  --ranks=N           Processes.\n"
            "  --rate=R            Of learning.\n"
            "  --tflops=N          Of a GPU.\n"
            "  --dtype=NAME        Of all.\n"
            "  --help              This text.\n"
            "  --version           Commit, build and wire protocol.\n"
            "Behind them.\n");
}

TEST(ReadCommandLine, EndsTheProgramAfterHelpAndWhereSomethingIsWrong) {
  EXPECT_THAT(CodeOf({"--help"}), Optional(0)) << "though --launch is missing";
  EXPECT_THAT(CodeOf({"--version"}), Optional(0));
  EXPECT_THAT(CodeOf({"--ranks=0"}), Optional(2));
  EXPECT_THAT(CodeOf({}), Optional(2)) << "--launch is missing";
  EXPECT_EQ(CodeOf({"--launch"}), std::nullopt);
}

TEST(Finish, TellsWrongInputAndSignalsFromWhatFailed) {
  EXPECT_EQ(Finish("program", absl::OkStatus()), 0);
  EXPECT_EQ(Finish("program", absl::CancelledError("stopped by SIGINT")), 130);
  EXPECT_EQ(Finish("program", absl::InvalidArgumentError("wrong")), 2);
  EXPECT_EQ(Finish("program", absl::NotFoundError("not there")), 2);
  EXPECT_EQ(Finish("program", absl::AlreadyExistsError("there")), 2);
  EXPECT_EQ(Finish("program", absl::PermissionDeniedError("another's")), 2);
  EXPECT_EQ(Finish("program", absl::UnavailableError("lost")), 1);
  EXPECT_EQ(Finish("program", absl::AbortedError("in use")), 1);
}

TEST(FinishDeathTest, EscapesWhatATerminalObeys) {
  const auto end = [] { exit(Finish("program", absl::InvalidArgumentError("the key \x1b[2J is wrong"))); };
  EXPECT_EXIT(end(), ::testing::ExitedWithCode(2), "^program: the key .x1b.2J is wrong");
}

TEST(Finish, CutsAMessageThatQuotesTooMuch) {
  ::testing::internal::CaptureStderr();
  Finish("program", absl::InvalidArgumentError("it is \"" + std::string(5'000'000, 'x') + "\""));
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_LT(said.size(), 20'000);
  EXPECT_THAT(said, ::testing::EndsWith("x ... (5000008 bytes)\n"));
}

TEST(ParseFlags, CutsAndEscapesWhatItQuotes) {
  const std::string value(100'000, 'x'), flag = "--" + value, escape = "--ranks=\x1b[2J";
  for (const std::string& argument : {value, flag, escape, "--ranks=" + value}) {
    const std::string message = ErrorOf({argument.c_str()});
    EXPECT_LT(message.size(), 500) << message;
    EXPECT_EQ(message.find('\x1b'), std::string::npos) << message;
  }
}

TEST(ReadCommandLineDeathTest, AfterItAnExceptionOfAThreadIsCode1AndASentence) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto run = [] {
    ASSERT_EQ(CodeOf({"--launch"}), std::nullopt);
    std::thread([] { throw std::bad_alloc(); }).join();
  };
  EXPECT_EXIT(run(), ::testing::ExitedWithCode(1), "^program: out of memory: ");
}

// Writes more than a file may have, and leaves with what was said of it on standard error.
[[noreturn]] void WriteBeyondTheLimit(const std::string& path) {
  Values values;
  const char* argv[] = {"program", "--launch"};
  if (ReadCommandLine(2, argv, LineOf(&values)).has_value()) std::exit(9);
  const rlimit limit = {.rlim_cur = 1000, .rlim_max = 1000};
  if (setrlimit(RLIMIT_FSIZE, &limit) != 0) std::exit(9);
  std::exit(Finish("program", AtomicWriteFile(path, std::string(2000, 'x'))));
}

TEST(CommandLine, MakesAWriteBeyondTheLimitOfAFilesSizeAnErrorWithItsPath) {
  const std::string path = ::testing::TempDir() + "/large";
  EXPECT_EXIT(WriteBeyondTheLimit(path), ::testing::ExitedWithCode(1), "write .*/large: .*File too large");
}

}  // namespace
}  // namespace quartet
