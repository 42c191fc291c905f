"""Every operation on CUDA arrays: the CPU's results, another stream, a captured graph, torch.compile, gradients. Skipped without a GPU."""

import threading

import numpy as np
import oracle
import prologue_attention as prologue
import pytest
from prologue_attention import HeadNorm, PagedKv, PageTable, QueryScale, Rope, TokenPlaces

torch = pytest.importorskip("torch")
if not (torch.cuda.is_available() and prologue.built_with_cuda()):
    pytest.skip("needs a GPU, and the extension built with CUDA", allow_module_level=True)
from torch.library import opcheck  # noqa: E402

DEVICE = "cuda"
CLOSE = {torch.float32: 3e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


def make(dtype=torch.float32):
    """A step of two sequences, on the CPU."""
    generator = torch.Generator().manual_seed(5)
    normal = lambda *shape: torch.randn(*shape, generator=generator).to(dtype)  # noqa: E731
    return {
        "q": normal(5, 4, 64), "k": normal(5, 2, 64), "v": normal(5, 2, 64), "k_cache": normal(6, 16, 2, 64), "v_cache": normal(6, 16, 2, 64),
        "table": torch.from_numpy(oracle.table(64, 64)), "positions": torch.tensor([17, 18, 19, 0, 1]),
        "slots": torch.tensor([33, 34, 35, 0, 1]), "block_table": torch.tensor([[5, 2], [0, 4]], dtype=torch.int32),
        "cu_seqlens_q": torch.tensor([0, 3, 5], dtype=torch.int32), "seq_lens": torch.tensor([20, 2], dtype=torch.int32),
        "norm": normal(64), "hidden": normal(5, 128), "qkv_weight": normal(512, 128) / 11, "output_weight": normal(128, 256) / 16,
    }  # fmt: skip


def rope(s):
    return Rope(cos_sin=s["table"], past_table="zero")


def rotate(s):
    return prologue.rotary(s["q"], s["k"], rope=rope(s), positions=s["positions"])


def rotate_in_place(s):
    return prologue.rotary(s["q"], rope=Rope(theta=10000.0, rotary_dim=64), offset=3, inplace=True)


def gather(s):
    return prologue.gather_cos_sin(s["table"], s["positions"], past_table="zero")


def prologue_step(s):
    norm = HeadNorm(weight=s["norm"])
    return prologue.attention_prologue(
        s["q"], s["k"], s["v"], cache=PagedKv(s["k_cache"], s["v_cache"]), rope=rope(s), q_norm=norm, k_norm=norm,
        places=TokenPlaces(s["positions"], s["slots"]), q_scale=QueryScale(0.5),
    )  # fmt: skip


def attend(s):
    return prologue.paged_attention(
        prologue_step(s), PagedKv(s["k_cache"], s["v_cache"]), page_table=PageTable(s["block_table"]), cu_seqlens_q=s["cu_seqlens_q"],
        seq_lens=s["seq_lens"],
    )  # fmt: skip


def layer(s):
    places = TokenPlaces(cu_seqlens_q=s["cu_seqlens_q"], seq_lens=s["seq_lens"], page_table=PageTable(s["block_table"]))
    return prologue.attention_layer(
        s["hidden"], s["qkv_weight"], s["output_weight"], num_q_heads=4, num_kv_heads=2, head_dim=64,
        cache=PagedKv(s["k_cache"], s["v_cache"]), places=places, rope=rope(s),
    )  # fmt: skip


CALLS = [rotate, rotate_in_place, gather, prologue_step, attend, layer]
# A layer's sums have 128 and 256 terms, and attention's probabilities are rounded to the inputs' type on the tensor cores.
FACTOR = {attend: 4, layer: 8}


def on_gpu(s):
    return {name: tensor.to(DEVICE) for name, tensor in s.items()}


def check(call, got, want, gpu, cpu, dtype):
    """The results and the caches, against the CPU's."""
    tolerance = CLOSE[dtype] * FACTOR.get(call, 1)
    for a, b in zip((*(got if isinstance(got, tuple) else (got,)), gpu["k_cache"], gpu["v_cache"]),
                    (*(want if isinstance(want, tuple) else (want,)), cpu["k_cache"], cpu["v_cache"])):  # fmt: skip
        torch.testing.assert_close(a.cpu().float(), b.float(), atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("call", CALLS)
def test_the_results_of_the_cpu(call, dtype):
    cpu = make(dtype)
    gpu = on_gpu(cpu)
    check(call, call(gpu), call(cpu), gpu, cpu, dtype)


@pytest.fixture
def poison():
    """New tensors that are not asked to be zeros are full of NaN."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


def test_rows_that_no_sequence_owns_become_zeros(poison):
    s = on_gpu(make(torch.bfloat16))
    s["cu_seqlens_q"] = torch.tensor([0, 2, 3], dtype=torch.int32, device=DEVICE)
    s["positions"][3:] = -1
    bias = torch.ones(128, dtype=torch.bfloat16, device=DEVICE)
    places = TokenPlaces(cu_seqlens_q=s["cu_seqlens_q"], seq_lens=s["seq_lens"], page_table=PageTable(s["block_table"]))
    with_bias = prologue.attention_layer(
        s["hidden"], s["qkv_weight"], s["output_weight"], num_q_heads=4, num_kv_heads=2, head_dim=64, output_bias=bias,
        cache=PagedKv(s["k_cache"], s["v_cache"]), places=places, rope=rope(s),
        workspace=torch.full((1 << 26,), 255, dtype=torch.uint8, device=DEVICE),
    )  # fmt: skip
    results = [
        *rotate(s), prologue_step(s), attend(s), layer(s), with_bias - bias,
        prologue.rotary(s["q"], rope=Rope(theta=10000.0, rotary_dim=64), cu_seqlens=s["cu_seqlens_q"]),
        prologue.attention_prologue(s["q"], rope=rope(s), places=places),
    ]  # fmt: skip
    for result in results:
        assert result.isfinite().all() and (result[3:] == 0).all() and (result[:3] != 0).any()
    x = s["q"].clone().requires_grad_()
    prologue.rotary(x, rope=Rope(theta=10000.0, rotary_dim=64), cu_seqlens=s["cu_seqlens_q"]).sum().backward()
    assert x.grad.isfinite().all() and (x.grad[3:] == 0).all() and (x.grad[:3] != 0).any()


def test_zero_tokens_are_a_no_op():
    s = on_gpu(make())
    for name in ("q", "k", "v", "positions", "slots", "hidden", "block_table", "seq_lens"):
        s[name] = s[name][:0]
    s["cu_seqlens_q"] = s["cu_seqlens_q"][:1]
    before = s["k_cache"].clone()
    for call in (rotate, gather, prologue_step, attend, layer):
        for one in call(s) if call is rotate else (call(s),):
            assert one.shape[0] == 0
    assert torch.equal(s["k_cache"], before)


def test_a_ring_without_a_bound_on_sequences():
    """A window of 33 over 200 tokens in a ring of 48: the CPU's results."""
    results = []
    for device in ("cpu", DEVICE):
        torch.manual_seed(1)
        q, k, v = (torch.randn(200, 2, 64).to(device) for _ in range(3))
        cache = PagedKv(torch.zeros(3, 16, 2, 64, device=device), torch.zeros(3, 16, 2, 64, device=device))
        table = PageTable(torch.tensor([[2, 0, 1]], dtype=torch.int32, device=device))
        for begin in range(0, 200, 8):
            rows = slice(begin, begin + 8)
            lengths = {"cu_seqlens_q": [0, 8], "seq_lens": [begin + 8]}
            batch = {name: torch.tensor(values, dtype=torch.int32, device=device) for name, values in lengths.items()}
            prologue.attention_prologue(k=k[rows], v=v[rows], cache=cache, places=TokenPlaces(**batch, ring_size=48, page_table=table))
            results.append(prologue.paged_attention(q[rows], cache, page_table=table, **batch, ring_size=48, window=33).cpu())
    torch.testing.assert_close(torch.cat(results[25:]), torch.cat(results[:25]), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("k_type, v_type", [(torch.bfloat16, torch.float16), (torch.float32, torch.bfloat16)])
def test_one_of_k_and_v_has_the_type_of_the_call(k_type, v_type):
    cpu = make(torch.bfloat16)
    cpu["k_cache"], cpu["v_cache"] = cpu["k_cache"].to(k_type), cpu["v_cache"].to(v_type)
    gpu = on_gpu(cpu)
    check(attend, attend(gpu), attend(cpu), gpu, cpu, torch.bfloat16)


@pytest.mark.parametrize("call", CALLS)
def test_another_stream(call):
    cpu = make(torch.bfloat16)
    late = on_gpu(cpu)
    gpu = {name: torch.zeros_like(tensor) for name, tensor in late.items()}
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)  # the inputs arrive late on this stream: a call on another one would read zeros
        for name, tensor in late.items():
            gpu[name].copy_(tensor)
        got = call(gpu)
    stream.synchronize()
    check(call, got, call(cpu), gpu, cpu, torch.bfloat16)


@pytest.mark.parametrize("call", CALLS)
def test_a_graph(call):
    gpu = on_gpu(make(torch.bfloat16))
    before = {name: tensor.clone() for name, tensor in gpu.items()}
    call(gpu)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = call(gpu)
    for scale in (1, 2):  # replayed with other inputs
        cpu = {name: tensor.cpu() for name, tensor in before.items()}
        for name in ("q", "k", "v", "hidden"):
            cpu[name] = cpu[name] * scale
        for name, tensor in cpu.items():
            gpu[name].copy_(tensor)
        graph.replay()
        check(call, got, call(cpu), gpu, cpu, torch.bfloat16)


@pytest.mark.parametrize("calls", [0, 1, 2, 3])
@pytest.mark.parametrize("call", [rotate, prologue_step, attend])
def test_a_graph_after_so_many_calls(call, calls):
    """The second call of a signature makes a plan, but not during a capture. In a thread of its own, which has no plans yet."""
    gpu, want, results = on_gpu(make(torch.bfloat16)), on_gpu(make(torch.bfloat16)), []
    graph = torch.cuda.CUDAGraph()

    def run():
        with torch.no_grad():
            for _ in range(calls):
                call(on_gpu(make(torch.bfloat16)))
            torch.cuda.synchronize()
            with torch.cuda.graph(graph):
                results.append(call(gpu))
            graph.replay()
            call(on_gpu(make(torch.bfloat16)))
            results.append(call(want))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    got, expected = (one if isinstance(one, tuple) else (one,) for one in results)
    for a, b in zip(got, expected):
        assert torch.equal(a, b)
    assert torch.equal(gpu["k_cache"], want["k_cache"]) and torch.equal(gpu["v_cache"], want["v_cache"])


def test_a_held_plan_on_another_stream_and_in_a_graph():
    gpu, want = on_gpu(make(torch.bfloat16)), on_gpu(make(torch.bfloat16))
    steps = lambda s: {"cache": PagedKv(s["k_cache"], s["v_cache"]), "rope": rope(s), "places": TokenPlaces(s["positions"], s["slots"])}  # noqa: E731
    expected = prologue.attention_prologue(want["q"], want["k"], want["v"], **steps(want))
    q_out, graph, stream = torch.zeros_like(gpu["q"]), torch.cuda.CUDAGraph(), torch.cuda.Stream()
    plan = prologue.Plan(
        prologue.attention_prologue, gpu["q"], gpu["k"], gpu["v"], **steps(gpu), q_out=q_out, changing=("q", "k", "v", "q_out")
    )
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        plan(gpu["q"], gpu["k"], gpu["v"], q_out)
    stream.synchronize()
    assert torch.equal(q_out, expected) and torch.equal(gpu["k_cache"], want["k_cache"])
    with torch.cuda.graph(graph):
        plan(gpu["q"], gpu["k"], gpu["v"], q_out)
    q_out.zero_()
    gpu["v_cache"].zero_()
    graph.replay()
    want["v_cache"].zero_()
    prologue.attention_prologue(want["q"], want["k"], want["v"], **steps(want))
    assert torch.equal(q_out, expected) and torch.equal(gpu["v_cache"], want["v_cache"])


def test_a_graph_of_a_threads_first_call():
    """What a thread makes at its first call is made during the capture, and the graph does not need it after the thread has ended."""
    gpu = on_gpu(make(torch.bfloat16))
    want = layer({name: tensor.clone() for name, tensor in gpu.items()})
    graph, results = torch.cuda.CUDAGraph(), []

    def capture():
        with torch.cuda.graph(graph):
            results.append(layer(gpu))

    thread = threading.Thread(target=capture)
    thread.start()
    thread.join()
    graph.replay()
    assert torch.equal(results[0], want)


@pytest.mark.parametrize("call", CALLS)
def test_compiles_into_one_graph(call):
    torch._dynamo.reset()
    want, got = on_gpu(make(torch.bfloat16)), on_gpu(make(torch.bfloat16))
    results = call(want), torch.compile(call, fullgraph=True, backend="aot_eager")(got)
    for a, b in zip(*(one if isinstance(one, tuple) else (one,) for one in results)):
        assert torch.equal(a, b)
    assert torch.equal(want["k_cache"], got["k_cache"]) and torch.equal(want["v_cache"], got["v_cache"])


def test_inductor():
    torch._dynamo.reset()
    want, got = on_gpu(make(torch.bfloat16)), on_gpu(make(torch.bfloat16))
    result = torch.compile(lambda s: attend(s) * 2, fullgraph=True)(got)
    assert torch.equal(result, attend(want) * 2) and torch.equal(want["k_cache"], got["k_cache"])


def test_opcheck(monkeypatch):
    from test_torch import recorded

    gpu = on_gpu(make())
    calls = recorded(monkeypatch, lambda: [call(gpu) for call in CALLS])
    assert len({function.name() for function, _ in calls}) == 6
    for function, arguments in calls:
        opcheck(function, arguments)


def test_gradients():
    x = torch.randn(2, 3, 2, 16, dtype=torch.float64, device=DEVICE, requires_grad=True)
    run = lambda x: prologue.rotary(x, rope=Rope("interleaved", theta=10000.0, rotary_dim=8))  # noqa: E731
    assert torch.autograd.gradcheck(run, (x,))


def test_a_float8_cache_and_float8_q():
    cpu = make(torch.bfloat16)
    for name in ("k_cache", "v_cache"):
        cpu[name] = torch.zeros_like(cpu[name], dtype=torch.float8_e4m3fn)
    gpu = on_gpu(cpu)
    for s in (cpu, gpu):
        s["q8"] = torch.empty_like(s["q"], dtype=torch.float8_e5m2)
        scale = torch.full((1,), 0.5, device=s["q"].device)
        prologue.attention_prologue(
            s["q"], s["k"], s["v"], cache=PagedKv(s["k_cache"], s["v_cache"], scale, scale, scaling="tensor"), rope=rope(s),
            places=TokenPlaces(s["positions"], s["slots"]), q8_out=s["q8"], q8_scale=scale,
        )  # fmt: skip
    for name in ("q8", "k_cache", "v_cache"):
        a, b = gpu[name].cpu().float(), cpu[name].float()
        torch.testing.assert_close(a, b, atol=0.01, rtol=0.13)  # one code, where the float32 values differ in the last bit
        assert (a != b).float().mean() < 0.01


def test_faults_need_no_synchronisation():
    gpu = on_gpu(make())
    faults = torch.zeros(2, dtype=torch.int64, device=DEVICE)
    table = Rope(cos_sin=gpu["table"][:18])
    y = prologue.rotary(gpu["q"], rope=table, positions=gpu["positions"], faults=faults)
    assert prologue.read_faults(faults) == ("position out of range", 1, 2) and (y[1:3] == 0).all()
    with pytest.raises(ValueError, match="faults"):
        prologue.rotary(gpu["q"], rope=table, positions=gpu["positions"])


def test_arrays_of_the_cpu_and_the_gpu_together():
    gpu = on_gpu(make())
    with pytest.raises((ValueError, TypeError)):
        prologue.rotary(gpu["q"], rope=rope(gpu), positions=gpu["positions"].cpu())


def test_cupy():
    cupy = pytest.importorskip("cupy")
    cpu = make()
    arrays = {name: cupy.asarray(tensor.numpy()) for name, tensor in cpu.items()}
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    with stream:
        got = prologue_step(arrays)
    stream.synchronize()
    np.testing.assert_allclose(got.get(), prologue_step(cpu).numpy(), atol=3e-6)
    np.testing.assert_allclose(arrays["k_cache"].get(), cpu["k_cache"].numpy(), atol=3e-6)


def test_jax():
    jax = pytest.importorskip("jax")
    pytest.importorskip("jax_tvm_ffi")
    if jax.default_backend() != "gpu":
        pytest.skip("jax has no GPU")
    import prologue_attention.jax

    x = make()["q"]
    got = jax.jit(lambda x: prologue.jax.rotary(x, rope=Rope(theta=10000.0, rotary_dim=64)))(jax.numpy.asarray(x.numpy()))
    np.testing.assert_allclose(np.asarray(got), prologue.rotary(x, rope=Rope(theta=10000.0, rotary_dim=64)).numpy(), atol=3e-6)
