"""The mutants, with what catches each."""

from __future__ import annotations

import numpy as np

from tests.sm100_emulator.cases import Case
from tests.sm100_emulator.gpu import E4M3
from tests.sm100_emulator.mutants import (
    MMA,
    Mutant,
    change_map,
    descriptor,
    drop,
    on,
    plain_scales,
    replace,
    reverse_blocks,
    swap_nibbles,
)

BITS = "numbers differ"
UNWRITTEN = "computed from memory that nobody wrote"
DEADLOCK = "deadlock"
ADVERSE = tuple(range(1, 9))
LOAD = (
    r"(cp\.async\.bulk\.tensor\.\dd\.shared::cluster\S+ )"
    r"\[(%r\d+)\], \[(%rd\d+), \{([^,]*), ([^,}]*)"
)
STORE = r"(cp\.async\.bulk\.tensor\.\dd\.global\S+ \[%rd\d+, \{)([^,]*), ([^,}]*)"
PAIR = {"tile": "dense_256x256", "case": Case(m=300, n=269, k=200, block=32)}
GROUPED = {
    "tile": "grouped_swap_128x64",
    "case": Case("grouped", m=90, n=136, k=200, block=32, sizes=(20, 0, 40, 17)),
}
QUANTIZED = {"case": Case(m=70, n=269, k=200, block=32, x=E4M3)}

