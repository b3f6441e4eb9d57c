#include "core/tokenizer/jinja/syntax/global_names.h"

#include <cstddef>

namespace quartet::jinja {
namespace {

class Reader {
 public:
  // `bound`: the names that have values of the template's own there; a statement adds those that it gives.
  void Read(const NodePtr& node, Names& bound) {
    if (node == nullptr) return;
    const auto& kids = node->kids;
    switch (node->kind) {
      case NodeKind::kName:
        if (!bound.contains(node->text)) read_.insert(node->text);
        return;
      case NodeKind::kIf:
        for (const NodePtr& kid : kids) ReadInside(kid, bound);
        return;
      case NodeKind::kFor: {
        Read(kids[1], bound);
        Names inside = bound;
        Bind(*kids[0], inside);
        inside.insert("loop");
        Read(kids[2], inside);
        ReadInside(kids[3], inside);
        ReadInside(kids[4], bound);
        return;
      }
      case NodeKind::kSet:
        Read(kids[1], bound);
        Bind(*kids[0], bound);
        return;
      case NodeKind::kSetBlock:
        ReadInside(kids[1], bound);
        Read(kids[2], bound);
        Bind(*kids[0], bound);
        return;
      case NodeKind::kWith: {
        Names inside = bound;
        for (size_t i = 0; i + 2 < kids.size(); i += 2) {
          Read(kids[i + 1], bound);
          Bind(*kids[i], inside);
        }
        Read(kids.back(), inside);
        return;
      }
      case NodeKind::kMacro: {
        bound.insert(node->text);
        Names inside = bound;
        inside.insert({"caller", "varargs", "kwargs"});
        inside.insert(node->names.begin(), node->names.end());
        for (const NodePtr& kid : kids) ReadInside(kid, inside);
        return;
      }
      case NodeKind::kCallBlock:
      case NodeKind::kFilterBlock:
        for (const NodePtr& kid : kids) ReadInside(kid, bound);
        return;
      default:
        for (const NodePtr& kid : kids) Read(kid, bound);
    }
  }

  Names Take() { return std::move(read_); }

 private:
  void ReadInside(const NodePtr& node, Names bound) { Read(node, bound); }

  void Bind(const Node& target, Names& bound) {
    if (target.kind == NodeKind::kName) {
      bound.insert(target.text);
    } else if (target.kind == NodeKind::kAttribute) {
      Read(target.kids[0], bound);
    } else {
      for (const NodePtr& kid : target.kids) Bind(*kid, bound);
    }
  }

  Names read_;
};

}  // namespace

Names GlobalNames(const Node& root) {
  Reader reader;
  Names bound;
  for (const NodePtr& kid : root.kids) reader.Read(kid, bound);
  return reader.Take();
}

}  // namespace quartet::jinja
