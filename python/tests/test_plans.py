"""Calls that are made again take another way than first ones: a plan. It must not be noticed, but in the time."""

import threading

import numpy as np
import oracle
import prologue_attention as prologue
import pytest
from prologue_attention import HeadNorm, PagedKv, PageTable, Plan, QueryScale, Rope, TokenPlaces

DIM, PAGE, PAGES = 16, 4, 6
TABLE = oracle.table(40, DIM)


def in_a_new_thread(call):
    """Its calls are the first ones: each thread has plans of its own."""
    result = []

    def run():
        try:
            result.append(call())
        except Exception as error:  # noqa: BLE001
            result.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return result[0]


def outcome(call):
    try:
        return call()
    except Exception as error:  # noqa: BLE001
        return error


class Signatures:
    """Random calls. A signature is drawn by `seed`, its arrays by `data`: the same seed is the same signature, most of the time."""

    def __init__(self, seed, data):
        self.rng, self.data = np.random.default_rng(seed), np.random.default_rng(data)
        self.tokens = self.pick(1, 2, 3)
        self.heads, self.kv_heads = self.pick((2, 1), (4, 2), (2, 2))
        self.dtype = self.pick(np.float32, np.float32, np.float16)

    def pick(self, *values):
        return values[self.rng.integers(len(values))]

    def array(self, *shape):
        strided = self.pick(False, False, True)
        values = self.data.standard_normal((*shape[:-1], shape[-1] * 2 if strided else shape[-1])).astype(self.dtype)
        return values[..., : shape[-1]]

    def rope(self):
        style = self.pick("neox", "interleaved")
        options = {"style": style, "inverse": self.pick(False, True), "attention_factor": self.pick(1.0, 0.5)}
        kind = self.pick("table", "theta", "inv_freq", "apart")
        if kind == "theta":
            return Rope(theta=self.pick(1e4, 5e5), rotary_dim=self.pick(DIM, 8), **options)
        if kind == "inv_freq":
            return Rope(inv_freq=oracle.frequencies(DIM).astype(np.float32), **options)
        past = self.pick("record", "zero", "identity")
        if kind == "apart":
            return Rope(cos=TABLE[:, :8].copy(), sin=TABLE[:, 8:].copy(), past_table=past, **options)
        return Rope(cos_sin=TABLE, past_table=past, **options)

    def positions(self):
        return self.data.integers(-1 if self.pick(0, 0, 1) else 0, 40, self.tokens).astype(self.pick(np.int32, np.int64))

    def cache(self):
        shape = (PAGES, PAGE, self.kv_heads, DIM)
        if self.pick(0, 1):
            return PagedKv(self.array(*shape), self.array(*shape))
        scales = [np.ones(1, np.float32), np.full(1, 0.5, np.float32)]
        return PagedKv(*[self.data.integers(0, 100, shape).astype(np.int8) for _ in range(2)], *scales, scaling="tensor")

    def norm(self):
        kind = self.pick("none", "rms", "layer")
        if kind == "none":
            return None
        weight = self.data.standard_normal(DIM).astype(np.float32)
        return HeadNorm(weight=weight, eps=self.pick(1e-6, 1e-3), kind=kind, placement=self.pick("before_rope", "after_rope"))

    def rotary(self):
        x = [self.array(self.tokens, heads, DIM) for heads in (self.heads, self.kv_heads)[: self.pick(1, 2)]]
        out = self.pick("new", "in place", "given")
        options = {"rope": self.rope(), "tail": self.pick("copy", "zero")}
        if self.pick(0, 1):
            options["positions"] = self.positions()
        else:
            options["offset"] = self.pick(0, 5)
        if out == "given":
            options["out"] = [self.array(*one.shape) for one in x]
        got = prologue.rotary(*x, inplace=out == "in place", **options)
        return [*x, *(got if isinstance(got, tuple) else (got,))]

    def attention_prologue(self):
        q, k, v = (self.array(self.tokens, heads, DIM) for heads in (self.heads, self.kv_heads, self.kv_heads))
        cache = self.cache()
        slots = self.data.permutation(PAGES * PAGE)[: self.tokens].astype(np.int64)
        got = prologue.attention_prologue(
            q, k, v, cache=cache, rope=self.pick(self.rope, lambda: None)(), places=TokenPlaces(self.positions(), slots),
            q_norm=self.norm(), k_norm=self.norm(), hadamard_block=self.pick(0, 8), rounding=self.pick("once", "per_step"),
            q_scale=self.pick(None, QueryScale(0.5), QueryScale(2.0, "llama4", 0.1, 8.0)), q_out=self.pick(None, q),
            token_faults=self.pick(None, np.zeros(self.tokens, np.uint8)),
        )  # fmt: skip
        return [q, k, v, cache.k, cache.v, got]

    def mla_prologue(self):
        q_pe, kv_c = self.array(self.tokens, self.heads, DIM), self.array(self.tokens, 32)
        k_pe, kv_cache = self.array(self.tokens, DIM), self.array(PAGES, PAGE, 32 + DIM)
        slots = self.data.permutation(PAGES * PAGE)[: self.tokens]
        got = prologue.mla_prologue(kv_c, k_pe, q_pe, kv_cache=kv_cache, slot_mapping=slots, rope=self.rope(), positions=self.positions())
        return [kv_cache, got]

    def paged_attention(self):
        q, cache = self.array(self.tokens, self.heads, DIM), self.cache()
        got = prologue.paged_attention(
            q, cache, page_table=PageTable(self.data.permutation(PAGES).astype(np.int32)[None, :3]),
            cu_seqlens_q=np.array([0, self.tokens], np.int32), seq_lens=self.data.integers(self.tokens, 12, 1).astype(np.int32),
            window=self.pick(0, 2), scale=self.pick(None, 0.1, 1), soft_cap=self.pick(0.0, 5.0), max_seq_len=self.pick(None, 12),
            batch_invariant=self.pick(False, True), sinks=self.pick(None, np.zeros(self.heads, np.float32)),
        )  # fmt: skip
        return [got]


