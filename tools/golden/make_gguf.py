#!/usr/bin/env python3
"""Writes tools/model/testdata/gguf: a tiny Llama as a GGUF file with tensors of several types, and the folders that
transformers makes of it in fp32 and in bf16.

    pip install -r tools/golden/requirements.txt gguf==0.19.0 accelerate==1.15.0
    python tools/golden/make_gguf.py
"""

import os
import pathlib
import shutil
import tempfile

import gguf
import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

FOLDER = pathlib.Path(__file__).parents[2] / "tools" / "model" / "testdata" / "gguf"
HIDDEN, INTERMEDIATE, LAYERS, HEADS, KV_HEADS = 32, 64, 2, 4, 2
HEAD_DIM = HIDDEN // HEADS
Type = gguf.GGMLQuantizationType

# Byte-level BPE: special tokens, the bytes, and what some merges make of them.
MERGES = ["h e", "l l", "he ll", "hell o", "Ġ t", "Ġt he", "1 2", "e r", "Ġ w", "Ġw o", "Ġwo r", "l d", "Ġwor ld"]


def byte_letters():
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {byte: chr(byte) for byte in kept}
    for byte in range(256):
        letters.setdefault(byte, chr(256 + sum(b not in kept for b in range(byte))))
    return [letters[byte] for byte in range(256)]


def main():
    generator = np.random.default_rng(1)
    special = ["<unk>", "<|im_start|>", "<|im_end|>"]
    tokens = special + byte_letters() + [merge.replace(" ", "") for merge in MERGES]
    tokens += [f"<unused{i}>" for i in range(-len(tokens) % 16)]

    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    path = FOLDER / "tiny.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INTERMEDIATE)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(100000.0)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in special else 1 for token in tokens])
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_chat_template("{% for m in messages %}<|im_start|>{{ m['role'] + '\n' + m['content'] }}<|im_end|>\n"
                             "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")

    def add(name, kind, *shape):
        values = generator.normal(0, 0.1, shape).astype(np.float32)
        if kind == Type.F32:
            writer.add_tensor(name, values + 1)
        elif kind == Type.F16:
            writer.add_tensor(name, (values * 1e-4 if "attn_v" in name else values).astype(np.float16))
        else:
            writer.add_tensor(name, gguf.quantize(values, kind), raw_dtype=kind)

    add("token_embd.weight", Type.Q8_0, len(tokens), HIDDEN)
    for layer in range(LAYERS):
        block = f"blk.{layer}."
        add(block + "attn_norm.weight", Type.F32, HIDDEN)
        add(block + "attn_q.weight", Type.Q4_1, HIDDEN, HIDDEN)
        add(block + "attn_k.weight", Type.Q8_0, KV_HEADS * HEAD_DIM, HIDDEN)
        add(block + "attn_v.weight", Type.F16, KV_HEADS * HEAD_DIM, HIDDEN)
        add(block + "attn_output.weight", Type.BF16, HIDDEN, HIDDEN)
        add(block + "ffn_norm.weight", Type.F32, HIDDEN)
        add(block + "ffn_gate.weight", Type.Q4_1, INTERMEDIATE, HIDDEN)
        add(block + "ffn_up.weight", Type.Q4_1, INTERMEDIATE, HIDDEN)
        add(block + "ffn_down.weight", Type.Q4_1, HIDDEN, INTERMEDIATE)
    add("output_norm.weight", Type.F32, HIDDEN)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        with tempfile.TemporaryDirectory() as folder:
            AutoModelForCausalLM.from_pretrained(FOLDER, gguf_file=path.name, dtype=dtype).save_pretrained(folder)
            AutoTokenizer.from_pretrained(FOLDER, gguf_file=path.name).save_pretrained(folder)
            os.makedirs(FOLDER / name)
            kept = ["model.safetensors", "config.json", "tokenizer.json", "chat_template.jinja"]
            for file in kept if name == "fp32" else kept[:1]:
                shutil.copy(os.path.join(folder, file), FOLDER / name / file)
                (FOLDER / name / file).chmod(0o644)


if __name__ == "__main__":
    main()
