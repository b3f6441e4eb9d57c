#!/usr/bin/env python3
"""GRPO with process supervision (DeepSeekMath, Shao et al. 2024, arXiv:2402.03300, section 4.1.3): the rewards of all steps
of a group are compared with one another, and a token's advantage is the sum of those of its own and later steps.

reward { source { command: "python3 examples/rewards/reward_func.py examples/rewards/judge_steps.py" token_rewards: true } }
algorithm { advantage_estimator: "command" advantage_command { command: "python3 examples/advantages/process_grpo.py" } }

A step ends at a token whose reward is not 0, so a judge of wrong and right steps says -1 and 1: one that says 0 hides where a
wrong step ends. A penalty for length stands on the last token, and is a step there. An answer without any is of one step; where
all are, this is grpo.py.
"""
import collections
import itertools
import json
import os
import statistics


def steps_of(answer):
    """The reward of each step, by the token that it ends with."""
    rewards = answer.get("token_rewards") or [0.0] * (answer["tokens"] - 1) + [answer["reward"]]
    return {token: reward for token, reward in enumerate(rewards) if reward != 0} or {len(rewards) - 1: 0.0}


def advantages(answers):
    """A number for each answer, or a list with one for each of its tokens."""
    groups = collections.defaultdict(list)
    for answer in answers:
        groups[answer["group"]] += steps_of(answer).values()
    def scale_of(group):
        equal = max(group) - min(group) <= 1e-6 * max(abs(r) for r in group)
        return 0.0 if equal else 1 / (statistics.stdev(group) + 1e-9)

    scales = {group: (statistics.mean(rewards), scale_of(rewards)) for group, rewards in groups.items()}
    lists = []
    for answer in answers:
        (mean, scale), steps = scales[answer["group"]], steps_of(answer)
        compared = [(steps[t] - mean) * scale if t in steps else 0.0 for t in range(answer["tokens"])]
        lists.append(list(itertools.accumulate(reversed(compared)))[::-1])
    return lists


# What is read and written here is for questions and replies alone: print(), and programs that this one starts, get others.
questions, replies = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
os.dup2(2, 1)
for line in questions:
    print(json.dumps({"advantages": advantages(json.loads(line)["answers"])}), file=replies, flush=True)
