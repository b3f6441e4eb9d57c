#!/usr/bin/env python3
"""Makes a Hugging Face folder (weights, config.json, tokenizer) of a GGUF file, llama.cpp's format.

Of Llama models with a byte-level BPE tokenizer, with tensors of any type that the gguf package dequantises. Weights and
tokenizer.json are those that transformers 4.57 makes of the file (AutoModelForCausalLM and AutoTokenizer,
from_pretrained(..., gguf_file=...), save_pretrained). A text begins with BOS there, whatever
tokenizer.ggml.add_bos_token says. In tokenizer_config.json EOS is the file's, where transformers takes BOS for it.
FOLDER must not exist; it appears whole or not at all.

Exit codes: 0 done, 1 no folder was made (the message says why), 2 wrong flags.
"""

import argparse
import json
import math
import os
import shutil
import sys
import tempfile

# Bazel lays the packages (third_party/gguf.BUILD) among the runfiles: of whose this is one, or this program's.
program = os.path.abspath(sys.argv[0])
sys.path.insert(0, (program.rpartition(".runfiles/")[0] or program) + ".runfiles/gguf")

try:
    import gguf
    import numpy as np
except ImportError as error:
    sys.exit(f"import_gguf: {error}\nBazel brings the packages, for Python 3.11; {sys.executable} is "
             f"{sys.version.split()[0]}. Without Bazel: pip install gguf==0.19.0")

SPECIAL = 3  # in tokenizer.ggml.token_type
REQUIRED = object()


class BadFile(Exception):
    """What is wrong with the file."""


class Reader(gguf.GGUFReader):
    """Ends where the file ends. The package's own takes what lies behind for empty, and goes on."""

    def _get(self, offset, dtype, count=1, override_order=None):
        end = offset + np.dtype(dtype).itemsize * int(count)
        if end > len(self.data):
            raise ValueError(f"has {len(self.data)} bytes, and would need {end} at least")
        return super()._get(offset, dtype, count, override_order)


class File:
    """Metadata and tensors, each as what it must be."""

    def __init__(self, path):
        try:
            reader = Reader(path)
        except (ValueError, ArithmeticError, LookupError) as error:
            raise BadFile(f"cannot be read as GGUF: {error}") from error
        if reader.byte_order != "I":
            raise BadFile("is big-endian; little-endian files can be imported")
        self.fields = reader.fields
        self.tensors = {tensor.name: tensor for tensor in reader.tensors}

    def get(self, key, kind, default=REQUIRED):
        """The value of `key`: an int, a float or a str, or a list of them where `kind` is [int] or [str]."""
        if key not in self.fields:
            if default is REQUIRED:
                raise BadFile(f"has no metadata {key}")
            return default
        try:
            value = self.fields[key].contents()
        except UnicodeDecodeError as error:
            raise BadFile(f"metadata {key} is not UTF-8") from error
        if isinstance(kind, list):
            if not isinstance(value, list) or not all(isinstance(one, kind[0]) for one in value):
                raise BadFile(f"metadata {key} is not a list of type {kind[0].__name__}")
        elif not isinstance(value, kind):
            raise BadFile(f"metadata {key} is not of type {kind.__name__}")
        return value

    def size(self, key):
        value = self.get(key, int)
        if value < 1:
            raise BadFile(f"metadata {key} is {value}; at least 1 is allowed")
        return value

    def tensor(self, name, shape):
        """All elements as fp32."""
        if name not in self.tensors:
            raise BadFile(f"has no tensor {name}")
        tensor = self.tensors[name]
        found = tensor.shape[::-1].tolist()
        if found != shape:
            raise BadFile(f"tensor {name} has shape {found}; {shape} is what its model has")
        try:
            return gguf.dequantize(tensor.data, tensor.tensor_type)
        except NotImplementedError as error:
            raise BadFile(f"tensor {name}: {error}") from error