OPERATIONS = ["rotary", "attention_prologue", "mla_prologue", "paged_attention"]


@pytest.mark.parametrize("operation", OPERATIONS)
def test_random_calls_are_as_first_calls(operation):
    """Of 40 signatures 8 calls each, in random order: the first two make a plan, and all have the bits of a call that is the first one."""
    order = np.random.default_rng(3).permutation(np.repeat(np.arange(40), 8))
    planned = {}
    for data, seed in enumerate(order):
        got = outcome(getattr(Signatures(seed, data), operation))
        want = in_a_new_thread(getattr(Signatures(seed, data), operation))
        if isinstance(want, Exception):
            assert type(got) is type(want) and str(got) == str(want)
            continue
        planned[seed] = planned.get(seed, 0) + 1
        for one, other in zip(got, want):
            np.testing.assert_array_equal(one, other)
    assert sum(count >= 5 for count in planned.values()) > 10


def test_what_differs_in_one_value_is_another_call():
    """Each option changed in turn, between calls of one signature that has a plan."""
    x, positions = np.random.default_rng(1).standard_normal((3, 2, DIM)).astype(np.float32), np.array([1, 5, 2])
    base = {"rope": Rope(cos_sin=TABLE), "positions": positions}
    changes = [
        {"rope": Rope(cos_sin=TABLE, style="interleaved")}, {"rope": Rope(cos_sin=TABLE, inverse=True)},
        {"rope": Rope(cos_sin=TABLE, attention_factor=-0.0)}, {"rope": Rope(cos_sin=TABLE, attention_factor=0.0)},
        {"rope": Rope(cos_sin=TABLE, max_position=4, past_table="zero")}, {"rope": Rope(cos_sin=TABLE, max_position=4, past_table="identity")},
        {"rope": Rope(cos_sin=TABLE.astype(np.float16))}, {"rope": Rope(cos_sin=TABLE[:, :8])}, {"rope": Rope(cos_sin=TABLE[::2])},
        {"rope": Rope(theta=1e4, rotary_dim=DIM)}, {"rope": Rope(theta=1e5, rotary_dim=DIM)}, {"positions": positions.astype(np.int32)},
        {"positions": np.array([1, 9, 5, 9, 2])[::2]}, {"positions": positions[::-1].copy()}, {"positions": None, "offset": 3}, {"positions": None, "offset": 4}, {"rotate": [False]},
        {"layout": "hsd"}, {"layout": "shd"}, {"rope": Rope(cos_sin=TABLE[:, :8], rotary_dim=8)}, {"positions": np.array([1, 5, -1])}, {"rope": Rope(cos_sin=TABLE[:, :8], rotary_dim=8), "tail": "zero"},
    ]  # fmt: skip
    results = []
    for _ in range(4):
        prologue.rotary(x, **base)
        for change in changes:
            options = {**base, **change}
            if change.get("layout"):
                options["positions"] = None
            got = prologue.rotary(x, **options)
            np.testing.assert_array_equal(got, in_a_new_thread(lambda options=options: prologue.rotary(x, **options)))
            results.append(got.tobytes())
    assert len(set(results)) >= len(changes) - 5  # two dtypes of positions and two strides, for example, have like results


