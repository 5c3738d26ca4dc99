"""Tests that are scripts around the command."""

def nram_sh_test(name, size = "medium", srcs = None, programs = [], args = [], data = [], tags = []):
    """A script that gets the path of `nram`, those of `programs`, and `args`.

    Sanitizers' memory would count against that of servers and hosts, and programs that are not built with them cannot
    load libraries that are. So these tests run in the optimised build only.

    Args:
      name: the test's name; the script is name.sh
      size: as of sh_test
      srcs: the script, if it has another name
      programs: labels of one file each
      args: words behind the paths
      data: further files of the tree that the script uses
      tags: further tags
    """
    native.sh_test(
        name = name,
        size = size,
        srcs = srcs or [name + ".sh"],
        args = ["$(location %s)" % label for label in ["//tools/nram"] + programs] + args,
        data = ["//tests/cli:expect.sh", "//tools/nram"] + programs + data,
        tags = tags + ["nosan"],
    )
