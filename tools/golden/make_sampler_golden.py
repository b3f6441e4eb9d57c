"""Writes rollout/engine/sampling/testdata/sampler.json: what truncation keeps, by transformers' own warpers.

Needs torch 2.11 and transformers 4.57.6. Run from the repository root.
"""

import json

import torch
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper


def main():
    generator = torch.Generator().manual_seed(20)
    cases = []
    for vocab in (5, 40, 120):
        for temperature in (0.3, 1.0, 1.7):
            for top_k in (0, 1, 7):
                for top_p in (1.0, 0.9, 0.35):
                    logits = torch.randn(1, vocab, generator=generator) * 3
                    if vocab == 120 and top_k == 7 and top_p == 1.0:
                        logits[0, 11] = logits.topk(7).values[0, -1]  # a tie at the edge
                    scores = TemperatureLogitsWarper(temperature)(None, logits) if temperature != 1.0 else logits
                    log_probs = torch.log_softmax(scores, -1)
                    if top_k:
                        scores = TopKLogitsWarper(top_k)(None, scores)
                    if top_p < 1.0:
                        scores = TopPLogitsWarper(top_p)(None, scores)
                    sampled = torch.log_softmax(scores, -1)[0]
                    cases.append(
                        {
                            "temperature": temperature,
                            "top_k": top_k,
                            "top_p": top_p,
                            "logits": [float(f"{x:.9g}") for x in logits[0].tolist()],
                            "log_probs": [float(f"{x:.9g}") for x in log_probs[0].tolist()],
                            # Tokens that truncation dropped are absent.
                            "sampled_log_probs": {
                                str(i): float(f"{x:.9g}") for i, x in enumerate(sampled.tolist()) if x != float("-inf")
                            },
                        }
                    )
    with open("rollout/engine/sampling/testdata/sampler.json", "w") as out:
        json.dump(cases, out, separators=(",", ":"))
        out.write("\n")


main()
