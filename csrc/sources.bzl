"""The sources of the compiled code, for CMake and for Bazel: plain assignments that are Starlark and Python both."""

# What the extension modules share: reading and checking the operands of a custom call.
FFI_SOURCES = [
    "csrc/ffi/operands.cc",
]

# The CPU kernels are one file, compiled once for each instruction set and chosen from at run time.
HOST_ISAS = {
    "avx2": ["-mavx2", "-mfma", "-mf16c"],
    "avx512": ["-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mfma", "-mprefer-vector-width=512"],
    "generic": [],
}

# -ffp-contract: a multiplication and an addition become one operation where the instruction set has it. The warning
# is a false one, of GCC 12 about its own AVX-512 intrinsics.
HOST_COPTS = ["-O3", "-ffp-contract=fast", "-Wno-maybe-uninitialized"]

HOST_KERNELS = "csrc/host/kernels.cc"

HOST_SOURCES = [
    "csrc/host/exact.cc",
    "csrc/host/handlers.cc",
    "csrc/host/isa.cc",
    "csrc/host/module.cc",
    "csrc/host/parallel.cc",
    "csrc/host/segments.cc",
]

# What the CUDA extension modules share: quantising activations, and what a device can do.
CUDA_SOURCES = [
    "csrc/cuda/checks.cc",
    "csrc/cuda/device.cc",
    "csrc/cuda/handlers.cc",
    "csrc/cuda/quantize.cu",
]

# A kernel of each tile for each type of result, one file each.
SM100_TILES = [
    "dense_128x128",
    "dense_128x256",
    "dense_256x256",
    "dense_swap_128x64",
    "dense_swap_128x128",
    "grouped_128x128",
    "grouped_swap_128x64",
]

SM100_SOURCES = [
    "csrc/sm100/choose_tile.cc",
    "csrc/sm100/handlers.cc",
    "csrc/sm100/kernels.cc",
    "csrc/sm100/module.cc",
    "csrc/sm100/prepare.cu",
    "csrc/sm100/product.cc",
] + [
    "csrc/sm100/kernels/{}_{}.cu".format(tile, out)
    for tile in SM100_TILES
    for out in ["bf16", "f16", "f32"]
]

SM90_SOURCES = [
    "csrc/sm90/choose_tile.cc",
    "csrc/sm90/handlers.cc",
    "csrc/sm90/kernels.cc",
    "csrc/sm90/module.cc",
    "csrc/sm90/product.cc",
] + [
    "csrc/sm90/kernels/tile_{}.cu".format(tile)
    for tile in [
        "16x64",
        "16x64_fine",
        "32x64",
        "64x64",
        "64x64_fine",
        "128x128",
        "128x128_fine",
    ]
]
