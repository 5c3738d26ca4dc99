#!/usr/bin/env python3
"""deploy/kubernetes without Kubernetes: the manifests' very commands, probes and hooks, as a kubelet would run them, in
containers made of namespaces and cgroups, on nodes made of namespaces (machines.py).

usage: kubernetes.py NRAM NRAM_FSD NRAM_MEMSERVER DEPLOY_KUBERNETES

Kubernetes is missing in these parts: images (all containers have this machine's root), service accounts, the scheduler,
and sizes. A node lends 192 MiB instead of 3 GiB, and the limit of memory is as far above that as in the manifest.
"""

import glob
import hashlib
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import threading
import urllib.request

import yaml

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, f"{HERE}/../../tools/bench", f"{HERE}/../util"]
import machines  # noqa: E402
from bench_places import MemoryCgroup  # noqa: E402
from machines import Failure, until  # noqa: E402

NODES = {f"node{number}": f"10.77.0.{10 + number}" for number in range(1, 5)}
DONORS = ["node1", "node2", "node3"]
SERVICE = "nram-memserver.nram.svc.cluster.local"
DONATION_MIB = 192
UNITS = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}


def size(text):
    """Kubernetes' 3Gi in bytes."""
    return int(text[:-2]) * UNITS[text[-2:]]


class Dns(threading.Thread):
    """The cluster's DNS: one name, the addresses of a headless service."""

    def __init__(self):
        super().__init__(daemon=True)
        self.addresses = []
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind((machines.BRIDGE, 53))
        self.start()

    def run(self):
        while True:
            question, peer = self.socket.recvfrom(4096)
            labels, at = [], 12
            while question[at]:
                labels.append(question[at + 1:at + 1 + question[at]].decode())
                at += 1 + question[at]
            kind = struct.unpack(">H", question[at + 1:at + 3])[0]
            known = ".".join(labels).lower() == SERVICE
            answers = list(self.addresses) if known and kind == 1 else []
            # An answer; another name does not exist. The part after the question (EDNS) is left out.
            head = question[:2] + struct.pack(">HHHHH", 0x8580 | (0 if known else 3), 1, len(answers), 0, 0)
            body = b"".join(b"\xc0\x0c" + struct.pack(">HHIH", 1, 1, 5, 4) + socket.inet_aton(a) for a in answers)
            self.socket.sendto(head + question[12:at + 5] + body, peer)


