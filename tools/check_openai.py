"""Holds the rollout's HTTP interface against the official openai package.

    bazel build //rollout
    python tools/check_openai.py --model DIR

Starts the rollout with the model on free ports and asks it everything that the package knows and docs/http.md promises;
then with a chat template that writes tools, also by the package openai-agents. Prints a line for each check and fails at
the first that does not hold. DIR is an instruction model with a chat template. What is said of stop strings and prompts is
held against the gRPC service, too. Needs openai 3.54.0, openai-agents 0.24.0 and grpcio-tools 1.85.1.
"""

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request

import agents
import grpc
import openai

KEY = "sesame"
QUESTION = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]

TOOL = {"type": "function", "function": {"name": "get_weather", "description": "The weather in a city.", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}
TEMPLATE = """\
{%- if tools %}{{ '<|im_start|>system\\nCall tools so: <tool_call>{"name": ..., "arguments": ...}</tool_call>\\n' }}
{%- for tool in tools %}{{ (tool | tojson) + '\\n' }}{% endfor %}{{ '<|im_end|>\\n' }}{% endif %}
{%- for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + (message.content or '') }}
{%- for call in message.tool_calls %}
{{- '<tool_call>{"name": "' + call.function.name + '", "arguments": ' + (call.function.arguments | tojson) + '}</tool_call>' }}
{%- endfor %}{{ '<|im_end|>\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
"""


def start(args, folder, more={}):
    key_file = os.path.join(folder, "key")
    with open(os.open(key_file, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
        file.write(KEY)
    log = open(os.path.join(folder, "log"), "w+")
    options = {
        "run_dir": folder,
        "rollout.pretrain": os.path.abspath(args.model),
        "rollout.http.listen": "127.0.0.1:0",
        "rollout.http.served_model_name": "policy",
        "rollout.http.api_key_file": key_file,
        "rollout.max_num_seqs": 16,
        "rollout.max_waiting": 16,
        **more,
    }
    process = subprocess.Popen(
        [args.binary, "--listen=127.0.0.1:0"] + [f"--set={name}={value}" for name, value in options.items()],
        stdout=log, stderr=log)
    for _ in range(1200):
        with open(log.name) as file:
            text = file.read()
        found = re.search(r"HTTP on (\S+)", text)
        serving = re.search(r"serving on ([0-9.]+:[0-9]+)", text)
        if found and serving:
            return process, f"http://{found.group(1)}", serving.group(1)
        if process.poll() is not None:
            raise SystemExit(text)
        time.sleep(0.1)
    raise SystemExit("the rollout does not start:\n" + text)


def expect(condition, *what):
    if not condition:
        raise AssertionError(what)


def expect_error(kind, param, call):
    try:
        call()
    except kind as error:
        expect(error.param == param, error.param, error.message)
        return f"{kind.__name__} {error.status_code}: {error.body['message']}"
    raise AssertionError(f"no {kind.__name__}")


def models(client):
    names = [model.id for model in client.models.list()]
    expect(names == ["policy"], names)
    expect(client.models.retrieve("policy").id == "policy")
    return names


def completion(client):
    answer = client.completions.create(model="policy", prompt="The capital of France is", max_tokens=8, temperature=0)
    choice = answer.choices[0]
    expect(choice.finish_reason == "length" and answer.usage.completion_tokens == 8, answer)
    expect(answer.usage.total_tokens == answer.usage.prompt_tokens + 8, answer.usage)
    expect(choice.text.startswith(" "), choice.text)  # it goes on from the prompt
    return choice.text


def batch(client):
    prompts = ["1 2 3", "a b c"]
    both = client.completions.create(model="policy", prompt=prompts, n=2, max_tokens=5, seed=1)
    expect([choice.index for choice in both.choices] == [0, 1, 2, 3], both)
    one = client.completions.create(model="policy", prompt=prompts, n=2, max_tokens=5, seed=1)
    expect([c.text for c in one.choices] == [c.text for c in both.choices], "a seed does not repeat")
    expect(len({choice.text for choice in both.choices}) > 2, "samples are alike")
    ids = client.completions.create(model="policy", prompt=[504, 3575, 282, 4649], max_tokens=4)
    expect(ids.usage.prompt_tokens == 4, ids.usage)
    return [choice.text for choice in both.choices]


def completion_stream(client):
    ask = dict(model="policy", prompt="Once upon a time", max_tokens=24, temperature=0)
    whole = client.completions.create(**ask).choices[0].text
    parts = [part.choices[0].text for part in client.completions.create(**ask, stream=True)]
    expect("".join(parts) == whole, parts, whole)
    expect(len(parts) > 10, parts)
    return f"{len(parts)} parts"


def completion_logprobs(client):
    answer = client.completions.create(model="policy", prompt="The sun rises in the", max_tokens=6, temperature=0, logprobs=3)
    told = answer.choices[0].logprobs
    expect("".join(told.tokens) == answer.choices[0].text, told.tokens, answer.choices[0].text)
    for token, logprob, top, offset in zip(told.tokens, told.token_logprobs, told.top_logprobs, told.text_offset):
        expect(len(top) == 3 and max(top.values()) == top[token] == logprob <= 0, token, top)
        expect(answer.choices[0].text[offset:].startswith(token), offset, token)
    return list(zip(told.tokens, told.token_logprobs))[:2]


def echo(client):
    prompt = "The sun rises in the east and sets in the west."
    ask = dict(model="policy", prompt=prompt, temperature=0, echo=True, extra_body={"add_special_tokens": False})
    plain = client.completions.create(**ask, max_tokens=4).choices[0]
    expect(plain.text.startswith(prompt) and len(plain.text) > len(prompt), plain)
    alone = client.completions.create(**ask, max_tokens=0, logprobs=3).choices[0]
    told = alone.logprobs
    expect(alone.text == prompt == "".join(told.tokens), alone)
    expect(told.token_logprobs[0] is None and told.top_logprobs[0] is None, told)
    for token, logprob, top, offset in list(zip(told.tokens, told.token_logprobs, told.top_logprobs, told.text_offset))[1:]:
        expect(3 <= len(top) <= 4 and top[token] == logprob <= max(top.values()) <= 0, token, top)
        expect(prompt[offset:].startswith(token), offset, token)
    # What the model would say itself is the likeliest; the same again, though the cache holds the prompt now.
    more = client.completions.create(**ask, max_tokens=5, logprobs=3).choices[0]
    again = client.completions.create(**dict(ask, prompt=more.text), max_tokens=1, logprobs=0).choices[0]
    parts = [part.choices[0] for part in client.completions.create(**ask, max_tokens=5, logprobs=3, stream=True)]
    expect(parts[0].text.startswith(prompt) and "".join(part.text for part in parts) == more.text, parts)
    streamed = [value for part in parts if part.logprobs for value in part.logprobs.token_logprobs]
    expect(streamed[0] is None and len(streamed) == len(more.logprobs.token_logprobs), parts)
    for one, other in zip(streamed[1:], more.logprobs.token_logprobs[1:]):
        expect(abs(one - other) < 1e-5, streamed, more.logprobs)
    count = len(told.tokens)
    expect(more.logprobs.token_logprobs[:count] == told.token_logprobs, more.logprobs)
    for said, scored in zip(more.logprobs.token_logprobs[count:], again.logprobs.token_logprobs[count:]):
        expect(abs(said - scored) < 0.02, more.logprobs, again.logprobs)
    return f"{sum(told.token_logprobs[1:]):.3f} for {prompt!r}"


def chat(client):
    answer = client.chat.completions.create(model="policy", messages=QUESTION, temperature=0, max_completion_tokens=40)
    message = answer.choices[0].message
    expect(message.role == "assistant" and "Paris" in message.content, answer)
    expect(answer.choices[0].finish_reason == "stop", answer)
    expect("<|" not in message.content, message.content)
    return message.content


def chat_samples(client):
    answer = client.chat.completions.create(model="policy", messages=QUESTION, n=2, max_tokens=20, seed=7)
    texts = [choice.message.content for choice in answer.choices]
    expect(len(set(texts)) == 2, texts)
    return texts


def chat_stream(client):
    ask = dict(model="policy", messages=QUESTION + [{"role": "assistant", "content": "Paris, mon ami 😀."},
                                                    {"role": "user", "content": "Say it in Chinese and with emojis."}],
               seed=3, max_tokens=60)
    whole = client.chat.completions.create(**ask)
    text, usage, reasons, roles = "", None, [], []
    for part in client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}):
        for choice in part.choices:
            text += choice.delta.content or ""
            roles.append(choice.delta.role)
            reasons.append(choice.finish_reason)
        usage = part.usage
    expect(text == whole.choices[0].message.content, text, whole)
    expect(usage == whole.usage, usage, whole.usage)
    expect(reasons[-1] == whole.choices[0].finish_reason and not any(reasons[:-1]), reasons)
    expect(roles[0] == "assistant" and not any(roles[1:]), roles)
    return text


def chat_logprobs(client):
    ask = dict(model="policy", messages=QUESTION, temperature=0, max_tokens=5, logprobs=True, top_logprobs=2)
    answer = client.chat.completions.create(**ask)
    told = answer.choices[0].logprobs.content
    expect(len(told) == 5, told)
    for token in told:
        expect(token.top_logprobs[0].token == token.token and len(token.top_logprobs) == 2, token)
        expect(bytes(token.bytes).decode() == token.token, token)
    streamed = []
    for part in client.chat.completions.create(**ask, stream=True):
        streamed += part.choices[0].logprobs.content if part.choices[0].logprobs else []
    expect([token.token for token in streamed] == [token.token for token in told], streamed)
    return [(token.token, token.logprob) for token in told[:2]]


def stop(client):
    ask = dict(model="policy", prompt="1, 2, 3, 4,", max_tokens=30, temperature=0)
    full = client.completions.create(**ask).choices[0].text
    cut = full[8:11]
    choice = client.completions.create(**ask, stop=["never there", cut]).choices[0]
    expect(choice.text == full[: full.index(cut)] and choice.finish_reason == "stop", choice, full)
    streamed = "".join(part.choices[0].text for part in client.completions.create(**ask, stop=cut, stream=True))
    expect(streamed == choice.text, streamed, choice.text)
    return f"{full!r} up to {cut!r}: {choice.text!r}"


def stop_lines(client):
    """A stop string that is a token of its own, or spread over some."""
    ask = dict(model="policy", prompt="The capital of France is", temperature=0, max_tokens=24)
    full = client.completions.create(**ask).choices[0].text
    expect("\n\n" in full, full)
    for end in ["\n\n", full[full.index("\n\n") - 2:][:5]]:
        choice = client.completions.create(**ask, stop=[end]).choices[0]
        expect(choice.text == full[: full.index(end)] and choice.finish_reason == "stop", choice, full)
        expect(choice.model_extra["stop_reason"] == end, choice)
        parts = [part.choices[0].text for part in client.completions.create(**ask, stop=[end], stream=True)]
        expect("".join(parts) == choice.text, parts)
    return repr(choice.text)


def over_grpc(client, address):
    """Stop strings, and a prompt's own log-probabilities, through the service that the orchestrator uses."""
    sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
    messages, services = grpc.protos_and_services("proto/rollout.proto")
    prompt, end = [504, 3575, 282, 4649, 314], "\n\n"
    sampling = messages.SamplingParams(temperature=0, top_p=1, n_samples=1, max_new_tokens=24, stop=[end], prompt_logprobs=0)
    header = messages.GenerateHeader(num_items=1, sampling=sampling)
    requests = [messages.GenerateRequest(header=header), messages.GenerateRequest(item=messages.Prompt(ids=prompt))]
    with grpc.insecure_channel(address) as channel:
        replies = list(services.RolloutStub(channel).Generate(iter(requests), timeout=60))
    expect(len(replies) == 1, replies)
    sequence = replies[0].sequence
    answer = client.completions.create(model="policy", prompt=prompt, max_tokens=24, temperature=0, stop=end, echo=True,
                                       logprobs=0)
    told = answer.choices[0].logprobs.token_logprobs
    expect(sequence.stop_string == end == answer.choices[0].model_extra["stop_reason"], sequence, answer)
    expect(sequence.finish_reason == messages.GeneratedSequence.STOP, sequence)
    expect(len(sequence.log_probs) == answer.usage.completion_tokens < 24, sequence, answer)
    expect(len(sequence.prompt_log_probs) == len(prompt) - 1, sequence)
    for one, other in zip(list(sequence.prompt_log_probs) + list(sequence.log_probs), told[1:]):
        expect(abs(one - other) < 1e-5, sequence, told)
    return f"{len(sequence.log_probs)} tokens to {end!r}"


def extras(client):
    ask = dict(model="policy", prompt="Hello", max_tokens=6)
    greedy = client.completions.create(**ask, temperature=0).choices[0].text
    only_best = client.completions.create(**ask, extra_body={"top_k": 1}).choices[0].text
    expect(only_best == greedy, only_best, greedy)
    expect(client.completions.create(**ask, extra_body={"min_p": 1.0}).choices[0].text == greedy)
    forced = client.completions.create(**ask, temperature=0, logit_bias={"504": 100}).choices[0].text
    expect(forced != greedy and len(set(forced.split())) == 1, forced)
    ended = client.completions.create(**ask, logit_bias={"504": 100}, extra_body={"stop_token_ids": [504]})
    expect(ended.choices[0].finish_reason == "stop" and ended.choices[0].text == "", ended)
    expect(ended.choices[0].stop_reason == 504, ended)
    later = client.completions.create(**ask, logit_bias={"504": 100}, extra_body={"stop_token_ids": [504], "min_tokens": 3})
    expect(later.usage.completion_tokens > 3, later.usage)
    client.completions.create(**ask, presence_penalty=1, frequency_penalty=1,
                              extra_body={"repetition_penalty": 1.2, "ignore_eos": True})
    return forced


def errors(client, url):
    told = [
        expect_error(openai.BadRequestError, "temperature",
                     lambda: client.completions.create(model="policy", prompt="a", temperature=-1)),
        expect_error(openai.BadRequestError, "response_format",
                     lambda: client.chat.completions.create(model="policy", messages=QUESTION,
                                                            response_format={"type": "json_object"})),
        expect_error(openai.BadRequestError, "max_tokens",
                     lambda: client.completions.create(model="policy", prompt="a", max_tokens=10**6, stream=True)),
        expect_error(openai.BadRequestError, "best_of",
                     lambda: client.completions.create(model="policy", prompt="a", n=2, best_of=3)),
        expect_error(openai.NotFoundError, None, lambda: client.completions.create(model="gpt-5", prompt="a")),
        expect_error(openai.NotFoundError, None, lambda: client.models.retrieve("gpt-5")),
        expect_error(openai.AuthenticationError, None,
                     lambda: openai.OpenAI(base_url=url + "/v1", api_key="guess").models.list()),
    ]
    full = client.completions.create(model="policy", prompt="a", n=32, max_tokens=500, stream=True,
                                     extra_body={"ignore_eos": True})
    next(iter(full))
    told.append(expect_error(openai.RateLimitError, None,
                             lambda: client.with_options(max_retries=0).completions.create(model="policy", prompt="a")))
    full.close()
    return "\n    " + "\n    ".join(told)


def leaving(client, url):
    """A stream that is closed early frees its place."""
    stream = client.completions.create(model="policy", prompt="a", n=16, max_tokens=1000, stream=True,
                                       extra_body={"ignore_eos": True})
    next(iter(stream))
    stream.close()
    request = urllib.request.Request(url + "/metrics", headers={"Authorization": f"Bearer {KEY}"})
    for _ in range(100):
        metrics = dict(line.rsplit(" ", 1) for line in urllib.request.urlopen(request).read().decode().splitlines()
                       if not line.startswith("#"))
        if float(metrics['quartet_num_requests_running{model_name="policy"}']) == 0:
            generated = metrics['quartet_generation_tokens_total{model_name="policy"}']
            expect(float(metrics['quartet_kv_cache_usage_perc{model_name="policy"}']) == 0, metrics)
            return f"{generated} tokens generated in all"
        time.sleep(0.1)
    raise AssertionError("it still runs")


def at_once(url):
    async def ask_all():
        async with openai.AsyncOpenAI(base_url=url + "/v1", api_key=KEY) as client:
            return await asyncio.gather(*(
                client.chat.completions.create(model="policy", messages=[{"role": "user", "content": f"Count to {i}."}],
                                               max_tokens=16, temperature=0) for i in range(12)))

    answers = asyncio.run(ask_all())
    expect(len({answer.id for answer in answers}) == 12)
    return f"{sum(answer.usage.completion_tokens for answer in answers)} tokens"


def about_weather(*cities):
    """Messages that a small model goes on with in kind: with a call, then with its result."""
    messages = []
    for number, city in enumerate(cities):
        call = {"id": f"weather0{number}", "type": "function",
                "function": {"name": "get_weather", "arguments": f'{{"city": "{city}"}}'}}
        messages += [{"role": "user", "content": f"What is the weather in {city}?"},
                     {"role": "assistant", "content": None, "tool_calls": [call]},
                     {"role": "tool", "tool_call_id": call["id"], "content": "sunny"},
                     {"role": "assistant", "content": f"It is sunny in {city}."}]
    return messages


def tools(client):
    """A call, whole and in a stream, and the answer to its result."""
    ask = dict(model="policy", messages=about_weather("Paris", "Berlin", "Madrid")
               + [{"role": "user", "content": "What is the weather in Rome?"}], tools=[TOOL], temperature=0, max_tokens=60)
    choice = client.chat.completions.create(**ask).choices[0]
    expect(choice.finish_reason == "tool_calls" and choice.message.content is None, choice)
    [call] = choice.message.tool_calls
    expect(call.function.name == "get_weather" and json.loads(call.function.arguments) == {"city": "Rome"}, call)
    with client.chat.completions.stream(**ask) as stream:
        kinds = {event.type for event in stream}
        streamed = stream.get_final_completion().choices[0]
    expect("tool_calls.function.arguments.done" in kinds, kinds)
    expect(streamed.finish_reason == "tool_calls", streamed)
    expect(streamed.message.tool_calls[0].function.arguments == call.function.arguments, streamed)
    result = {"role": "tool", "tool_call_id": call.id, "content": "rainy"}
    said = client.chat.completions.create(**dict(ask, messages=ask["messages"] + [choice.message, result])).choices[0]
    expect("Rome" in said.message.content and said.finish_reason == "stop", said)
    text = client.chat.completions.create(**ask, tool_choice="none").choices[0]
    expect(text.message.content.startswith("<tool_call>") and not text.message.tool_calls, text)
    told = expect_error(openai.BadRequestError, "tool_choice",
                        lambda: client.chat.completions.create(**ask, tool_choice="required"))
    return f"{call.function.arguments}, {said.message.content!r}\n    {told}"


def tools_by_agent(url):
    asked = []

    @agents.function_tool
    def get_weather(city: str) -> str:
        """The weather in a city."""
        asked.append(city)
        return "rainy"

    async def run():
        async with openai.AsyncOpenAI(base_url=url + "/v1", api_key=KEY) as client:
            agent = agents.Agent(
                name="weather", tools=[get_weather], model_settings=agents.ModelSettings(temperature=0, max_tokens=60),
                model=agents.OpenAIChatCompletionsModel(model="policy", openai_client=client))
            history = []
            for message in about_weather("Paris", "Berlin", "Madrid"):
                if message["role"] == "tool":
                    history.append({"type": "function_call_output", "call_id": message["tool_call_id"],
                                    "output": message["content"]})
                elif message.get("tool_calls"):
                    [call] = message["tool_calls"]
                    history.append({"type": "function_call", "call_id": call["id"], **call["function"]})
                else:
                    history.append(message)
            question = {"role": "user", "content": "What is the weather in Rome?"}
            whole = await agents.Runner.run(agent, history + [question], max_turns=3)
            streamed = agents.Runner.run_streamed(agent, history + [question], max_turns=3)
            async for _ in streamed.stream_events():
                pass
            return whole.final_output, streamed.final_output

    agents.set_tracing_disabled(True)
    whole, streamed = asyncio.run(run())
    expect(asked == ["Rome", "Rome"] and "Rome" in whole and streamed == whole, asked, whole, streamed)
    return whole


def check_tools(args):
    with tempfile.TemporaryDirectory() as folder:
        template = os.path.join(folder, "tools.jinja")
        with open(template, "w") as file:
            file.write(TEMPLATE)
        process, url, _ = start(args, folder, {"data.tokenizer_chat_template": template})
        try:
            client = openai.OpenAI(base_url=url + "/v1", api_key=KEY)
            print(f"tools: {tools(client)}", flush=True)
            print(f"tools_by_agent: {tools_by_agent(url)}", flush=True)
        finally:
            process.terminate()
            process.wait()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--binary", default="bazel-bin/rollout/rollout")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        process, url, address = start(args, folder)
        try:
            client = openai.OpenAI(base_url=url + "/v1", api_key=KEY)
            checks = [models, completion, batch, completion_stream, completion_logprobs, echo, chat, chat_samples,
                      chat_stream, chat_logprobs, stop, stop_lines, extras]
            for check in checks:
                print(f"{check.__name__}: {check(client)}", flush=True)
            print(f"over_grpc: {over_grpc(client, address)}", flush=True)
            print(f"errors: {errors(client, url)}", flush=True)
            print(f"leaving: {leaving(client, url)}", flush=True)
            print(f"at_once: {at_once(url)}", flush=True)
        finally:
            process.terminate()
            process.wait()
    check_tools(args)
    print(f"all hold (openai {openai.__version__})")


if __name__ == "__main__":
    main()
