#!/usr/bin/python3
"""nram beside GlusterFS, with as many copies: the rows of a benchmark script on a mount of each, in turns.

usage: experiments/gluster_rows.py SCRIPT [flags]

SCRIPT is called as SCRIPT DIRECTORY LABEL and prints a line of JSON for each row: {"row", "value", "unit"}. The mount
of nram is on a pool of servers that count as hosts of their own; GlusterFS has a volume of two bricks on tmpfs,
replicas or, with one copy, distributed. All are on this machine and share its processors. Both are empty at the start
of each turn.

  --nram=PROGRAM     (default: the one that was built here)
  --rounds=N         1..100 (default 3)
  --copies=N         1 or 2 (default 2)
  --secure           nram's servers have certificates, connections are TCP by TLS, and pages are sealed, as on a pool of
                     several machines; GlusterFS has no TLS
  --servers=N        of nram's pool, 2..16 (default 3)
  --donate-mib=N     the MiB that each of them lends (default 4096)
  --rows="A B"       for SCRIPT, as $ROWS (default "stream random meta")
  --size=SIZE        for SCRIPT, as $SIZE (default 1g)
  --steady           as with copies_rows.py
  --volume-set=K=V   an option of GlusterFS's volume; may be given several times
  --json             SCRIPT's output, too

Marks, of nram to GlusterFS: at least 1.4 in streams of writes, 2 in streams of reads, 5 in every small row (4 KiB and
metadata). Rows in microseconds are inverted: larger is always better for nram. Medians of each round's ratio
[least most].

Needs root, glusterfs-server and glusterfs-client (Debian's packages; nothing has to run), fio. Everything runs in
namespaces of its own (processes, mounts, network) and ends with them; let nothing else run meanwhile.
"""

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.realpath(__file__))
sys.path[:0] = [f"{HERE}/../tools/bench", f"{HERE}/../tests/util"]
import copies_places as places  # noqa: E402
from bench_places import (  # noqa: E402
    MIB,
    Failure,
    available_bytes,
    catch_signals,
    drop_caches,
    later,
    machine,
    run,
    say,
)

# GlusterFS wants no loopback address for a replica. This one is for tests of networks (RFC 2544).
ADDRESS = "198.18.77.9"
VOLUME = "copies"
VOLFILE = """volume management
    type mgmt/glusterd
    option working-directory {work}
    option transport-type socket
    option transport.socket.read-fail-log off
    option transport.socket.bind-address {address}
    option glusterd-sockfile {socket}
    option run-directory {run}
    option max-port 60999
    option base-port 49152
end-volume
"""
STREAM_WRITE, STREAM_READ, SMALL = 1.4, 2, 5


def mark_of(row):
    if row.startswith("seqwrite"):
        return STREAM_WRITE
    if row.startswith("seqread"):
        return STREAM_READ
    return SMALL if "-4k" in row or row.endswith("4k") or row.startswith("meta-") else None


class Gluster:
    """Two bricks on tmpfs, a replicated volume, and its mount."""

    def __init__(self, stack, directory, size_mib, settings, copies):
        self.directory = directory
        for name in ("work", "run", "log", "bricks", "mount"):
            os.mkdir(f"{directory}/{name}")
        # The files that its programs leave there end with the namespace.
        for place in ("/run/gluster", "/var/log/glusterfs"):
            os.makedirs(place, exist_ok=True)
            run("mount", "-t", "tmpfs", "gluster", place)
        os.mkdir("/var/log/glusterfs/bricks")
        run("ip", "address", "add", f"{ADDRESS}/32", "dev", "lo")
        later(stack, run, "umount", "-l", f"{directory}/bricks", check=False)
        run("mount", "-t", "tmpfs", "-o", f"size={2 * size_mib}M", "bricks", f"{directory}/bricks")
        self.socket = f"{directory}/run/glusterd.socket"
        volfile = f"{directory}/glusterd.vol"
        with open(volfile, "w") as file:
            file.write(
                VOLFILE.format(work=f"{directory}/work", address=ADDRESS, socket=self.socket, run=f"{directory}/run")
            )
        words = ["glusterd", "-N", "-f", volfile, "-l", f"{directory}/log/glusterd.log"]
        self.process = subprocess.Popen([*words, "-p", f"{directory}/run/glusterd.pid"])
        later(stack, self.end)
        places.await_that(60, "glusterd", lambda: self.command("volume", "list", check=False)[0])
        bricks = [f"{ADDRESS}:{directory}/bricks/{number}" for number in (1, 2)]
        self.command("volume", "create", VOLUME, *(["replica", "2"] if copies == 2 else []), *bricks, "force")
        for setting in settings:
            self.command("volume", "set", VOLUME, *setting.split("=", 1))
        self.command("volume", "start", VOLUME)
        self.path = f"{directory}/mount"
        later(stack, run, "umount", "-l", self.path, check=False)
        log = f"{directory}/log/mount.log"
        run("glusterfs", f"--volfile-server={ADDRESS}", f"--volfile-id={VOLUME}", f"--log-file={log}", self.path)
        places.await_that(60, "the mount of GlusterFS", self.is_mounted)

    def is_mounted(self):
        return os.path.ismount(self.path)

    def command(self, *words, check=True):
        words = ["gluster", f"--glusterd-sock={self.socket}", "--mode=script", *words]
        done = subprocess.run(words, capture_output=True, text=True, timeout=180)
        if check and done.returncode != 0:
            raise Failure(f"{' '.join(words)}: {done.stderr.strip() or done.stdout.strip()}")
        return done.returncode == 0, done.stdout

    def end(self):
        with contextlib.suppress(Failure, subprocess.TimeoutExpired):
            self.command("volume", "stop", VOLUME, "force")
        self.process.terminate()
        try:
            self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def turn(options, path, label):
    """SCRIPT's rows there."""
    drop_caches()
    environment = {**os.environ, "ROWS": options.rows, "SIZE": options.size}
    done = subprocess.run(
        [options.script, path, label], stdout=subprocess.PIPE, text=True, env=environment, timeout=1800
    )
    rows = {}
    for line in done.stdout.splitlines():
        if options.json:
            print(line, flush=True)
        row = json.loads(line)
        if row["unit"] != "bool":
            rows[row["row"]] = (row["value"], row["unit"])
    if not rows:
        raise Failure(f"{options.script} has printed no row on {label}")
    for name in os.listdir(path):
        shutil.rmtree(f"{path}/{name}", ignore_errors=True)
    return rows


