"""The pytest plugin that run.py loads: installs the shim of the peer, takes this process's share of the cases, skips what the shim lists
with its reason, and counts."""

import collections
import importlib
import json
import os
import re
import signal
import sys
import time

import pytest

FOLDER = os.environ["PROLOGUE_PEER_FOLDER"]
RESULT = os.environ["PROLOGUE_PEER_RESULT"]
SHARD, SHARDS = map(int, os.environ["PROLOGUE_PEER_SHARD"].split("/"))

if os.environ["PROLOGUE_PEER_ON_CPU"]:
    import on_cpu

    on_cpu.install()
sys.path.insert(0, FOLDER)  # the tests' own helpers: "tests.utils" and the like
shim = importlib.import_module(f"shims.{os.environ['PROLOGUE_PEER']}")
shim.install(FOLDER)
# Fixtures of the peer's conftest.py that its tests use.
globals().update(getattr(shim, "FIXTURES", {}))

counts: collections.Counter = collections.Counter()
reasons: collections.Counter = collections.Counter()
state = {"tests": 0, "written": 0.0}


def write() -> None:
    got = {"tests": state["tests"], "counts": counts, "reasons": [[*key, count] for key, count in reasons.items()]}
    with open(RESULT + ".new", "w") as file:
        json.dump(got, file)
    os.replace(RESULT + ".new", RESULT)
    state["written"] = time.monotonic()


def stop(number, frame):
    """The time limit of run.py: what was counted is kept."""
    write()
    os._exit(128 + number)


signal.signal(signal.SIGTERM, stop)


def pytest_collection_modifyitems(config, items):
    mine = [item for i, item in enumerate(items) if i % SHARDS == SHARD]
    items[:] = mine[::-1] if os.environ["PROLOGUE_PEER_REVERSE"] else mine
    for item in items:
        for pattern, reason in shim.SKIPPED:
            if re.search(pattern, item.name):
                item.add_marker(pytest.mark.skip(reason=reason))
                break
    state["tests"] = len(items)
    write()


def reason_of(report) -> str:
    if report.skipped:
        text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        return text.removeprefix("Skipped: ").strip()
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash is not None else str(report.longrepr)
    text = next((line for line in text.splitlines() if line.strip()), "")
    return re.sub(r"\d+(\.\d+)?(e[+-]?\d+)?", "N", text)[:160]  # cases that differ in their numbers are one group


def pytest_runtest_logreport(report):
    if report.when == "call" or (report.when == "setup" and not report.passed):
        outcome = report.outcome
        counts[outcome] += 1
        if outcome != "passed":
            reasons[(outcome, report.nodeid.split("::")[-1].split("[")[0], reason_of(report))] += 1
    if time.monotonic() - state["written"] > 2:
        write()


def pytest_runtest_teardown(item):
    """Several processes share the GPU: none keeps more than it needs."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized() and torch.cuda.memory_reserved() > 8 << 30:
        torch.cuda.empty_cache()


def pytest_collectreport(report):
    if report.failed:
        state["tests"] += 1
        counts["failed"] += 1
        lines = [line for line in str(report.longrepr).splitlines() if line.startswith("E ")]
        reasons[("failed", "(import)", (lines[-1][2:].strip() if lines else str(report.longrepr))[:160])] += 1
        write()


def pytest_sessionfinish(session, exitstatus):
    write()
