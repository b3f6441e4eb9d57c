#include "orchestrator/session/run_program.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <new>
#include <stdexcept>

namespace quartet {
namespace {

TEST(RunProgramDeathTest, AnExceptionIsCode1AndASentenceOnceAllIsUnwound) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto run = [](auto error) {
    struct Held {
      ~Held() { fprintf(stderr, "let go\n"); }
    };
    char name[] = "sft";
    char* argv[] = {name};
    exit(RunProgram(1, argv, {.program = "sft", .before = "", .flags = {}},
                    [&](TerminalView&, Cancellation&) -> absl::Status {
                      const Held held;
                      throw error;
                    }));
  };
  EXPECT_EXIT(run(std::bad_alloc()), ::testing::ExitedWithCode(1), "let go\nsft: out of memory: ");
  EXPECT_EXIT(run(std::runtime_error("odd")), ::testing::ExitedWithCode(1), "let go\nsft: odd");
}

}  // namespace
}  // namespace quartet