def report(rounds):
    print(f"\nmedians of {len(rounds)} rounds [least most]")
    for row, (_, unit) in rounds[0]["nram"].items():
        pairs = [(one["nram"].get(row, (None,))[0], one["gluster"].get(row, (None,))[0]) for one in rounds]
        pairs = [(mine, theirs) for mine, theirs in pairs if mine and theirs]
        if not pairs:
            print(f"  {row:<22} no figures")
            continue
        ratios = [theirs / mine if unit in ("us", "s") else mine / theirs for mine, theirs in pairs]
        mine, theirs = (statistics.median(side) for side in zip(*pairs))
        ratio, mark = statistics.median(ratios), mark_of(row)
        verdict = f"; mark: at least {mark}: {'ok' if ratio >= mark else 'missed'}" if mark else ""
        print(
            f"  {row:<22} nram {mine:>9.5g} {unit}, GlusterFS {theirs:>9.5g} {unit}, "
            f"ratio {ratio:.2f} [{min(ratios):.2f} {max(ratios):.2f}]{verdict}",
            flush=True,
        )


def measure(options):
    with contextlib.ExitStack() as stack:
        directory = tempfile.mkdtemp(prefix="nram-bench-", dir="/tmp")
        later(stack, shutil.rmtree, directory, ignore_errors=True)
        run("ip", "link", "set", "lo", "up")
        if options.secure:
            servers = places.SecureServers(stack, options.nram, options.servers, options.donate_mib)
        else:
            servers = places.Servers(stack, options.nram, options.servers, options.donate_mib)
        flags = [f"--copies={options.copies}", *servers.flags]
        mount = stack.enter_context(places.Mount(options.nram, servers.spec, *flags))
        gluster = Gluster(stack, directory, options.donate_mib, options.volume_set, options.copies)
        targets = [("nram", mount.path), ("gluster", gluster.path)]
        rounds = []
        for number in range(options.rounds):
            one = {}
            for label, path in targets if number % 2 == 0 else reversed(targets):
                say(f"round {number + 1} of {options.rounds}: {label}")
                one[label] = turn(options, path, label)
                time.sleep(2)  # freed memory is given back
            copies = servers.copies()
            if copies["degraded"] + copies["repairing"] + copies["lost"] > 0:
                say(f"nram's copies are not whole: {copies}")
            rounds.append(one)
        report(rounds)


def main():
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("script", nargs="?")
    parser.add_argument("--nram", default=f"{HERE}/../bazel-bin/tools/nram/nram")
    for name, value in (("rounds", 3), ("copies", 2), ("servers", 3), ("donate-mib", 4096)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--rows", default="stream random meta")
    parser.add_argument("--size", default="1g")
    parser.add_argument("--volume-set", action="append", default=[])
    for switch in ("secure", "steady", "json", "help"):
        parser.add_argument(f"--{switch}", action="store_true")
    options = parser.parse_args()
    if options.help or options.script is None:
        print(__doc__, end="")
        sys.exit(0 if options.help else 2)
    options.nram, options.script = os.path.abspath(options.nram), os.path.abspath(options.script)
    if options.copies not in (1, 2):
        sys.exit("gluster_rows.py: --copies: expected 1 or 2")
    catch_signals()
    try:
        for program in ("glusterd", "glusterfs", "gluster", "fio"):
            if not shutil.which(program):
                raise Failure(f"there is no {program} (apt-get install glusterfs-server glusterfs-client fio)")
        places.in_own_namespace("--net", "--pid", "--fork", "--kill-child=SIGTERM", "--mount-proc")
        if available_bytes() < 5 * options.donate_mib // 2 * MIB:
            raise Failure(f"needs {5 * options.donate_mib // 2} MiB of free memory (or fewer with --donate-mib)")
        with places.steady_memory() if options.steady else contextlib.nullcontext():
            print(", ".join(f"{name} {value}" for name, value in machine(options.nram).items()))
            print(run("glusterfs", "--version").splitlines()[0], flush=True)
            measure(options)
    except (Failure, OSError, ValueError, subprocess.TimeoutExpired) as failure:
        print(f"gluster_rows.py: {failure}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