class Container:
    """One container of a pod, on a node, as its manifest describes it."""

    def __init__(self, node, pod, spec, volumes, directory):
        self.node, self.spec, self.process = node, spec, None
        self.name = f"{pod['metadata']['name']}-{spec['name']}"
        self.log = f"{directory}/{node.name}-{self.name}.log"
        self.context = {**pod["spec"].get("securityContext", {}), **spec["securityContext"]}
        self.volumes = volumes
        self.environment = {}
        for variable in spec.get("env", []):
            place = variable.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
            self.environment[variable["name"]] = node.address if place else variable["value"]
            if place not in (None, "status.hostIP", "status.podIP"):
                raise Failure(f"{self.name}: what is {place}?")
        self.cgroup = MemoryCgroup(f"{os.path.basename(directory)}-{node.name}-{self.name}")
        if self.cgroup.path is None:
            raise Failure("no memory cgroup could be made; that needs root and its controller, v1 or v2")
        self.cgroup.limit(size(spec["resources"]["limits"]["memory"]))

    def expand(self, words):
        """Replaces $(NAME) in a command, as Kubernetes does."""
        for name, value in self.environment.items():
            words = [word.replace(f"$({name})", value) for word in words]
        return words

    def words(self, command):
        """The command line, on this machine, that runs a command inside the container."""
        script = [f"echo $$ > {self.cgroup.path}/cgroup.procs"]
        for mount in self.spec.get("volumeMounts", []):
            place, kind = mount["mountPath"], mount.get("mountPropagation", "None")
            make = {"None": "private", "HostToContainer": "rslave", "Bidirectional": "rshared"}[kind]
            read = "-o remount,bind,ro" if mount.get("readOnly") else "--make-" + make
            source = self.volumes[mount["name"]]
            script.append(f"mkdir -p {place}; mount --rbind {source} {place}; mount {read} {place}")
        user = []
        if self.context.get("readOnlyRootFilesystem"):
            script.append("mount -o remount,bind,ro /")
        if not self.context.get("privileged"):
            group = self.context.get("runAsGroup", self.context["runAsUser"])
            groups = f"--groups={self.context['fsGroup']}" if "fsGroup" in self.context else "--clear-groups"
            if self.context["capabilities"] != {"drop": ["ALL"]} or self.context["allowPrivilegeEscalation"]:
                raise Failure(f"{self.name}: unexpected rights: {self.context}")
            user = ["setpriv", f"--reuid={self.context['runAsUser']}", f"--regid={group}", groups, "--no-new-privs",
                    "--bounding-set=-all", "--inh-caps=-all"]
        environment = [f"{name}={value}" for name, value in self.environment.items()]
        inner = ["env", "-i", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", *environment, *user]
        return ["unshare", "--mount", "--propagation=unchanged", "sh", "-ec", "; ".join(script) + '; exec "$@"', "sh",
                *inner, *self.expand(command)]

    def start(self):
        """Starts the container's command."""
        words = self.spec["command"] + self.spec.get("args", [])
        self.process = self.node.start(*self.words(words), log=self.log)

    def run(self, *command, check=True, timeout=120):
        """kubectl exec: its exit code and output."""
        return self.node.run(*self.words(command), check=check, timeout=timeout)

    def probe(self, kind):
        """Tells whether a probe succeeds now."""
        if self.process and self.process.poll() is not None:
            with open(self.log, encoding="utf-8", errors="replace") as file:
                raise Failure(f"{self.name} has ended: {file.read()[-2000:]}")
        probe = self.spec[kind]
        return self.run(*probe["exec"]["command"], check=False, timeout=60).returncode == 0

    def end(self, grace):
        """The end of a deleted pod, as a kubelet makes it: the hook, then SIGTERM. Returns the hook's result."""
        hook = self.spec.get("lifecycle", {}).get("preStop")
        said = self.run(*hook["exec"]["command"], check=False, timeout=grace) if hook else None
        with open(f"{self.cgroup.path}/cgroup.procs", encoding="ascii") as file:
            for pid in file.read().split():
                os.kill(int(pid), 15)
        try:
            self.process.wait(timeout=grace)
        except subprocess.TimeoutExpired:
            raise Failure(f"{self.name} does not end within its {grace} s") from None
        return said

    def close(self):
        """Ends the remaining processes; returns the number of kills at the limit of memory."""
        kills = self.cgroup.oom_kills()
        self.cgroup.close()
        return kills


class Pod:
    """A pod's containers on a node, and its volumes."""

    def __init__(self, node, manifest, secrets, directory):
        self.node, self.manifest = node, manifest
        spec = manifest["spec"]
        group = spec.get("securityContext", {}).get("fsGroup", 0)
        self.base = f"/run/kubelet/{manifest['metadata']['name']}"
        volumes = {}
        for volume in spec.get("volumes", []):
            place = volumes[volume["name"]] = f"{self.base}/{volume['name']}"
            if "secret" in volume:
                mode, files = volume["secret"]["defaultMode"], secrets[volume["secret"]["secretName"]]
                copy = "; ".join(f"install -g {group} -m {mode:o} {file} {place}" for file in files)
                node.run("sh", "-ec", f"mkdir -p {place}; {copy}")
            elif "emptyDir" in volume:
                node.run("sh", "-ec", f"mkdir -p {place}; chmod 777 {place}; mount --bind {place} {place}; "
                                      f"mount --make-rshared {place}")
            else:
                raise Failure(f"what is the volume {volume}?")
        self.containers = {container["name"]: Container(node, manifest, container, volumes, directory)
                           for container in spec.get("initContainers", []) + spec["containers"]}

    def close(self):
        """Ends it by force; the kernel must have ended nothing for lack of memory."""
        kills = {name: container.close() for name, container in self.containers.items()}
        self.node.run("sh", "-c", f"umount -l {self.base}/*; rm -rf {self.base}", check=False)
        if any(kills.values()):
            raise Failure(f"{self.node.name}: the kernel ended for lack of memory: {kills}")


def load(path):
    """The objects of a file, or of kustomize's output, by kind and name."""
    found = {}
    for document in yaml.safe_load_all(path):
        found[document["kind"], document["metadata"]["name"]] = document
    return found


def manifests(folder, keys):
    """The objects as they are applied. With a kubectl, those of the example's layer are looked at as well."""
    objects = {}
    with open(f"{folder}/base/kustomization.yaml", encoding="utf-8") as file:
        resources = yaml.safe_load(file)["resources"]
    for name in [f"base/{resource}" for resource in resources] + ["mount-pod.yaml"]:
        with open(f"{folder}/{name}", encoding="utf-8") as file:
            objects.update(load(file))
    work = f"{os.path.dirname(keys)}/layers"
    shutil.copytree(folder, work)
    shutil.copytree(keys, f"{work}/example/keys", dirs_exist_ok=True)
    made = None
    if shutil.which("kubectl"):
        made = subprocess.run(["kubectl", "kustomize", f"{work}/example"], capture_output=True, text=True, check=False)
    if made is None or "unknown field" in made.stderr:
        print("NOT TESTED: the kustomization; there is no kubectl here, or an old one", file=sys.stderr)
    elif made.returncode != 0:
        raise Failure(f"kubectl kustomize: {made.stderr}")
    else:
        layered = load(made.stdout)
        expected = {key for key in objects if key[0] != "Pod"} | {("Secret", "nram-server-tls")}
        if set(layered) != expected:
            raise Failure(f"the example makes {sorted(layered)}, expected {sorted(expected)}")
        container = layered["DaemonSet", "nram-memserver"]["spec"]["template"]["spec"]["containers"][0]
        if container["image"] != "registry.example.org/nram:0.1" or container["env"][0]["value"] != "8GiB":
            raise Failure(f"the example's container: {container}")
        memory = container["resources"]
        if memory["requests"]["memory"] != memory["limits"]["memory"]:
            raise Failure(f"the example's layer lets the kubelet swap the server out: {memory}")
        if layered["PodDisruptionBudget", "nram-memserver"]["spec"]["minAvailable"] != 2:
            raise Failure("the example's layer does not set the budget")
        if container["readinessProbe"] != donor_pod(objects)["spec"]["containers"][0]["readinessProbe"]:
            raise Failure("the example's layer loses the probe")
        check_schemas(layered)
    check_schemas(objects)
    return objects


def check_prometheus(folder, directory):
    """The jobs for Prometheus, as it reads them. Debian's version knows no Kubernetes: the test puts its answers in."""
    place = f"{directory}/prometheus"
    os.mkdir(place)
    shutil.copy(f"{folder}/../prometheus/nram-alerts.yml", place)
    with open(f"{folder}/prometheus.yml", encoding="utf-8") as file:
        config = yaml.safe_load(file)
    meta = "__meta_kubernetes_pod_"
    for job in config["scrape_configs"]:
        if [one["role"] for one in job.pop("kubernetes_sd_configs")] != ["pod"]:
            raise Failure(f"{job['job_name']}: it does not look for pods")
        name = {"nram-server": "nram-memserver", "nram-door": "nram-mount"}[job["job_name"]]
        job["static_configs"] = [
            {"targets": [f"10.0.0.1:{port}"],
             "labels": {f"{meta}label_app_kubernetes_io_name": pod, f"{meta}container_port_name": port_name,
                        f"{meta}node_name": "n7", f"{meta}name": "p7", "__meta_kubernetes_namespace": "work"}}
            for port, pod, port_name in ((1, name, "metrics"), (2, name, "control"), (3, "other", "metrics"))]
    with open(f"{place}/prometheus.yml", "w", encoding="utf-8") as file:
        yaml.safe_dump(config, file)
    found = {}
    for job in ("nram-server", "nram-door"):
        # The timeout is the time that it waits for further targets.
        for command in (["config", f"{place}/prometheus.yml"],
                        ["service-discovery", "--timeout=1s", f"{place}/prometheus.yml", job]):
            said = subprocess.run(["promtool", "check", *command], capture_output=True, text=True, check=False)
            if said.returncode != 0:
                raise Failure(f"promtool: {said.stdout}{said.stderr}")
        found[job] = [one["labels"] for one in json.loads(said.stdout) if one["labels"]]
    server = {"job": "nram-server", "instance": "10.0.0.1:1", "node": "n7"}
    door = {"job": "nram-door", "instance": "10.0.0.1:1", "namespace": "work", "pod": "p7"}
    for job, expected in (("nram-server", server), ("nram-door", door)):
        shown = [{name: labels[name] for name in labels if not name.startswith("__")} for labels in found[job]]
        if shown != [expected]:
            raise Failure(f"{job} scrapes {shown}, expected {expected}")


def check_schemas(objects):
    """Against Kubernetes' own schemas, if the program that has them is here (PyPI: kubernetes-validate)."""
    try:
        import kubernetes_validate  # pylint: disable=import-outside-toplevel
    except ImportError:
        print("NOT TESTED: the manifests against Kubernetes' schemas; kubernetes_validate is not here", file=sys.stderr)
        return
    for key, document in objects.items():
        try:
            kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)
        except kubernetes_validate.ValidationError as error:
            raise Failure(f"{key}: {error}") from error


