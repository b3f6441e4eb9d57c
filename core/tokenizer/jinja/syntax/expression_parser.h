// The expressions of a template, and what parsing of tokens takes.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/tokenizer/jinja/syntax/lexer.h"
#include "core/tokenizer/jinja/syntax/node.h"
#include "core/tokenizer/jinja/syntax/parser.h"

namespace quartet::jinja {

inline constexpr int kMaxHeight = 500;  // of one expression's tree

// After an error it keeps returning nodes, which nobody looks at: the first error is the result.
class ExpressionParser {
 protected:
  explicit ExpressionParser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  const Token& Peek(size_t ahead = 0) const { return tokens_[std::min(at_ + ahead, tokens_.size() - 1)]; }
  Token Next() {
    Token token = Peek();
    if (at_ + 1 < tokens_.size()) ++at_;
    return token;
  }
  bool Is(TokenKind kind, std::string_view text) const { return Peek().kind == kind && Peek().text == text; }
  bool IsOp(std::string_view text) const { return Is(TokenKind::kOperator, text); }
  bool IsName(std::string_view text) const { return Is(TokenKind::kName, text); }
  bool TakeOp(std::string_view text) {
    if (!IsOp(text)) return false;
    Next();
    return true;
  }
  bool TakeName(std::string_view text) {
    if (!IsName(text)) return false;
    Next();
    return true;
  }
  static std::string Describe(const Token& token) { return absl::StrCat("\"", token.text.substr(0, 60), "\""); }
  void Fail(const std::string& what) {
    if (status_.ok()) status_ = absl::InvalidArgumentError(absl::StrCat("line ", Peek().line, ": ", what));
    at_ = tokens_.size() - 1;
  }
  void ExpectOp(std::string_view text) {
    if (!TakeOp(text)) Fail(absl::StrCat("\"", std::string(text), "\" expected, not ", Describe(Peek())));
  }
  void ExpectEnd() {
    if (Peek().kind != TokenKind::kEnd) return Fail(absl::StrCat("\"%}\" expected, not ", Describe(Peek())));
    Next();
  }
  std::string ExpectName() {
    if (Peek().kind != TokenKind::kName) {
      Fail(absl::StrCat("a name expected, not ", Describe(Peek())));
      return "";
    }
    return Next().text;
  }
  NodePtr New(NodeKind kind, std::string text = "") const {
    auto node = std::make_unique<Node>();
    node->kind = kind;
    node->line = Peek().line;
    node->text = std::move(text);
    return node;
  }
  template <class... Kids>
  NodePtr NewWith(NodeKind kind, std::string text, Kids... kids) {
    NodePtr node = New(kind, std::move(text));
    ((node->height = std::max(node->height, kids == nullptr ? 1 : kids->height + 1)), ...);
    (node->kids.push_back(std::move(kids)), ...);
    // A long chain of operators is deep without brackets; who walks the tree needs stack for it.
    if (node->height > kMaxHeight) Fail(absl::StrCat("more than ", kMaxHeight, " operators in a row"));
    return node;
  }

  struct Deeper {
    explicit Deeper(ExpressionParser* parser) : parser(parser) {
      if (++parser->depth_ > kMaxDepth) parser->Fail(absl::StrCat("nested deeper than ", kMaxDepth, " levels"));
    }
    ~Deeper() { --parser->depth_; }
    ExpressionParser* parser;
  };

  // By precedence, the loosest first.
  NodePtr Expression();
  NodePtr Or() { return Binary({"or"}, &ExpressionParser::And); }
  NodePtr And() { return Binary({"and"}, &ExpressionParser::Not); }
  NodePtr Not();
  NodePtr Compare();
  NodePtr Sum() { return Binary({"+", "-"}, &ExpressionParser::Concatenation); }
  NodePtr Concatenation() { return Binary({"~"}, &ExpressionParser::Product); }
  NodePtr Product() { return Binary({"*", "/", "//", "%"}, &ExpressionParser::Power); }
  NodePtr Power() { return Binary({"**"}, &ExpressionParser::Unary); }
  NodePtr Unary();
  NodePtr Primary();
  NodePtr Postfix(NodePtr value);
  NodePtr Filters(NodePtr value);

  // One expression, or a tuple of them without brackets.
  NodePtr Tuple(NodePtr (ExpressionParser::*one)());
  // "upper | trim" of a filter block.
  NodePtr FilterChain();

  size_t at_ = 0;
  absl::Status status_;

 private:
  // Operators of one precedence, from left to right.
  NodePtr Binary(std::initializer_list<const char*> operators, NodePtr (ExpressionParser::*operand)());
  NodePtr Signed();
  NodePtr Literal(Value value);
  NodePtr Filter(NodePtr value);
  // "(a, b=c)" into `node`, whose first kid is there already.
  void Arguments(Node* node);

  const std::vector<Token> tokens_;
  int depth_ = 0;
};

}  // namespace quartet::jinja
