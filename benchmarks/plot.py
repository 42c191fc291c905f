#!/usr/bin/env python3
"""Draws the plots of docs/ and writes the table and the first claims of README.md, from the dated JSON files in benchmarks/results.

    benchmarks/plot.py            writes them
    benchmarks/plot.py --check    exits 1 if one of them is not what the JSON files give

Needs only the standard library. The same data give the same bytes.
"""
import json
import math
import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TOKENS = [1, 16, 64, 256, 1024, 4096, 8192, 16384]

STYLE = """  <style>
    text { font: 12px system-ui, sans-serif; fill: #1f2328; }
    .title { font-size: 14px; font-weight: 600; }
    .axis, .note { font-size: 11px; fill: #656d76; }
    .middle { text-anchor: middle; }
    .end { text-anchor: end; }
    path { fill: none; stroke-width: 2; }
    circle { stroke: none; }
    .grid { stroke: #d8dee4; stroke-width: 1; }
    .copy { stroke: #656d76; stroke-dasharray: 5 4; stroke-width: 1.5; }
    .ours { stroke: #0969da; stroke-width: 3; }  circle.ours, text.ours { fill: #0969da; stroke: none; font-weight: 600; }
    .a { stroke: #bc4c00; }  circle.a, text.a { fill: #bc4c00; stroke: none; }
    .b { stroke: #8250df; }  circle.b, text.b { fill: #8250df; stroke: none; }
    text.copy { fill: #656d76; stroke: none; }
    @media (prefers-color-scheme: dark) {
      text { fill: #e6edf3; }
      .axis, .note { fill: #9198a1; }
      .grid { stroke: #3d444d; }
      .copy { stroke: #9198a1; }
      .ours { stroke: #58a6ff; }  circle.ours, text.ours { fill: #58a6ff; }
      .a { stroke: #f0883e; }  circle.a, text.a { fill: #f0883e; }
      .b { stroke: #bc8cff; }  circle.b, text.b { fill: #bc8cff; }
      text.copy { fill: #9198a1; }
    }
  </style>
"""


class Results:
    """The rows "NAME T=TOKENS" of one or more files."""

    def __init__(self, *files):
        self.rows = {}
        for name in files:
            with open(os.path.join(ROOT, "benchmarks/results", name), encoding="utf-8") as file:
                for row in json.load(file)["rows"]:
                    self.rows[row["name"]] = row

    def us(self, name, tokens=None, column="us"):
        return [self.rows[f"{name} T={t}"][column] for t in tokens or TOKENS]


class Peers:
    """The rows of the prologue beside its peers that have 32 q heads, 8 kv heads and head_dim 128."""

    def __init__(self, file):
        with open(os.path.join(ROOT, "benchmarks/results", file), encoding="utf-8") as data:
            rows = json.load(data)["rows"]
        self.rows = {(row["name"], row["norm"], row["l2"]): row["us"] for row in rows if (row["heads"], row["head_dim"]) == ("32/8", 128)}

    def us(self, name, norm=False, l2="cold", tokens=None):
        return [self.rows[name, norm, l2][str(t)] for t in tokens or TOKENS]


PROLOGUE = Peers("2026-11-29-h200-prologue-peers.json")
ROTARY = Results("2026-11-21-h200-rotary.json", "2026-11-21-h200-rotary-peers.json")
PROJECTION = Results("2026-11-26-h200-rings.json", "2026-11-26-h200-turns.json")

# ---- plots ------------------------------------------------------------------------------------------------------------------

LEFT, TOP, WIDTH, HEIGHT, PANEL = 52, 44, 232, 236, 430  # of a panel's axes, and the distance between panels
Y_TICKS = [0.8, 1, 1.25, 1.5, 2, 2.5, 3, 4]


def x_at(tokens):
    return LEFT + WIDTH * math.log2(tokens) / math.log2(TOKENS[-1])


