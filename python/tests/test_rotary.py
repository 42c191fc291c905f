import numpy as np
import oracle
import prologue_attention as prologue
import pytest
from prologue_attention import Rope

TOLERANCE = {np.float32: 2e-6, np.float16: 2e-3, np.float64: 1e-14}  # of values below 5: float16 is one rounding


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64])
@pytest.mark.parametrize("style", ["neox", "interleaved"])
@pytest.mark.parametrize("source", ["theta", "inv_freq", "cos_sin", "cos and sin", "full", "angles"])
def test_sources_styles_and_dtypes(rng, dtype, style, source):
    x = rng.standard_normal((2, 9, 3, 16)).clip(-4, 4).astype(dtype)
    positions = rng.integers(0, 50, (2, 9))
    inv_freq = oracle.frequencies(12)
    angle = np.arange(50)[:, None] * inv_freq
    full = np.concatenate([angle, angle], 1) if style == "neox" else np.repeat(angle, 2, 1)
    rope = {
        "theta": Rope(style, 12, theta=10000.0),
        "inv_freq": Rope(style, inv_freq=inv_freq),
        "cos_sin": Rope(style, cos_sin=oracle.table(50, 12, dtype=np.float64)),
        "cos and sin": Rope(style, cos=np.cos(angle), sin=np.sin(angle)),
        "full": Rope(style, 12, cos=np.cos(full), sin=np.sin(full)),
        "angles": Rope(style, angles=angle.astype(np.float32)),
    }[source]
    want = oracle.rotate(x, positions, inv_freq, style)
    tolerance = max(TOLERANCE[dtype], 4e-5 if source == "angles" else 0)  # float32 angles up to 50
    np.testing.assert_allclose(prologue.rotary(x, rope=rope, positions=positions), want, rtol=0, atol=tolerance)


def test_several_tensors_in_one_call(rng):
    q, k, v = (rng.standard_normal((5, heads, 8)).astype(np.float32) for heads in (4, 2, 2))
    got = prologue.rotary(q, k, v, rope=Rope(theta=10000.0, rotary_dim=8), rotate=[True, True, False])
    for x, y in zip((q, k), got):
        np.testing.assert_allclose(y, oracle.rotate(x, np.arange(5), oracle.frequencies(8)), rtol=0, atol=2e-6)
    np.testing.assert_array_equal(got[2], v)


@pytest.mark.parametrize("layout, order", [("bshd", (0, 1, 2, 3)), ("sbhd", (1, 0, 2, 3)), ("bhsd", (0, 2, 1, 3)), ("dhsb", (3, 2, 1, 0))])
def test_layouts(rng, layout, order):
    x = rng.standard_normal((2, 5, 3, 8)).astype(np.float32)
    want = oracle.rotate(x, np.arange(5), oracle.frequencies(8))
    got = prologue.rotary(np.ascontiguousarray(x.transpose(order)), rope=Rope(theta=10000.0, rotary_dim=8), layout=layout)
    np.testing.assert_allclose(got.transpose(np.argsort(order)), want, rtol=0, atol=2e-6)


def test_strided_input_and_output(rng):
    packed = rng.standard_normal((6, 10, 16)).astype(np.float32)
    before = packed.copy()
    out = np.full((6, 8, 32), 9, np.float32)
    view = out[:, ::2, ::2]
    result = prologue.rotary(packed[:, 3:7], rope=Rope(theta=10000.0, rotary_dim=16), out=view)
    assert result is view
    np.testing.assert_allclose(view, oracle.rotate(packed[:, 3:7], np.arange(6), oracle.frequencies(16)), rtol=0, atol=2e-6)
    assert (out[:, 1::2] == 9).all() and (out[:, :, 1::2] == 9).all()
    np.testing.assert_array_equal(packed, before)


def test_in_place_writes_nothing_else(rng):
    packed = rng.standard_normal((6, 10, 16)).astype(np.float32)
    before = packed.copy()
    q = packed[:, 2:5]
    assert prologue.rotary(q, rope=Rope(theta=10000.0, rotary_dim=8, rotary_offset=4), inplace=True) is q
    np.testing.assert_allclose(q, oracle.rotate(before[:, 2:5], np.arange(6), oracle.frequencies(8), offset=4), rtol=0, atol=2e-6)
    np.testing.assert_array_equal(packed[:, :2], before[:, :2])
    np.testing.assert_array_equal(packed[:, 5:], before[:, 5:])


@pytest.mark.parametrize("dtype", [np.int8, np.uint16, np.int32, np.uint64])
def test_positions_of_any_integer_type(rng, dtype):
    x = rng.standard_normal((4, 2, 8)).astype(np.float32)
    positions = np.array([3, 0, 7, 1], dtype)
    got = prologue.rotary(x, rope=Rope(theta=10000.0, rotary_dim=8), positions=positions)
    np.testing.assert_allclose(got, oracle.rotate(x, positions, oracle.frequencies(8)), rtol=0, atol=2e-6)


