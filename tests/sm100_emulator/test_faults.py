"""Programs that do what the PTX ISA does not allow: each is an error that names the PTX line."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from tests.sm100.standin import Launch, aligned
from tests.sm100_emulator.emulator import EmulationError, Emulator

HEADER = """
.version 9.0
.target sm_100a
.address_size 64
.extern .shared .align 1024 .b8 memory[];
.visible .entry program(.param .u64 in, .param .u64 out)
{
  .reg .pred %p<9>;
  .reg .b32 %r<20>;
  .reg .b64 %d<20>;
  ld.param.u64 %d0, [in];
  ld.param.u64 %d1, [out];
  mov.u32 %r0, %tid.x;
  mov.u32 %r1, memory;
  mul.wide.u32 %d2, %r0, 4;
  add.s64 %d3, %d0, %d2;
  add.s64 %d4, %d1, %d2;
"""
FIRST_LINE = HEADER.count("\n") + 1


def run(body: str, seed: int = 0, threads: int = 32, cluster: int = 1) -> np.ndarray:
    """Runs a program of one thread block on 64 words 0, 1, ..; gives its 64 words."""
    emulator = Emulator()
    emulator.load(HEADER + body + "\n  ret;\n}\n")
    emulator.schedule(seed)
    given, taken = aligned((64,), np.uint32), aligned((64,), np.uint32)
    given[:] = np.arange(64)
    emulator.set_arrays([given], [taken])
    pointers = (ctypes.c_void_p * 2)(
        *(ctypes.cast(ctypes.pointer(ctypes.c_uint64(a.ctypes.data)), ctypes.c_void_p).value
          for a in (given, taken))
    )  # fmt: skip
    launch = Launch(b"program", (cluster, 1, 1), (threads, 1, 1), (cluster, 1, 1), 4096, pointers)
    emulator.launch(launch)
    return taken


def test_a_program_runs() -> None:
    out = run("""
  ld.global.u32 %r2, [%d3];
  add.s32 %r2, %r2, 100;
  st.global.u32 [%d4], %r2;
""")
    assert out[:32].tolist() == list(range(100, 132))


BARRIER = """
  mbarrier.init.shared::cta.b64 [%r1], 1;
"""
ONE_LANE = """
  setp.ne.s32 %p0, %r0, 0;
  @%p0 bra DONE;
"""
FAULTS = {
    # name: (program, words of the message, the faulty line of the program from 1 on)
    "unknown instruction": ("\n  frobnicate.b32 %r2, %r0;", "unknown instruction", 2),
    "unknown modifier": ("\n  add.cc.s32 %r2, %r0, 1;", "unknown instruction", 2),
    "unknown register": ("\n  add.s32 %r2, %nothing, 1;", "unknown operand", 2),
    "barrier that was not set": (
        "\n  mbarrier.arrive.shared::cta.b64 _, [%r1];", "no mbarrier was initialised", 2,
    ),
    "barrier that was invalidated": (
        BARRIER + ONE_LANE + "  mbarrier.inval.shared::cta.b64 [%r1];\n"
        "  mbarrier.arrive.shared::cta.b64 _, [%r1];\nDONE:", "no mbarrier was initialised", 7,
    ),
    "more arrivals than expected": (BARRIER + """
  mbarrier.arrive.shared::cta.b64 _, [%r1], 2;""", "more arrivals", 4),
    "branch on shared memory that nobody wrote": ("""
  ld.shared.u32 %r2, [%r1];
  setp.eq.s32 %p0, %r2, 0;
  @%p0 bra DONE;
DONE:""", "undefined", 4),
    "stores what nobody wrote": ("""
  ld.shared.u32 %r2, [%r1];
  add.s32 %r2, %r2, 1;
  st.global.u32 [%d4], %r2;""", "nobody wrote", 4),
    "reads an array that nobody wrote": ("""
  ld.global.u32 %r2, [%d4];
  st.global.u32 [%d4], %r2;""", "nobody wrote", 3),
    "register that was never set": ("\n  st.global.u32 [%d4], %r9;", "nobody wrote", 2),
    "past the end of an array": ("\n  ld.global.u32 %r2, [%d3+256];", "out of bounds", 2),
    "in front of an array": ("\n  ld.global.u32 %r2, [%d3+-4];", "out of bounds", 2),
    "past the end of shared memory": ("\n  ld.shared.u32 %r2, [%r1+240000];", "out of bounds", 2),
    "past the end of what the launch asked for": (
        "\n  ld.shared.u32 %r2, [%r1+4096];", "out of bounds", 2,
    ),
    "writes a constant array": ("\n  st.global.u32 [%d3], %r0;", "write to a constant array", 2),
    "misaligned": ("\n  ld.global.u32 %r2, [%d3+2];", "misaligned", 2),
    "waits for ever": (BARRIER + """
AGAIN:
  mbarrier.try_wait.parity.shared::cta.b64 %p0, [%r1], 0;
  @%p0 bra DONE;
  bra AGAIN;
DONE:""", "deadlock", 6),
    "barrier without the others": ("\n  bar.sync 1, 64;", "deadlock", 2),
    "barrier with too many": ("\n  bar.sync 1, 32;\n  bar.sync 1, 0;", "more threads arrive", 3),
    "tensor memory that is never freed": ("""
  tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1], 64;""", "still allocated", 0),
    "33 columns of tensor memory": ("""
  tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1], 33;""", "powers of two", 2),
    "tensor memory that is not allocated": ("""
  mov.b32 %r5, 0;
  tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r2}, [%r5];""", "not allocated", 3),
    "frees other tensor memory": ("""
  mov.b32 %r5, 32;
  tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r5, 32;""", "was not allocated so", 3),
    "division by zero": ("\n  div.u32 %r2, %r0, %r0;", "division by zero", 2),
    "part of a warp at a collective": ("""
  setp.lt.s32 %p0, %r0, 16;
  @%p0 bar.warp.sync -1;""", "not all lanes", 3),
    "lanes wait for each other": ("""
  setp.lt.s32 %p0, %r0, 16;
  @%p0 bra LOW;
  bar.warp.sync -1;
  bra DONE;
