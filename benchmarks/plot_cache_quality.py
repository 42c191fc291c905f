#!/usr/bin/env python3
"""Draws docs/cache-quality.svg and writes the tables of docs/numerics.md from what bench_cache_quality measured:
benchmarks/results/DATE-DEVICE-cache-quality-MODEL.json, of each model the newest.

    benchmarks/plot_cache_quality.py            writes both; needs matplotlib (pip install matplotlib)
    benchmarks/plot_cache_quality.py --check    exits 1 if one is not what the files give, or another version of this program made it

The plot holds a digest of its data and of this program, so --check needs only the standard library. The same data and the same version of
matplotlib give the same bytes.
"""
import glob
import hashlib
import json
import math
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PLOT, PAGE = os.path.join(ROOT, "docs/cache-quality.svg"), os.path.join(ROOT, "docs/numerics.md")
BEGIN, END = "<!-- cache quality: written by benchmarks/plot_cache_quality.py -->\n", "<!-- end of cache quality -->\n"
PLAIN, HADAMARD, GREY = "#0969da", "#bc4c00", "#8c959f"
DARK = "<style>@media (prefers-color-scheme: dark) { text { fill: #e6edf3 !important; } }</style>"


def read(path):
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except FileNotFoundError:
        return ""


def write(path, text):
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    print(f"wrote {os.path.relpath(path, ROOT)}")


def find_data():
    newest = {}
    for path in sorted(glob.glob(os.path.join(ROOT, "benchmarks/results/*-cache-quality-*.json"))):
        match = re.fullmatch(r"\d{4}-\d\d-\d\d-[a-z0-9]+-cache-quality-([a-z0-9-]+)\.json", os.path.basename(path))
        if match:
            newest[match.group(1)] = path
    return [path for _, path in sorted(newest.items(), reverse=True)]


def digest_of(paths):
    digest = hashlib.sha256()
    for path in [os.path.abspath(__file__)] + paths:
        digest.update(read(path).encode())
    return f"<!-- data: {digest.hexdigest()} -->"


def cache_of(row):
    return row["k_type"] if row["k_type"] == row["v_type"] else f"{row['k_type']}, {row['v_type']}"


# ---- the tables -------------------------------------------------------------------------------------------------------------

def significant(value):
    return "0" if value == 0 else f"{value:.2g}" if value >= 1e-4 else f"{value:.1e}"


def table(result):
    lines = [f"**{result['model']}**: {result['layers']} layers, {result['kv_heads']} KV heads of {result['head_dim']} channels; "
             f"{result['rows'][0]['predicted_tokens']} predicted tokens, windows of {result['context']}.", "",
             "| weights | cache (K, V) | Hadamard | bytes a token | of bfloat16 | mean KL | 99.9 % | largest | same argmax | perplexity | change |",
             "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"]
    for row in result["rows"]:
        lines.append(f"| {row['dtype']} | {cache_of(row)} | {row['hadamard_block'] or ''} | {row['bytes_per_token']} | {row['of_bfloat16']:.2f} | "
                     f"{significant(row['mean_kl'])} | {significant(row['p999_kl'])} | {significant(row['max_kl'])} | "
                     f"{100 * row['same_argmax']:.1f} % | {row['perplexity']:.2f} | {100 * (row['perplexity_ratio'] - 1):+.2f} % |")
    return "\n".join(lines) + "\n"


def page(text, results):
    begin, end = text.index(BEGIN) + len(BEGIN), text.index(END)
    return text[:begin] + "\n".join(["", *map(table, results), ""]) + text[end:]


# ---- the plot ---------------------------------------------------------------------------------------------------------------

