#include "core/tokenizer/jinja.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <ctime>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/base/status_macros.h"
#include "core/tokenizer/unicode.h"

namespace quartet {
namespace {

// ---- Tokens ----

enum class TokenKind { kText, kBegin, kEnd, kPrintBegin, kPrintEnd, kName, kString, kInt, kFloat, kOperator, kEof };

struct Token {
  TokenKind kind;
  std::string text;
  int line;
};

constexpr int kMaxDepth = 100;   // of nested statements and expressions
constexpr int kMaxHeight = 500;  // of one expression's tree

class Lexer {
 public:
  explicit Lexer(std::string source) : source_(std::move(source)) {}

  absl::StatusOr<std::vector<Token>> Run() {
    while (at_ < source_.size()) {
      QUARTET_RETURN_IF_ERROR(Text());
      if (at_ >= source_.size()) break;
      const char kind = source_[at_ + 1];
      at_ += 2;
      if (at_ < source_.size() && (source_[at_] == '-' || source_[at_] == '+')) ++at_;
      if (kind == '#') {
        const size_t end = source_.find("#}", at_);
        if (end == std::string::npos) return Error("a comment that does not end");
        CountLines(at_, end);
        at_ = end;
        EndTag(source_[end - 1], /*trims_line=*/true);
        continue;
      }
      Push(kind == '%' ? TokenKind::kBegin : TokenKind::kPrintBegin, "");
      QUARTET_RETURN_IF_ERROR(Tag(kind));
    }
    Push(TokenKind::kEof, "the end of the template");
    return std::move(tokens_);
  }

 private:
  absl::Status Error(const std::string& what) const {
    return absl::InvalidArgumentError(absl::StrCat("line ", line_, ": ", what));
  }
  void Push(TokenKind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_}); }
  void CountLines(size_t begin, size_t end) {
    line_ += std::count(source_.begin() + begin, source_.begin() + end, '\n');
  }

  // Text up to the next tag, less the white space that the tag takes.
  absl::Status Text() {
    size_t open = at_;
    while (true) {
      open = source_.find('{', open);
      if (open == std::string::npos || open + 1 >= source_.size()) {
        open = source_.size();
        break;
      }
      if (std::string_view("%{#").find(source_[open + 1]) != std::string_view::npos) break;
      ++open;
    }
    std::string text = source_.substr(at_, open - at_);
    if (open < source_.size()) {
      const char sign = open + 2 < source_.size() ? source_[open + 2] : '\0';
      if (sign == '-') {
        text.erase(text.find_last_not_of(" \t\n\r\f\v") + 1);
      } else if (sign != '+' && source_[open + 1] != '{') {  // lstrip_blocks
        const size_t line = text.rfind('\n') + 1;
        if ((line > 0 || line_starts_) && text.find_first_not_of(" \t", line) == std::string::npos) text.erase(line);
      }
    }
    if (!text.empty()) Push(TokenKind::kText, std::move(text));
    CountLines(at_, open);
    at_ = open;
    return absl::OkStatus();
  }

  // Passes "%}" and the like; `sign` is the character before it.
  void EndTag(char sign, bool trims_line) {
    const size_t begin = at_;
    at_ += 2;
    if (sign == '-') {
      while (at_ < source_.size() && std::isspace(static_cast<unsigned char>(source_[at_]))) ++at_;
    } else if (sign != '+' && trims_line && at_ < source_.size() && source_[at_] == '\n') {
      ++at_;
    }
    CountLines(begin, at_);
    line_starts_ = source_[at_ - 1] == '\n';
  }

  absl::Status Tag(char kind) {
    const std::string close = kind == '%' ? "%}" : "}}";
    int depth = 0;  // of { } within an expression
    while (true) {
      while (at_ < source_.size() && std::isspace(static_cast<unsigned char>(source_[at_]))) {
        line_ += source_[at_++] == '\n';
      }
      if (at_ >= source_.size()) return Error("a tag that does not end");
      const char c = source_[at_];
      const bool signed_end = (c == '-' || c == '+') && source_.compare(at_ + 1, 2, close) == 0;
      if (signed_end || (depth == 0 && source_.compare(at_, 2, close) == 0)) {
        Push(kind == '%' ? TokenKind::kEnd : TokenKind::kPrintEnd, close);
        at_ += signed_end;
        EndTag(signed_end ? c : '\0', kind == '%');
        return absl::OkStatus();
      }
      if (std::isalpha(static_cast<unsigned char>(c)) || c == '_') {
        const size_t begin = at_;
        while (at_ < source_.size() &&
               (std::isalnum(static_cast<unsigned char>(source_[at_])) || source_[at_] == '_')) {
          ++at_;
        }
        Push(TokenKind::kName, source_.substr(begin, at_ - begin));
      } else if (std::isdigit(static_cast<unsigned char>(c))) {
        const size_t begin = at_;
        const auto digits = [&] {
          while (at_ < source_.size() && std::isdigit(static_cast<unsigned char>(source_[at_]))) ++at_;
        };
        digits();
        bool is_float = false;
        if (at_ + 1 < source_.size() && source_[at_] == '.' &&
            std::isdigit(static_cast<unsigned char>(source_[at_ + 1]))) {
          is_float = true;
          ++at_;
          digits();
        }
        Push(is_float ? TokenKind::kFloat : TokenKind::kInt, source_.substr(begin, at_ - begin));
      } else if (c == '\'' || c == '"') {
        QUARTET_RETURN_IF_ERROR(String(c));
      } else {
        size_t size = 1;
        for (const char* two : {"==", "!=", "<=", ">=", "//", "**"}) {
          if (source_.compare(at_, 2, two) == 0) size = 2;
        }
        const std::string text = source_.substr(at_, size);
        if (size == 1 && std::string_view("+-*/%~<>=()[]{},.:|").find(c) == std::string_view::npos) {
          return Error(absl::StrCat("the character '", text, "' is not known in an expression"));
        }
        if (c == '{') ++depth;
        if (c == '}') --depth;
        Push(TokenKind::kOperator, text);
        at_ += size;
      }
    }
  }

  absl::Status String(char quote) {
    std::string value;
    const int line = line_;
    for (++at_;; ++at_) {
      if (at_ >= source_.size()) return Error("a string that does not end");
      const char c = source_[at_];
      if (c == quote) break;
      line_ += c == '\n';
      if (c != '\\') {
        value += c;
        continue;
      }
      if (++at_ >= source_.size()) return Error("a string that does not end");
      const char escaped = source_[at_];
      constexpr std::string_view kFrom = "ntrabfv\\'\"", kTo = "\n\t\r\a\b\f\v\\'\"";
      const size_t known = kFrom.find(escaped);
      if (known != std::string_view::npos) {
        value += kTo[known];
      } else if (escaped == '\n') {
        ++line_;
      } else if (escaped == 'x' || escaped == 'u') {
        const size_t digits = escaped == 'x' ? 2 : 4;
        uint32_t code = 0;
        const char* begin = source_.data() + at_ + 1;
        const char* end = std::min(begin + digits, source_.data() + source_.size());
        const auto parsed = std::from_chars(begin, end, code, 16);
        if (parsed.ptr != begin + digits || (code >= 0xd800 && code < 0xe000)) return Error("a bad escape in a string");
        AppendUtf8(code, &value);
        at_ += digits;
      } else {
        return Error(absl::StrCat("the escape \\", std::string(1, escaped), " in a string is not supported"));
      }
    }
    ++at_;
    tokens_.push_back({TokenKind::kString, std::move(value), line});
    return absl::OkStatus();
  }

