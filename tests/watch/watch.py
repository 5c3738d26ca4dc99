#!/usr/bin/env python3
"""watch.py NRAM NRAM_MEMSERVER BUSY_MEMORY DEPLOY: a pool, a mount and a program, watched by a real Prometheus.

It asks Prometheus for nram's figures, has all queries of the dashboard answered, and kills a server. DEPLOY is the
folder deploy/prometheus."""

import contextlib
import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

START_S = 60
ANSWER_S = 60
LOOK_S = 0.1
SERVERS = 3


class Failure(Exception):
    pass


def await_(what, look, seconds=ANSWER_S):
    """The first true result of `look`."""
    until = time.monotonic() + seconds
    while True:
        found = look()
        if found:
            return found
        if time.monotonic() > until:
            raise Failure(f"{what}: not in {seconds} s")
        time.sleep(LOOK_S)


def run(*words, text="", **how):
    done = subprocess.run(words, input=text, capture_output=True, text=True, check=False, **how)
    if done.returncode != 0:
        raise Failure(f"{' '.join(words)}: exit {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def read(path):
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except FileNotFoundError:
        return ""


def scrape(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=ANSWER_S) as answer:
        return answer.read().decode()


def check_text(what, text):
    """promtool knows the conventions of names and units, and prints violations."""
    said = run("promtool", "check", "metrics", text=text).strip()
    if said:
        raise Failure(f"{what}: promtool check metrics says: {said}")
    for line in text.splitlines():
        if not re.match(r"# (HELP|TYPE) (nram|exposer)_|nram_|exposer_", line):
            raise Failure(f"{what}: a figure that is not nram's: {line}")


class Textfile:
    """Stands in for node_exporter, which serves such files as they are."""

    def __init__(self, path):
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):  # pylint: disable=invalid-name
                text = read(path).encode()
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_):  # pylint: disable=arguments-differ
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()


