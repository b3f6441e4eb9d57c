"""Writes core/rl/testdata/estimators.json: what the peers compute of rewards, KL, advantages, weights and schedules.

    PEERS=peers python tools/golden/rl_estimators.py core/rl/testdata/estimators.json        (set-up: rl_peers.py)

NeMo-RL, which is no package, is written anew from its definition, one sample at a time.
"""
import itertools
import json
import math
import sys
from unittest import mock

import torch
import transformers
from rl_peers import (box, cut, openrlhf_experience, openrlhf_kl, openrlhf_length, openrlhf_loss, openrlhf_maker,
                      openrlhf_utils, rounded, run, steps_of, trl_grpo, trl_rloo, verl_algos, verl_dapo,
                      verl_functional)

SAMPLES = 4
LENGTHS = [7, 4, 1, 0, 6, 3, 5, 2, 1, 7, 2, 3]
EXCLUDED = [False] * 6 + [True] + [False] * 5
GROUPS = [i // SAMPLES for i in range(len(LENGTHS))]
BETA = 0.05
CLIP = (-1.5, 1.25)
TOKEN_CLIP = (-0.5, 0.75)


class Data:
    """`mask` is that of the loss; excluded sequences have tokens, but none in it."""

    def __init__(self):
        generator = torch.Generator().manual_seed(20)
        normal = lambda *shape: torch.randn(*shape, generator=generator)
        rows, columns = len(LENGTHS), max(LENGTHS)
        self.tokens = (torch.arange(columns) < torch.tensor(LENGTHS)[:, None]).double()
        self.mask = self.tokens * (1 - torch.tensor(EXCLUDED).double())[:, None]
        self.log_probs = steps_of(-normal(rows, columns).abs() - 0.05, 256)
        self.reference = steps_of(self.log_probs + 0.4 * normal(rows, columns), 256)
        self.far = self.reference.clone()
        self.far[0, :3] += torch.tensor([15.0, -15.0, -80.0])
        self.far[1, :3] += torch.tensor([30.0, 3.0, -3.0])
        self.values = steps_of(normal(rows, columns), 64)
        self.rewards = steps_of(2 * normal(rows), 8)
        self.rewards[4:8] = torch.tensor([1.0, 0.0, 1.0, 1.0])
        self.rewards[8:12] = 0.1  # a group without a signal, of a number that floats do not hold
        self.kl = (self.log_probs - self.reference) * self.tokens
        self.token_rewards = steps_of(normal(rows, columns), 64) * (normal(rows, columns) > 0.5) * self.tokens

    def ragged(self, x):
        return [x[row, :length].tolist() for row, length in enumerate(LENGTHS)]


def openrlhf_advantages(d):
    names = {"gae": "gae", "reinforce": "reinforce", "rloo": "rloo", "grpo": "group_norm", "dr_grpo": "dr_grpo",
             "reinforce_plus_plus_baseline": "reinforce_baseline"}
    gammas = {"gae": [(1.0, 1.0), (0.99, 0.95), (0.9, 0.0)], "reinforce": [(1.0, 1.0), (0.97, 1.0)]}
    for ours, theirs in names.items():
        for (gamma, lambd), centred, clip in itertools.product(gammas.get(ours, [(1.0, 1.0)]), [False, True],
                                                               [None, CLIP]):
            whitens = ours in ("gae", "reinforce", "reinforce_plus_plus_baseline")
            if centred and (not whitens or clip):
                continue
            maker = object.__new__(openrlhf_maker.RemoteExperienceMaker)
            maker.strategy = box(args=box(
                rollout=box(n_samples_per_prompt=SAMPLES, max_new_tokens=8), data=box(max_len=8),
                reward=box(clip_range=clip, overlong_buffer_len=None, stop_properly_penalty_coef=None),
                algo=box(advantage=box(estimator=theirs, gamma=gamma, lambd=lambd, no_std_norm=centred))))
            maker.advantage_estimator = theirs
            maker.kl_ctl = box(value=BETA)
            parts = [list(range(begin, begin + 6)) for begin in (0, 6)]
            batches = [openrlhf_experience.Experience(
                index=part, rewards=d.rewards[part].clone(), action_mask=d.mask[part], values=d.values[part].clone(),
                kl=d.kl[part].clone(), info={}) for part in parts]
            batches = maker.compute_advantages_and_returns(batches)
            options = {"estimator": ours, "gamma": gamma, "lambda": lambd}
            if clip:
                options["clip"] = clip
            if whitens:
                options["normalization"] = "center" if centred else "whiten"
            yield ("OpenRLHF", options, torch.cat([b.advantages for b in batches]),
                   torch.cat([b.returns for b in batches]))


def verl_advantages(d):
    last = torch.nn.functional.one_hot(torch.tensor(LENGTHS).clamp(min=1) - 1, max(LENGTHS)).double()
    shaped = d.rewards[:, None] * last - BETA * d.kl
    for gamma, lambd in ((1.0, 1.0), (0.99, 0.95)):
        yield ("verl", {"estimator": "gae", "gamma": gamma, "lambda": lambd, "whitening_variance": "unbiased"},
               *verl_algos.compute_gae_advantage_return(shaped, d.values, d.mask, gamma, lambd))
    for gamma in (1.0, 0.97):
        yield ("verl", {"estimator": "reinforce_plus_plus", "gamma": gamma, "whitening_variance": "unbiased"},
               *verl_algos.compute_reinforce_plus_plus_outcome_advantage(shaped, d.mask, config=box(gamma=gamma)))
    group = {"kl_placement": "sequence"}
    for ours, deviation in (("grpo", True), ("dr_grpo", False)):
        yield ("verl", {"estimator": ours, "grpo_epsilon": 1e-6, **group},
               *verl_algos.compute_grpo_outcome_advantage(shaped, d.mask, GROUPS, norm_adv_by_std_in_grpo=deviation))
    yield ("verl", {"estimator": "rloo", **group}, *verl_algos.compute_rloo_outcome_advantage(shaped, d.mask, GROUPS))
    advantages, _ = verl_algos.compute_reinforce_plus_plus_baseline_outcome_advantage(shaped, d.mask, GROUPS)
    yield ("verl", {"estimator": "reinforce_plus_plus_baseline", "whitening_variance": "unbiased", **group}, advantages,
           None)


def openrlhf_rewards_of_tokens(r, kl_coef, kl, action_mask=None, reward_clip_range=None):
    """Its compute_reward, which clamps what it is given whatever the shape, without the place that it gives a number."""
    r = r if reward_clip_range is None else r.clamp(min=reward_clip_range[0], max=reward_clip_range[1])
    return r - kl_coef * kl


def token_reward_advantages(d):
    """Where each token has a reward of its own: verl's token_level_scores, and OpenRLHF's returns of such."""
    shaped = d.token_rewards - BETA * d.kl
    for gamma, lambd in ((1.0, 1.0), (0.99, 0.95)):
        yield ("verl", {"estimator": "gae", "gamma": gamma, "lambda": lambd, "whitening_variance": "unbiased"},
               *verl_algos.compute_gae_advantage_return(shaped, d.values, d.mask, gamma, lambd))
    for gamma in (1.0, 0.97):
        yield ("verl", {"estimator": "reinforce_plus_plus", "gamma": gamma, "whitening_variance": "unbiased"},
               *verl_algos.compute_reinforce_plus_plus_outcome_advantage(shaped, d.mask, config=box(gamma=gamma)))
    for (estimator, gamma, lambd), clip in itertools.product(
            [("gae", 0.99, 0.95), ("reinforce", 1.0, 1.0), ("reinforce", 0.97, 1.0)], [None, TOKEN_CLIP]):
        maker = object.__new__(openrlhf_maker.RemoteExperienceMaker)
        maker.strategy = box(args=box(
            rollout=box(n_samples_per_prompt=SAMPLES, max_new_tokens=8), data=box(max_len=8),
            reward=box(clip_range=clip, overlong_buffer_len=None, stop_properly_penalty_coef=None),
            algo=box(advantage=box(estimator=estimator, gamma=gamma, lambd=lambd, no_std_norm=False))))
        maker.advantage_estimator, maker.kl_ctl = estimator, box(value=BETA)
        batch = openrlhf_experience.Experience(
            index=list(range(len(LENGTHS))), rewards=d.rewards.clone(), action_mask=d.mask, values=d.values.clone(),
            kl=d.kl.clone(), info={})
        of_tokens = lambda r, *rest, **more: openrlhf_rewards_of_tokens(d.token_rewards, *rest, **more)
        with mock.patch.object(openrlhf_maker, "compute_reward", of_tokens):
            batch, = maker.compute_advantages_and_returns([batch])
        options = {"estimator": estimator, "gamma": gamma, "lambda": lambd}
        yield "OpenRLHF", {**options, "clip": clip} if clip else options, batch.advantages, batch.returns


def trl_advantages(d):
    code = cut(trl_grpo.GRPOTrainer._generate_and_score_completions, "if self.multi_objective_aggregation ==",
               "elif self.multi_objective_aggregation ==")
    for scale in ("group", "batch", "none"):
        trainer = box(multi_objective_aggregation="sum_then_normalize", scale_rewards=scale,
                      reward_weights=torch.ones(1))
        after = run(code, trl_grpo, self=trainer, rewards_per_func=d.rewards[:, None], device="cpu",
                    unscorable_mask=torch.zeros(len(LENGTHS), dtype=torch.bool), num_generations=SAMPLES)
        options = {"estimator": "dr_grpo"} if scale == "none" else {
            "estimator": "grpo", "grpo_epsilon": 1e-4, "grpo_scale": scale}
        yield "TRL", {"kl_coefficient": 0, **options}, after.advantages[:, None].expand_as(d.mask), None
    code = cut(trl_rloo.RLOOTrainer._generate_and_score_completions, "if self.reward_clip_range:",
               "# Normalize advantages over")
    for clip in (None, CLIP):
        after = run(code, trl_rloo, self=box(reward_clip_range=clip, beta=BETA), rewards=d.rewards.clone(),
                    old_per_token_logps=d.log_probs, ref_per_token_logps=d.reference, completion_mask=d.tokens,
                    num_generations=SAMPLES, gather=lambda x: x)
        options = {"clip": clip, "reward_clip_placement": "before_baseline"} if clip else {}
        yield ("TRL", {"estimator": "rloo", "kl_placement": "sequence", **options},
               after.advantages[:, None].expand_as(d.mask), None)


def nemo_advantages(d):
    """Baseline and deviation of the other samples; no division where these agree."""
    advantages = []
    for i, r in enumerate(d.rewards.tolist()):
        others = [x for k, x in enumerate(d.rewards.tolist()) if GROUPS[k] == GROUPS[i] and k != i]
        advantage = r - math.fsum(others) / len(others)
        deviation = 0 if len(set(others)) == 1 else torch.tensor(others).std().item()
        advantages.append(advantage / (deviation + 1e-6) if deviation > 0 else advantage)
    yield ("NeMo-RL", {"estimator": "grpo", "grpo_epsilon": 1e-6, "group_baseline": "leave_one_out",
                       "kl_coefficient": 0}, torch.tensor(advantages)[:, None].expand_as(d.mask), None)


def cases(d, found):
    for peer, options, a, r in found:
        case = {"peer": peer, "options": options, "advantages": d.ragged(a)}
        if r is not None:
            case["returns"] = d.ragged(r)
        yield case


def advantages(d):
    return cases(d, itertools.chain(openrlhf_advantages(d), verl_advantages(d), trl_advantages(d), nemo_advantages(d)))


def kl(d):
    for name, far in itertools.product(("k1", "k2", "k3"), (False, True)):
        reference = d.far if far else d.reference
        theirs = {
            ("OpenRLHF", "all"): openrlhf_utils.compute_approx_kl(d.log_probs, reference, kl_estimator=name),
            ("verl", "k3"): verl_algos.kl_penalty(d.log_probs, reference, name)}
        if name == "k3":
            lines = cut(trl_grpo.GRPOTrainer._compute_loss, "per_token_kl = (", "# Importance sampling correction")
            theirs["TRL", "none"] = run(lines, trl_grpo, per_token_logps=d.log_probs,
                                        ref_per_token_logps=reference).per_token_kl
        for (peer, clamp), value in theirs.items():
            yield {"peer": peer, "estimator": name, "clamp": clamp, "far": far, "kl": d.ragged(value)}


def kl_means(d):
    rows = [row for row, length in enumerate(LENGTHS) if length]  # 0 / 0 in OpenRLHF, 0 in verl; none in ours
    values, mask = d.kl[rows], d.tokens[rows]
    yield {"peer": "OpenRLHF", "mean": "sequence", "value": openrlhf_utils.masked_mean(values, mask, dim=-1).mean()}
    yield {"peer": "verl", "mean": "sequence", "value": verl_functional.masked_mean(values, mask, axis=-1).mean()}
    yield {"peer": "OpenRLHF", "mean": "token", "value": openrlhf_utils.masked_mean(values, mask, dim=None)}


def controllers():
    for peer, controller in (("OpenRLHF", openrlhf_kl.AdaptiveKLController), ("verl", verl_algos.AdaptiveKLController)):
        c = controller(0.1, 6.0, 10000)
        steps = []
        for measured in (1.0, 6.0, 20.0, 7.0):
            c.update(measured, 128)
            steps.append({"kl": measured, "sequences": 128, "coefficient": float(c.value)})
        yield {"peer": peer, "initial": 0.1, "target": 6.0, "horizon": 10000, "steps": steps}


def length_penalties():
    limits = {"max_new_tokens": 100, "buffer": 30, "factor": 0.5}
    lengths = [0, 1, 69, 70, 71, 85, 99, 100]
    batch = [box(rewards=torch.zeros(len(lengths)), response_length=torch.tensor(lengths))]
    openrlhf_length.apply_overlong_penalty(batch, limits["max_new_tokens"], limits["buffer"], limits["factor"])
    lines = cut(verl_dapo.DAPORewardManager.__call__, "overlong_buffer_len =", "if self.overlong_buffer_cfg.log")
    manager = box(overlong_buffer_cfg=box(len=limits["buffer"], penalty_factor=limits["factor"]),
                  max_resp_len=limits["max_new_tokens"])
    penalties = [run(lines, verl_dapo, self=manager, valid_response_length=n, reward=0.0).reward for n in lengths]
    return {**limits, "lengths": lengths, "penalties": {"OpenRLHF": batch[0].rewards, "verl": penalties}}


def aggregations(d):
    """Losses of one optimizer step; the last of them also of sequences that all count, as TRL counts them."""
    losses, n, columns = steps_of(d.values.abs(), 64), len(LENGTHS), max(LENGTHS)
    theirs = [("OpenRLHF", mode, openrlhf_loss.aggregate_loss(losses, d.mask, token_level_loss=mode == "token_mean"))
              for mode in ("token_mean", "sequence_mean")]
    names = {"token_mean": "token-mean", "sequence_mean": "seq-mean-token-mean",
             "sequence_sum_over_constant": "seq-mean-token-sum-norm"}
    theirs += [("verl", ours, verl_algos.agg_loss(losses, d.mask, name)) for ours, name in names.items()]
    for peer, mode, value in theirs:
        yield {"peer": peer, "aggregation": mode, "constant": columns, "loss": value}


def learning_rates():
    cases = [("cosine_with_min_lr", "cosine", 1e-6, 3, 40, 0.1), ("cosine_with_min_lr", "cosine", 2e-3, 10, 10, 0.5),
             ("cosine_with_min_lr", "cosine", 1.0, 1, 2, 0.25), ("cosine", "cosine", 9e-6, 0, 17, 0.0),
             ("linear", "linear", 5e-6, 4, 19, 0.0), ("linear", "linear", 1.0, 0, 3, 0.0),
             ("constant_with_warmup", "constant", 1e-6, 50, 60, 0.0), ("constant", "constant", 1.0, 0, 4, 0.0)]
    for theirs, ours, peak, warmup, total, floor in cases:
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=peak)
        schedule = transformers.get_scheduler(
            theirs, optimizer, num_warmup_steps=warmup, num_training_steps=total,
            scheduler_specific_kwargs={"min_lr_rate": floor} if theirs == "cosine_with_min_lr" else None)
        rates = []
        for _ in range(total + 1):  # transformers' step 0 is the one before the first; ours count from 1
            rates.append(schedule.get_last_lr()[0])
            optimizer.step()
            schedule.step()
        yield {"name": theirs, "scheduler": ours, "peak": peak, "warmup_steps": warmup, "total_steps": total,
               "min_ratio": floor, "rates": rates[1:]}


def main(out):
    d = Data()
    result = {
        "log_probs": d.ragged(d.log_probs), "reference_log_probs": d.ragged(d.reference),
        "far_log_probs": d.ragged(d.far), "values": d.ragged(d.values), "rewards": d.rewards, "groups": GROUPS,
        "token_rewards": d.ragged(d.token_rewards), "excluded": EXCLUDED, "kl_coefficient": BETA, "losses": d.ragged(steps_of(d.values.abs(), 64)),
        "advantages": list(advantages(d)), "token_reward_advantages": list(cases(d, token_reward_advantages(d))),
        "kl": list(kl(d)), "kl_means": list(kl_means(d)),
        "kl_controllers": list(controllers()), "length_penalties": length_penalties(),
        "aggregations": list(aggregations(d)), "learning_rates": list(learning_rates())}
    with open(out, "w") as file:
        lines = ",\n".join(f"{json.dumps(k)}: {json.dumps(rounded(v))}" for k, v in result.items())
        file.write("{" + lines + "}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
