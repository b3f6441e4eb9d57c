"""Writes adapters, and what peft with transformers and torch computes with them and makes of them.

    python3 -m venv venv && venv/bin/pip install -r tools/golden/requirements.txt
    venv/bin/python tools/golden/make_lora_golden.py                             (at the root: paths stand in the files)

core/model/testdata/NAME: a folder as save_pretrained writes it, over a model beside it, with golden/model.safetensors:
  ids [2, 13] (int64), and logits [2, 13, V] of the vocabulary head, or values [2, 13] of the scalar head
core/zero/testdata/NAME: likewise; NAME.json as make_training_golden.py writes it, of training the adapters alone; and
NAME/golden/model.safetensors with the gradients of the first step, by name.
"""

import copy
import json
import pathlib
import shutil

import peft
import torch
import transformers
from safetensors.torch import save_file

import make_training_golden

# Name: the model, and its adapters. Ranks that are, and that are no, multiples of what a product takes at a time.
MODELS = {
    "llama_lora": ("llama", dict(r=8, lora_alpha=16, target_modules="all-linear", lora_dropout=0.1)),
    "llama_biases_lora": ("llama_biases", dict(r=1, lora_alpha=2, target_modules=["q_proj", "up_proj"])),
    "qwen3_lora": ("qwen3", dict(r=16, lora_alpha=8, target_modules=["o_proj", "down_proj"])),
    "granite_lora": ("granite", dict(r=8, lora_alpha=4, use_rslora=True, target_modules="all-linear")),
    "olmo2_lora": ("olmo2", dict(r=3, lora_alpha=5, target_modules="all-linear")),
    "llama_critic_lora": ("llama_critic", dict(r=8, lora_alpha=8, target_modules=["k_proj", "gate_proj"])),
}
TRAINED = {
    "llama_lora": ("llama", dict(r=8, lora_alpha=16, target_modules="all-linear")),
    "qwen2_tied_lora": ("qwen2_tied", dict(r=3, lora_alpha=6, use_rslora=True, target_modules=["v_proj", "down_proj"])),
    "olmo2_lora": ("olmo2", dict(r=1, lora_alpha=4, target_modules="all-linear")),
}
ADAM = make_training_golden.OPTIMIZERS["adam"]


def adapted(base, options, scalar=False):
    cls = transformers.AutoModelForSequenceClassification if scalar else transformers.AutoModelForCausalLM
    model = cls.from_pretrained(str(base), torch_dtype=torch.float32, attn_implementation="eager")
    task = "SEQ_CLS" if scalar else "CAUSAL_LM"
    model = peft.get_peft_model(model, peft.LoraConfig(task_type=task, **options)).eval()
    config = model.peft_config["default"]
    config.target_modules = sorted(config.target_modules)  # a set, whose order is another in every run
    with torch.no_grad():  # B starts as zeros, which would hide mistakes; and the head as the base has it
        for name, parameter in model.named_parameters():
            if "lora_B" in name or "score.modules_to_save" in name:
                parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def save(model, folder, golden):
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder)
    (folder / "README.md").unlink(missing_ok=True)
    (folder / "golden").mkdir()
    save_file({name: value.contiguous() for name, value in golden.items()}, folder / "golden" / "model.safetensors")


def computed(model, scalar):
    ids = torch.randint(3, 101, (2, 13))
    with torch.no_grad():
        if not scalar:
            return {"ids": ids, "logits": model(input_ids=ids, use_cache=False).logits.float()}
        hidden = model.base_model.model.model(input_ids=ids, use_cache=False).last_hidden_state
        return {"ids": ids, "values": model.base_model.model.score(hidden).squeeze(-1)}


def first_gradients(model, sequences):
    """Those of the adapters, by the names that the folder has for them."""
    model = copy.deepcopy(model).double()
    for loss in make_training_golden.losses_of(model, sequences):
        loss.backward()
    gradients = {name: p.grad.float() for name, p in model.named_parameters() if p.requires_grad}
    return {name.replace(".default", ""): gradient for name, gradient in gradients.items()}


def main():
    root = pathlib.Path("core/model/testdata")
    for index, (name, (base, options)) in enumerate(MODELS.items()):
        torch.manual_seed(100 + index)
        scalar = base.endswith("_critic")
        model = adapted(root / base, options, scalar)
        save(model, root / name, computed(model, scalar))
    root = pathlib.Path("core/zero/testdata")
    for index, (name, (base, options)) in enumerate(TRAINED.items()):
        torch.manual_seed(200 + index)
        model = adapted(root / base, options)
        sequences = json.loads((root / f"{base}.json").read_text())["sequences"]
        save(model, root / name, first_gradients(model, sequences))
        steps = make_training_golden.train(copy.deepcopy(model).double().train(), sequences, ADAM)
        print(name, steps["losses"][0], steps["losses"][-1], steps["average_loss"])
        (root / f"{name}.json").write_text(json.dumps({"sequences": sequences, "adam": steps}) + "\n")


if __name__ == "__main__":
    main()
