"""A running exerciser, as survive.py sees it."""

import contextlib
import glob
import json
import os
import signal
import subprocess
import time

from bench_places import Failure

HANG_S = 60  # of an operation
SAID_MOST = 2500  # characters of its output; all is in the log
END_S = 180  # until an exerciser has verified everything after its SIGTERM


class Program:
    """A running exerciser."""

    def __init__(self, name, words, directory):
        self.name = name
        self.out, self.err = f"{directory}/{name}.out", f"{directory}/{name}.err"
        self.operations, self.pause_ms, self.pause_of, self.read_to = 0, 0, "nothing", 0
        self.heard = time.monotonic()
        self.has_begun = self.ended = False
        self.said = {}  # its last line
        with open(self.out, "w") as out, open(self.err, "w") as err:
            self.process = subprocess.Popen(words, stdout=out, stderr=err, start_new_session=True)

    def look(self):
        with open(self.out) as file:
            file.seek(self.read_to)
            text = file.read()
        text = text[: text.rfind("\n") + 1]
        self.read_to += len(text)
        for line in text.splitlines():
            said = self.said = json.loads(line)
            self.has_begun, self.heard = True, time.monotonic()
            self.operations, self.ended = said["operations"], said.get("ended", False)
            if said["pause_ms"] > self.pause_ms:
                self.pause_ms, self.pause_of = said["pause_ms"], f"{self.name}: {said['pause_of']}"
        code = self.process.poll()
        if code is not None and (code != 0 or not self.ended):
            if text:
                return self.look()
            with open(self.err) as file:
                raise Failure(f"{self.name} ended with {code}: {file.read(SAID_MOST)}")
        if code is None and time.monotonic() - self.heard > HANG_S:
            raise Failure(f"{self.name} hangs: an operation takes more than {HANG_S} s\n{self.stacks()}")

    def stacks(self):
        said = []
        for task in glob.glob(f"/proc/{self.process.pid}/task/*"):
            with contextlib.suppress(OSError), open(f"{task}/stack") as file:
                said.append(f"{task}\n{file.read()}")
        return "\n".join(said)

    def end(self):
        self.process.terminate()
        self.heard = time.monotonic() + END_S - HANG_S

    def kill(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)  # with its children
        self.process.wait(timeout=60)
