#include "orchestrator/terminal/terminal_view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <string>

namespace quartet {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

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

TEST(TerminalView, WritesPlainLinesWhereThereIsNoTerminal) {
  const std::string text = Written(false, [](TerminalView& view) {
    view.Begin("generate", 10);
    view.Progress(5);
    view.Print("step 1");
    view.End();
  });
  EXPECT_EQ(text, "step 1\n");
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

TEST(TerminalView, DrawsBarsInWholeCharacters) {
  EXPECT_EQ(TerminalView::Bar(0, 3, 6), "[......] 0/3");
  EXPECT_EQ(TerminalView::Bar(2, 3, 6), "[####..] 2/3");
  EXPECT_EQ(TerminalView::Bar(9, 3, 6), "[######] 9/3");
  EXPECT_EQ(TerminalView::Bar(0, 0, 2), "[..] 0/0");
}

}  // namespace
}  // namespace quartet
