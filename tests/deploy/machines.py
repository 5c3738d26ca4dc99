"""Machines made of namespaces: each has its own network, name, processes and mounts.

A machine's loss is a SIGKILL of its first process: the kernel then ends all that ran there, as a power failure does.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
import uuid

BRIDGE = "10.77.0.1"


class Failure(Exception):
    """The test's message about a failed check."""


def until(what, look, seconds=60):
    """Waits until look() is true, and returns what it returned."""
    deadline = time.monotonic() + seconds
    while True:
        seen = look()
        if seen:
            return seen
        if time.monotonic() > deadline:
            raise Failure(f"{seconds} s are over, and still not: {what}")
        time.sleep(0.1)


def enter_namespaces():
    """Runs this program anew in namespaces of its own, which end with it and with all programs that it has started."""
    if os.environ.get("NRAM_IN_NAMESPACES"):
        # Other tests' mounts would stay mounted here.
        away = "awk '$3 == \"fuse.nram\" { print $2 }' /proc/mounts | xargs -r umount -l"
        subprocess.run(["sh", "-c", away], check=True)
        return
    os.environ["NRAM_IN_NAMESPACES"] = "1"
    flags = ["--mount", "--net", "--uts", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc"]
    os.execvp("unshare", ["unshare", *flags, "--propagation=private", sys.executable, *sys.argv])


class Machine:
    """One machine. Its /run, /var/log and /var/spool are its own; it shares the rest of the disk with the others."""

    def __init__(self, name, address):
        self.name, self.address = name, address
        self.first = None
        self.boot()

    def boot(self):
        """Starts it, or starts it anew after kill()."""
        # Bash reaps orphaned processes.
        init = ["bash", "-c", "trap '' TERM; sleep infinity & while :; do wait; done"]
        flags = ["--mount", "--net", "--uts", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc"]
        # Its only message would be that its child was killed.
        self.outer = subprocess.Popen(["unshare", *flags, "--propagation=private", *init], stderr=subprocess.DEVNULL)
        children = f"/proc/{self.outer.pid}/task/{self.outer.pid}/children"

        def child():
            with open(children, encoding="ascii") as file:
                pids = file.read().split()
            # Before it is bash, it may not have all of its namespaces.
            return pids and comm(pids[0]) == "bash" and pids[0]

        self.first = until(f"{self.name} runs", child)
        link = f"v{self.name}"
        subprocess.run(["ip", "link", "delete", link], stderr=subprocess.DEVNULL, check=False)
        # Its hardware address outlives its loss: other machines may still know it.
        hardware = "02:00:" + ":".join(f"{int(part):02x}" for part in self.address.split("."))
        command = f"""ip link add {link} type veth peer name eth0 address {hardware} netns {self.first} &&
            ip link set {link} master br0 up"""
        subprocess.run(["sh", "-c", command], check=True)
        self.run("sh", "-ec", f"""hostname {self.name}
            ip link set lo up; ip addr add {self.address}/24 dev eth0; ip link set eth0 up
            ip route add default via {BRIDGE}
            for place in /run /var/log /var/spool; do mount -t tmpfs -o mode=755 machine $place; done
            # By this nram knows that they are different machines.
            echo {uuid.uuid4()} > /run/boot_id; mount --bind /run/boot_id /proc/sys/kernel/random/boot_id
            mkdir -p /run/munge /var/log/munge /var/log/slurm /var/spool/slurmd""")

    def inside(self, words, uid=None):
        """The command line that runs words there."""
        user = [] if uid is None else ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]
        return ["nsenter", "-t", self.first, "--mount", "--net", "--uts", "--ipc", "--pid", *user, *words]

    def run(self, *words, uid=None, check=True, timeout=120, **more):
        """Runs a command there to its end. Its output is in the result's stdout."""
        done = subprocess.run(self.inside(words, uid), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=timeout, check=False, **more)
        if check and done.returncode != 0:
            raise Failure(f"{self.name}: {' '.join(words)}: exit {done.returncode}: {done.stdout}")
        return done

    def start(self, *words, log, **more):
        """Starts a lasting command there."""
        with open(log, "ab") as file:
            return subprocess.Popen(self.inside(words), stdin=subprocess.DEVNULL, stdout=file, stderr=file, **more)

    def kill(self):
        """It loses its power."""
        os.kill(int(self.first), 9)
        self.outer.wait()

    def processes(self, name):
        """The pids, as seen there, of the live processes of that name."""
        said = self.run("ps", "-C", name, "-o", "pid=,stat=", check=False).stdout
        return [line.split()[0] for line in said.splitlines() if "Z" not in line.split()[1]]

    def mounts(self, kind):
        """The mount points there of filesystems of that kind."""
        with open(f"/proc/{self.first}/mounts", encoding="utf-8") as file:
            return [line.split()[1] for line in file if line.split()[2] == kind]


def comm(pid):
    """The name of a process, or nothing."""
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8") as file:
            return file.read().strip()
    except OSError:
        return None


def layer_over(directory, place):
    """Puts a layer over a directory of the system. This namespace and its children see it."""
    layer = f"{directory}/layer{place.replace('/', '-')}"
    os.mkdir(layer)
    subprocess.run(["mount", "-t", "tmpfs", "layer", layer], check=True)
    for part in ("upper", "work"):
        os.mkdir(f"{layer}/{part}")
    options = f"lowerdir={place},upperdir={layer}/upper,workdir={layer}/work"
    subprocess.run(["mount", "-t", "overlay", "-o", options, "layer", place], check=True)


def own_etc(directory, hosts, users):
    """An /etc of the machines: names of hosts and users; a machine's name is looked up there first, then in DNS."""
    layer_over(directory, "/etc")
    # This machine's place in nram is of no interest there.
    shutil.rmtree("/etc/nram", ignore_errors=True)
    with open("/etc/hosts", "w", encoding="ascii") as file:
        file.write("127.0.0.1 localhost\n" + "".join(f"{address} {name}\n" for name, address in hosts.items()))
    with open("/etc/nsswitch.conf", "w", encoding="ascii") as file:
        file.write("passwd: files\ngroup: files\nhosts: files dns\n")
    with open("/etc/resolv.conf", "w", encoding="ascii") as file:
        file.write(f"nameserver {BRIDGE}\n")
    for name, uid in users.items():
        with open("/etc/passwd", "a", encoding="ascii") as file:
            file.write(f"{name}:x:{uid}:{uid}::/tmp:/bin/bash\n")
        with open("/etc/group", "a", encoding="ascii") as file:
            file.write(f"{name}:x:{uid}:\n")


def own_programs(directory, programs):
    """Puts programs into the machines' /usr/bin."""
    layer_over(directory, "/usr/bin")
    for program in programs:
        shutil.copy(os.path.realpath(program), f"/usr/bin/{os.path.basename(program)}")


def remove(directory):
    """Removes the test's directory."""
    layers = "umount -l /dev/fuse /etc /usr/bin; for layer in \"$1\"/layer-*; do umount -l \"$layer\"; done"
    subprocess.run(["sh", "-c", f'{layers}; rm -rf --one-file-system "$1"', "sh", directory],
                   stderr=subprocess.DEVNULL, check=False)


def network():
    """The network between machines."""
    command = f"""ip link set lo up; ip link add br0 type bridge; ip addr add {BRIDGE}/24 dev br0; ip link set br0 up"""
    subprocess.run(["sh", "-ec", command], check=True)


def open_fuse(directory):
    """A /dev/fuse that every user may open."""
    device = os.path.join(directory, "fuse")
    subprocess.run(["mknod", "-m", "666", device, "c", "10", "229"], check=True)
    subprocess.run(["mount", "--bind", device, "/dev/fuse"], check=True)


def scratch(name):
    """A directory for a test, readable by all."""
    directory = tempfile.mkdtemp(prefix=f"nram-{name}-", dir="/tmp")
    os.chmod(directory, 0o755)
    return directory
