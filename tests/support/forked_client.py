"""Has a program forked by the process that listens at $FORKED_PROGRAMS, and ends as it does."""

import json
import os
import signal
import socket
import struct
import sys


def main() -> None:
    # Called by a program that does not pass its environment on; or it looks which shell has started it.
    if "FORKED_PROGRAMS" not in os.environ or sys.argv[1:2] == ["--show-completion"]:
        os.execv(os.path.join(os.path.dirname(sys.executable), "corral"), ["corral", *sys.argv[1:]])
    line = socket.socket(socket.AF_UNIX)
    line.connect(os.environ["FORKED_PROGRAMS"])
    asked = {"program": "corral", "argv": sys.argv[1:], "env": dict(os.environ), "cwd": os.getcwd()}
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


main()