  const std::string source_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_starts_ = true;
  std::vector<Token> tokens_;
};

// ---- The tree ----

enum class NodeKind {
  // Expressions. `kids` in the order written.
  kLiteral,
  kName,
  kList,
  kDict,         // kids: key, value, key, value, ...
  kAttribute,    // kids[0].text
  kIndex,        // kids[0][kids[1]]
  kSlice,        // kids[0][kids[1]:kids[2]:kids[3]], null where left out
  kCall,         // kids[0](kids[1], ...); names[i] is the keyword of kids[i + 1], or ""
  kFilter,       // kids[0] | text(kids[1], ...)
  kTest,         // kids[0] is text(kids[1], ...); `negated`
  kUnary,        // text: "not", "-", "+"
  kBinary,       // text
  kCompare,      // kids[0] names[0] kids[1] names[1] kids[2] ...
  kConditional,  // kids[0] if kids[1] else kids[2], which may be null
  // Statements.
  kBlock,
  kText,
  kPrint,
  kIf,        // kids: condition, block, condition, block, ..., [block]
  kFor,       // names: targets; kids: iterable, filter or null, block, else block or null
  kSet,       // names: target [, attribute]; kids[0]: the value
  kSetBlock,  // names[0]; kids[0]: block
  kMacro,     // text: its name; names: parameters; kids: block, then defaults or null
  kBreak,
  kContinue,
};

using Json = nlohmann::ordered_json;

struct Node {
  NodeKind kind;
  int line = 0;
  std::string text;
  Json literal;
  bool negated = false;
  int height = 1;  // of the tree below
  std::vector<std::string> names;
  std::vector<std::unique_ptr<Node>> kids;
};
using NodePtr = std::unique_ptr<Node>;

// ---- Parser ----

