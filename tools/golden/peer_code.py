"""Runs parts of long methods by their very source lines; and numbers as golden files have them."""
import inspect
import textwrap
import types

import torch


def cut(function, start, end):
    """The source lines from the first that begins with `start` up to, without it, the next that begins with `end`."""
    lines = inspect.getsource(function).splitlines()
    first = next(i for i, line in enumerate(lines) if line.strip().startswith(start))
    last = next(i for i in range(first + 1, len(lines)) if lines[i].strip().startswith(end))
    return textwrap.dedent("\n".join(lines[first:last]))


def run(code, module, **names):
    """Runs lines of a method of `module` with these variables; returns all variables after it."""
    scope = dict(vars(module), **names)
    exec(code, scope)
    return types.SimpleNamespace(**{k: v for k, v in scope.items() if not k.startswith("__")})


box = types.SimpleNamespace


def rounded(x):
    """12 digits, so that files stay small; they are compared to 9."""
    if isinstance(x, torch.Tensor):
        return rounded(x.tolist())
    if isinstance(x, (list, tuple)):
        return [rounded(y) for y in x]
    if isinstance(x, dict):
        return {k: rounded(v) for k, v in x.items()}
    if isinstance(x, float):
        return 0 if x == 0 else float(f"{x:.12g}")
    return x