class Prometheus:
    def __init__(self, directory, rules, targets):
        """`targets`: ports, by the job's name."""
        config = {
            "global": {"scrape_interval": "500ms", "evaluation_interval": "500ms"},
            "rule_files": [rules],
            "scrape_configs": [
                {"job_name": job, "static_configs": [{"targets": [f"127.0.0.1:{port}" for port in ports]}]}
                for job, ports in targets.items()
            ],
        }
        with open(f"{directory}/prometheus.yml", "w", encoding="utf-8") as file:
            json.dump(config, file)  # JSON is YAML
        run("promtool", "check", "config", f"{directory}/prometheus.yml")
        self.log = f"{directory}/prometheus.log"
        with open(self.log, "w", encoding="utf-8") as log:
            self.process = subprocess.Popen(  # pylint: disable=consider-using-with
                ["prometheus", f"--config.file={directory}/prometheus.yml", f"--storage.tsdb.path={directory}/data",
                 "--web.listen-address=127.0.0.1:0"],
                stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        listens = await_("prometheus listens", self.find_port, START_S)
        self.address = f"http://{listens.group(1)}"
        await_("prometheus is ready", lambda: "Server is ready to receive web requests" in read(self.log), START_S)

    def find_port(self):
        if self.process.poll() is not None:
            raise Failure(f"prometheus has ended: {read(self.log)[-2000:]}")
        return re.search(r'msg="?Listening on"? address=(127\.0\.0\.1:[1-9]\d*)', read(self.log))

    def ask(self, query):
        """The present values, as (labels, value)."""
        url = f"{self.address}/api/v1/query?" + urllib.parse.urlencode({"query": query})
        try:
            with urllib.request.urlopen(url, timeout=ANSWER_S) as answer:
                found = json.load(answer)["data"]["result"]
        except urllib.error.HTTPError as error:
            raise Failure(f"{query}: {error.read().decode()}") from error
        return [(sample["metric"], float(sample["value"][1])) for sample in found]

    def one(self, query):
        answers = self.ask(query)
        return answers[0][1] if len(answers) == 1 else None

    def close(self):
        self.process.terminate()
        self.process.wait(timeout=START_S)


class Watched:
    """Servers, a mount with two copies, and a program."""

    def __init__(self, stack, directory, nram, memserver, busy_memory):
        self.nram = nram
        self.servers, self.ready = [], []
        for number in range(SERVERS):
            ready = f"{directory}/{number}.ready"
            log = stack.enter_context(open(f"{directory}/{number}.log", "w", encoding="utf-8"))
            server = subprocess.Popen(
                [memserver, "--donate=160M", "--port=0", "--data-port=0", "--metrics=127.0.0.1:0",
                 f"--pretend-host=host-{number}", f"--domain=rack-{number}", f"--ready-file={ready}"],
                stderr=log)
            self.servers.append(server)
            stack.callback(self.end, server)
            self.ready.append(json.loads(await_("a server is ready", lambda: read(ready), START_S)))
        self.pool = ",".join(f"127.0.0.1:{ready['control_port']}" for ready in self.ready)
        os.environ["NRAM_POOL"] = self.pool
        self.mount = f"{directory}/mount"
        os.mkdir(self.mount)
        told = json.loads(run(nram, "mount", self.mount, "--copies=2", "--metrics=127.0.0.1:0", "--json"))
        stack.callback(run, nram, "umount", "--lazy", self.mount)
        self.door_port = int(re.search(r"figures on port (\d+)", read(told["log"])).group(1))
        self.figures = f"{directory}/busy.prom"
        environment = os.environ | {"NRAM_METRICS": self.figures}
        self.program = stack.enter_context(
            subprocess.Popen([busy_memory], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        stack.callback(self.end, self.program)
        self.say("")

    @staticmethod
    def end(process):
        process.kill()
        process.wait(timeout=START_S)

    def say(self, word):
        if word:
            self.program.stdin.write(word + "\n")
            self.program.stdin.flush()
        said = self.program.stdout.readline().strip()
        if said not in ("open", "done"):
            raise Failure(f"the program says {said!r}")

    def status(self):
        done = subprocess.run([self.nram, "status", "--json"], capture_output=True, text=True, check=False)
        return json.loads(done.stdout)


def check_figures(prometheus, watched):
    """Prometheus has the same figures as nram's own commands."""
    await_("all are up", lambda: prometheus.one("sum(up)") == SERVERS + 2)

    def same(query, value):
        def look():
            return prometheus.one(query) == value()

        await_(f"{query} is what nram status says", look)

    def sum_of(counter):
        return lambda: sum(server[counter] for server in watched.status()["servers"])

    for figure, counter in (("donated_bytes", "donated_bytes"), ("pages", "pages"), ("regions", "regions"),
                            ("leases", "leases"), ("writes_total", "writes"), ("written_bytes_total", "bytes_written")):
        if counter == "donated_bytes":
            df = json.loads(run(watched.nram, "df", "--json"))
            same(f"sum(nram_server_{figure})", lambda df=df: df["total"]["donated_bytes"])
        else:
            same(f"sum(nram_server_{figure})", sum_of(counter))
    same('max(nram_server_told_spans{state="in_sync"})', lambda: watched.status()["copies"]["in_sync"])
    same('nram_client_spans{job="nram-door",state="in_sync"}', lambda: watched.status()["copies"]["in_sync"])
    stat = os.statvfs(watched.mount)
    same("nram_door_size_bytes", lambda: stat.f_blocks * stat.f_frsize)
    same('count(nram_client_server_up{job="nram-door"} == 1)', lambda: SERVERS)
    same('count(nram_client_lease_left_seconds > 0.5 * nram_client_lease_ttl_seconds)', lambda: 2 * SERVERS)
    same("sum(nram_server_leases_late)", lambda: 0)
    same('nram_memory_budget_bytes{program="busy"}', lambda: 4 << 20)
    await_("the program's faults are told", lambda: (prometheus.one("nram_memory_faults_total") or 0) > 10000)
    place = prometheus.ask("nram_door_info")[0][0]
    if (place["door"], place["place"]) != ("mount", os.path.realpath(watched.mount)):
        raise Failure(f"the door is {place}")


def check_dashboard(prometheus, dashboard):
    """Each query has an answer, and each concerns existing figures."""
    queries = 0
    for panel in json.loads(read(dashboard))["panels"]:
        for target in panel["targets"]:
            query = target["expr"].replace("$__rate_interval", "20s").replace("$pool", "nram-server.*")
            await_(f"{panel['title']}: {query}", lambda query=query: prometheus.ask(query))
            queries += 1
    print(f"{queries} queries of the dashboard have answers")


def check_alerts(prometheus, watched):
    """A server is killed: Prometheus sees it directly, and through the mount."""
    firing = prometheus.ask('ALERTS{alertname!~"NramRoom.*"}')
    if firing:
        raise Failure(f"alerts though all is well: {firing}")
    watched.end(watched.servers[0])
    port = watched.ready[0]["control_port"]
    await_("the server is gone", lambda: prometheus.one('count(up{job="nram-server"} == 0)') == 1)
    await_("the alert waits its minute",
           lambda: prometheus.ask('ALERTS{alertname="NramDonorGone",alertstate="pending"}'))
    await_("the mount cannot use it", lambda: prometheus.ask(
        f'nram_client_server_up{{job="nram-door",server="127.0.0.1:{port}"}} == 0 and on (server, instance) '
        'nram_client_server_away_seconds > 0'))
    await_("that alert waits too", lambda: prometheus.ask('ALERTS{alertname="NramServerUnusable"}'))


def main():
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    nram, memserver, busy_memory, deploy = (os.path.realpath(word) for word in sys.argv[1:])
    rules = f"{deploy}/nram-alerts.yml"
    run("promtool", "check", "rules", rules)
    run("promtool", "test", "rules", f"{deploy}/nram-alerts_test.yml")
    directory = tempfile.mkdtemp(suffix="-nram-watch")
    os.environ["NRAM_STATE_DIR"] = f"{directory}/state"
    try:
        with contextlib.ExitStack() as stack:
            watched = Watched(stack, directory, nram, memserver, busy_memory)
            with open(f"{watched.mount}/file", "wb") as file:
                file.write(os.urandom(8 << 20))
                file.flush()
                os.fsync(file.fileno())
            watched.say("many")
            textfile = Textfile(watched.figures)
            stack.callback(textfile.close)
            for number, ready in enumerate(watched.ready):
                check_text(f"server {number}", scrape(ready["metrics_port"]))
            check_text("the mount", scrape(watched.door_port))
            check_text("the program", read(watched.figures))
            prometheus = Prometheus(directory, rules, {
                "nram-server": [ready["metrics_port"] for ready in watched.ready],
                "nram-door": [watched.door_port],
                "node": [textfile.port],
            })
            stack.callback(prometheus.close)
            check_figures(prometheus, watched)
            check_dashboard(prometheus, f"{deploy}/nram-dashboard.json")
            check_alerts(prometheus, watched)
    except Failure as failure:
        for log in ("0.log", "prometheus.log"):
            print(read(f"{directory}/{log}")[-3000:], file=sys.stderr)
        sys.exit(f"FAILED: {failure}")
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