def donor_pod(objects):
    """The pod that the DaemonSet makes; the other objects must fit it."""
    made = objects["DaemonSet", "nram-memserver"]["spec"]
    template = made["template"]
    labels = template["metadata"]["labels"]
    service = objects["Service", "nram-memserver"]["spec"]
    for selector in (made["selector"]["matchLabels"], service["selector"]):
        if not selector.items() <= labels.items():
            raise Failure(f"{selector} does not select pods with {labels}")
    ports = {port["name"]: port["containerPort"] for port in template["spec"]["containers"][0]["ports"]}
    if {port["name"]: port["port"] for port in service["ports"]} != ports or service["clusterIP"] != "None":
        raise Failure(f"the service {service} does not fit the ports {ports}")
    if ("PriorityClass", template["spec"]["priorityClassName"]) not in objects:
        raise Failure("there is no such priority class")
    return {"metadata": {"name": "nram-memserver", "labels": labels}, "spec": template["spec"]}


def check_donor(objects):
    """Rules of Kubernetes that nothing here enforces."""
    spec = donor_pod(objects)["spec"]
    resources = spec["containers"][0]["resources"]
    if resources["requests"]["memory"] != resources["limits"]["memory"]:
        raise Failure(f"the kubelet may swap the server out: {resources}")
    if spec["securityContext"]["seccompProfile"] != {"type": "RuntimeDefault"}:
        raise Failure("the server may make every system call")
    if {"operator": "Exists", "effect": "NoSchedule"} not in spec["tolerations"]:
        raise Failure("a donor with a taint has no server")
    budget = objects["PodDisruptionBudget", "nram-memserver"]["spec"]
    labels = donor_pod(objects)["metadata"]["labels"]
    if not budget["selector"]["matchLabels"].items() <= labels.items() or not isinstance(budget["minAvailable"], int):
        raise Failure(f"the budget {budget} does not fit a DaemonSet's pods with {labels}")


