"""A folder's files compiled as one: what a file costs is nearly all headers, which a unit reads once."""

# Skipped but for --config=cuda: target_compatible_with of what needs CUDA to be built.
NEEDS_CUDA = select({
    "//bazel:cuda_enabled": [],
    "//conditions:default": ["//bazel:never"],
})

def unit(name, srcs, testonly = False, own_names = []):
    """Writes `name`.cc: the files of `srcs` one after the other, each under its own name to who reads an error or debugs.

    Args:
      name: of the rule.
      srcs: the files.
      testonly: as everywhere.
      own_names: names that each file has for itself, though they stand in no namespace without a name.
    """
    tell_apart = "".join(["echo \"#undef {0}\"; echo \"#define {0} {0}_$$n\"; ".format(own) for own in own_names])
    native.genrule(
        name = name,
        srcs = srcs,
        outs = [name + ".cc"],
        cmd = "n=0; for file in $(SRCS); do n=$$((n + 1)); " + tell_apart +
              "echo \"#line 1 \\\"$$file\\\"\"; cat $$file; done >$@",
        testonly = testonly,
        visibility = ["//visibility:private"],
    )
    return name + ".cc"

def _common_deps():
    """What nearly every file includes: Abseil, one label for all of it (third_party/absl), and core/base."""
    return ["@com_google_absl//absl"] + ([] if native.package_name() == "core/base" else ["//core/base"])

# What no library takes from its folder: tests, programs, test doubles.
_NO_SOURCES = ["**/*_test.cc", "*_benchmark.cc", "*main.cc", "testing/**"]

def _rest_of_folder(patterns, exclude):
    """The files of this folder that no rule above names."""
    named = list(exclude)
    for rule in native.existing_rules().values():
        for attribute in ("srcs", "hdrs"):
            files = rule.get(attribute)
            if type(files) in ("list", "tuple"):
                named += [file[1:] for file in files if file.startswith(":")]
    return native.glob(patterns, exclude = named)

def _is_source(file):
    return file.endswith(".cc")

def _header(deps, testonly):
    """The header that a unit begins with, which is parsed already: where LibTorch, or what is above it, is in `deps`."""
    if ":torch" not in repr(deps):  # of which a select may be a part
        return None
    return "torch_headers_test" if testonly else "torch_headers"

def _header_deps(header):
    return ["//bazel:" + header] if header else []

def _copts(copts, header):
    # The anonymous namespaces of a unit's files follow on a #line of theirs, which g++ takes for headers.
    # With OpenMP, which ATen/Parallel.h is for.
    included = ["-include", "bazel/%s.h" % header, "-fpch-deps", "-fopenmp"] if header else []
    return included + copts + ["-Wno-subobject-linkage"]

def _tags(name, tags):
    return tags + (["torch"] if name.startswith("torch") and "torch" not in tags else [])

def _local_defines(tags):
    return ["AT_PER_OPERATOR_HEADERS"] if "torch" in tags else []

def unit_library(name, srcs = None, more_srcs = [], hdrs = [], apart = [], deps = [], testonly = False, tags = [], copts = [], **kwargs):
    """A cc_library whose .cc files are one compilation.

    Args:
      name: as for cc_library. One that begins with "torch" is tagged so.
      srcs: .cc files, and headers that only this package includes; where it is not given, what the folder has beside
        tests and programs and no rule above names.
      more_srcs: a select of more .cc files.
      hdrs: headers for others.
      apart: .cc files that are compiled each by itself; say why.
      deps: as for cc_library; Abseil and core/base come by themselves.
      testonly, tags, copts, **kwargs: as for cc_library. What needs LibTorch is tagged "torch".
    """
    tags = _tags(name, tags)
    if srcs == None:
        srcs = _rest_of_folder(["**/*.cc", "**/*.h"], _NO_SOURCES + hdrs + apart)
    header = _header(deps, testonly)
    sources = [file for file in srcs if _is_source(file)]
    native.cc_library(
        name = name,
        srcs = [unit(name + "_unit", sources + more_srcs, testonly)] + [file for file in srcs if not _is_source(file)] + apart,
        hdrs = hdrs,
        deps = deps + _common_deps() + _header_deps(header),
        testonly = testonly,
        tags = tags,
        copts = _copts(copts, header),
        local_defines = _local_defines(tags),
        **kwargs
    )

# LibTorch's threads, which may share cores with those of other ranks or tests: not more than two, none that spins.
_QUIET_THREADS = {
    "OMP_NUM_THREADS": "2",
    "OMP_WAIT_POLICY": "passive",
    "GOMP_SPINCOUNT": "0",
}

# For ranks that have one GPU together, each with an NCCL_HOSTID of its own: they meet by loopback, with few blocks each.
NCCL_ON_ONE_GPU = {
    "NCCL_MAX_CTAS": "2",
    "NCCL_MIN_CTAS": "1",
    "NCCL_MNNVL_ENABLE": "0",
    "NCCL_NET": "Socket",
    "NCCL_NET_PLUGIN": "none",
    "NCCL_NVLS_ENABLE": "0",
    "NCCL_P2P_DISABLE": "1",
    "NCCL_SHM_DISABLE": "1",
    "NCCL_SOCKET_IFNAME": "lo",
}

