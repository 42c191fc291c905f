#!/usr/bin/env python3
"""The C interface from Python, with ctypes alone: five tokens of one sequence go through the attention prologue and attention, on the
CPU. Plain Python computes the same from the formulas.

    python3 examples/python/attention.py PREFIX/lib/libprologue.so
"""
import ctypes
import math
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "c"))  # where prologue_ctypes.py is
import prologue_ctypes as pl  # noqa: E402

TOKENS, Q_HEADS, KV_HEADS, HEAD_DIM, PAGES, PAGE_SIZE, MAX_POSITION = 5, 4, 2, 16, 8, 4, 64
ROW = (Q_HEADS + 2 * KV_HEADS) * HEAD_DIM


def floats(count):
    return (ctypes.c_float * count)()


def rotate(x, position):
    """The neox rotation of a head, in float64."""
    half = HEAD_DIM // 2
    y = list(x)
    for i in range(half):
        angle = position * 10000.0 ** (-2.0 * i / HEAD_DIM)
        y[i] = x[i] * math.cos(angle) - x[i + half] * math.sin(angle)
        y[i + half] = x[i] * math.sin(angle) + x[i + half] * math.cos(angle)
    return y


def reference(qkv, token, head):
    """Attention of one token and head, from the packed qkv."""
    def rows(t, h):
        return qkv[t * ROW + h * HEAD_DIM:t * ROW + (h + 1) * HEAD_DIM]

    kv_head = head // (Q_HEADS // KV_HEADS)
    q = rotate(rows(token, head), token)
    weights = []
    for t in range(token + 1):
        k = rotate(rows(t, Q_HEADS + kv_head), t)
        weights.append(math.exp(sum(a * b for a, b in zip(q, k)) / math.sqrt(HEAD_DIM)))
    values = [rows(t, Q_HEADS + KV_HEADS + kv_head) for t in range(token + 1)]
    return [sum(w * v[d] for w, v in zip(weights, values)) / sum(weights) for d in range(HEAD_DIM)]


def main():
    # snippet: load
    pl.load(sys.argv[1])  # libprologue.so
    execution = pl.Execution(device=pl.DEVICE_CPU, num_threads=2)
    # end snippet

    qkv, q, out = floats(TOKENS * ROW), floats(TOKENS * Q_HEADS * HEAD_DIM), floats(TOKENS * Q_HEADS * HEAD_DIM)
    k_cache, v_cache = floats(PAGES * PAGE_SIZE * KV_HEADS * HEAD_DIM), floats(PAGES * PAGE_SIZE * KV_HEADS * HEAD_DIM)
    for i in range(len(qkv)):
        qkv[i] = ((i * 7919) % 2001 - 1000) / 1000.0
    cu_seqlens_q, seq_lens = (ctypes.c_int32 * 2)(0, TOKENS), (ctypes.c_int32 * 1)(TOKENS)
    pages = (ctypes.c_int32 * 2)(6, 1)
    fault_memory = (ctypes.c_uint64 * 4)()  # a fault record is aligned to 16 bytes
    faults = (ctypes.addressof(fault_memory) + 15) // 16 * 16

    # snippet: call
    cos_sin = floats(MAX_POSITION * HEAD_DIM)
    pl.rope_cos_sin(pl.RopeTableParams(rotary_dim=HEAD_DIM), MAX_POSITION, ctypes.addressof(cos_sin))

    p = pl.AttentionPrologueParams(num_tokens=TOKENS, num_q_heads=Q_HEADS, num_kv_heads=KV_HEADS, head_dim=HEAD_DIM, dtype=pl.DTYPE_F32)
    pl.set_packed_qkv(p, ctypes.addressof(qkv), ROW)
    p.rope.rotary_dim = HEAD_DIM
    pl.set_cos_sin_table(p.rope, ctypes.addressof(cos_sin), pl.DTYPE_F32, MAX_POSITION)
    # end snippet
    p.places.num_seqs = 1
    p.places.cu_seqlens_q, p.places.seq_lens = ctypes.addressof(cu_seqlens_q), ctypes.addressof(seq_lens)
    p.places.page_table.block_table = ctypes.addressof(pages)
    p.places.page_table.block_table_stride = p.places.page_table.max_pages_per_seq = 2
    p.faults = faults
    p.q_out = pl.MutableHeadsView(data=ctypes.addressof(q), token_stride=Q_HEADS * HEAD_DIM, head_stride=HEAD_DIM)
    p.cache.k.data, p.cache.v.data = ctypes.addressof(k_cache), ctypes.addressof(v_cache)
    p.cache.num_pages, p.cache.page_size, p.cache.num_kv_heads, p.cache.k.head_dim = PAGES, PAGE_SIZE, KV_HEADS, HEAD_DIM
    p.cache.k.strides = p.cache.v.strides = pl.nhd_strides(PAGE_SIZE, KV_HEADS, HEAD_DIM)
    plan = pl.attention_prologue_plan_create(p, TOKENS, execution)
    pl.attention_prologue_plan_run(plan, p, execution)
    print("kernel:", pl.attention_prologue_plan_kernel(plan))
    pl.attention_prologue_plan_destroy(plan)

    a = pl.PagedAttentionParams(num_tokens=TOKENS, num_seqs=1, num_q_heads=Q_HEADS, head_dim=HEAD_DIM, dtype=pl.DTYPE_F32,
                                scale=1 / math.sqrt(HEAD_DIM), max_seqlen_q=TOKENS, max_seq_len=TOKENS, faults=faults,
                                cu_seqlens_q=ctypes.addressof(cu_seqlens_q), seq_lens=ctypes.addressof(seq_lens))
    a.q = pl.HeadsView(data=ctypes.addressof(q), token_stride=Q_HEADS * HEAD_DIM, head_stride=HEAD_DIM)
    a.out = pl.MutableHeadsView(data=ctypes.addressof(out), token_stride=Q_HEADS * HEAD_DIM, head_stride=HEAD_DIM)
    a.kv = p.cache
    a.page_table = p.places.page_table
    pl.paged_attention(a, execution)

    # Errors are exceptions here.
    a.dtype = 99
    try:
        pl.paged_attention(a, execution)
        sys.exit("an unknown type was not refused")
    except pl.Error as error:
        print("as it should be:", error)
        if error.code not in (pl.STATUS_INVALID_ARGUMENT, pl.STATUS_UNSUPPORTED) or "dtype" not in str(error):
            sys.exit("the error is another one")

    errors = [abs(out[(t * Q_HEADS + h) * HEAD_DIM + d] - want) for t in range(TOKENS) for h in range(Q_HEADS)
              for d, want in enumerate(reference(list(qkv), t, h))]
    largest = max(errors) if all(map(math.isfinite, errors)) else math.nan
    fault = pl.decode_fault(pl.FaultRecord.from_address(faults))
    print(f"prologue {pl.version()}, largest difference from float64: {largest:.3g}, skipped tokens: {fault.count}")
    if not largest < 1e-5 or fault.count != 0:
        sys.exit(1)


if __name__ == "__main__":
    main()
