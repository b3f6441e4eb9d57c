#!/usr/bin/env python3
"""What TRL makes of pairs of answers: the losses themselves, and twenty steps of its trainers on tiny models.

Usage: make_preference_golden.py REPOSITORY_ROOT
    (rl_requirements.txt and trl==1.16.0: transformers 5.23.0, torch 2.11.0, accelerate 1.15.0, datasets 5.2.0)

Writes core/rl/testdata/pair_losses.json, in float64, by the source lines of DPOTrainer._compute_loss and
RewardTrainer.compute_loss; TRL has label smoothing in its "aot" loss alone, whose lines after sorting are those of cDPO.
And {policy_trainer,critic_trainer}/testdata/preference_steps.json: the loss of every step of DPOTrainer ("sigmoid" and
"ipo"), SFTTrainer (without packing) and RewardTrainer (with and without margins) in float32, without shuffling, at a
constant learning rate; and what transformers says of a sequence with a scalar head.
"""
import itertools
import json
import os
import sys
import tempfile

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
import torch
import torch.nn.functional as F
import transformers
import trl
import trl.trainer.dpo_trainer as trl_dpo
import trl.trainer.reward_trainer as trl_reward
from datasets import Dataset
from peer_code import box, cut, rounded, run
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

STEPS = 20
PAIRS_OF_A_STEP = 4
ADAMW = {"beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.0}
MAX_NORM = 0.5
VOCABULARY = 101


# The losses.

def preference_losses():
    generator = torch.Generator().manual_seed(5)
    body = cut(trl_dpo.DPOTrainer._compute_loss, 'if self.f_divergence_type == "reverse_kl"', "if self.use_weighting")
    # The body ends inside its loop over losses.
    body += "\n    loss += per_sequence_loss.mean() * loss_weight\n"
    body += "chosen_rewards = self.beta * chosen_logratios.detach()\nrejected_rewards = self.beta * rejected_logratios.detach()\n"
    for lengths, scale in (([3, 5], 0.5), ([1, 7, 9, 1, 4, 4], 0.5), ([2, 1, 6, 3], 30.0)):
        longest = max(lengths)
        mask = (torch.arange(longest) < torch.tensor(lengths)[:, None]).double()
        log_prob = -torch.randn(len(lengths), longest, generator=generator, dtype=torch.float64).abs() * scale
        reference = log_prob + torch.randn(log_prob.shape, generator=generator, dtype=torch.float64) * scale
        log_prob, reference = ((x * 256).round() / 256 for x in (log_prob, reference))
        order = list(range(0, len(lengths), 2)) + list(range(1, len(lengths), 2))  # TRL's: all chosen, then all rejected
        for kind, beta, smoothing in itertools.product(("sigmoid", "ipo", "aot"), (0.1, 0.5), (0.0, 0.2)):
            if (kind == "aot") != (smoothing > 0) or kind == "aot" and len(lengths) > 2:
                continue  # one pair is sorted already
            leaf = log_prob.clone().requires_grad_()
            chosen, rejected = ((leaf - reference) * mask)[order].sum(1).chunk(2)
            after = run(body, trl_dpo,
                        self=box(f_divergence_type="reverse_kl", loss_types=[kind], loss_weights=[1.0], beta=beta,
                                 label_smoothing=smoothing),
                        chosen_logratios=chosen, rejected_logratios=rejected, completion_mask=mask[order],
                        chosen_logps=(leaf * mask)[order].sum(1).chunk(2)[0],
                        rejected_logps=(leaf * mask)[order].sum(1).chunk(2)[1],
                        ref_chosen_logps=(reference * mask)[order].sum(1).chunk(2)[0],
                        ref_rejected_logps=(reference * mask)[order].sum(1).chunk(2)[1])
            after.loss.backward()
            flat = lambda x: x[mask.bool()].tolist()
            yield {"loss_type": "ipo" if kind == "ipo" else "sigmoid", "beta": beta, "label_smoothing": smoothing,
                   "lengths": lengths, "log_prob": flat(log_prob), "reference_log_prob": flat(reference),
                   "loss": after.loss.detach(), "gradient": flat(leaf.grad),
                   "chosen_rewards": after.chosen_rewards.sum(), "rejected_rewards": after.rejected_rewards.sum(),
                   "preferred": (after.chosen_rewards > after.rejected_rewards).sum().item()}


def reward_losses():
    generator = torch.Generator().manual_seed(6)
    body = cut(trl_reward.RewardTrainer.compute_loss, 'if "margin" in inputs:', "if self.args.center_rewards")
    for pairs, scale, margins in itertools.product((1, 5), (1.0, 60.0), (False, True)):
        leaf = (torch.randn(2 * pairs, generator=generator, dtype=torch.float64) * scale * 64).round() / 64
        leaf.requires_grad_()
        margin = (torch.randn(pairs, generator=generator, dtype=torch.float64).abs() * 64).round() / 64
        chosen, rejected = leaf[0::2], leaf[1::2]
        after = run(body, trl_reward, inputs={"margin": margin} if margins else {}, rewards_chosen=chosen,
                    rewards_rejected=rejected)
        after.loss.backward()
        yield {"rewards": leaf.detach(), "margins": margin if margins else torch.zeros(pairs), "loss": after.loss.detach(),
               "gradient": leaf.grad, "chosen_rewards": chosen.detach().sum(), "rejected_rewards": rejected.detach().sum(),
               "preferred": (chosen > rejected).sum().item()}


# The trainers.

def tokenizer():
    words = {"<pad>": 0, "<s>": 1, "</s>": 2, **{f"w{i}": i for i in range(3, VOCABULARY)}}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel(words, unk_token="<pad>")),
                                                pad_token="<pad>", bos_token="<s>", eos_token="</s>")


