#!/usr/bin/env python3
"""deploy/slurm in a real Slurm: munged, slurmctld and two slurmd, each on a machine of its own (machines.py).

usage: slurm_cluster.py NRAM NRAM_FSD NRAM_MEMSERVER DEPLOY_SLURM
"""

import glob
import json
import os
import re
import shutil
import subprocess
import sys
import urllib.request

sys.path[:0] = [os.path.dirname(os.path.abspath(__file__))]
import machines  # noqa: E402
from machines import Failure, until  # noqa: E402

USERS = {"one": 61001, "two": 61002}
NODES = {"node1": "10.77.0.11", "node2": "10.77.0.12"}

CONF = """ClusterName=nram
SlurmctldHost=head
SlurmUser=root
AuthType=auth/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1,batch_sched_delay=0
StateSaveLocation=/var/spool/slurmctld
SlurmdSpoolDir=/var/spool/slurmd
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldLogFile=/var/log/slurm/slurmctld.log
SlurmdLogFile=/var/log/slurm/slurmd.log
SlurmdParameters=config_overrides
SlurmdTimeout=5
KillWait=2
ReturnToService=2
PrologFlags=Alloc
Prolog=/etc/nram/slurm/prolog.sh
TaskProlog=/etc/nram/slurm/task_prolog.sh
Epilog=/etc/nram/slurm/epilog.sh
NodeName=node1 CPUs=4 RealMemory=1000 State=UNKNOWN
NodeName=node2 CPUs=4 RealMemory=1000 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=10 State=UP
"""


