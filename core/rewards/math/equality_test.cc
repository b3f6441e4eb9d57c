#include "core/rewards/math/equality.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "core/rewards/math/text/answer.h"

namespace quartet::math {
namespace {

bool Equal(std::string_view left, std::string_view right) { return Compare(left, right) == Truth::kYes; }

bool Same(const std::string& label, const std::string& response) {
  return Equal(AnswerOfLabel(label), AnswerIn(response));
}

// Where math-verify 0.9.0 errs: by label and response.
const std::set<std::pair<std::string, std::string>>& Better() {
  static const auto* better = new std::set<std::pair<std::string, std::string>>{
      {"1234567", "\\boxed{1\\,234\\,567}"},
      {"3+4i", "\\boxed{(2+i)^2}"},
      {"(-\\infty,3]", "\\boxed{x \\le 3}"},
      {"\\frac{-1\\pm\\sqrt{5}}{2}", "\\boxed{\\frac{-1+\\sqrt5}{2}, \\frac{-1-\\sqrt5}{2}}"},
      {"2<x<5", "\\boxed{5 > x > 2}"},
      {"\\frac{1}{2004!}", "\\boxed{\\frac{1}{2006!}}"},
      {"\\frac{1}{2}", "\\boxed{\\sin 30^\\circ}"},
  };
  return *better;
}

TEST(MathEquality, AgreesWithMathVerify) {
  std::ifstream in("core/rewards/math/testdata/golden.json");
  const nlohmann::json golden = nlohmann::json::parse(in);
  ASSERT_GT(golden["cases"].size(), 150);
  for (const nlohmann::json& c : golden["cases"]) {
    const std::string label = c["label"], response = c["response"];
    EXPECT_EQ(Same(label, response), c["equal"].get<bool>() != Better().contains({label, response}))
        << label << " and " << response;
  }
}

// Kinds of answers that people report to be judged otherwise than a reader would.
TEST(MathEquality, JudgesAsACarefulReaderDoes) {
  std::ifstream in("core/rewards/math/testdata/reader.jsonl");
  int cases = 0;
  for (std::string line; std::getline(in, line); ++cases) {
    const nlohmann::json c = nlohmann::json::parse(line);
    const std::string label = c["label"], response = c["response"];
    EXPECT_EQ(Same(label, response), c["want"] == 1) << c["kind"] << ": " << label << " and " << response;
  }
  EXPECT_GT(cases, 500);
}

TEST(MathEquality, FindsTheAnswerThatIsGivenLast) {
  EXPECT_EQ(AnswerIn("$1$, so \\boxed{2}, as $3$"), "2");
  EXPECT_EQ(AnswerIn("\\boxed{1} and \\boxed{2}"), "1 , 2");
  EXPECT_EQ(AnswerIn("\\boxed{1}. But wait: it is\n\\boxed{2}"), "2");
  EXPECT_EQ(AnswerIn("so $x = 3$ and $y = 4$."), "x = 3 , y = 4");
  EXPECT_EQ(AnswerIn("$1$, $2$, and \\(3\\)"), "1 , 2 , 3");
  EXPECT_EQ(AnswerIn("\\boxed{2} \\text{ or } \\boxed{3}"), "2 or 3");
  EXPECT_EQ(AnswerIn("We have $n=6$, so the answer is $42$."), "42");
  EXPECT_EQ(AnswerIn("for $3$ workers, $42$ days"), "42") << "\"or\" inside a word joins nothing";
  EXPECT_EQ(AnswerIn("With $k = 2$ for all, hence $5$"), "5");
  EXPECT_EQ(AnswerIn("Final answer: $46$, not $60$."), "46");
  EXPECT_EQ(AnswerIn("Final answer: $46$. It is more than $40$."), "46");
  EXPECT_EQ(AnswerIn("The final answer is $x = 1$ or $x = 2$, as $y > 0$"), "x = 1 or x = 2");
  EXPECT_EQ(AnswerIn("**Final answer**\n\n46"), "46");
  EXPECT_EQ(AnswerIn("The answer is \xE2\x88\x92"
                     "17."),
            "-17");
  EXPECT_EQ(AnswerIn("\\[ x = 3 \\]"), " x = 3 ");
  EXPECT_EQ(AnswerIn("as $x^2 = 9$ the result is 3."), "3");
  EXPECT_EQ(AnswerIn("x/2 + 1"), "x/2 + 1");
  EXPECT_EQ(AnswerIn("I do not know"), "");
  EXPECT_EQ(AnswerOfLabel("x/2 + 1"), "x/2 + 1");
}

TEST(MathEquality, IsExactForNumbersOfAnySize) {
  EXPECT_TRUE(Equal("2^{1000}", "4^{500}"));
  EXPECT_FALSE(Equal("2^{1000}", "2^{1000} + 1"));
  EXPECT_FALSE(Equal("\\frac{1}{3}", "\\frac{333333333333333333333}{1000000000000000000000}"));
  EXPECT_FALSE(Equal("(x+1)^{20}", "(x+1)^{20} + \\frac{1}{10^{30}}"));
}

TEST(MathEquality, TellsTinyAndHugeNumbersApart) {
  for (const auto& [a, b] :
       std::vector<std::pair<const char*, const char*>>{{"1.6\\times 10^{-19}", "3.2\\times 10^{-19}"},
                                                        {"1.6\\times 10^{-19}", "0"},
                                                        {"10^{-30}", "2\\cdot 10^{-30}"},
                                                        {"e^{-100}", "e^{-101}"},
                                                        {"2^{100000}", "3^{100000}"},
                                                        {"2^{100000}", "2^{100001}"},
                                                        {"10000!", "20000!"},
                                                        {"\\infty", "2^{100000}"},
                                                        {"\\infty", "-\\infty"},
                                                        {"e^{1000000}", "e^{1000001}"},
                                                        {"e^{\\pi\\sqrt{163}}", "262537412640768744"},
                                                        {"\\binom{20000}{10000}", "\\binom{20000}{9999}"},
                                                        {"\\sqrt{2}", "\\sqrt{2} + 10^{-200}"},
                                                        {"2^{100000} + 0.5", "2^{100000} + 0.25"},
                                                        {"2^{900000} + 2", "2^{900000} + 1"},
                                                        {"\\sin(2^{900000} + 2)", "\\sin(2^{900000} + 1)"},
                                                        {"e^{99999} + 1", "e^{99999} + 2"}}) {
    EXPECT_FALSE(Equal(a, b)) << a << " and " << b;
    EXPECT_FALSE(Equal(b, a)) << b << " and " << a;
  }
}

TEST(MathEquality, ReadsScientificNotation) {
  for (const auto& [label, response] : std::vector<std::pair<const char*, const char*>>{
           {"1.6e-19", "\\boxed{1.6\\times 10^{-19}}"},
           {"1.6e-19", "\\boxed{1.6E-19}"},
           {"1.6e-19", "The answer is 1.6e-19."},
           {"1.6e-19", "The charge is 1.6 x 10^-19 coulombs."},
           {"1.6e-19", "The charge is 1.6 \xC3\x97 10\xE2\x81\xBB\xC2\xB9\xE2\x81\xB9."},
           {"1.6e-19", "1.6 x 10^-19"},
           {"1.6e-19", "It is about 1.6*10^{-19}, then"},
           {"-1.6e-19", "The answer is -1.6e-19"},
           {"1e-05", "$0.00001$"},
           {"100000", "\\boxed{1.0e5}"},
           {"3e8", "so it is 3e+8 m/s"},
           {"1024", "The answer is 2^10."},
           {"\\frac{1}{2}", "\\boxed{5e-1}"},
           {"2e-1", "\\boxed{2e - 1}"},
           {"2e-1", "\\boxed{4.436564}"},
           {"2e^2", "\\boxed{2e\\cdot e}"},
           {"x^{19}", "\\boxed{x\xC2\xB9\xE2\x81\xB9}"}}) {
    EXPECT_TRUE(Same(label, response)) << label << " and " << response;
  }
  for (const auto& [label, response] :
       std::vector<std::pair<const char*, const char*>>{{"1.6e-19", "\\boxed{-14.650749}"},
                                                        {"1.6e-19", "\\boxed{3.2e-19}"},
                                                        {"1.6e-19", "The charge is 3.2 x 10^-19."},
                                                        {"-19", "The charge is 1.6 x 10^-19."},
                                                        {"10", "The answer is 2^10."},
                                                        {"19", "The answer is 1.6e-19."},
                                                        {"1e99999", "\\boxed{2e99999}"}}) {
    EXPECT_FALSE(Same(label, response)) << label << " and " << response;
  }
  EXPECT_EQ(AnswerIn("There are 12 of them, item3e5 is none"), "12");
}

TEST(MathEquality, SeesWhatIsTheSameInAnotherForm) {
  for (const auto& [a, b] :
       std::vector<std::pair<const char*, const char*>>{{"\\sqrt{2}\\cdot\\sqrt{3}", "\\sqrt{6}"},
                                                        {"\\sin(\\pi/6)", "\\frac{1}{2}"},
                                                        {"\\sin(\\pi)", "0"},
                                                        {"\\ln 8", "3\\ln 2"},
                                                        {"e^{i\\pi}", "-1"},
                                                        {"\\sqrt{9+4\\sqrt{5}}", "2+\\sqrt{5}"},
                                                        {"(7^{3/7})^7", "343"},
                                                        {"\\cos(\\pi/7)+\\cos(3\\pi/7)+\\cos(5\\pi/7)", "\\frac{1}{2}"},
                                                        {"\\sqrt[3]{-8}", "-2"},
                                                        {"10000!", "10000\\cdot 9999!"},
                                                        {"2^{100000}", "4^{50000}"},
                                                        {"\\log_2 8", "3"},
                                                        {"\\infty", "\\infty"},
                                                        {"1.6\\times 10^{-19}", "16\\times 10^{-20}"},
                                                        {"0.333333", "\\frac{1}{3}"},
                                                        {"3.141593", "\\pi"},
                                                        {"\\sin^2 x + \\cos^2 x", "1"},
                                                        {"\\lfloor \\pi^{10} \\rfloor", "93648"}}) {
    EXPECT_TRUE(Equal(a, b)) << a << " and " << b;
    EXPECT_TRUE(Equal(b, a)) << b << " and " << a;
  }
}

// Beyond and between the numbers that are in them, however large.
TEST(MathEquality, ComparesWhereExpressionsTakeAnotherForm) {
  for (const auto& [a, b] : std::vector<std::pair<const char*, const char*>>{{"|x+80|", "x+80"},
                                                                             {"|x-10^{40}|", "10^{40}-x"},
                                                                             {"|x+y+1000|", "x+y+1000"},
                                                                             {"\\sqrt{(x+5000)^2}", "x+5000"},
                                                                             {"\\lfloor x/10^{9} \\rfloor", "0"},
                                                                             {"\\max(0, 1-|x-5000|)", "0"},
                                                                             {"\\max(0, 1-|2x+5000|)", "0"},
                                                                             {"\\max(0, 1-|x/70-500|)", "0"},
                                                                             {"\\max(0, \\frac{1}{10^6}-|x|)", "0"},
                                                                             {"\\max(x, 10^7)", "10^7"},
                                                                             {"|x-10^7|+|x-10^8|", "11\\cdot 10^7-2x"},
                                                                             {"n \\bmod 5000", "n"}}) {
    EXPECT_FALSE(Equal(a, b)) << a << " and " << b;
    EXPECT_FALSE(Equal(b, a)) << b << " and " << a;
  }
  EXPECT_TRUE(Equal("|x-1000|+|x-3000|", "|3000-x|+|1000-x|"));
  EXPECT_TRUE(Equal("\\sqrt{x^2-2000x+10^6}", "|x-1000|"));
  EXPECT_TRUE(Equal("\\max(x, 1000)", "\\frac{x+1000+|x-1000|}{2}"));
}

TEST(MathEquality, SaysWhereItCannotDecide) {
  EXPECT_EQ(Compare("1/0", "2"), Truth::kUnknown);
  EXPECT_EQ(Compare("2", "\\{1, 9^{9^{9^{9^{9}}}} - 9^{9^{9^{9^{9}}}}\\}"), Truth::kNo) << "a number and two";
  EXPECT_EQ(Compare("(1, 3)", "(1, \\frac{3}{\\pi - \\pi})"), Truth::kUnknown);
  EXPECT_EQ(Compare("2", "3"), Truth::kNo);
  EXPECT_EQ(Compare("2", "\\sum_{k=1}^2 1"), Truth::kUnknown) << "no formula that is understood";
  EXPECT_EQ(Compare("x + x", "2x"), Truth::kYes);
}

TEST(MathEquality, IsNoWhereNothingIsSaid) {
  for (const char* text :
       {"", "\\frac", "\\frac{1}{0}", "\\frac.5", "\\frac1e5", "(", "\\sum_{k=1}^n k", "{", "}", "\\\\", "=", "x^"}) {
    EXPECT_FALSE(Equal("1", text)) << text;
    EXPECT_FALSE(Equal(text, "1")) << text;
  }
  EXPECT_FALSE(Equal("", ""));
}

TEST(MathEquality, BoundsTheWorkThatHostileAnswersCause) {
  const auto repeat = [](const std::string& text, int times) {
    std::string all;
    for (int i = 0; i < times; ++i) all += text;
    return all;
  };
  for (const std::string& text : std::vector<std::string>{repeat("(", 8000),
                                                          repeat("\\frac{", 1300),
                                                          repeat("|", 8000),
                                                          repeat("x^", 4000),
                                                          repeat("-", 8000),
                                                          repeat("{\\pm 1}", 1000),
                                                          repeat("9!", 3000) + "!",
                                                          repeat("9", 8000),
                                                          repeat("9^9^", 1000) + "9",
                                                          std::string("99999999999^{99999999999}"),
                                                          repeat("\\sqrt", 1500) + "2",
                                                          repeat("1/", 4000) + "1",
                                                          repeat("\\frac", 1500),
                                                          "2" + repeat("!", 8000),
                                                          repeat("\\cup ", 1500),
                                                          "2" + repeat("\\cup 2 ", 900),
                                                          repeat("2\\setminus ", 700),
                                                          repeat("1,", 4000) + "1",
                                                          repeat("\\sin ", 1500) + "(9^9^9^9^9)",
                                                          repeat("e^", 300) + "e",
                                                          "(" + repeat("\\sqrt{2}+", 700) + "1)^{99999999}",
                                                          repeat("\\Gamma ", 9) + "9",
                                                          "\\sin(10^{99999})",
                                                          "\\tan(e^{99999999})",
                                                          "(e^{99})" + repeat("!", 300),
                                                          "\\pi^{99999999999999999999}",
                                                          "\\lfloor e^{e^{e^{e}}} \\rfloor",
                                                          repeat("[1,2]\\cup", 700) + "[1,2]",
                                                          "5" + repeat("\\text{ m}", 900),
                                                          "5" + repeat(" m/s", 1500),
                                                          repeat("\\text{a1}", 1000),
                                                          repeat("0.\\overline{3}", 500),
                                                          repeat("^{1}C_", 1000) + "1",
                                                          repeat("{10 \\choose ", 500),
                                                          repeat("ab ", 2500),
                                                          repeat("x<1\\text{ or }", 400) + "x>2",
                                                          repeat("f(", 4000),
                                                          repeat("f(x_{1})+g(x^2)", 500),
                                                          repeat("|x+1|", 1500),
                                                          repeat("\\lfloor x/1000\\rfloor+n!+", 250) + "1",
                                                          repeat("(", 70) + "x" + repeat("\\bmod 9)", 70),
                                                          repeat("\\begin{vmatrix}1&2\\\\3&", 200),
                                                          "\\begin{vmatrix}" + repeat("x&", 4000) + "\\end{vmatrix}",
                                                          repeat("\\frac{d}{dx}", 600) + "x",
                                                          repeat("d/dx", 1500),
                                                          repeat("{}^{", 18) + "x" + repeat("}P_1", 18),
                                                          repeat("A^{-1}", 1300),
                                                          repeat("|(", 60) + "x" + repeat(")-1|", 60) + "<1",
                                                          repeat("(x^{24}-2)", 700) + "<1",
                                                          "x^{99999999}<1",
                                                          "x<" + repeat("9", 900),
                                                          "(x+10^{900})^{24}<0",
                                                          repeat("\\vec a\\times", 600) + "\\vec a"}) {
    EXPECT_FALSE(Equal("2", text)) << text.substr(0, 20);
  }
  for (const std::string& text :
       {repeat("$", 99999), repeat("\\(", 99999), repeat("\\[", 99999), repeat("$$ ", 99999), repeat("\\boxed{", 99999),
        repeat("final answer", 3000), repeat("1 a", 99999), repeat("answer is ", 9999), repeat("answer is 1+", 9999),
        repeat("(", 99999), repeat("\\frac{", 49999), repeat("1+", 99999), repeat("not $5$ ", 9999),
        repeat("#### 1 a\n", 9999), repeat("from 1 to ", 9999), repeat("5 km/", 9999)}) {
    (void)AnswerIn(text);
  }
}

}  // namespace
}  // namespace quartet::math