def draw_model(axes, result):
    """One arrow for each cache: from without the transform to with it. Runs of other weights are left out."""
    rows = [row for row in result["rows"] if row["mean_kl"] > 0 and row["dtype"] == result["rows"][0]["dtype"]]
    axes.set_title(result["model"])
    plain = {cache_of(row): row for row in rows if row["hadamard_block"] == 0}
    spread = math.log10(max(row["mean_kl"] for row in rows) / min(row["mean_kl"] for row in rows))
    for name, row in plain.items():
        axes.plot(row["of_bfloat16"], row["mean_kl"], "o", color=PLAIN)
    above = []  # (x, log10 of y) of the labels so far; each is as high as its point, or just below the last one there
    for name, row in sorted(plain.items(), key=lambda item: -item[1]["mean_kl"]):
        y = min([math.log10(row["mean_kl"])] + [other - spread / 32 for x, other in above if abs(x - row["of_bfloat16"]) < 0.05])
        above.append((row["of_bfloat16"], y))
        axes.annotate(name, (row["of_bfloat16"], 10**y), xytext=(6, -3), textcoords="offset points", fontsize=7.5)
    for row in rows:
        if row["hadamard_block"] == 0:
            continue
        x, y = row["of_bfloat16"], row["mean_kl"]
        axes.plot(x, y, "o", color=HADAMARD)
        if cache_of(row) in plain:
            axes.annotate("", (x, y), xytext=(x, plain[cache_of(row)]["mean_kl"]), arrowprops={"arrowstyle": "-", "color": HADAMARD, "alpha": 0.6})
    blocks = sorted({row["hadamard_block"] for row in rows} - {0})
    axes.plot([], [], "o", color=PLAIN, label="as it is")
    if blocks:
        axes.plot([], [], "o", color=HADAMARD, label=f"Hadamard transform of Q and K, blocks of {', '.join(map(str, blocks))}")
    axes.set_yscale("log")
    axes.set_xlim(0.2, 1.25)
    axes.set_xlabel("bytes of the cache, 1 = bfloat16")
    axes.set_ylabel("mean KL divergence, nats (log scale)")
    axes.legend(loc="upper right")


def draw(results, digest):
    try:
        import matplotlib
    except ImportError:
        sys.exit("plot_cache_quality.py: the package matplotlib is not installed: pip install matplotlib")
    matplotlib.use("svg")
    from matplotlib import pyplot
    matplotlib.rcParams.update({
        "svg.fonttype": "none", "svg.hashsalt": "prologue", "font.family": "sans-serif", "font.size": 9, "axes.titlesize": 10,
        "axes.edgecolor": GREY, "xtick.color": GREY, "ytick.color": GREY, "xtick.labelcolor": "black", "ytick.labelcolor": "black",
        "axes.grid": True, "grid.color": GREY, "grid.alpha": 0.3, "legend.frameon": False, "legend.fontsize": 8,
        "axes.spines.top": False, "axes.spines.right": False, "lines.markersize": 5})
    figure, grid = pyplot.subplots(1, len(results), figsize=(6.5 * len(results), 5), squeeze=False, layout="constrained")
    for axes, result in zip(grid.flat, results):
        draw_model(axes, result)
    figure.supxlabel("; ".join(f"{result['text']}, {result['rows'][0]['predicted_tokens']} tokens, {result['date'][:10]}" for result in results),
                     fontsize=8)
    figure.savefig(PLOT, transparent=True, metadata={"Date": None, "Creator": None})
    svg = read(PLOT)
    begin = svg.index(">", svg.index("<svg")) + 1
    svg = svg[:begin] + "\n " + digest + "\n " + DARK + svg[begin:]
    write(PLOT, "\n".join(line.rstrip() for line in svg.splitlines()) + "\n")


def main(arguments):
    if arguments not in ([], ["--check"]):
        sys.exit(__doc__)
    data = find_data()
    results = [json.loads(read(path)) for path in data]
    text = read(PAGE)
    stale_page, stale_plot = page(text, results) != text, digest_of(data) not in read(PLOT)
    if arguments:
        if stale_page or stale_plot:
            sys.exit("docs/cache-quality.svg or docs/numerics.md: not what benchmarks/results gives; run benchmarks/plot_cache_quality.py")
        return
    if stale_page:
        write(PAGE, page(text, results))
    if stale_plot:
        draw(results, digest_of(data))


main(sys.argv[1:])
