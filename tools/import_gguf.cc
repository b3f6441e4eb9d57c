// import_gguf FILE FOLDER: a GGUF file as a Hugging Face folder.
#include <iostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "core/base/files.h"
#include "core/gguf/import_model.h"

namespace quartet {
namespace {

constexpr char kHelp[] = R"(import_gguf: makes a Hugging Face folder (weights, config.json, tokenizer) of a GGUF file.

  import_gguf [--dtype=bf16|fp32] FILE FOLDER

Of Llama models with a byte-level BPE tokenizer, with tensors in F32, F16, BF16, Q8_0 and Q4_1. Weights and tokenizer.json
are those that transformers 4.57 makes of the file. FOLDER must not exist; it appears whole or not at all.

Exit codes: 0 done, 1 the file is wrong (the message says what), 2 wrong flags.
)";

int Main(int argc, char** argv) {
  Dtype dtype = Dtype::kBF16;
  std::vector<std::string> paths;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--help") {
      std::cout << kHelp;
      return 0;
    }
    if (argument == "--dtype=bf16" || argument == "--dtype=fp32") {
      dtype = argument == "--dtype=fp32" ? Dtype::kF32 : Dtype::kBF16;
    } else if (argument.starts_with("--")) {
      std::cerr << "import_gguf: unknown argument \"" << argument << "\"; --help tells them\n";
      return 2;
    } else {
      paths.push_back(ResolveUserPath(argument));
    }
  }
  if (paths.size() != 2) {
    std::cerr << kHelp;
    return 2;
  }
  const absl::Status status = ImportGguf(paths[0], paths[1], dtype);
  if (status.ok()) return 0;
  std::cerr << "import_gguf: " << status.message() << "\n";
  return 1;
}

}  // namespace
}  // namespace quartet

int main(int argc, char** argv) { return quartet::Main(argc, argv); }
