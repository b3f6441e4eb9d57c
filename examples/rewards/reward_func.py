#!/usr/bin/env python3
"""Serves a reward function that was written for OpenRLHF, TRL or verl:

reward { source { command: "python3 examples/rewards/reward_func.py my_rewards.py" } }

python3 reward_func.py FILE [FUNCTION] [--label NAME] [--messages]

FUNCTION is one of FILE's, by default the only one that has one of these forms:

    reward_func(queries, prompts, labels)                            OpenRLHF: numbers, or {"rewards", "scores", "extra_logs"}
    anything(prompts, completions, **columns)                        TRL: numbers; may be async
    compute_score(data_source, solution_str, ground_truth, extra_info=None)   verl: a number, or a dict with "score"

--label NAME: TRL's function gets the label as the column NAME too ("answer", "solution", ...), beside `label`.
--messages: TRL's function gets prompts and completions as lists of messages; a prompt is one message of the user's, with
the text that the model has read.

A list in place of an answer's number is the rewards of its tokens (reward.source { token_rewards: true }). A function that
has parameters token_ids or token_texts is given these lists then, and TRL's `completion_ids`, as by TRL.

Several answers at once come where reward.source.max_batch_size says how many. An answer that the function fails on, or
returns None for, is an error of that answer alone, and never worth 0.
"""
import argparse
import asyncio
import importlib.util
import inspect
import json
import math
import os
import sys
import traceback


class WrongLength(ValueError):
    """The function has not said which value is whose, so that asking it again for each answer would hide a fault."""


def plain(value):
    """Lists and numbers of what NumPy and torch return."""
    value = value.tolist() if hasattr(value, "tolist") else value.item() if hasattr(value, "item") else value
    return [plain(one) for one in value] if isinstance(value, (list, tuple)) else value


def numbers(values, count, name, of_tokens=False):
    """A list of `count`: of numbers, or, with `of_tokens`, of lists of those of an answer's tokens."""
    values = plain(values)
    values = values if isinstance(values, list) else [values]
    if len(values) != count:
        raise WrongLength(f"{name} has {len(values)} values for {count} answers")
    # One in a list of its own is what tensors of the shape [batch, 1] become, but for those of answers of one token.
    return values if of_tokens else [value[0] if isinstance(value, list) and len(value) == 1 else value for value in values]


def reply_of(value):
    return {"token_rewards": value} if isinstance(value, list) else {"reward": value}


def tokens_of(function, items):
    """What the function takes of the answers' tokens, where they are told."""
    parameters = inspect.signature(function).parameters
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    names = [name for name in ("token_ids", "token_texts") if takes_all or name in parameters]
    return {name: [i[name] for i in items] for name in names if name in items[0]}


def call_openrlhf(function, items, _):
    result = function([i["query"] for i in items], [i["prompt"] for i in items], [i["label"] for i in items],
                      **tokens_of(function, items))
    result = result if isinstance(result, dict) else {"rewards": result}
    replies = [reply_of(value) for value in numbers(result["rewards"], len(items), "rewards", "token_ids" in items[0])]
    if result.get("scores") is not None:
        for reply, value in zip(replies, numbers(result["scores"], len(items), "scores")):
            reply["score"] = value
    for name, values in (result.get("extra_logs") or {}).items():
        for reply, value in zip(replies, numbers(values, len(items), f"extra_logs[{name!r}]")):
            reply.setdefault("extra_logs", {})[name] = value
    return replies


def call_trl(function, items, options):
    def texts(key, role):
        return [[{"role": role, "content": i[key]}] if options.messages else i[key] for i in items]

    names = sorted({name for i in items for name in i["row"]} - {"prompts", "completions"})
    columns = {name: [i["row"].get(name) for i in items] for name in names}
    columns["label"] = [i["label"] for i in items]
    if "token_ids" in items[0]:
        columns["completion_ids"] = [i["token_ids"] for i in items]
    columns.update(tokens_of(function, items))
    if options.label:
        columns[options.label] = columns["label"]
    parameters = inspect.signature(function).parameters
    if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        columns = {name: values for name, values in columns.items() if name in parameters}
    result = function(prompts=texts("prompt", "user"), completions=texts("response", "assistant"), **columns)
    result = asyncio.run(result) if inspect.isawaitable(result) else result
    return [reply_of(value) for value in numbers(result, len(items), "the result", "token_ids" in items[0])]


