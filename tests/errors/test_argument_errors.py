"""Every bad input, with the exception and the whole message that it must give."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_w4a8
from jax_w4a8 import QuantizedActivation, QuantizedWeight

K, N, E, M = 64, 24, 3, 5


def floats(*shape, dtype=jnp.float32):
    return jnp.ones(shape, dtype)


def weight():
    return jax_w4a8.quantize(floats(K, N))


def experts():
    return jax_w4a8.quantize(floats(E, K, N))


def sizes():
    return jnp.array([2, 0, 3], jnp.int32)


def packed_sm100():
    return jax_w4a8.prepack(weight(), layout="sm100")


W = (
    f"QuantizedWeight(shape=({K}, {N}), layout='plain'; use jax_w4a8.dot(x, w), or w.dequantize() "
    "for a float array)"
)
SM100 = W.replace("plain", "sm100")
REFUSED = (
    f"{W} is packed FP4 and takes no part in float arithmetic; call jax_w4a8.dot(x, w) for a "
    "product, or w.dequantize() for a float array"
)
DTYPES = "expected float32, bfloat16 or float16, got"

# name -> (call, exception, message)
TABLE = {
    "quantize: float64": (
        lambda: jax_w4a8.quantize(np.ones((K, N))),
        TypeError,
        f"kernel: {DTYPES} float64; convert it with numpy.asarray(kernel, 'float32')",
    ),
    "quantize: list of Python floats": (
        lambda: jax_w4a8.quantize([[1.0, 2.0]]),
        TypeError,
        f"kernel: {DTYPES} float64; convert it with numpy.asarray(kernel, 'float32')",
    ),
    "quantize: nothing": (
        lambda: jax_w4a8.quantize(None),
        TypeError,
        "kernel: expected a float array [..., K, N], got NoneType",
    ),
    "quantize: ragged list": (
        lambda: jax_w4a8.quantize([[1.0, 2.0], [1.0]]),
        TypeError,
        "kernel: expected a float array [..., K, N], got list",
    ),
    "QuantizedWeight: nothing": (
        lambda: jax_w4a8.QuantizedWeight(None, None),
        TypeError,
        "codes: expected uint8 [..., N, K / 2] with two E2M1 codes a byte, got NoneType",
    ),
    "dot: no dtype": (
        lambda: jax_w4a8.dot(floats(M, K), weight(), out_dtype="zork"),
        TypeError,
        "out_dtype: expected float32, bfloat16 or float16, got 'zork'",
    ),
    "grouped_dot: no sizes": (
        lambda: jax_w4a8.grouped_dot(floats(M, K), experts(), None),
        TypeError,
        "group_sizes: expected int32 [3], got NoneType",
    ),
    "quantize: integers": (
        lambda: jax_w4a8.quantize(jnp.ones((K, N), jnp.int32)),
        TypeError,
        f"kernel: {DTYPES} int32; convert it with numpy.asarray(kernel, 'float32')",
    ),
    "quantize: float8": (
        lambda: jax_w4a8.quantize(jnp.ones((K, N), jnp.float8_e4m3fn)),
        TypeError,
        f"kernel: {DTYPES} float8_e4m3fn; convert it with numpy.asarray(kernel, 'float32')",
    ),
    "quantize: one dimension": (
        lambda: jax_w4a8.quantize(floats(K)),
        ValueError,
        f"kernel: expected shape [..., K, N], got ({K},)",
    ),
    "quantize: twice": (
        lambda: jax_w4a8.quantize(weight()),
        TypeError,
        f"kernel: expected a float array [..., K, N], got {W}",
    ),
    "quantize: unknown rule": (
        lambda: jax_w4a8.quantize(floats(K, N), rule="round"),
        ValueError,
        "rule: expected one of ceil, floor, even, mse, got 'round'",
    ),
    **{
        f"quantize: {value} in the weight": (
            lambda value=value: jax_w4a8.quantize(floats(K, N).at[3, 4].set(value)),
            ValueError,
            "kernel: expected finite weights, got NaN or infinity; replace them (jnp.nan_to_num) "
            "or find what produced them before quantising",
        )
        for value in (np.nan, np.inf, -np.inf)
    },
    "dot: float weight": (
        lambda: jax_w4a8.dot(floats(M, K), floats(K, N)),
        TypeError,
        "w: expected a QuantizedWeight, got float32 array; quantise it with jax_w4a8.quantize(w)",
    ),
    "dot: no array for a weight": (
        lambda: jax_w4a8.dot(floats(M, K), None),
        TypeError,
        "w: expected a QuantizedWeight, got NoneType; quantise it with jax_w4a8.quantize(w)",
    ),
    "dot: swapped operands": (
        lambda: jax_w4a8.dot(weight(), floats(M, K)),
        TypeError,
        f"x: expected a float array [..., K], got {W}",
    ),
    "dot: float64 activations": (
        lambda: jax_w4a8.dot(np.ones((M, K)), weight()),
        TypeError,
        f"x: {DTYPES} float64; convert it with numpy.asarray(x, 'float32')",
    ),
    "dot: integer activations": (
        lambda: jax_w4a8.dot(jnp.ones((M, K), jnp.int8), weight()),
        TypeError,
        f"x: {DTYPES} int8; convert it with numpy.asarray(x, 'float32')",
    ),
    "dot: bare float8 codes": (
        lambda: jax_w4a8.dot(jnp.ones((M, K), jnp.float8_e4m3fn), weight()),
        TypeError,
        f"x: {DTYPES} float8_e4m3fn; convert it with numpy.asarray(x, 'float32')",
    ),
    "dot: scalar activations": (
        lambda: jax_w4a8.dot(jnp.float32(1), weight()),
        ValueError,
        "x: expected shape [..., K], got a scalar",
    ),
    "dot: K does not match": (
        lambda: jax_w4a8.dot(floats(M, K + 1), weight()),
        ValueError,
        f"x: expected a last dimension of K = {K} to match w ({K}, {N}), got shape ({M}, {K + 1})",
    ),
    "dot: x transposed": (
        lambda: jax_w4a8.dot(floats(K, M), weight()),
        ValueError,
        f"x: expected a last dimension of K = {K} to match w ({K}, {N}), got shape ({K}, {M})",
    ),
    "dot: experts": (
        lambda: jax_w4a8.dot(floats(M, K), experts()),
        ValueError,
        f"w: dot expects a weight [K, N], got shape ({E}, {K}, {N}); use "
        "jax_w4a8.grouped_dot or masked_grouped_dot, or vmap over the leading dimensions",
    ),
    **{
        f"dot: block={block!r}": (
            lambda block=block: jax_w4a8.dot(floats(M, K), weight(), block=block),
            ValueError,
            f"block: expected 32, 128 or 'row', got {block!r}",
        )
        for block in (0, 64, 32.0, "128", True)
    },
    "dot: another block than x was quantised with": (
        lambda: jax_w4a8.dot(jax_w4a8.quantize_activation(floats(M, K)), weight(), block=32),
        ValueError,
        "block: x was quantised with block=128, got block=32; leave block out, or quantise x again",
    ),
    **{
        f"dot: out_dtype={dtype}": (
            lambda dtype=dtype: jax_w4a8.dot(floats(M, K), weight(), out_dtype=dtype),
            TypeError,
            f"out_dtype: {DTYPES} {dtype}",
        )
        for dtype in ("float64", "int32", "float8_e4m3fn")
    },
    "grouped_dot: dense weight": (
        lambda: jax_w4a8.grouped_dot(floats(M, K), weight(), sizes()),
        ValueError,
        f"w: grouped_dot expects a weight [E, K, N], got shape ({K}, {N}); use jax_w4a8.dot, or "
        "vmap over the leading dimensions",
    ),
    "grouped_dot: float weight": (
        lambda: jax_w4a8.grouped_dot(floats(M, K), np.ones((E, K, N), np.float32), sizes()),
        TypeError,
        "w: expected a QuantizedWeight, got float32 array; quantise it with jax_w4a8.quantize(w)",
    ),
    "grouped_dot: three dimensions": (
        lambda: jax_w4a8.grouped_dot(floats(E, M, K), experts(), sizes()),
        ValueError,
        f"x: grouped_dot expects shape [M, K], got ({E}, {M}, {K})",
    ),
    "grouped_dot: K does not match": (
        lambda: jax_w4a8.grouped_dot(floats(M, 32), experts(), sizes()),
        ValueError,
        f"x: expected a last dimension of K = {K} to match w ({E}, {K}, {N}), got shape ({M}, 32)",
    ),
    "grouped_dot: sizes of another length": (
        lambda: jax_w4a8.grouped_dot(floats(M, K), experts(), jnp.array([5, 0])),
        ValueError,
        "group_sizes: expected shape [3], one number for each expert of w, got (2,)",
    ),
    "grouped_dot: one size": (
        lambda: jax_w4a8.grouped_dot(floats(M, K), experts(), 5),
        ValueError,
        "group_sizes: expected shape [3], one number for each expert of w, got ()",
    ),
    "grouped_dot: sizes are floats": (
        lambda: jax_w4a8.grouped_dot(floats(M, K), experts(), jnp.array([2.0, 0.0, 3.0])),
        TypeError,
        "group_sizes: expected int32 [3], got dtype float32",
    ),
    "grouped_dot: sizes are booleans": (
        lambda: jax_w4a8.grouped_dot(floats(M, K), experts(), jnp.ones(E, bool)),
        TypeError,
        "group_sizes: expected int32 [3], got dtype bool",
    ),
    "masked_grouped_dot: two dimensions": (
        lambda: jax_w4a8.masked_grouped_dot(floats(M, K), experts(), sizes()),
        ValueError,
        f"x: masked_grouped_dot expects shape [E, Mmax, K] with E = {E}, got ({M}, {K})",
    ),
    "masked_grouped_dot: another number of experts": (
        lambda: jax_w4a8.masked_grouped_dot(floats(2, M, K), experts(), sizes()),
        ValueError,
        f"x: masked_grouped_dot expects shape [E, Mmax, K] with E = {E}, got (2, {M}, {K})",
    ),
    "masked_grouped_dot: counts of another length": (
        lambda: jax_w4a8.masked_grouped_dot(floats(E, M, K), experts(), jnp.array([[1, 2, 3]])),
        ValueError,
        "counts: expected shape [3], one number for each expert of w, got (1, 3)",
    ),
    "masked_grouped_dot: counts are floats": (
        lambda: jax_w4a8.masked_grouped_dot(floats(E, M, K), experts(), np.array([1.0, 2.0, 3.0])),
        TypeError,
        "counts: expected int32 [3], got dtype float64",
    ),
    "masked_grouped_dot: dense weight": (
        lambda: jax_w4a8.masked_grouped_dot(floats(E, M, K), weight(), sizes()),
        ValueError,
        f"w: masked_grouped_dot expects a weight [E, K, N], got shape ({K}, {N}); use "
        "jax_w4a8.dot, or vmap over the leading dimensions",
    ),
    "quantize_activation: float64": (
        lambda: jax_w4a8.quantize_activation(np.ones((M, K))),
        TypeError,
        f"x: {DTYPES} float64; convert it with numpy.asarray(x, 'float32')",
    ),
    "quantize_activation: a weight": (
        lambda: jax_w4a8.quantize_activation(weight()),
        TypeError,
        f"x: expected a float array [..., K], got {W}",
    ),
    "quantize_activation: scalar": (
        lambda: jax_w4a8.quantize_activation(jnp.float32(1)),
        ValueError,
        "x: expected shape [..., K], got a scalar",
    ),
    "quantize_activation: block": (
        lambda: jax_w4a8.quantize_activation(floats(M, K), block=16),
        ValueError,
        "block: expected 32, 128 or 'row', got 16",
    ),
    "quantize_activation: twice": (
        lambda: jax_w4a8.quantize_activation(jax_w4a8.quantize_activation(floats(M, K))),
        TypeError,
        f"x: expected a float array [..., K], got QuantizedActivation(shape=({M}, {K}), block=128, "
        "dtype=float32; use jax_w4a8.dot(a, w), or a.dequantize() for a float array)",
    ),
    "QuantizedActivation: float codes": (
        lambda: jax_w4a8.dot(
            QuantizedActivation(floats(M, K), jnp.full((M, 1), 127, jnp.uint8)), weight()
        ),
        TypeError,
        "x: expected codes of dtype float8_e4m3fn and scales of dtype uint8, got float32 and uint8",
    ),
    "QuantizedActivation: float scales": (
        lambda: jax_w4a8.dot(
            QuantizedActivation(jnp.ones((M, K), jnp.float8_e4m3fn), floats(M, 1)), weight()
        ),
        TypeError,
        "x: expected codes of dtype float8_e4m3fn and scales of dtype uint8, got float8_e4m3fn and "
        "float32",
    ),
    "QuantizedActivation: scales for another block": (
        lambda: jax_w4a8.dot(
            QuantizedActivation(
                jnp.ones((M, K), jnp.float8_e4m3fn), jnp.full((M, 1), 127, jnp.uint8), block=32
            ),
            weight(),
        ),
        ValueError,
        f"x: expected scales of shape ({M}, 2) for codes ({M}, {K}) and block=32, got ({M}, 1)",
    ),
    "prepack: float weight": (
        lambda: jax_w4a8.prepack(np.ones((K, N))),
        TypeError,
        "w: expected a QuantizedWeight, got ndarray; quantise it with jax_w4a8.quantize(w)",
    ),
    "prepack: unknown layout": (
        lambda: jax_w4a8.prepack(weight(), layout="sm80"),
        ValueError,
        "layout: expected one of {layouts}; got 'sm80'",
    ),
    "prepack: packed for another kernel": (
        lambda: jax_w4a8.prepack(packed_sm100(), layout="plain"),
        ValueError,
        f"w: expected a weight in the plain layout, got {SM100}; call jax_w4a8.unpack(w) first",
    ),
    "unpack: float weight": (
        lambda: jax_w4a8.unpack(floats(K, N)),
        TypeError,
        "w: expected a QuantizedWeight, got ArrayImpl; quantise it with jax_w4a8.quantize(w)",
    ),
    "unpack: layout of another version": (
        lambda: jax_w4a8.unpack(
            QuantizedWeight.from_arrays(weight().arrays, k=K, n=N, layout="sm70")
        ),
        ValueError,
        "w: its layout 'sm70' belongs to no backend of this version",
    ),
    "dequantize: packed": (
        lambda: packed_sm100().dequantize(),
        ValueError,
        f"dequantize: expected a weight in the plain layout, got {SM100}; call "
        "jax_w4a8.unpack(w).dequantize()",
    ),
    "QuantizedWeight: float codes": (
        lambda: QuantizedWeight(floats(N, K // 2), jnp.full((N, 2), 127, jnp.uint8)),
        TypeError,
        "codes: expected uint8 [..., N, K / 2] with two E2M1 codes a byte, got float32",
    ),
    "QuantizedWeight: float scales": (
        lambda: QuantizedWeight(jnp.zeros((N, K // 2), jnp.uint8), jnp.full((N, 2), 1.5)),
        TypeError,
        "scales: expected UE8M0 bytes (uint8 or float8_e8m0fnu) [..., N, K / 32], got float32; a "
        "float scale is not truncated to a power of two: dequantise the weight and call "
        "jax_w4a8.quantize",
    ),
    "QuantizedWeight: one dimension": (
        lambda: QuantizedWeight(jnp.zeros(16, jnp.uint8), jnp.zeros(1, jnp.uint8)),
        ValueError,
        "codes: expected shape [..., N, K / 2], got (16,)",
    ),
    "QuantizedWeight: K not in whole blocks": (
        lambda: QuantizedWeight(jnp.zeros((N, 24), jnp.uint8), jnp.zeros((N, 2), jnp.uint8)),
        ValueError,
        "codes: expected 32 bytes a row for K = 48 (padded to 64), got shape (24, 24); pad the "
        "codes with zeros to whole blocks of 32",
    ),
    "QuantizedWeight: k of another width": (
        lambda: QuantizedWeight(jnp.zeros((N, 32), jnp.uint8), jnp.zeros((N, 2), jnp.uint8), k=65),
        ValueError,
        "codes: expected 48 bytes a row for K = 65 (padded to 96), got shape (24, 32); pad the "
        "codes with zeros to whole blocks of 32",
    ),
    "QuantizedWeight: k is a float": (
        lambda: QuantizedWeight(jnp.zeros((N, 32), jnp.uint8), jnp.zeros((N, 2), jnp.uint8), k=6.0),
        ValueError,
        "k: expected a non-negative int, got 6.0",
    ),
    "QuantizedWeight: scales of another shape": (
        lambda: QuantizedWeight(jnp.zeros((N, 32), jnp.uint8), jnp.zeros((2, N), jnp.uint8)),
        ValueError,
        "scales: expected shape (24, 2) for codes (24, 32), got (2, 24)",
    ),
    "QuantizedWeight: NaN scale": (
        lambda: QuantizedWeight(
            jnp.zeros((N, 16), jnp.uint8), jnp.full((N, 1), 127, jnp.uint8).at[3, 0].set(255)
        ),
        ValueError,
        "scales: expected finite UE8M0 scales (bytes 0 to 254), got 255, which is NaN; the weight "
        "or the file it came from is damaged",
    ),
    "QuantizedWeight: x @ w": (lambda: floats(M, K) @ weight(), TypeError, REFUSED),
    "QuantizedWeight: NumPy x @ w": (lambda: np.ones((M, K)) @ weight(), TypeError, REFUSED),
    "QuantizedWeight: 2 * w": (lambda: 2 * weight(), TypeError, REFUSED),
    "QuantizedWeight: w + x": (lambda: weight() + floats(K, N), TypeError, REFUSED),
    "QuantizedWeight: np.asarray": (lambda: np.asarray(weight()), TypeError, REFUSED),
    "QuantizedWeight: set an attribute": (
        lambda: setattr(weight(), "k", 32),
        AttributeError,
        "QuantizedWeight is immutable: cannot set 'k'",
    ),
    "use_backend: misspelt": (
        lambda: jax_w4a8.use_backend("hots"),
        ValueError,
        "name: expected one of {names}; got 'hots'",
    ),
    "use_backend: None": (
        lambda: jax_w4a8.use_backend(None),
        ValueError,
        "name: expected one of {names}; got None",
    ),
    "use_backend: a list": (
        lambda: jax_w4a8.use_backend(["host"]),
        ValueError,
        "name: expected one of {names}; got ['host']",
    ),
}


@pytest.mark.parametrize("name", TABLE)
def test_bad_input(name):
    call, exception, message = TABLE[name]
    names = jax_w4a8.backends.NAMES
    own = dict.fromkeys(jax_w4a8.backends.get(n).layouts[0] for n in names)
    layouts = ", ".join(map(repr, own))
    message = message.replace("{names}", ", ".join(("auto", *names)))
    check(call, exception, message.replace("{layouts}", layouts))


@pytest.mark.parametrize("name", ["dot: K does not match", "grouped_dot: sizes are floats"])
def test_the_same_error_under_jit(name):
    call, exception, message = TABLE[name]
    check(jax.jit(call), exception, message)


def check(call, exception, message):
    with pytest.raises(exception) as raised:
        call()
    assert str(raised.value) == message


def test_under_jit_a_weight_that_is_not_finite_becomes_nan():
    kernel = floats(K, N).at[40, 4].set(jnp.nan)
    w = jax.jit(jax_w4a8.quantize)(kernel)
    expected = np.zeros((K, N), bool)
    expected[32:64, 4] = True
    np.testing.assert_array_equal(np.isnan(w.dequantize()), expected)
