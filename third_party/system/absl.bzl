"""Abseil's libraries as pkg-config lists them: releases of Debian cut them differently."""

# Of the headers in use here, and in those of gRPC; pkg-config adds the modules that these need.
_MODULES = [
    "absl_algorithm_container",
    "absl_btree",
    "absl_cleanup",
    "absl_cord",
    "absl_flat_hash_map",
    "absl_flat_hash_set",
    "absl_function_ref",
    "absl_hash",
    "absl_inlined_vector",
    "absl_span",
    "absl_status",
    "absl_statusor",
    "absl_str_format",
    "absl_strings",
    "absl_synchronization",
    "absl_time",
]

_BUILD = """
cc_library(
    name = "absl",
    linkopts = {libraries},
    visibility = ["//visibility:public"],
)
"""

def _system_absl_impl(context):
    if context.which("pkg-config") == None:
        fail("pkg-config is missing: tools/setup build installs it")
    command = ["pkg-config", "--libs"] + _MODULES
    said = context.execute(command)
    if said.return_code != 0:
        fail("%s: %s" % (" ".join(command), said.stderr))
    libraries = [word for word in said.stdout.strip().split(" ") if word.startswith("-labsl_")]
    context.file("BUILD", _BUILD.format(libraries = repr(libraries)))

system_absl = repository_rule(
    implementation = _system_absl_impl,
    configure = True,
    local = True,
)
