"""The peers' own arithmetic, on a CPU and in float64: OpenRLHF 0.11.2, TRL 1.16.0 and verl 0.9.1.

For rl_estimators.py and rl_losses.py. Their wheels, unpacked, are found through PEERS:

    python3 -m venv venv && venv/bin/pip install -r tools/golden/rl_requirements.txt
    for wheel in openrlhf==0.11.2 trl==1.16.0 verl==0.9.1; do venv/bin/pip download --no-deps --dest wheels $wheel; done
    for wheel in wheels/*.whl; do venv/bin/python -m zipfile -e $wheel peers; done
    PEERS=peers venv/bin/python tools/golden/rl_estimators.py core/rl/testdata/estimators.json

What the packages import and what takes no part in the arithmetic (ray, deepspeed, vllm, ...) is replaced by empty
modules. Where a function is a part of a long method, its very source lines are cut out and run. Two things are changed:
`.float()` keeps float64, and a 1e-8 beside a count, which is nothing in float32, is no more than a guard for 0.
"""
import importlib.abc
import importlib.machinery
import importlib.metadata
import inspect
import os
import pathlib
import sys
import types
from unittest import mock

import torch
import transformers  # before the stand-ins, so that it sees the real environment
from peer_code import box, cut, rounded, run

STAND_INS = {"aiohttp", "bitsandbytes", "codetiming", "deepspeed", "dill", "flash_attn", "liger_kernel", "optree", "peft",
             "pybind11", "pylatexenc", "ray", "ring_flash_attn", "tensorboard", "torchdata", "torchmetrics", "vllm",
             "wandb"}
VERSIONS = {"openrlhf": "0.11.2", "trl": "1.16.0", "verl": "0.9.1"}


class StandIn(types.ModuleType):
    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return mock.MagicMock(name=name)


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name.startswith("flash_attn.ops"):
            raise ImportError(name)
        if name.split(".")[0] in STAND_INS:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return StandIn(spec.name)

    def exec_module(self, module):
        pass


root = pathlib.Path(os.environ["PEERS"]).resolve()
for name, version in VERSIONS.items():
    if not (root / f"{name}-{version}.dist-info").is_dir():
        sys.exit(f"{root} lacks {name} {version}")
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
sys.path[:0] = [str(root), str(root / "openrlhf-0.11.2.data" / "purelib")]
import trl.trainer.grpo_trainer as trl_grpo
import trl.trainer.rloo_trainer as trl_rloo

sys.meta_path.append(StandIns())
from openrlhf.models import loss as openrlhf_loss
from openrlhf.models import utils as openrlhf_utils
from openrlhf.trainer.ppo_utils import experience as openrlhf_experience
from openrlhf.trainer.ppo_utils import experience_maker as openrlhf_maker
from openrlhf.trainer.ppo_utils import kl_controller as openrlhf_kl
from openrlhf.trainer.ppo_utils import length_penalty as openrlhf_length
import verl.utils.torch_functional as verl_functional
from verl.trainer.ppo import core_algos as verl_algos
from verl.trainer.ppo import rollout_corr_helper as verl_correction
from verl.workers.config import ActorConfig
from verl.workers.reward_manager import dapo as verl_dapo

torch.set_default_dtype(torch.float64)
torch.set_num_threads(1)
torch.Tensor.float = torch.Tensor.double


def without_count_epsilon(module, name):
    """Compiles `module.name` anew with counts of at least 1 in place of counts + 1e-8."""
    source = inspect.getsource(getattr(module, name))
    assert " + 1e-8)" in source, (module, name)
    exec(source.replace(" + 1e-8)", ").clamp(min=1)"), vars(module))


without_count_epsilon(openrlhf_loss, "aggregate_loss")
without_count_epsilon(verl_functional, "masked_mean")
without_count_epsilon(verl_algos, "agg_loss")


def steps_of(x, fraction):
    """Multiples of 1/fraction (a power of two), which float32 holds exactly."""
    return (x * fraction).round() / fraction
