#!/usr/bin/env python3
"""What transformers and torch make of the trainers' and the scorer's calls on tiny models, for their engines' tests.

Usage: make_service_golden.py REPOSITORY_ROOT     (torch 2.11.0, transformers 4.57.6)

Reads core/model/testdata/{llama,llama_critic}; writes {policy_trainer,critic_trainer,scorer}/testdata/*.json. Formulas
are written out here from docs/algorithms.md, over whole logits and padded nowhere: one sequence a forward.
"""

import json
import sys

import torch
import transformers

ADAMW = {"beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.02}
MAX_NORM = 0.5
STEPS = 3


def make_sequences(vocab, generator):
    """Token ids and action masks; the third has two turns, the last a single action."""
    sequences = []
    for length, actions in ((12, [5, 12]), (5, [2, 5]), (17, [4, 9, 12, 17]), (9, [8, 9])):
        ids = torch.randint(3, vocab, (length,), generator=generator).tolist()
        mask = [any(a <= t < b for a, b in zip(actions[::2], actions[1::2])) for t in range(length)]
        sequences.append({"ids": ids, "action_mask": mask})
    return sequences


def action_log_probs(model, sequence, temperature):
    """Log-probabilities of the action tokens and, at temperature 1, the entropies of what they were drawn from."""
    logits = model(torch.tensor([sequence["ids"]])).logits[0].float()
    rows = [t - 1 for t, action in enumerate(sequence["action_mask"]) if action]
    ids = torch.tensor([sequence["ids"][t + 1] for t in rows])
    log_probs = torch.log_softmax(logits[rows] / temperature, -1).gather(1, ids[:, None])[:, 0]
    plain = torch.log_softmax(logits[rows], -1)
    return log_probs, -(plain.exp() * plain).sum(-1).detach()


def action_values(model, sequence):
    # Right padding or none: the value head is applied to every position's final hidden state.
    hidden = model.model(torch.tensor([sequence["ids"]])).last_hidden_state
    values = model.score(hidden)[0, :, 0]
    return values[[t - 1 for t, action in enumerate(sequence["action_mask"]) if action]]


def make_optimizer(model, learning_rate):
    decayed = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim <= 1]
    return torch.optim.AdamW(
        [{"params": decayed, "weight_decay": ADAMW["weight_decay"]}, {"params": others, "weight_decay": 0.0}],
        lr=learning_rate, betas=(ADAMW["beta1"], ADAMW["beta2"]), eps=ADAMW["eps"])


def noise(n, scale, generator):
    return (torch.randn(n, generator=generator) * scale).tolist()


def policy(root, generator):
    model = transformers.AutoModelForCausalLM.from_pretrained(f"{root}/core/model/testdata/llama", dtype=torch.float32)
    out = {"temperature": 0.7, "learning_rate": 3e-4, "eps_clip_low": 0.2, "eps_clip_high": 0.3, "dual_clip": 2.0,
           "adamw": ADAMW, "max_norm": MAX_NORM, "sequences": make_sequences(model.config.vocab_size, generator)}
    total = sum(sum(s["action_mask"]) for s in out["sequences"])
    for s in out["sequences"]:
        with torch.no_grad():
            s["log_probs"] = action_log_probs(model, s, out["temperature"])[0].tolist()
        n = len(s["log_probs"])
        s["old_log_probs"] = [a + b for a, b in zip(s["log_probs"], noise(n, 0.3, generator))]
        s["advantages"] = noise(n, 1.0, generator)
        s["loss_weights"] = [1 / total] * n

    optimizer = make_optimizer(model, out["learning_rate"])
    out["steps"] = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss, clipped, entropy, approx_kl = 0.0, 0, 0.0, 0.0
        for s in out["sequences"]:
            log_probs, entropies = action_log_probs(model, s, out["temperature"])
            old, advantage, weight = (torch.tensor(s[k]) for k in ("old_log_probs", "advantages", "loss_weights"))
            ratio = torch.exp(torch.clamp(log_probs - old, -20, 20))
            plain = ratio * advantage
            bounded = torch.clamp(ratio, 1 - out["eps_clip_low"], 1 + out["eps_clip_high"]) * advantage
            smaller = torch.minimum(plain, bounded)
            dual = torch.where(advantage < 0, torch.maximum(smaller, out["dual_clip"] * advantage), smaller)
            (-dual * weight).sum().backward()
            loss += (-dual * weight).sum().item()
            clipped += (bounded < plain).sum().item()
            entropy += entropies.sum().item()
            approx_kl += (old - log_probs).sum().item()
        grad_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM).item()
        optimizer.step()
        with torch.no_grad():
            after = [action_log_probs(model, s, out["temperature"])[0].tolist() for s in out["sequences"]]
        out["steps"].append({"loss": loss, "clip_fraction": clipped / total, "entropy": entropy / total,
                             "approx_kl": approx_kl / total, "grad_norm": grad_norm, "log_probs": after})
    return out


