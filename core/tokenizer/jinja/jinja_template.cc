#include "core/tokenizer/jinja/jinja_template.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "core/base/status_macros.h"
#include "core/base/utf8.h"
#include "core/tokenizer/jinja/interpreter/interpreter.h"
#include "core/tokenizer/jinja/syntax/global_names.h"
#include "core/tokenizer/jinja/syntax/lexer.h"
#include "core/tokenizer/jinja/syntax/parser.h"
#include "core/tokenizer/jinja/values/text.h"

namespace quartet {

struct JinjaTemplate::Program {
  jinja::NodePtr root;
  jinja::Names global_names;
};

JinjaTemplate::JinjaTemplate(std::unique_ptr<Program> program) : program_(std::move(program)) {}
JinjaTemplate::JinjaTemplate(JinjaTemplate&&) noexcept = default;
JinjaTemplate& JinjaTemplate::operator=(JinjaTemplate&&) noexcept = default;
JinjaTemplate::~JinjaTemplate() = default;

absl::StatusOr<JinjaTemplate> JinjaTemplate::Parse(std::string_view source) {
  if (!IsValidUtf8(source)) return absl::InvalidArgumentError("the template is not valid UTF-8");
  std::string text = jinja::ReplaceText(std::string(source), "\r\n", "\n");
  std::replace(text.begin(), text.end(), '\r', '\n');
  if (!text.empty() && text.back() == '\n') text.pop_back();
  QUARTET_ASSIGN_OR_RETURN(std::vector<jinja::Token> tokens, jinja::Tokenize(std::move(text)));
  auto program = std::make_unique<Program>();
  QUARTET_ASSIGN_OR_RETURN(program->root, jinja::Parse(std::move(tokens)));
  program->global_names = jinja::GlobalNames(*program->root);
  return JinjaTemplate(std::move(program));
}

bool JinjaTemplate::Reads(std::string_view name) const { return program_->global_names.contains(name); }

absl::StatusOr<std::string> JinjaTemplate::Render(const nlohmann::ordered_json& variables,
                                                  std::optional<absl::CivilDay> date) const {
  jinja::Fields values;
  for (const auto& [name, json] : variables.items()) {
    QUARTET_ASSIGN_OR_RETURN(values[name], jinja::FromJson(json));
  }
  return jinja::Interpreter(std::move(values), date).Run(*program_->root);
}

}  // namespace quartet