def _rerun_test_impl(ctx):
    program = ctx.actions.declare_file(ctx.label.name)
    env = dict(_QUIET_THREADS, **ctx.attr.env)
    runfiles = ctx.attr.test[DefaultInfo].default_runfiles
    if ctx.attr.ranks == 1:
        ctx.actions.symlink(output = program, target_file = ctx.executable.test, is_executable = True)
    else:
        command = "exec %s %d ./%s \"$@\"" % (ctx.file._run_ranks.short_path, ctx.attr.ranks, ctx.executable.test.short_path)
        ctx.actions.write(program, "#!/usr/bin/env bash\n" + command + "\n", is_executable = True)
        runfiles = runfiles.merge(ctx.runfiles([ctx.file._run_ranks, ctx.executable.test]))
        env.update(NCCL_ON_ONE_GPU)
    return [
        DefaultInfo(executable = program, runfiles = runfiles),
        testing.TestEnvironment(env),
    ]

_rerun_test = rule(
    implementation = _rerun_test_impl,
    test = True,
    attrs = {
        "test": attr.label(executable = True, cfg = "target", mandatory = True),
        "env": attr.string_dict(),
        "ranks": attr.int(default = 1),
        "_run_ranks": attr.label(default = "//bazel:run_ranks.sh", allow_single_file = True),
    },
)

def _on_gpu(gpu):
    return {"target_compatible_with": NEEDS_CUDA} if gpu else {}

def rerun_test(name, test, tags = [], size = "small", gpu = False, **kwargs):
    """The program of another test once more, in another environment.

    Args:
      name, tags, **kwargs: as for cc_test (args, env, size); ranks: processes of it that are started, each a rank.
      test: the other test.
      gpu: as for unit_test.
    """
    tags = tags + (["gpu", "torch"] if gpu else [])
    _rerun_test(name = name, test = test, size = size, tags = tags, **dict(_on_gpu(gpu), **kwargs))

def unit_test(name, srcs = None, deps = [], copts = [], tags = [], size = "small", env = {}, gpu = False, waits = False, **kwargs):
    """A GoogleTest program whose .cc files are one compilation.

    Args:
      name: as for cc_test. One that begins with "torch" is tagged so.
      srcs: the tests, and headers that they share; where it is not given, the tests of the folder that no rule above names.
      deps: as for cc_test; GoogleTest's main, Abseil and core/base come by themselves.
      copts, tags, size, **kwargs: as for cc_test. What needs LibTorch is tagged "torch"; it runs with two threads.
      env: as for cc_test. Ranks that are threads of one process have the machine's cores with {"OMP_NUM_THREADS": "1"}.
      gpu: it needs a GPU: built with --config=cuda alone, run by --test_tag_filters=gpu. It is tagged "torch".
      waits: it waits more than it computes, for deadlines or for other programs: its cases run in four parts, side by side
        or beside other tests.
    """
    tags = _tags(name, tags + (["gpu", "torch"] if gpu else []))
    if srcs == None:
        srcs = _rest_of_folder(["**/*_test.cc"], [])
    header = _header(deps, True)
    native.cc_test(
        name = name,
        srcs = [unit(name + "_unit", [file for file in srcs if _is_source(file)], True)] +
               [file for file in srcs if not _is_source(file)],
        deps = deps + _common_deps() + _header_deps(header) + ["@com_google_googletest//:gtest_main"],
        env = dict(_QUIET_THREADS if "torch" in tags else {}, **env),
        size = size,
        shard_count = 4 if waits else None,
        tags = tags,
        copts = _copts(copts, header),
        local_defines = _local_defines(tags),
        **dict(_on_gpu(gpu), **kwargs)
    )

def benchmark(name, deps, tags = [], **kwargs):
    """A Google Benchmark of the file of its name, built where it is asked for by name.

    Args:
      name, tags, **kwargs: as for cc_binary.
      deps: as for cc_binary; Google Benchmark's main comes by itself.
    """
    native.cc_binary(
        name = name,
        testonly = True,
        srcs = [name + ".cc"],
        tags = tags + ["manual"],
        deps = deps + ["@com_google_benchmark//:benchmark_main"],
        **kwargs
    )

def folder(deps = [], test = {}, **kwargs):
    """What most folders are: a library named after the folder, of the files that no rule above names, and its test.

    Args:
      deps, **kwargs: as for unit_library.
      test: arguments of unit_test, a dict(); its `deps` are those beside the library.
    """
    name = native.package_name().rpartition("/")[2]
    unit_library(name = name, deps = deps, **kwargs)
    unit_test(name = name + "_test", **dict(test, deps = [":" + name] + test.get("deps", [])))
