"""tools/kernel_table.py: what it reads of a disassembly, and what it refuses."""

from __future__ import annotations

import pathlib

import pytest

from tools import kernel_table

NAME = (
    "_ZN7cutlass13device_kernelIN8jax_w4a85sm10011Sm100Kernel"
    "INS_10bfloat16_tEL_ZNS2_13kDense128x256EEEEEEvNT_6ParamsE"
)
KERNEL = {"tile": "dense_128x256", "out": "bfloat16", "stages": 4, "shared_bytes": 220160}
SCALED = "UTCQMMA gdesc[UR8], gdesc[UR10], tmem[UR6], tmem[UR4], idesc[UR5], tmem[UR2], UP0 ;"
UNSCALED = "UTCQMMA gdesc[UR8], gdesc[UR10], tmem[UR6], tmem[UR4], idesc[UR5], UP0 ;"
LOAD, STORE = "UTMALDG.3D [UR8], [UR4] ;", "UTMASTG.3D [UR8], [UR4] ;"
USAGE = f" Function {NAME}:\n  REG:95 STACK:0 SHARED:1024 LOCAL:0 CONSTANT[0]:3968\n"


def row(*instructions: str, name: str = NAME) -> kernel_table.Row:
    lines = "".join(f"        /*00a0*/   {line} /* 0x0 */\n" for line in instructions)
    sass = f"\t\tFunction : {name}\n{lines}\t\tFunction : another\n   /*00*/ {SCALED}\n"
    (found,) = kernel_table.rows([KERNEL], sass, USAGE, {"dense_128x256_bf16": 41.5})
    return found


def test_a_kernel_with_all_it_needs() -> None:
    found = row(SCALED, SCALED.replace("UTCQMMA", "UTCQMMA.2CTA"), LOAD, LOAD, STORE)
    assert (found.name, found.mma, found.loads, found.stores) == ("dense_128x256_bf16", 2, 2, 1)
    assert (found.registers, found.spills) == (95, 0)
    assert (found.stages, found.shared_bytes, found.seconds) == (4, 220160, 41.5)
    assert found.faults() == []
    line = kernel_table.table([found]).splitlines()[-1]
    assert line == "| dense_128x256_bf16 | 2 | 2 | 1 | 95 | 0 | 220160 | 4 | 42 |"


@pytest.mark.parametrize(
    ("instructions", "fault"),
    [
        ((UNSCALED, LOAD, STORE), "no block-scaled UTCQMMA"),
        ((SCALED, STORE), "0 TMA loads"),
        ((SCALED, LOAD), "0 TMA stores"),
        ((SCALED, LOAD, STORE, "STL [R1], R2 ;"), "1 accesses of local memory"),
    ],
)
def test_what_a_kernel_must_have(instructions: tuple[str, ...], fault: str) -> None:
    (found,) = row(*instructions).faults()
    assert fault in found
    assert found.startswith("dense_128x256_bf16: ")


def test_a_kernel_that_is_absent() -> None:
    with pytest.raises(LookupError, match="dense_128x256_bf16"):
        row(SCALED, name=NAME.replace("kDense128x256", "kDense128x128"))


@pytest.mark.parametrize(
    ("tile", "out", "part"),
    [
        ("dense_128x256", "bfloat16", "INS_10bfloat16_tEL_ZNS2_13kDense128x256E"),
        ("grouped_128x128", "float32", "IfL_ZNS2_15kGrouped128x128E"),
        ("dense_swap_128x64", "float16", "INS_6half_tEL_ZNS2_16kDenseSwap128x64E"),
    ],
)
def test_mangled_names(tile: str, out: str, part: str) -> None:
    assert kernel_table.mangled_part(tile, out).endswith(part)


def test_seconds_are_those_of_ninjas_log(tmp_path: pathlib.Path) -> None:
    kernel = "CMakeFiles/_sm100.dir/csrc/sm100/kernels/dense_128x256_bf16.cu.o"
    log = f"# ninja log v5\n12\t61012\t17\t{kernel}\tabc\n3\t9\t1\tother.o\tdef\n"
    (tmp_path / ".ninja_log").write_text(log)
    assert kernel_table.compile_seconds(tmp_path) == {"dense_128x256_bf16": 61.0}
    assert kernel_table.compile_seconds(tmp_path / "nowhere") == {}