def panel(title, copy, series, low=0.9, high=3.3):
    """series: (label, css class, microseconds). Everything is drawn as a multiple of `copy`, microseconds too, from `low` to `high`."""
    def y_at(ratio):
        return TOP + HEIGHT * (math.log(high) - math.log(ratio)) / (math.log(high) - math.log(low))

    out = [f'<text class="title" x="{LEFT}" y="18">{title}</text>']
    for tick in [tick for tick in Y_TICKS if low < tick < high]:
        out.append(f'<path class="grid" d="M{LEFT} {y_at(tick):.1f}h{WIDTH}"/>')
        out.append(f'<text class="axis end" x="{LEFT - 6}" y="{y_at(tick) + 4:.1f}">{tick:g}</text>')
    for tokens in TOKENS:
        if tokens == 8192:
            continue  # its label would touch the next one
        out.append(f'<path class="grid" d="M{x_at(tokens):.1f} {TOP + HEIGHT}v4"/>')
        label = f"{tokens // 1024}k" if tokens >= 1024 else tokens
        out.append(f'<text class="axis middle" x="{x_at(tokens):.1f}" y="{TOP + HEIGHT + 17}">{label}</text>')
    out.append(f'<text class="axis middle" x="{LEFT + WIDTH / 2:g}" y="{TOP + HEIGHT + 36}">tokens in the call (log scale)</text>')
    out.append(f'<text class="axis" x="{LEFT - 34}" y="{TOP - 10}">time, as a multiple of a plain copy (log scale)</text>')
    out.append(f'<path class="copy" d="M{LEFT} {y_at(1):.1f}h{WIDTH}"/>')
    labels = [[y_at(1), "copy", "plain copy"]]
    for label, css, us in series:
        ratios = [a / b for a, b in zip(us, copy)]
        points = [f"{x_at(t):.1f} {y_at(r):.1f}" for t, r in zip(TOKENS, ratios)]
        out.append(f'<path class="{css}" d="M{"L".join(points)}"/>')
        for point in points:
            x, y = point.split()
            out.append(f'<circle class="{css}" cx="{x}" cy="{y}" r="3"/>')
        labels.append([y_at(ratios[-1]), css, label])
    labels.sort(key=lambda entry: -entry[0])  # from below; each is pushed up until it clears the one under it
    for lower, upper in zip(labels, labels[1:]):
        upper[0] = min(upper[0], lower[0] - 15)
    for y, css, label in labels:
        out.append(f'<text class="{css}" x="{LEFT + WIDTH + 10}" y="{y + 4:.1f}">{label}</text>')
    return out


def figure(description, note, panels):
    width, height = PANEL * len(panels), TOP + HEIGHT + 66
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="{description}">\n', STYLE]
    for i, lines in enumerate(panels):
        out.append(f'  <g transform="translate({i * PANEL} 0)">\n' + "".join(f"    {line}\n" for line in lines) + "  </g>\n")
    out.append(f'  <text class="note" x="{LEFT - 34}" y="{height - 8}">{note}</text>\n</svg>\n')
    return "".join(out)


def prologue_plot():
    return figure(
        "Time of the attention prologue and its peers, as a multiple of a plain copy",
        "One NVIDIA H200, 2026-11-29; 32 q heads, 8 kv heads, head_dim 128, bfloat16, page 16, nothing in the L2; medians over CUDA graphs. Lower is better.",
        [panel("Rotate Q and K, write K and V", PROLOGUE.us("copy"),
               [("Prologue", "ours", PROLOGUE.us("Prologue")),
                ("SGLang, in place", "a", PROLOGUE.us("SGLang rope + store")),
                ("FlashInfer, 2 kernels", "b", PROLOGUE.us("FlashInfer rope, append"))], 0.75, 4.6),
         panel("The same with QK-norm", PROLOGUE.us("copy", True),
               [("Prologue", "ours", PROLOGUE.us("Prologue", True)),
                ("SGLang, 2 kernels", "a", PROLOGUE.us("SGLang norm + rope, store", True)),
                ("vLLM, fused", "b", PROLOGUE.us("vLLM qknorm_rope_cache", True))], 0.75, 4.6),
         panel("Without norm, Q and cache in fp8", PROLOGUE.us("copy to fp8"),
               [("Prologue", "ours", PROLOGUE.us("Prologue, q and cache in fp8")),
                ("FlashInfer, fused", "b", PROLOGUE.us("FlashInfer rope_quantize_append"))], 0.75, 4.6)])