class Tokenizer:
    """What a file says of its tokens."""

    def __init__(self, file):
        self.tokens = file.get("tokenizer.ggml.tokens", [str])
        if len(set(self.tokens)) != len(self.tokens):
            raise BadFile("tokenizer.ggml.tokens has a token twice")
        self.types = file.get("tokenizer.ggml.token_type", [int])
        if len(self.types) != len(self.tokens):
            raise BadFile(f"tokenizer.ggml.token_type has {len(self.types)} entries for {len(self.tokens)} tokens")
        self.merges = [merge.split(" ", 1) for merge in file.get("tokenizer.ggml.merges", [str])]
        for merge in self.merges:
            if len(merge) != 2:
                raise BadFile(f'tokenizer.ggml.merges has "{merge[0]}"; two parts with a space between are allowed')
        self.adds_space = file.get("tokenizer.ggml.add_space_prefix", int, 1)
        self.ids = {}  # of those roles that there are
        for role in ("bos", "eos", "unknown", "padding"):
            key = f"tokenizer.ggml.{role}_token_id"
            token = file.get(key, int, None)
            if token is None:
                continue
            if not 0 <= token < len(self.tokens):
                raise BadFile(f"{key} is {token}; there are {len(self.tokens)} tokens")
            self.ids[role] = token

    def token(self, role):
        return self.tokens[self.ids[role]] if role in self.ids else None

    def json(self):
        bos = self.token("bos")
        begins = None
        if bos is not None:
            a, b = ([{"SpecialToken": {"id": bos, "type_id": part}}, {"Sequence": {"id": name, "type_id": part}}]
                    for part, name in enumerate("AB"))
            begins = {"type": "TemplateProcessing", "single": a, "pair": a + b,
                      "special_tokens": {bos: {"id": bos, "ids": [self.ids["bos"]], "tokens": [bos]}}}
        byte_level = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
        decoders = [{"type": "ByteFallback"}, {"type": "Fuse"},
                    {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}, byte_level]
        if self.adds_space:
            decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
        vocabulary = {token: i for i, token in enumerate(self.tokens)}
        return {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [{"id": i, "content": token, "single_word": False, "lstrip": False, "rstrip": False,
                              "normalized": False, "special": True}
                             for (token, i), kind in zip(vocabulary.items(), self.types) if kind == SPECIAL],
            "normalizer": {"type": "Sequence", "normalizers": []},
            "pre_tokenizer": {**byte_level, "add_prefix_space": False, "trim_offsets": False},
            "post_processor": begins,
            "decoder": {"type": "Sequence", "decoders": decoders},
            "model": {"type": "BPE", "dropout": None, "unk_token": self.token("unknown"),
                      "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": True,
                      "byte_fallback": True, "ignore_merges": False, "vocab": vocabulary, "merges": self.merges},
        }

    def config(self):
        config = {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True, "add_eos_token": False,
                  "add_prefix_space": None, "legacy": True, "clean_up_tokenization_spaces": True}
        roles = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown"}
        return config | {name: self.token(role) for name, role in roles.items() if role in self.ids}


def check_kind(file):
    for key, wanted in (("general.architecture", "llama"), ("tokenizer.ggml.model", "gpt2")):
        found = file.get(key, str)
        if found != wanted:
            raise BadFile(f'{key} is "{found}"; "{wanted}" can be imported')
    if "rope_freqs.weight" in file.tensors:
        raise BadFile("has the tensor rope_freqs.weight: stretched rotary frequencies cannot be imported")
    for key in ("llama.rope.scaling.type", "llama.expert_count"):
        if key in file.fields:
            raise BadFile(f"has metadata {key}: such a model cannot be imported")


