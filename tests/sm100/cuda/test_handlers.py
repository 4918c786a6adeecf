"""The custom calls' handlers on a machine without a GPU, up to the launches."""

from __future__ import annotations

import concurrent.futures
import dataclasses

import ml_dtypes
import numpy as np
import pytest

from jax_w4a8 import _sm100
from jax_w4a8.backends.sm100 import workspace_bytes
from jax_w4a8.product import Product
from tests.sm100.standin import Standin, aligned
from tools.kernel_table import mangled_part

BF16, F16, F32 = ml_dtypes.bfloat16, np.float16, np.float32
E4M3 = ml_dtypes.float8_e4m3fn
B200, H200, RTX5090, SPARK, B300, ABSENT = range(6)
KERNELS = _sm100.kernels()
TARGETS = tuple(_sm100.registrations())


@pytest.fixture(scope="module")
def library() -> Standin:
    standin = Standin()
    standin.set_device(B200, 10, 0, 148)
    standin.set_device(H200, 9, 0, 132)
    standin.set_device(RTX5090, 12, 0, 170)
    standin.set_device(SPARK, 12, 1, 48)
    standin.set_device(B300, 10, 3, 160)
    return standin


@pytest.fixture
def standin(library: Standin) -> Standin:
    library.reset()
    yield library
    library.on_launch(None)


