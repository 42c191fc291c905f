#!/usr/bin/env python3
"""Draws docs/engine-DEVICE-MODEL.svg and writes the README's table of the engine, from what bench_engine measured:
benchmarks/results/DATE-DEVICE-engine-MODEL.json, which is one run, and DATE-DEVICE-engine.json, which has several in "runs". Each section
(throughput, decode, ...) of each device and model comes from the newest file that has it, with the rows of
DATE-DEVICE-engine-MODEL-peers.json if that exists. Runs with --unfused-projections are there to compare with and are left out.

    benchmarks/plot_engine.py            draws and writes them; needs matplotlib (pip install matplotlib)
    benchmarks/plot_engine.py --check    exits 1 if a plot is missing or was drawn from other data or by another version of this program, or
                                         if the table is not what the files give

Every plot holds a digest of its data and of this program, so --check needs only the standard library. The same data and the same version of
matplotlib give the same bytes.
"""
import glob
import hashlib
import json
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
OURS, A, B, C, GREY = "#0969da", "#bc4c00", "#8250df", "#1a7f37", "#8c959f"
COLOURS = {"mini-sglang": OURS, "poisson": A, "burst": B, "shared-prefix": C, "mixed": "#bf3989", "trace": "#9a6700"}
DARK = "<style>@media (prefers-color-scheme: dark) { text { fill: #e6edf3 !important; } }</style>"


def read(path):
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except FileNotFoundError:
        return ""


class Section:
    """The rows of a section of bench_engine, and where they are from."""

    def __init__(self, path, run, rows):
        self.path, self.run, self.rows = path, run, rows
        self.date = os.path.basename(path)[:10]


def find_sections():
    """{(device, model): {section: Section}}, the newest of each. The timelines of a decode step count as a section of their own."""
    found = {}
    for path in sorted(glob.glob(os.path.join(ROOT, "benchmarks/results/*-engine*.json"))):
        if path.endswith("-peers.json"):
            continue
        match = re.fullmatch(r"\d{4}-\d\d-\d\d-([a-z0-9]+)-engine(?:-([a-z0-9]+))?\.json", os.path.basename(path))
        if not match:
            sys.exit(f"plot_engine.py: the name of {path} must be DATE-DEVICE-engine.json or DATE-DEVICE-engine-MODEL.json")
        content = json.loads(read(path))
        for run in content.get("runs", [content]):
            model = run["model"].split(", ")[-1]
            if match[2] not in (None, model):
                sys.exit(f"plot_engine.py: {path} is named after {match[2]}, and its model is {model}")
            if "--unfused-projections" in run["command"]:
                continue
            sections = found.setdefault((match[1], model), {})
            for row in run["rows"]:
                for name in [row["section"]] + (["timeline"] if "timeline" in row else []):
                    if name not in sections or sections[name].run is not run:
                        sections[name] = Section(path, run, [])
                    sections[name].rows.append(row)
    return found


def find_plots(found):
    """(path of the plot, its sections, paths of its data), sorted."""
    plots = []
    for (device, model), sections in sorted(found.items()):
        paths = sorted({section.path for section in sections.values()})
        paths += [peers for path in paths if os.path.exists(peers := path[:-len(".json")] + "-peers.json")]
        plots.append((os.path.join(ROOT, f"docs/engine-{device}-{model}.svg"), sections, paths))
    return plots


def digest_of(paths):
    digest = hashlib.sha256()
    for path in [os.path.abspath(__file__)] + paths:
        digest.update(read(path).encode())
    return f"<!-- data: {digest.hexdigest()} -->"


# ---- panels: each draws on one axes ------------------------------------------------------------------------------------------

def workload_of(row):
    return row["name"].split(",")[0]


def draw_throughput(axes, rows):
    rows = sorted((row for row in rows if row["section"] == "throughput"), key=lambda row: list(COLOURS).index(workload_of(row)))
    axes.set_title("Output tokens/s")
    positions = list(range(len(rows)))[::-1]
    for position, row in zip(positions, rows):
        value = row["output_tokens_per_s"]
        axes.barh(position, value, color=A if "llama.cpp" in row["name"] else GREY if "," in row["name"] else OURS, height=0.6)
        axes.annotate(f" {value:,.0f}", (value, position), va="center")
    axes.set_yticks(positions, [row["name"].replace(workload_of(row) + ",", "…") for row in rows])
    axes.margins(x=0.2)
    axes.grid(axis="y", visible=False)


