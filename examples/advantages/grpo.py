#!/usr/bin/env python3
"""GRPO (Shao et al. 2024), as advantage_estimator: "grpo" computes it: the template for estimators of groups.

algorithm { advantage_estimator: "command" advantage_command { command: "python3 examples/advantages/grpo.py" } }
"""
import collections
import json
import os
import statistics


def advantages(answers):
    """A number for each answer, or a list with one for each of its tokens."""
    groups = collections.defaultdict(list)
    for answer in answers:
        groups[answer["group"]].append(answer["reward"])
    def compare(reward, group):
        equal = max(group) - min(group) <= 1e-6 * max(abs(r) for r in group)
        return 0.0 if equal else (reward - statistics.mean(group)) / (statistics.stdev(group) + 1e-9)

    return [compare(answer["reward"], groups[answer["group"]]) for answer in answers]


# What is read and written here is for questions and replies alone: print(), and programs that this one starts, get others.
questions, replies = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
os.dup2(2, 1)
for line in questions:
    print(json.dumps({"advantages": advantages(json.loads(line)["answers"])}), file=replies, flush=True)
