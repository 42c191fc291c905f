"""Runs the tests of other libraries against prologue_attention.compat, and prints a table.

    python python/peer_tests/run.py FOLDER [PEER ..] [--cpu] [--jobs N] [--shards N] [--sample N [--first I]] [--json FILE]

FOLDER/PEER is a checkout of that library, or the part of one that has the tests and what they import from their own folder; this
repository contains none of it. Every file test_*.py below FOLDER/PEER/tests (or FOLDER/PEER/test) is run with pytest; what it imports of
the library itself comes from the shim, shims/PEER.py. Peers: the names of the shims.
"""

import argparse
import collections
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Dict, List, NamedTuple

HERE = Path(__file__).resolve().parent
PEERS = sorted(path.stem for path in (HERE / "shims").glob("[a-z]*.py"))


class Part(NamedTuple):
    """One process: a shard of a file."""

    peer: str
    file: Path
    shard: int
    result: Path
    log: Path


def find(folder: Path, peers: List[str]) -> Dict[str, List[Path]]:
    found = {}
    for peer in peers:
        files = [file for name in ("tests", "test") for file in sorted((folder / peer / name).rglob("test_*.py"))]
        if files:
            found[peer] = files
    return found


def start(part: Part, folder: Path, options: argparse.Namespace) -> subprocess.Popen:
    environment = dict(
        os.environ,
        PROLOGUE_PEER=part.peer,
        PROLOGUE_PEER_FOLDER=str(folder / part.peer),
        PROLOGUE_PEER_RESULT=str(part.result),
        PROLOGUE_PEER_SHARD=f"{part.shard}/{options.sample or options.shards}",
        PROLOGUE_PEER_REVERSE="1" if options.reverse else "",
        PROLOGUE_PEER_ON_CPU="1" if options.cpu else "",
        PYTHONPATH=os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]),
    )
    command = [
        sys.executable, "-m", "pytest", "-q", "-p", "peer_plugin", "-p", "no:cacheprovider", "--noconftest", "-c", str(HERE / "pytest.ini"),
        "--rootdir", str(folder / part.peer), "--tb=short", "--maxfail=200", str(part.file),
    ]  # fmt: skip
    return subprocess.Popen(command, env=environment, stdout=open(part.log, "w"), stderr=subprocess.STDOUT, cwd=str(folder / part.peer))


def run(parts: List[Part], folder: Path, options: argparse.Namespace) -> Dict[Part, str]:
    """Runs the parts, options.jobs at once. Returns what stopped a process that did not end by itself."""
    waiting, running, stopped = list(parts), {}, {}
    begin = time.monotonic()
    while waiting or running:
        while waiting and len(running) < options.jobs:
            part = waiting.pop(0)
            running[part] = start(part, folder, options), time.monotonic()
        for part, (process, since) in list(running.items()):
            late = max(time.monotonic() - since - options.timeout, time.monotonic() - begin - options.total)
            if process.poll() is None and late > 0:
                if part not in stopped:
                    stopped[part] = "time limit"
                    process.terminate()  # peer_plugin.py writes its counts
                elif late > 5:
                    process.kill()
            if process.poll() is not None:
                if process.returncode not in (0, 1, 2, 5) and part not in stopped:
                    stopped[part] = f"the process ended with {process.returncode}"
                del running[part]
        if time.monotonic() - begin > options.total and waiting:
            stopped.update({part: "time limit" for part in waiting})
            waiting = []
        time.sleep(0.1)
    return stopped