@dataclasses.dataclass
class Call:
    """A product's custom call, right unless a test bends it."""

    kind: str = "dense"
    m: int = 40
    n: int = 256
    k: int = 256
    groups: int = 3
    block: int = 128
    x_dtype: type = BF16
    out: type = BF16
    tile: str = ""
    x_offset: int = 0
    codes_offset: int = 0
    scales_offset: int = 0
    y_offset: int = 0
    packed_n: int | None = None
    packed_k: int | None = None
    missing_workspace: int = 0
    device: int = B200
    changes: dict[str, object] = dataclasses.field(default_factory=dict)

    def run(self, standin: Standin) -> str | None:
        dense, masked = self.kind == "dense", self.kind == "masked"
        experts = () if dense else (self.groups,)
        rows = (self.groups, self.m) if masked else (self.m,)
        n = -(-self.n // 8) * 8 if self.packed_n is None else self.packed_n
        k = -(-self.k // 128) * 128 if self.packed_k is None else self.packed_k
        tiles, units = -(-n // 128), -(-k // 128)
        groups = self.groups if experts else 1
        product = Product(self.kind, self.m, self.n, self.k, groups, self.block, "sm100",
                          np.dtype(self.x_dtype), np.dtype(self.out))  # fmt: skip
        operands = {"x": aligned((*rows, self.k), self.x_dtype, self.x_offset)}
        if self.x_dtype is E4M3:
            operands["x_scales"] = aligned((*rows, product.x_blocks), np.uint8)
        if not dense:
            operands["sizes"] = aligned(experts, np.int32)
        operands["codes"] = aligned((*experts, n, k // 2), np.uint8, self.codes_offset)
        operands["scales"] = aligned((*experts, tiles, units * 512), np.uint8, self.scales_offset)
        y = aligned((*rows, -(-self.n // 8) * 8), self.out, self.y_offset)
        workspace = aligned((workspace_bytes(product) - self.missing_workspace,), np.uint8)
        operands |= self.changes
        attributes = {"n": self.n, "k": self.k, "block": self.block, "tile": self.tile}
        target = f"jax_w4a8_sm100_{self.kind}_v1"
        return standin.call(
            target, list(operands.values()), [y, workspace], attributes, self.device
        )


def gemms(standin: Standin) -> list[str]:
    return [name for name in standin.launched() if "device_kernel" in name]


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: f"{k['tile']}-{k['out']}")
def test_every_kernel_is_launched_for_its_tile_and_result(standin: Standin, kernel: dict) -> None:
    configurations = []

    def record(launch) -> int:
        if b"device_kernel" in launch.kernel:
            configurations.append((list(launch.cluster), launch.shared_bytes, launch.grid[0]))
        return 0

    standin.on_launch(record)
    kind = "dense" if kernel["tile"].startswith("dense") else "grouped"
    out = {"bfloat16": BF16, "float16": F16, "float32": F32}[kernel["out"]]
    call = Call(kind=kind, m=300, n=520, k=384, out=out, tile=kernel["tile"])
    assert call.run(standin) is None
    (name,) = gemms(standin)
    assert mangled_part(kernel["tile"], kernel["out"]) in name
    assert standin.refused_tensor_maps() == 0
    pair = 2 if kernel["tile"] == "dense_256x256" else 1
    ((cluster, shared_bytes, grid),) = configurations
    assert cluster == [pair, 1, 1]
    assert shared_bytes == kernel["shared_bytes"]
    assert grid % pair == 0


def test_there_is_a_kernel_for_every_tile_and_result() -> None:
    names = {(kernel["tile"], kernel["out"]) for kernel in KERNELS}
    assert len(names) == len(KERNELS) == 7 * 3


@pytest.mark.parametrize("kind", ["dense", "grouped", "masked"])
@pytest.mark.parametrize("x_dtype", [BF16, F16, F32, E4M3])
@pytest.mark.parametrize("block", [32, 128, 0])
def test_launches_are_the_same_every_time(standin: Standin, kind, x_dtype, block) -> None:
    call = Call(kind=kind, x_dtype=x_dtype, block=block, k=200)
    assert call.run(standin) is None
    first = standin.launched()
    assert call.run(standin) is None
    assert standin.launched() == 2 * first
    assert len(first) == (2 if kind == "dense" else 5)
    assert standin.refused_tensor_maps() == 0


@pytest.mark.parametrize("m", [1, 5, 127, 129])
@pytest.mark.parametrize("n", [1, 8, 24, 4096])
@pytest.mark.parametrize("k", [32, 128, 2880])
def test_any_shape_makes_tensor_maps_that_the_driver_takes(standin: Standin, m, n, k) -> None:
    for out in (BF16, F32):
        assert Call(m=m, n=n, k=k, out=out).run(standin) is None
        assert Call(kind="grouped", m=m, n=n, k=k, out=out).run(standin) is None
    assert standin.refused_tensor_maps() == 0
    assert len(gemms(standin)) == 4


def test_no_rows_launch_nothing(standin: Standin) -> None:
    assert Call(m=0).run(standin) is None
    assert Call(kind="grouped", m=0).run(standin) is None
    assert standin.launched() == []


@pytest.mark.parametrize("device", [B200, B300])
def test_devices_of_capability_10_serve(standin: Standin, device: int) -> None:
    assert Call(device=device).run(standin) is None
    assert len(gemms(standin)) == 1


REFUSED = {
    "codes off by 16": (Call(codes_offset=16), "weight codes", "multiple of 32"),
    "scales off by 8": (Call(scales_offset=8), "weight scales", "multiple of 16"),
    "y off by 8": (Call(y_offset=8), "result", "multiple of 16"),
    "K of 192": (Call(k=192, packed_k=192), "weight codes", "multiple of 128", "192", "prepack"),
    "N of 250": (Call(n=250, packed_n=250), "weight codes", "multiple of 8", "250", "prepack"),
    "K of another weight": (Call(packed_k=512), "weight codes", "256, 128", "256, 256"),
    "N of another weight": (Call(packed_n=264), "weight codes", "256, 128", "264, 128"),
    "workspace too small": (Call(missing_workspace=1), "workspace", "at least"),
    "grouped workspace": (Call(kind="grouped", missing_workspace=1), "workspace", "at least"),
    "unknown tile": (Call(tile="64x64"), "tile", "dense_128x256", "64x64"),
    "tile of another kind": (Call(tile="grouped_128x128"), "tile", "dense_128x256"),
    "Hopper": (Call(device=H200), "compute capability 10", "9.0", "device 1"),
    "consumer Blackwell": (Call(device=RTX5090), "compute capability 10", "12.0", "device 2"),
    "GB10": (Call(device=SPARK), "compute capability 10", "12.1", "device 3"),
    "no such device": (Call(device=ABSENT), "CUDA device 5", "invalid device ordinal"),
    "block of 64": (Call(block=64), "block", "64"),
    "dtype of x": (Call(changes={"x": aligned((40, 256), np.int32)}), "x", "S32"),
    "plain codes": (
        Call(changes={"codes": aligned((8, 256, 128), np.uint8)}), "weight codes", "2 dimensions",
    ),
    "plain scales": (
        Call(changes={"scales": aligned((256, 8), np.uint8)}), "weight scales", "256, 8",
    ),
    "sizes of another length": (
        Call(kind="grouped", changes={"sizes": aligned((4,), np.int32)}), "weight", "4", "3",
    ),
    "K of x": (Call(changes={"x": aligned((40, 128), BF16)}), "x", "40, 256", "40, 128"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_bad_calls_are_refused_before_anything_is_launched(standin: Standin, case: str) -> None:
    call, *words = REFUSED[case]
    message = call.run(standin)
    assert message is not None
    assert "jax_w4a8: " in message
    assert [word for word in words if word not in message] == []
    assert standin.launched() == []


def test_activations_may_lie_anywhere(standin: Standin) -> None:
    assert Call(x_offset=2).run(standin) is None
    assert Call(x_dtype=E4M3, x_offset=1).run(standin) is None
    assert len(gemms(standin)) == 2
    assert standin.refused_tensor_maps() == 0


def test_a_failed_launch_is_an_error(standin: Standin) -> None:
    standin.on_launch(lambda launch: int(b"device_kernel" in launch.kernel))
    message = Call().run(standin)
    assert message is not None
    assert "dense_" in message


def test_handlers_may_be_captured_in_command_buffers(library: Standin) -> None:
    assert len(TARGETS) == 5
    assert all(library.command_buffer_compatible(target) for target in TARGETS)


def test_handlers_run_side_by_side(standin: Standin) -> None:
    calls = [Call(kind=kind, device=d) for d in (B200, B300) for kind in ("dense", "masked")]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        messages = list(pool.map(lambda call: call.run(standin), 25 * calls))
    assert messages == [None] * 100
    assert len(gemms(standin)) == 100


@pytest.mark.parametrize("dtype", [BF16, F16, F32])
@pytest.mark.parametrize("block", [32, 128, 0])
@pytest.mark.parametrize("operands", [1, 2])
def test_quantising_runs_on_any_device(standin: Standin, dtype, block, operands) -> None:
    x = [aligned((2, 5, 200), dtype) for _ in range(operands)]
    codes = aligned((2, 5, 200), E4M3)
    scales = aligned((2, 5, -(-200 // block) if block else 1), np.uint8)
    name = "quantize" if operands == 1 else "silu_mul_quantize"
    target = f"jax_w4a8_sm100_{name}_v1"
    assert standin.call(target, x, [codes, scales], {"block": block}, device=H200) is None
    assert len(standin.launched()) == 1


def test_quantising_refuses_other_shapes(standin: Standin) -> None:
    x, codes = aligned((5, 200), BF16), aligned((5, 200), E4M3)
    scales = aligned((5, 3), np.uint8)
    target = "jax_w4a8_sm100_quantize_v1"
    message = standin.call(target, [x], [codes, scales], {"block": 128})
    assert message is not None
    assert "scales: expected U8[5, 2], got U8[5, 3]" in message
    assert standin.launched() == []