MUTANTS = {
    # The MMA's operands.
    "A and B exchanged": Mutant(BITS, replace(MMA, r"tcgen05.mma.\1 \2, \4, \3, \5, \6, \7, p;")),
    "scales exchanged": Mutant(
        UNWRITTEN, replace(MMA, r"tcgen05.mma.\1 \2, \3, \4, \5, \7, \6, p;")
    ),
    "format of A": Mutant(BITS, descriptor(5 << 7)),
    "format of B": Mutant(BITS, descriptor(5 << 10)),
    "format E5M2": Mutant("unknown operand format", descriptor(1 << 10)),
    "byte of A's scales": Mutant(BITS, descriptor(1 << 29, 0)),
    "byte of B's scales": Mutant("names another byte of scales", descriptor(1 << 4, 1)),
    "half of N": Mutant(UNWRITTEN, descriptor(12 << 17)),
    "M of 256": Mutant("M of the descriptor", descriptor(3 << 27)),
    "scales that are not UE8M0": Mutant("scales are not UE8M0", descriptor(1 << 23)),
    "A negated": Mutant("unknown bits in the instruction descriptor", descriptor(1 << 13)),
    "B transposed": Mutant("unknown bits in the instruction descriptor", descriptor(1 << 16)),
    "first MMA always accumulates": Mutant(
        UNWRITTEN,
        replace(r"setp\.ne\.b32 p, (%r\d+), 0;(\s*tcgen05\.mma)", r"setp.ne.b32 p, 1, 0;\2", 0),
    ),
    "second MMA starts anew": Mutant(
        BITS,
        replace(r"setp\.ne\.b32 p, (%r\d+), 0;(\s*tcgen05\.mma)", r"setp.ne.b32 p, 0, 0;\2", 1),
    ),
    "last MMA left out": Mutant(BITS, drop(r"tcgen05\.mma", -1)),
    "K advances too far": Mutant(
        BITS, replace(r"(add\.s32 %r\d+, %r\d+), 4;(?=\s*mov\.b64 %rd\d+, \{)", r"\1, 6;", 0)
    ),
    "K does not advance": Mutant(
        BITS, replace(r"(add\.s32 %r\d+, %r\d+), 2;(?=\s*mov\.b64 %rd\d+, \{)", r"\1, 0;", 0)
    ),
    "A's scales not copied": Mutant(UNWRITTEN, drop(r"tcgen05\.cp", 0)),
    "B's scales not copied": Mutant(UNWRITTEN, drop(r"tcgen05\.cp", 1)),
    "scales of another stage": Mutant(
        UNWRITTEN, replace(r"(shl\.b32 %r\d+, %r\d+), 5;", r"\1, 4;", -1)
    ),
    # Tensor memory.
    "accumulator never freed": Mutant("still allocated", drop(r"tcgen05\.dealloc")),
    "too little allocated": Mutant(
        "is not allocated", replace(r"(tcgen05\.alloc\S+ \[%r\d+\]), %r\d+", r"\1, 32")
    ),
    "freed in part": Mutant(
        "still allocated", replace(r"(tcgen05\.dealloc\S+ %r\d+), %r\d+", r"\1, 32")
    ),
    "columns read": Mutant(UNWRITTEN, replace(r"(tcgen05\.ld[^;]*)\[(%r\d+)\]", r"\1[\2+1]", 0)),
    # Barriers.
    "barrier never set": Mutant("no mbarrier was initialised", drop(r"mbarrier\.init", 0)),
    "no barrier set": Mutant("no mbarrier was initialised", drop(r"mbarrier\.init")),
    "fewer bytes expected": Mutant(
        DEADLOCK,
        replace(r"(mbarrier\.arrive\.expect_tx\.shared::cta\S+ _, \[%r\d+\]), %r\d+", r"\1, 1024"),
    ),
    "more bytes expected": Mutant(
        DEADLOCK,
        replace(
            r"(mbarrier\.arrive\.expect_tx\.shared::cta\S+ _, \[%r\d+\]), %r\d+", r"\1, 100000"
        ),
    ),
    "commit left out": Mutant(DEADLOCK, drop(r"tcgen05\.commit", 0)),
    "last commit left out": Mutant(DEADLOCK, drop(r"tcgen05\.commit", -1)),
    "commit to the next barrier": Mutant(
        DEADLOCK, replace(r"(tcgen05\.commit\S+ \[)(%r\d+)\]", r"\1\2+8]", 0)
    ),
    "setting barriers races": Mutant(
        "no mbarrier was initialised", drop(r"bar\.sync 0"), seeds=ADVERSE
    ),
    # Loads and stores.
    "load left out": Mutant(DEADLOCK, drop(r"cp\.async\.bulk\.tensor\.\dd\.shared::cluster", 0)),
    "load of scales left out": Mutant(
        DEADLOCK, drop(r"cp\.async\.bulk\.tensor\.4d\.shared::cluster", 0)
    ),
    "coordinates of a load exchanged": Mutant(BITS, replace(LOAD, r"\1[\2], [\3, {\5, \4", 0)),
    "load to another place": Mutant(UNWRITTEN, replace(LOAD, r"\1[\2+1024], [\3, {\4, \5", 0)),
    "misplaced load": Mutant("misaligned box", replace(LOAD, r"\1[\2+128], [\3, {\4, \5", 0)),
    "coordinates of a store exchanged": Mutant(UNWRITTEN, replace(STORE, r"\1\3, \2", 0)),
    "store left out": Mutant("never written", drop(r"cp\.async\.bulk\.tensor\.\dd\.global", 0)),
    "rows of a fragment not transposed": Mutant(UNWRITTEN, replace(r"\.x4\.trans\.", ".x4.", 0)),
    "halves of a pair exchanged": Mutant(
        BITS, replace(r"(cvt\.rn\.bf16x2\.f32 %r\d+), (%f\d+), (%f\d+)", r"\1, \3, \2", 0)
    ),
    "result not scaled": Mutant(
        BITS, replace(r"mul\.f32 (%f\d+), (%f\d+), (%f\d+)", r"add.f32 \1, \2, \3", 0)
    ),
    "store not fenced": Mutant("without fence.proxy.async", drop(r"fence\.proxy\.async", -1)),
    "store without the other warps": Mutant(
        UNWRITTEN, drop(r"bar\.sync %r\d+, %r\d+", 1), seeds=ADVERSE
    ),
    "buffer reused too early": Mutant(
        BITS, drop(r"cp\.async\.bulk\.wait_group\.read"), seeds=ADVERSE, tile="dense_128x256"
    ),
    # Launch control.
    "next cluster never asked for": Mutant(DEADLOCK, drop(r"clusterlaunchcontrol\.try_cancel")),
    "answer read backwards": Mutant("of no cluster", replace(r"@p1 (clusterlaunchcontrol)", r"\1")),
    # Two SMs.
    "pair: A and B exchanged": Mutant(
        BITS, replace(MMA, r"tcgen05.mma.\1 \2, \4, \3, \5, \6, \7, p;"), **PAIR
    ),
    "pair: one SM's instruction": Mutant(
        "M of the descriptor",
        replace(r"tcgen05\.mma\.cta_group::2", "tcgen05.mma.cta_group::1"),
        **PAIR,
    ),
    "pair: scales not for both": Mutant(
        UNWRITTEN, replace(r"tcgen05\.cp\.cta_group::2", "tcgen05.cp.cta_group::1", 0), **PAIR
    ),
    "pair: commit to one": Mutant(
        DEADLOCK, replace(r"(tcgen05\.commit\S+ \[%r\d+\]), %rs\d+", r"\1, 1"), **PAIR
    ),
    "pair: multicast to one": Mutant(
        DEADLOCK,
        replace(r"(multicast::cluster\.L2::cache_hint [^;]*), %rs\d+, (%rd\d+);", r"\1, 1, \2;"),
        **PAIR,
    ),
    "pair: loads of one SM": Mutant(
        "mbarrier is not in the thread block",
        replace(r"(cp\.async\.bulk\.tensor\.3d)\.cta_group::2", r"\1", 0),
        **PAIR,
    ),
    # What the host hands over.
    "map: A not swizzled": Mutant(BITS, launch=change_map(0, "swizzle", lambda _: 0)),
    "map: A some rows short": Mutant(BITS, launch=change_map(0, "dims", lambda n: n - 4, 1)),
    "map: stride of B": Mutant(UNWRITTEN, launch=change_map(1, "strides", lambda n: n + 16)),
    "map: address of B": Mutant(UNWRITTEN, launch=change_map(1, "address", lambda n: n + 16)),
    "map: type of FP4": Mutant(
        "unknown type of tensor map", launch=change_map(0, "type", lambda _: 13)
    ),
    "map: box of the scales": Mutant(DEADLOCK, launch=change_map(2, "box", lambda n: n // 2)),
    # Packing.
    "nibbles exchanged": Mutant(BITS, operands=on("codes", swap_nibbles)),
    "scales not interleaved": Mutant(BITS, operands=on("scales", plain_scales)),
    "scales of four blocks reversed": Mutant(BITS, operands=on("scales", reverse_blocks)),
    "scales with another bias": Mutant(BITS, operands=on("scales", lambda s: s + np.uint8(1))),
    "weight rows shifted": Mutant(BITS, operands=on("codes", lambda c: np.roll(c, 1, axis=-2))),
    "groups exchanged": Mutant(BITS, operands=on("codes", lambda c: c[::-1]), **GROUPED),
    "sizes shifted": Mutant(BITS, operands=on("sizes", lambda s: np.roll(s, 1)), **GROUPED),
    # Quantising and laying out.
    "scale rule": Mutant(
        BITS,
        replace(r"setp\.gt\.u32 (%p\d+), (%r\d+), 6291456", r"setp.ge.u32 \1, \2, 4194304"),
        kernel="quantize",
    ),
    "codes not scaled": Mutant(
        BITS,
        replace(r"mul\.ftz\.f32 (%f\d+), (%f\d+), (%f\d+)", r"mul.ftz.f32 \1, \2, 0f3F800000"),
        kernel="quantize",
    ),
    "relayout of scales": Mutant(
        BITS, replace(r"(shl\.b32 %r\d+, %r\d+), 16;", r"\1, 8;"), kernel="relayout", **QUANTIZED
    ),
    # Groups.
    "group: map not released": Mutant(
        "tensor map that nobody wrote", drop(r"tensormap\.cp_fenceproxy"), **GROUPED
    ),
    "group: map not acquired": Mutant(
        "without fence.proxy.tensormap", drop(r"fence\.proxy\.tensormap"), **GROUPED
    ),
    "group: address not replaced": Mutant(
        "out of bounds", drop(r"tensormap\.replace\.tile\.global_address", 0), **GROUPED
    ),
    "group: rows not replaced": Mutant(
        UNWRITTEN, drop(r"tensormap\.replace\.tile\.global_dim\S+ \[%rd\d+\], 1,"), **GROUPED
    ),
    "group: address of the result": Mutant(
        "out of bounds", drop(r"tensormap\.replace\.tile\.global_address", -1), **GROUPED
    ),
}