def add(parts: List[Part], stopped: Dict[Part, str]) -> Dict[str, dict]:
    """The counts of each file."""
    table: Dict[str, dict] = {}
    for part in parts:
        name = f"{part.peer}: {part.file.name}"
        row = table.setdefault(name, {"tests": 0, "passed": 0, "skipped": 0, "failed": 0, "not run": 0, "reasons": collections.Counter()})
        got = json.loads(part.result.read_text()) if part.result.exists() else {"tests": 0, "counts": {}, "reasons": []}
        row["tests"] += got["tests"]
        for outcome, count in got["counts"].items():
            row[outcome] += count
        rest = got["tests"] - sum(got["counts"].values())
        if rest > 0:
            row["not run"] += rest
            row["reasons"][("not run", "", stopped.get(part, "pytest stopped: see the log"))] += rest
        elif part in stopped:
            row["reasons"][("", "", f"{stopped[part]}: see the log")] += 1
        for outcome, test, reason, count in got["reasons"]:
            row["reasons"][(outcome, test, reason)] += count
    for row in table.values():
        row["reasons"] = [[*key, count] for key, count in row["reasons"].most_common()]
    return table


def show(table: Dict[str, dict]) -> str:
    lines = ["| tests | cases | passed | skipped | failed | not run |", "| --- | --- | --- | --- | --- | --- |"]
    for name, row in table.items():
        lines.append(f"| {name} | {row['tests']} | {row['passed']} | {row['skipped']} | {row['failed']} | {row['not run']} |")
    lines += ["", "| not passed | how | cases | reason |", "| --- | --- | --- | --- |"]
    for name, row in table.items():
        for outcome, test, reason, count in row["reasons"]:
            lines.append(f"| {name} {test} | {outcome} | {count} | {reason.replace('|', '/')} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("peers", nargs="*", help=f"of {', '.join(PEERS)}; all that FOLDER has if none is given")
    parser.add_argument("--cpu", action="store_true", help="tests that ask for a CUDA device get the CPU (slow; some cannot run there)")
    parser.add_argument("--jobs", type=int, default=1, help="processes at once")
    parser.add_argument("--shards", type=int, default=1, help="processes for each file")
    parser.add_argument("--sample", type=int, default=0, help="every Nth case; if N is prime, the cases differ in all parameters; with shards: so many cases of N")
    parser.add_argument("--first", type=int, default=0, help="with --sample N: cases I, I + 1, .. of every N, and not 0, 1, ..")
    parser.add_argument("--reverse", action="store_true", help="the last case first: after a run that a time limit cut off")
    parser.add_argument("--timeout", type=float, default=3600, help="seconds for each process")
    parser.add_argument("--total", type=float, default=1e9, help="seconds for all")
    parser.add_argument("--files", default="", help="only files whose path contains this")
    parser.add_argument("--json", type=Path, help="the table, as JSON")
    parser.add_argument("--logs", type=Path, help="where pytest's output goes; a new folder if it is not given")
    options = parser.parse_args()
    unknown = [peer for peer in options.peers if peer not in PEERS]
    if unknown:
        parser.error(f"unknown peer {unknown[0]}: there are {', '.join(PEERS)}")
    shards = min(options.shards, options.sample or options.shards)
    if not 0 <= options.first <= options.sample - shards and options.first != 0:
        parser.error(f"--first is {options.first}: with --sample {options.sample} and --shards {shards} it must be 0 to {max(0, options.sample - shards)}")
    folder = options.folder.resolve()
    found = find(folder, options.peers or PEERS)
    if not found:
        parser.error(f"{folder} has no PEER/tests/test_*.py for any of {', '.join(options.peers or PEERS)}")
    logs = options.logs or Path(tempfile.mkdtemp(prefix="peer_tests_"))
    logs.mkdir(parents=True, exist_ok=True)
    parts = []
    for peer, files in found.items():
        for file in files:
            if options.files in str(file):
                for shard in range(options.first, options.first + shards):
                    name = f"{peer}_{file.stem}_{shard}"
                    parts.append(Part(peer, file, shard, logs.resolve() / f"{name}.json", logs.resolve() / f"{name}.log"))
    table = add(parts, run(parts, folder, options))
    text = show(table)
    print(text)
    print(f"\nThe output of pytest is in {logs}", file=sys.stderr)
    if options.json:
        options.json.write_text(json.dumps(table, indent=1) + "\n")
    return 1 if any(row["failed"] or row["not run"] or not row["tests"] for row in table.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
