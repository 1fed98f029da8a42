"""A stage's own process hands the stage to the warm helper (``pipeline.warm``), before it imports what the stage needs.

``stages/__init__.py`` calls it, which Python runs first for every ``python -m stages.<script>``. Hence the standard
library alone.
"""

import json
import os
import signal
import socket
import sys

ADDRESS = "SELFIMPROVE_WARM"
"""Names the helper's socket."""
TERMINATE = b"t"
"""To the helper: this process got a SIGTERM."""
RUNS = b"r"
"""From the helper's child: it runs the stage, and has signals of its own."""
BY_ITSELF = b"-"
"""From the helper: the stage has to run in its own process."""
INTERRUPTED = 128 + signal.SIGINT
FIRST = "stages.inputs"
"""Runs while the helper is still importing, and needs little of that."""


def forward() -> None:
    """Have the helper run this stage, and end with its exit code; return if there is no helper, or it will not."""
    module = next((word for word in sys.orig_argv if word.startswith("stages.")), FIRST)
    address = os.environ.get(ADDRESS)
    if not address or module == FIRST:
        return
    line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        line.connect(address)
    except OSError:
        return
    environment = {name: value for name, value in os.environ.items() if name != ADDRESS}
    job = {
        "pid": os.getpid(),
        "module": module,
        "arguments": sys.argv[1:],
        "folder": os.getcwd(),
        "environment": environment,
    }
    with line:
        try:
            socket.send_fds(line, [json.dumps(job).encode() + b"\n"], [0, 1, 2])
            # Until the child is there a signal ends this process, and with it the call.
            runs = line.recv(1) == RUNS
        except KeyboardInterrupt:
            sys.exit(INTERRUPTED)
        except OSError:  # the helper could not import
            runs = False
        if not runs:
            del os.environ[ADDRESS]
            return
        signal.signal(signal.SIGTERM, lambda *_: line.send(TERMINATE))
        answer = b""
        while True:
            try:
                part = line.recv(64)
            except KeyboardInterrupt:
                continue  # the terminal has interrupted the child too; wait for its answer
            if not part:
                break
            answer += part
    sys.exit(int(answer) if answer else 1)
