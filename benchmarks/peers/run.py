#!/usr/bin/env python3
"""Runs the workloads of bench_engine with other engines, one after another beside ours, and prints one table:

    benchmarks/peers/run.py --model FILE.gguf --peer llama.cpp
    benchmarks/peers/run.py --model FILE.gguf --peer vllm --peer sglang --model-of vllm=DIRECTORY --model-of sglang=DIRECTORY

first-token   a prompt of 32 tokens, until its first token
prefill       16 prompts of 512 tokens at once
decode        batches of sequences of --context tokens on average
throughput    --requests requests of 100 to 1024 tokens in and out, all at once (mini-sglang's benchmark); 16 of them one at a time

Prompts, numbers of tokens and temperatures are those of bench_engine; end tokens are ignored, and no prefix is used twice. Times of a peer are
those of calls of its public Python interface, so they include what it does on the host. A decode step is the time of a call less that of a call
for the first tokens alone, divided by the tokens between; bench_engine measures steps. Loading is not counted. What a peer cannot do is left out
of its column. "x" is how many times as fast ours is.

A peer is a file NAME_peer.py beside this one, or on PYTHONPATH (measure.py says what it contains).
"""
import argparse
import datetime
import glob
import importlib
import importlib.util
import json
import os
import shlex
import subprocess
import sys
import tempfile

FOLDER = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(FOLDER))
SECTIONS = ["first-token", "prefill", "decode", "throughput"]
METHOD = "monotonic clock around calls of the peer's Python interface; decode: a call less one for the first tokens, by the tokens between"


def fail(text):
    print(f"run.py: {text}", file=sys.stderr)
    sys.exit(2)


def module_of(peer):
    return peer.replace(".", "_").replace("-", "_") + "_peer"


def load_peer(peer):
    """The module of a peer whose package is installed. The package is not imported."""
    if importlib.util.find_spec(module_of(peer)) is None:
        known = sorted(os.path.basename(path)[:-len("_peer.py")] for path in glob.glob(os.path.join(FOLDER, "*_peer.py")))
        fail(f"--peer {peer}: known are {', '.join(known).replace('llama_cpp', 'llama.cpp')}")
    module = importlib.import_module(module_of(peer))
    if importlib.util.find_spec(module.PACKAGE) is None:
        fail(f"--peer {peer}: the package {module.PACKAGE} is not installed for {sys.executable}: pip install {module.PIP}")
    return module


def gpu_name():
    try:
        names = subprocess.run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    return names.splitlines()[0].strip() if names.strip() else None


