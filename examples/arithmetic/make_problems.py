"""Makes train.jsonl and test.jsonl: sums and differences of numbers from 2 to 20, shuffled; 100 of them are held out.

Usage: python3 make_problems.py FOLDER
"""
import json
import pathlib
import random
import sys

problems = [(a, b, op) for a in range(2, 21) for b in range(2, 21) for op in "+-" if op == "+" or a >= b]
random.Random(0).shuffle(problems)
for name, part in (("test", problems[:100]), ("train", problems[100:])):
    with open(pathlib.Path(sys.argv[1]) / f"{name}.jsonl", "w", encoding="utf-8") as out:
        for a, b, op in part:
            out.write(json.dumps({"prompt": f"{a} {op} {b}", "label": str(a + b if op == "+" else a - b)}) + "\n")
