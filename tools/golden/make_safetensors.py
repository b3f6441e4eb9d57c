"""Writes core/safetensors/testdata/model.safetensors with Python's safetensors 0.8.0.

Usage: python3 tools/golden/make_safetensors.py core/safetensors/testdata
"""

import pathlib
import sys

import safetensors.torch
import torch

TENSORS = {
    "f32": torch.arange(6, dtype=torch.float32).reshape(2, 3) / 2,
    "f64": torch.tensor([3.25, -1e300], dtype=torch.float64),
    "f16": torch.tensor([1, -2], dtype=torch.float16),
    "bf16": torch.tensor([1, -2], dtype=torch.bfloat16),
    "i64": torch.tensor([-1, 1 << 40], dtype=torch.int64),
    "i32": torch.tensor([-7], dtype=torch.int32),
    "i16": torch.tensor([-300, 300], dtype=torch.int16),
    "i8": torch.tensor([-128, 127], dtype=torch.int8),
    "bool": torch.tensor([True, False, True]),
    "scalar": torch.tensor(42.0),
    "empty": torch.zeros(0, 4),
}

if __name__ == "__main__":
    safetensors.torch.save_file(TENSORS, pathlib.Path(sys.argv[1]) / "model.safetensors", metadata={"format": "pt"})
