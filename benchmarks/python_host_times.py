#!/usr/bin/env python3
"""Host times of the Python functions with CUDA tensors of torch: microseconds until a call returns; nothing waits for the GPU.

    benchmarks/python_host_times.py [--json FILE]

After 20 calls a row is measured in 25 runs of 200 calls, with a synchronisation between the runs; it has the median and the best run.
Functions of other libraries have rows where they can be imported: flash_attn and liger_kernel (Triton), flashinfer. One kernel of torch and
an empty operator are there for comparison. bfloat16, 4 tokens, 32 heads of Q and 8 of K and V, 128 channels.
"""
import argparse
import datetime
import json
import platform
import statistics
import time

import torch

import prologue_attention as prologue
from prologue_attention.compat import flash_attn, flashinfer, liger, sglang, vllm

TOKENS, Q_HEADS, KV_HEADS, HEAD_DIM, PAGES, PAGE_SIZE, MAX_POSITION = 4, 32, 8, 128, 8, 16, 4096


def time_of(call):
    for _ in range(20):
        call()
    runs = []
    for _ in range(25):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(200):
            call()
        runs.append((time.perf_counter() - start) / 200 * 1e6)
    torch.cuda.synchronize()
    return {"median": round(statistics.median(runs), 2), "best": round(min(runs), 2)}


def make(*shape, dtype=torch.bfloat16):
    return torch.randn(*shape, device="cuda").to(dtype)


def our_rows():
    q, k, v = (make(TOKENS, heads, HEAD_DIM) for heads in (Q_HEADS, KV_HEADS, KV_HEADS))
    q_out = torch.empty_like(q)
    table = make(MAX_POSITION, HEAD_DIM, dtype=torch.float32)
    half = make(MAX_POSITION, HEAD_DIM // 2), make(MAX_POSITION, HEAD_DIM // 2)
    positions = torch.arange(TOKENS, device="cuda")
    ids, table_bf16 = positions.int(), table.bfloat16()
    slots = positions + 5
    cache = prologue.PagedKv(*(make(PAGES, PAGE_SIZE, KV_HEADS, HEAD_DIM) for _ in range(2)))
    rope = prologue.Rope(cos_sin=table, past_table="zero")
    theta = prologue.Rope(theta=10000.0, rotary_dim=HEAD_DIM)
    faults = torch.zeros(2, dtype=torch.int64, device="cuda")
    places = prologue.TokenPlaces(positions, slots)
    rows = [buffer.view(-1, KV_HEADS * HEAD_DIM) for buffer in (cache.k, cache.v)]
    long_rows = [make(TOKENS, heads * HEAD_DIM) for heads in (Q_HEADS, KV_HEADS)]
    batch = [x.transpose(0, 1).unsqueeze(0) for x in (q, k)]  # [batch, heads, tokens, head_dim]
    cos, sin = (make(1, TOKENS, HEAD_DIM) for _ in range(2))
    prologue_of = lambda out: prologue.attention_prologue(q, k, v, cache=cache, rope=rope, places=places, faults=faults, q_out=out)
    return {
        "rotary: q and k in place": lambda: prologue.rotary(q, k, rope=rope, positions=positions, inplace=True),
        "rotary: q and k, new tensors": lambda: prologue.rotary(q, k, rope=rope, positions=positions),
        "rotary: one tensor in place, theta": lambda: prologue.rotary(q, rope=theta, offset=7, faults=faults, inplace=True),
        "attention_prologue: q_out given": lambda: prologue_of(q_out),
        "attention_prologue: a new q": lambda: prologue_of(None),
        "compat.vllm.rotary_embedding": lambda: vllm.rotary_embedding(positions, *long_rows, HEAD_DIM, table_bf16, True),
        "compat.flash_attn.apply_rotary_emb": lambda: flash_attn.apply_rotary_emb(q.unsqueeze(0), *half),
        "compat.flashinfer.apply_rope_pos_ids_inplace": lambda: flashinfer.apply_rope_pos_ids_inplace(q, k, ids),
        "compat.sglang.apply_rope_inplace_with_kvcache": lambda: sglang.apply_rope_inplace_with_kvcache(
            q, k, v, *rows, table, positions, slots, is_neox=True
        ),
        "compat.liger.liger_rotary_pos_emb": lambda: liger.liger_rotary_pos_emb(*batch, cos, sin),
    }, (q, k, positions, batch, cos, sin, half)


def peer_rows(q, k, positions, batch, cos, sin, half):
    rows = {}
    try:
        from flash_attn.layers.rotary import apply_rotary_emb

        rows["flash_attn apply_rotary_emb, Triton"] = lambda: apply_rotary_emb(q.unsqueeze(0), *half)
    except ImportError:
        pass
    try:
        from liger_kernel.transformers.rope import liger_rotary_pos_emb

        rows["liger_kernel liger_rotary_pos_emb, Triton"] = lambda: liger_rotary_pos_emb(*batch, cos, sin)
    except ImportError:
        pass
    try:
        import flashinfer as theirs

        ids = positions.int()
        rows["flashinfer apply_rope_pos_ids_inplace"] = lambda: theirs.apply_rope_pos_ids_inplace(q, k, ids)
    except ImportError:
        pass
    return rows


def torch_rows(q):
    library = torch.library.Library("prologue_host_times", "DEF")
    library.define("nothing(Tensor a, Tensor b, Tensor c, Tensor d) -> ()")
    library.impl("nothing", lambda a, b, c, d: None, "CUDA")
    nothing = torch.ops.prologue_host_times.nothing.default
    event = torch.cuda.Event()
    return {
        "torch: q.add_(1)": lambda: q.add_(1),
        "torch: empty_like": lambda: torch.empty_like(q),
        "torch: an event's record": lambda: event.record(),
        "torch: an empty operator of four tensors": lambda: nothing(q, q, q, q),
    }, library


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="write the rows there, too")
    options = parser.parse_args()
    ours, arrays = our_rows()
    comparisons, _library = torch_rows(arrays[0])
    rows = {}
    for name, call in {**comparisons, **ours, **peer_rows(*arrays)}.items():
        rows[name] = time_of(call)
        print(f"{name:50} {rows[name]['median']:8.2f} us, best {rows[name]['best']:8.2f}", flush=True)
    if options.json:
        about = {"date": datetime.date.today().isoformat(), "device": torch.cuda.get_device_name(), "torch": torch.__version__, "python": platform.python_version()}
        with open(options.json, "w") as file:
            json.dump({**about, "us": rows}, file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    main()
