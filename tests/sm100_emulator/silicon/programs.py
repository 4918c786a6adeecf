# ruff: noqa: E501 - an instruction is a line
"""Programs of instructions that Hopper and Blackwell share, for an H200 and for the emulator.

Each is PTX text with two arrays, and tensor maps where it needs some; what it writes is recorded on
an H200 (``record.py``) and must come out of the emulator to the last bit.
"""

from __future__ import annotations

import dataclasses

import numpy as np

IN_BYTES, OUT_BYTES = 16384, 16384
TYPES = {"u8": (0, 1), "u16": (1, 2), "f32": (7, 4), "bf16": (9, 2)}
"""Name -> CUtensorMapDataType, bytes."""
SWIZZLE_BYTES = (0, 32, 64, 128)


@dataclasses.dataclass(frozen=True)
class Map:
    """Arguments of cuTensorMapEncodeTiled; the tensor is the first array, or the second."""

    type: str
    dims: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int = 0
    of_output: bool = False

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes, from the second dimension on."""
        size, strides = TYPES[self.type][1], []
        for dim in self.dims[:-1]:
            size *= dim
            strides.append(size)
        return tuple(strides)

    @property
    def box_bytes(self) -> int:
        return int(np.prod(self.box)) * TYPES[self.type][1]


@dataclasses.dataclass(frozen=True)
class Program:
    """PTX of one launch: a cluster of thread blocks."""

    body: str
    map: Map = Map("u8", (16, 16), (16, 16))
    cluster: int = 1
    threads: int = 32
    special: bool = False
    """Whether the input is floats of every kind instead of a pattern."""

    @property
    def text(self) -> str:
        return PROLOGUE.replace("THREADS", str(self.threads)) + self.body + "\n  ret;\n}\n"

    def input(self) -> np.ndarray:
        """The first array, uint8 ``[IN_BYTES]``."""
        rng = np.random.default_rng(7)
        if not self.special:
            return rng.integers(0, 256, IN_BYTES, dtype=np.uint8)
        count = IN_BYTES // 4
        bits = rng.integers(0, 2**32, count, dtype=np.uint32)
        bits[: count // 2] = rng.normal(size=count // 2).astype(np.float32).view(np.uint32)
        # Ties and their neighbours for bfloat16, and the ends of the range.
        bits[1000:1300] = (bits[1000:1300] & 0xFFFF0000) | 0x8000
        bits[1300:1400] = (bits[1300:1400] & 0xFFFFE000) | 0x1000
        bits[:8] = (0, 0x80000000, 0x7F800000, 0xFF800000, 0x7FC00000, 0x7F7FFFFF, 1, 0x477FF000)
        # The payload of a NaN is not specified by every instruction: only the canonical one.
        nan = (bits & 0x7FFFFFFF) > 0x7F800000
        bits[nan] = 0x7FFFFFFF
        return bits.view(np.uint8)


PROLOGUE = """
.version 8.0
.target sm_90a
.address_size 64
.extern .shared .align 1024 .b8 memory[];
.visible .entry program(.param .u64 in, .param .u64 out, .param .align 64 .b8 map[128])
.maxntid THREADS, 1, 1
{
  .reg .pred %p<9>;
  .reg .b16 %h<9>;
  .reg .b32 %r<40>;
  .reg .b64 %d<20>;
  ld.param.u64 %d0, [in];
  ld.param.u64 %d1, [out];
  mov.b64 %d5, map;
  cvta.param.u64 %d5, %d5;
  mov.u32 %r0, %tid.x;
  mov.u32 %r1, memory;
  mov.u32 %r9, %cluster_ctarank;
  mul.wide.u32 %d2, %r0, 4;
  add.s64 %d3, %d0, %d2;
  mul.wide.u32 %d6, %r9, 4096;
  add.s64 %d1, %d1, %d6;
  add.s64 %d4, %d1, %d2;
  shl.b32 %r2, %r0, 2;
  add.s32 %r2, %r2, %r1;
"""
BARRIER = """
  add.s32 %r3, %r1, 8192;
  setp.eq.s32 %p0, %r0, 0;
  @%p0 mbarrier.init.shared::cta.b64 [%r3], 1;
  fence.mbarrier_init.release.cluster;
  bar.sync 0;
"""
WAIT = """
WAIT:
  mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r3], 0;
  @!%p1 bra WAIT;