def test_offsets_and_packed_sequences(rng):
    x = rng.standard_normal((7, 2, 8)).astype(np.float32)
    got = prologue.rotary(
        x, rope=Rope(theta=10000.0, rotary_dim=8), cu_seqlens=np.array([0, 3, 3, 7], np.int32), offsets=np.array([10, 5, 20], np.int32), offset=1
    )
    positions = [11, 12, 13, 21, 22, 23, 24]
    np.testing.assert_allclose(got, oracle.rotate(x, positions, oracle.frequencies(8)), rtol=0, atol=3e-6)


def test_position_axes(rng):
    x = rng.standard_normal((5, 2, 8)).astype(np.float32)
    positions = rng.integers(0, 9, (3, 5))
    pair_axis = np.array([0, 1, 1, 2], np.uint8)
    got = prologue.rotary(x, rope=Rope(theta=10000.0, rotary_dim=8, num_axes=3, pair_axis=pair_axis), positions=positions)
    angle = positions[pair_axis].T[:, None, :] * oracle.frequencies(8)
    cos, sin = np.cos(angle), np.sin(angle)
    want = np.concatenate([x[..., :4] * cos - x[..., 4:] * sin, x[..., :4] * sin + x[..., 4:] * cos], -1)
    np.testing.assert_allclose(got, want, rtol=0, atol=2e-6)


def test_rows_for_each_token_and_gather(rng):
    x = rng.standard_normal((2, 3, 2, 8)).astype(np.float32)
    positions = np.array([4, 1, 9])
    rows = prologue.gather_cos_sin(oracle.table(10, 8), positions)
    np.testing.assert_array_equal(rows, oracle.table(10, 8)[positions])
    got = prologue.rotary(x, rope=Rope(cos_sin=rows, per_token=True))
    np.testing.assert_allclose(got, oracle.rotate(x, positions, oracle.frequencies(8)), rtol=0, atol=2e-6)
    each = np.stack([rows, rows[::-1]])
    got = prologue.rotary(x, rope=Rope(cos_sin=each, per_token=True))
    np.testing.assert_allclose(got[1], oracle.rotate(x[1], positions[::-1], oracle.frequencies(8)), rtol=0, atol=2e-6)


def test_inverse_undoes(rng):
    x = rng.standard_normal((5, 2, 8)).astype(np.float32)
    rope = Rope(theta=10000.0, rotary_dim=8)
    y = prologue.rotary(prologue.rotary(x, rope=rope), rope=rope._replace(inverse=True))
    np.testing.assert_allclose(y, x, rtol=0, atol=2e-6)


def test_tail(rng):
    x = rng.standard_normal((5, 2, 8)).astype(np.float32)
    rope = Rope(theta=10000.0, rotary_dim=4)
    for tail, want in (("copy", x[..., 4:]), ("zero", np.zeros((5, 2, 4))), ("leave", np.full((5, 2, 4), 3))):
        out = np.full_like(x, 3)
        prologue.rotary(x, rope=rope, out=out, tail=tail)
        np.testing.assert_array_equal(out[..., 4:], want)


def test_padding_is_not_touched(rng):
    x = rng.standard_normal((3, 2, 8)).astype(np.float32)
    out = np.full_like(x, 3)
    prologue.rotary(x, rope=Rope(theta=10000.0, rotary_dim=8), positions=np.array([1, -1, 2]), out=out)
    assert (out[1] == 3).all() and not (out[0] == 3).any()


def test_past_the_table(rng):
    x = rng.standard_normal((4, 1, 8)).astype(np.float32)
    rope = Rope(cos_sin=oracle.table(2, 8))
    out = np.full_like(x, 3)
    with pytest.raises(IndexError, match="position out of range at token 2; 2 tokens were skipped"):
        prologue.rotary(x, rope=rope, out=out)
    assert (out[2:] == 0).all()
    np.testing.assert_allclose(out[:2], oracle.rotate(x[:2], np.arange(2), oracle.frequencies(8)), rtol=0, atol=2e-6)
    faults, codes = np.zeros(2, np.int64), np.zeros(4, np.uint8)
    prologue.rotary(x, rope=rope, faults=faults, token_faults=codes)
    assert prologue.read_faults(faults) == ("position out of range", 2, 2)
    assert codes.tolist() == [0, 0, 1, 1]
    assert (prologue.rotary(x, rope=rope._replace(past_table="zero"))[2:] == 0).all()
    np.testing.assert_array_equal(prologue.rotary(x, rope=rope._replace(past_table="identity"))[2:], x[2:])


def test_no_tokens():
    assert prologue.rotary(np.zeros((0, 2, 8), np.float32), rope=Rope(theta=10000.0, rotary_dim=8)).shape == (0, 2, 8)


