"""Writes core/zero/testdata: tiny models and how transformers and torch train them.

A folder a model, as save_pretrained writes it (fp32), and beside it NAME.json: the sequences, and for each optimizer its
options, as TrainerConfig has them, and of 20 steps the loss before each (mean over all predicted tokens) and the norm of
the gradient before clipping; and the loss with the moving average of the weights after the last one, by
torch.optim.swa_utils.

Usage: python3 tools/golden/make_training_golden.py core/zero/testdata [MODEL ...]    (torch 2.11.0, transformers 4.57.6)
"""

import copy
import json
import pathlib
import sys

import torch
import transformers

EVERY = {"weight_decay": 0.1, "max_norm": 1.0, "ema_decay": 0.9}
OPTIMIZERS = {
    "adam": {"optim": "adam", "learning_rate": 2e-3, "adam_beta1": 0.9, "adam_beta2": 0.95, "adam_eps": 1e-8, **EVERY},
    "sgd": {"optim": "sgd", "learning_rate": 0.03, "momentum": 0.9, **EVERY},
    "sgd_without_momentum": {"optim": "sgd", "learning_rate": 0.2, "momentum": 0.0, **EVERY},
}
STEPS = 20
SHAPE = dict(
    vocab_size=89,
    hidden_size=32,
    intermediate_size=72,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=64,
    initializer_range=0.2,
)
MODELS = {
    "llama": transformers.LlamaConfig(tie_word_embeddings=False, **SHAPE),
    "qwen2_tied": transformers.Qwen2Config(tie_word_embeddings=True, **SHAPE),
    "granite": transformers.GraniteConfig(
        embedding_multiplier=12.0, residual_multiplier=0.22, attention_multiplier=0.125, logits_scaling=2.0,
        tie_word_embeddings=True, **SHAPE),
    "olmo2": transformers.Olmo2Config(tie_word_embeddings=False, pad_token_id=None, eos_token_id=2, **SHAPE),
}


def make_optimizer(model, options):
    decayed = [p for name, p in model.named_parameters() if "norm" not in name and not name.endswith("bias")]
    others = [p for name, p in model.named_parameters() if "norm" in name or name.endswith("bias")]
    groups = [{"params": decayed, "weight_decay": options["weight_decay"]}, {"params": others, "weight_decay": 0.0}]
    rate = options["learning_rate"]
    if options["optim"] == "sgd":
        return torch.optim.SGD(groups, lr=rate, momentum=options["momentum"], foreach=False)
    betas = (options["adam_beta1"], options["adam_beta2"])
    return torch.optim.AdamW(groups, lr=rate, betas=betas, eps=options["adam_eps"], foreach=False)


def losses_of(model, sequences):
    """Of each sequence its part of the mean over all predicted tokens."""
    predicted = sum(len(s) - 1 for s in sequences)
    for ids in sequences:
        ids = torch.tensor([ids])
        logits = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0, :-1]
        yield torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="sum") / predicted


def train(model, sequences, options):
    optimizer = make_optimizer(model, options)
    swa = torch.optim.swa_utils
    average = swa.AveragedModel(model, multi_avg_fn=swa.get_ema_multi_avg_fn(options["ema_decay"]))
    average.update_parameters(model)  # the first call copies: the average begins with the weights before any step
    losses, norms = [], []
    for _ in range(STEPS):
        total = 0.0
        for loss in losses_of(model, sequences):
            loss.backward()
            total += loss.item()
        losses.append(total)
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), options["max_norm"]).item())
        optimizer.step()
        optimizer.zero_grad()
        average.update_parameters(model)
    with torch.no_grad():
        average_loss = sum(loss.item() for loss in losses_of(average, sequences))
    return {"options": options, "losses": losses, "grad_norms": norms, "average_loss": average_loss}


def main(out, names):
    for name in names or MODELS:
        config = MODELS[name]
        torch.manual_seed(20)
        model = transformers.AutoModelForCausalLM.from_config(config, torch_dtype=torch.float32)
        generator = torch.Generator().manual_seed(4)
        with torch.no_grad():
            for parameter_name, parameter in model.named_parameters():
                if "norm" in parameter_name or parameter_name.endswith("bias"):
                    parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
        model.save_pretrained(out / name)
        (out / name / "generation_config.json").unlink(missing_ok=True)
        sequences = []
        for length in (5, 17, 2, 24, 9, 11, 3, 20):
            sequences.append(torch.randint(0, config.vocab_size, (length,), generator=generator).tolist())
        golden = {"sequences": sequences}
        for optimizer, options in OPTIMIZERS.items():
            # In double precision from the fp32 weights: after twenty steps torch's own fp32 gradient norms are 1e-4 off
            # these.
            steps = train(copy.deepcopy(model).double().train(), sequences, options)
            golden[optimizer] = steps
            print(name, optimizer, steps["losses"][0], steps["losses"][-1], steps["average_loss"])
        (out / f"{name}.json").write_text(json.dumps(golden) + "\n")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), sys.argv[2:])
