"""Writes policy_trainer/testdata/whole_step.json: what one whole RL step does to a tiny Llama's parameters.

    python tools/golden/rl_whole_step.py REPOSITORY_ROOT        (torch==2.11.0, transformers==5.23.0, numpy==2.4.6)

A rollout of two prompts with four answers each is given: tokens, rewards, log-probabilities of rollout and reference,
values. From it PPO, GRPO, GSPO and DAPO compute advantages, and train for two epochs of two mini-batches with AdamW.
Everything is written here from the papers, token by token, in float64; only the model is transformers' and the gradients
are torch's. Of each parameter tensor's change its norm is kept, and every STRIDE-th element. The same in float32 is only
printed: it tells what rounding alone does.
"""
import json
import math
import sys

import torch
import transformers

STRIDE = 61
ADAMW = {"beta1": 0.9, "beta2": 0.95, "eps": 1e-6, "weight_decay": 0.02}
MAX_NORM = 0.5
TEMPERATURE = 0.9
RATES = [3e-4, 6e-4, 6e-4, 3e-4]
MAX_NEW_TOKENS = 12
# (prompt tokens, answer tokens), four of each prompt; answers of MAX_NEW_TOKENS were cut off.
SHAPES = [(4, 7), (4, 1), (4, 12), (4, 5), (6, 9), (6, 12), (6, 3), (6, 10)]
REWARDS = [1.0, 0.0, 0.25, 1.0, -0.5, 1.0, 0.0, 2.0]
MINI_BATCHES = [[[3, 0, 6, 5], [1, 2, 4, 7]], [[7, 2, 0, 5], [4, 6, 3, 1]]]  # by epoch


def rollout(model):
    generator = torch.Generator().manual_seed(11)
    prompts = {n: torch.randint(3, 101, (n,), generator=generator).tolist() for n, _ in SHAPES}
    noise = lambda n, scale: scale * torch.randn(n, generator=generator, dtype=torch.float64)
    as_fp32 = lambda x: [round(y * 1024) / 1024 for y in x.tolist()]
    sequences = []
    for i, (prompt, answer) in enumerate(SHAPES):
        ids = prompts[prompt] + torch.randint(3, 101, (answer,), generator=generator).tolist()
        s = {"group": i // 4, "prompt_tokens": prompt, "ids": ids, "reward": REWARDS[i],
             "truncated": answer == MAX_NEW_TOKENS}
        with torch.no_grad():
            log_probs = token_log_probs(model, s)[0]
        s["old_log_probs"] = as_fp32(log_probs)
        s["rollout_log_probs"] = as_fp32(torch.clamp(log_probs + noise(answer, 0.3), max=-0.001))
        s["reference_log_probs"] = as_fp32(log_probs + noise(answer, 0.3))
        s["values"] = as_fp32(noise(answer, 0.5))
        sequences.append(s)
    return sequences


def token_log_probs(model, s):
    """Of the answer: log-probabilities under the temperature, and entropies without it."""
    ids = torch.tensor([s["ids"]])
    logits = model(ids).logits[0, s["prompt_tokens"] - 1:-1]
    wanted = ids[0, s["prompt_tokens"]:, None]
    log_probs = torch.log_softmax(logits / TEMPERATURE, -1).gather(1, wanted)[:, 0]
    plain = torch.log_softmax(logits, -1)
    return log_probs, -(plain.exp() * plain).sum(-1)


def gae(sequences, options):
    """Schulman et al. 2016 with the KL penalty of Ziegler et al. 2019 in the rewards; whitened over the batch."""
    advantages = []
    for s in sequences:
        n, row, running = len(s["values"]), [], 0.0
        for t in reversed(range(n)):
            reward = -options["kl_coefficient"] * (s["old_log_probs"][t] - s["reference_log_probs"][t])
            if t == n - 1:
                reward += s["reward"]
            following = s["values"][t + 1] if t < n - 1 else 0.0
            delta = reward + options["gamma"] * following - s["values"][t]
            running = delta + options["gamma"] * options["lambda"] * running
            row.insert(0, running)
        advantages.append(row)
    everything = [a for row in advantages for a in row]
    mean = math.fsum(everything) / len(everything)
    variance = math.fsum((a - mean) ** 2 for a in everything) / len(everything)
    return [[(a - mean) / math.sqrt(variance) for a in row] for row in advantages]


def grpo(sequences, options):
    """Shao et al. 2024, equation 3's advantages; with DAPO's punishment of overlong answers (Yu et al. 2025, 13)."""
    rewards = []
    for s in sequences:
        reward, length = s["reward"], len(s["values"])
        if options["overlong_buffer"]:
            start = MAX_NEW_TOKENS - options["overlong_buffer"]
            if length > start:
                reward -= (length - start) / options["overlong_buffer"]
        rewards.append(reward)
    advantages = []
    for i, s in enumerate(sequences):
        group = [r for r, other in zip(rewards, sequences) if other["group"] == s["group"]]
        mean = math.fsum(group) / len(group)
        deviation = math.sqrt(math.fsum((r - mean) ** 2 for r in group) / (len(group) - 1))
        advantages.append([(rewards[i] - mean) / (deviation + options["epsilon"])] * len(s["values"]))
    return advantages


