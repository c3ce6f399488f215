"""A gRPC server on a Unix socket that leaves its file behind when it ends, as a killed kubelet does.

grpc removes the path that it was given to bind. It is given one through a symbolic link to the directory, and the link
goes first: the file itself is never touched, and its identity stays the same.
"""

from __future__ import annotations

from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc

from nvdp.kubelet.sockets import check_socket_path

_THREADS = 64  # Register may dial for 10 s, and many may do so at once


class UnixServer:
    """Serves from its making until ``close``. Raise HostError if the path is too long."""

    def __init__(self, path: Path, *, link: Path, services: Collection[grpc.GenericRpcHandler[Any, Any]]) -> None:
        self._link = link
        self._link.unlink(missing_ok=True)
        self._link.symlink_to(path.parent, target_is_directory=True)
        bound = self._link / path.name
        check_socket_path(bound)
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix=f"kubelet-{path.parent.name}")
        self._server = grpc.server(self._threads)
        self._server.add_generic_rpc_handlers(tuple(services))
        self._server.add_insecure_port(f"unix:{bound}")
        self._server.start()

    def close(self) -> None:
        """Cut off every call. The socket file stays."""
        self._link.unlink(missing_ok=True)
        self._server.stop(None).wait()
        self._threads.shutdown(wait=False)


def remove_sockets(directory: Path) -> None:
    """What a starting kubelet does to its directory: all sockets go, whoever made them; nothing else does."""
    for path in directory.iterdir():
        if path.is_socket():
            path.unlink(missing_ok=True)
