"""One Register call to the kubelet.

The kubelet dials us back and asks for our options before it answers, for up to 10 s: serve first, and answer on other
threads than the one that waits.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc

from nvdp.errors import KubeletError
from nvdp.kubelet.messages import build_options
from nvdp.kubelet.proto import deviceplugin_v1beta1_pb2 as deviceplugin
from nvdp.kubelet.protocol import REGISTER
from nvdp.kubelet.server import build_address
from nvdp.kubelet.sockets import connect_once

VERSION = "v1beta1"
DEADLINE_S = 15.0  # above the kubelet's own 10 s for dialling us: its answer says more than our timeout
# With a pool of its own, a channel does not inherit the back-off of an earlier one that found nobody.
_OPTIONS = (("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0))
# The kubelet gave no answer of its own; with any other code it did.
_UNREACHABLE = {
    grpc.StatusCode.UNAVAILABLE: "the connection broke before the kubelet answered",
    grpc.StatusCode.DEADLINE_EXCEEDED: "the kubelet did not answer in time",
    grpc.StatusCode.CANCELLED: "given up for a newer attempt",
}
_NO_DESCRIPTORS = "nvdp has no file descriptor left"
_REMEDIES = {errno.EMFILE: _NO_DESCRIPTORS, errno.ENFILE: _NO_DESCRIPTORS}


class Registration:
    """A Register call under way: made by the constructor, which does not wait for the answer.

    ``done`` is called exactly once with the outcome, None for success, on a thread of this call: it must not block, nor
    end this registration. KubeletError from the constructor says why nobody could be asked; then ``done`` is never
    called. ``refused`` of an error tells whether the kubelet answered.
    """

    def __init__(
        self,
        kubelet_socket: Path,
        *,
        endpoint: str,
        resource: str,
        pre_start_required: bool = False,
        done: Callable[[Registration, KubeletError | None], None],
        deadline_s: float = DEADLINE_S,
    ) -> None:
        _check_listener(kubelet_socket)
        self._done = done
        self._kubelet_socket = kubelet_socket
        self._channel = grpc.insecure_channel(build_address(kubelet_socket), options=_OPTIONS)
        request = deviceplugin.RegisterRequest(
            version=VERSION,
            endpoint=endpoint,
            resource_name=resource,
            options=build_options(pre_start_required=pre_start_required),
        )
        # Not as a future of grpc: that waits on a thread of grpc's own, and if there is none to be had, for ever.
        thread = threading.Thread(
            target=self._call, args=(request, deadline_s), name=f"register {resource}", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as error:
            self.end()
            raise KubeletError(f"{kubelet_socket}: not asked, for no thread can be started ({error})") from error

    def end(self) -> None:
        """Close the connection; a call still under way is cancelled, which stops the kubelet's dial (from 1.35 on).

        Any thread but that of ``done``; again and again.
        """
        self._channel.close()

    def _call(self, request: deviceplugin.RegisterRequest, deadline_s: float) -> None:
        try:
            REGISTER.unary(self._channel)(request, timeout=deadline_s)
        except grpc.RpcError as error:
            self._done(self, self._translate(error))
        except ValueError:  # ended before it began
            self._done(self, self._explain(grpc.StatusCode.CANCELLED))
        else:
            self._done(self, None)

    def _translate(self, error: Any) -> KubeletError:
        code = error.code()
        if code in _UNREACHABLE:
            return self._explain(code)
        text = " ".join((error.details() or "").split()) or code.name
        return KubeletError(f"the kubelet refuses: {text}", refused=True)

    def _explain(self, code: grpc.StatusCode) -> KubeletError:
        return KubeletError(f"{self._kubelet_socket}: {_UNREACHABLE[code]}")


def _check_listener(path: Path) -> None:
    """Raise KubeletError if nobody listens. It costs a system call, where grpc would cost milliseconds."""
    try:
        connect_once(path)
    except BlockingIOError:
        return  # its backlog is full: somebody is there, only slow
    except (FileNotFoundError, ConnectionRefusedError) as error:
        raise KubeletError(f"{path}: nobody listens; is the kubelet running?") from error
    except PermissionError as error:
        raise KubeletError(f"{path}: no permission; nvdp must run as uid 0 to reach the kubelet") from error
    except OSError as error:
        remedy = _REMEDIES.get(error.errno or 0, "is --kubelet-socket right?")
        raise KubeletError(f"{path}: {error.strerror or error}; {remedy}") from error
