#!/usr/bin/env python3
"""Reads a batch that train.keep_batches has kept, and prints a line for each of its answers, and one for its tokens' rewards where there are any.

python3 examples/batches/read_batch.py RUN/batches/step_3.safetensors
"""
import array
import json
import sys

TYPES = {"F64": "d", "F32": "f", "I64": "q", "I32": "i", "BOOL": "B"}


def read_batch(path):
    """The file's tensors by their names; each has one dimension (docs/operations.md, "Batches of a run")."""
    with open(path, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        data = file.read()
    return {name: array.array(TYPES[of["dtype"]], data[slice(*of["data_offsets"])])
            for name, of in header.items() if name != "__metadata__"}


if __name__ == "__main__":
    batch = read_batch(sys.argv[1])
    for b, reward in enumerate(batch["reward"]):
        ids = batch["ids"][batch["token_offsets"][b]:batch["token_offsets"][b + 1]]
        # An agent's episode may have left several sequences.
        sequences = sum(batch["token_offsets"][b] <= begin < batch["token_offsets"][b + 1] for begin in batch["sequence_offsets"])
        advantages = batch["advantages"][batch["action_offsets"][b]:batch["action_offsets"][b + 1]]
        mean = sum(advantages) / max(1, len(advantages))
        print(f"group {batch['group'][b]}: {len(ids)} tokens{f' in {sequences} sequences' if sequences > 1 else ''}, {len(advantages)} of them drawn, reward {reward:g}, mean advantage {mean:g}")
        # Only where sources give such: of the drawn tokens, counted from 0, those that have any.
        of_tokens = batch.get("token_rewards", [])[batch["action_offsets"][b]:batch["action_offsets"][b + 1]]
        if any(of_tokens):
            print("  rewards of tokens: " + ", ".join(f"{t}: {value:g}" for t, value in enumerate(of_tokens) if value != 0))
