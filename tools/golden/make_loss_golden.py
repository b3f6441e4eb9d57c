#!/usr/bin/env python3
"""Writes core/rl/testdata/losses.json: losses of action tokens, their gradients and counts.

    python3 -m venv venv && venv/bin/pip install -r tools/golden/requirements.txt
    venv/bin/python tools/golden/make_loss_golden.py core/rl/testdata/losses.json

Written from the published formulas, one token at a time in float64 with branches where the papers have min and max
(Schulman et al. 2017, equation 7; Ye et al. 2020, equation 5; the clipped value loss of Schulman's PPO code), so that it
shares no expression with the C++ code. Gradients come from torch's autograd.
"""

import json
import math
import sys

import torch

SEED = 7
TOKENS = 64


def policy_token(log_prob, old, advantage, low, high, dual):
    """Loss of one token and whether its clipped term was the smaller one."""
    difference = log_prob - old
    if abs(difference.item()) > 20:
        difference = torch.tensor(math.copysign(20.0, difference.item()), dtype=torch.float64)
    ratio = torch.exp(difference)
    bounded = ratio
    if ratio.item() < 1 - low:
        bounded = torch.tensor(1 - low, dtype=torch.float64)
    if ratio.item() > 1 + high:
        bounded = torch.tensor(1 + high, dtype=torch.float64)
    is_clipped = (bounded * advantage).item() < (ratio * advantage).item()
    objective = bounded * advantage if is_clipped else ratio * advantage
    if dual > 0 and advantage < 0 and objective.item() < dual * advantage:
        objective = objective * 0 + dual * advantage
    return -objective, is_clipped


def value_token(value, old, target, clip):
    plain = (value - target) ** 2
    if clip == 0:
        return plain / 2, False
    near = value
    if value.item() > old + clip:
        near = torch.tensor(old + clip, dtype=torch.float64)
    if value.item() < old - clip:
        near = torch.tensor(old - clip, dtype=torch.float64)
    clipped = (near - target) ** 2
    if clipped.item() > plain.item():
        return clipped / 2 + 0 * value, True
    return plain / 2, False


def gradient(loss, leaves):
    return [0.0 if g is None else g.item() for g in torch.autograd.grad(loss, leaves, allow_unused=True)]


def main():
    torch.manual_seed(SEED)
    # Values that fp32 holds exactly, so that both sides start from the same numbers.
    draw = lambda scale: (torch.randn(TOKENS) * scale).tolist()
    log_prob = [-abs(x) for x in draw(2)]
    old = [l + d for l, d in zip(log_prob, draw(0.4))]
    old[0], old[1] = log_prob[0] - 30, log_prob[1] + 30  # beyond what the exponent is clamped to
    old = torch.tensor(old).tolist()
    advantage, weight = draw(1), [abs(x) / TOKENS for x in draw(1)]
    advantage[0], weight = -abs(advantage[0]), torch.tensor(weight).tolist()
    value, old_value, target = draw(1), draw(1), draw(1)
    out = {"log_prob": log_prob, "old_log_prob": old, "advantage": advantage, "weight": weight, "value": value,
           "old_value": old_value, "return": target, "policy": [], "values": []}

    leaves = [torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in log_prob]
    loss = sum(w * -l for w, l in zip(weight, leaves))
    out["sft"] = {"loss": loss.item(), "gradient": gradient(loss, leaves)}
    for low, high, dual in [(0.2, 0.2, 0), (0.2, 0.27, 0), (0.1, 0.3, 3.0), (0.2, 0.2, 1.2), (1.0, 100.0, 0)]:
        terms = [policy_token(l, o, a, low, high, dual) for l, o, a in zip(leaves, old, advantage)]
        loss = sum(w * t for w, (t, _) in zip(weight, terms))
        out["policy"].append({
            "low": low, "high": high, "dual": dual, "loss": loss.item(), "gradient": gradient(loss, leaves),
            "clipped": sum(c for _, c in terms), "approx_kl_sum": sum(o - l for l, o in zip(log_prob, old))})
    leaves = [torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in value]
    for clip in [0, 0.2, 0.5]:
        terms = [value_token(v, o, r, clip) for v, o, r in zip(leaves, old_value, target)]
        loss = sum(w * t for w, (t, _) in zip(weight, terms))
        out["values"].append({"clip": clip, "loss": loss.item(), "gradient": gradient(loss, leaves),
                              "clipped": sum(c for _, c in terms), "value_sum": sum(value)})
    with open(sys.argv[1], "w") as file:
        json.dump(out, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main()