def test_a_wrong_type_is_an_error_after_a_plan():
    x = np.zeros((3, 2, DIM), np.float32)
    for _ in range(4):
        prologue.rotary(x, rope=Rope(cos_sin=TABLE), offset=1)
    with pytest.raises(TypeError, match="offset is not an integer"):
        prologue.rotary(x, rope=Rope(cos_sin=TABLE), offset=1.0)


def test_arrays_that_overlap_are_an_error_after_a_plan():
    memory = np.zeros(400, np.float32)
    x, beside, over = (memory[at : at + 96].reshape(3, 2, DIM) for at in (0, 96, 16))
    for _ in range(4):
        prologue.rotary(x, rope=Rope(cos_sin=TABLE), out=beside)
    with pytest.raises(ValueError, match="x overlaps x|overlaps"):
        prologue.rotary(x, rope=Rope(cos_sin=TABLE), out=over)
    assert not memory.any()
    prologue.rotary(x, rope=Rope(cos_sin=TABLE), out=x)  # the same array is in place


def test_an_array_that_is_not_aligned_is_an_error_after_a_plan():
    memory = np.zeros(1600, np.uint8)
    start = -memory.ctypes.data % 16
    aligned, other = (memory[start + shift :][:384].view(np.float32).reshape(3, 2, DIM) for shift in (0, 2))
    for _ in range(4):
        prologue.rotary(aligned, rope=Rope(cos_sin=TABLE), inplace=True)
    with pytest.raises(ValueError, match="it must be aligned to 4 bytes"):
        prologue.rotary(other, rope=Rope(cos_sin=TABLE), inplace=True)


def test_cos_and_sin_that_are_one_row_or_two():
    """A plan may read both as one table; the next call has them apart."""
    x, row, other, places = normal(1, 2, DIM), normal(1, DIM), normal(1, DIM), TokenPlaces(np.zeros(1, np.int64))
    for sin in (row[:, 8:], row[:, 8:], row[:, 8:], other[:, 8:], row[:, 8:]):
        rope = Rope(cos=row[:, :8], sin=sin)
        want = in_a_new_thread(lambda rope=rope: prologue.attention_prologue(x, rope=rope, places=places))
        np.testing.assert_array_equal(prologue.attention_prologue(x, rope=rope, places=places), want)


def test_faults_after_a_plan():
    x = np.ones((3, 2, DIM), np.float32)
    for _ in range(3):
        prologue.rotary(x, rope=Rope(cos_sin=TABLE), positions=np.array([1, 2, 3]))
    with pytest.raises(IndexError, match="position out of range at token 1; 1 token was skipped"):
        prologue.rotary(x, rope=Rope(cos_sin=TABLE), positions=np.array([1, 40, 3]))
    faults = np.zeros(2, np.int64)
    for count in range(1, 5):
        prologue.rotary(x, rope=Rope(cos_sin=TABLE), positions=np.array([1, 40, 3]), faults=faults)
        assert prologue.read_faults(faults).count == count