def test_bfloat16(rng):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = rng.standard_normal((5, 2, 8)).astype(ml_dtypes.bfloat16)
    got = prologue.rotary(x, rope=Rope(theta=10000.0, rotary_dim=8))
    want = oracle.rotate(x.astype(np.float64), np.arange(5), oracle.frequencies(8))
    assert got.dtype == x.dtype
    np.testing.assert_array_equal(got, want.astype(np.float32).astype(ml_dtypes.bfloat16))
    table = oracle.table(5, 8).astype(ml_dtypes.bfloat16)
    assert prologue.gather_cos_sin(table, np.arange(5)).dtype == np.float32


X = np.zeros((4, 2, 8), np.float32)
ROPE = Rope(theta=10000.0, rotary_dim=8)


@pytest.mark.parametrize(
    "call, error, message",
    [
        (lambda: prologue.rotary(rope=ROPE), TypeError, "there are 0"),
        (lambda: prologue.rotary([1.0], rope=ROPE), TypeError, "list is not an array"),
        (lambda: prologue.rotary(X, None, rope=ROPE, out=(X.copy(), X.copy())), TypeError, "the second tensor is None"),
        (lambda: prologue.rotary(X, X, X, X, X, rope=ROPE), ValueError, "1 to 4 tensors: there are 5"),
        (lambda: prologue.rotary(X.astype(np.int32), rope=ROPE), NotImplementedError, "int32"),
        (lambda: prologue.rotary(X, X.astype(np.float16), rope=ROPE), TypeError, "float16: it must be float32"),
        (lambda: prologue.rotary(X[0], rope=ROPE), ValueError, r"\[2, 8\]: it must have 3 axes, \[tokens, heads, head_dim\], or 4"),
        (lambda: prologue.rotary(X, rope=ROPE, out=X[:2]), ValueError, "axis 0 must have 4 elements"),
        (lambda: prologue.rotary(X, rope=ROPE, out=(X, X)), ValueError, "2 arrays for 1"),
        (lambda: prologue.rotary(X, rope=ROPE, out=X.copy(), inplace=True), ValueError, "both given"),
        (lambda: prologue.rotary(X, rope=ROPE, layout="shx"), ValueError, "layout is 'shx'"),
        (lambda: prologue.rotary(X, rope=ROPE, layout="ssh"), ValueError, "layout is 'ssh'"),
        (lambda: prologue.rotary(X, rope=ROPE, tail="keep"), ValueError, "one of 'copy', 'leave', 'zero'"),
        (lambda: prologue.rotary(X, rope=ROPE, rotate=[True, True]), ValueError, "2 elements for 1"),
        (lambda: prologue.rotary(X, rope=ROPE, positions=np.zeros(3, int)), ValueError, "axis 0 must have 4 elements"),
        (lambda: prologue.rotary(X, rope=ROPE, positions=np.zeros(4)), TypeError, "positions is float64"),
        (lambda: prologue.rotary(X, rope=ROPE, offset="1"), TypeError, "offset is not an integer"),
        (lambda: prologue.rotary(X, rope=Rope()), ValueError, "0 of cos and sin"),
        (lambda: prologue.rotary(X, rope=ROPE._replace(style="llama")), ValueError, "style is 'llama'"),
        (lambda: prologue.rotary(X, rope=ROPE._replace(rotary_dim=10)), ValueError, "rotary_dim is 10"),
        (lambda: prologue.rotary(X, rope=Rope(cos=np.zeros((4, 4)))), ValueError, "only one of cos and sin"),
        (lambda: prologue.rotary(X, rope=Rope(cos_sin=np.zeros((4, 7)))), ValueError, r"\[4, 7\]"),
        (lambda: prologue.rotary(X, rope=Rope(rotary_dim=6, cos_sin=np.zeros((4, 8)))), ValueError, "with rotary_dim 6"),
        (lambda: prologue.rotary(X, rope=Rope(cos_sin=np.zeros((3, 8)), per_token=True)), ValueError, "a row for each token"),
        (lambda: prologue.rotary(X, rope=Rope(cos_sin=np.zeros((3, 8)), max_position=4)), ValueError, "max_position is 4"),
        (lambda: prologue.rotary(X, rope=ROPE, faults=np.zeros(3, np.int64)), ValueError, "two int64"),
        (lambda: prologue.rotary(X, rope=ROPE, token_faults=np.zeros(3, np.uint8)), ValueError, "one for each token"),
        (lambda: prologue.set_num_threads(0), ValueError, "1..512"),
    ],
)
def test_errors(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_overlap_is_an_error(rng):
    x = rng.standard_normal((5, 2, 8)).astype(np.float32)
    before = x.copy()
    with pytest.raises(ValueError, match="overlap"):
        prologue.rotary(x[:4], rope=ROPE, out=x[1:])
    np.testing.assert_array_equal(x, before)


def test_threads():
    before = prologue.get_num_threads()
    prologue.set_num_threads(3)
    assert prologue.get_num_threads() == 3
    prologue.set_num_threads(before)