LOW:
  shfl.sync.idx.b32 %r2, %r0, 0, 31, -1;
DONE:""", "wait for each other", 4),
    "no tensor map": ("""
  cp.async.bulk.tensor.1d.global.shared::cta.bulk_group [%d0, {%r0}], [%r1];""",
                      "not a tensor map", 2),
    "a copy of what the async proxy cannot see": (ONE_LANE + """
  mov.b32 %r2, 7;
  st.shared.u32 [%r1], %r2;
  cp.async.bulk.global.shared::cta.bulk_group [%d1], [%r1], 16;
DONE:""", "without fence.proxy.async", 7),
    "transactions that nobody waits for": (BARRIER + ONE_LANE + """
  mbarrier.expect_tx.shared::cta.b64 [%r1], 16;
DONE:""", "16 bytes outstanding", 0),
    "a rank outside of the cluster": ("""
  mapa.shared::cluster.u32 %r2, %r1, 1;
  ld.shared::cluster.u32 %r3, [%r2];""", "rank 1", 3),
    "trap": ("\n  trap;", "traps", 2),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_faults(name: str) -> None:
    body, words, line = FAULTS[name]
    with pytest.raises(EmulationError) as caught:
        run(body)
    message = str(caught.value)
    assert words in message
    if line:
        assert f"PTX line {FIRST_LINE + line - 1} " in message


def test_a_fence_lets_the_async_proxy_see_a_store() -> None:
    out = run(ONE_LANE + """
  mov.b32 %r2, 7;
  st.shared.v4.u32 [%r1], {%r2, %r2, %r2, %r2};
  fence.proxy.async.shared::cta;
  cp.async.bulk.global.shared::cta.bulk_group [%d1], [%r1], 16;
  cp.async.bulk.commit_group;
  cp.async.bulk.wait_group 0;
DONE:""", seed=5)  # fmt: skip
    assert out[:4].tolist() == [7] * 4


@pytest.mark.parametrize("seed", range(4))
def test_a_copy_that_is_waited_for_is_there(seed: int) -> None:
    out = run(BARRIER + "  bar.warp.sync -1;\n" + ONE_LANE + """
  mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], 256;
  cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1+256], [%d0], 256, [%r1];
DONE:
  bar.warp.sync -1;
WAIT:
  mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r1], 0;
  @!%p1 bra WAIT;
  shl.b32 %r2, %r0, 2;
  add.s32 %r2, %r2, %r1;
  ld.shared.u32 %r3, [%r2+256];
  st.global.u32 [%d4], %r3;
""", seed=seed)  # fmt: skip
    assert out[:32].tolist() == list(range(32))
