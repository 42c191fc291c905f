#!/usr/bin/env python3
"""Host times of the Python functions with CUDA tensors of torch: microseconds until a call returns; nothing waits for the GPU.

    benchmarks/python_host_times.py [--json FILE]

After 20 calls a row is measured in 25 runs of 200 calls, with a synchronisation between the runs; it has the median and the best run.
Rows of "Plan" are of prologue_attention.Plan. Functions of other libraries have rows where they can be imported: flash_attn (Triton and its
attention over a paged cache), flashinfer (rotation, append, decode) and liger_kernel (Triton); else a line says that they are left out. One
kernel of torch and an empty operator are there for comparison. bfloat16, 4 tokens, 32 heads of Q and 8 of K and V, 128 channels.
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
    norm = prologue.HeadNorm(weight=make(HEAD_DIM))
    pages = prologue.PageTable(torch.arange(TOKENS, device="cuda").int()[:, None])  # 4 sequences of one page
    cu_seqlens, seq_lens = torch.arange(TOKENS + 1, device="cuda").int(), torch.full((TOKENS,), 9, device="cuda").int()
    out = torch.empty_like(q)
    decode = {"page_table": pages, "cu_seqlens_q": cu_seqlens, "seq_lens": seq_lens, "max_seqlen_q": 1, "max_seq_len": PAGE_SIZE}
    steps = {"cache": cache, "rope": rope, "places": places, "faults": faults, "q_out": q_out}
    plan_of_rotary = prologue.Plan(
        prologue.rotary, q, k, rope=rope, positions=positions, inplace=True, changing=("x[0]", "x[1]", "positions")
    )
    of_layer = ("q", "k", "v", "q_out", "cache.k", "cache.v", "places.positions", "places.slot_mapping")
    plan_of_prologue = prologue.Plan(prologue.attention_prologue, q, k, v, **steps, changing=of_layer)
    plan_of_attention = prologue.Plan(prologue.paged_attention, q, cache, out=out, **decode, changing=("q", "out", "cache.k", "cache.v"))
    prologue_of = lambda out: prologue.attention_prologue(q, k, v, cache=cache, rope=rope, places=places, faults=faults, q_out=out)
    return {
        "rotary: q and k in place": lambda: prologue.rotary(q, k, rope=rope, positions=positions, inplace=True),
        "rotary: q and k, new tensors": lambda: prologue.rotary(q, k, rope=rope, positions=positions),
        "rotary: one tensor in place, theta": lambda: prologue.rotary(q, rope=theta, offset=7, faults=faults, inplace=True),
        "attention_prologue: q_out given": lambda: prologue_of(q_out),
        "attention_prologue: a new q": lambda: prologue_of(None),
        "attention_prologue: q_out given, norms": lambda: prologue.attention_prologue(q, k, v, q_norm=norm, k_norm=norm, **steps),
        "paged_attention: out given": lambda: prologue.paged_attention(q, cache, out=out, **decode),
        "Plan of rotary: q, k and positions": lambda: plan_of_rotary(q, k, positions),
        "Plan of attention_prologue: 8 arrays": lambda: plan_of_prologue(q, k, v, q_out, cache.k, cache.v, positions, slots),
        "Plan of paged_attention: 4 arrays": lambda: plan_of_attention(q, out, cache.k, cache.v),
        "compat.vllm.rotary_embedding": lambda: vllm.rotary_embedding(positions, *long_rows, HEAD_DIM, table_bf16, True),
        "compat.flash_attn.apply_rotary_emb": lambda: flash_attn.apply_rotary_emb(q.unsqueeze(0), *half),
        "compat.flashinfer.apply_rope_pos_ids_inplace": lambda: flashinfer.apply_rope_pos_ids_inplace(q, k, ids),
        "compat.sglang.apply_rope_inplace_with_kvcache": lambda: sglang.apply_rope_inplace_with_kvcache(
            q, k, v, *rows, table, positions, slots, is_neox=True
        ),
        "compat.liger.liger_rotary_pos_emb": lambda: liger.liger_rotary_pos_emb(*batch, cos, sin),
    }, {
        "q": q, "k": k, "v": v, "positions": positions, "batch": batch, "cos": cos, "sin": sin, "half": half, "table": table,
        "cache": cache, "pages": pages, "seq_lens": seq_lens, "out": out,
    }  # fmt: skip


def flash_attn_rows(a):
    from flash_attn import flash_attn_with_kvcache
    from flash_attn.layers.rotary import apply_rotary_emb

    large = [make(PAGES, 256, KV_HEADS, HEAD_DIM) for _ in range(2)]  # its pages have a multiple of 256 tokens
    options = {"cache_seqlens": a["seq_lens"], "block_table": a["pages"].block_table, "causal": True}
    return {
        "flash_attn apply_rotary_emb, Triton": lambda: apply_rotary_emb(a["q"].unsqueeze(0), *a["half"]),
        "flash_attn flash_attn_with_kvcache, pages of 256": lambda: flash_attn_with_kvcache(a["q"][:, None], *large, **options),
    }


def liger_rows(a):
    from liger_kernel.transformers.rope import liger_rotary_pos_emb

    return {"liger_kernel liger_rotary_pos_emb, Triton": lambda: liger_rotary_pos_emb(*a["batch"], a["cos"], a["sin"])}


def flashinfer_rows(a):
    import flashinfer as theirs

    q, k, v, cache = a["q"], a["k"], a["v"], a["cache"]
    ids = a["positions"].int()
    indptr = torch.arange(TOKENS + 1, device="cuda").int()
    indices, last = torch.arange(TOKENS, device="cuda").int(), a["seq_lens"]
    flat = [x.view(TOKENS, -1) for x in (q, k)]
    pages = (cache.k, cache.v)
    decode = theirs.BatchDecodeWithPagedKVCacheWrapper(torch.empty(128 << 20, dtype=torch.uint8, device="cuda"), "NHD")
    decode.plan(indptr, indices, last, Q_HEADS, KV_HEADS, HEAD_DIM, PAGE_SIZE, q_data_type=q.dtype, kv_data_type=q.dtype)
    append = lambda: theirs.append_paged_kv_cache(k, v, indices, last - 1, pages, indices, indptr, last)  # noqa: E731
    rotate = lambda: theirs.apply_rope_with_cos_sin_cache_inplace(a["positions"], *flat, HEAD_DIM, a["table"], True)  # noqa: E731
    return {
        "flashinfer apply_rope_pos_ids_inplace": lambda: theirs.apply_rope_pos_ids_inplace(q, k, ids),
        "flashinfer apply_rope_with_cos_sin_cache_inplace": rotate,
        "flashinfer append_paged_kv_cache": append,
        "flashinfer decode wrapper, run after plan": lambda: decode.run(q, pages, out=a["out"]),
    }


def peer_rows(arrays):
    rows = {}
    for name, rows_of in (("flash_attn", flash_attn_rows), ("liger_kernel", liger_rows), ("flashinfer", flashinfer_rows)):
        try:
            rows.update(rows_of(arrays))
        except Exception as error:  # noqa: BLE001  # a library that cannot be imported, or not be called here
            print(f"left out: {name} ({type(error).__name__}: {error})")
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
    comparisons, _library = torch_rows(arrays["q"])
    rows = {}
    for name, call in {**comparisons, **ours, **peer_rows(arrays)}.items():
        rows[name] = time_of(call)
        print(f"{name:50} {rows[name]['median']:8.2f} us, best {rows[name]['best']:8.2f}", flush=True)
    if options.json:
        about = {"date": datetime.date.today().isoformat(), "device": torch.cuda.get_device_name(), "torch": torch.__version__, "python": platform.python_version()}
        with open(options.json, "w") as file:
            json.dump({**about, "us": rows}, file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    main()
