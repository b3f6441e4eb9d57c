"""Writes core/rl/testdata/losses.json: the peers' losses of one optimizer step, with gradients and counts.

    PEERS=peers python tools/golden/rl_losses.py core/rl/testdata/losses.json        (set-up: rl_peers.py)

Each case names the data ("ragged": with an empty and an excluded sequence, and ratios out of range; "dense": neither, as
TRL counts such sequences in its means), our options for it, and the aggregation.
"""
import itertools
import json
import sys

import torch
from rl_peers import (ActorConfig, box, cut, openrlhf_loss, openrlhf_utils, rounded, run, steps_of, trl_grpo, trl_rloo,
                      verl_algos, verl_correction)


class Data:
    def __init__(self, lengths, excluded, extreme):
        generator = torch.Generator().manual_seed(7)
        rows, columns = len(lengths), max(lengths)
        normal = lambda k=1.0: k * torch.randn(rows, columns, generator=generator)
        self.lengths, self.excluded = lengths, excluded
        self.tokens = torch.arange(columns) < torch.tensor(lengths)[:, None]
        self.mask = (self.tokens & ~torch.tensor(excluded)[:, None]).double()
        self.log_prob = steps_of(-normal().abs() - 0.05, 256)
        self.old_log_prob = steps_of(self.log_prob + normal(0.4), 256)
        self.reference_log_prob = steps_of(self.log_prob + normal(0.5), 256)
        self.rollout_log_prob = steps_of((self.old_log_prob + normal(0.15)).clamp(max=-1 / 256), 256)
        if extreme:
            self.old_log_prob[0, :3] += torch.tensor([-30.0, 30.0, 2.5])
            self.rollout_log_prob[0, :3] = self.old_log_prob[0, :3]
            self.reference_log_prob[0, 3:6] += torch.tensor([14.0, -14.0, -80.0])
        self.advantage = steps_of(normal(), 64)
        self.row_advantage = self.advantage[:, :1].expand_as(self.advantage)
        self.entropy = steps_of(normal().abs(), 64)
        self.value = steps_of(normal(), 64)
        self.old_value = steps_of(self.value + normal(0.5), 64)
        self.returns = steps_of(normal(), 64)

    def flat(self, x):
        return x[self.tokens].tolist()

    def inputs(self):
        names = ("log_prob", "old_log_prob", "reference_log_prob", "rollout_log_prob", "advantage", "row_advantage",
                 "entropy", "value", "old_value", "returns")
        return {"lengths": self.lengths, "excluded": self.excluded,
                **{name: self.flat(getattr(self, name)) for name in names}}


DATA = {"ragged": Data([6, 0, 1, 9, 5, 4], [False] * 4 + [True, False], extreme=True),
        "dense": Data([5, 1, 3, 2], [False] * 4, extreme=False)}


def case(peer, data, options, aggregation, loss, leaf, entropy=None, **more):
    d = DATA[data]
    loss.backward()
    result = {"peer": peer, "data": data, "options": options, "aggregation": aggregation, "loss": loss.detach(),
              "gradient": d.flat(leaf.grad), **more}
    if entropy is not None:
        result["entropy_gradient"] = d.flat(entropy.grad)
    return result


def leaf_of(x):
    return x.clone().requires_grad_()


