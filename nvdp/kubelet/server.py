"""One server on one socket of the device-plugin directory: how it comes to be, how it is asked, how it goes.

Socket names are unique per process and start (design invariant 6): ``nvdp-<resource>-<random>.sock``. Only the kubelet,
which is root as we are, has business there: the file has mode 0600.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import grpc

from nvdp.errors import HostError
from nvdp.kubelet.pool import CallPool
from nvdp.kubelet.proto import deviceplugin_v1beta1_pb2 as deviceplugin
from nvdp.kubelet.protocol import GET_DEVICE_PLUGIN_OPTIONS
from nvdp.kubelet.sockets import (
    PATH_LIMIT_BYTES,
    SocketIdentity,
    check_socket_path,
    connect_once,
    find_socket_identity,
)
from nvdp.kubelet.starts import ContainerStarts
from nvdp.kubelet.streams import ListStreams

PREFIX = "nvdp-"
_SUFFIX = ".sock"
_UNBORN_SUFFIX = ".new"  # not longer than _SUFFIX: where one fits the other does
_UNBORN_LIMIT_S = 60.0  # such a name lasts for a millisecond; after a minute its process is dead
_SLUG_LIMIT = 24
_UNARY_THREADS = 16
_MAX_MESSAGE_BYTES = 16 << 20  # GetPreferredAllocation passes grpc's 4 MiB at 91,000 IDs
_STOP_LIMIT_S = 2.0
_OPTIONS = (
    ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", -1),
)


def choose_socket_path(directory: Path, resource: str) -> Path:
    """A new name for a socket of ``resource``; its part that is for people gives way where the directory is deep.

    Raises HostError if no name of ours fits into a socket address there.
    """
    ending = f"{secrets.token_hex(6)}{_SUFFIX}"
    room = PATH_LIMIT_BYTES - len(os.fsencode(directory / f"{PREFIX}-{ending}"))
    slug = re.sub(r"[^a-z0-9.]+", "-", resource.rpartition("/")[2].lower())[: max(0, min(room, _SLUG_LIMIT))]
    path = directory / f"{PREFIX}{slug}-{ending}" if slug else directory / f"{PREFIX}{ending}"
    check_socket_path(path)
    return path


def build_address(path: Path) -> str:
    """The socket as a gRPC target, which is a URI: what means something there is escaped."""
    return f"unix:{quote(str(path.absolute()))}"


class PluginServer:
    """A gRPC server on ``path``, from ``start`` to ``stop``. Both are for one thread, the rest for any.

    ``streams`` and, where starts are checked, ``starts`` are those of ``service``: the server ends them when it stops.
    """

    def __init__(
        self,
        path: Path,
        *,
        service: grpc.GenericRpcHandler[Any, Any],
        streams: ListStreams,
        starts: ContainerStarts | None = None,
    ) -> None:
        self.path = path
        self.streams = streams
        self._starts = starts
        self._identity: SocketIdentity | None = None
        self._pool = CallPool(_UNARY_THREADS, name="plugin-call")
        self._server = grpc.server(self._pool, handlers=[service], options=_OPTIONS)

    @property
    def endpoint(self) -> str:
        """The name that the kubelet is told: its file name in the kubelet's own directory."""
        return self.path.name

    def start(self) -> None:
        """Serve. Raises HostError in words if the socket cannot be made; then nothing is left behind.

        grpc unlinks the path that it bound when it stops, whoever's file is there by then. So it binds a name that it
        never meets again: the socket gets its rights, moves to its real name, and only we remove it there.
        """
        unborn = self.path.with_suffix(_UNBORN_SUFFIX)
        try:
            _check_directory(self.path.parent)
            try:
                self._server.add_insecure_port(build_address(unborn))
            except RuntimeError as error:  # grpc's own text names the address and nothing else
                raise HostError(f"{self.path.parent}: no socket can be made here; is the file system full?") from error
            self._server.start()
            try:
                unborn.chmod(0o600)
                self._identity = find_socket_identity(unborn)
                unborn.rename(self.path)
            except OSError as error:
                text = f"our socket went away while it was made ({error.strerror})"
                raise HostError(f"{self.path.parent}: {text}") from error
        except HostError:
            self.stop(grace_s=0)
            raise

    def is_ours(self) -> bool:
        """Whether the file at our path is still the socket that we serve on.

        Device and inode tell: the kernel keeps a bound socket's inode, so no other file can have its number meanwhile.
        The ctime changes with every relabelling and says nothing here.
        """
        found = find_socket_identity(self.path)
        mine = self._identity
        return found is not None and mine is not None and (found.device, found.inode) == (mine.device, mine.inode)

    def probe(self, timeout_s: float) -> bool:
        """Whether the socket at our path answers GetDevicePluginOptions, as the kubelet would ask. Blocks."""
        return probe_socket(self.path, timeout_s)

    def stop(self, *, grace_s: float) -> None:
        """Remove the socket if it is ours, end streams and waits, let calls finish for ``grace_s``, then cut them off.

        Blocks until all calls are over, two seconds more at most.
        """
        if self.is_ours():
            with contextlib.suppress(OSError):
                self.path.unlink()
        self.streams.end_all()
        if self._starts is not None:
            self._starts.end_all()
        self._server.stop(grace_s).wait(grace_s + _STOP_LIMIT_S)
        self._pool.shutdown(wait=False)
        self.streams.close()
        if self._starts is not None:
            self._starts.close()


def probe_socket(path: Path, timeout_s: float) -> bool:
    """Whether a device plugin answers GetDevicePluginOptions at ``path``. Blocks."""
    with grpc.insecure_channel(build_address(path), options=(("grpc.use_local_subchannel_pool", 1),)) as channel:
        try:
            GET_DEVICE_PLUGIN_OPTIONS.unary(channel)(deviceplugin.Empty(), timeout=timeout_s)
        except grpc.RpcError:
            return False
    return True


def remove_stale_sockets(directory: Path, *, clock: Callable[[], float] = time.time) -> tuple[Path, ...]:
    """Remove sockets with our prefix that refuse connections: their processes are dead. Returns what was removed.

    Never raises; what cannot be looked at stays. A name still being born does not listen yet and is left for a minute.
    """
    try:
        names = sorted(os.listdir(directory))  # noqa: PTH208 - names are all that is needed
    except OSError:
        return ()
    removed = []
    for path in (directory / name for name in names if name.startswith(PREFIX)):
        identity = find_socket_identity(path)
        if identity is None:
            continue
        unborn = path.suffix == _UNBORN_SUFFIX and clock() - identity.ctime_ns / 1e9 < _UNBORN_LIMIT_S
        if not unborn and _refuses(path):
            with contextlib.suppress(OSError):
                path.unlink()
                removed.append(path)
    return tuple(removed)


def _refuses(path: Path) -> bool:
    """A full backlog or missing rights are no refusal: somebody is there."""
    try:
        connect_once(path)
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return False


def _check_directory(directory: Path) -> None:
    """Say what is wrong before grpc does, which says nothing and prints it to stderr."""
    if not directory.is_dir():
        raise HostError(f"{directory}: no such directory; is the kubelet's device-plugin directory mounted there?")
    if not os.access(directory, os.W_OK | os.X_OK):
        raise HostError(f"{directory}: no permission to make a socket there; run as uid 0 with the directory writable")