def loads(rows):
    return [row for row in rows if "cache" in row]


def draw_distribution(axes, rows, column, title):
    axes.set_title(title)
    for row in loads(rows):
        values = sorted(row[column])
        if values:
            axes.step(values, [(i + 1) / len(values) for i in range(len(values))], where="post", color=COLOURS[workload_of(row)],
                      linestyle=":" if "no overlap" in row["name"] else "-", label=row["name"])
    axes.set_xscale("log")
    axes.set_xlabel("milliseconds (log scale)")
    axes.set_ylabel("share of the requests")
    if loads(rows):
        axes.legend(loc="upper left")


def draw_cache(axes, rows):
    axes.set_title("KV cache: pages in use, and kept for later prompts (thin)")
    for row in loads(rows):
        if "no overlap" in row["name"]:
            continue
        seconds, used, cached = zip(*row["cache"])
        axes.plot(seconds, [100 * share for share in used], color=COLOURS[row["name"]], label=row["name"])
        axes.plot(seconds, [100 * share for share in cached], color=COLOURS[row["name"]], linewidth=0.8, alpha=0.7)
    axes.set_xlabel("seconds")
    axes.set_ylabel("% of the pages")
    if loads(rows):
        axes.legend(loc="upper right")


def draw_decode(axes, rows, on_gpu):
    axes.set_title("A decode step")
    batches = [row["batch"] for row in rows]
    axes.plot(batches, [row["step_us"] for row in rows], "o-", color=OURS, label="in the engine")
    axes.plot(batches, [row["alone_us"] for row in rows], "o--", color=A, label="alone: model and sampling")
    if on_gpu:
        axes.plot(batches, [row["host_us"] for row in rows], "o-", color=B, label="host's part")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(batches, [str(batch) for batch in batches])
    axes.set_xlabel("sequences of about 512 tokens")
    axes.set_ylabel("microseconds (log scale)")
    if rows:
        axes.legend(loc="best")


