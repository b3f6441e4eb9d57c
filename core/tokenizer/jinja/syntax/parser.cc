#include "core/tokenizer/jinja/syntax/parser.h"

#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/tokenizer/jinja/syntax/expression_parser.h"

namespace quartet::jinja {
namespace {

class Parser : private ExpressionParser {
 public:
  explicit Parser(std::vector<Token> tokens) : ExpressionParser(std::move(tokens)) {}

  absl::StatusOr<NodePtr> Run() {
    NodePtr block = Block({});
    if (status_.ok() && Peek().kind != TokenKind::kEof) Fail("unexpected " + Describe(Peek()));
    if (!status_.ok()) return status_;
    return block;
  }

 private:
  // Statements until a tag that begins with one of `ends`; its name is taken, the rest of it is the caller's.
  NodePtr Block(const std::vector<std::string_view>& ends) {
    const Deeper deeper(this);
    NodePtr block = New(NodeKind::kBlock);
    while (status_.ok()) {
      const Token& token = Peek();
      if (token.kind == TokenKind::kText) {
        block->kids.push_back(New(NodeKind::kText, token.text));
        Next();
      } else if (token.kind == TokenKind::kPrintBegin) {
        Next();
        NodePtr print = NewWith(NodeKind::kPrint, "", Tuple(&Parser::Expression));
        if (Peek().kind != TokenKind::kPrintEnd) Fail(absl::StrCat("\"}}\" expected, not ", Describe(Peek())));
        Next();
        block->kids.push_back(std::move(print));
      } else if (token.kind == TokenKind::kBegin) {
        Next();
        const std::string name = ExpectName();
        for (const std::string_view end : ends) {
          if (name == end) {
            ended_by_ = name;
            return block;
          }
        }
        block->kids.push_back(Statement(name));
      } else {
        break;
      }
    }
    if (status_.ok() && !ends.empty()) {
      Fail(absl::StrCat("\"{% ", std::string(ends.back()), " %}\" is missing"));
    }
    return block;
  }

  NodePtr Statement(const std::string& name) {
    if (name == "if") return If();
    if (name == "for") return For();
    if (name == "set") return Set();
    if (name == "with") return With();
    if (name == "macro") return Macro(ExpectName(), "endmacro");
    if (name == "call") return Call();
    if (name == "break" || name == "continue") {
      if (loops_ == 0) Fail(absl::StrCat("\"", name, "\" outside of a loop"));
      NodePtr node = New(name == "break" ? NodeKind::kBreak : NodeKind::kContinue);
      ExpectEnd();
      return node;
    }
    if (name == "generation") {  // marks the assistant's text for masks; writes what is inside
      ExpectEnd();
      return Body({"endgeneration"});
    }
    if (name == "filter") {
      NodePtr node = NewWith(NodeKind::kFilterBlock, "", FilterChain());
      ExpectEnd();
      node->kids.push_back(Body({"endfilter"}));
      return node;
    }
    Fail(absl::StrCat("the statement \"", name, "\" is not supported here"));
    return New(NodeKind::kBlock);
  }

  // A block and the rest of the tag that ends it.
  NodePtr Body(const std::vector<std::string_view>& ends) {
    NodePtr block = Block(ends);
    ExpectEnd();
    return block;
  }

  NodePtr If() {
    NodePtr node = New(NodeKind::kIf);
    do {
      node->kids.push_back(Tuple(&Parser::Or));
      ExpectEnd();
      node->kids.push_back(Block({"elif", "else", "endif"}));
    } while (status_.ok() && ended_by_ == "elif");
    if (status_.ok() && ended_by_ == "else") {
      ExpectEnd();
      node->kids.push_back(Block({"endif"}));
    }
    ExpectEnd();
    return node;
  }

