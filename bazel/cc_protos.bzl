"""C++ of .proto files, by the system's protoc and grpc_cpp_plugin: each library is one compilation."""

load(":units.bzl", "unit")

def _proto_codegen_impl(ctx):
    info = ctx.attr.proto[ProtoInfo]
    ending = ".grpc.pb" if ctx.attr.services else ".pb"
    hdrs, srcs = [], []
    for src in info.direct_sources:
        stem = src.basename[:-len(".proto")] + ending
        hdrs.append(ctx.actions.declare_file(stem + ".h", sibling = src))
        srcs.append(ctx.actions.declare_file(stem + ".cc", sibling = src))

    args = ctx.actions.args()
    if ctx.attr.services:
        args.add(ctx.executable._plugin, format = "--plugin=protoc-gen-grpc=%s")
        args.add(ctx.bin_dir.path, format = "--grpc_out=%s")
    else:
        args.add(ctx.bin_dir.path, format = "--cpp_out=%s")
    args.add_joined(
        info.transitive_descriptor_sets,
        join_with = ":",
        format_joined = "--descriptor_set_in=%s",
    )
    args.add_all(info.direct_sources)
    ctx.actions.run(
        executable = ctx.executable._protoc,
        tools = [ctx.executable._plugin],
        inputs = info.transitive_descriptor_sets,
        outputs = hdrs + srcs,
        arguments = [args],
        mnemonic = "ProtoCodegen",
        progress_message = "Generating C++ of %{label}",
    )
    return [
        DefaultInfo(files = depset(hdrs + srcs)),
        OutputGroupInfo(hdrs = depset(hdrs), srcs = depset(srcs)),
    ]

_proto_codegen = rule(
    implementation = _proto_codegen_impl,
    attrs = {
        "proto": attr.label(mandatory = True, providers = [ProtoInfo]),
        "services": attr.bool(),
        "_protoc": attr.label(
            default = "@com_google_protobuf//:protoc",
            executable = True,
            allow_single_file = True,
            cfg = "exec",
        ),
        "_plugin": attr.label(
            default = "@com_github_grpc_grpc//:grpc_cpp_plugin",
            executable = True,
            allow_single_file = True,
            cfg = "exec",
        ),
    },
)

def _library(name, proto, services, deps, **kwargs):
    codegen = name + "_codegen"
    _proto_codegen(name = codegen, proto = proto, services = services)
    native.filegroup(name = codegen + "_hdrs", srcs = [codegen], output_group = "hdrs")
    native.filegroup(name = codegen + "_srcs", srcs = [codegen], output_group = "srcs")
    native.cc_library(
        name = name,
        srcs = [unit(name + "_unit", [codegen + "_srcs"], own_names = ["schemas", "file_default_instances"])],
        hdrs = [codegen + "_hdrs"],
        deps = deps,
        **kwargs
    )

def cc_messages(name, proto = None, srcs = [], proto_deps = [], deps = [], **kwargs):
    """The messages of one proto_library.

    Args:
      name: target to depend on.
      proto: the proto_library. Without it one is made of `srcs`, `<stem>_proto` beside `<stem>_cc_proto`.
      srcs: .proto files.
      proto_deps: the proto_library rules of what they import.
      deps: the cc_messages of what is imported.
      **kwargs: passed to cc_library.
    """
    if not proto:
        proto = name.replace("_cc_proto", "_proto")
        native.proto_library(name = proto, srcs = srcs, deps = proto_deps)
    _library(name, proto, False, deps + ["@com_google_protobuf//:protobuf"], **kwargs)

def cc_services(name, proto, deps, **kwargs):
    """The service stubs of one proto_library.

    Args:
      name: target to depend on.
      proto: the proto_library.
      deps: its cc_messages.
      **kwargs: passed to cc_library.
    """
    _library(name, proto, True, deps + ["@com_github_grpc_grpc//:grpc++"], **kwargs)