"""
FILL = """
  mov.u32 %r10, 0;
FILL:
  add.s32 %r11, %r2, %r10;
  add.s32 %r12, %r10, %r0;
  mul.lo.u32 %r12, %r12, 2654435761;
  st.shared.u32 [%r11], %r12;
  add.s32 %r10, %r10, 128;
  setp.lt.u32 %p2, %r10, 4096;
  @%p2 bra FILL;
  fence.proxy.async.shared::cta;
  bar.sync 0;
"""
DUMP = """
  mov.u32 %r10, 0;
DUMP:
  add.s32 %r11, %r2, %r10;
  ld.shared.u32 %r12, [%r11];
  cvt.u64.u32 %d7, %r10;
  add.s64 %d7, %d4, %d7;
  st.global.u32 [%d7], %r12;
  add.s32 %r10, %r10, 128;
  setp.lt.u32 %p2, %r10, 4096;
  @%p2 bra DUMP;
"""
CLUSTER = """
  barrier.cluster.arrive.release.aligned;
  barrier.cluster.wait.acquire.aligned;
"""


def coordinates(at: tuple[int, ...]) -> str:
    return "{" + ", ".join(f"%r{20 + i}" for i in range(len(at))) + "}"


def set_coordinates(at: tuple[int, ...]) -> str:
    return "".join(f"  mov.b32 %r{20 + i}, {c};\n" for i, c in enumerate(at))


def load(map: Map, at: tuple[int, ...]) -> Program:
    """A box into shared memory, over a pattern, and out again."""
    body = FILL + BARRIER + set_coordinates(at) + f"""
  @%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], {map.box_bytes};
  @%p0 cp.async.bulk.tensor.{len(at)}d.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%d5, {coordinates(at)}], [%r3];
""" + WAIT + DUMP  # fmt: skip
    return Program(body, map)


def store(map: Map, at: tuple[int, ...]) -> Program:
    """A pattern out of shared memory as a box."""
    body = FILL + set_coordinates(at) + f"""
  setp.eq.s32 %p0, %r0, 0;
  @%p0 cp.async.bulk.tensor.{len(at)}d.global.shared::cta.bulk_group [%d5, {coordinates(at)}], [%r1];
  cp.async.bulk.commit_group;
  cp.async.bulk.wait_group 0;
"""  # fmt: skip
    return Program(body, map)


def multicast(map: Map, mask: int) -> Program:
    """The first thread block loads a box for others of its cluster of two."""
    expecting = f"""
  setp.eq.s32 %p3, %r0, 0;
  shr.u32 %r15, {mask}, %r9;
  and.b32 %r15, %r15, 1;
  setp.eq.s32 %p4, %r15, 1;
  and.pred %p6, %p4, %p3;
  setp.eq.s32 %p5, %r9, 0;
  and.pred %p5, %p5, %p3;
"""
    body = FILL + BARRIER + expecting + CLUSTER + set_coordinates((0, 0)) + f"""
  @%p6 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], {map.box_bytes};
  mov.b16 %h1, {mask};
  @%p5 cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%r1], [%d5, {coordinates((0, 0))}], [%r3], %h1;
  @!%p4 bra SKIP;
""" + WAIT + "SKIP:\n  bar.warp.sync -1;\n" + CLUSTER + DUMP  # fmt: skip
    return Program(body, map, cluster=2)


REMOTE = Program(FILL + BARRIER + CLUSTER + """
  xor.b32 %r15, %r9, 1;
  mapa.shared::cluster.u32 %r16, %r2, %r15;
  ld.shared::cluster.u32 %r17, [%r16];
  add.s32 %r17, %r17, %r9;
  st.shared::cluster.u32 [%r16+512], %r17;
  mapa.shared::cluster.u32 %r18, %r3, %r15;
  bar.warp.sync -1;
""" + CLUSTER + """
  @%p0 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r18];
""" + WAIT + CLUSTER + DUMP, cluster=2)  # fmt: skip


BULK_COPIES = Program(FILL + BARRIER + """
  @%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], 1040;
  @%p0 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1+64], [%d0+32], 1024, [%r3];
  @%p0 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1+2048], [%d0], 16, [%r3];
