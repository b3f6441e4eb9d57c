#!/usr/bin/env bash
# Writes compile_commands.json, from which clangd knows how each file is compiled. Arguments: labels, default //...
# Headers that the build generates are made first; with --config=cuda before the labels, the files of that build too.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
flags=()
while [[ "${1:-}" == --* ]]; do
  flags+=("$1")
  shift
done
labels="set(${*:-//...})"
generated="$(./bazelw query --noshow_progress --ui_event_filters=-info "kind('_proto_codegen|genrule', deps(${labels})) intersect //...")"
# shellcheck disable=SC2086  # One argument a label.
./bazelw build "${flags[@]}" --ui_event_filters=-info ${generated}
actions="$(mktemp)"
trap 'rm -f "${actions}"' EXIT
./bazelw aquery "${flags[@]}" --output=jsonproto --ui_event_filters=-info \
  "mnemonic('CppCompile', deps(${labels}))" >"${actions}"
python3 - "${actions}" "$(./bazelw info output_base 2>/dev/null)" <<'PYTHON'
import json
import os
import re
import sys

actions, output_base = sys.argv[1:]
root = os.getcwd()
commands = {}
with open(actions) as file:
    for action in json.load(file)["actions"]:
        # Paths as from here: Bazel's own folders through their links, other repositories where Bazel keeps them.
        arguments = [re.sub(r"(^|=|-I)external/", rf"\1{output_base}/external/", a) for a in action["arguments"]]
        source = arguments[arguments.index("-c") + 1]
        if os.path.isabs(source):
            continue
        # A unit stands for its files (bazel/units.bzl); what else is generated is nobody's to edit.
        sources = [source]
        if source.startswith("bazel-out/"):
            if not source.endswith("_unit.cc"):
                continue
            with open(source) as unit:
                sources = re.findall(r'^#line 1 "([^"]+)"$', unit.read(), re.MULTILINE)
        # What only this compiler knows, and what the compilation writes.
        drop = {"-MD", "-fno-canonical-system-headers", "-Wunused-but-set-parameter", "-Wno-free-nonheap-object"}
        kept, skip = [], False
        for argument in arguments:
            if skip:
                skip = False
            elif argument in ("-MF", "-o"):
                skip = True
            elif argument not in drop and not argument.startswith("-frandom-seed="):
                kept.append(argument)
        for file in sources:
            if not file.startswith("bazel-out/"):
                arguments = [file if a == source else a for a in kept]
                commands.setdefault(file, {"directory": root, "file": os.path.join(root, file), "arguments": arguments})
with open("compile_commands.json", "w") as out:
    json.dump(sorted(commands.values(), key=lambda command: command["file"]), out, indent=1)
print(f"compile_commands.json: {len(commands)} files")
PYTHON