def test_more_signatures_than_are_kept():
    """257 signatures in turn, three times."""
    for _ in range(3):
        for offset in range(257):
            x = np.ones((1, 1, 2), np.float32)
            prologue.rotary(x, rope=Rope(theta=1e4, rotary_dim=2), offset=offset, inplace=True)
            np.testing.assert_allclose(x[0, 0], [np.cos(offset) - np.sin(offset), np.cos(offset) + np.sin(offset)], atol=2e-6)


def test_threads_at_a_time():
    want = [in_a_new_thread(Signatures(seed, seed).attention_prologue) for seed in range(6)]
    failures = []

    def run():
        for _ in range(20):
            for seed in range(6):
                got = outcome(Signatures(seed, seed).attention_prologue)
                if isinstance(want[seed], Exception):
                    failures.extend([] if str(got) == str(want[seed]) else [seed])
                elif not all(np.array_equal(a, b) for a, b in zip(got, want[seed])):
                    failures.append(seed)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


# ---- Plans that a caller holds.


def normal(*shape, seed=0):
    return np.random.default_rng(sum(shape) + seed).standard_normal(shape).astype(np.float32)


@pytest.fixture(params=["numpy", "torch"])
def to(request):
    return (lambda array: array) if request.param == "numpy" else pytest.importorskip("torch").from_numpy


def test_a_plan_of_rotary(to):
    rope = Rope(cos_sin=to(TABLE))
    plan = Plan(prologue.rotary, to(normal(3, 4, DIM)), to(normal(3, 2, DIM)), rope=rope, positions=to(np.arange(3)), inplace=True, changing=("x[0]", "x[1]", "positions"))  # fmt: skip
    for seed in range(3):
        q, k, positions = normal(3, 4, DIM, seed=seed), normal(3, 2, DIM, seed=seed), np.array([seed, 7, 39])
        want = [prologue.rotary(one, rope=Rope(cos_sin=TABLE), positions=positions) for one in (q, k)]
        assert plan(to(q), to(k), to(positions)) is None
        np.testing.assert_array_equal(q, want[0])
        np.testing.assert_array_equal(k, want[1])


def test_a_plan_of_everything(to):
    """The prologue and attention of two layers, each with a plan for both."""
    q, k, v = (normal(3, heads, DIM) for heads in (4, 2, 2))
    layers = [[normal(PAGES, PAGE, 2, DIM, seed=seed) for seed in (layer, layer + 9)] for layer in range(2)]
    want = [[one.copy() for one in layer] for layer in layers]
    q_out, out = np.zeros_like(q), np.zeros_like(q)
    batch = {"page_table": PageTable(to(np.array([[2, 0, 1]], np.int32))), "cu_seqlens_q": to(np.array([0, 3], np.int32)), "seq_lens": to(np.array([9], np.int32))}  # fmt: skip
    positions, slots = np.array([6, 7, 8]), np.array([2, 3, 4])
    steps = {"rope": Rope(theta=1e4, rotary_dim=DIM), "q_norm": HeadNorm(weight=to(normal(DIM)))}
    places = TokenPlaces(to(positions), to(slots))
    cache = PagedKv(*map(to, layers[0]))
    first = Plan(prologue.attention_prologue, to(q), to(k), to(v), cache=cache, places=places, q_out=to(q_out), **steps, changing=("q", "cache.k", "cache.v", "q_out"))  # fmt: skip
    second = Plan(prologue.paged_attention, to(q_out), cache, out=to(out), **batch, changing=("cache.k", "q", "cache.v", "out"))
    assert not q_out.any() and not out.any()  # a plan does not run
    assert first.changing == ("q", "cache.k", "cache.v", "q_out")
    for layer, cache in zip(layers, want):
        cache = PagedKv(*map(to, cache))
        rotated = prologue.attention_prologue(to(q), to(k), to(v), cache=cache, places=places, **steps)
        expected = prologue.paged_attention(rotated, cache, **batch)
        first(to(q), *map(to, layer), to(q_out))
        second(to(layer[0]), to(q_out), to(layer[1]), to(out))
        np.testing.assert_array_equal(q_out, np.asarray(rotated))
        np.testing.assert_array_equal(out, np.asarray(expected))
        for one, other in zip(layer, (cache.k, cache.v)):
            np.testing.assert_array_equal(one, np.asarray(other))


