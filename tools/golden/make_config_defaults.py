"""Writes core/model/testdata/config_defaults.json: what transformers makes of config.json where keys are missing or null.

Usage: python3 tools/golden/make_config_defaults.py core/model/testdata   (torch 2.11.0, transformers 4.57.6)

For each family: "config", a file that states every key with another value than the default; "reading", what transformers'
configuration and model classes make of it; "rows", pairs of changes of the two. A row's reading is null where the
classes fail, or would compute with a None. The rows leave out one key each, make one null each, leave out all, and try
what concerns the window.
"""

import json
import pathlib
import sys

import torch
from transformers import AutoConfig, AutoModelForCausalLM

FAMILIES = ["llama", "mistral", "qwen2", "qwen3", "granite", "olmo2"]
LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64)
FULL = dict(
    vocab_size=1000, hidden_size=256, intermediate_size=96, num_hidden_layers=3, num_attention_heads=64,
    num_key_value_heads=4, head_dim=16, hidden_act="silu", max_position_embeddings=512, rms_norm_eps=1e-5, rope_theta=5e5,
    rope_scaling=LLAMA3, tie_word_embeddings=True, attention_bias=True, mlp_bias=True, attention_dropout=0.0,
    initializer_range=0.01, bos_token_id=5, eos_token_id=6, pad_token_id=7, use_sliding_window=True, sliding_window=128,
    max_window_layers=1,
)
MULTIPLIERS = dict(embedding_multiplier=12.0, residual_multiplier=0.25, attention_multiplier=0.5, logits_scaling=8.0)
ABSENT = "(absent)"
FULL_ATTENTION, SLIDING = "full_attention", "sliding_attention"
WINDOWS = [
    dict(use_sliding_window=False),
    dict(use_sliding_window=False, sliding_window=None),
    dict(max_window_layers=0),
    dict(max_window_layers=2),
    dict(max_window_layers=3),
    dict(max_window_layers=36),
    dict(sliding_window=512),
    dict(sliding_window=4096),
    dict(layer_types=[FULL_ATTENTION] * 3),
    dict(layer_types=[FULL_ATTENTION, SLIDING, FULL_ATTENTION]),
    dict(layer_types=[SLIDING] * 3),
    dict(layer_types=[FULL_ATTENTION, SLIDING, FULL_ATTENTION], sliding_window=None),
    dict(layer_types=[FULL_ATTENTION, SLIDING, FULL_ATTENTION], use_sliding_window=False),
    dict(layer_types=[FULL_ATTENTION] * 2),
]


def qk_norm(attention):
    if not hasattr(attention, "q_norm"):
        return "none"
    return "each head" if attention.q_norm.weight.numel() == attention.head_dim else "all heads"


def without(config, *keys):
    return {key: value for key, value in config.items() if key not in keys}


def reading(source):
    """What the classes make of `source`, from the modules that they build where those say it."""
    try:
        values = dict(source)
        config = AutoConfig.for_model(values.pop("model_type"), **json.loads(json.dumps(values)))
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
    except Exception:
        return None
    layer = model.model.layers[0]
    attention, mlp = layer.self_attn, layer.mlp
    windows = {block.self_attn.sliding_window for block in model.model.layers if hasattr(attention, "sliding_window")}
    if config.model_type == "mistral":
        windows = {config.sliding_window}
    sliding = [window for window in windows if window is not None]
    rotary = model.model.rotary_emb
    scaling = config.rope_scaling if rotary.rope_type != "default" else None
    eos = config.eos_token_id
    if SLIDING in (getattr(config, "layer_types", None) or []) and config.model_type.startswith("qwen") and not sliding:
        return None  # the forward raises: there is no window for these layers
    view = dict(
        vocab_size=model.lm_head.out_features,
        hidden_size=attention.q_proj.in_features,
        intermediate_size=mlp.gate_proj.out_features,
        num_hidden_layers=len(model.model.layers),
        num_attention_heads=attention.q_proj.out_features // attention.head_dim,
        num_key_value_heads=attention.k_proj.out_features // attention.head_dim,
        head_dim=attention.head_dim,
        max_position_embeddings=config.max_position_embeddings,
        rms_norm_eps=layer.post_attention_layernorm.variance_epsilon,
        rope_theta=config.rope_theta,
        tie_word_embeddings=bool(config.tie_word_embeddings),
        qkv_bias=attention.q_proj.bias is not None,
        o_bias=attention.o_proj.bias is not None,
        mlp_bias=mlp.gate_proj.bias is not None,
        qk_norm=qk_norm(attention),
        norms=[name for name, module in layer.named_children() if name.endswith("norm")],
        multipliers=[getattr(model.model, "embedding_multiplier", 1.0), getattr(layer, "residual_multiplier", 1.0),
                     attention.scaling if config.model_type == "granite" else 0.0, getattr(config, "logits_scaling", 1.0)],
        initializer_range=config.initializer_range,
        attention_dropout=config.attention_dropout,
    )
    if None in view.values() or None in view["multipliers"] or not config.hidden_act == "silu":
        return None
    return view | dict(
        rope_scaling=without(scaling, "rope_type", "type") if scaling else None,
        sliding_window=sliding[0] if sliding else None,
        bos_token_id=config.bos_token_id,
        pad_token_id=config.pad_token_id,
        eos_token_ids=[] if eos is None else eos if isinstance(eos, list) else [eos],
    )


def changes(before, after):
    return {key: after.get(key, ABSENT) for key in before | after if after.get(key, ABSENT) != before.get(key, ABSENT)}


def main(folder):
    golden = {}
    for family in FAMILIES:
        full = {"model_type": family} | FULL
        if family in ("qwen2", "granite", "olmo2"):
            del full["head_dim"]  # their classes have no such key
        if family == "granite":
            full |= MULTIPLIERS
        if family == "olmo2":
            full["rope_scaling"] = None  # its class refuses what transformers' other classes take
        configs = [{"model_type": family}]
        configs += [without(full, key) for key in full if key != "model_type"]
        configs += [full | {key: None} for key in full if key != "model_type"]
        for window in WINDOWS:
            # The other classes pass over layer_types; Quartet refuses what contradicts them.
            types = window.get("layer_types", [])
            unread = family not in ("qwen2", "qwen3")
            if unread and family != "mistral" and SLIDING in types or unread and len(types) == 2:
                continue
            configs.append(full | window)
        deep = without(full, "num_hidden_layers", "max_window_layers", "rope_scaling")
        configs += [deep, without(deep, "sliding_window"), without(deep, "sliding_window", "use_sliding_window")]
        if family != "olmo2":
            configs += [full | {"rope_scaling": {"rope_type": "default", "rope_theta": 7.0}}]
        expected = reading(full)
        rows = [[changes(full, config), read and changes(expected, read)] for config in configs for read in [reading(config)]]
        golden[family] = dict(config=full, reading=expected, rows=rows)
    parts = []
    for family, one in golden.items():
        rows = ",\n  ".join(json.dumps(row) for row in one["rows"])
        config, read = json.dumps(one["config"]), json.dumps(one["reading"])
        parts.append(f'"{family}": {{\n "config": {config},\n "reading": {read},\n "rows": [\n  {rows}\n ]\n}}')
    (folder / "config_defaults.json").write_text("{\n" + ",\n".join(parts) + "\n}\n")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
