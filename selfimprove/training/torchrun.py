"""torchrun for the processes of one machine: ``python -m selfimprove.training.torchrun``, with torchrun's options.

The stores through which torchrun's processes meet listen on every network interface, whatever address they are given,
and without a password. torchrun unpickles what it finds there, so anyone who could reach one could run code as this
user. Here they listen on the loopback interface only. Imports only torch: XTuner's environment runs it too.
"""

import socket
from typing import Any

import torch.distributed
from torch.distributed import run
from torch.distributed.elastic.rendezvous import c10d_rendezvous_backend

LOOPBACK = "127.0.0.1"


class LocalStore(torch.distributed.TCPStore):
    """A store that no other machine can reach; the arguments are those of ``TCPStore``."""

    def __init__(self, host_name: str, port: int, *, is_master: bool = False, **more: Any) -> None:
        if is_master:
            listener = socket.create_server((LOOPBACK, port))
            port = listener.getsockname()[1]
            # torch 2.5, XTuner's, accepts an open socket only without libuv.
            more.update(master_listen_fd=listener.detach(), use_libuv=False)
        super().__init__(host_name, port, is_master=is_master, **more)


if __name__ == "__main__":
    torch.distributed.TCPStore = LocalStore  # type: ignore[misc, assignment]
    c10d_rendezvous_backend.TCPStore = LocalStore  # type: ignore[misc, assignment]
    run.main()
