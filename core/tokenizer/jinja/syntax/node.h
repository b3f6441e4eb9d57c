// The tree of a template.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/tokenizer/jinja/values/value.h"

namespace quartet::jinja {

enum class NodeKind {
  // Expressions. `kids` in the order written.
  kLiteral,
  kName,
  kList,
  kTuple,
  kDict,       // kids: key, value, key, value, ...
  kAttribute,  // kids[0].text
  kIndex,      // kids[0][kids[1]]
  kSlice,      // kids[0][kids[1]:kids[2]:kids[3]], null where left out
  kCall,       // kids[0](kids[1], ...); names[i] is the keyword of kids[i + 1], "" for none, "*" and "**" for a spread
  kFilter,     // kids[0] | text(kids[1], ...); kids[0] is null in a filter block
  kTest,       // kids[0] is text(kids[1], ...); `negated`
  kUnary,      // text: "not", "-", "+"
  kBinary,     // text
  kCompare,    // kids[0] names[0] kids[1] names[1] kids[2] ...
  kConditional,  // kids[0] if kids[1] else kids[2], which may be null
  // Statements.
  kBlock,
  kText,
  kPrint,
  kIf,           // kids: condition, block, condition, block, ..., [block]
  kFor,          // kids: target, iterable, filter or null, block, else block or null
  kSet,          // kids: target, value
  kSetBlock,     // kids: target, block, filters or null
  kWith,         // kids: target, value, target, value, ..., block
  kFilterBlock,  // kids: filters, block
  kMacro,        // text: its name; names: parameters; kids: block, then defaults or null
  kCallBlock,    // kids: call, macro
  kBreak,
  kContinue,
};

// A target of an assignment is a kName, a kTuple of targets, or a kAttribute of a kName, which is a namespace.
struct Node {
  NodeKind kind;
  int line = 0;
  std::string text;
  Value literal;
  bool negated = false;
  int height = 1;  // of the tree below
  std::vector<std::string> names;
  std::vector<std::unique_ptr<Node>> kids;
};
using NodePtr = std::unique_ptr<Node>;

}  // namespace quartet::jinja
