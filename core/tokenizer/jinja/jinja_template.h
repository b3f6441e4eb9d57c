// The part of the Jinja template language that chat templates use, as transformers sets it up: trim_blocks,
// lstrip_blocks, the loop controls, raise_exception and strftime_now.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/civil_time.h"

namespace quartet {

// Statements: if, for, set, with, macro, call, filter, break, continue, generation. What is not known is refused by
// name: statements by Parse, filters, tests, methods and arguments by a Render that meets them. Immutable after Parse;
// thread safe.
class JinjaTemplate {
 public:
  // INVALID_ARGUMENT names the line.
  static absl::StatusOr<JinjaTemplate> Parse(std::string_view source);
  JinjaTemplate(JinjaTemplate&&) noexcept;
  JinjaTemplate& operator=(JinjaTemplate&&) noexcept;
  ~JinjaTemplate();

  // Whether it reads the value of this name that Render is given, and not its own loop's, macro's or assignment's
  // alone.
  bool Reads(std::string_view name) const;

  // `variables`: an object, the template's global names. strftime_now writes `date`, at midnight, or where there is
  // none the present moment here. INVALID_ARGUMENT for an error, the template's own raise_exception among them,
  // RESOURCE_EXHAUSTED for a template that works or writes without end.
  absl::StatusOr<std::string> Render(const nlohmann::ordered_json& variables,
                                     std::optional<absl::CivilDay> date = std::nullopt) const;

 private:
  struct Program;
  explicit JinjaTemplate(std::unique_ptr<Program> program);
  std::unique_ptr<Program> program_;
};

}  // namespace quartet
