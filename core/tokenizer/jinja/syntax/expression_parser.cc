#include "core/tokenizer/jinja/syntax/expression_parser.h"

#include <charconv>
#include <cstdint>

namespace quartet::jinja {

NodePtr ExpressionParser::Tuple(NodePtr (ExpressionParser::*one)()) {
  NodePtr value = (this->*one)();
  if (!IsOp(",")) return value;
  NodePtr tuple = NewWith(NodeKind::kTuple, "", std::move(value));
  while (status_.ok() && TakeOp(",") && Peek().kind != TokenKind::kEnd && !IsOp(")")) {
    tuple->kids.push_back((this->*one)());
  }
  return tuple;
}

NodePtr ExpressionParser::Expression() {
  const Deeper deeper(this);
  NodePtr value = Or();
  while (TakeName("if")) {
    NodePtr condition = Or();
    NodePtr otherwise = TakeName("else") ? Expression() : nullptr;
    value = NewWith(NodeKind::kConditional, "", std::move(value), std::move(condition), std::move(otherwise));
  }
  return value;
}

NodePtr ExpressionParser::Not() {
  const Deeper deeper(this);
  if (TakeName("not")) return NewWith(NodeKind::kUnary, "not", Not());
  return Compare();
}

NodePtr ExpressionParser::Compare() {
  NodePtr left = Sum();
  NodePtr node;
  while (status_.ok()) {
    std::string op;
    for (const char* known : {"==", "!=", "<", "<=", ">", ">="}) {
      if (IsOp(known)) op = known;
    }
    if (op.empty() && IsName("in")) op = "in";
    if (op.empty() && IsName("not") && Peek(1).kind == TokenKind::kName && Peek(1).text == "in") {
      Next();
      op = "not in";
    }
    if (op.empty()) break;
    Next();
    if (node == nullptr) node = NewWith(NodeKind::kCompare, "", std::move(left));
    node->names.push_back(op);
    node->kids.push_back(Sum());
  }
  return node != nullptr ? std::move(node) : std::move(left);
}

NodePtr ExpressionParser::Binary(std::initializer_list<const char*> operators, NodePtr (ExpressionParser::*operand)()) {
  NodePtr left = (this->*operand)();
  const auto taken = [this](const char* text) { return TakeOp(text) || TakeName(text); };
  for (;;) {
    const auto taken_one = std::find_if(operators.begin(), operators.end(), taken);
    if (taken_one == operators.end()) return left;
    left = NewWith(NodeKind::kBinary, *taken_one, std::move(left), (this->*operand)());
  }
}

NodePtr ExpressionParser::Unary() {
  const Deeper deeper(this);
  return Filters(Signed());
}

NodePtr ExpressionParser::Signed() {
  if (!IsOp("-") && !IsOp("+")) return Postfix(Primary());
  const Deeper deeper(this);
  const std::string op = Next().text;
  return Postfix(NewWith(NodeKind::kUnary, op, Signed()));
}

NodePtr ExpressionParser::Literal(Value value) {
  NodePtr node = New(NodeKind::kLiteral);
  node->literal = std::move(value);
  return node;
}

NodePtr ExpressionParser::Primary() {
  const Token token = Peek();
  switch (token.kind) {
    case TokenKind::kName:
      Next();
      if (token.text == "true" || token.text == "True") return Literal(Value::Bool(true));
      if (token.text == "false" || token.text == "False") return Literal(Value::Bool(false));
      if (token.text == "none" || token.text == "None") return Literal(Value::None());
      return New(NodeKind::kName, token.text);
    case TokenKind::kString: {
      std::string value;
      while (Peek().kind == TokenKind::kString) value += Next().text;
      return Literal(Value::Text(value));
    }
    case TokenKind::kInt: {
      int64_t value = 0;
      const auto parsed = std::from_chars(token.text.data(), token.text.data() + token.text.size(), value);
      if (parsed.ec != std::errc()) Fail(absl::StrCat("the number ", token.text.substr(0, 60), " is too large"));
      Next();
      return Literal(Value::Int(value));
    }
    case TokenKind::kFloat: {
      double value = 0;
      std::from_chars(token.text.data(), token.text.data() + token.text.size(), value);
      Next();
      return Literal(Value::Float(value));
    }
    default:
      break;
  }
  if (TakeOp("(")) {
    NodePtr value = IsOp(")") ? New(NodeKind::kTuple) : Tuple(&ExpressionParser::Expression);
    ExpectOp(")");
    return value;
  }
  if (TakeOp("[")) {
    NodePtr list = New(NodeKind::kList);
    while (status_.ok() && !IsOp("]")) {
      list->kids.push_back(Expression());
      if (!TakeOp(",")) break;
    }
    ExpectOp("]");
    return list;
  }
  if (TakeOp("{")) {
    NodePtr dict = New(NodeKind::kDict);
    while (status_.ok() && !IsOp("}")) {
      dict->kids.push_back(Expression());
      ExpectOp(":");
      dict->kids.push_back(Expression());
      if (!TakeOp(",")) break;
    }
    ExpectOp("}");
    return dict;
  }
  Fail(absl::StrCat("an expression expected, not ", Describe(token)));
  return New(NodeKind::kLiteral);
}

void ExpressionParser::Arguments(Node* node) {
  ExpectOp("(");
  while (status_.ok() && !IsOp(")")) {
    std::string keyword;
    if (Peek().kind == TokenKind::kName && Peek(1).kind == TokenKind::kOperator && Peek(1).text == "=") {
      keyword = Next().text;
      Next();
    }
    if (IsOp("*") || IsOp("**")) keyword = Next().text;
    node->names.push_back(keyword);
    node->kids.push_back(Expression());
    if (!TakeOp(",")) break;
  }
  ExpectOp(")");
}

NodePtr ExpressionParser::Postfix(NodePtr value) {
  while (status_.ok()) {
    if (TakeOp(".")) {
      if (Peek().kind == TokenKind::kInt) {
        value = NewWith(NodeKind::kIndex, "", std::move(value), Primary());
      } else {
        value = NewWith(NodeKind::kAttribute, ExpectName(), std::move(value));
      }
    } else if (TakeOp("[")) {
      NodePtr parts[3];
      int part = 0;
      bool slice = false;
      while (status_.ok() && !IsOp("]")) {
        if (TakeOp(":")) {
          slice = true;
          if (++part > 2) Fail("too many \":\" in a slice");
        } else {
          parts[part] = Expression();
          if (!IsOp(":")) break;
        }
      }
      ExpectOp("]");
      if (slice) {
        value = NewWith(NodeKind::kSlice, "", std::move(value), std::move(parts[0]), std::move(parts[1]),
                        std::move(parts[2]));
      } else if (parts[0] == nullptr) {
        Fail("an index expected between [ and ]");
      } else {
        value = NewWith(NodeKind::kIndex, "", std::move(value), std::move(parts[0]));
      }
    } else if (IsOp("(")) {
      value = NewWith(NodeKind::kCall, "", std::move(value));
      Arguments(value.get());
    } else {
      break;
    }
  }
  return value;
}

NodePtr ExpressionParser::Filter(NodePtr value) {
  NodePtr node = NewWith(NodeKind::kFilter, ExpectName(), std::move(value));
  if (IsOp("(")) Arguments(node.get());
  return node;
}

NodePtr ExpressionParser::FilterChain() {
  NodePtr value = Filter(nullptr);
  while (status_.ok() && TakeOp("|")) value = Filter(std::move(value));
  return value;
}

NodePtr ExpressionParser::Filters(NodePtr value) {
  while (status_.ok()) {
    if (TakeOp("|")) {
      value = Filter(std::move(value));
    } else if (IsOp("(")) {
      value = NewWith(NodeKind::kCall, "", std::move(value));
      Arguments(value.get());
    } else if (TakeName("is")) {
      const bool negated = TakeName("not");
      value = NewWith(NodeKind::kTest, ExpectName(), std::move(value));
      value->negated = negated;
      const Token& token = Peek();
      const bool is_operand =
          token.kind == TokenKind::kString || token.kind == TokenKind::kInt || token.kind == TokenKind::kFloat ||
          (token.kind == TokenKind::kOperator && (token.text == "[" || token.text == "{")) ||
          (token.kind == TokenKind::kName && token.text != "and" && token.text != "or" && token.text != "else" &&
           token.text != "if" && token.text != "is" && token.text != "in" && token.text != "not");
      if (IsOp("(")) {
        Arguments(value.get());
      } else if (is_operand) {
        value->names.push_back("");
        value->kids.push_back(Postfix(Primary()));
      }
    } else {
      break;
    }
  }
  return value;
}

}  // namespace quartet::jinja
