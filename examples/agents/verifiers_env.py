#!/usr/bin/env python3
"""An agent that plays rollouts of an environment of the library verifiers.

    agent { command: "exec python3 examples/agents/verifiers_env.py guessing_env" kept: true processes: 4 }

Needs `pip install verifiers==0.1.14`. The environment is a module with load_environment(), beside this file or installed; a JSON
object behind its name has that function's arguments. Its dataset is the run's prompts:

    python3 -c 'import verifiers; verifiers.load_environment("guessing_env").get_dataset().to_json("prompts.jsonl")'

The reward is what its rubric says, and each function of the rubric a metric. VF_LOG_LEVEL=INFO logs to stderr.
"""
import asyncio
import json
import logging
import sys
import traceback

import verifiers
from openai import AsyncOpenAI


class ScoringErrors(logging.Handler):
    """Of functions of the rubric that raise: verifiers logs that, and counts 0."""
    texts = []

    def emit(self, record):
        if record.getMessage().startswith("Error calling reward function"):
            self.texts.append(record.getMessage())


async def play(environment, client, episode):
    row = {"answer": episode["label"], **episode["row"], "prompt": episode["messages"]}
    policy = client.with_options(base_url=episode["base_url"], api_key=episode["api_key"])
    ScoringErrors.texts.clear()
    rollout = await environment.run_rollout(
        row, verifiers.OpenAIChatCompletionsClient(policy), "policy", environment.sampling_args)
    # That the policy says nothing ends a rollout, too, which is scored. Any other error leaves nothing to score.
    error = rollout.get("error")
    if error and error["error"] != "EmptyModelResponseError":
        return {"error": error["error_chain_repr"]}
    if ScoringErrors.texts:
        return {"error": ScoringErrors.texts[0]}
    return {"reward": rollout["reward"], "extra_logs": rollout["metrics"]}


answers, sys.stdout = sys.stdout, sys.stderr  # what an environment prints is no answer
environment = verifiers.load_environment(sys.argv[1], **json.loads(sys.argv[2] if len(sys.argv) > 2 else "{}"))
if environment.requires_group_rollouts:
    sys.exit(f"{sys.argv[1]} scores the rollouts of a row together; an agent plays one")
logging.getLogger("verifiers").addHandler(ScoringErrors())
client = AsyncOpenAI(base_url="http://none", api_key="none")  # its connections serve all episodes
with asyncio.Runner() as runner:  # one event loop, to which belongs what an environment keeps open
    for line in sys.stdin:
        episode = json.loads(line)
        try:
            answer = runner.run(play(environment, client, episode))
        except Exception as error:
            traceback.print_exc()
            answer = {"error": repr(error)}
        print(json.dumps({"id": episode["id"], **answer}), file=answers, flush=True)