def openrlhf_policy():
    d = DATA["ragged"]
    ppo = [({}, {}), ({"eps_clip_high": 0.28}, {"clip_eps_high": 0.28}), ({"dual_clip": 3.0}, {"dual_clip": 3.0})]
    correction = [
        (("token_truncate", "ratio", 0.8, 1.2), ("token", "clip", "ratio", (0.8, 1.2))),
        (("token_mask", "ratio", 0.8, 1.2), ("token", "mask", "ratio", (0.8, 1.2))),
        (("token_mask", "binary_kl", 0.0, 0.004), ("token", "mask", "binary_kl", (0.0, 0.004))),
        (("token_mask", "tv", 0.0, 0.03), ("token", "mask", "tv", (0.0, 0.03))),
        (("sequence_mask_geometric", "ratio", 0.95, 1.05), ("seq", "mask", "ratio", (0.95, 1.05))),
        (("sequence_mask_geometric", "binary_kl", 0.0, 0.01), ("seq", "mask", "binary_kl", (0.0, 0.01))),
        (("sequence_mask_geometric", "tv", 0.0, 0.04), ("seq", "mask", "tv", (0.0, 0.04)))]
    ppo += [({"correction": dict(zip(("mode", "gate", "low", "high"), ours))},
             dict(zip(("is_correction_level", "is_correction_mode", "is_correction_gating", "is_correction_threshold"),
                      theirs))) for ours, theirs in correction]
    for ours, theirs in ppo + [({"kind": "gspo"}, {"policy_loss_type": "gspo"}),
                               ({"kind": "gspo", "dual_clip": 1.5}, {"policy_loss_type": "gspo", "dual_clip": 1.5})]:
        for aggregation in ("token_mean", "sequence_mean"):
            if "kind" in ours and aggregation == "token_mean":
                continue  # OpenRLHF has the sequence mean always
            function = openrlhf_loss.PolicyLoss(token_level_loss=aggregation == "token_mean", **theirs)
            leaf = leaf_of(d.log_prob)
            loss, clip_ratio, ppo_kl, _, filtered = function(
                leaf, d.old_log_prob, d.advantage, action_mask=d.mask, rollout_log_probs=d.rollout_log_prob)
            tokens = d.mask.sum()
            counts = {"clipped": clip_ratio * tokens, "approx_kl_sum": ppo_kl * tokens}
            if theirs.get("is_correction_level") == "token":
                name = "truncated" if theirs["is_correction_mode"] == "clip" else "masked"
                counts[name] = filtered * tokens
            yield case("OpenRLHF", "ragged", ours, aggregation, loss, leaf, **counts)


def openrlhf_corrected_gspo():
    """Its ratio is to the rollout's log-probabilities, whatever the correction."""
    d = DATA["ragged"]
    leaf = leaf_of(d.log_prob)
    function = openrlhf_loss.PolicyLoss(policy_loss_type="gspo", is_correction_level="token")
    loss, clip_ratio, *_ = function(leaf, d.old_log_prob, d.advantage, action_mask=d.mask,
                                    rollout_log_probs=d.rollout_log_prob)
    yield case("OpenRLHF", "ragged", {"kind": "gspo", "old_log_prob": "rollout_log_prob"}, "sequence_mean", loss, leaf,
               clipped=clip_ratio * d.mask.sum())


def openrlhf_terms():
    """The KL of the loss and the bonus for entropy, as PolicyModelActor.training_step adds them."""
    d = DATA["ragged"]
    for estimator, unbiased in itertools.product(("k1", "k2", "k3"), (False, True)):
        leaf, entropy = leaf_of(d.log_prob), leaf_of(d.entropy)
        policy = openrlhf_loss.PolicyLoss()(leaf, d.old_log_prob, d.advantage, action_mask=d.mask)[0]
        kl = openrlhf_utils.compute_approx_kl(leaf, d.reference_log_prob, log_probs_old=d.old_log_prob,
                                              kl_estimator=estimator, unbiased_gradient=unbiased)
        loss = policy + openrlhf_loss.aggregate_loss(kl, d.mask) * 0.25
        loss = loss - openrlhf_loss.aggregate_loss(entropy, d.mask) * 0.125
        options = {"kl_coefficient": 0.25, "kl_estimator": estimator, "kl_clamp": "all", "entropy_coefficient": 0.125,
                   "kl_gradient": "importance" if unbiased else "estimator"}
        yield case("OpenRLHF", "ragged", options, "token_mean", loss, leaf, entropy, kl_sum=(kl * d.mask).sum().detach(),
                   entropy_sum=(entropy * d.mask).sum().detach())


def verl_config(**options):
    return ActorConfig(strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1, **options)


AGGREGATIONS = {"token_mean": "token-mean", "sequence_mean": "seq-mean-token-mean",
                "sequence_sum_over_constant": "seq-mean-token-sum-norm"}


