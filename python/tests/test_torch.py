import numpy as np
import oracle
import prologue_attention as prologue
import pytest
from prologue_attention import HeadNorm, PagedKv, PageTable, Rope, TokenPlaces

torch = pytest.importorskip("torch")
from torch.library import opcheck  # noqa: E402

ROPE = Rope(theta=10000.0, rotary_dim=8)


@pytest.fixture
def step():
    generator = torch.Generator().manual_seed(5)
    normal = lambda *shape: torch.randn(*shape, generator=generator)  # noqa: E731
    return {
        "q": normal(5, 4, 16), "k": normal(5, 2, 16), "v": normal(5, 2, 16), "k_cache": normal(6, 4, 2, 16), "v_cache": normal(6, 4, 2, 16),
        "table": torch.from_numpy(oracle.table(32, 16)), "positions": torch.tensor([2, 3, 4, 0, 1]),
        "slots": torch.tensor([22, 23, 8, 0, 1]), "block_table": torch.tensor([[5, 2], [0, 4]], dtype=torch.int32),
        "cu_seqlens_q": torch.tensor([0, 3, 5], dtype=torch.int32), "seq_lens": torch.tensor([5, 2], dtype=torch.int32),
        "norm": normal(16), "hidden": normal(5, 24), "qkv_weight": normal(128, 24), "output_weight": normal(24, 64),
    }  # fmt: skip


def attend(s):
    """The prologue, then attention: what a model's layer does."""
    cache = PagedKv(s["k_cache"], s["v_cache"])
    norm = HeadNorm(weight=s["norm"])
    q = prologue.attention_prologue(
        s["q"], s["k"], s["v"], cache=cache, rope=Rope(cos_sin=s["table"]), places=TokenPlaces(s["positions"], s["slots"]), q_norm=norm, k_norm=norm
    )
    return prologue.paged_attention(
        q, cache, page_table=PageTable(s["block_table"]), cu_seqlens_q=s["cu_seqlens_q"], seq_lens=s["seq_lens"]
    )


def layer(s):
    places = TokenPlaces(cu_seqlens_q=s["cu_seqlens_q"], seq_lens=s["seq_lens"], page_table=PageTable(s["block_table"]))
    return prologue.attention_layer(
        s["hidden"], s["qkv_weight"], s["output_weight"], num_q_heads=4, num_kv_heads=2, head_dim=16,
        cache=PagedKv(s["k_cache"], s["v_cache"]), places=places, rope=Rope(cos_sin=s["table"]),
    )  # fmt: skip


