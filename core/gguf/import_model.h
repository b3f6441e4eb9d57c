// A GGUF file as a Hugging Face folder: weights, configuration, tokenizer. LibTorch-free.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "core/safetensors/reader.h"

namespace quartet {

// Writes the folder `target`, which must not exist and appears whole or not at all, as transformers 4.57 makes it of
// such a file (AutoModelForCausalLM and AutoTokenizer, from_pretrained(..., gguf_file=...), save_pretrained): the same
// weights to the bit, in `dtype` (kBF16 or kF32), and the same tokenizer.json. A text begins with BOS there, whatever
// tokenizer.ggml.add_bos_token says. In tokenizer_config.json EOS is the file's, where transformers takes BOS for it.
//
// The architecture "llama" with a byte-level BPE tokenizer ("gpt2"). INVALID_ARGUMENT, naming the file and what is
// wrong, for others, and for rotary frequencies that are stretched; ALREADY_EXISTS where the target is there.
absl::Status ImportGguf(const std::string& file, const std::string& target, Dtype dtype);

}  // namespace quartet