def verl_policy():
    d = DATA["ragged"]
    log_ratio = d.old_log_prob - d.rollout_log_prob
    corrections = {
        None: None, ("token_truncate", 0.0, 1.1): ("token", 1.1), ("token_mask", 0.9, 1.1): ("token", "0.9_1.1"),
        ("sequence_truncate", 0.0, 1.2): ("sequence", 1.2),
        ("sequence_mask_product", 0.5, 1.2): ("sequence", "0.5_1.2")}
    losses = [({"dual_clip": 3.0}, "vanilla", {}),
              ({"dual_clip": 1.5, "eps_clip_high": 0.28}, "vanilla", {"clip_ratio_c": 1.5, "clip_ratio_high": 0.28}),
              ({"kind": "gspo_token"}, "gspo", {}), ({"kind": "cispo", "eps_clip_high": 0.5}, "cispo",
                                                     {"clip_ratio_high": 0.5}),
              ({"kind": "reinforce"}, "reinforce", {})]
    for (ours, name, theirs), aggregation in itertools.product(losses, AGGREGATIONS):
        for correction, how in corrections.items():
            if correction and (aggregation != "token_mean" or "dual_clip" in ours and ours["dual_clip"] != 3.0):
                continue
            weights = None
            if how:
                weights, _ = verl_correction.compute_rollout_correction_weights(log_ratio, d.mask, *how)
            function = (verl_algos.compute_policy_loss_reinforce if name == "reinforce" else
                        verl_algos.get_policy_loss_fn(name))
            leaf = leaf_of(d.log_prob)
            loss, metrics = function(d.old_log_prob, leaf, d.advantage, d.mask, AGGREGATIONS[aggregation],
                                     verl_config(**theirs), weights)
            counts = {}
            if "actor/pg_clipfrac" in metrics:
                counts["clipped"] = metrics["actor/pg_clipfrac"] * d.mask.sum()
            options = dict(ours)
            if correction:
                options["correction"] = dict(zip(("mode", "low", "high"), correction))
                counts["correction_sum"] = (weights * d.mask).sum()
                counts["correction_square_sum"] = (weights.square() * d.mask).sum()
            yield case("verl", "ragged", options, aggregation, loss, leaf, **counts)


def verl_terms():
    """The KL of the loss and the bonus for entropy, as verl.workers.utils.losses.ppo_loss adds them."""
    d = DATA["ragged"]
    for penalty in ("k1", "k2", "k3", "k1+", "k3+"):
        leaf, entropy = leaf_of(d.log_prob), leaf_of(d.entropy)
        loss, _ = verl_algos.compute_policy_loss_vanilla(d.old_log_prob, leaf, d.advantage, d.mask, "token-mean",
                                                         verl_config())
        kl = verl_algos.kl_penalty(leaf, d.reference_log_prob, penalty)
        loss = loss + 0.25 * verl_algos.agg_loss(kl, d.mask, "token-mean")
        loss = loss - 0.125 * verl_algos.agg_loss(entropy, d.mask, "token-mean")
        options = {"dual_clip": 3.0, "kl_coefficient": 0.25, "kl_estimator": penalty[:2], "kl_clamp": "k3",
                   "entropy_coefficient": 0.125, "kl_gradient": "k2" if penalty.endswith("+") else "estimator"}
        yield case("verl", "ragged", options, "token_mean", loss, leaf, entropy)


TRL_LOSSES = {"grpo": "sequence_mean", "dr_grpo": "sequence_sum_over_constant", "dapo": "token_mean",
              "cispo": "token_mean"}
TRL_CORRECTIONS = {None: None, "token_truncate": "token_truncate", "token_mask": "token_mask",
                   "sequence_mask_product": "sequence_mask", "sequence_truncate": "sequence_truncate"}


