"""Counts test cases in the results of the last test run of each configuration; prints "N passed, N failed"."""

import glob
import sys
import xml.etree.ElementTree as ElementTree


def main():
    passed = failed = skipped = 0
    # One folder a configuration: bazel-testlogs points into the last one's; its siblings are the others'.
    results = glob.glob("bazel-out/*/testlogs/**/test.xml", recursive=True)
    for path in results:
        try:
            root = ElementTree.parse(path).getroot()
        except ElementTree.ParseError as error:
            print(f"{path}: {error}", file=sys.stderr)
            failed += 1
            continue
        for case in root.iter("testcase"):
            if case.find("failure") is not None or case.find("error") is not None:
                failed += 1
            elif case.find("skipped") is not None or case.get("status") == "notrun":
                skipped += 1
            else:
                passed += 1
    if not results:
        sys.exit("no test results found")
    if skipped:
        print(f"skipped, since this machine lacks what they need: {skipped}")
    print(f"{passed} passed, {failed} failed")


if __name__ == "__main__":
    main()
