#!/usr/bin/env python3
"""Passes on what ctest prints, but for its list of tests that did not run: before the summary it says how many were skipped, and why.

    ctest --output-junit FILE ... 2>&1 | scripts/ctest_summary.py FILE [OTHER]

OTHER, if it exists, is what tests printed that are none of ctest's: it, too, is shown before the summary.

The reasons are those that the tests gave: GoogleTest's "Skipped" with the line after it, or "skipped: REASON" of a Python test.
"""
import collections
import os
import re
import sys
import xml.etree.ElementTree as ElementTree


def reason_of(case):
    output = case.findtext("system-out") or ""
    match = re.search(r": Skipped\n(.+)", output) or re.search(r"^skipped: (.+)", output, re.MULTILINE)
    if match:
        return match[1].strip()
    skipped = case.find("skipped")
    return (skipped.get("message") if skipped is not None else "") or "no reason given"


def overview(path):
    """The lines about the skipped tests; none if all ran."""
    cases = ElementTree.parse(path).getroot().findall("testcase")
    skipped = [case for case in cases if case.get("status") in ("notrun", "disabled") or case.find("skipped") is not None]
    if not skipped:
        return []
    reasons = collections.Counter(reason_of(case) for case in skipped)
    return [f"Skipped: {len(skipped)} of {len(cases)} tests"] + [f"{count:6d}  {reason}" for reason, count in reasons.most_common()]


def main(arguments):
    if len(arguments) not in (1, 2):
        sys.exit(__doc__)
    summary = []  # of ctest, from its first line on
    in_list = False
    for line in sys.stdin:
        if not summary and not re.match(r"\d+% tests passed", line):
            print(line, end="", flush=True)
            continue
        if line.startswith("The following tests did not run:"):
            in_list = True
            while summary[-1] == "\n":
                summary.pop()
        elif not (in_list and line.startswith("\t")):
            in_list = False
            summary.append(line)
    if len(arguments) == 2 and os.path.exists(arguments[1]):
        with open(arguments[1], errors="replace") as other:
            print(other.read(), flush=True)
    try:
        lines = overview(arguments[0])
    except (OSError, ElementTree.ParseError) as error:
        lines = [f"ctest_summary.py: {arguments[0]} does not say what was skipped: {error}"]
    if lines:
        print("\n".join(lines), end="\n\n")
    print("".join(summary).rstrip("\n"), flush=True)


main(sys.argv[1:])