def rotary_plot():
    def one(title, suffix):
        copy = ROTARY.us("base" + suffix, column="copy_us")
        return panel(title, copy, [("Prologue", "ours", ROTARY.us("base" + suffix)),
                                   ("flash-attn, f32 table", "a", ROTARY.us("flash-attn, f32 table" + suffix)),
                                   ("flash-attn, bf16 table", "b", ROTARY.us("flash-attn, bf16 table" + suffix))])
    return figure(
        "Time of the rotary operation and of flash-attn's Triton kernel, as a multiple of a plain copy",
        "One NVIDIA H200, 2026-11-21; 32 q heads, 8 k heads, head_dim 128, bfloat16; flash-attn rotates q and k in two launches. Lower is better.",
        [one("Rotary, out of place", ""), one("Rotary, in place", ", in place")])


PARTS = [("qkv", "norm, QKV projection, prologue", "ours"), ("output + residual", "output projection, residual", "a"),
         ("norm + gate_up + activation", "norm, gate and up, activation", "b"), ("down + residual", "down, residual", "copy")]


def decode_panel(title, qkv, model, tokens):
    """Two bars: what one layer does beside attention, in separate kernels and in four."""
    def us(part, way):
        name = f"qkv {qkv}" if part == "qkv" else f"{model} {part}"
        return PROJECTION.rows[f"{name} T={tokens}: {way}"]["us"]
    ways = [("separate kernels", "several kernels"), ("four kernels", "one kernel, overlapping")]
    most = max(sum(us(part, way) for part, _, _ in PARTS) for _, way in ways)
    out = [f'<text class="title" x="{LEFT}" y="18">{title}</text>']
    for i, (label, way) in enumerate(ways):
        x, y = LEFT, 32 + 52 * i
        total = sum(us(part, way) for part, _, _ in PARTS)
        layer = PROJECTION.rows[f"layer of {model}, 512 tokens of context T={tokens}: {way}"]["us"]
        out.append(f'<text class="axis" x="{x}" y="{y + 10}">{label}: {total:.1f} us; in a layer with attention {layer:.1f}</text>')
        for part, _, css in PARTS:
            width = 330 * us(part, way) / most
            out.append(f'<path class="{css}" style="stroke-width:18;stroke-dasharray:none" d="M{x:.1f} {y + 26}h{width - 2:.1f}"/>')
            if width > 26:
                out.append(f'<text class="middle" style="fill:#ffffff" x="{x + width / 2 - 1:.1f}" y="{y + 30}">{us(part, way):.1f}</text>')
            x += width
    return out


def decode_plot():
    panels = [decode_panel("SmolLM2 135M", "SmolLM2 135M", "SmolLM2", 1), decode_panel("Llama 3.2 1B", "1B", "1B", 1),
              decode_panel("Llama 3.1 8B", "8B", "8B", 1), decode_panel("Llama 3.1 8B, 16 tokens", "8B", "8B", 16)]
    width, height = PANEL * len(panels), 186
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
           'aria-label="Time of a layer of a decode step">\n', STYLE]
    for i, lines in enumerate(panels):
        out.append(f'  <g transform="translate({i * PANEL} 0)">\n' + "".join(f"    {line}\n" for line in lines) + "  </g>\n")
    x = LEFT
    for _, label, css in PARTS:
        out.append(f'  <path class="{css}" style="stroke-width:12;stroke-dasharray:none" d="M{x} 150h12"/>\n')
        out.append(f'  <text x="{x + 18}" y="154">{label}</text>\n')
        x += 34 + 6.6 * len(label)
    out.append(f'  <text class="note" x="{LEFT}" y="{height - 8}">One NVIDIA H200, 2026-11-26; bfloat16, one token if not said otherwise; microseconds. Bars: each part in a '
               'chain of its own. Whole layers: 32 one after another, attention over 512 tokens.</text>\n</svg>\n')
    return "".join(out)


# ---- the README's table -----------------------------------------------------------------------------------------------------

