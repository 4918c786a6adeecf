"""A table of the SM100 kernels, read from the built extension's machine code.

    python tools/kernel_table.py [--build build/cp311-cp311-linux_x86_64]

For each kernel: the block-scaled UTCQMMA instructions and the TMA loads and stores in its SASS, its
registers, spills, shared memory and pipeline stages, and the seconds that its file took to compile.
Fails if a kernel is absent, has no block-scaled MMA or no TMA, or spills a register.

Needs cuobjdump and nvdisasm: a CUDA toolkit's, or those of the packages nvidia-cuda-cuobjdump and
nvidia-cuda-nvdisasm.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.metadata
import os
import pathlib
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[1]
OUTS = {"bfloat16": "bf16", "float16": "f16", "float32": "f32"}
# How the type is mangled as a template's argument.
MANGLED = {"bfloat16": "NS_10bfloat16_tE", "float16": "NS_6half_tE", "float32": "f"}

TOOLS = ("cuobjdump", "nvdisasm")

# The block-scaled MMA takes the address of its scales behind the instruction descriptor.
MMA = re.compile(r"UTCQMMA\S* gdesc\[\w+\], gdesc\[\w+\], tmem.*idesc\[\w+\], tmem\[\w+\]")
LOAD = re.compile(r"\bUTMALDG\.")
STORE = re.compile(r"\bUTMASTG\.")
LOCAL = re.compile(r"\b(?:LDL|STL)\b")


@dataclasses.dataclass
class Row:
    """One kernel. ``seconds`` is None where the build has kept no times."""

    name: str
    mma: int
    loads: int
    stores: int
    registers: int
    spills: int
    shared_bytes: int
    stages: int
    seconds: float | None

    def faults(self) -> list[str]:
        """What the kernel lacks, or has too much of."""
        found = []
        if self.mma == 0:
            found.append("no block-scaled UTCQMMA")
        if self.loads == 0 or self.stores == 0:
            found.append(f"{self.loads} TMA loads and {self.stores} TMA stores")
        if self.spills:
            found.append(f"{self.spills} accesses of local memory")
        return [f"{self.name}: {fault}" for fault in found]


def functions(sass: str) -> dict[str, str]:
    """The text of each function, by mangled name, of what ``cuobjdump -sass`` prints."""
    parts = re.split(r"^\s*Function : (\S+)$", sass, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def registers(usage: str) -> dict[str, int]:
    """Registers of each function, of what ``cuobjdump -res-usage`` prints."""
    found = re.findall(r"^\s*Function (\S+):\s*REG:(\d+)", usage, flags=re.MULTILINE)
    return {name: int(count) for name, count in found}


def mangled_part(tile: str, out: str) -> str:
    """What the mangled name of a kernel holds, and no other's."""
    symbol = "k" + "".join(word[0].upper() + word[1:] for word in tile.split("_"))
    return f"Sm100KernelI{MANGLED[out]}L_ZNS2_{len(symbol)}{symbol}E"


def rows(
    kernels: Sequence[dict[str, Any]], sass: str, usage: str, seconds: dict[str, float]
) -> Iterator[Row]:
    """A row for each of ``kernels``, as the extension lists them.

    Raises:
      LookupError: a kernel's code is not there.
    """
    code, used = functions(sass), registers(usage)
    for kernel in kernels:
        name = f"{kernel['tile']}_{OUTS[kernel['out']]}"
        part = mangled_part(kernel["tile"], kernel["out"])
        # The device_kernel alone: the functions that prepare its problems bear the tile's name too.
        symbols = [symbol for symbol in code if part in symbol]
        if len(symbols) != 1:
            raise LookupError(f"{name}: {len(symbols)} functions with {part} in their name")
        text = code[symbols[0]]
        yield Row(
            name,
            len(MMA.findall(text)),
            len(LOAD.findall(text)),
            len(STORE.findall(text)),
            used[symbols[0]],
            len(LOCAL.findall(text)),
            kernel["shared_bytes"],
            kernel["stages"],
            seconds.get(name),
        )


def compile_seconds(build: pathlib.Path) -> dict[str, float]:
    """Wall seconds of each kernel's file, from Ninja's log; empty where there is none."""
    log = build / ".ninja_log"
    found = {}
    for line in log.read_text().splitlines() if log.exists() else []:
        match = re.match(r"(\d+)\t(\d+)\t.*csrc/sm100/kernels/(\w+)\.cu\.o\t", line)
        if match:
            found[match[3]] = (int(match[2]) - int(match[1])) / 1000
    return found


def find_tool(name: str) -> str | None:
    """The path of a CUDA tool, on PATH or in its package."""
    try:
        files = importlib.metadata.files(f"nvidia-cuda-{name}") or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    return shutil.which(name) or next((str(f.locate()) for f in files if f.name == name), None)


def dump(library: str, option: str) -> str:
    """What cuobjdump prints of the extension."""
    found = {name: find_tool(name) for name in TOOLS}
    missing = [name for name, path in found.items() if path is None]
    if missing:
        packages = " ".join(f"nvidia-cuda-{name}" for name in missing)
        sys.exit(f"{' and '.join(missing)}: not on PATH; pip install {packages}")
    # cuobjdump looks for nvdisasm on PATH.
    folder = str(pathlib.Path(str(found["nvdisasm"])).parent)
    environment = os.environ | {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    command = [str(found["cuobjdump"]), option, library]
    return subprocess.run(
        command, check=True, capture_output=True, text=True, env=environment
    ).stdout


def rows_of(module: Any, seconds: dict[str, float]) -> list[Row]:
    """A row for each kernel of the extension ``jax_w4a8._sm100``."""
    sass, usage = dump(module.__file__, "-sass"), dump(module.__file__, "-res-usage")
    return list(rows(module.kernels(), sass, usage, seconds))


def table(found: Sequence[Row]) -> str:
    """The rows as a Markdown table."""
    lines = [
        "| kernel | UTCQMMA | TMA loads | TMA stores | registers | spills | shared memory "
        "| stages | compile s |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in found:
        seconds = "-" if row.seconds is None else f"{row.seconds:.0f}"
        numbers = (row.mma, row.loads, row.stores, row.registers, row.spills, row.shared_bytes)
        lines.append(
            f"| {row.name} | " + " | ".join(map(str, numbers)) + f" | {row.stages} | {seconds} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Prints the table; exits with 1 when a kernel lacks what it must have."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=pathlib.Path, help="CMake's build folder, for the seconds")
    options = parser.parse_args()
    builds = [options.build] if options.build else sorted((ROOT / "build").glob("*/"))
    seconds: dict[str, float] = {}
    for build in builds:
        seconds |= compile_seconds(build)

    from jax_w4a8 import _sm100

    found = rows_of(_sm100, seconds)
    print(table(found))
    faults = [fault for row in found for fault in row.faults()]
    if faults:
        sys.exit("\n".join(faults))


if __name__ == "__main__":
    main()