  NodePtr For() {
    NodePtr node = New(NodeKind::kFor);
    node->kids.push_back(Target());
    if (!TakeName("in")) Fail(absl::StrCat("\"in\" expected, not ", Describe(Peek())));
    node->kids.push_back(Tuple(&Parser::Or));
    node->kids.push_back(TakeName("if") ? Expression() : nullptr);
    if (IsName("recursive")) Fail("\"recursive\" loops are not supported");
    ExpectEnd();
    ++loops_;
    node->kids.push_back(Block({"else", "endfor"}));
    --loops_;
    NodePtr otherwise;
    if (status_.ok() && ended_by_ == "else") {
      ExpectEnd();
      otherwise = Block({"endfor"});
    }
    node->kids.push_back(std::move(otherwise));
    ExpectEnd();
    return node;
  }

  // A name, or a tuple of targets.
  NodePtr Target() {
    const Deeper deeper(this);
    const auto one = [&] {
      if (!TakeOp("(")) return New(NodeKind::kName, ExpectName());
      NodePtr inner = Target();
      ExpectOp(")");
      return inner;
    };
    NodePtr target = one();
    if (!IsOp(",")) return target;
    NodePtr tuple = NewWith(NodeKind::kTuple, "", std::move(target));
    while (status_.ok() && TakeOp(",") && (Peek().kind == TokenKind::kName || IsOp("("))) tuple->kids.push_back(one());
    return tuple;
  }

  NodePtr Set() {
    NodePtr target = Target();
    if (target->kind == NodeKind::kName && TakeOp(".")) {
      target = NewWith(NodeKind::kAttribute, ExpectName(), std::move(target));
    }
    if (TakeOp("=")) {
      NodePtr node = NewWith(NodeKind::kSet, "", std::move(target), Tuple(&Parser::Expression));
      ExpectEnd();
      return node;
    }
    NodePtr filters = IsOp("|") ? Filters(nullptr) : nullptr;
    NodePtr node = NewWith(NodeKind::kSetBlock, "", std::move(target));
    ExpectEnd();
    node->kids.push_back(Body({"endset"}));
    node->kids.push_back(std::move(filters));
    return node;
  }

  NodePtr With() {
    NodePtr node = New(NodeKind::kWith);
    while (status_.ok() && Peek().kind != TokenKind::kEnd) {
      if (!node->kids.empty()) ExpectOp(",");
      node->kids.push_back(New(NodeKind::kName, ExpectName()));
      ExpectOp("=");
      node->kids.push_back(Expression());
    }
    ExpectEnd();
    node->kids.push_back(Body({"endwith"}));
    return node;
  }

  // From "(" on.
  NodePtr Macro(const std::string& name, std::string_view end) {
    NodePtr node = New(NodeKind::kMacro, name);
    std::vector<NodePtr> defaults;
    if (end == "endmacro" || IsOp("(")) {
      ExpectOp("(");
      while (status_.ok() && !IsOp(")")) {
        node->names.push_back(ExpectName());
        defaults.push_back(TakeOp("=") ? Expression() : nullptr);
        if (!TakeOp(",")) break;
      }
      ExpectOp(")");
    }
    NodePtr call = end == "endcall" ? Unary() : nullptr;
    ExpectEnd();
    const int loops = std::exchange(loops_, 0);
    node->kids.push_back(Block({end}));
    loops_ = loops;
    if (Peek().kind == TokenKind::kName) Next();  // {% endmacro name %}
    ExpectEnd();
    for (NodePtr& value : defaults) node->kids.push_back(std::move(value));
    if (call == nullptr) return node;
    if (call->kind != NodeKind::kCall) Fail("\"call\" takes a call");
    return NewWith(NodeKind::kCallBlock, "", std::move(call), std::move(node));
  }
  NodePtr Call() { return Macro("caller", "endcall"); }

  int loops_ = 0;
  std::string ended_by_;
};

}  // namespace

absl::StatusOr<NodePtr> Parse(std::vector<Token> tokens) { return Parser(std::move(tokens)).Run(); }

}  // namespace quartet::jinja
