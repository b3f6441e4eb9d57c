"""Writes core/rl/testdata/estimators.json: expected values of KL, rewards, advantages, weights and schedules.

The values come from OpenRLHF's own functions (openrlhf==0.11.2) and from transformers' learning rate schedule
(transformers==4.57.6, torch==2.11.0). OpenRLHF's heavy imports (deepspeed, ray, vllm, ...), none of which takes part in
the arithmetic, are replaced by empty modules.

    pip download --no-deps openrlhf==0.11.2 && python -m zipfile -e openrlhf-*.whl openrlhf_wheel
    python tools/golden/rl_estimators.py openrlhf_wheel/openrlhf-0.11.2.data/purelib core/rl/testdata/estimators.json
"""
import importlib.abc
import importlib.machinery
import json
import sys
import types
from unittest import mock

import torch
import transformers

STAND_INS = {"deepspeed", "ray", "flash_attn", "vllm", "torchdata", "ring_flash_attn", "peft", "wandb", "aiohttp",
             "tensorboard", "pylatexenc", "optree", "bitsandbytes", "torchmetrics"}


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


def main(openrlhf_folder, out):
    sys.meta_path.append(StandIns())
    sys.path.insert(0, openrlhf_folder)
    from openrlhf.models import utils
    from openrlhf.trainer.ppo_utils import experience, experience_maker, kl_controller

    generator = torch.Generator().manual_seed(20)
    normal = lambda *shape: torch.randn(*shape, generator=generator)
    lengths = [9, 4, 1, 7, 2, 6]
    rows, columns = len(lengths), max(lengths)
    mask = torch.zeros(rows, columns)
    for row, length in enumerate(lengths):
        mask[row, :length] = 1
    log_probs = -normal(rows, columns).abs() - 0.05
    reference = log_probs + 0.4 * normal(rows, columns)
    reference[0, 0] += 15
    reference[0, 1] -= 15
    reference[3, 2] -= 80
    values = normal(rows, columns)
    rewards = 9 * normal(rows)  # some of them beyond the clip range

    def ragged(x):
        return [x[row, :length].double().tolist() for row, length in enumerate(lengths)]

    result = {
        "log_probs": ragged(log_probs), "reference_log_probs": ragged(reference), "values": ragged(values),
        "rewards": rewards.double().tolist(), "kl_coefficient": 0.05, "clip": [-10, 10], "kl": {}, "gae": [],
        "normalized": {}, "learning_rate": [],
    }
    for name in ("k1", "k2", "k3"):
        result["kl"][name] = ragged(utils.compute_approx_kl(log_probs, reference, kl_estimator=name))
    kl = utils.compute_approx_kl(log_probs, reference, kl_estimator="k1")
    shaped = utils.compute_reward(rewards, 0.05, kl, action_mask=mask, reward_clip_range=(-10.0, 10.0))
    result["token_rewards"] = ragged(shaped)

    maker = object.__new__(experience_maker.RemoteExperienceMaker)
    for gamma, lambd in ((1.0, 1.0), (1.0, 0.95), (0.99, 0.95), (0.9, 0.0)):
        advantages, returns = maker.get_advantages_and_returns(values, shaped, mask, gamma, lambd)
        result["gae"].append({"gamma": gamma, "lambda": lambd, "advantages": ragged(advantages),
                              "returns": ragged(returns)})

    box = types.SimpleNamespace
    for name, centred_only in (("whiten", False), ("center", True)):
        maker.strategy = box(args=box(
            rollout=box(n_samples_per_prompt=1, max_new_tokens=columns),
            reward=box(clip_range=(-10.0, 10.0), overlong_buffer_len=None, stop_properly_penalty_coef=None),
            data=box(max_len=columns),
            algo=box(advantage=box(estimator="gae", gamma=1.0, lambd=0.95, no_std_norm=centred_only))))
        maker.advantage_estimator = "gae"
        maker.kl_ctl = box(value=0.05)
        half = rows // 2
        batches = [experience.Experience(
            index=list(range(part.start, part.stop)), rewards=rewards[part].clone(), action_mask=mask[part],
            values=values[part].clone(), kl=kl[part].clone(), info={})
            for part in (slice(0, half), slice(half, rows))]
        batches = maker.compute_advantages_and_returns(batches)
        result["normalized"][name] = {
            "gamma": 1.0, "lambda": 0.95,
            "advantages": ragged(torch.cat([batch.advantages for batch in batches])),
            "returns": ragged(torch.cat([batch.returns for batch in batches]))}

    controller = kl_controller.AdaptiveKLController(0.1, 6.0, 10000)
    trace = []
    for measured in (1.0, 6.0, 20.0, 7.0):
        controller.update(measured, 128)
        trace.append({"kl": measured, "sequences": 128, "coefficient": float(controller.value)})
    result["kl_controller"] = {"initial": 0.1, "target": 6.0, "horizon": 10000, "steps": trace}

    for peak, warmup, total, floor in ((1e-6, 3, 40, 0.1), (9e-6, 0, 17, 0.0), (2e-3, 10, 10, 0.5), (1.0, 1, 2, 0.25)):
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=peak)
        schedule = transformers.get_scheduler(
            "cosine_with_min_lr", optimizer, num_warmup_steps=warmup, num_training_steps=total,
            scheduler_specific_kwargs={"min_lr_rate": floor})
        rates = []
        for _ in range(total + 1):  # transformers' step 0 is the one before the first; ours count from 1
            rates.append(schedule.get_last_lr()[0])
            optimizer.step()
            schedule.step()
        result["learning_rate"].append({"peak": peak, "warmup_steps": warmup, "total_steps": total,
                                        "min_ratio": floor, "rates": rates[1:]})
    with open(out, "w") as file:
        json.dump(result, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
