#!/usr/bin/env python3
"""Writes core/model/testdata: tiny random models of each architecture, and what transformers computes from them.

    python3 -m venv venv && venv/bin/pip install -r tools/golden/requirements.txt
    venv/bin/python tools/golden/make_model_golden.py core/model/testdata [MODEL ...]

Each folder is a Hugging Face folder (config.json, model.safetensors) and golden/model.safetensors:
  ids [2, 13] (int64)          token ids
  logits [2, 13, V]            of the vocabulary head; or values [2, 13] of the scalar head
  log_probs [2, 12]            of tokens 1.. at temperature 1; log_probs_07: at temperature 0.7; entropy [2, 12]
  grad.<parameter>             of the mean of -log_probs, for the models that are named in WITH_GRADIENTS
"""

import pathlib
import shutil
import sys

import torch
import transformers
from safetensors.torch import save_file

COMMON = dict(
    vocab_size=101, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=256, initializer_range=0.2, bos_token_id=1, eos_token_id=2,
    pad_token_id=0, attn_implementation="eager")
LLAMA3_ROPE = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                   original_max_position_embeddings=16)
MODELS = {
    "llama": transformers.LlamaConfig(**COMMON, rope_theta=500.0),
    "llama_tied_llama3_rope": transformers.LlamaConfig(
        **COMMON, tie_word_embeddings=True, rope_scaling=LLAMA3_ROPE, rope_theta=10000.0),
    "llama_biases": transformers.LlamaConfig(**COMMON, attention_bias=True, mlp_bias=True, head_dim=16),
    "qwen2": transformers.Qwen2Config(**COMMON, rope_theta=1e6),
    "qwen3": transformers.Qwen3Config(**COMMON, head_dim=16, rope_theta=1e6, tie_word_embeddings=True),
    "mistral": transformers.MistralConfig(**COMMON, sliding_window=None),
    "llama_critic": transformers.LlamaConfig(**COMMON, num_labels=1),
    # Multipliers of the sizes that Granite 3's have; an attention_multiplier of 1 / head_dim.
    "granite": transformers.GraniteConfig(
        **COMMON, embedding_multiplier=12.0, residual_multiplier=0.22, attention_multiplier=0.125, logits_scaling=8.0,
        tie_word_embeddings=True),
    "olmo2": transformers.Olmo2Config(**COMMON, rope_theta=5e5),
}
WITH_GRADIENTS = {"llama", "llama_tied_llama3_rope", "qwen3", "granite", "olmo2"}


def golden(model, scalar, with_gradients):
    ids = torch.randint(3, 101, (2, 13))
    if scalar:
        hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state
        return {"ids": ids, "values": model.score(hidden).squeeze(-1).detach()}
    logits = model(input_ids=ids, use_cache=False).logits.float()
    targets = ids[:, 1:, None]
    log_probs = torch.log_softmax(logits[:, :-1], -1)
    out = {
        "ids": ids,
        "logits": logits.detach(),
        "log_probs": log_probs.gather(-1, targets).squeeze(-1).detach(),
        "log_probs_07": torch.log_softmax(logits[:, :-1] / 0.7, -1).gather(-1, targets).squeeze(-1).detach(),
        "entropy": -(log_probs.exp() * log_probs).sum(-1).detach(),
    }
    if with_gradients:
        (-log_probs.gather(-1, targets).mean()).backward()
        for name, parameter in model.named_parameters():
            out["grad." + name] = parameter.grad
    return out


def main():
    root = pathlib.Path(sys.argv[1])
    for index, (name, config) in enumerate(MODELS.items()):
        if sys.argv[2:] and name not in sys.argv[2:]:
            continue
        torch.manual_seed(index)
        scalar = name.endswith("_critic")
        cls = transformers.AutoModelForSequenceClassification if scalar else transformers.AutoModelForCausalLM
        model = cls.from_config(config).float().eval()
        with torch.no_grad():  # norms and biases start as ones and zeros, which would hide mistakes
            for parameter_name, parameter in model.named_parameters():
                if parameter.dim() == 1:
                    parameter.add_(torch.randn_like(parameter) * 0.2)
        folder = root / name
        shutil.rmtree(folder, ignore_errors=True)
        model.save_pretrained(folder)
        out = {key: value.contiguous() for key, value in golden(model, scalar, name in WITH_GRADIENTS).items()}
        (folder / "golden").mkdir()
        save_file(out, folder / "golden" / "model.safetensors")


if __name__ == "__main__":
    main()
