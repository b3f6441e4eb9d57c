"""Writes core/zero/testdata: tiny models and how transformers and torch train them.

A folder a model, as save_pretrained writes it (fp32), and beside it training.json: the sequences, the options, and for
each of 20 AdamW steps the loss before it (mean over all predicted tokens) and the norm of the gradient before clipping.

Usage: python3 tools/golden/make_training_golden.py core/zero/testdata [MODEL ...]    (torch 2.11.0, transformers 4.57.6)
"""

import json
import pathlib
import sys

import torch
import transformers

OPTIONS = {"learning_rate": 2e-3, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1, "max_norm": 1.0}
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


def train(model, sequences):
    decayed = [p for name, p in model.named_parameters() if "norm" not in name and not name.endswith("bias")]
    others = [p for name, p in model.named_parameters() if "norm" in name or name.endswith("bias")]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": OPTIONS["weight_decay"]}, {"params": others, "weight_decay": 0.0}],
        lr=OPTIONS["learning_rate"],
        betas=(OPTIONS["beta1"], OPTIONS["beta2"]),
        eps=OPTIONS["eps"],
        foreach=False,
    )
    predicted = sum(len(s) - 1 for s in sequences)
    losses, norms = [], []
    for _ in range(STEPS):
        total = 0.0
        for ids in sequences:
            ids = torch.tensor([ids])
            logits = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0, :-1]
            loss = torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="sum") / predicted
            loss.backward()
            total += loss.item()
        losses.append(total)
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), OPTIONS["max_norm"]).item())
        optimizer.step()
        optimizer.zero_grad()
    return losses, norms


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
        # In double precision from the fp32 weights: after twenty steps torch's own fp32 gradient norms are 1e-4 off these.
        losses, norms = train(model.double().train(), sequences)
        golden = {"options": OPTIONS, "sequences": sequences, "losses": losses, "grad_norms": norms}
        (out / f"{name}.json").write_text(json.dumps(golden) + "\n")
        print(name, losses[0], losses[-1], norms[0], norms[-1])


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), sys.argv[2:])
