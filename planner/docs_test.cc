// docs/memory.md, docs/capacity.md and testdata/plans.md show plans: below each command that they give stands what the
// command prints.
//
// `bazel run //planner:docs_test` writes them anew.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace quartet {
namespace {

constexpr const char* kDocuments[] = {"docs/memory.md", "docs/capacity.md", "planner/testdata/plans.md"};
constexpr char kCommand[] = "`./bazelw run //orchestrator:plan -- --config=examples/";

std::string Read(const std::string& path) {
  std::ifstream file(path);
  return std::string((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
}

struct Printed {
  std::string text;
  int exit_code = -1;
};

// A plan on its way.
std::FILE* StartPlan(const std::string& line) {
  const size_t begin = line.find("--config=");
  return popen(absl::StrCat("planner/plan ", line.substr(begin, line.size() - 1 - begin)).c_str(), "r");
}

Printed AwaitPlan(std::FILE* output) {
  Printed printed;
  if (output == nullptr) return printed;
  char buffer[4096];
  for (size_t n; (n = std::fread(buffer, 1, sizeof buffer, output)) > 0;) printed.text.append(buffer, n);
  const int status = pclose(output);
  printed.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return printed;
}

// Compares one document, and writes it anew where asked to. The commands that it gives.
std::string CheckDocument(const std::string& document) {
  const std::string before = Read(document);
  const std::vector<std::string> lines = absl::StrSplit(before, '\n');
  std::vector<std::string> rewritten;
  std::string commands;
  std::deque<std::FILE*> plans;  // all at once, in the order of their lines
  for (const std::string& line : lines) {
    if (absl::StartsWith(line, kCommand)) plans.push_back(StartPlan(line));
  }
  for (size_t i = 0; i < lines.size(); ++i) {
    rewritten.push_back(lines[i]);
    if (!absl::StartsWith(lines[i], kCommand)) continue;
    const bool shows =
        absl::EndsWith(lines[i], "`") && i + 2 < lines.size() && lines[i + 1].empty() && lines[i + 2] == "```";
    EXPECT_TRUE(shows) << document << ": below \"" << lines[i] << "\" no printed plan begins";
    if (!shows) return commands;
    absl::StrAppend(&commands, lines[i], "\n");
    const Printed printed = AwaitPlan(plans.front());
    plans.pop_front();
    EXPECT_TRUE(printed.exit_code == 0 || printed.exit_code == 3) << lines[i] << " ends with " << printed.exit_code;
    std::string shown;
    for (i += 3; i < lines.size() && lines[i] != "```"; ++i) absl::StrAppend(&shown, lines[i], "\n");
    EXPECT_EQ(shown, printed.text);
    absl::StrAppend(&rewritten.emplace_back(), "\n```\n", printed.text, "```");
  }
  if (const char* workspace = getenv("BUILD_WORKSPACE_DIRECTORY"); workspace != nullptr) {
    std::ofstream(absl::StrCat(workspace, "/", document)) << absl::StrJoin(rewritten, "\n");
  }
  return commands;
}

TEST(PlansInDocuments, AreWhatThePlannerPrints) {
  unsetenv("BUILD_WORKING_DIRECTORY");  // the examples are those beside this test
  std::string commands;
  for (const char* document : kDocuments) commands += CheckDocument(document);
  for (const auto& entry : std::filesystem::directory_iterator("examples")) {
    if (entry.path().extension() != ".textproto") continue;
    if (!absl::StrContains(Read(entry.path()), "cluster {")) continue;
    EXPECT_THAT(commands, testing::HasSubstr(entry.path().string())) << "an example that is not shown";
  }
}

}  // namespace
}  // namespace quartet
