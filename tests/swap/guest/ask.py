#!/usr/bin/python3
"""ask.py DIRECTORY: sends breaks to the guest's console, so that its kernel prints its memory (m), the tasks that wait
and their reasons (w), and the state of all tasks (t). DIRECTORY has the sockets of QEMU's monitor and of the
console."""

import socket
import sys
import time

for key in "9mwt":
    monitor = socket.socket(socket.AF_UNIX)
    monitor.connect(sys.argv[1] + "/monitor")
    time.sleep(0.3)
    monitor.sendall(b"chardev-send-break console\n")
    time.sleep(0.3)
    console = socket.socket(socket.AF_UNIX)
    console.connect(sys.argv[1] + "/serial")
    console.sendall(key.encode())
    # Unread output is lost, also to the log.
    console.settimeout(0.5)
    until = time.monotonic() + 10
    while time.monotonic() < until:
        try:
            console.recv(65536)
        except socket.timeout:
            pass
    console.close()
