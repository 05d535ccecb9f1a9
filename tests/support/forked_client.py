"""Has a program forked by a process that listens for this, and ends as it does; see `forked`.

corral ARGUMENTS                        as a copy of this file: at $FORKED_PROGRAMS
forked_client.py ADDRESS PROGRAM ARGUMENTS
"""

import json
import os
import signal
import socket
import struct
import sys


def corral() -> None:
    # Called by a program that does not pass its environment on; or it looks which shell has started it.
    if "FORKED_PROGRAMS" not in os.environ or sys.argv[1:2] == ["--show-completion"]:
        os.execv(os.path.join(os.path.dirname(sys.executable), "corral"), ["corral", *sys.argv[1:]])
    follow(os.environ["FORKED_PROGRAMS"], "corral", sys.argv[1:])


def follow(address: str, program: str, argv: list[str]) -> None:
    """Have it forked, pass signals on, and end as it ends."""
    line = socket.socket(socket.AF_UNIX)
    line.connect(address)
    asked = {"program": program, "argv": argv, "env": dict(os.environ), "cwd": os.getcwd()}
    text = json.dumps(asked).encode()
    socket.send_fds(line, [struct.pack("!I", len(text))], [0, 1, 2])
    line.sendall(text)
    pid = struct.unpack("!i", line.recv(4, socket.MSG_WAITALL))[0]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: os.kill(pid, number))
    code = struct.unpack("!i", line.recv(4, socket.MSG_WAITALL))[0]
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


if os.path.basename(sys.argv[0]) == "corral":
    corral()
else:
    follow(sys.argv[1], sys.argv[2], sys.argv[3:])