def call_verl(function, items, _):
    replies = []
    for item in items:
        result = function(data_source=item["source"], solution_str=item["response"], ground_truth=item["label"],
                          extra_info=item["row"].get("extra_info", item["row"]),
                          **{name: values[0] for name, values in tokens_of(function, [item]).items()})
        score = result["score"] if isinstance(result, dict) else result
        logs = {name: v for name, v in result.items() if name != "score"} if isinstance(result, dict) else {}
        replies.append({**reply_of(numbers([score], 1, "score", "token_ids" in item)[0]), "extra_logs": logs})
    return replies


# By the parameters that tell a form from the others.
FORMS = {"queries": call_openrlhf, "completions": call_trl, "solution_str": call_verl}


def form_of(function):
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return None
    return next((call for name, call in FORMS.items() if name in parameters), None)


def load(options):
    """The function and what calls it."""
    if not os.path.isfile(options.file):
        sys.exit(f"{options.file} is no file")
    sys.path.insert(0, os.path.dirname(os.path.abspath(options.file)))
    spec = importlib.util.spec_from_file_location("reward_functions", options.file)
    if spec is None:
        sys.exit(f"{options.file} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    # Those that it imports are not meant.
    found = {name: f for name, f in vars(module).items()
             if inspect.isfunction(f) and f.__module__ == spec.name and form_of(f) is not None}
    if options.function:
        function = getattr(module, options.function, None)
        if not callable(function):
            sys.exit(f"{options.file} has no function {options.function}; it has {', '.join(found) or 'none'}")
        if form_of(function) is None:
            sys.exit(f"{options.function}{inspect.signature(function)} has none of the parameters {', '.join(FORMS)}")
        return function, form_of(function)
    if len(found) != 1:
        what = f"several: {', '.join(found)}; name one" if found else "none"
        sys.exit(f"{options.file}: of functions with one of the parameters {', '.join(FORMS)} it has {what}")
    function = next(iter(found.values()))
    return function, form_of(function)


def answers_of(function, call, items, options):
    """A reply for each item. Where the function fails on several, each is asked for alone, so that one takes no other with it."""
    try:
        replies = call(function, items, options)
    except Exception as error:  # pylint: disable=broad-except
        traceback.print_exc()
        if len(items) > 1 and not isinstance(error, WrongLength):
            print(f"the function has failed on {len(items)} answers at once; each is asked for alone", file=sys.stderr)
            return [reply for item in items for reply in answers_of(function, call, [item], options)]
        replies = [{"error": f"{type(error).__name__}: {error}"} for _ in items]
    return [{**checked(reply), "id": item["id"]} for item, reply in zip(items, replies)]


def is_number(value):
    return isinstance(value, (bool, int, float)) and math.isfinite(value)


def checked(reply):
    """`reply` with finite numbers alone: without logs that are others, such as texts; an error where reward or score is none."""
    if "error" in reply:
        return reply
    for name in ("reward", "score"):
        if name in reply and not is_number(reply[name]):
            return {"error": f"the function has returned {reply[name]!r} as {name} of this answer, which is no number"}
    for token, value in enumerate(reply.get("token_rewards", [])):
        if not is_number(value):
            return {"error": f"the function has returned {value!r} as the reward of token {token} of this answer, which is no number"}
    return {**reply, "extra_logs": {k: v for k, v in reply.get("extra_logs", {}).items() if is_number(v)}}


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("file")
    parser.add_argument("function", nargs="?")
    parser.add_argument("--label")
    parser.add_argument("--messages", action="store_true")
    options = parser.parse_args()
    # What is read and written here is for questions and replies alone: print(), and programs that the function starts, get
    # others.
    questions, replies = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    function, call = load(options)
    for line in questions:
        asked = json.loads(line)
        said = answers_of(function, call, asked if isinstance(asked, list) else [asked], options)
        print(json.dumps(said if isinstance(asked, list) else said[0]), file=replies, flush=True)


if __name__ == "__main__":
    main()
