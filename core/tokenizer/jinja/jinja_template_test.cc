#include "core/tokenizer/jinja/jinja_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

namespace quartet {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

std::string Render(const std::string& source, const Json& variables = Json::object()) {
  const auto parsed = JinjaTemplate::Parse(source);
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  if (!parsed.ok()) return "";
  const auto text = parsed->Render(variables);
  EXPECT_TRUE(text.ok()) << text.status();
  return text.value_or("");
}

std::string Error(const std::string& source, const Json& variables = Json::object()) {
  const auto parsed = JinjaTemplate::Parse(source);
  const absl::Status status = parsed.ok() ? parsed->Render(variables).status() : parsed.status();
  EXPECT_FALSE(status.ok()) << source;
  return std::string(status.message());
}

// Sources, variables and results of Jinja2 as transformers sets it up, written by tools/golden/make_jinja.py.
TEST(Jinja, RendersAsJinja2Does) {
  std::ifstream file("core/tokenizer/testdata/jinja.json");
  const Json golden = Json::parse(file);
  ASSERT_GE(golden.size(), 50);
  for (const Json& row : golden) EXPECT_EQ(Render(row[0], row[1]), row[2].get<std::string>()) << row[0];
}

// Python: datetime.date(2024, 2, 29).strftime(...).
TEST(Jinja, WritesTheDateThatItIsGiven) {
  const auto parsed = JinjaTemplate::Parse("{{ strftime_now('%d %b %Y, %A, day %j, %H:%M') }}");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->Render(Json::object(), absl::CivilDay(2024, 2, 29)).value(),
            "29 Feb 2024, Thursday, day 060, 00:00");
}

TEST(Jinja, NamesTheLineOfAnError) {
  EXPECT_THAT(Error("a\n{{ b.c }}"), HasSubstr("line 2: \"b\" is undefined"));
  EXPECT_THAT(Error("a\n\n{% if a %}"), HasSubstr("line 3: \"{% endif %}\" is missing"));
  EXPECT_THAT(Error("\n{{ 'a }}"), HasSubstr("does not end"));
  EXPECT_THAT(Error("{{ 1 + }}"), HasSubstr("an expression expected"));
  EXPECT_THAT(Error("{% endif %}"), HasSubstr("endif"));
  EXPECT_THAT(Error("{{ 1 $ 2 }}"), HasSubstr("'$'"));
  EXPECT_THAT(Error("{% break %}"), HasSubstr("outside of a loop"));
}

TEST(Jinja, RefusesByNameWhatItDoesNotKnow) {
  EXPECT_THAT(Error("{% include 'x' %}"), HasSubstr("\"include\""));
  EXPECT_THAT(Error("{{ 'x' | frob }}"), HasSubstr("the filter \"frob\""));
  EXPECT_THAT(Error("{{ 'x' is frob }}"), HasSubstr("the test \"frob\""));
  EXPECT_THAT(Error("{{ 'x'.zfill(3) }}"), HasSubstr("the method \"zfill\""));
  EXPECT_THAT(Error("{{ 'é'.upper() }}"), HasSubstr("text beyond ASCII"));
  EXPECT_THAT(Error("{{ 'x' | trim(characters='x') }}"), HasSubstr("the argument \"characters\""));
  EXPECT_THAT(Error("{{ lipsum() }}"), HasSubstr("the function \"lipsum\""));
  EXPECT_THAT(Error("{{ frob() }}"), HasSubstr("\"frob\" is undefined"));
  EXPECT_EQ(Render("{% if false %}{{ 'x' | frob }}{% endif %}ok"), "ok");
}

