"""Counts test cases in what Bazel tells of test runs; prints "N passed, N failed".

usage: count_test_cases.py EVENTS...    (each written by `bazel test --build_event_json_file=EVENTS`)

Counted are the tests of those runs alone, whatever results of other runs lie about. A test that could not be built, or
that ended without a result, counts as a failed case.
"""

import json
import sys
import urllib.parse
import xml.etree.ElementTree as ElementTree


def cases(path):
    """(passed, failed, skipped) of one test.xml."""
    passed = failed = skipped = 0
    try:
        root = ElementTree.parse(path).getroot()
    except (OSError, ElementTree.ParseError) as error:
        print(f"{path}: {error}", file=sys.stderr)
        return 0, 1, 0
    for case in root.iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            failed += 1
        elif case.find("skipped") is not None or case.get("status") == "notrun":
            skipped += 1
        else:
            passed += 1
    return passed, failed, skipped


def count(events):
    """(passed, failed, skipped) of one run."""
    totals = [0, 0, 0]
    awaited, ended, finished = set(), set(), False
    with open(events, encoding="utf-8") as lines:
        for line in lines:
            event = json.loads(line)
            kind, identity = next(iter(event["id"].items()))
            if kind == "targetConfigured" and "testSize" in event.get("configured", {}):
                awaited.add(identity["label"])
            elif kind == "targetCompleted" and event.get("aborted", {}).get("reason") == "SKIPPED":
                awaited.discard(identity["label"])  # not for this configuration
            elif kind == "testResult":
                ended.add(identity["label"])
                outputs = {output["name"]: output["uri"] for output in event["testResult"].get("testActionOutput", [])}
                path = urllib.parse.unquote(urllib.parse.urlparse(outputs.get("test.xml", "")).path)
                found = cases(path) if path else (0, 1, 0)
                # A program that died after its last case has written no failure.
                if event["testResult"]["status"] != "PASSED" and found[1] == 0:
                    found = (found[0], 1, found[2])
                totals = [a + b for a, b in zip(totals, found)]
            elif kind == "buildFinished":
                finished = True
    for label in sorted(awaited - ended):
        print(f"{events}: {label} has no result", file=sys.stderr)
        totals[1] += 1
    if not finished or not awaited:
        sys.exit(f"{events}: the run did not end, or had no test")
    return totals


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    passed, failed, skipped = (sum(counts) for counts in zip(*map(count, sys.argv[1:])))
    if skipped:
        print(f"skipped, since this machine lacks what they need: {skipped}")
    print(f"{passed} passed, {failed} failed")


if __name__ == "__main__":
    main()