""" + WAIT + """
  @%p0 cp.async.bulk.global.shared::cta.bulk_group [%d1+4096], [%r1+16], 2064;
  cp.async.bulk.commit_group;
  cp.async.bulk.wait_group 0;
""" + DUMP)  # fmt: skip

ATOMICS = Program(
    FILL
    + """
  ld.global.u32 %r20, [%d3];
  rem.u32 %r21, %r0, 5;
  shl.b32 %r21, %r21, 2;
  add.s32 %r21, %r21, %r1;
  atom.shared.add.u32 %r22, [%r21], %r20;
  atom.shared.max.u32 %r22, [%r21+64], %r20;
  atom.shared.min.s32 %r22, [%r21+128], %r20;
  bar.sync 0;
"""
    + DUMP
)

VECTORS = Program("""
  shl.b32 %r15, %r0, 4;
  cvt.u64.u32 %d7, %r15;
  add.s64 %d8, %d0, %d7;
  add.s64 %d9, %d1, %d7;
  ld.global.v4.u32 {%r20, %r21, %r22, %r23}, [%d8];
  st.global.v4.u32 [%d9], {%r23, %r21, %r20, %r22};
  ld.global.s8 %r24, [%d8+1];
  ld.global.u16 %h1, [%d8+6];
  cvt.s32.s16 %r25, %h1;
  mov.b64 %d10, {%r24, %r25};
  st.global.b64 [%d9+512], %d10;
  st.global.u8 [%d9+1024], %r20;
""")


def stmatrix(count: int, transposed: bool) -> Program:
    registers = ", ".join(f"%r{20 + i}" for i in range(count))
    values = "".join(f"  ld.global.u32 %r{20 + i}, [%d3+{128 * i}];\n" for i in range(count))
    trans = ".trans" if transposed else ""
    body = FILL + values + f"""
  shl.b32 %r15, %r0, 4;
  add.s32 %r15, %r15, %r1;
  stmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 [%r15], {{{registers}}};
  bar.sync 0;
