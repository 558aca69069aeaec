"""cuda_library: .cu files through nvcc into objects that cc_binary links.

Headers of `deps` reach nvcc with their include paths and defines. The nvcc
command writes a make-style .d file only for people: Bazel 4.2 has no depfile
for Starlark actions, so every declared header is an input (coarser than
cc_library, never stale)."""

load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")
load("@cuda//:defs.bzl", "CUDA_HOME", "CUDA_VERSION")

# SASS for Hopper with its own instructions (wgmma, setmaxnreg), and PTX of
# plain compute_90 so that later GPUs can still run the kernels.
GENCODE = [
    "-gencode=arch=compute_90a,code=sm_90a",
    "-gencode=arch=compute_90,code=compute_90",
]

def _cuda_objects_impl(ctx):
    if not CUDA_HOME:
        fail("no CUDA toolkit: set CUDA_HOME or build without --config=cuda")
    cc = find_cpp_toolchain(ctx)
    merged = cc_common.merge_cc_infos(cc_infos = [d[CcInfo] for d in ctx.attr.deps])
    comp = merged.compilation_context
    objects = []
    for pic in ([False, True] if ctx.attr.pic else [False]):
        for src in ctx.files.srcs:
            obj = ctx.actions.declare_file("_cuda/%s/%s%s" % (ctx.label.name, src.basename[:-3], ".pic.o" if pic else ".o"))
            args = ctx.actions.args()
            args.add_all(["-c", src.path, "-o", obj.path, "-std=c++20", "-ccbin", cc.compiler_executable])
            args.add_all(GENCODE)
            args.add_all(ctx.attr.gencode)

            # -O2/-g by compilation mode; -O3 is nvcc's own default for device code.
            mode = ctx.var["COMPILATION_MODE"]
            if mode == "dbg":
                args.add_all(["-g", "-O0", "-lineinfo"])
            else:
                args.add_all(["-O3", "-DNDEBUG"] if mode == "opt" else ["-O1"])
                args.add("-lineinfo")
            if pic:
                args.add_all(["-Xcompiler", "-fPIC"])
            args.add_all(ctx.attr.copts)
            args.add_all(comp.defines, format_each = "-D%s")
            args.add("-I.")
            args.add("-I" + ctx.bin_dir.path)
            args.add_all(comp.includes, before_each = "-I")
            args.add_all(comp.quote_includes, before_each = "-I")
            args.add_all(comp.system_includes, before_each = "-isystem")
            ctx.actions.run(
                executable = CUDA_HOME + "/bin/nvcc",
                arguments = [args],
                inputs = depset(ctx.files.srcs + ctx.files.hdrs, transitive = [comp.headers]),
                tools = cc.all_files,
                outputs = [obj],
                env = {"PATH": CUDA_HOME + "/bin:/usr/bin:/bin", "CUDA_TOOLKIT": CUDA_VERSION},
                mnemonic = "CudaCompile",
                progress_message = "nvcc %s" % src.short_path,
            )
            objects.append(obj)
    return [DefaultInfo(files = depset(objects))]

_cuda_objects = rule(
    implementation = _cuda_objects_impl,
    attrs = {
        "srcs": attr.label_list(allow_files = [".cu"], mandatory = True),
        "hdrs": attr.label_list(allow_files = True),
        "deps": attr.label_list(providers = [CcInfo]),
        "copts": attr.string_list(),
        "gencode": attr.string_list(),
        "pic": attr.bool(default = True),
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
    },
    fragments = ["cpp"],
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
)

def cuda_library(name, srcs, hdrs = [], deps = [], copts = [], gencode = [], **kwargs):
    """A library of .cu files. `manual`: `//...` leaves it out of CPU builds.

    The runtime is left to the binary, which links @cuda//:cudart_static."""
    deps = deps + ["@cuda//:headers"]
    tags = kwargs.pop("tags", []) + ["manual", "cuda"]
    _cuda_objects(
        name = name + "_objects",
        srcs = srcs,
        hdrs = hdrs,
        deps = deps,
        copts = copts,
        gencode = gencode,
        tags = tags,
        visibility = ["//visibility:private"],
    )
    native.cc_library(
        name = name,
        srcs = [name + "_objects"],
        hdrs = hdrs,
        deps = deps,
        tags = tags,
        linkstatic = True,
        **kwargs
    )