TABLE = "<!-- speed: written by benchmarks/plot.py -->\n", "<!-- end of speed -->\n"
CLAIMS = "<!-- claims: written by benchmarks/plot.py -->\n", "<!-- end of claims -->\n"
ROWS = [("plain copy of the same data", "copy", False),
        ("**rotate Q and K, write K and V**", "Prologue", False),
        ("SGLang's fused kernel, Q in place", "SGLang rope + store", False),
        ("FlashInfer's rope kernel, then its append kernel", "FlashInfer rope, append", False),
        ("**with QK-norm**", "Prologue", True),
        ("SGLang's norm and rope, in place, then its store", "SGLang norm + rope, store", True),
        ("vLLM's fused kernel", "vLLM qknorm_rope_cache", True),
        ("**without norm, Q and cache in fp8**", "Prologue, q and cache in fp8", False),
        ("FlashInfer's fused kernel for that", "FlashInfer rope_quantize_append", False)]


def claims():
    """What the rows with nothing in the L2 say in words, over all numbers of tokens that were measured."""
    def between(ours, other, norm=False, tokens=None):
        ratios = [b / a for a, b in zip(PROLOGUE.us(ours, norm, tokens=tokens), PROLOGUE.us(other, norm, tokens=tokens))]
        return f"{min(ratios):.2f} to {max(ratios):.2f} times"
    few, many = [t for t in TOKENS if t <= 256], [t for t in TOKENS if t >= 4096]
    fp8 = "Prologue, q and cache in fp8"
    return [f"- **{between('copy', 'Prologue')} the time of a plain copy** of the same bytes: rotate Q and K, write K and V, {TOKENS[0]} to {TOKENS[-1]} tokens, NVIDIA",
            f"  H200, nothing in the L2. SGLang's fused kernel takes {between('Prologue', 'SGLang rope + store', tokens=many)} as long from 4096 tokens on, and",
            f"  {between('Prologue', 'SGLang rope + store', tokens=few)} as long up to 256, where its launch overlapped the kernel before it. Ours does too",
            "  since that run, and takes 0.81 to 0.92 times as long as before ([measured](benchmarks/results/2026-11-29-h200-overlap.md)).",
            f"- With QK-norm **{between('Prologue', 'SGLang norm + rope, store', True)} as fast** as SGLang's two kernels for that, **{between('Prologue', 'vLLM qknorm_rope_cache', True)}** as vLLM's one;",
            f"  with Q and the cache in fp8 **{between(fp8, 'FlashInfer rope_quantize_append')} as fast** as FlashInfer's one."]


def readme(text):
    tokens = [1, 64, 1024, 8192]
    lines = ["| microseconds by tokens, data in the L2 / not | " + " | ".join(map(str, tokens)) + " |", "| --- | " + "--- | " * len(tokens)]
    for label, *row in ROWS:
        cells = [" / ".join(f"{us:.2f}" if us < 10 else f"{us:.1f}" if us < 100 else f"{us:.0f}" for us in pair)
                 for pair in zip(*(PROLOGUE.us(*row, l2, tokens) for l2 in ("hot", "cold")))]
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    for (begin, end), part in ((TABLE, lines), (CLAIMS, claims())):
        first, last = text.index(begin) + len(begin), text.index(end)
        text = text[:first] + "\n".join(line.rstrip() for line in part) + "\n" + text[last:]
    return text


def read(path):
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except FileNotFoundError:
        return ""


def main(arguments):
    if arguments not in ([], ["--check"]):
        sys.exit(__doc__)
    stale = []
    for name, make in [("docs/speed-prologue.svg", lambda _: prologue_plot()), ("docs/speed-rotary.svg", lambda _: rotary_plot()),
                       ("docs/decode-step.svg", lambda _: decode_plot()),
                       ("README.md", readme)]:
        path = os.path.join(ROOT, name)
        old = read(path)
        new = make(old)
        if new == old:
            continue
        if arguments:
            stale.append(name)
        else:
            with open(path, "w", encoding="utf-8") as file:
                file.write(new)
            print(f"wrote {name}")
    if stale:
        sys.exit(f"{', '.join(stale)}: not what benchmarks/results gives; run benchmarks/plot.py")


main(sys.argv[1:])
