"""Writes what peft's merge_and_unload makes of the adapters of make_lora_golden.py.

    python3 -m venv venv && venv/bin/pip install -r tools/golden/requirements.txt
    venv/bin/python tools/golden/make_merged_lora.py                             (at the root: paths stand in the files)

tools/model/testdata/merged_lora/NAME.safetensors: the merged model's tensors in fp32, by transformers' names.
tools/model/testdata/merged_lora/lost.json: NAME: TYPE: product: ||round(W + dW) - W - dW|| / ||dW||, in fp64, of the
products that were merged.
"""

import json
import pathlib

import peft
import torch
import transformers
from safetensors.torch import load_file, save_file

from make_lora_golden import MODELS

TYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


def lost(before, merged, dtype):
    return ((merged.to(dtype).double() - merged).norm() / (merged - before).norm()).item()


def merged_weights(base, folder, dtype):
    scalar = base.name.endswith("_critic")
    cls = transformers.AutoModelForSequenceClassification if scalar else transformers.AutoModelForCausalLM
    model = cls.from_pretrained(str(base), torch_dtype=dtype)
    model = peft.PeftModel.from_pretrained(model, str(folder), autocast_adapter_dtype=False).to(dtype)
    return model.merge_and_unload().state_dict()


def main():
    root, target = pathlib.Path("core/model/testdata"), pathlib.Path("tools/model/testdata/merged_lora")
    target.mkdir(parents=True, exist_ok=True)
    parts = {}
    for name, (base, _) in MODELS.items():
        merged = merged_weights(root / base, root / name, torch.float32)
        if "lm_head.weight" in merged and "lm_head.weight" not in load_file(root / base / "model.safetensors"):
            del merged["lm_head.weight"]  # the embedding
        save_file({key: value.contiguous() for key, value in merged.items()}, target / f"{name}.safetensors")
        exact = merged_weights(root / base, root / name, torch.float64)
        before = load_file(root / base / "model.safetensors")
        before = {key: before[key].double() for key in exact if key in before}
        changed = [key for key, value in before.items()
                   if not torch.equal(value, exact[key]) and not key.startswith("score")]
        parts[name] = {typename: {key: lost(before[key], exact[key], dtype) for key in changed}
                       for typename, dtype in TYPES.items()}
    (target / "lost.json").write_text(json.dumps(parts) + "\n")


if __name__ == "__main__":
    main()
