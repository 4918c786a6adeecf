"""CUDA sources compiled by nvcc into something that cc_binary and cc_library can depend on."""

load("@jax_w4a8_cuda//:nvcc.bzl", "NVCC")
load("@rules_cc//cc:find_cc_toolchain.bzl", "CC_TOOLCHAIN_ATTRS", "find_cc_toolchain", "use_cc_toolchain")
load("@rules_cc//cc/common:cc_common.bzl", "cc_common")
load("@rules_cc//cc/common:cc_info.bzl", "CcInfo")

# For target_compatible_with: without nvcc no platform fits, and `//...` passes these targets over.
REQUIRES_NVCC = [] if NVCC else ["//bazel:nvcc"]

def _include_flags(compilation):
    """All as -isystem, even the project's own: XLA's and CUTLASS's headers warn under nvcc."""
    flags = []
    for folders in [compilation.quote_includes, compilation.includes, compilation.system_includes]:
        for folder in folders.to_list():
            flags += ["-isystem", folder]
    return flags

def _compile(ctx, source, compilation):
    """Declares the action that compiles one file; gives the object file."""
    stem = source.basename[:-len("." + source.extension)]
    compiled = ctx.actions.declare_file("%s.nvcc/%s.pic.o" % (ctx.label.name, stem))
    arguments = ctx.actions.args()
    arguments.add_all(["-c", source, "-o", compiled])
    arguments.add_all(["-std=c++17", "-O3", "-Xcompiler=-fPIC,-fvisibility=hidden"])
    for architecture in ctx.attr.architectures:
        arguments.add("-gencode=arch=compute_{0},code=sm_{0}".format(architecture))
    arguments.add_all(compilation.defines, before_each = "-D")
    arguments.add_all(_include_flags(compilation))
    arguments.add_all(ctx.attr.nvccopts)
    ctx.actions.run(
        executable = NVCC,
        arguments = [arguments],
        inputs = depset([source] + ctx.files.hdrs, transitive = [compilation.headers]),
        outputs = [compiled],
        # nvcc looks for the host compiler on PATH.
        use_default_shell_env = True,
        mnemonic = "CudaCompile",
        progress_message = "Compiling %s with nvcc" % source.short_path,
    )
    return compiled

def _cuda_library(ctx):
    dependencies = cc_common.merge_cc_infos(cc_infos = [target[CcInfo] for target in ctx.attr.deps])
    objects = depset([
        _compile(ctx, source, dependencies.compilation_context)
        for source in ctx.files.srcs
    ])
    toolchain = find_cc_toolchain(ctx)
    linking, _ = cc_common.create_linking_context_from_compilation_outputs(
        name = ctx.label.name,
        actions = ctx.actions,
        alwayslink = True,
        cc_toolchain = toolchain,
        compilation_outputs = cc_common.create_compilation_outputs(
            objects = objects,
            pic_objects = objects,
        ),
        disallow_dynamic_library = True,
        feature_configuration = cc_common.configure_features(
            ctx = ctx,
            cc_toolchain = toolchain,
            requested_features = ctx.features,
            unsupported_features = ctx.disabled_features,
        ),
        linking_contexts = [dependencies.linking_context],
    )
    own = CcInfo(
        compilation_context = cc_common.create_compilation_context(headers = depset(ctx.files.hdrs)),
        linking_context = linking,
    )
    return [
        DefaultInfo(files = objects),
        cc_common.merge_cc_infos(
            direct_cc_infos = [own],
            cc_infos = [dependencies],
        ),
    ]

_cuda_library_rule = rule(
    implementation = _cuda_library,
    attrs = dict(
        CC_TOOLCHAIN_ATTRS,
        architectures = attr.string_list(
            mandatory = True,
            doc = "Such as 90a: machine code is built for these and for no other.",
        ),
        deps = attr.label_list(providers = [CcInfo]),
        hdrs = attr.label_list(allow_files = True),
        nvccopts = attr.string_list(),
        srcs = attr.label_list(
            mandatory = True,
            allow_files = [".cu"],
        ),
    ),
    fragments = ["cpp"],
    toolchains = use_cc_toolchain(),
)

def cuda_library(name, deps = [], **kwargs):
    """A library of CUDA sources, which `//...` builds where there is an nvcc.

    Args:
      name: of the library.
      deps: libraries whose headers the sources include, beside CUDA's own.
      **kwargs: the rule's attributes.
    """
    _cuda_library_rule(
        name = name,
        target_compatible_with = REQUIRES_NVCC,
        deps = deps + ["@jax_w4a8_cuda//:cudart_static"],
        **kwargs
    )