def surrogate(ratio, advantage, options):
    """Schulman et al. 2017, equation 7, with a bound for each side; and whether the bound was taken."""
    low, high = 1 - options["eps_clip_low"], 1 + options["eps_clip_high"]
    if advantage > 0 and ratio > high:
        return high * advantage + 0 * ratio, 1
    if advantage < 0 and ratio < low:
        return low * advantage + 0 * ratio, 1
    return ratio * advantage, 0


def sequence_loss(model, s, advantages, options):
    """The loss of each token of an answer, and how many are clipped."""
    log_probs, entropies = token_log_probs(model, s)
    like = lambda name: torch.tensor(s[name], dtype=log_probs.dtype)
    ratios = (log_probs - like("old_log_probs")).exp()
    if options["kind"] == "gspo":  # Zheng et al. 2025, equation 7
        ratios = (log_probs - like("old_log_probs")).mean().exp().expand_as(log_probs)
    terms = [surrogate(r, a, options) for r, a in zip(ratios, advantages)]
    losses = -torch.stack([term for term, _ in terms])
    if options["truncation"]:  # truncated importance sampling
        losses = losses * (like("old_log_probs") - like("rollout_log_probs")).exp().clamp(max=options["truncation"])
    if options["kl_loss"]:  # Shao et al. 2024, equation 4
        difference = like("reference_log_probs") - log_probs
        losses = losses + options["kl_loss"] * (difference.exp() - difference - 1)
    losses = losses - options["entropy"] * entropies
    return losses, sum(clipped for _, clipped in terms)


def train(folder, dtype, sequences, options):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).to(dtype)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    advantages = (gae if options["estimator"] == "gae" else grpo)(sequences, options)
    decayed = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": ADAMW["weight_decay"]}, {"params": others, "weight_decay": 0.0}], lr=1.0,
        betas=(ADAMW["beta1"], ADAMW["beta2"]), eps=ADAMW["eps"], foreach=False)
    steps = []
    for rate, batch in zip(RATES, [batch for epoch in MINI_BATCHES for batch in epoch]):
        kept = [i for i in batch if not (options["overlong_filtering"] and sequences[i]["truncated"])]
        tokens = sum(len(sequences[i]["values"]) for i in kept)
        optimizer.zero_grad()
        loss, clipped = 0.0, 0
        for i in kept:
            losses, n = sequence_loss(model, sequences[i], advantages[i], options)
            part = losses.sum() / tokens if options["aggregation"] == "token_mean" else losses.mean() / len(kept)
            part.backward()
            loss += part.item()
            clipped += n
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM).item()
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        steps.append({"loss": loss, "grad_norm": norm, "clipped": clipped})
    return steps, {name: p.detach() - before[name] for name, p in model.named_parameters()}


COMMON = {"kind": "ppo", "eps_clip_low": 0.2, "eps_clip_high": 0.2, "aggregation": "token_mean", "kl_loss": 0.0,
          "entropy": 0.0, "truncation": 0.0, "overlong_buffer": 0, "overlong_filtering": False, "epsilon": 1e-6}
METHODS = {
    "ppo": {**COMMON, "estimator": "gae", "gamma": 1.0, "lambda": 0.95, "kl_coefficient": 0.05, "entropy": 0.01},
    "grpo": {**COMMON, "estimator": "grpo", "aggregation": "sequence_mean", "kl_loss": 0.04},
    "gspo": {**COMMON, "estimator": "grpo", "aggregation": "sequence_mean", "kind": "gspo", "eps_clip_low": 0.2,
             "eps_clip_high": 0.3},
    "dapo": {**COMMON, "estimator": "grpo", "eps_clip_high": 0.28, "truncation": 1.25, "overlong_buffer": 4,
             "overlong_filtering": True},
}


def main(root):
    folder = f"{root}/core/model/testdata/llama"
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).double()
    sequences = rollout(model)
    out = {"adamw": ADAMW, "max_norm": MAX_NORM, "temperature": TEMPERATURE, "learning_rates": RATES, "stride": STRIDE,
           "max_new_tokens": MAX_NEW_TOKENS, "mini_batches": [b for epoch in MINI_BATCHES for b in epoch],
           "sequences": sequences, "methods": {}}
    number = lambda x: float(f"{x:.9g}")
    for name, options in METHODS.items():
        steps, change = train(folder, torch.float64, sequences, options)
        steps32, change32 = train(folder, torch.float32, sequences, options)
        distance = math.sqrt(sum((change[k] - change32[k]).pow(2).sum().item() for k in change))
        total = math.sqrt(sum(c.pow(2).sum().item() for c in change.values()))
        print(f"{name}: change {total:.4g}, float32 differs by {distance / total:.2g};", [s["clipped"] for s in steps])
        out["methods"][name] = {
            "options": options, "steps": [{k: number(v) for k, v in s.items()} for s in steps],
            "change": {k: {"norm": number(c.norm().item()), "elements": [number(x) for x in c.flatten()[::STRIDE]]}
                       for k, c in change.items()}}
    with open(f"{root}/policy_trainer/testdata/whole_step.json", "w") as file:
        file.write("{" + ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in out.items()) + "}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
