"""The four services, and the programs that each of them is."""

SERVICES = [
    "//critic_trainer",
    "//policy_trainer",
    "//rollout",
    "//scorer",
]

def service_programs():
    """A service's launcher, named after its folder, and `rank`, which the launcher starts; nothing links them."""
    visibility = ["//bazel:runners"]
    native.cc_binary(
        name = native.package_name(),
        srcs = ["main.cc"],
        data = [":rank"],
        tags = ["torch"],
        visibility = visibility,
        deps = ["//core/service/process"],
    )
    native.cc_binary(
        name = "rank",
        srcs = ["rank_main.cc"],
        tags = ["torch"],
        visibility = visibility,
        deps = [
            ":service",
            "//core/preflight:torch",
        ],
    )