class Cluster:
    """The head, which runs slurmctld, and the nodes."""

    def __init__(self, directory, scripts):
        self.directory = directory
        machines.own_etc(directory, {"head": "10.77.0.10", **NODES}, USERS)
        os.makedirs("/etc/slurm", exist_ok=True)
        with open("/etc/slurm/slurm.conf", "w", encoding="ascii") as file:
            file.write(CONF)
        shutil.copytree(scripts, "/etc/nram/slurm")
        self.settings("")
        for path, mode in (("/etc/nram/slurm.secret", 0o600), ("/etc/munge.key", 0o400)):
            with open(path, "wb") as file:
                file.write(os.urandom(64))
            os.chmod(path, mode)
        machines.network()
        self.head = machines.Machine("head", "10.77.0.10")
        self.nodes = {name: machines.Machine(name, address) for name, address in NODES.items()}
        self.munge(self.head)
        self.head.run("mkdir", "-p", "/var/spool/slurmctld")
        self.daemon(self.head, "/usr/sbin/slurmctld", "-D")
        for node in self.nodes.values():
            self.start(node)

    @staticmethod
    def settings(more):
        """Writes nram's settings for Slurm."""
        with open("/etc/nram/slurm.conf", "w", encoding="ascii") as file:
            file.write(f"NRAM_JOB_DONATE=128M\n{more}")

    def daemon(self, machine, *words):
        """Starts a daemon there. Its output goes to a file that a failure shows."""
        machine.start(*words, log=f"{self.directory}/{machine.name}-{os.path.basename(words[0])}.log")

    def munge(self, machine):
        """Starts munged there."""
        self.daemon(machine, "/usr/sbin/munged", "--foreground", "--force", "--key-file=/etc/munge.key",
                    "--seed-file=/run/munge/seed")
        until(f"munged of {machine.name}", lambda: machine.run("munge", "-n", check=False).returncode == 0)

    def start(self, node):
        """Starts the daemons of a node, and waits until jobs may run there."""
        self.munge(node)
        self.daemon(node, "/usr/sbin/slurmd", "-D")
        until(f"{node.name} is idle", lambda: self.state(node.name) == "idle")

    def state(self, node):
        """The state of a node, as Slurm sees it."""
        return self.head.run("sinfo", "-h", "-n", node, "-o", "%T", check=False).stdout.strip()

    def submit(self, script, *options, user="one"):
        """Gives Slurm a job of two nodes (unless the options say otherwise); returns its number."""
        path = f"{self.directory}/job.sh"
        with open(path, "w", encoding="utf-8") as file:
            file.write(f"#!/bin/bash\nset -euo pipefail\ncd {self.directory}/{user}\n{script}")
        os.chmod(path, 0o755)
        said = self.head.run("sbatch", "--parsable", "-N2", "-n2", f"--chdir={self.directory}/{user}", "-o", "out.%j",
                             *options, path, uid=USERS[user]).stdout
        return int(said.strip())

    def job(self, number):
        """The state and the exit code of a job, as Slurm knows them."""
        said = self.head.run("scontrol", "show", "job", str(number)).stdout
        return re.search(r"JobState=(\S+)", said)[1], re.search(r"ExitCode=(\S+)", said)[1]

    def output(self, number, user="one"):
        """The output of a job."""
        try:
            with open(f"{self.directory}/{user}/out.{number}", encoding="utf-8", errors="replace") as file:
                return file.read()
        except FileNotFoundError:
            return ""

    def ends(self, number, state="COMPLETED", user="one"):
        """Waits for the job's end in that state; returns its output."""
        def over():
            at = self.job(number)
            return at if at[0] not in ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED") else None
        ended = until(f"job {number} ends", over, 120)
        if ended[0] != state:
            raise Failure(f"job {number} is {ended}, not {state}: {self.output(number, user)}")
        return self.output(number, user)

    def says(self, number, words, user="one"):
        """Waits until a job has printed words."""
        def seen():
            if self.job(number)[0] not in ("PENDING", "CONFIGURING", "RUNNING"):
                raise Failure(f"job {number} is {self.job(number)}: {self.output(number, user)}")
            return words in self.output(number, user)
        until(f"job {number} says {words}", seen)

    def clean(self, nodes=("node1", "node2")):
        """No part of any job is on the nodes, and the nodes take the next one."""
        for name in nodes:
            node = self.nodes[name]
            until(f"{name} is idle", lambda name=name: self.state(name) == "idle")
            # Slurm waits for the epilog alone. A mount's daemon ends after it, once it has told the servers, some of
            # which may not answer any more.
            for program in ("nram-memserver", "nram-fsd", "nram", "slurmstepd"):
                until(f"{program} has ended on {name}",
                      lambda node=node, program=program: not node.processes(program))
            if node.mounts("fuse.nram"):
                raise Failure(f"{name}: mounts are left: {node.mounts('fuse.nram')}")
            left = node.run("find", "/run/nram", "-mindepth", "1", check=False).stdout
            if left.strip() and "No such file" not in left:
                raise Failure(f"{name}: files are left: {left}")

    def show(self):
        """The last lines of all logs, after a failure."""
        for path in sorted(glob.glob(f"{self.directory}/*.log")):
            print(f"--- {path}\n{subprocess.run(['tail', '-25', path], capture_output=True, text=True).stdout}")


# A pool of both nodes, and a mount and a sort on each.
SORTS = """
nram df --json > df.$SLURM_JOB_ID
srun -N2 -n2 bash -euc '
  at=$PWD/$SLURM_JOB_ID.$SLURM_PROCID
  mkdir $at && nram mount $at > /dev/null
  seq 300000 | shuf > $at/in
  nram sort --numeric --memory=48M --output=$at/out $at/in
  seq 300000 | cmp - $at/out && echo "sorted by $SLURM_PROCID"
'
"""


def two_nodes(cluster):
    """A job of two nodes has a pool of both, mounts, sorts, and ends without taking its mounts away."""
    number = cluster.submit(SORTS)
    said = cluster.ends(number)
    if "sorted by 0" not in said or "sorted by 1" not in said:
        raise Failure(f"the job says: {said}")
    with open(f"{cluster.directory}/one/df.{number}", encoding="utf-8") as file:
        servers = [donor["address"].split(":")[0] for donor in json.load(file)["donors"]]
    if sorted(servers) != ["node1", "node2"]:
        raise Failure(f"the job's pool: {servers}")
    cluster.clean()


