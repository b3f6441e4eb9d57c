"""Writes rollout/testdata/logits_processors.json: what penalties, biases, minimum length and min-p make of logits, by
transformers' own processors; presence and frequency penalty, which transformers lacks, by their definition in vLLM's
SamplingParams: logits -= frequency_penalty * count + presence_penalty * (count > 0), counted over generated tokens.

Needs torch 2.11 and transformers 4.57.6. Run from the repository root.
"""

import json

import torch
from transformers import (
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)


def rounded(values):
    return [float(f"{x:.9g}") for x in values]


def main():
    generator = torch.Generator().manual_seed(7)
    vocab = 60
    stop_tokens = [3, 17]
    variants = [
        {"repetition_penalty": 1.3},
        {"repetition_penalty": 0.8},
        {"presence_penalty": 0.7},
        {"presence_penalty": -1.5},
        {"frequency_penalty": 0.4},
        {"frequency_penalty": -0.3},
        {"logit_bias": {"5": 4.0, "9": -100.0, "41": -2.5}},
        {"min_tokens": 6},
        {"min_tokens": 7},
        {"min_p": 0.05},
        {"min_p": 0.4},
        {"min_p": 1.0},
        {"min_p": 0.1, "top_p": 0.8, "top_k": 20},
        {
            "repetition_penalty": 1.2,
            "presence_penalty": 0.3,
            "frequency_penalty": 0.2,
            "logit_bias": {"2": 1.5, "30": -1.0},
            "min_tokens": 9,
            "min_p": 0.02,
            "top_k": 30,
            "top_p": 0.95,
        },
    ]
    cases = []
    for variant in variants:
        for temperature in (0.6, 1.0, 1.4):
            logits = torch.randn(1, vocab, generator=generator) * 3
            logits[0, stop_tokens[0]] += 6  # wants to end
            prompt = torch.randint(vocab, (8,), generator=generator).tolist()
            # With repetitions; six tokens.
            answer = torch.randint(vocab, (3,), generator=generator).tolist() * 2
            ids = torch.tensor([prompt + answer])

            processors = LogitsProcessorList()
            if variant.get("min_tokens"):
                processors.append(
                    MinNewTokensLengthLogitsProcessor(len(prompt), variant["min_tokens"], stop_tokens, device="cpu")
                )
            if variant.get("logit_bias"):
                processors.append(SequenceBiasLogitsProcessor({(int(t),): b for t, b in variant["logit_bias"].items()}))
            if variant.get("repetition_penalty", 1.0) != 1.0:
                processors.append(RepetitionPenaltyLogitsProcessor(variant["repetition_penalty"]))
            scores = processors(ids, logits.clone())
            counts = torch.bincount(torch.tensor(answer), minlength=vocab).float()
            scores = scores - variant.get("frequency_penalty", 0.0) * counts
            scores = scores - variant.get("presence_penalty", 0.0) * (counts > 0).float()

            greedy = int(scores.argmax())
            warpers = LogitsProcessorList()
            if temperature != 1.0:
                warpers.append(TemperatureLogitsWarper(temperature))
            if variant.get("top_k"):
                warpers.append(TopKLogitsWarper(variant["top_k"]))
            if variant.get("top_p", 1.0) < 1.0:
                warpers.append(TopPLogitsWarper(variant["top_p"]))
            if variant.get("min_p"):
                warpers.append(MinPLogitsWarper(variant["min_p"]))
            sampled = torch.log_softmax(warpers(ids, scores), -1)[0]
            cases.append(
                {
                    **variant,
                    "temperature": temperature,
                    "prompt": prompt,
                    "answer": answer,
                    "stop_tokens": stop_tokens,
                    "logits": rounded(logits[0].tolist()),
                    # After the temperature alone: what the trainer computes.
                    "log_probs": rounded(torch.log_softmax(logits / temperature, -1)[0].tolist()),
                    "greedy": greedy,
                    # Tokens that cannot be drawn are absent.
                    "sampled_log_probs": {
                        str(i): float(f"{x:.9g}") for i, x in enumerate(sampled.tolist()) if x != float("-inf")
                    },
                }
            )
    with open("rollout/testdata/logits_processors.json", "w") as out:
        json.dump(cases, out, separators=(",", ":"))
        out.write("\n")


main()
