"""Debian's libraries as cc_library targets, found with pkg-config. No network.

Headers live in /usr/include, which the compiler searches by itself and which
cc_configure reports to Bazel as built in, so no header has to be declared.
Bazel does not watch them: each target carries a macro with the Debian
package's version, so that after an upgrade (and `bazel sync --configure` or a
server restart) whatever uses the library is compiled again.
"""

def _one(rctx, name, module, debian, deps):
    version = rctx.execute(["dpkg-query", "-W", "-f=${Version}", debian])
    if version.return_code != 0 or not version.stdout:
        return _missing(name, debian)
    if module.startswith("-l"):
        cflags, libs = [], module.split(" ")
    else:
        r = rctx.execute(["pkg-config", "--cflags", module])
        if r.return_code != 0:
            return _missing(name, debian)
        cflags = r.stdout.strip().split(" ")
        r = rctx.execute(["pkg-config", "--libs", module])
        libs = r.stdout.strip().split(" ")

    # Keep the order; drop repeats of -l flags (grpc++.pc lists absl dozens of times).
    seen, linkopts = {}, []
    for f in libs:
        if not f or f.startswith("-L"):
            continue
        if f.startswith("-l"):
            if f in seen:
                continue
            seen[f] = True
        linkopts.append(f)
    defines = [f[2:] for f in cflags if f.startswith("-D")]
    stamp = "".join([c if c.isalnum() else "_" for c in version.stdout.elems()])
    defines.append("SYSDEP_%s=%s" % (name.upper(), "v" + stamp))
    return """
cc_library(
    name = "{name}",
    defines = {defines},
    linkopts = {linkopts},
    deps = {deps},
)
""".format(name = name, defines = repr(defines), linkopts = repr(["-Wl,--as-needed"] + linkopts), deps = repr([d if d.startswith("@") else ":" + d for d in deps]))

def _missing(name, debian):
    # The failure comes when something uses the target, not when it is loaded.
    return """
genrule(
    name = "{name}_missing",
    outs = ["{name}_missing.h"],
    cmd = "echo 'ERROR: install the Debian package {debian} (deploy/setup.sh does), then run: bazel sync --configure' >&2; false",
)
cc_library(name = "{name}", hdrs = ["{name}_missing.h"])
""".format(name = name, debian = debian)

def _impl(rctx):
    out = ['package(default_visibility = ["//visibility:public"])']
    for name, spec in rctx.attr.packages.items():
        out.append(_one(rctx, name, spec[0], spec[1], rctx.attr.deps.get(name, [])))
    rctx.file("BUILD", "\n".join(out))
    rctx.file("WORKSPACE", 'workspace(name = "%s")\n' % rctx.name)

system_libs = repository_rule(
    implementation = _impl,
    local = True,
    configure = True,
    environ = ["PKG_CONFIG_PATH"],
    attrs = {
        "packages": attr.string_list_dict(mandatory = True),
        "deps": attr.string_list_dict(),
    },
)
