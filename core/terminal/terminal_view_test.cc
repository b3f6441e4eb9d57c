#include "core/terminal/terminal_view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <string>

namespace quartet {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// What `use` makes a view write.
template <typename Use>
std::string Written(bool live, Use use) {
  char* text = nullptr;
  size_t size = 0;
  std::FILE* out = open_memstream(&text, &size);
  {
    TerminalView view(out, live);
    use(view);
  }
  std::fclose(out);
  std::string result(text, size);
  free(text);
  return result;
}

TEST(TerminalView, EscapesWhatATerminalWouldObeyInTextsFromOutside) {
  const std::string text =
      Written(false, [](TerminalView& view) { view.Print("prompt: \x1b]0;mine\x07 of\ntwo lines"); });
  EXPECT_EQ(text, "prompt: \\x1b]0;mine\\x07 of\ntwo lines\n");
}

TEST(TerminalView, WritesPlainLinesWhereThereIsNoTerminal) {
  const std::string text = Written(false, [](TerminalView& view) {
    view.Begin("generate", 10);
    view.Progress(5);
    view.Print("step 1");
    view.End();
  });
  EXPECT_EQ(text, "step 1\n");
}

TEST(TerminalView, SaysOnceWhatIsWaitedFor) {
  const std::string text = Written(true, [](TerminalView& view) {
    const auto show = view.ShowLoading();
    show("waiting for the rollout", "reading weights, 3 of 12");
    show("waiting for the rollout", "reading weights, 4 of 12");
    show("waiting for the scorer", "");
  });
  EXPECT_THAT(text, AllOf(HasSubstr("waiting for the rollout\n"), HasSubstr("waiting for the scorer\n")));
  EXPECT_EQ(text.find("waiting for the rollout\n"), text.rfind("waiting for the rollout\n"));
}

TEST(TerminalView, ShowsWhatIsBeingDoneWithABarOnATerminal) {
  const std::string text = Written(true, [](TerminalView& view) {
    view.Begin("generate", 10);
    view.Progress(5);
    view.Print("step 1");
  });
  EXPECT_THAT(text, AllOf(HasSubstr("step 1\n"), HasSubstr("generate"), HasSubstr("############............] 5/10")));
  EXPECT_EQ(text.substr(text.size() - 4), "\r\033[K") << "nothing is left of the live line";
}

TEST(TerminalView, SaysNowAndThenWhatIsBeingDoneWhereThereIsNoTerminal) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  std::FILE* in = fdopen(ends[0], "r");
  std::FILE* out = fdopen(ends[1], "w");
  char line[256] = "";
  {
    TerminalView view(out, false, absl::Milliseconds(1));
    view.Begin("evaluation", 24);
    view.Progress(12, "the twelfth");
    while (std::string(line).find("the twelfth") == std::string::npos) {
      ASSERT_NE(std::fgets(line, sizeof line, in), nullptr);
    }
  }
  EXPECT_THAT(line, AllOf(StartsWith("evaluation  "), EndsWith(" s  [############............] 12/24  the twelfth\n")));
  std::fclose(out);
  std::fclose(in);
}

TEST(TerminalView, SaysHowLongTheRestWillTake) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  std::FILE* in = fdopen(ends[0], "r");
  std::FILE* out = fdopen(ends[1], "w");
  char line[256] = "";
  {
    TerminalView view(out, false, absl::Milliseconds(1));
    view.Begin("checking rows", 4'000);
    view.Progress(1);
    while (std::string(line).find("left") == std::string::npos) {
      ASSERT_NE(std::fgets(line, sizeof line, in), nullptr);
    }
  }
  // A row took two seconds or, beside others, longer.
  EXPECT_THAT(line, AllOf(HasSubstr("] 1/4000  "), HasSubstr(" h "), EndsWith(" left\n")));
  std::fclose(out);
  std::fclose(in);
}

TEST(TerminalView, DrawsBarsInWholeCharacters) {
  EXPECT_EQ(TerminalView::Bar(0, 3, 6), "[......] 0/3");
  EXPECT_EQ(TerminalView::Bar(2, 3, 6), "[####..] 2/3");
  EXPECT_EQ(TerminalView::Bar(9, 3, 6), "[######] 9/3");
  EXPECT_EQ(TerminalView::Bar(0, 0, 2), "[..] 0/0");
}

}  // namespace
}  // namespace quartet