def pairs():
    generator = torch.Generator().manual_seed(3)
    draw = lambda low, high: torch.randint(3, VOCABULARY, (int(torch.randint(low, high, (1,), generator=generator)),),
                                           generator=generator).tolist()
    rows = []
    for _ in range(STEPS * PAIRS_OF_A_STEP):
        rows.append({"prompt_ids": [1] + draw(1, 9), "chosen_ids": draw(1, 12) + [2], "rejected_ids": draw(1, 12) + [2],
                     "margin": round(float(torch.rand(1, generator=generator)) * 8) / 8})
    return rows


def steps_of(trainer_class, config_class, model, rows, learning_rate, **options):
    """The loss of each step, before it."""
    class Sequential(trainer_class):
        losses = []

        def _prepare_dataset(self, dataset, *arguments, **more):
            return dataset  # which has token ids

        def _get_train_sampler(self, *arguments):
            return torch.utils.data.SequentialSampler(self.train_dataset)

        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            result = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
            self.losses.append((result[0] if return_outputs else result).item())
            return result

    with tempfile.TemporaryDirectory() as folder:
        config = config_class(output_dir=folder, per_device_train_batch_size=PAIRS_OF_A_STEP, max_steps=STEPS, use_cpu=True,
                              bf16=False, gradient_checkpointing=False, learning_rate=learning_rate,
                              lr_scheduler_type="constant", adam_beta1=ADAMW["beta1"], adam_beta2=ADAMW["beta2"],
                              adam_epsilon=ADAMW["eps"], weight_decay=ADAMW["weight_decay"], max_grad_norm=MAX_NORM,
                              optim="adamw_torch", max_length=None, save_strategy="no", report_to=[], disable_tqdm=True,
                              remove_unused_columns=False, **options)
        trainer = Sequential(model=model, args=config, train_dataset=Dataset.from_list(rows), processing_class=tokenizer())
        assert all(p.dtype == torch.float32 for p in trainer.model.parameters())
        trainer.train()
    assert len(Sequential.losses) == STEPS
    return Sequential.losses


def policy_steps(root):
    load = lambda: transformers.AutoModelForCausalLM.from_pretrained(f"{root}/core/model/testdata/llama", dtype=torch.float32)
    rows = pairs()
    plain = [{k: v for k, v in row.items() if k != "margin"} for row in rows]
    runs = {"sigmoid": {"beta": 0.1}, "ipo": {"beta": 0.2}}
    out = {"pairs": plain, "pairs_of_a_step": PAIRS_OF_A_STEP, "adamw": ADAMW, "max_norm": MAX_NORM, "learning_rate": 1e-3,
           "runs": []}
    for loss, options in runs.items():
        losses = steps_of(trl.DPOTrainer, trl.DPOConfig, load(), plain, out["learning_rate"], loss_type=[loss], **options)
        out["runs"].append({"loss": loss, **options, "losses": losses})
    examples = [{"input_ids": row["prompt_ids"] + row["chosen_ids"],
                 "labels": [-100] * len(row["prompt_ids"]) + row["chosen_ids"],
                 "completion_mask": [0] * len(row["prompt_ids"]) + [1] * len(row["chosen_ids"])} for row in rows]
    losses = steps_of(trl.SFTTrainer, trl.SFTConfig, load(), examples, out["learning_rate"], packing=False,
                      completion_only_loss=True)
    out["runs"].append({"loss": "sft", "losses": losses})
    return out


def reward_steps(root):
    load = lambda: transformers.AutoModelForSequenceClassification.from_pretrained(
        f"{root}/core/model/testdata/llama_critic", dtype=torch.float32)
    rows = [{"chosen_ids": r["prompt_ids"] + r["chosen_ids"], "rejected_ids": r["prompt_ids"] + r["rejected_ids"],
             "margin": r["margin"]} for r in pairs()]
    plain = [{k: v for k, v in row.items() if k != "margin"} for row in rows]
    out = {"pairs": rows, "pairs_of_a_step": PAIRS_OF_A_STEP, "adamw": ADAMW, "max_norm": MAX_NORM, "learning_rate": 3e-4,
           "runs": []}
    model = load()
    with torch.no_grad():  # one sequence, no padding: transformers reads the last token
        out["rewards_of_the_first_step"] = [model(torch.tensor([row[key]])).logits[0, 0].item()
                                            for row in rows[:PAIRS_OF_A_STEP] for key in ("chosen_ids", "rejected_ids")]
    for margin, data in ((False, plain), (True, rows)):
        losses = steps_of(trl.RewardTrainer, trl.RewardConfig, load(), data, out["learning_rate"])
        out["runs"].append({"margin": margin, "losses": losses})
    return out


def write(path, value):
    with open(path, "w") as file:
        json.dump(value, file)
        file.write("\n")


def main():
    root = sys.argv[1]
    torch.set_num_threads(1)
    transformers.set_seed(0)
    write(f"{root}/core/rl/testdata/pair_losses.json",
          rounded({"preference": list(preference_losses()), "reward": list(reward_losses())}))
    write(f"{root}/policy_trainer/testdata/preference_steps.json", policy_steps(root))
    write(f"{root}/critic_trainer/testdata/preference_steps.json", reward_steps(root))


if __name__ == "__main__":
    main()