def draw_timeline(axes, rows):
    """The host works, waits for the device, and works; the step alone is drawn so that it ends when the host has its result."""
    rows = [rows[0], rows[len(rows) // 2], rows[-1]] if len(rows) > 3 else rows
    axes.set_title("Steps: the host works (dark) and waits (light)")
    ticks, labels = [], []
    for i, row in enumerate(rows):
        y = -2.5 * i
        scale = 1 / row["step_us"]
        for begin, wait, output, end in row["timeline"]:
            axes.broken_barh([(begin * scale, (wait - begin) * scale), (output * scale, (end - output) * scale)], (y, 0.9), facecolors=OURS)
            axes.broken_barh([(wait * scale, (output - wait) * scale)], (y, 0.9), facecolors=OURS, alpha=0.25)
            axes.broken_barh([((output - row["alone_us"]) * scale, row["alone_us"] * scale)], (y - 1, 0.9), facecolors=A, edgecolor="white", linewidth=0.6)
        ticks += [y + 0.45, y - 0.55]
        labels += [f"batch {row['batch']}: host", "step alone"]
    axes.set_yticks(ticks, labels)
    axes.set_xlabel("steps")
    axes.grid(axis="y", visible=False)


def draw(path, sections, data):
    try:
        import matplotlib
    except ImportError:
        sys.exit("plot_engine.py: the package matplotlib is not installed: pip install matplotlib")
    matplotlib.use("svg")
    from matplotlib import pyplot
    matplotlib.rcParams.update({
        "svg.fonttype": "none", "svg.hashsalt": "prologue", "font.family": "sans-serif", "font.size": 9, "axes.titlesize": 10,
        "axes.edgecolor": GREY, "xtick.color": GREY, "ytick.color": GREY, "xtick.labelcolor": "black", "ytick.labelcolor": "black",
        "axes.grid": True, "grid.color": GREY, "grid.alpha": 0.3, "legend.frameon": False, "legend.fontsize": 8,
        "axes.spines.top": False, "axes.spines.right": False, "lines.markersize": 4})
    rows = sections["throughput"].rows if "throughput" in sections else []
    rows = rows + [row for name in data if name.endswith("-peers.json") for row in json.loads(read(name))["rows"]]
    head = next(iter(sections.values())).run
    on_gpu = "CUDA" in head["device"]
    panels = []
    if rows:
        panels += [lambda axes: draw_throughput(axes, rows),
                   lambda axes: draw_cache(axes, rows),
                   lambda axes: draw_distribution(axes, rows, "first_token_ms_of_requests", "Time to the first token"),
                   lambda axes: draw_distribution(axes, rows, "per_token_ms_of_requests", "Time per output token")]
    if "decode" in sections:
        panels.append(lambda axes: draw_decode(axes, sections["decode"].rows, on_gpu))
    if "timeline" in sections and on_gpu:
        panels.append(lambda axes: draw_timeline(axes, sections["timeline"].rows))
    dates = ", ".join(f"{label} {sections[name].date}" for name, label in
                      (("throughput", "requests"), ("decode", "a decode step"), ("timeline", "steps")) if name in sections)
    lines = (len(panels) + 1) // 2
    figure, grid = pyplot.subplots(lines, 2, figsize=(11, 3.4 * lines), squeeze=False, layout="constrained")
    for axes, panel in zip(grid.flat, panels):
        panel(axes)
    for axes in grid.flat[len(panels):]:
        axes.set_axis_off()
    figure.supxlabel(f"{head['model']}, {head['dtype']}, {head['device']}; {dates}", fontsize=9)
    figure.savefig(path, transparent=True, metadata={"Date": None, "Creator": None})
    pyplot.close(figure)
    svg = read(path)
    begin = svg.index(">", svg.index("<svg")) + 1
    svg = svg[:begin] + "\n " + digest_of(data) + "\n " + DARK + svg[begin:]
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join(line.rstrip() for line in svg.splitlines()) + "\n")
    print(f"wrote {os.path.relpath(path, ROOT)}")


# ---- the README's table ------------------------------------------------------------------------------------------------------

BEGIN, END = "<!-- engine: written by benchmarks/plot_engine.py -->\n", "<!-- end of engine -->\n"
DEVICE, MODELS = "h200", {"smollm2": "SmolLM2 135M", "1b": "Llama 3.2 1B", "8b": "Llama 3.1 8B"}
BATCHES = [1, 16, 64]


def readme(text, found):
    """`text` with the table. All models of a row are from one file, whose date the row has."""
    columns = [found[DEVICE, model] for model in MODELS]

    def line(label, section, cell):
        (date,) = {column[section].date for column in columns}
        return f"| {label}, {date} | " + " | ".join(cell(column[section].rows) for column in columns) + " |"

    def decoding(batch):
        label = "decoding 1 sequence" if batch == 1 else f"decoding {batch} sequences"
        return line(label, "decode", lambda rows: next(f"{row['output_tokens_per_s']:.0f}" for row in rows if row["batch"] == batch))

    def host(rows):
        shares = [100 * row["host_us"] / row["step_us"] for row in rows if row["batch"] in BATCHES]
        return f"{min(shares):.1f} to {max(shares):.1f} %"

    lines = ["| tokens/s, one H200 | " + " | ".join(MODELS.values()) + " |", "| --- " * (len(MODELS) + 1) + "|"]
    lines += [decoding(batch) for batch in BATCHES]
    lines.append(line("256 requests of 100 to 1024 tokens in and out", "throughput",
                      lambda rows: next(f"{row['output_tokens_per_s']:.0f}" for row in rows if row["name"] == "mini-sglang")))
    lines.append(line("the host's share of these decode steps", "decode", host))
    begin, end = text.index(BEGIN) + len(BEGIN), text.index(END)
    return text[:begin] + "\n".join(lines) + "\n" + text[end:]


def main(arguments):
    if arguments not in ([], ["--check"]):
        sys.exit(__doc__)
    found = find_sections()
    stale = [plot for plot in find_plots(found) if digest_of(plot[2]) not in read(plot[0])]
    path = os.path.join(ROOT, "README.md")
    text = read(path)
    new = readme(text, found)
    if not arguments:
        for plot in stale:
            draw(*plot)
        if new != text:
            with open(path, "w", encoding="utf-8") as file:
                file.write(new)
            print("wrote README.md")
        return
    names = [os.path.relpath(plot[0], ROOT) for plot in stale] + (["README.md"] if new != text else [])
    if names:
        sys.exit(f"{', '.join(names)}: not what benchmarks/results has; run benchmarks/plot_engine.py")


main(sys.argv[1:])