def check_addresses(objects, directory):
    """The command lines on nodes with an IPv4 address and with an IPv6 address, by stand-ins for the programs."""
    stand_ins = f"{directory}/stand-ins"
    os.mkdir(stand_ins)
    for name in ("nram-memserver", "nram-fsd", "umount", "mkdir"):
        with open(f"{stand_ins}/{name}", "w", encoding="ascii") as file:
            file.write('#!/bin/sh\nprintf "%s\\n" "${0##*/}" "$@"\n')
        os.chmod(f"{stand_ins}/{name}", 0o755)
    sidecar = objects["Pod", "nram-mount"]["spec"]["initContainers"][0]
    for container, port in ((donor_pod(objects)["spec"]["containers"][0], 9435), (sidecar, 9436)):
        variable = next(one["name"] for one in container["env"] if one["name"].endswith("_ADDRESS"))
        for address, expected in (("10.0.0.7", [f"--metrics=10.0.0.7:{port}"]), ("fd00::7", [])):
            words = container["command"] + container.get("args", [])
            words = [word.replace(f"$({variable})", address) for word in words]
            said = subprocess.run(words, env={"PATH": f"{stand_ins}:/usr/bin:/bin", variable: address},
                                  capture_output=True, text=True, check=True).stdout.splitlines()
            if [word for word in said if word.startswith("--metrics")] != expected:
                raise Failure(f"{container['name']} on {address}: {said}")
            if not any(word.startswith("--tls-dir=") for word in said):
                raise Failure(f"{container['name']} on {address} lacks its flags: {said}")