// Where Jinja2 raises.
TEST(Jinja, RefusesWhatHasNoMeaning) {
  EXPECT_THAT(Error("{{ 1 + 'a' }}"), HasSubstr("between int and text"));
  EXPECT_THAT(Error("{{ 1 < 'a' }}"), HasSubstr("between int and text"));
  EXPECT_THAT(Error("{{ {[1]: 2} }}"), HasSubstr("list cannot be a key"));
  EXPECT_THAT(Error("{% for x in none %}{% endfor %}"), HasSubstr("none cannot be iterated over"));
  EXPECT_THAT(Error("{{ missing.a }}"), HasSubstr("\"missing\" is undefined"));
  EXPECT_THAT(Error("{{ missing | tojson }}"), HasSubstr("undefined is not JSON"));
  EXPECT_THAT(Error("{{ {'a': 1}.update({'b': 2}) }}"), HasSubstr("cannot be changed"));
  EXPECT_THAT(Error("{{ ', '.join([1]) }}"), HasSubstr("int is not text"));
  // Written there as an address in memory.
  EXPECT_THAT(Error("{{ [1] | map('abs') }}"), HasSubstr("generator is printed"));
}

TEST(Jinja, SaysWhatTheTemplateSays) {
  EXPECT_THAT(Error("{{ raise_exception('no system message') }}"), HasSubstr("no system message"));
}

TEST(Jinja, StopsTemplatesWithoutEnd) {
  EXPECT_THAT(Error("{{ range(1000000000) }}"), HasSubstr("range()"));
  EXPECT_THAT(Error("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"), HasSubstr("deep"));
  EXPECT_THAT(Error("{{ " + std::string(100'000, '(') + " }}"), HasSubstr("nested deeper"));
  std::string sum = "{{ 1";
  for (int i = 0; i < 100'000; ++i) sum += "+1";
  EXPECT_THAT(Error(sum + " }}"), HasSubstr("operators in a row"));
  std::string blocks;
  for (int i = 0; i < 10'000; ++i) blocks += "{% if 1 %}";
  EXPECT_THAT(Error(blocks), HasSubstr("nested deeper"));
  EXPECT_THAT(Error("{% set r = range(99999) %}{% for a in r %}{% for b in r %}{% endfor %}{% endfor %}"),
              HasSubstr("steps"));
  EXPECT_THAT(Error("{{ 9223372036854775807 + 1 }}"), HasSubstr("too large"));
  EXPECT_THAT(Error("{{ 1 // 0 }}"), HasSubstr("zero"));
}

TEST(Jinja, ReadsTheNamesThatItDoesNotGiveValuesItself) {
  const auto reads = [](const std::string& source) {
    const auto parsed = JinjaTemplate::Parse(source);
    EXPECT_TRUE(parsed.ok()) << source << ": " << parsed.status();
    return parsed->Reads("x");
  };
  for (const char* source :
       {"{{ x }}", "{% if x is defined %}1{% endif %}", "{% for y in x %}{{ y }}{% endfor %}",
        "{{ {'a': [x]} | tojson }}", "{% for x in x %}{{ x }}{% endfor %}", "{% for x in y %}{% endfor %}{{ x }}",
        "{{ f(a=x) }}", "{{ y[x] }}", "{% if not x is defined %}{% set x = 1 %}{% endif %}{{ x }}", "{% set x = x %}",
        "{% macro f() %}{{ x }}{% endmacro %}", "{% macro f(a=x) %}{% endmacro %}", "{% with y = x %}{% endwith %}",
        "{% set x.y = 1 %}", "{{ 1 if x else 2 }}", "{% set y %}{{ x }}{% endset %}",
        "{% if y %}{% set x = 1 %}{% endif %}{{ x }}"}) {
    EXPECT_TRUE(reads(source)) << source;
  }
  for (const char* source :
       {"", "x", "{{ y.x }}", "{{ 'x' }}", "{# x #}", "{{ f(x=1) }}", "{% for x in y %}{{ x }}{% endfor %}",
        "{% for x, z in y %}{{ x.content }}{% endfor %}", "{% set x = 1 %}{{ x }}", "{% set x %}1{% endset %}{{ x }}",
        "{% macro f(x) %}{{ x }}{% endmacro %}", "{% with x = 1 %}{{ x }}{% endwith %}",
        "{% macro x() %}{% endmacro %}{{ x() }}", "{% for x in y if x %}{{ x }}{% endfor %}"}) {
    EXPECT_FALSE(reads(source)) << source;
  }
}

}  // namespace
}  // namespace quartet
