"""Writes what peft with transformers and torch makes of a critic's and a reward model's adapters in twenty steps.

    python3 -m venv venv && venv/bin/pip install -r tools/golden/requirements.txt
    venv/bin/python tools/golden/make_critic_lora_golden.py                      (at the root: paths stand in the files)

From core/model/testdata/llama_critic_lora (make_lora_golden.py), whose head is trained with its adapters; of the sequences in
critic_trainer/testdata/golden.json the clipped value loss, in every step the same; of the pairs in preference_steps.json
the loss of pairs with margins, in each step the next four. In double precision, from the fp32 weights.

critic_trainer/testdata/lora_steps.json: the options, as TrainerConfig has them, and of each loss its value before each
step and the norms of the gradients before clipping.
critic_trainer/testdata/lora_steps.safetensors: LOSS.gradient.NAME of the first step, LOSS.last.NAME after the last one and
LOSS.average.NAME, the moving average of the weights then; by the names that peft saves them under.
"""

import json
import pathlib

import peft
import torch
import transformers
from safetensors.torch import save_file

from make_training_golden import OPTIMIZERS, STEPS, make_optimizer

ADAPTERS = "core/model/testdata/llama_critic_lora"
TESTDATA = pathlib.Path("critic_trainer/testdata")
OPTIONS = OPTIMIZERS["adam"]


def scalars(model, ids):
    """Of every position; one sequence a forward, so without padding."""
    decoder = model.base_model.model
    return decoder.score(decoder.model(torch.tensor([ids])).last_hidden_state)[0, :, 0]


def value_losses(model, golden, _):
    for s in golden["sequences"]:
        values = scalars(model, s["ids"])[[t - 1 for t, action in enumerate(s["action_mask"]) if action]]
        old, returns, weight = (torch.tensor(s[key], dtype=values.dtype)
                                for key in ("old_values", "returns", "loss_weights"))
        clipped = old + torch.clamp(values - old, -golden["value_clip"], golden["value_clip"])
        yield (0.5 * torch.maximum((values - returns) ** 2, (clipped - returns) ** 2) * weight).sum()


def pair_losses(model, golden, step):
    count = golden["pairs_of_a_step"]
    for pair in golden["pairs"][step * count : (step + 1) * count]:
        chosen, rejected = (scalars(model, pair[key])[-1] for key in ("chosen_ids", "rejected_ids"))
        yield -torch.nn.functional.logsigmoid(chosen - rejected - pair["margin"]) / count


def saved(model):
    """By the names that the folder has."""
    return {name: value.float().contiguous() for name, value in peft.get_peft_model_state_dict(model).items()}


def gradients(model):
    kept = {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                parameter.copy_(parameter.grad)
    found = saved(model)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                parameter.copy_(kept[name])
    return found


def train(losses_of, golden):
    base = json.loads(pathlib.Path(ADAPTERS, "adapter_config.json").read_text())["base_model_name_or_path"]
    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        base, torch_dtype=torch.float32, attn_implementation="eager")
    model = peft.PeftModel.from_pretrained(model, ADAPTERS, is_trainable=True).double().train()
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    assert "base_model.model.score.modules_to_save.default.weight" in trained
    optimizer = make_optimizer(model, OPTIONS)
    swa = torch.optim.swa_utils
    average = swa.AveragedModel(model, multi_avg_fn=swa.get_ema_multi_avg_fn(OPTIONS["ema_decay"]))
    average.update_parameters(model)  # the first call copies: the average begins with the weights before any step
    losses, norms, tensors = [], [], {}
    for step in range(STEPS):
        total = 0.0
        for loss in losses_of(model, golden, step):
            loss.backward()
            total += loss.item()
        losses.append(total)
        if step == 0:
            tensors["gradient"] = gradients(model)
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), OPTIONS["max_norm"]).item())
        optimizer.step()
        optimizer.zero_grad()
        average.update_parameters(model)
    tensors["last"], tensors["average"] = saved(model), saved(average.module)
    print(losses_of.__name__, losses[0], losses[-1])
    return {"losses": losses, "grad_norms": norms}, tensors


def main():
    out, tensors = {"adapters": ADAPTERS, "options": OPTIONS}, {}
    for name, losses_of, file in (("value", value_losses, "golden.json"), ("pairs", pair_losses, "preference_steps.json")):
        out[name], found = train(losses_of, json.loads((TESTDATA / file).read_text()))
        tensors.update({f"{name}.{kind}.{key}": value for kind, named in found.items() for key, value in named.items()})
    (TESTDATA / "lora_steps.json").write_text(json.dumps(out) + "\n")
    save_file(tensors, TESTDATA / "lora_steps.safetensors")


if __name__ == "__main__":
    main()