""" + DUMP  # fmt: skip
    return Program(body)


def wgmma(kind: str, columns: int, swizzle: int, a_in_registers: bool = False) -> Program:
    """Two steps of a warpgroup's MMA on small numbers, whose sums are exact in any accumulator.

    Args:
      kind: "bf16" or "e4m3".
      columns: N.
      swizzle: bytes of the operands' swizzle, or 0.
    """
    size = 2 if kind == "bf16" else 1
    depth = 32 // size
    # Rows of the operands, 8 of them together: as long as the swizzle's span, or two chunks.
    stride = 8 * (swizzle or 32)
    a_bytes, b_bytes = 64 // 8 * stride, columns // 8 * stride
    mode = {0: 0, 128: 1, 64: 2, 32: 3}[swizzle]
    descriptor = (stride >> 4) << 32 | (128 >> 4) << 16 | mode << 62
    number = {
        "bf16": "and.b32 %r13, %r12, 15; sub.s32 %r13, %r13, 7; cvt.rn.f32.s32 %r13, %r13; "
        "cvt.rn.bf16.f32 %h1, %r13;",
        "e4m3": "and.b32 %r13, %r12, 3; shl.b32 %r13, %r13, 2; add.s32 %r13, %r13, 56; "
        "and.b32 %r14, %r12, 4; shl.b32 %r14, %r14, 5; or.b32 %r13, %r13, %r14; "
        "cvt.u16.u32 %h1, %r13;",
    }[kind]
    sums = [f"%f{i}" for i in range(columns // 2)]
    registers = ["%r20", "%r21", "%r22", "%r23"]
    pack = "mov.b32 {}, {{%h1, %h1}};" if size == 2 else (
        "cvt.u32.u16 {0}, %h1; mul.lo.u32 {0}, {0}, 16843009;"
    )  # fmt: skip
    fragment = "".join(
        f"  ld.global.u32 %r12, [%d3+{512 * i}];\n  {number}\n  {pack.format(r)}\n"
        for i, r in enumerate(registers)
    )
    a = "{" + ", ".join(registers) + "}" if a_in_registers else "%d10"
    transposed = "" if kind == "e4m3" else ", 0" if a_in_registers else ", 0, 0"
    instruction = (
        f"wgmma.mma_async.sync.aligned.m64n{columns}k{depth}.f32.{kind}.{kind} "
        f"{{{', '.join(sums)}}}, {a}, %d11, SCALE, 1, 1{transposed};"
    )
    body = f"""
  .reg .f32 %f<{columns // 2}>;
  mov.u32 %r10, %r0;
NEXT:
  cvt.u64.u32 %d7, %r10;
  and.b64 %d7, %d7, 4095;
  shl.b64 %d7, %d7, 2;
  add.s64 %d7, %d0, %d7;
  ld.global.u32 %r12, [%d7];
  {number}
  mul.lo.u32 %r11, %r10, {size};
  add.s32 %r11, %r11, %r1;
  st.shared.{"b16" if size == 2 else "u8"} [%r11], %h1;
  add.s32 %r10, %r10, 128;
  setp.lt.u32 %p2, %r10, {(a_bytes + b_bytes) // size};
  @%p2 bra NEXT;
{fragment}
  fence.proxy.async.shared::cta;
  bar.sync 0;
  cvt.u64.u32 %d8, %r1;
  shr.u64 %d9, %d8, 4;
  or.b64 %d10, %d9, {descriptor};
  add.s64 %d11, %d10, {a_bytes >> 4};
{"".join(f"  mov.f32 {s}, 0f00000000;" for s in sums)}
  setp.ne.b32 %p3, 0, 0;
  setp.eq.b32 %p4, 0, 0;
  wgmma.fence.sync.aligned;
  {instruction.replace("SCALE", "%p3")}
  {instruction.replace("SCALE", "%p4")}
  wgmma.commit_group.sync.aligned;
  wgmma.wait_group.sync.aligned 0;
{"".join(f"  st.global.f32 [%d4+{512 * i}], {s};" for i, s in enumerate(sums))}
"""
    return Program(body, threads=128)


def each_word(instructions: str, special: bool = False) -> Program:
    """Computes %r30 of %r20, %r21 and %r22 for 1024 words and their successors."""
    return Program(f"""
  mov.u32 %r10, 0;
LOOP:
  cvt.u64.u32 %d7, %r10;
  add.s64 %d8, %d3, %d7;
  add.s64 %d9, %d4, %d7;
  ld.global.u32 %r20, [%d8];
  ld.global.u32 %r21, [%d8+4];
  ld.global.u32 %r22, [%d8+8];
  {instructions}
  st.global.u32 [%d9], %r30;
  add.s32 %r10, %r10, 128;
  setp.lt.u32 %p2, %r10, 4096;
  @%p2 bra LOOP;
""", special=special)  # fmt: skip


F32 = Map("f32", (40, 30), (8, 16))
BOXES = {
    # A box whose rows are as long as each swizzle's span, in 96 x 40 bytes and the like.
    0: Map("u8", (96, 40), (48, 16), 0),
    32: Map("u8", (96, 40), (32, 24), 1),
    64: Map("bf16", (48, 40), (32, 24), 2),
    128: Map("f32", (40, 40), (32, 24), 3),
}
PLACES = {
    "inside": (0, 3),
    "below zero": (-16, -5),
    "past the end": (32, 30),
    "outside": (208, 0),
    "row below zero": (16, -5),
    "column below zero": (-16, 2),
    "odd": (7, 2),
}

PROGRAMS = {
    **{f"load, swizzle {s}, {name}": load(BOXES[s], at) for s in BOXES for name, at in PLACES.items()},
    **{
        f"store, swizzle {s}, {name}": store(dataclasses.replace(BOXES[s], of_output=True), at)
        for s in BOXES
        for name, at in PLACES.items()
        if name != "outside"
    },
    "load of three dimensions": load(Map("u16", (24, 9, 7), (16, 4, 3), 1), (8, -1, 5)),
    "load of four dimensions": load(Map("u8", (16, 4, 5, 3), (16, 2, 2, 2), 0), (0, 3, -1, 1)),
    "load of 32 columns of 16 bits, swizzle 64": load(Map("u16", (40, 20), (32, 16), 2), (8, 4)),
    "load of 64 columns of 16 bits, swizzle 128": load(Map("bf16", (72, 20), (64, 16), 3), (8, 4)),
    "load of bytes, swizzle 128": load(Map("u8", (144, 20), (128, 16), 3), (16, 8)),
    "store of 64 columns of 16 bits, swizzle 128": store(
        Map("bf16", (72, 20), (64, 16), 3, of_output=True), (16, 4)
    ),
    "multicast to both": multicast(F32, 3),
    "multicast to the other": multicast(F32, 2),
    "multicast to itself": multicast(F32, 1),
    "remote shared memory": REMOTE,
    "bulk copies": BULK_COPIES,
    "atomics": ATOMICS,
    "vectors and bytes": VECTORS,
    **{
        f"stmatrix x{count}{' trans' if t else ''}": stmatrix(count, t)
        for count in (1, 2, 4)
        for t in (False, True)
    },
    **{
        f"wgmma {kind}, {n} columns, swizzle {s}": wgmma(kind, n, s)
        for kind in ("bf16", "e4m3")
        for n, s in ((8, 0), (16, 128), (32, 64), (24, 32))
    },
    "wgmma bf16, A in registers": wgmma("bf16", 16, 128, a_in_registers=True),
    "wgmma e4m3, A in registers": wgmma("e4m3", 16, 64, a_in_registers=True),
    "cvt bf16x2": each_word("cvt.rn.bf16x2.f32 %r30, %r20, %r21;", special=True),
    "cvt f16x2": each_word("cvt.rn.f16x2.f32 %r30, %r20, %r21;", special=True),
    "cvt e4m3x2": each_word(
        "cvt.rn.satfinite.e4m3x2.f32 %h1, %r20, %r21; cvt.u32.u16 %r30, %h1;", special=True
    ),
    "cvt from bf16": each_word("mov.b32 {%h1, %h2}, %r20; cvt.f32.bf16 %r30, %h1;", special=True),
    "cvt from f16": each_word("mov.b32 {%h1, %h2}, %r20; cvt.f32.f16 %r30, %h2;"),
    "prmt": each_word("prmt.b32 %r30, %r20, %r21, %r22;"),
    "lop3": each_word("lop3.b32 %r30, %r20, %r21, %r22, 0xCA;"),
    "mad": each_word("mad.lo.s32 %r30, %r20, %r21, %r22;"),
    "mul.hi": each_word("mul.hi.s32 %r30, %r20, %r21; mul.hi.u32 %r31, %r20, %r22; xor.b32 %r30, %r30, %r31;"),
    "shifts": each_word("shl.b32 %r30, %r20, %r21; shr.s32 %r31, %r20, 9; shr.u32 %r32, %r21, %r22; xor.b32 %r30, %r30, %r31; xor.b32 %r30, %r30, %r32;"),
    "bfind and brev": each_word("bfind.u32 %r30, %r20; brev.b32 %r31, %r21; add.s32 %r30, %r30, %r31;"),
    "fma": each_word("fma.rn.f32 %r30, %r20, %r21, %r22;", special=True),
    "fma down": each_word("fma.rm.f32 %r30, %r20, %r21, %r22;", special=True),
    "mul flushing": each_word("mul.ftz.f32 %r30, %r20, %r21;", special=True),
    "add and mul": each_word("add.f32 %r30, %r20, %r21; mul.f32 %r30, %r30, %r22;", special=True),
    "div": each_word("div.rn.f32 %r30, %r20, %r21;", special=True),
    "min and max": each_word("min.f32 %r30, %r20, %r21; max.f32 %r30, %r30, %r22;", special=True),
    "comparisons": each_word(
        "setp.lt.f32 %p3, %r20, %r21; selp.b32 %r30, 1, 2, %p3; setp.ne.f32 %p3, %r21, %r22; "
        "selp.b32 %r31, 16, 32, %p3; add.s32 %r30, %r30, %r31;", special=True
    ),
    **{
        f"shfl {mode}": each_word(f"shfl.sync.{mode}.b32 %r30|%p3, %r20, {lane}, {clamp}, -1; @%p3 add.s32 %r30, %r30, 1;")
        for mode, lane, clamp in (("up", 3, 0), ("down", 5, 31), ("bfly", 9, 31), ("idx", 4, 0x181F))
    },
    "vote and redux": each_word(
        "setp.gt.s32 %p3, %r20, 0; vote.sync.ballot.b32 %r30, %p3, -1; "
        "redux.sync.max.u32 %r31, %r21, -1; xor.b32 %r30, %r30, %r31;"
    ),
}  # fmt: skip