def critic(root, generator):
    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        f"{root}/core/model/testdata/llama_critic", dtype=torch.float32)
    out = {"learning_rate": 3e-3, "value_clip": 0.2, "adamw": ADAMW, "max_norm": MAX_NORM,
           "sequences": make_sequences(model.config.vocab_size, generator)}
    total = sum(sum(s["action_mask"]) for s in out["sequences"])
    for s in out["sequences"]:
        with torch.no_grad():
            s["values"] = action_values(model, s).tolist()
        n = len(s["values"])
        s["old_values"] = [a + b for a, b in zip(s["values"], noise(n, 0.3, generator))]
        s["returns"] = noise(n, 1.0, generator)
        s["loss_weights"] = [1 / total] * n

    optimizer = make_optimizer(model, out["learning_rate"])
    out["steps"] = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss, clipped, value_sum = 0.0, 0, 0.0
        for s in out["sequences"]:
            values = action_values(model, s)
            old, returns, weight = (torch.tensor(s[k]) for k in ("old_values", "returns", "loss_weights"))
            plain = (values - returns) ** 2
            bounded = (old + torch.clamp(values - old, -out["value_clip"], out["value_clip"]) - returns) ** 2
            part = (0.5 * torch.maximum(plain, bounded) * weight).sum()
            part.backward()
            loss += part.item()
            # A value inside the range differs from its clipped self by rounding at most, which is no clipping.
            outside = (values - old).abs() > out["value_clip"]
            clipped += (outside & (bounded > plain)).sum().item()
            value_sum += values.sum().item()
        grad_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM).item()
        optimizer.step()
        with torch.no_grad():
            after = [action_values(model, s).tolist() for s in out["sequences"]]
        out["steps"].append({"loss": loss, "clip_fraction": clipped / total, "value_mean": value_sum / total,
                             "grad_norm": grad_norm, "values": after})
    return out


def rewards(root, generator):
    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        f"{root}/core/model/testdata/llama_critic", dtype=torch.float32)
    reference = transformers.AutoModelForCausalLM.from_pretrained(
        f"{root}/core/model/testdata/llama", dtype=torch.float32)
    out = {"temperature": 0.7, "sequences": make_sequences(model.config.vocab_size, generator)}
    with torch.no_grad():
        for s in out["sequences"]:
            s["log_probs"] = action_log_probs(reference, s, out["temperature"])[0].tolist()
            # One sequence, no padding: transformers reads the last token.
            s["reward"] = model(torch.tensor([s["ids"]])).logits[0, 0].item()
    return out


def main():
    root = sys.argv[1]
    torch.manual_seed(0)
    for service, make in (("policy_trainer", policy), ("critic_trainer", critic), ("scorer", rewards)):
        with open(f"{root}/{service}/testdata/golden.json", "w") as file:
            json.dump(make(root, torch.Generator().manual_seed(7)), file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    main()
