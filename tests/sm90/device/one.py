"""One shape under every tile and split, for a profiler: ``python tests/sm90/device/one.py M N K``."""

import sys
import time

import jax
import jax.numpy as jnp
import numpy as np

import jax_w4a8
from jax_w4a8.backends.sm90 import use_tile

m, n, k = (int(a) for a in sys.argv[1:4])
rng = np.random.default_rng(0)
count = 6
ws = [
    jax_w4a8.prepack(
        jax_w4a8.QuantizedWeight(
            rng.integers(0, 256, (n, k // 2), np.uint8), rng.integers(118, 124, (n, k // 32)).astype(np.uint8)
        ),
        layout="sm90",
    )
    for _ in range(count)
]
x = jnp.asarray(rng.normal(size=(m, k)), jnp.bfloat16)
jax_w4a8.use_backend("sm90")
for quantized in (True, False):
    a = jax_w4a8.quantize_activation(x) if quantized else x
    for tile in ("16x64", "32x64", "64x64", "128x128"):
        for split in (1, 2, 4):
            with use_tile(tile, split):

                def many(a, ws):
                    ys = [jax_w4a8.dot(a, ws[0])]
                    for i in range(1, 120):
                        a, ys[-1] = jax.lax.optimization_barrier((a, ys[-1]))
                        ys.append(jax_w4a8.dot(a, ws[i % count]))
                    return ys

                f = jax.jit(many).lower(a, ws).compile()
            jax.block_until_ready(f(a, ws))
            times = []
            for _ in range(9):
                start = time.perf_counter()
                jax.block_until_ready(f(a, ws))
                times.append((time.perf_counter() - start) / 120 * 1e6)
            print(f"{m}x{n}x{k} quantized={quantized} {tile}/{split}: {sorted(times)[len(times) // 2]:.2f} us", flush=True)
