#!/usr/bin/env python3
"""A judge of steps (a process reward): each line of an answer that computes something is a step, and its reward is on the token
that ends it.

reward {
  source {
    command: "python3 examples/rewards/reward_func.py examples/rewards/judge_steps.py"
    token_rewards: true
  }
}
algorithm { advantage_estimator: "reinforce_plus_plus" }

Put a judge of your own in place of `judge`: a model that reads the steps before it, say. What it says is divided by the number
of steps, so that an answer is not worth more for having many.
"""
import fractions
import re

NUMBER = r"-?\d+(?:\.\d+)?"
EQUATION = re.compile(rf"({NUMBER}) *([-+*/]) *({NUMBER}) *= *({NUMBER})")


def judge(step):
    """1 where all that a line computes is right, -1 where anything is not; None: the line is no step."""
    right = []
    for left, sign, by, result in EQUATION.findall(step):
        a, b, c = map(fractions.Fraction, (left, by, result))
        right.append({"+": a + b == c, "-": a - b == c, "*": a * b == c, "/": b != 0 and a == b * c}[sign])
    return None if not right else 1 if all(right) else -1


def lines_of(token_texts):
    """Each line of the answer, and the token with its end. A token may end several, and begin another."""
    line = ""
    for token, text in enumerate(token_texts):
        *ended, rest = text.split("\n")
        for part in ended:
            yield line + part, token
            line = ""
        line += rest
    yield line, len(token_texts) - 1


def compute_score(data_source, solution_str, ground_truth, token_texts, extra_info=None):
    judged = [(judge(line), token) for line, token in lines_of(token_texts)]
    steps = [(value, token) for value, token in judged if value is not None]
    rewards = [0.0] * len(token_texts)
    for value, token in steps:
        rewards[token] += value / len(steps)
    # What the whole answer is worth comes on top, on its last token.
    if token_texts and solution_str.split()[-1:] == [ground_truth]:
        rewards[-1] += 1.0
    return {"score": rewards, "steps": len(steps)}