HOLDS = """
srun -N2 -n2 bash -euc '
  at=$PWD/$SLURM_JOB_ID.$SLURM_PROCID
  mkdir $at && nram mount $at > /dev/null
  head -c 8M /dev/urandom > $at/data
  echo "holds $SLURM_PROCID"
  exec sleep 600
'
"""


def cancelled(cluster):
    """A job that is cancelled while it holds data and mounts."""
    number = cluster.submit(HOLDS)
    for rank in range(2):
        cluster.says(number, f"holds {rank}")
    cluster.head.run("scancel", str(number))
    cluster.ends(number, "CANCELLED")
    cluster.clean()


def two_at_once(cluster):
    """Jobs of two users on the same nodes: each has its own pool, and the other one's refuses it."""
    first = cluster.submit(HOLDS)
    for rank in range(2):
        cluster.says(first, f"holds {rank}")
    second = cluster.submit(f"""
        nram df > /dev/null
        ! nram df --pool=/run/nram/job-{first}/pool > /dev/null 2>&1 || {{ echo "comes in"; exit 1; }}
        ! cat /run/nram/job-{first}/tls/client.key 2> /dev/null || {{ echo "reads the key"; exit 1; }}
        {SORTS}""", user="two")
    said = cluster.ends(second, user="two")
    if "sorted by 1" not in said:
        raise Failure(f"the second job says: {said}")
    # The second one's epilog has taken nothing of the first one.
    for node in cluster.nodes.values():
        until(f"one server on {node.name}", lambda node=node: len(node.processes("nram-memserver")) == 1)
        if not [at for at in node.mounts("fuse.nram") if f"/{first}." in at]:
            raise Failure(f"{node.name}: the first job's mount has gone with the second job")
    cluster.head.run("scancel", str(first))
    cluster.ends(first, "CANCELLED")
    cluster.clean()


def late(cluster):
    """The server of one node starts so late that the batch script on the other one might start before it."""
    cluster.settings('[[ $0 != */prolog.sh || $SLURMD_NODENAME != node2 ]] || sleep 3\n')
    both = cluster.submit("nram df --json | jq .total.donated_bytes\n")
    said = cluster.ends(both)
    if said.strip() != str(2 * 128 << 20):
        raise Failure(f"a job whose second server starts late says: {said}")
    cluster.clean()
    cluster.settings("")


def array(cluster):
    """An array's tasks are jobs of their own, with pools of their own, several at once on a node."""
    cluster.submit("""
        nram status --json | jq -r '.servers[].incarnation' > life.$SLURM_ARRAY_TASK_ID
        seq 100000 | shuf | nram sort --numeric --memory=48M | cmp - <(seq 100000)
        """, "--array=0-3", "-N1", "-n1", "-o", "array.%a")
    until("the array is over", lambda: not cluster.head.run("squeue", "-h").stdout.strip(), 120)
    lives = set()
    for task in range(4):
        with open(f"{cluster.directory}/one/array.{task}", encoding="utf-8") as file:
            said = file.read()
        with open(f"{cluster.directory}/one/life.{task}", encoding="utf-8") as file:
            lives.add(file.read().strip())
        if said:
            raise Failure(f"task {task} says: {said}")
    if len(lives) != 4 or "" in lives:
        raise Failure(f"four tasks have these servers: {lives}")
    cluster.clean()


