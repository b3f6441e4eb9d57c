"""A header parsed once (GCC's precompiled headers), which compilations begin with by -include."""

def _header_impl(ctx):
    library = ctx.attr.compiled[CcInfo].linking_context.linker_inputs.to_list()[0].libraries[0]
    compiled = (library.pic_objects or library.objects)[0]

    # Read by compilations whose flags are other than those of `compiled`: for them there is nothing to gain.
    header = ctx.actions.declare_file(ctx.label.name + ".h")
    ctx.actions.write(header, "")
    precompiled = ctx.actions.declare_file(ctx.label.name + ".h.gch")
    ctx.actions.symlink(output = precompiled, target_file = compiled)
    headers = depset([header, precompiled, ctx.file.src])  # by -fpch-deps the latter is a compilation's input, too
    return [
        DefaultInfo(files = headers),
        CcInfo(compilation_context = cc_common.create_compilation_context(headers = headers)),
    ]

_header = rule(
    implementation = _header_impl,
    attrs = {
        "compiled": attr.label(providers = [CcInfo], mandatory = True),
        "src": attr.label(allow_single_file = True, mandatory = True),
    },
)

def precompiled_header(name, includes, deps, testonly, copts = [], tags = [], **kwargs):
    """What `deps` of compilations may name, beside `copts = ["-include", "<package>/<name>.h", "-fpch-deps"]`.

    Args:
      name: of the rule.
      includes: the headers that it is of. They are compiled with the flags that .bazelrc gives <name>_unit.cc.
      deps: the libraries that these are of.
      copts: those of the compilations.
      testonly, tags, **kwargs: as for cc_library (local_defines).
    """
    unit = name + "_unit.cc"
    native.genrule(
        name = name + "_source",
        outs = [unit],
        cmd = "printf '#include <%s>\\n' " + " ".join(includes) + " >$@",
        testonly = testonly,
        visibility = ["//visibility:private"],
    )
    native.cc_library(
        name = name + "_compiled",
        srcs = [unit],
        copts = copts + ["-x", "c++-header"],
        deps = deps,
        tags = ["manual"],
        testonly = testonly,
        visibility = ["//visibility:private"],
        **kwargs
    )
    _header(name = name, compiled = ":" + name + "_compiled", src = unit, testonly = testonly, tags = tags)