def shrink(container):
    """Makes the donation small, and keeps the room above it."""
    variable = next(one for one in container["env"] if one["name"] == "NRAM_DONATE")
    above = size(container["resources"]["limits"]["memory"]) - size(variable["value"].replace("iB", "i"))
    if not 0 < above <= 1 << 30:
        raise Failure(f"{above} bytes of the limit are not the donation's")
    reserve = next(word.split("=")[1] for word in container["args"] if word.startswith("--reserve="))
    if size(reserve.replace("iB", "i")) >= above:
        raise Failure(f"a server that lends all is within its reserve, {reserve}: it would give back for ever")
    variable["value"] = f"{DONATION_MIB}MiB"
    container["resources"]["limits"]["memory"] = f"{DONATION_MIB + (above >> 20)}Mi"


class Test:
    """Three donors, and a node whose pod mounts the pool."""

    def __init__(self, directory, nram, folder):
        self.directory = directory
        keys = f"{directory}/keys"
        hosts = [f"--host={address}" for address in NODES.values()]
        subprocess.run([nram, "keygen", keys, *hosts], check=True, stdout=subprocess.DEVNULL)
        self.objects = manifests(folder, keys)
        check_prometheus(folder, directory)
        check_donor(self.objects)
        check_addresses(self.objects, directory)
        self.secrets = {
            "nram-server-tls": [f"{keys}/{name}" for name in ("ca.pem", "server.pem", "server.key")],
            "nram-client-tls": [f"{keys}/{name}" for name in ("ca.pem", "client.pem", "client.key")],
        }
        self.donor = donor_pod(self.objects)
        shrink(self.donor["spec"]["containers"][0])
        self.grace = self.donor["spec"]["terminationGracePeriodSeconds"]
        machines.own_etc(directory, {}, {})
        machines.network()
        self.dns = Dns()
        self.nodes = {name: machines.Machine(name, address) for name, address in NODES.items()}
        self.pods = {}

    def server(self, name):
        """The server's container on a node."""
        return self.pods[name].containers["nram-memserver"]

    def start_donor(self, name):
        """Starts a donor's pod, which is a member from then on, and waits until it is ready."""
        self.pods[name] = Pod(self.nodes[name], self.donor, self.secrets, self.directory)
        if self.server(name).probe("readinessProbe"):
            raise Failure("a server that was not started is ready")
        self.server(name).start()
        self.dns.addresses.append(NODES[name])
        until(f"{name} is ready", lambda: self.server(name).probe("readinessProbe"))

    def figures(self, name, port, what):
        """Prometheus' look at a pod."""
        with urllib.request.urlopen(f"http://{NODES[name]}:{port}/metrics", timeout=20) as answer:
            if what.encode() not in answer.read():
                raise Failure(f"{name}: no {what} at port {port}")

    def start_mount(self):
        """Starts the pod that mounts, in the order of its containers."""
        pod = self.pods["node4"] = Pod(self.nodes["node4"], self.objects["Pod", "nram-mount"], self.secrets,
                                       self.directory)
        sidecar, work = pod.containers["nram-fsd"], pod.containers["work"]
        if sidecar.probe("startupProbe"):
            raise Failure("a mount that is not there has started")
        sidecar.start()
        until("the mount is there", lambda: sidecar.probe("startupProbe"))
        work.start()
        return sidecar, work

    def run(self):
        """All of it, in the order of a cluster's life."""
        for name in DONORS:
            self.start_donor(name)
            self.figures(name, 9435, "nram_server_donated_bytes")
        sidecar, work = self.start_mount()
        self.figures("node4", 9436, "nram_door_")
        until("the work sees the mount", lambda: "fuse" in work.run("df", "-T", "/mnt/nram").stdout)
        work.run("sh", "-ec", "head -c 48M /dev/urandom > /mnt/nram/data; sync -f /mnt/nram")
        self.kept = self.sum(work)
        print("mounts: passed")
        self.ready_is_lending()
        self.donor_leaves(work)
        self.full(work)
        if sidecar.end(self.objects["Pod", "nram-mount"]["spec"]["terminationGracePeriodSeconds"]) is not None:
            raise Failure("a hook that nobody has written")
        if self.nodes["node4"].mounts("fuse.nram"):
            raise Failure(f"mounts are left: {self.nodes['node4'].mounts('fuse.nram')}")
        for pod in self.pods.values():
            pod.close()
        print("the end: passed")

    @staticmethod
    def sum(work):
        """The sum of the data, as the servers have it."""
        said = work.run("sh", "-ec", "dd if=/mnt/nram/data iflag=direct bs=1M status=none | sha256sum").stdout
        if len(said.split()[0]) != hashlib.sha256().digest_size * 2:
            raise Failure(f"sha256sum says: {said}")
        return said

    def ready_is_lending(self):
        """A server that drains answers, and is not ready."""
        server = self.server("node2")
        server.run("nram", "drain", "--tls-dir=none", "unix:/run/nram/memserver")
        if server.probe("readinessProbe"):
            raise Failure("a server that drains is ready")
        server.run("nram", "drain", "--undo", "--tls-dir=none", "unix:/run/nram/memserver")
        until("node2 is ready again", lambda: server.probe("readinessProbe"))
        print("ready is lending: passed")

    def donor_leaves(self, work):
        """A donor's pod is deleted, and made anew: its data moves, and reads return the same data."""
        said = self.server("node1").end(self.grace)
        if said.returncode != 0:
            raise Failure(f"the preStop hook: exit {said.returncode}: {said.stdout}")
        with open(self.server("node1").log, encoding="utf-8", errors="replace") as file:
            log = file.read()
        if " 0 pages, which are lost" not in log:
            raise Failure(f"the server ends with data: {log[-2000:]}")
        self.dns.addresses.remove(NODES["node1"])
        self.pods.pop("node1").close()
        if self.sum(work) != self.kept:
            raise Failure("the data is another one after a donor has left")
        self.start_donor("node1")
        print("a donor leaves: passed")

    def full(self, work):
        """The pool is filled to its end: an error, and no server is ended for lack of memory."""
        said = work.run("sh", "-c", "head -c 1G /dev/zero | tr '\\0' x > /mnt/nram/much; sync -f /mnt/nram; echo over")
        if "No space left" not in said.stdout:
            raise Failure(f"more than there is goes in: {said.stdout}")
        for name in DONORS:
            if not self.server(name).probe("readinessProbe"):
                raise Failure(f"{name} is not ready, as it is full")
        if self.sum(work) != self.kept:
            raise Failure("the data is another one in a full pool")
        work.run("rm", "/mnt/nram/much")
        print("a full pool: passed")


def main():
    """Runs all of it."""
    machines.enter_namespaces()
    nram, fsd, memserver, folder = sys.argv[1:5]
    directory = machines.scratch("kubernetes")
    test = None
    try:
        machines.own_programs(directory, [nram, fsd, memserver])
        test = Test(directory, nram, folder)
        test.run()
    except (Failure, subprocess.SubprocessError) as failure:
        for path in sorted(glob.glob(f"{directory}/*.log")):
            print(f"--- {path}\n{subprocess.run(['tail', '-25', path], capture_output=True, text=True).stdout}")
        sys.exit(f"FAILED: {failure}")
    finally:
        for pod in test.pods.values() if test else []:
            for container in pod.containers.values():
                container.cgroup.close()
        machines.remove(directory)
    print("PASSED")


main()