def test_a_plan_of_mla_prologue(to):
    q, positions = normal(3, 4, DIM), np.arange(3)
    plan = Plan(prologue.mla_prologue, q_pe=to(q), q_pe_out=to(q), rope=Rope(cos_sin=to(TABLE)), positions=to(positions), changing=["q_pe", "q_pe_out"])  # fmt: skip
    want = prologue.mla_prologue(q_pe=q, rope=Rope(cos_sin=TABLE), positions=positions)
    plan(to(q), to(q))
    np.testing.assert_array_equal(q, want)


def test_a_plan_keeps_its_arrays():
    q, plan = normal(3, 4, DIM), None
    want = prologue.rotary(q, rope=Rope(cos_sin=TABLE))
    plan = Plan(prologue.rotary, q, rope=Rope(cos_sin=TABLE.copy()), inplace=True, changing=("x[0]",))
    junk = [np.full_like(TABLE, 7) for _ in range(20)]
    plan(q)
    assert junk
    np.testing.assert_array_equal(q, want)


def test_errors_of_plans():
    q, out = normal(3, 4, DIM), normal(3, 4, DIM)
    rope = Rope(cos_sin=TABLE)
    plan = Plan(prologue.rotary, q, rope=rope, out=out, changing=("x[0]", "out[0]"))
    before = out.copy()
    for arrays, error, message in (
        ((q,), TypeError, "was called with 1 arrays: it takes 2"),
        ((q[:2], out), ValueError, r"argument 0 of the plan of rotary is float32 \[2, 4, 16\]: the plan was made with float32 \[3, 4, 16\]"),
        ((q, out.astype(np.float64)), ValueError, "argument 1 of the plan of rotary is float64"),
        ((q, out[:, ::-1]), ValueError, "strides, device and address modulo 16 must be equal"),
        ((q, None), TypeError, "argument 1 of the plan of rotary is not an array"),
        ((q, q), ValueError, "the arrays overlap in another way"),
    ):
        with pytest.raises(error, match=message):
            plan(*arrays)
    frozen = out.copy()
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        plan(q, frozen)
    np.testing.assert_array_equal(out, before)
    for arguments, options, error, message in (
        ((prologue.gather_cos_sin, TABLE, np.arange(3)), {"changing": ["cos_sin"]}, TypeError, "there are no plans of"),
        ((prologue.rotary, q), {"rope": rope, "changing": ["x[0]"]}, ValueError, "out is None: a plan makes no arrays"),
        ((prologue.attention_prologue, q), {"rope": rope, "changing": ["q"]}, ValueError, "q_out is None: a plan makes no arrays"),
        ((prologue.rotary, q), {"rope": rope, "inplace": True, "changing": []}, TypeError, "one or more arrays"),
        ((prologue.rotary, q), {"rope": rope, "inplace": True, "changing": "x[0]"}, TypeError, "one or more arrays"),
        ((prologue.rotary, q), {"rope": rope, "inplace": True, "changing": ["q"]}, ValueError, r"'q' is no argument: it must be one of 'x\[0\]', 'rope.cos_sin'"),
        ((prologue.rotary, q), {"rope": rope, "inplace": True, "changing": ["positions"]}, ValueError, "'positions' is None"),
        ((prologue.rotary, q), {"rope": rope, "inplace": True, "changing": ["x[0]", "x[0]"]}, ValueError, "named twice"),
        ((prologue.rotary, q[:0]), {"rope": rope, "inplace": True, "changing": ["x[0]"]}, ValueError, "needs tokens"),
        ((prologue.rotary, q[0]), {"rope": rope, "inplace": True, "changing": ["x[0]"]}, ValueError, "it must have 3 axes"),
    ):  # fmt: skip
        with pytest.raises(error, match=message):
            Plan(*arguments, **options)