@pytest.mark.parametrize("call", [attend, layer])
def test_the_same_bits_as_numpy(step, call):
    arrays = {name: tensor.clone().numpy() for name, tensor in step.items()}
    np.testing.assert_array_equal(call(step).numpy(), call(arrays))
    np.testing.assert_array_equal(step["k_cache"].numpy(), arrays["k_cache"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_dtypes_views_and_in_place(dtype):
    packed = torch.randn(6, 10, 16, dtype=dtype)
    before = packed.clone()
    q = packed[:, 2:5]
    want = prologue.rotary(q, rope=ROPE)
    assert want.dtype == dtype and torch.equal(packed, before)
    assert prologue.rotary(q, rope=ROPE, inplace=True) is q
    assert torch.equal(q, want) and torch.equal(packed[:, 5:], before[:, 5:])


def test_a_float8_cache(step):
    step["k_cache"], step["v_cache"] = step["k_cache"].to(torch.float8_e4m3fn), step["v_cache"].to(torch.float8_e4m3fn)
    assert attend(step).isfinite().all()
    got = step["v_cache"].view(-1, 2, 16)[step["slots"]]
    assert torch.equal(got.float(), step["v"].to(torch.float8_e4m3fn).float())


def test_errors_and_faults(step):
    with pytest.raises(ValueError, match="rotary_dim is 18"):
        prologue.rotary(step["q"], rope=ROPE._replace(rotary_dim=18))
    with pytest.raises(IndexError, match="position out of range at token 2"):
        prologue.rotary(step["q"], rope=Rope(cos_sin=step["table"][:4]), positions=step["positions"])
    with pytest.raises(ValueError, match="rotary_dim is 18"):  # also through the dispatcher
        prologue.rotary(step["q"].clone().requires_grad_(), rope=ROPE._replace(rotary_dim=18))


@pytest.mark.parametrize(
    "rope, positions",
    [
        (ROPE, None),
        (ROPE._replace(style="interleaved", rotary_dim=6, attention_factor=1.5), torch.tensor([[0, 3, 1], [7, 2, 2]])),
        (Rope(cos_sin=torch.from_numpy(oracle.table(2, 8, dtype=np.float64)), past_table="identity"), None),
        (Rope(width="full", cos=torch.rand(3, 8, dtype=torch.float64), sin=torch.rand(3, 8, dtype=torch.float64)), None),
        (ROPE._replace(inverse=True), None),
    ],
)
def test_gradients(rope, positions):
    q = torch.randn(2, 3, 2, 8, dtype=torch.float64, requires_grad=True)
    k = torch.randn(2, 3, 1, 8, dtype=torch.float64, requires_grad=True)
    run = lambda q, k: prologue.rotary(q, k, rope=rope, positions=positions)  # noqa: E731
    assert torch.autograd.gradcheck(run, (q, k))
    assert torch.autograd.gradgradcheck(run, (q, k))


@pytest.mark.parametrize("layout", ["bshd", "sbhd", "bhsd"])
def test_padding_has_no_gradient(layout):
    order = ["bshd".index(axis) for axis in layout]
    x = torch.randn(2, 3, 4, 8).permute(order).requires_grad_()
    y = prologue.rotary(x, rope=ROPE, positions=torch.tensor([[0, -1, 2], [3, 4, -1]]), layout=layout)
    y.backward(torch.ones_like(y))
    gradient = x.grad.permute([layout.index(axis) for axis in "bshd"])
    assert (gradient[0, 1] == 0).all() and (gradient[1, 2] == 0).all() and (gradient[0, 0] != 0).all()


@pytest.mark.parametrize("positions", [False, True])
def test_rows_that_no_sequence_owns_have_no_gradient(positions):
    """Gradients of rows behind cu_seqlens were uninitialised: TransformerEngine#3057."""
    from prologue_attention.compat import flash_attn, transformer_engine

    cos, sin = (part.contiguous() for part in torch.from_numpy(oracle.table(9, 8)).chunk(2, 1))
    cu = torch.tensor([0, 2, 3], dtype=torch.int32)
    freqs = torch.rand(9, 1, 1, 8)
    where = {"positions": torch.tensor([0, 1, 0, -1, -1])} if positions else {"cu_seqlens": cu}
    calls = [
        lambda x: prologue.rotary(x, rope=ROPE, **where),
        lambda x: prologue.rotary(x, x, rope=ROPE, rotate=[False, True], **where)[0],
        lambda x: prologue.rotary(x, rope=ROPE._replace(rotary_dim=4), tail="leave", **where),
        lambda x: flash_attn.apply_rotary_emb(x, cos, sin, cu_seqlens=cu, max_seqlen=2),
        lambda x: transformer_engine.apply_rotary_pos_emb(x, freqs, "thd", cu_seqlens=cu),
        lambda x: transformer_engine.apply_rotary_pos_emb(x, freqs, "thd", cu_seqlens=2 * cu, cp_size=2, cp_rank=1),
    ]
    torch.use_deterministic_algorithms(True)  # fills with NaN what is not initialised
    try:
        for call in calls:
            x = torch.randn(5, 2, 8, requires_grad=True)
            y = call(x)
            y.backward(torch.ones_like(y))
            for one in (y, x.grad):
                assert (one[3:] == 0).all() and (one[:3, :, :4] != 0).all() and one.isfinite().all()
    finally:
        torch.use_deterministic_algorithms(False)


def test_no_gradients_where_there_are_none(step):
    x = torch.randn(3, 2, 8, requires_grad=True)
    with pytest.raises(NotImplementedError, match="no gradients"):
        prologue.rotary(x, rope=ROPE, inplace=True)
    with torch.no_grad():
        assert not prologue.rotary(x, rope=ROPE).requires_grad
    for call, name in ((attend, "q"), (attend, "v"), (layer, "hidden"), (layer, "qkv_weight")):
        step[name].requires_grad_()
        with pytest.raises(NotImplementedError, match="only rotary has gradients"):
            call(step)
        with torch.no_grad():
            call(step)
        step[name].requires_grad_(False)


def recorded(monkeypatch, call):
    """The operators that a call runs, with their arguments, when the dispatcher is used."""
    import prologue_attention.torch

    for name in ("needed", "needed_without_gradients"):
        monkeypatch.setattr(prologue.torch._Dispatcher, name, staticmethod(lambda *x: True))
    calls = []

    class Recorder(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
            if function.namespace == "prologue":
                calls.append((function, arguments))
            return function(*arguments, **(keywords or {}))

    with Recorder():
        call()
    return calls


def test_opcheck(step, monkeypatch):
    def everything():
        attend(step)
        layer(step)
        prologue.gather_cos_sin(step["table"], step["positions"])
        prologue.rotary(step["q"], step["k"], rope=ROPE, positions=step["positions"])
        prologue.rotary(step["q"], rope=ROPE, inplace=True, faults=torch.zeros(2, dtype=torch.int64))

    calls = recorded(monkeypatch, everything)
    assert {function.name() for function, _ in calls} == {
        f"prologue::{name}" for name in ("attention_prologue", "paged_attention", "attention_layer", "gather_cos_sin", "rotary", "rotary_out")
    }
    for function, arguments in calls:
        opcheck(function, arguments)


@pytest.mark.parametrize("call", [attend, layer])
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiles_into_one_graph(step, call, backend):
    torch._dynamo.reset()
    wanted = {name: tensor.clone() for name, tensor in step.items()}
    want = call(wanted) * 2
    got = torch.compile(lambda s: call(s) * 2, fullgraph=True, backend=backend)(step)
    assert torch.equal(got, want)
    assert torch.equal(step["k_cache"], wanted["k_cache"]) and torch.equal(step["v_cache"], wanted["v_cache"])


def test_rotary_compiles_with_gradients_and_other_sizes():
    torch._dynamo.reset()

    def loss(x, rope):
        return (prologue.rotary(x * 2, rope=rope) ** 3).sum()

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    for tokens in (3, 5, 9):
        x = torch.randn(tokens, 2, 8, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        compiled(x, ROPE).backward()
        loss(y, ROPE).backward()
        torch.testing.assert_close(x.grad, y.grad)


@pytest.mark.parametrize("dynamic", [False, True])
def test_inductor_writes_into_views(step, dynamic):
    """Into the second half of a buffer: of k, and of a cache whose V follows its K."""
    torch._dynamo.reset()

    def call(packed, both):
        prologue.rotary(packed[:, 2:], rope=ROPE, inplace=True)
        prologue.attention_prologue(
            step["q"], packed[:, :2], packed[:, 2:], cache=PagedKv(both[0], both[1]), places=TokenPlaces(None, step["slots"])
        )

    packed, both = torch.randn(5, 4, 16), torch.zeros(2, 6, 4, 2, 16)
    got = packed.clone(), both.clone()
    call(packed, both)
    torch.compile(call, fullgraph=True, dynamic=dynamic)(*got)
    assert torch.equal(packed, got[0]) and torch.equal(both, got[1])


def test_in_place_compiles():
    torch._dynamo.reset()
    x, y = torch.randn(3, 2, 8), None
    y = x.clone()
    torch.compile(lambda t: prologue.rotary(t, rope=ROPE, inplace=True), fullgraph=True, backend="aot_eager")(x)
    prologue.rotary(y, rope=ROPE, inplace=True)
    assert torch.equal(x, y)