def make_config(file, tokenizer, dtype):
    """config.json."""
    hidden, heads = file.size("llama.embedding_length"), file.size("llama.attention.head_count")
    kv_heads = file.size("llama.attention.head_count_kv")
    if heads % kv_heads:
        raise BadFile(f"llama.attention.head_count is {heads}; a multiple of llama.attention.head_count_kv, which is "
                      f"{kv_heads}, is allowed")
    head_dim = file.get("llama.rope.dimension_count", int, hidden // heads)
    if head_dim < 2 or head_dim % 2:
        raise BadFile(f"llama.rope.dimension_count (by default llama.embedding_length / llama.attention.head_count) is "
                      f"{head_dim}; an even number from 2 on is allowed")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(tokenizer.tokens),
        "hidden_size": hidden,
        "intermediate_size": file.size("llama.feed_forward_length"),
        "num_hidden_layers": file.size("llama.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": file.size("llama.context_length"),
        "rms_norm_eps": file.get("llama.attention.layer_norm_rms_epsilon", float),
        "rope_theta": file.get("llama.rope.freq_base", float, 10000.0),
        "rope_scaling": None,
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "attention_bias": False,
        "mlp_bias": False,
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
        "bos_token_id": tokenizer.ids.get("bos"),
        "pad_token_id": tokenizer.ids.get("padding"),
        "eos_token_id": tokenizer.ids.get("eos"),
        "torch_dtype": "bfloat16" if dtype == "bf16" else "float32",
        "use_cache": True,
    }


def make_layout(config):
    """Parameter -> the tensor that holds it, its shape, and the heads of its rows (0: has none that are rearranged)."""
    hidden, inner, vocabulary = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    q, kv = heads * config["head_dim"], kv_heads * config["head_dim"]
    layout = {"model.embed_tokens": ("token_embd", [vocabulary, hidden], 0)}
    norm = {"model.norm": ("output_norm", [hidden], 0)}
    if config["tie_word_embeddings"]:
        layout |= norm
    for i in range(config["num_hidden_layers"]):
        layout |= {f"model.layers.{i}.{name}": (f"blk.{i}.{tensor}", shape, of) for name, tensor, shape, of in (
            ("input_layernorm", "attn_norm", [hidden], 0),
            ("self_attn.q_proj", "attn_q", [q, hidden], heads),
            ("self_attn.k_proj", "attn_k", [kv, hidden], kv_heads),
            ("self_attn.v_proj", "attn_v", [kv, hidden], 0),
            ("self_attn.o_proj", "attn_output", [hidden, q], 0),
            ("post_attention_layernorm", "ffn_norm", [hidden], 0),
            ("mlp.gate_proj", "ffn_gate", [inner, hidden], 0),
            ("mlp.up_proj", "ffn_up", [inner, hidden], 0),
            ("mlp.down_proj", "ffn_down", [hidden, inner], 0),
        )}
    if not config["tie_word_embeddings"]:
        layout |= norm | {"lm_head": ("output", [vocabulary, hidden], 0)}
    return {f"{name}.weight": (f"{tensor}.weight", shape, of) for name, (tensor, shape, of) in layout.items()}


def weights(file, layout, dtype):
    """Yields model.safetensors, piece by piece."""
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name, (_, shape, _) in layout.items():
        begin, end = end, end + math.prod(shape) * (2 if dtype == "bf16" else 4)
        header[name] = {"dtype": "BF16" if dtype == "bf16" else "F32", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for tensor, shape, heads in layout.values():
        values = file.tensor(tensor, shape)
        if heads:
            # llama.cpp rotates neighbours, transformers halves: rows 2 i and 2 i + 1 of a head are its i and i + d / 2.
            values = values.reshape(heads, -1, 2, shape[1]).swapaxes(1, 2).reshape(shape)
        yield (gguf.quantize(values, gguf.GGMLQuantizationType.BF16) if dtype == "bf16" else values).tobytes()


def import_gguf(path, target, dtype):
    if os.path.lexists(target):
        raise FileExistsError(f"{target} exists already")
    file = File(path)
    check_kind(file)
    tokenizer = Tokenizer(file)
    config = make_config(file, tokenizer, dtype)
    expected = 2 + 9 * config["num_hidden_layers"] + (not config["tie_word_embeddings"])
    if len(file.tensors) != expected:
        raise BadFile(f"has {len(file.tensors)} tensors; a model of its shape has {expected}")

    def pretty(value):
        return [json.dumps(value, indent=2, ensure_ascii=False).encode()]

    contents = {
        "config.json": pretty(config) + [b"\n"],
        "tokenizer.json": pretty(tokenizer.json()),
        "tokenizer_config.json": pretty(tokenizer.config()) + [b"\n"],
        "model.safetensors": weights(file, make_layout(config), dtype),
    }
    template = file.get("tokenizer.chat_template", str, None)
    if template is not None:
        contents["chat_template.jinja"] = [template.encode()]

    parent, name = os.path.split(target)
    os.makedirs(parent, exist_ok=True)
    folder = tempfile.mkdtemp(prefix=name + ".", dir=parent)
    try:
        os.chmod(folder, 0o755)
        for name, pieces in contents.items():
            with open(os.path.join(folder, name), "xb") as out:
                out.writelines(pieces)
                out.flush()
                os.fsync(out.fileno())
        os.rename(folder, target)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def main():
    parser = argparse.ArgumentParser(prog="import_gguf", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", choices=["bf16", "fp32"], default="bf16", help="of the weights (bf16)")
    parser.add_argument("file", metavar="FILE")
    parser.add_argument("folder", metavar="FOLDER")
    arguments = parser.parse_args()
    # The user's folder, under `bazel run` too.
    file, folder = (os.path.normpath(os.path.join(os.environ.get("BUILD_WORKING_DIRECTORY") or os.getcwd(), path))
                    for path in (arguments.file, arguments.folder))
    try:
        import_gguf(file, folder, arguments.dtype)
    except BadFile as error:
        sys.exit(f"import_gguf: {file}: {error}")
    except OSError as error:
        sys.exit(f"import_gguf: {error}")


if __name__ == "__main__":
    main()
