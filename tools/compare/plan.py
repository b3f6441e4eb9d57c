"""Holds plans against what the operating system saw: runs PPO on this machine's CPUs in three shapes, with sequences that
are all as long as they may be, and compares each service's peak by category and each rank's peak resident set with
//orchestrator:plan's figures. Exit code 1 where a category of more than 1 MiB differs by more than 5 %, or a process by
more than 10 %.

Usage: compare_plan.py MODEL_FOLDER OUTPUT_FOLDER [SHAPE ...]

MODEL_FOLDER: a Hugging Face folder, such as SmolLM2-135M-Instruct's. Build //orchestrator and //orchestrator:plan first.
"""

import json
import pathlib
import subprocess
import sys

SHAPES = {
    "stage 3, 2 ranks, bf16": {
        "ranks": 2,
        "prompt": 96,
        "answer": 32,
        "set": ["actor.micro_train_batch_size=4", "critic.micro_train_batch_size=4"],
    },
    "1 rank, fp32, activations kept": {
        "ranks": 1,
        "prompt": 224,
        "answer": 32,
        "set": ["actor.dtype=fp32", "critic.dtype=fp32", "actor.gradient_checkpointing=false",
                "critic.gradient_checkpointing=false", "rollout.dtype=fp32", "actor.micro_train_batch_size=1",
                "critic.micro_train_batch_size=1"],
    },
    "stage 2, 2 ranks, long": {
        "ranks": 2,
        "prompt": 992,
        "answer": 32,
        "set": ["actor.zero_stage=2", "critic.zero_stage=3", "critic.dtype=fp32", "actor.micro_train_batch_size=1",
                "critic.micro_train_batch_size=1"],
    },
}
CATEGORIES = ["parameters", "gradients", "optimizer", "gathered", "activations", "logits", "kv_cache", "communication"]


def config(model, folder, shape):
    """Prompts of `prompt` tokens: one that begins the text, and one a word."""
    words = " the" * (shape["prompt"] - 1)
    (folder / "prompts.jsonl").write_text("".join(json.dumps({"prompt": words, "label": str(i)}) + "\n" for i in range(16)))
    services = "".join(
        f'  {name} {{ ranks: {shape["ranks"]} threads: 1 listen: "127.0.0.1:0" }}\n'
        for name in ("rollout", "policy_trainer", "critic_trainer", "scorer"))
    path = folder / "run.textproto"
    path.write_text(f"""run_dir: "{folder}/run"
data {{ prompt_data: "{folder}/prompts.jsonl" prompt_max_len: {shape["prompt"]} }}
rollout {{ rollout_batch_size: 8 generate_max_len: {shape["answer"]} kv_cache_bytes: 134217728 }}
actor {{ pretrain: "{model}" }}
critic {{ pretrain: "{model}" }}
reward {{ source {{ rule: "number" }} }}
train {{ max_steps: 2 }}
services {{
{services}}}
""")
    return [f"--config={path}"] + [f"--set={text}" for text in shape["set"]]


def compare(name, shape, model, output):
    folder = output / name.replace(" ", "_").replace(",", "")
    folder.mkdir(parents=True)
    arguments = config(model, folder, shape)
    printed = subprocess.run(["bazel-bin/planner/plan", "--format=json", *arguments], check=True, text=True,
                             stdout=subprocess.PIPE).stdout
    plan = json.loads(printed)["services"]
    subprocess.run(["bazel-bin/orchestrator/orchestrator", "--launch", *arguments], check=True,
                   stdout=subprocess.DEVNULL)
    metrics = [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]
    print(f"## {name}")
    beyond = 0
    for service, planned in plan.items():
        peaks = {}
        for record in metrics:
            for key, value in record.items():
                if key.startswith(f"memory/{service}/"):
                    key = key.removeprefix(f"memory/{service}/")
                    peaks[key] = max(peaks.get(key, 0), value)
        rows = [(category, planned["device"][category], peaks.get(category, 0), 0.05) for category in CATEGORIES]
        rows.append(("at once", planned["device"]["total"], peaks["total"], 0.05))
        rows.append(("process", planned["device"]["total"] + planned["host"]["total"] + planned["host_outside"],
                     peaks["process"], 0.1))
        for row, planned_bytes, measured, tolerance in rows:
            if planned_bytes == measured == 0:
                continue
            difference = planned_bytes / measured - 1 if measured else float("inf")
            wrong = abs(difference) > tolerance and max(planned_bytes, measured) > (1 << 20)
            beyond += wrong
            print(f"{service:15} {row:14} planned {planned_bytes / 2**20:9.1f} MiB  "
                  f"measured {measured / 2**20:9.1f} MiB  {100 * difference:+6.1f} %{'  <--' if wrong else ''}")
        print(f"{service:15} beside tensors at their peak: {(peaks['process'] - peaks['total']) / 2**20:.1f} MiB")
    sys.stdout.flush()
    return beyond


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    model, output = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
    beyond = [compare(name, SHAPES[name], model, output) for name in sys.argv[3:] or SHAPES]
    sys.exit(1 if any(beyond) else 0)


if __name__ == "__main__":
    main()
