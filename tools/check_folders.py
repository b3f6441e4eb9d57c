#!/usr/bin/env python3
"""Holds the tree's folders: each source stands in a rule of Bazel (one that stands in none is compiled by nothing, and a test of
it never run), and folders include each other one way only.

Run from the root; part of tools/check_lint.sh. Prints what does not hold; exit code 1.
"""

import collections
import os
import re
import subprocess
import sys


def lines(*command):
    return subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE).stdout.splitlines()


def sources_in_no_rule(sources):
    labels = lines("./bazelw", "query", "--ui_event_filters=-info,-stderr", "--noshow_progress",
                   "labels(srcs, //...) union labels(hdrs, //...) union labels(data, //...)")
    named = {label.removeprefix("//").replace(":", "/").lstrip("/") for label in labels}
    return [file for file in sources if file not in named]


def folders_included(sources):
    """Of each folder those whose headers it includes, with the first file that does; tests and test doubles aside."""
    included = collections.defaultdict(dict)
    known = {os.path.dirname(file) for file in sources}
    for file in sources:
        if file.endswith(("_test.cc", "_benchmark.cc")) or "/testing/" in file:
            continue
        with open(file) as text:
            for header in re.findall(r'^#include "([^"]+)"', text.read(), re.M):
                own, other = os.path.dirname(file), os.path.dirname(header)
                if other != own and other in known and "/testing" not in header:
                    included[own].setdefault(other, f"{file} includes {header}")
    return included


def circle(included):
    """Folders of which each includes the next, and the last the first; or none."""
    done = set()

    def walk(folder, path):
        if folder in path:
            return path[path.index(folder):] + [folder]
        if folder in done:
            return None
        for other in sorted(included.get(folder, {})):
            if found := walk(other, path + [folder]):
                return found
        done.add(folder)
        return None

    return next(filter(None, (walk(folder, []) for folder in sorted(included))), None)


def main():
    sources = lines("git", "ls-files", "--cached", "--others", "--exclude-standard", "*.cc", "*.h", "*.cu", "*.cuh")
    sources = [file for file in sources if os.path.exists(file)]
    lone = sources_in_no_rule(sources)
    for file in lone:
        print(f"{file}: no rule of a BUILD file has it, so that nothing compiles it")
    included = folders_included(sources)
    found = circle(included)
    if found:
        print("folders that include each other in a circle:")
        for folder, other in zip(found, found[1:]):
            print(f"  {folder} -> {other}: {included[folder][other]}")
    return 1 if lone or found else 0


if __name__ == "__main__":
    sys.exit(main())