def cpu_name():
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [line.split(": ", 1)[1].strip() for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else "CPU"


def commit():
    try:
        return subprocess.run(["git", "-C", ROOT, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def positive(text):
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return value


def batches(text):
    return sorted({positive(each) for each in text.split(",")})


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="GGUF file or directory, of all engines")
    parser.add_argument("--model-of", action="append", default=[], metavar="PEER=PATH", help="the same model for one peer, in another form")
    parser.add_argument("--peer", action="append", required=True, help="vllm, sglang or llama.cpp; may be repeated")
    parser.add_argument("--section", action="append", choices=SECTIONS, help="may be repeated (default: all)")
    parser.add_argument("--batches", type=batches, help="of decode (default: 1,2,4,...,256 on CUDA; 1,4,16 on the CPU)")
    parser.add_argument("--context", type=int, default=512, help="of decode (default: 512)")
    parser.add_argument("--requests", type=positive, help="of throughput (default: 256 on CUDA, 32 on the CPU)")
    parser.add_argument("--device", choices=["cpu", "cuda"], help="default: cuda if nvidia-smi names a GPU")
    parser.add_argument("--dtype", choices=["bfloat16", "float16", "float32"],
                        help="default: bfloat16 on CUDA; on the CPU float32 for peers, and what bench_engine chooses for ours")
    parser.add_argument("--threads", type=positive, default=os.cpu_count(), help="on the CPU")
    parser.add_argument("--dummy-weights", action="store_true", help="vLLM and SGLang make random weights: a directory with config.json is enough")
    parser.add_argument("--bench-engine", default=os.path.join(ROOT, "build/release/benchmarks/bench_engine"), metavar="PROGRAM")
    parser.add_argument("--ours", metavar="FILE", help="rows of bench_engine --json from an earlier run, in place of running it")
    parser.add_argument("--without-ours", action="store_true")
    parser.add_argument("--ours-json", metavar="FILE", help="keep bench_engine's rows")
    parser.add_argument("--json", metavar="FILE", help="keep the peers' rows")
    options = parser.parse_args(arguments)
    if options.context < 16:
        parser.error("--context must be at least 16")
    options.gpu = gpu_name()
    options.device = options.device or ("cuda" if options.gpu else "cpu")
    on_gpu = options.device == "cuda"
    options.batches = options.batches or ([2**i for i in range(9)] if on_gpu else [1, 4, 16])
    options.requests = options.requests or (256 if on_gpu else 32)
    options.section = [section for section in SECTIONS if section in (options.section or SECTIONS)]
    options.models = {}
    for text in options.model_of:
        peer, separator, path = text.partition("=")
        if not separator or peer not in options.peer:
            parser.error(f"--model-of {text}: it must be PEER=PATH, with a peer that --peer names")
        options.models[peer] = path
    for path in [options.model, *options.models.values()]:
        if not os.path.exists(path):
            parser.error(f"{path}: there is no such model")
    if not options.ours and not options.without_ours and not os.access(options.bench_engine, os.X_OK):
        parser.error(f"{options.bench_engine}: there is no such program; build bench_engine, or give --bench-engine, --ours or --without-ours")
    return options


def run_ours(options, path):
    command = [options.bench_engine, "--model", options.model, "--context", str(options.context), "--requests", str(options.requests),
               "--batches", ",".join(map(str, options.batches)), "--device", options.device, "--json", path]
    for section in options.section:
        command += ["--section", section]
    if options.dtype:
        command += ["--dtype", options.dtype]
    if options.device == "cpu":
        command += ["--threads", str(options.threads)]
    print(shlex.join(command), file=sys.stderr, flush=True)
    return subprocess.run(command, stdout=sys.stderr).returncode == 0


def run_peer(peer, options, path):
    longest = max(2048, 2 * options.context)
    content = {"peer": peer, "model": options.models.get(peer, options.model), "device": options.device,
               "dtype": options.dtype or ("bfloat16" if options.device == "cuda" else "float32"), "threads": options.threads,
               "context_length": longest, "max_seqs": max(options.batches + [256 if options.device == "cuda" else 32]),
               "dummy_weights": options.dummy_weights, "sections": options.section, "batches": options.batches, "context": options.context,
               "requests": options.requests}
    print(f"{peer}: {content['model']}", file=sys.stderr, flush=True)
    command = [sys.executable, os.path.join(FOLDER, "measure.py"), module_of(peer), json.dumps(content), path]
    return subprocess.run(command, stdout=sys.stderr).returncode == 0


def read(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


# ---- the table ---------------------------------------------------------------------------------------------------------------

def value_of(row):
    """(value, unit, whether more is better), of a row of bench_engine or of a peer; None: it is not in the table."""
    if row["section"] == "first-token":
        return row["first_token_ms"]["p50"], "ms", False
    if row["section"] == "prefill":
        return row["prompt_tokens_per_s"], "tokens/s", True
    if row["section"] in ("decode", "throughput"):
        return row["output_tokens_per_s"], "tokens/s", True
    return None


def number(value):
    return f"{value:,.2f}" if value < 100 else f"{value:,.0f}"


def table(ours, by_peer):
    """Lines. `ours` and each of by_peer's values are rows."""
    columns = {"prologue": {row["name"]: row for row in ours}}
    for peer, rows in by_peer.items():
        columns[peer] = {row["name"][:-len(f", {peer}")]: row for row in rows}
    names = []
    for rows in columns.values():
        names += [name for name in rows if name not in names and value_of(rows[name]) is not None]
    if by_peer:  # what only we have, steps without overlap for example
        names = [name for name in names if any(name in columns[peer] for peer in by_peer)]
    lines = [f"{'':36} {'':>9} {'prologue':>12}" + "".join(f" {peer:>12} {'x':>6}" for peer in by_peer)]
    for name in names:
        of_row = {column: value_of(rows[name]) for column, rows in columns.items() if name in rows}
        unit, more_is_better = next(iter(of_row.values()))[1:]
        own = of_row.get("prologue")
        line = f"{name:36} {unit:>9} {number(own[0]) if own else '-':>12}"
        for peer in by_peer:
            its, ratio = of_row.get(peer), "-"
            if own and its:
                ratio = f"{own[0] / its[0] if more_is_better else its[0] / own[0]:.2f}"
            line += f" {number(its[0]) if its else '-':>12} {ratio:>6}"
        lines.append(line)
    return lines


def main():
    options = parse(sys.argv[1:])
    for peer in options.peer:
        load_peer(peer)
    failed, by_peer, versions, ours = [], {}, {}, []
    with tempfile.TemporaryDirectory() as folder:
        if options.ours:
            ours = read(options.ours)["rows"]
        elif not options.without_ours:
            path = options.ours_json or os.path.join(folder, "ours.json")
            if run_ours(options, path):
                ours = read(path)["rows"]
            else:
                failed.append("bench_engine")
        for peer in dict.fromkeys(options.peer):
            path = os.path.join(folder, "peer.json")
            if run_peer(peer, options, path):
                result = read(path)
                by_peer[peer], versions[peer] = result["rows"], result["version"]
            else:
                failed.append(peer)
    device = options.gpu if options.device == "cuda" else f"{cpu_name()}, {options.threads} thread{'s' if options.threads > 1 else ''}"
    if options.json:
        result = {"date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"), "commit": commit(), "device": device,
                  "model": os.path.basename(os.path.normpath(options.model)), "peers": versions, "method": METHOD,
                  "command": shlex.join(sys.argv)}
        rows = ",\n  ".join(json.dumps(row) for peer in by_peer for row in by_peer[peer])
        with open(options.json, "w", encoding="utf-8") as file:
            file.write(json.dumps(result, indent=1)[:-2] + ',\n "rows": [\n  ' + rows + "\n ]\n}\n")
    print(f"{device}, {options.model}" + "".join(f"; {peer} {version}" for peer, version in versions.items()))
    print("\n".join(table(ours, by_peer)))
    if failed:
        print(f"run.py: {', '.join(failed)} failed; the messages are above", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
