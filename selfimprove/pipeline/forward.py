"""Forwards a stage to the warm helper (``pipeline.warm``) before the stage's own process imports anything heavy.

``stages/__init__.py``, which Python runs first for every ``python -m stages.<script>``, calls ``forward``. Only the
standard library is imported here.
"""

import json
import os
import signal
import socket
import sys

ADDRESS = "SELFIMPROVE_WARM"
"""Environment variable with the path of the helper's socket."""
TERMINATE = b"t"
"""Sent to the helper: this process received a SIGTERM."""
RUNS = b"r"
"""Sent by the helper's child: it runs the stage and handles signals itself."""
BY_ITSELF = b"-"
"""Sent by the helper: the stage must run in its own process."""
INTERRUPTED = 128 + signal.SIGINT
FIRST = "stages.inputs"
"""A stage that runs while the helper is still importing and needs few of its packages."""


def forward() -> None:
    """Let the helper run this stage and exit with its code; return if there is no helper or it declines."""
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
            # Until the child exists, a signal ends this process and thereby the request.
            runs = line.recv(1) == RUNS
        except KeyboardInterrupt:
            sys.exit(INTERRUPTED)
        except OSError:  # the helper failed to import
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
                continue  # the child got the SIGINT too; wait for its exit code
            if not part:
                break
            answer += part
    sys.exit(int(answer) if answer else 1)