// After an error it keeps returning nodes, which nobody looks at: the first error is the result.
class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  absl::StatusOr<NodePtr> Run() {
    NodePtr block = Block({});
    if (status_.ok() && Peek().kind != TokenKind::kEof) Fail("unexpected " + Describe(Peek()));
    if (!status_.ok()) return status_;
    return block;
  }

 private:
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
    explicit Deeper(Parser* parser) : parser(parser) {
      if (++parser->depth_ > kMaxDepth) parser->Fail(absl::StrCat("nested deeper than ", kMaxDepth, " levels"));
    }
    ~Deeper() { --parser->depth_; }
    Parser* parser;
  };

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
        NodePtr print = NewWith(NodeKind::kPrint, "", Expression());
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
    if (name == "macro") return Macro();
    if (name == "break" || name == "continue") {
      if (loops_ == 0) Fail(absl::StrCat("\"", name, "\" outside of a loop"));
      NodePtr node = New(name == "break" ? NodeKind::kBreak : NodeKind::kContinue);
      ExpectEnd();
      return node;
    }
    if (name == "generation") {  // marks the assistant's text for masks; writes what is inside
      ExpectEnd();
      NodePtr block = Block({"endgeneration"});
      ExpectEnd();
      return block;
    }
    Fail(absl::StrCat("the statement \"", name, "\" is not supported here"));
    return New(NodeKind::kBlock);
  }

  NodePtr If() {
    NodePtr node = New(NodeKind::kIf);
    do {
      node->kids.push_back(Expression());
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
    do {
      node->names.push_back(ExpectName());
    } while (TakeOp(","));
    if (!TakeName("in")) Fail(absl::StrCat("\"in\" expected, not ", Describe(Peek())));
    node->kids.push_back(Or());
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

  NodePtr Set() {
    NodePtr node = New(NodeKind::kSet);
    node->names.push_back(ExpectName());
    if (TakeOp(".")) node->names.push_back(ExpectName());
    if (IsOp(",")) Fail("\"set\" of several names is not supported");
    if (TakeOp("=")) {
      node->kids.push_back(Expression());
      ExpectEnd();
      return node;
    }
    if (IsOp("|")) Fail("filters on a \"set\" block are not supported");
    if (node->names.size() > 1) Fail("a \"set\" block of an attribute is not supported");
    node->kind = NodeKind::kSetBlock;
    ExpectEnd();
    node->kids.push_back(Block({"endset"}));
    ExpectEnd();
    return node;
  }

  NodePtr Macro() {
    NodePtr node = New(NodeKind::kMacro, ExpectName());
    std::vector<NodePtr> defaults;
    ExpectOp("(");
    while (status_.ok() && !IsOp(")")) {
      node->names.push_back(ExpectName());
      defaults.push_back(TakeOp("=") ? Expression() : nullptr);
      if (!TakeOp(",")) break;
    }
    ExpectOp(")");
    ExpectEnd();
    const int loops = std::exchange(loops_, 0);
    node->kids.push_back(Block({"endmacro"}));
    loops_ = loops;
    if (Peek().kind == TokenKind::kName) Next();  // {% endmacro name %}
    ExpectEnd();
    for (NodePtr& value : defaults) node->kids.push_back(std::move(value));
    return node;
  }

  NodePtr Expression() {
    const Deeper deeper(this);
    NodePtr value = Or();
    while (TakeName("if")) {
      NodePtr condition = Or();
      NodePtr otherwise = TakeName("else") ? Expression() : nullptr;
      value = NewWith(NodeKind::kConditional, "", std::move(value), std::move(condition), std::move(otherwise));
    }
    return value;
  }
  NodePtr Or() {
    NodePtr left = And();
    while (TakeName("or")) left = NewWith(NodeKind::kBinary, "or", std::move(left), And());
    return left;
  }
  NodePtr And() {
    NodePtr left = Not();
    while (TakeName("and")) left = NewWith(NodeKind::kBinary, "and", std::move(left), Not());
    return left;
  }
  NodePtr Not() {
    const Deeper deeper(this);
    if (TakeName("not")) return NewWith(NodeKind::kUnary, "not", Not());
    return Compare();
  }
  NodePtr Compare() {
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
  NodePtr Sum() {
    NodePtr left = Concatenation();
    while (IsOp("+") || IsOp("-")) {
      const std::string op = Next().text;
      left = NewWith(NodeKind::kBinary, op, std::move(left), Concatenation());
    }
    return left;
  }
  NodePtr Concatenation() {
    NodePtr left = Product();
    while (TakeOp("~")) left = NewWith(NodeKind::kBinary, "~", std::move(left), Product());
    return left;
  }
  NodePtr Product() {
    NodePtr left = Unary(true);
    while (IsOp("*") || IsOp("/") || IsOp("//") || IsOp("%")) {
      const std::string op = Next().text;
      left = NewWith(NodeKind::kBinary, op, std::move(left), Unary(true));
    }
    if (IsOp("**")) Fail("the operator \"**\" is not supported");
    return left;
  }
  NodePtr Unary(bool with_filters) {
    const Deeper deeper(this);
    NodePtr value;
    if (IsOp("-") || IsOp("+")) {
      const std::string op = Next().text;
      value = NewWith(NodeKind::kUnary, op, Unary(false));
    } else {
      value = Primary();
    }
    value = Postfix(std::move(value));
    return with_filters ? Filters(std::move(value)) : std::move(value);
  }

  NodePtr Literal(Json value) {
    NodePtr node = New(NodeKind::kLiteral);
    node->literal = std::move(value);
    return node;
  }

  NodePtr Primary() {
    const Token token = Peek();
    switch (token.kind) {
      case TokenKind::kName:
        Next();
        if (token.text == "true" || token.text == "True") return Literal(true);
        if (token.text == "false" || token.text == "False") return Literal(false);
        if (token.text == "none" || token.text == "None") return Literal(nullptr);
        return New(NodeKind::kName, token.text);
      case TokenKind::kString: {
        std::string value;
        while (Peek().kind == TokenKind::kString) value += Next().text;
        return Literal(value);
      }
      case TokenKind::kInt: {
        int64_t value = 0;
        const auto parsed = std::from_chars(token.text.data(), token.text.data() + token.text.size(), value);
        if (parsed.ec != std::errc()) Fail(absl::StrCat("the number ", token.text.substr(0, 60), " is too large"));
        Next();
        return Literal(value);
      }
      case TokenKind::kFloat: {
        double value = 0;
        std::from_chars(token.text.data(), token.text.data() + token.text.size(), value);
        Next();
        return Literal(value);
      }
      default:
        break;
    }
    if (TakeOp("(")) {
      NodePtr value = Expression();
      if (IsOp(",")) {  // a tuple serves as a list
        NodePtr list = NewWith(NodeKind::kList, "", std::move(value));
        while (TakeOp(",") && !IsOp(")")) list->kids.push_back(Expression());
        value = std::move(list);
      }
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

  // "(a, b=c)" into `node`, whose first kid is there already.
  void Arguments(Node* node) {
    ExpectOp("(");
    while (status_.ok() && !IsOp(")")) {
      std::string keyword;
      if (Peek().kind == TokenKind::kName && Peek(1).kind == TokenKind::kOperator && Peek(1).text == "=") {
        keyword = Next().text;
        Next();
      }
      if (IsOp("*") || IsOp("**")) Fail("\"*\" arguments are not supported");
      node->names.push_back(keyword);
      node->kids.push_back(Expression());
      if (!TakeOp(",")) break;
    }
    ExpectOp(")");
  }

  NodePtr Postfix(NodePtr value) {
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

  NodePtr Filters(NodePtr value) {
    while (status_.ok()) {
      if (TakeOp("|")) {
        value = NewWith(NodeKind::kFilter, ExpectName(), std::move(value));
        if (IsOp("(")) Arguments(value.get());
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

  const std::vector<Token> tokens_;
  size_t at_ = 0;
  int depth_ = 0;
  int loops_ = 0;
  std::string ended_by_;
  absl::Status status_;
};

// ---- Values ----

struct Namespace {
  std::map<std::string, struct Value> fields;
};

// What an expression can be: data as JSON has it, or one of the things that are not data.
struct Value {
  enum class Kind { kUndefined, kData, kNamespace, kMacro, kMethod };
  Kind kind = Kind::kUndefined;
  Json data;
  std::string name;  // undefined: what was looked for; method: its name
  std::shared_ptr<Namespace> fields;
  const Node* macro = nullptr;

  Value() = default;
  Value(Json data) : kind(Kind::kData), data(std::move(data)) {}  // NOLINT: a value is data first of all
  static Value Undefined(std::string name) {
    Value value;
    value.name = std::move(name);
    return value;
  }
  bool defined() const { return kind != Kind::kUndefined; }
  bool is_data() const { return kind == Kind::kData; }
};

bool IsTrue(const Value& value) {
  if (!value.is_data()) return value.defined();
  const Json& data = value.data;
  switch (data.type()) {
    case Json::value_t::null:
      return false;
    case Json::value_t::boolean:
      return data.get<bool>();
    case Json::value_t::string:
      return !data.get_ref<const std::string&>().empty();
    case Json::value_t::array:
    case Json::value_t::object:
      return !data.empty();
    default:
      return data.get<double>() != 0;
  }
}

std::string FloatText(double number) {
  char text[64];
  const auto end = std::to_chars(text, text + sizeof(text), number).ptr;
  std::string written(text, end);
  if (written.find_first_of(".enai") == std::string::npos) written += ".0";
  return written;
}

// As Python's repr writes it.
std::string Repr(const Json& data) {
  std::string text;
  switch (data.type()) {
    case Json::value_t::null:
      return "None";
    case Json::value_t::boolean:
      return data.get<bool>() ? "True" : "False";
    case Json::value_t::number_float:
      return FloatText(data.get<double>());
    case Json::value_t::string: {
      const auto& value = data.get_ref<const std::string&>();
      const char quote = value.find('\'') != std::string::npos && value.find('"') == std::string::npos ? '"' : '\'';
      text = quote;
      for (const char c : value) {
        if (c == quote || c == '\\') {
          text += '\\';
          text += c;
        } else if (c == '\n') {
          text += "\\n";
        } else if (c == '\t') {
          text += "\\t";
        } else if (c == '\r') {
          text += "\\r";
        } else {
          text += c;
        }
      }
      return text + quote;
    }
    case Json::value_t::array:
      for (const Json& item : data) text += (text.empty() ? "" : ", ") + Repr(item);
      return "[" + text + "]";
    case Json::value_t::object:
      for (const auto& [key, item] : data.items()) {
        text += (text.empty() ? "" : ", ") + Repr(Json(key)) + ": " + Repr(item);
      }
      return "{" + text + "}";
    default:
      return data.dump();
  }
}

std::string ToText(const Value& value) {
  if (!value.is_data()) return "";
  return value.data.is_string() ? value.data.get<std::string>() : Repr(value.data);
}

// As Python's json.dumps(..., ensure_ascii=False) writes it; `indent` below 0: on one line.
std::string JsonText(const Json& data, int indent, int depth) {
  if (!data.is_structured()) return data.is_number_float() ? FloatText(data.get<double>()) : data.dump();
  const bool is_object = data.is_object();
  if (data.empty()) return is_object ? "{}" : "[]";
  std::string text = is_object ? "{" : "[";
  const auto line = [&](int level) { return indent < 0 ? "" : "\n" + std::string(indent * level, ' '); };
  bool first = true;
  for (const auto& [key, item] : data.items()) {
    if (!first) text += indent < 0 ? ", " : ",";
    first = false;
    text += line(depth + 1);
    if (is_object) text += Json(key).dump() + ": ";
    text += JsonText(item, indent, depth + 1);
  }
  return text + line(depth) + (is_object ? "}" : "]");
}

std::vector<std::string> Characters(const std::string& text) {
  std::vector<std::string> characters;
  for (size_t at = 0, size; at < text.size(); at += size) {
    size = CharBytes(text, at);
    characters.push_back(text.substr(at, size));
  }
  return characters;
}

// Without the characters `which` (all white space if there is none) at the sides asked for.
std::string Strip(const std::string& text, const std::optional<std::string>& which, bool left, bool right) {
  const std::vector<std::string> characters = Characters(text);
  const auto goes = [&](const std::string& character) {
    if (!which) {
      const char32_t c = CharAt(character, 0);
      return IsWhiteSpace(c) || (c >= 0x1c && c <= 0x1f);  // Python counts these as white space
    }
    for (const std::string& candidate : Characters(*which)) {
      if (candidate == character) return true;
    }
    return false;
  };
  size_t begin = 0, end = characters.size();
  while (left && begin < end && goes(characters[begin])) ++begin;
  while (right && end > begin && goes(characters[end - 1])) --end;
  std::string stripped;
  for (size_t i = begin; i < end; ++i) stripped += characters[i];
  return stripped;
}

std::string ReplaceText(const std::string& text, const std::string& from, const std::string& to) {
  std::string replaced;
  size_t at = 0;
  for (size_t found; !from.empty() && (found = text.find(from, at)) != std::string::npos; at = found + from.size()) {
    replaced.append(text, at, found - at).append(to);
  }
  return replaced.append(text, at);
}

std::string Uppercase(std::string text) {
  for (char& c : text) {
    if (c >= 'a' && c <= 'z') c -= 'a' - 'A';
  }
  return text;
}

bool IsAscii(const std::string& text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

// ---- Interpreter ----

constexpr int64_t kMaxSteps = 2'000'000;
constexpr size_t kMaxOutputBytes = size_t{64} << 20;
constexpr int64_t kMaxRange = 100'000;  // as Jinja's sandbox

// After an error every evaluation is undefined and every statement does nothing: the first error is the result.
class Interpreter {
 public:
  explicit Interpreter(const Json& variables) {
    scopes_.emplace_back();
    for (const auto& [name, value] : variables.items()) scopes_.back()[name] = value;
  }

  absl::StatusOr<std::string> Run(const Node& root) {
    std::string out;
    Execute(root, &out);
    if (!status_.ok()) return status_;
    return out;
  }

 private:
  enum class Flow { kNext, kBreak, kContinue };
  struct Arguments {
    std::vector<Value> positional;
    std::map<std::string, Value> named;
  };

  Value Fail(const Node& at, const std::string& what) {
    if (status_.ok()) status_ = absl::InvalidArgumentError(absl::StrCat("line ", at.line, ": ", what));
    return {};
  }
  bool Step() {
    if (status_.ok() && ++steps_ > kMaxSteps) {
      status_ = absl::ResourceExhaustedError(absl::StrCat("the template takes more than ", kMaxSteps, " steps"));
    }
    return status_.ok();
  }
  void Write(const std::string& text, std::string* out) {
    if (status_.ok() && out->size() + text.size() > kMaxOutputBytes) {
      status_ = absl::ResourceExhaustedError(absl::StrCat("the template makes more than ", kMaxOutputBytes, " bytes"));
    }
    if (status_.ok()) *out += text;
  }

  // ---- Statements ----

  Flow Execute(const Node& node, std::string* out) {
    if (!Step()) return Flow::kBreak;
    switch (node.kind) {
      case NodeKind::kBlock:
        for (const NodePtr& kid : node.kids) {
          const Flow flow = Execute(*kid, out);
          if (flow != Flow::kNext) return flow;
        }
        return Flow::kNext;
      case NodeKind::kText:
        Write(node.text, out);
        return Flow::kNext;
      case NodeKind::kPrint: {
        const Value value = Evaluate(*node.kids[0]);
        if (value.defined() && !value.is_data()) Fail(node, "what is printed is not text");
        Write(ToText(value), out);
        return Flow::kNext;
      }
      case NodeKind::kIf:
        for (size_t i = 0; i + 1 < node.kids.size(); i += 2) {
          if (IsTrue(Evaluate(*node.kids[i]))) return Execute(*node.kids[i + 1], out);
        }
        return node.kids.size() % 2 == 1 ? Execute(*node.kids.back(), out) : Flow::kNext;
      case NodeKind::kFor:
        For(node, out);
        return Flow::kNext;
      case NodeKind::kSet: {
        Value value = Evaluate(*node.kids[0]);
        if (node.names.size() == 1) {
          scopes_.back()[node.names[0]] = std::move(value);
          return Flow::kNext;
        }
        Value target = Lookup(node.names[0]);
        if (target.kind != Value::Kind::kNamespace) {
          Fail(node, absl::StrCat("\"", node.names[0], "\" is not a namespace"));
        } else {
          target.fields->fields[node.names[1]] = std::move(value);
        }
        return Flow::kNext;
      }
      case NodeKind::kSetBlock: {
        std::string text;
        Execute(*node.kids[0], &text);
        scopes_.back()[node.names[0]] = Json(text);
        return Flow::kNext;
      }
      case NodeKind::kMacro: {
        Value macro;
        macro.kind = Value::Kind::kMacro;
        macro.macro = &node;
        scopes_.back()[node.text] = std::move(macro);
        return Flow::kNext;
      }
      case NodeKind::kBreak:
        return Flow::kBreak;
      case NodeKind::kContinue:
        return Flow::kContinue;
      default:
        Fail(node, "not a statement");
        return Flow::kBreak;
    }
  }

  // The items of a list, the keys of an object, the characters of a text.
  std::vector<Value> Items(const Node& at, const Value& value) {
    std::vector<Value> items;
    if (!value.defined()) return items;
    if (value.is_data() && value.data.is_array()) {
      for (const Json& item : value.data) items.emplace_back(item);
    } else if (value.is_data() && value.data.is_object()) {
      for (const auto& [key, item] : value.data.items()) items.emplace_back(Json(key));
    } else if (value.is_data() && value.data.is_string()) {
      for (std::string& character : Characters(value.data.get<std::string>())) items.emplace_back(Json(character));
    } else {
      Fail(at, absl::StrCat(ToText(value).substr(0, 60), " cannot be iterated over"));
    }
    steps_ += static_cast<int64_t>(items.size());
    return items;
  }

  void Bind(const Node& node, const Value& item) {
    if (node.names.size() == 1) {
      scopes_.back()[node.names[0]] = item;
      return;
    }
    if (!item.is_data() || !item.data.is_array() || item.data.size() != node.names.size()) {
      Fail(node, absl::StrCat("an item does not have the ", node.names.size(), " parts that the loop names"));
      return;
    }
    for (size_t i = 0; i < node.names.size(); ++i) scopes_.back()[node.names[i]] = item.data[i];
  }

  void For(const Node& node, std::string* out) {
    std::vector<Value> items = Items(node, Evaluate(*node.kids[0]));
    if (node.kids[1] != nullptr) {
      std::vector<Value> kept;
      for (Value& item : items) {
        scopes_.emplace_back();
        Bind(node, item);
        if (IsTrue(Evaluate(*node.kids[1]))) kept.push_back(std::move(item));
        scopes_.pop_back();
      }
      items = std::move(kept);
    }
    if (items.empty() && node.kids[3] != nullptr) {
      Execute(*node.kids[3], out);
      return;
    }
    const auto count = static_cast<int64_t>(items.size());
    for (int64_t i = 0; i < count && status_.ok(); ++i) {
      scopes_.emplace_back();
      Bind(node, items[i]);
      Value loop;
      loop.kind = Value::Kind::kNamespace;
      loop.fields = std::make_shared<Namespace>();
      auto& fields = loop.fields->fields;
      fields["index"] = Json(i + 1);
      fields["index0"] = Json(i);
      fields["revindex"] = Json(count - i);
      fields["revindex0"] = Json(count - i - 1);
      fields["first"] = Json(i == 0);
      fields["last"] = Json(i + 1 == count);
      fields["length"] = Json(count);
      if (i > 0) fields["previtem"] = items[i - 1];
      if (i + 1 < count) fields["nextitem"] = items[i + 1];
      scopes_.back()["loop"] = std::move(loop);
      const Flow flow = Execute(*node.kids[2], out);
      scopes_.pop_back();
      if (flow == Flow::kBreak) break;
    }
  }

  // ---- Expressions ----

  Value Lookup(const std::string& name) const {
    for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
      const auto found = scope->find(name);
      if (found != scope->end()) return found->second;
    }
    return Value::Undefined(name);
  }

  Value Evaluate(const Node& node) {
    if (!Step()) return {};
    switch (node.kind) {
      case NodeKind::kLiteral:
        return node.literal;
      case NodeKind::kName:
        return Lookup(node.text);
      case NodeKind::kList: {
        Json list = Json::array();
        for (const NodePtr& kid : node.kids) list.push_back(Data(*kid));
        return list;
      }
      case NodeKind::kDict: {
        Json dict = Json::object();
        for (size_t i = 0; i + 1 < node.kids.size(); i += 2) {
          const Json key = Data(*node.kids[i]);
          if (!key.is_string()) return Fail(node, "a key that is not text is not supported");
          dict[key.get<std::string>()] = Data(*node.kids[i + 1]);
        }
        return dict;
      }
      case NodeKind::kAttribute:
        return Attribute(node, Evaluate(*node.kids[0]), node.text, /*methods=*/true);
      case NodeKind::kIndex:
        return Index(node, Evaluate(*node.kids[0]), Evaluate(*node.kids[1]));
      case NodeKind::kSlice:
        return Slice(node);
      case NodeKind::kCall:
        return Call(node);
      case NodeKind::kFilter:
        return Filter(node, node.text, Evaluate(*node.kids[0]), EvaluateArguments(node));
      case NodeKind::kTest:
        return Json(Test(node, node.text, Evaluate(*node.kids[0]), EvaluateArguments(node)) != node.negated);
      case NodeKind::kUnary: {
        Value value = Evaluate(*node.kids[0]);
        if (node.text == "not") return Json(!IsTrue(value));
        if (!value.is_data() || !value.data.is_number()) return Fail(node, "a sign before what is not a number");
        if (node.text == "+") return value;
        if (value.data.is_number_float()) return Json(-value.data.get<double>());
        int64_t negative;
        if (__builtin_sub_overflow(int64_t{0}, value.data.get<int64_t>(), &negative)) return Fail(node, "overflow");
        return Json(negative);
      }
      case NodeKind::kBinary:
        return Binary(node);
      case NodeKind::kCompare:
        return Compare(node);
      case NodeKind::kConditional:
        if (IsTrue(Evaluate(*node.kids[1]))) return Evaluate(*node.kids[0]);
        return node.kids[2] != nullptr ? Evaluate(*node.kids[2]) : Value();
      default:
        return Fail(node, "not an expression");
    }
  }

  // The value of an expression that has to be data.
  Json Data(const Node& node) {
    Value value = Evaluate(node);
    if (!status_.ok()) return nullptr;
    if (!value.is_data()) {
      Fail(node, value.defined() ? "a namespace or a macro cannot stand here"
                                 : absl::StrCat("\"", value.name, "\" is undefined"));
      return nullptr;
    }
    return std::move(value.data);
  }

  Arguments EvaluateArguments(const Node& node) {
    Arguments arguments;
    for (size_t i = 1; i < node.kids.size(); ++i) {
      Value value = Evaluate(*node.kids[i]);
      if (node.names[i - 1].empty()) {
        arguments.positional.push_back(std::move(value));
      } else {
        arguments.named[node.names[i - 1]] = std::move(value);
      }
    }
    return arguments;
  }

  Value Attribute(const Node& at, const Value& object, const std::string& name, bool methods) {
    if (!object.defined()) {
      return Fail(at, absl::StrCat("\"", object.name, "\" is undefined, and so has no \"", name, "\""));
    }
    if (object.kind == Value::Kind::kNamespace) {
      const auto found = object.fields->fields.find(name);
      return found == object.fields->fields.end() ? Value::Undefined(name) : found->second;
    }
    if (!object.is_data()) return Value::Undefined(name);
    static constexpr std::string_view kTextMethods[] = {
        "strip",   "lstrip",     "rstrip",     "split",  "startswith", "endswith",     "replace",
        "upper",   "lower",      "capitalize", "join",   "find",       "title",        "count",
        "isdigit", "splitlines", "rsplit",     "format", "index",      "removeprefix", "removesuffix"};
    static constexpr std::string_view kDictMethods[] = {"items", "keys", "values", "get"};
    const auto has = [&](const auto& list) {
      return std::find(std::begin(list), std::end(list), name) != std::end(list);
    };
    if (methods && ((object.data.is_string() && has(kTextMethods)) || (object.data.is_object() && has(kDictMethods)))) {
      Value method = object;
      method.kind = Value::Kind::kMethod;
      method.name = name;
      return method;
    }
    if (object.data.is_object()) {
      const auto found = object.data.find(name);
      if (found != object.data.end()) return *found;
    }
    return Value::Undefined(name);
  }

  Value Index(const Node& at, const Value& object, const Value& index) {
    if (!status_.ok()) return {};
    if (!index.is_data()) return Fail(at, absl::StrCat("the index \"", index.name, "\" is undefined"));
    if (index.data.is_string()) return Attribute(at, object, index.data.get<std::string>(), /*methods=*/false);
    if (!object.defined()) return Fail(at, absl::StrCat("\"", object.name, "\" is undefined"));
    if (!object.is_data() || !index.data.is_number_integer()) return Value::Undefined(Repr(index.data));
    Json list = object.data;
    if (list.is_string()) list = Characters(list.get<std::string>());
    auto i = index.data.get<int64_t>();
    const auto count = static_cast<int64_t>(list.size());
    if (i < 0) i += count;
    if (!list.is_array() || i < 0 || i >= count) return Value::Undefined(Repr(index.data));
    return list[i];
  }

  Value Slice(const Node& node) {
    const Json object = Data(*node.kids[0]);
    std::optional<int64_t> parts[3];
    for (int i = 0; i < 3; ++i) {
      if (node.kids[i + 1] == nullptr) continue;
      const Json part = Data(*node.kids[i + 1]);
      if (part.is_null()) continue;
      if (!part.is_number_integer()) return Fail(node, "the parts of a slice must be whole numbers");
      parts[i] = part.get<int64_t>();
    }
    if (!status_.ok()) return {};
    if (!object.is_array() && !object.is_string()) return Fail(node, "only text and lists have slices");
    const Json list = object.is_string() ? Json(Characters(object.get<std::string>())) : object;
    const auto count = static_cast<int64_t>(list.size());
    const int64_t step = std::clamp(parts[2].value_or(1), -count - 1, count + 1);
    if (step == 0) return Fail(node, "the step of a slice is 0");
    const auto bound = [&](std::optional<int64_t> part, int64_t fallback) {
      if (!part) return fallback;
      const int64_t at = *part < 0 ? std::max(*part, -count - 1) + count : *part;
      return std::clamp(at, step > 0 ? int64_t{0} : int64_t{-1}, step > 0 ? count : count - 1);
    };
    const int64_t begin = bound(parts[0], step > 0 ? 0 : count - 1);
    const int64_t end = bound(parts[1], step > 0 ? count : -1);
    Json slice = Json::array();
    for (int64_t i = begin; step > 0 ? i < end : i > end; i += step) slice.push_back(list[i]);
    if (!object.is_string()) return slice;
    std::string text;
    for (const Json& character : slice) text += character.get<std::string>();
    return Json(text);
  }

  Value Binary(const Node& node) {
    const std::string& op = node.text;
    if (op == "and" || op == "or") {
      Value left = Evaluate(*node.kids[0]);
      return IsTrue(left) == (op == "or") ? left : Evaluate(*node.kids[1]);
    }
    if (op == "~") {
      const Value left = Evaluate(*node.kids[0]);
      return Json(ToText(left) + ToText(Evaluate(*node.kids[1])));
    }
    const Json left = Data(*node.kids[0]);
    const Json right = Data(*node.kids[1]);
    if (!status_.ok()) return {};
    if (op == "+" && left.is_string() && right.is_string()) {
      const auto& tail = right.get_ref<const std::string&>();
      if (left.get_ref<const std::string&>().size() + tail.size() > kMaxOutputBytes) return Fail(node, "too much text");
      return Json(left.get<std::string>() + tail);
    }
    if (op == "+" && left.is_array() && right.is_array()) {
      Json sum = left;
      for (const Json& item : right) sum.push_back(item);
      return sum;
    }
    if (left.is_number() && right.is_number()) return Arithmetic(node, op, left, right);
    return Fail(node, absl::StrCat("the operator \"", op, "\" is not supported between ", left.type_name(), " and ",
                                   right.type_name()));
  }

  Value Arithmetic(const Node& node, const std::string& op, const Json& left, const Json& right) {
    if (left.is_number_float() || right.is_number_float() || op == "/") {
      const auto a = left.get<double>(), b = right.get<double>();
      if (op == "+") return Json(a + b);
      if (op == "-") return Json(a - b);
      if (op == "*") return Json(a * b);
      if (b == 0) return Fail(node, "division by zero");
      if (op == "/") return Json(a / b);
      if (op == "//") return Json(std::floor(a / b));
      return Json(a - std::floor(a / b) * b);
    }
    const auto a = left.get<int64_t>(), b = right.get<int64_t>();
    int64_t result = 0;
    bool overflow = false;
    if (op == "+") {
      overflow = __builtin_add_overflow(a, b, &result);
    } else if (op == "-") {
      overflow = __builtin_sub_overflow(a, b, &result);
    } else if (op == "*") {
      overflow = __builtin_mul_overflow(a, b, &result);
    } else if (b == 0) {
      return Fail(node, "division by zero");
    } else if (b == -1) {
      overflow = op == "//" && __builtin_sub_overflow(int64_t{0}, a, &result);
    } else {
      int64_t remainder = a % b;  // Python's has the sign of the divisor
      if (remainder != 0 && (remainder < 0) != (b < 0)) remainder += b;
      result = op == "%" ? remainder : (a - remainder) / b;
    }
    if (overflow) return Fail(node, "a number is too large");
    return Json(result);
  }

  bool Contains(const Node& node, const Json& container, const Json& item) {
    if (container.is_string() && item.is_string()) {
      return container.get_ref<const std::string&>().find(item.get_ref<const std::string&>()) != std::string::npos;
    }
    if (container.is_array()) return std::find(container.begin(), container.end(), item) != container.end();
    if (container.is_object()) return item.is_string() && container.contains(item.get<std::string>());
    Fail(node, absl::StrCat("\"in\" is not supported for ", container.type_name()));
    return false;
  }

  bool Holds(const Node& node, const Value& left, const std::string& op, const Value& right) {
    if (op == "==" || op == "!=") {
      const bool equal =
          left.is_data() && right.is_data() ? left.data == right.data : left.defined() == right.defined();
      return equal == (op == "==");
    }
    if (!left.is_data() || !right.is_data()) {
      Fail(node, absl::StrCat("\"", (left.is_data() ? right : left).name, "\" is undefined, and cannot be compared"));
      return false;
    }
    if (op == "in" || op == "not in") return Contains(node, right.data, left.data) == (op == "in");
    const bool comparable =
        (left.data.is_number() && right.data.is_number()) || (left.data.is_string() && right.data.is_string());
    if (!comparable) {
      Fail(node, absl::StrCat("\"", op, "\" is not supported between ", left.data.type_name(), " and ",
                              right.data.type_name()));
      return false;
    }
    if (op == "<") return left.data < right.data;
    if (op == ">") return right.data < left.data;
    if (op == "<=") return !(right.data < left.data);
    return !(left.data < right.data);
  }

  Value Compare(const Node& node) {
    Value left = Evaluate(*node.kids[0]);
    for (size_t i = 0; i < node.names.size(); ++i) {
      Value right = Evaluate(*node.kids[i + 1]);
      if (!status_.ok()) return {};
      if (!Holds(node, left, node.names[i], right)) return Json(false);
      left = std::move(right);
    }
    return Json(true);
  }

  // ---- Calls ----

  // The argument `position` or `name` as text; `fallback` where it is not given.
  std::optional<std::string> TextArgument(const Node& node, const Arguments& arguments, size_t position,
                                          const std::string& name) {
    const Value* value = nullptr;
    if (position < arguments.positional.size()) value = &arguments.positional[position];
    const auto named = arguments.named.find(name);
    if (named != arguments.named.end()) value = &named->second;
    if (value == nullptr || (value->is_data() && value->data.is_null())) return std::nullopt;
    if (!value->is_data() || !value->data.is_string()) {
      Fail(node, absl::StrCat("an argument must be text, not ", ToText(*value).substr(0, 60)));
      return std::nullopt;
    }
    return value->data.get<std::string>();
  }

  Value Call(const Node& node) {
    const Node& callee = *node.kids[0];
    if (callee.kind == NodeKind::kName && !Lookup(callee.text).defined()) return CallGlobal(node, callee.text);
    const Value function = Evaluate(callee);
    const Arguments arguments = EvaluateArguments(node);
    if (!status_.ok()) return {};
    if (function.kind == Value::Kind::kMacro) return CallMacro(node, *function.macro, arguments);
    if (function.kind == Value::Kind::kMethod) {
      return function.data.is_string() ? CallTextMethod(node, function, arguments)
                                       : CallDictMethod(node, function, arguments);
    }
    return Fail(node, absl::StrCat("\"", callee.text, "\" cannot be called, or is not supported"));
  }

  Value CallGlobal(const Node& node, const std::string& name) {
    const Arguments arguments = EvaluateArguments(node);
    if (!status_.ok()) return {};
    if (name == "raise_exception") {
      return Fail(node, "the template says: " + TextArgument(node, arguments, 0, "message").value_or(""));
    }
    if (name == "namespace") {
      Value value;
      value.kind = Value::Kind::kNamespace;
      value.fields = std::make_shared<Namespace>();
      value.fields->fields = arguments.named;
      if (!arguments.positional.empty()) return Fail(node, "namespace() with a positional argument is not supported");
      return value;
    }
    if (name == "range") {
      int64_t bounds[3] = {0, 0, 1};
      const size_t count = arguments.positional.size();
      for (size_t i = 0; i < count && i < 3; ++i) {
        const Value& value = arguments.positional[i];
        if (!value.is_data() || !value.data.is_number_integer()) return Fail(node, "range() takes whole numbers");
        bounds[count == 1 ? 1 : i] = value.data.get<int64_t>();
      }
      if (count < 1 || count > 3 || bounds[2] == 0)
        return Fail(node, "range() takes one to three numbers, the last not 0");
      Json list = Json::array();
      for (int64_t i = bounds[0]; bounds[2] > 0 ? i < bounds[1] : i > bounds[1];) {
        list.push_back(i);
        if (list.size() > kMaxRange) return Fail(node, absl::StrCat("range() of more than ", kMaxRange, " numbers"));
        if (__builtin_add_overflow(i, bounds[2], &i)) break;
      }
      return list;
    }
    if (name == "strftime_now") {
      const std::optional<std::string> format = TextArgument(node, arguments, 0, "format");
      if (!format) return Fail(node, "strftime_now() takes a format");
      const std::time_t now = std::time(nullptr);
      std::tm local;
      localtime_r(&now, &local);
      char text[256];
      return Json(std::string(text, std::strftime(text, sizeof(text), format->c_str(), &local)));
    }
    return Fail(node, absl::StrCat("the function \"", name, "\" is not supported"));
  }

  Value CallMacro(const Node& node, const Node& macro, const Arguments& arguments) {
    if (++calls_ > kMaxDepth) return Fail(node, absl::StrCat("macros call each other more than ", kMaxDepth, " deep"));
    std::map<std::string, Value> scope;
    if (arguments.positional.size() > macro.names.size()) {
      return Fail(node, absl::StrCat("the macro \"", macro.text, "\" takes ", macro.names.size(), " arguments"));
    }
    for (size_t i = 0; i < macro.names.size(); ++i) {
      const auto named = arguments.named.find(macro.names[i]);
      if (i < arguments.positional.size()) {
        scope[macro.names[i]] = arguments.positional[i];
      } else if (named != arguments.named.end()) {
        scope[macro.names[i]] = named->second;
      } else {
        scope[macro.names[i]] =
            macro.kids[i + 1] != nullptr ? Evaluate(*macro.kids[i + 1]) : Value::Undefined(macro.names[i]);
      }
    }
    for (const auto& [name, value] : arguments.named) {
      if (!scope.contains(name)) return Fail(node, absl::StrCat("the macro has no parameter \"", name, "\""));
    }
    // A macro sees the template's own names, not those of who calls it.
    std::vector<std::map<std::string, Value>> outer;
    outer.push_back(scopes_[0]);
    outer.push_back(std::move(scope));
    std::swap(outer, scopes_);
    std::string text;
    Execute(*macro.kids[0], &text);
    std::swap(outer, scopes_);
    --calls_;
    return Json(text);
  }

  Value CallDictMethod(const Node& node, const Value& method, const Arguments& arguments) {
    const Json& dict = method.data;
    if (method.name == "get") {
      const std::optional<std::string> key = TextArgument(node, arguments, 0, "key");
      if (!key) return Fail(node, "get() takes a key");
      const auto found = dict.find(*key);
      if (found != dict.end()) return *found;
      return arguments.positional.size() > 1 ? arguments.positional[1] : Value(Json(nullptr));
    }
    Json list = Json::array();
    for (const auto& [key, value] : dict.items()) {
      if (method.name == "keys") list.push_back(key);
      if (method.name == "values") list.push_back(value);
      if (method.name == "items") list.push_back(Json::array({key, value}));
    }
    return list;
  }

  Value CallTextMethod(const Node& node, const Value& method, const Arguments& arguments) {
    const auto& text = method.data.get_ref<const std::string&>();
    const std::string& name = method.name;
    const std::optional<std::string> first = name == "join" ? std::nullopt : TextArgument(node, arguments, 0, "sep");
    if (!status_.ok()) return {};
    if (name == "strip") return Json(Strip(text, first, true, true));
    if (name == "lstrip") return Json(Strip(text, first, true, false));
    if (name == "rstrip") return Json(Strip(text, first, false, true));
    if (name == "upper" || name == "lower" || name == "capitalize") return Filter(node, name, method.data, {});
    if (name == "startswith" && first) return Json(text.rfind(*first, 0) == 0);
    if (name == "endswith" && first) {
      return Json(text.size() >= first->size() &&
                  text.compare(text.size() - first->size(), first->size(), *first) == 0);
    }
    if (name == "replace" && first && arguments.positional.size() == 2) {
      const std::optional<std::string> to = TextArgument(node, arguments, 1, "new");
      if (to && !first->empty()) return Json(ReplaceText(text, *first, *to));
    }
    if (name == "split") {
      Json parts = Json::array();
      int64_t most = -1;
      if (arguments.positional.size() > 1) {
        const Value& limit = arguments.positional[1];
        if (!limit.is_data() || !limit.data.is_number_integer()) return Fail(node, "split() takes a whole number");
        most = limit.data.get<int64_t>();
      }
      size_t at = 0;
      if (first) {
        if (first->empty()) return Fail(node, "split() by an empty text");
        for (size_t found; most-- != 0 && (found = text.find(*first, at)) != std::string::npos;
             at = found + first->size()) {
          parts.push_back(text.substr(at, found - at));
        }
        parts.push_back(text.substr(at));
        return parts;
      }
      if (most < 0) {
        std::string word;
        for (const std::string& character : Characters(text)) {
          if (!IsWhiteSpace(CharAt(character, 0))) {
            word += character;
          } else if (!word.empty()) {
            parts.push_back(std::exchange(word, ""));
          }
        }
        if (!word.empty()) parts.push_back(word);
        return parts;
      }
    }
    if (name == "join" && arguments.positional.size() == 1) {
      std::string joined;
      bool begun = false;
      for (const Value& item : Items(node, arguments.positional[0])) {
        joined += (begun ? text : "") + ToText(item);
        begun = true;
      }
      return Json(joined);
    }
    return Fail(node, absl::StrCat("the method \"", name, "\" with these arguments is not supported"));
  }

  // ---- Filters and tests ----

  Value Filter(const Node& node, const std::string& name, const Value& value, const Arguments& arguments) {
    if (!status_.ok()) return {};
    const auto& positional = arguments.positional;
    if (name == "default" || name == "d") {
      const Value fallback = positional.empty() ? Value(Json("")) : positional[0];
      const auto named = arguments.named.find("boolean");
      const bool falsy_too =
          (positional.size() > 1 && IsTrue(positional[1])) || (named != arguments.named.end() && IsTrue(named->second));
      return !value.defined() || (falsy_too && !IsTrue(value)) ? fallback : value;
    }
    if (value.kind == Value::Kind::kNamespace || value.kind == Value::Kind::kMacro) {
      return Fail(node, absl::StrCat("the filter \"", name, "\" is not supported for this"));
    }
    if (name == "string") return Json(ToText(value));
    if (name == "safe") return value;
    if (name == "trim") return Json(Strip(ToText(value), TextArgument(node, arguments, 0, "chars"), true, true));
    if (name == "lower") return Json(Lowercase(ToText(value)));
    if (name == "upper" || name == "capitalize") {
      const std::string text = ToText(value);
      if (!IsAscii(text)) return Fail(node, absl::StrCat("\"", name, "\" is supported for ASCII text only"));
      if (name == "upper" || text.empty()) return Json(Uppercase(text));
      return Json(Uppercase(text.substr(0, 1)) + Lowercase(text.substr(1)));
    }
    if (name == "length" || name == "count") return Json(static_cast<int64_t>(Items(node, value).size()));
    if (name == "list") return List(Items(node, value));
    if (name == "first" || name == "last") {
      const std::vector<Value> items = Items(node, value);
      if (items.empty()) return Value::Undefined(name);
      return name == "first" ? items.front() : items.back();
    }
    if (name == "reverse") {
      std::vector<Value> items = Items(node, value);
      std::reverse(items.begin(), items.end());
      return List(items);
    }
    if (name == "join") {
      const std::string separator = TextArgument(node, arguments, 0, "d").value_or("");
      std::string joined;
      bool begun = false;
      for (const Value& item : Items(node, value)) {
        joined += (begun ? separator : "") + ToText(item);
        begun = true;
      }
      return Json(joined);
    }
    if (name == "replace" && positional.size() == 2) {
      const auto from = TextArgument(node, arguments, 0, "old"), to = TextArgument(node, arguments, 1, "new");
      if (from && to && !from->empty()) return Json(ReplaceText(ToText(value), *from, *to));
    }
    if (name == "items" && value.is_data() && value.data.is_object()) {
      Value method = value;
      method.name = "items";
      return CallDictMethod(node, method, {});
    }
    if (name == "tojson" && value.is_data()) {
      int indent = -1;
      const auto named = arguments.named.find("indent");
      const Value* given = named != arguments.named.end() ? &named->second
                           : positional.empty()           ? nullptr
                                                          : &positional[0];
      if (given != nullptr && given->is_data() && given->data.is_number_integer()) {
        indent = static_cast<int>(std::clamp<int64_t>(given->data.get<int64_t>(), 0, 16));
      } else if (given != nullptr) {
        return Fail(node, "tojson takes an indent");
      }
      return Json(JsonText(value.data, indent, 0));
    }
    if (name == "int" && value.is_data() && value.data.is_number())
      return Json(static_cast<int64_t>(value.data.get<double>()));
    if ((name == "selectattr" || name == "rejectattr") && !positional.empty())
      return Select(node, name, value, arguments);
    if (name == "map" && positional.empty() && arguments.named.contains("attribute")) {
      const std::string attribute = TextArgument(node, arguments, 0, "attribute").value_or("");
      Json list = Json::array();
      for (const Value& item : Items(node, value)) {
        const Value field = Attribute(node, item, attribute, /*methods=*/false);
        if (!field.is_data()) return Fail(node, absl::StrCat("an item has no \"", attribute, "\""));
        list.push_back(field.data);
      }
      return list;
    }
    return Fail(node, absl::StrCat("the filter \"", name, "\" is not supported",
                                   positional.empty() ? "" : " with these arguments"));
  }

  static Value List(const std::vector<Value>& items) {
    Json list = Json::array();
    for (const Value& item : items) list.push_back(item.data);
    return list;
  }

  // selectattr("role", "equalto", "user")
  Value Select(const Node& node, const std::string& name, const Value& value, const Arguments& arguments) {
    const std::string attribute = TextArgument(node, arguments, 0, "attribute").value_or("");
    Arguments rest;
    std::optional<std::string> test;
    if (arguments.positional.size() > 1) {
      test = TextArgument(node, arguments, 1, "test");
      rest.positional.assign(arguments.positional.begin() + 2, arguments.positional.end());
    }
    std::vector<Value> kept;
    for (const Value& item : Items(node, value)) {
      const Value field = Attribute(node, item, attribute, /*methods=*/false);
      const bool holds = test ? Test(node, *test, field, rest) : IsTrue(field);
      if (holds == (name == "selectattr")) kept.push_back(item);
      if (!status_.ok()) return {};
    }
    return List(kept);
  }

  bool Test(const Node& node, const std::string& name, const Value& value, const Arguments& arguments) {
    if (!status_.ok()) return false;
    if (name == "defined") return value.defined();
    if (name == "undefined") return !value.defined();
    const Json* data = value.is_data() ? &value.data : nullptr;
    if (name == "none") return data != nullptr && data->is_null();
    if (name == "string") return data != nullptr && data->is_string();
    if (name == "mapping") return data != nullptr && data->is_object();
    if (name == "number") return data != nullptr && (data->is_number() || data->is_boolean());
    if (name == "integer") return data != nullptr && data->is_number_integer();
    if (name == "float") return data != nullptr && data->is_number_float();
    if (name == "boolean") return data != nullptr && data->is_boolean();
    if (name == "true" || name == "false")
      return data != nullptr && data->is_boolean() && data->get<bool>() == (name == "true");
    if (name == "iterable" || name == "sequence")
      return data != nullptr && (data->is_structured() || data->is_string());
    if (arguments.positional.size() == 1) {
      const Value& other = arguments.positional[0];
      if (name == "equalto" || name == "eq" || name == "sameas") return Holds(node, value, "==", other);
      if (name == "ne") return Holds(node, value, "!=", other);
      if (name == "in") return Holds(node, value, "in", other);
    }
    if ((name == "odd" || name == "even") && data != nullptr && data->is_number_integer()) {
      return (data->get<int64_t>() % 2 != 0) == (name == "odd");
    }
    Fail(node, absl::StrCat("the test \"", name, "\" is not supported here"));
    return false;
  }

  std::vector<std::map<std::string, Value>> scopes_;  // the template's own, then one a loop
  int64_t steps_ = 0;
  int calls_ = 0;
  absl::Status status_;
};

}  // namespace

struct JinjaTemplate::Program {
  NodePtr root;
};

JinjaTemplate::JinjaTemplate(std::unique_ptr<Program> program) : program_(std::move(program)) {}
JinjaTemplate::JinjaTemplate(JinjaTemplate&&) noexcept = default;
JinjaTemplate& JinjaTemplate::operator=(JinjaTemplate&&) noexcept = default;
JinjaTemplate::~JinjaTemplate() = default;

absl::StatusOr<JinjaTemplate> JinjaTemplate::Parse(std::string_view source) {
  if (!IsValidUtf8(source)) return absl::InvalidArgumentError("the template is not valid UTF-8");
  std::string text = ReplaceText(std::string(source), "\r\n", "\n");
  std::replace(text.begin(), text.end(), '\r', '\n');
  if (!text.empty() && text.back() == '\n') text.pop_back();
  QUARTET_ASSIGN_OR_RETURN(std::vector<Token> tokens, Lexer(std::move(text)).Run());
  auto program = std::make_unique<Program>();
  QUARTET_ASSIGN_OR_RETURN(program->root, Parser(std::move(tokens)).Run());
  return JinjaTemplate(std::move(program));
}

absl::StatusOr<std::string> JinjaTemplate::Render(const nlohmann::ordered_json& variables) const {
  return Interpreter(variables).Run(*program_->root);
}

}  // namespace quartet