def trl_grpo_loss():
    d = DATA["dense"]
    body = cut(trl_grpo.GRPOTrainer._compute_loss, "log_ratio = per_token_logps", 'mode = "train"')
    reduction = cut(trl_grpo.GRPOTrainer._compute_loss, 'if self.loss_type in ["grpo", "sapo"]:',
                    'elif self.loss_type == "luspo"')
    weights = cut(trl_grpo.GRPOTrainer._generate_and_score_completions, "per_token_logps_diff = (",
                  "# Compute the per-token log probabilities for the reference")
    for (loss_type, aggregation), level, beta, delta, correction in itertools.product(
            TRL_LOSSES.items(), ("token", "sequence"), (0.0, 0.04), (None, 3.0), TRL_CORRECTIONS):
        if (delta or correction) and (beta or loss_type == "dr_grpo") or (delta and (correction or loss_type == "cispo")):
            continue
        if level == "sequence" and (loss_type == "cispo" or correction):
            continue
        for bias in (False, True) if beta else (False,):
            trainer = box(
                importance_sampling_level=level, beta=beta, loss_type=loss_type, epsilon_low=0.2,
                epsilon_high=1.5 if loss_type == "cispo" else 0.28, off_policy_mask_threshold=None,
                use_vllm=correction is not None, vllm_importance_sampling_correction=True,
                vllm_importance_sampling_mode=TRL_CORRECTIONS[correction], vllm_importance_sampling_clip_min=0.85,
                vllm_importance_sampling_clip_max=1.15, max_completion_length=6, current_gradient_accumulation_steps=1,
                accelerator=box(num_processes=1), model=box(training=True),
                args=box(delta=delta, use_bias_correction_kl=bias, steps_per_generation=1))
            options = {"kind": {"cispo": "cispo"}.get(loss_type, "ppo" if level == "token" else "gspo"),
                       "eps_clip_high": 0.28, "dual_clip": delta or 0}
            if loss_type == "cispo":
                options.update(eps_clip_low=1.0, eps_clip_high=0.5)  # at most 1.5, at least 0
            if beta:
                options.update(kl_coefficient=beta, kl_estimator="k3", kl_clamp="none",
                               kl_gradient="times_ratio" if bias else "estimator")
            inputs = {"ref_per_token_logps": d.reference_log_prob, "num_items_in_batch": d.mask.sum()}
            if correction:
                options["correction"] = {"mode": correction, "low": 0.85, "high": 1.15}
                inputs["importance_sampling_ratio"] = run(
                    weights, trl_grpo, self=trainer, old_per_token_logps=d.old_log_prob, mask=d.mask,
                    sampling_per_token_logps=d.rollout_log_prob).vllm_importance_sampling_ratio
            leaf = leaf_of(d.log_prob)
            after = run(body, trl_grpo, self=trainer, per_token_logps=leaf, old_per_token_logps=d.old_log_prob,
                        advantages=d.row_advantage[:, :1], mask=d.mask, entropy_mask=None, inputs=inputs)
            loss = run(reduction, trl_grpo, self=trainer, per_token_loss=after.per_token_loss, mask=d.mask,
                       mode="train", inputs=inputs).loss
            yield case("TRL", "dense", {**options, "row_advantage": True}, aggregation, loss, leaf)


def trl_rloo_loss():
    d = DATA["dense"]
    body = cut(trl_rloo.RLOOTrainer._compute_loss, "log_ratio = logps - old_logps", "# Log the metrics")
    leaf = leaf_of(d.log_prob)
    loss = run(body, trl_rloo, logps=(leaf * d.mask).sum(1), old_logps=(d.old_log_prob * d.mask).sum(1),
               inputs={"advantages": d.row_advantage[:, 0], "old_logps": (d.old_log_prob * d.mask).sum(1)},
               self=box(epsilon_low=0.2, epsilon_high=0.28)).loss
    yield case("TRL", "dense", {"kind": "sequence_ppo", "eps_clip_high": 0.28, "row_advantage": True}, "sequence_mean",
               loss, leaf)


def supervised():
    for (data, d), (aggregation, token_level) in itertools.product(
            DATA.items(), (("token_mean", True), ("sequence_mean", False))):
        leaf = leaf_of(d.log_prob)
        loss = openrlhf_loss.SFTLoss(token_level)(leaf, d.mask)
        yield case("OpenRLHF", data, {"kind": "sft"}, aggregation, loss, leaf)


def values():
    d = DATA["ragged"]
    for clip, aggregation in itertools.product((0, 0.25, 0.5), ("token_mean", "sequence_mean")):
        leaf = leaf_of(d.value)
        loss = openrlhf_loss.ValueLoss(clip or None, aggregation == "token_mean")(leaf, d.old_value, d.returns, d.mask)
        yield case("OpenRLHF", "ragged", {"value_clip": clip}, aggregation, loss, leaf)
        if clip:
            leaf = leaf_of(d.value)
            loss, share = verl_algos.compute_value_loss(leaf, d.returns, d.old_value, d.mask, clip,
                                                        AGGREGATIONS[aggregation])
            yield case("verl", "ragged", {"value_clip": clip}, aggregation, loss, leaf, clipped=share * d.mask.sum())


def main(out):
    policies = itertools.chain(supervised(), openrlhf_policy(), openrlhf_corrected_gspo(), openrlhf_terms(),
                               verl_policy(), verl_terms(), trl_grpo_loss(), trl_rloo_loss())
    with open(out, "w") as file:
        file.write('{"data": ' + json.dumps(rounded({name: d.inputs() for name, d in DATA.items()})))
        for name, cases in (("policy", policies), ("value", values())):
            lines = ",\n".join(json.dumps(rounded(c)) for c in cases)
            file.write(f',\n"{name}": [\n{lines}]')
        file.write("}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