def asked(cluster):
    """A site where jobs ask for a pool by their comment, and where Prometheus learns of the servers."""
    figures = f"{cluster.directory}/figures"
    cluster.settings(f"NRAM_JOB_ASKED=yes\nNRAM_JOB_METRICS={figures}\n")
    silent = cluster.submit("echo pool: ${NRAM_POOL:-none}\n", "--comment=nramble, no")
    if "pool: none" not in cluster.ends(silent):
        raise Failure(f"a job that has not asked says: {cluster.output(silent)}")
    asks = cluster.submit("nram df --json | jq .total.donated_bytes; echo holds; until [ -e done ]; do sleep 0.1; done",
                          "--comment=project7,nram=96M")
    cluster.says(asks, "holds")
    if str(2 * 96 << 20) not in cluster.output(asks):
        raise Failure(f"a job that asks for 96 MiB a node has: {cluster.output(asks)}")
    for name, node in cluster.nodes.items():
        with open(f"{figures}/{name}-job-{asks}.json", encoding="ascii") as file:
            targets = json.load(file)
        if targets[0]["labels"] != {"slurm_job": str(asks)}:
            raise Failure(f"Prometheus is told: {targets}")
        host, port = targets[0]["targets"][0].split(":")
        # Only machines know each other's names.
        with urllib.request.urlopen(f"http://{NODES[host]}:{port}/metrics", timeout=20) as answer:
            if b"nram_server_" not in answer.read():
                raise Failure(f"{node.name} has no figures")
    with open(f"{cluster.directory}/one/done", "w", encoding="ascii"):
        pass
    cluster.ends(asks)
    cluster.clean()
    if os.listdir(figures):
        raise Failure(f"Prometheus is still told: {os.listdir(figures)}")
    cluster.settings("")


def node_lost(cluster):
    """A node loses its power under two jobs: one goes on with its copies, and the other ends. Then the node returns."""
    ends = cluster.submit(HOLDS, "--no-requeue")
    goes_on = cluster.submit("""
        at=$PWD/$SLURM_JOB_ID.0
        mkdir $at && nram mount $at --copies=2 > /dev/null
        head -c 24M /dev/urandom > $at/data
        sha256sum < $at/data > sum
        sync -f $at
        echo holds
        until [ -e go ]; do sleep 0.1; done
        dd if=$at/data iflag=direct bs=1M status=none | sha256sum | cmp - sum && echo whole
        """, "--no-kill", "-w", "node1,node2")
    for rank in range(2):
        cluster.says(ends, f"holds {rank}")
    cluster.says(goes_on, "holds")
    cluster.nodes["node2"].kill()
    until("node2 is down", lambda: cluster.state("node2").startswith("down"))
    cluster.ends(ends, "NODE_FAIL")
    with open(f"{cluster.directory}/one/go", "w", encoding="ascii"):
        pass
    said = cluster.ends(goes_on)
    if "whole" not in said:
        raise Failure(f"the job that goes on says: {said}")
    cluster.clean(["node1"])
    cluster.nodes["node2"].boot()
    cluster.start(cluster.nodes["node2"])
    two_nodes(cluster)


def main():
    """Runs all of it."""
    machines.enter_namespaces()
    nram, fsd, memserver, scripts = sys.argv[1:5]
    for program in ("munged", "slurmctld", "slurmd"):
        if not shutil.which(program, path="/usr/sbin"):
            sys.exit(f"FAILED: {program} is not here: tools/setup installs it")
    directory = machines.scratch("slurm")
    cluster = None
    try:
        machines.own_programs(directory, [nram, fsd, memserver])
        machines.open_fuse(directory)
        for user, uid in USERS.items():
            os.mkdir(f"{directory}/{user}")
            os.chown(f"{directory}/{user}", uid, uid)
        cluster = Cluster(directory, scripts)
        for test in sys.argv[5:] or ("two_nodes", "late", "cancelled", "two_at_once", "array", "asked", "node_lost"):
            globals()[test](cluster)
            print(f"{test}: passed")
    except (Failure, subprocess.SubprocessError) as failure:
        if cluster:
            cluster.show()
        sys.exit(f"FAILED: {failure}")
    finally:
        machines.remove(directory)
    print("PASSED")


main()
