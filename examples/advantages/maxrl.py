#!/usr/bin/env python3
"""MaxRL (Tajwar et al. 2026, arXiv:2602.02710): a reward less its group's mean, divided by that mean.

algorithm { advantage_estimator: "command" advantage_command { command: "python3 examples/advantages/maxrl.py" } }
"""
import collections
import json
import os


def advantages(answers):
    """A number for each answer, or a list with one for each of its tokens."""
    groups = collections.defaultdict(list)
    for answer in answers:
        groups[answer["group"]].append(answer["reward"])
    means = {group: sum(rewards) / len(rewards) for group, rewards in groups.items()}
    return [(a["reward"] - means[a["group"]]) / means[a["group"]] if means[a["group"]] > 0 else 0.0 for a in answers]


# What is read and written here is for questions and replies alone: print(), and programs that this one starts, get others.
questions, replies = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
os.dup2(2, 1)
for line in questions:
    print(json.dumps({"advantages": advantages(json.loads(line)["answers"])}), file=replies, flush=True)
