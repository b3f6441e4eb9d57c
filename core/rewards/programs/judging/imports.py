# Before a program: what it takes for granted.
import sys

sys.setrecursionlimit(50000)  # LiveCodeBench's
try:
    with open("/run/answer.py", encoding="utf-8") as source:
        give(free_names(source.read()))
except (SyntaxError, ValueError):
    pass
