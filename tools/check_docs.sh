#!/usr/bin/env bash
# Fails where a document names a file, a folder or a test (`path_test.cc`: `Name`) of the project that is not there, or links
# to nothing, where the README.md of a folder names a source file alone that is neither in it nor below, and where a folder of
# more than five files has no README.md.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
git ls-files '*.md' ':!:third_party' | python3 -c '
import glob, os, re, sys
top = {entry for entry in os.listdir(".") if os.path.isdir(entry) and not entry.startswith((".", "bazel-"))}
bad = 0
for document in sys.stdin.read().split():
    folder = os.path.dirname(document)
    text = open(document).read()
    named = set()
    for path in re.findall(r"`([\w./-]+)`", text):
        # A path from the root begins with a folder of the root, and names a folder or a file with an ending.
        if path.split("/")[0] in top and "/" in path and (path.endswith("/") or re.search(r"\.\w+$", path)):
            named.add(path)
    if document.endswith("/README.md"):
        for path in set(re.findall(r"`([\w-]+(?:/[\w-]+)?\.(?:cc|h|cu|proto))`", text)):
            if not os.path.exists(path) and not glob.glob(f"{folder}/**/{path}", recursive=True):
                named.add(os.path.join(folder, path))
    for link in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", text):
        named.add(os.path.normpath(os.path.join(folder, link)))
    for path, test in re.findall(r"`([\w./]+_test\.cc)`: `(\w+)`", text):
        if os.path.exists(path) and not re.search(rf"^(TYPED_)?TEST\w*\(\w+, {test}\)", open(path).read(), re.MULTILINE):
            print(f"{document}: {path} has no test {test}")
            bad = 1
    for path in sorted(named):
        if not os.path.exists(path):
            print(f"{document}: names {path}, which is not there")
            bad = 1
sys.exit(bad)'
# Documents, and data of tests, need no guide.
git ls-files | python3 -c '
import collections, os, re, sys
files = collections.defaultdict(set)
for path in sys.stdin.read().splitlines():
    files[os.path.dirname(path)].add(os.path.basename(path))
missing = [folder for folder, names in sorted(files.items())
           if len(names) > 5 and "README.md" not in names and not re.search(r"^docs$|(^|/)testdata(/|$)", folder)]
for folder in missing:
    print(f"{folder} has {len(files[folder])} files and no README.md")
sys.exit(bool(missing))'
