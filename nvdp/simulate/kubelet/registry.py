"""The Registration service on kubelet.sock, and the clients it makes: one stream and one thread for each.

Source: the kubelet contract, A.1, A.2 and A.4; the order of the steps is the point.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import grpc

from nvdp.kubelet import protocol
from nvdp.kubelet.proto import deviceplugin_v1beta1_pb2 as deviceplugin
from nvdp.simulate.kubelet.behaviour import Behaviour
from nvdp.simulate.kubelet.devices import DeviceManager
from nvdp.simulate.kubelet.faults import Faults
from nvdp.simulate.kubelet.history import History
from nvdp.simulate.kubelet.names import is_extended_resource_name
from nvdp.simulate.kubelet.plugin import PluginConnection, PluginError
from nvdp.simulate.kubelet.records import Registration

VERSION = "v1beta1"
_READER_END_S = 5.0


class RefusedError(Exception):
    """A Register call is answered with this error."""

    def __init__(self, text: str, code: grpc.StatusCode = grpc.StatusCode.UNKNOWN) -> None:
        super().__init__(text)
        self.code = code


class Registry:
    """The clients of one kubelet's life. ``on_list`` is called after each list was taken, without the lock."""

    def __init__(
        self,
        *,
        directory: Path,
        devices: DeviceManager,
        history: History,
        behaviour: Behaviour,
        faults: Faults,
        dial_limit_s: float,
        on_list: Callable[[], None],
    ) -> None:
        self._directory = directory
        self._devices = devices
        self._history = history
        self._behaviour = behaviour
        self._faults = faults
        self._dial_limit_s = dial_limit_s
        self._on_list = on_list
        self._clients: dict[tuple[str, str], PluginConnection] = {}
        self._connections: set[PluginConnection] = set()
        self._readers: dict[threading.Thread, PluginConnection] = {}
        self._over = threading.Event()

    def build_service(self) -> grpc.GenericRpcHandler[deviceplugin.RegisterRequest, deviceplugin.Empty]:
        """For the server on kubelet.sock."""
        return protocol.build_service(
            protocol.REGISTRATION, {protocol.REGISTER: protocol.REGISTER.unary_handler(self._register)}
        )

    def find_client(self, resource: str) -> PluginConnection | None:
        """The newest client of a resource."""
        with self._history.changes:
            found = [client for (name, _), client in self._clients.items() if name == resource]
            return found[-1] if found else None

    def open_streams(self, resource: str) -> int:
        """How many list streams of the resource are being read."""
        with self._history.changes:
            return sum(connection.resource == resource for connection in self._readers.values())

    def close(self) -> None:
        """The kubelet is gone: all connections end, and nothing is done about it any more."""
        with self._history.changes:
            self._over.set()
            connections, readers = list(self._connections), list(self._readers)
        for connection in connections:
            connection.close()
        for reader in readers:
            # An interrupt may have come while this thread let go of the lock that they need: then it never does.
            reader.join(_READER_END_S)

    def _register(self, request: deviceplugin.RegisterRequest, context: grpc.ServicerContext) -> deviceplugin.Empty:
        delay_s = self._faults.register_delay_s  # as it was when the call came, for whom the record tells of it
        record = self._history.registered(request)
        given_up = threading.Event()
        if not context.add_callback(given_up.set):
            given_up.set()
        try:
            self._accept(record, given_up)
            given_up.wait(delay_s)
        except RefusedError as error:
            self._answered(record, str(error))
            context.abort(error.code, str(error))
        self._answered(record, None)
        return deviceplugin.Empty()

    def _answered(self, record: Registration, error: str | None) -> None:
        with self._history.changes:
            record.error = error
            record.answered_at = time.monotonic()
            self._history.note(f"Register {record.resource}: {error or 'done'}")

    def _accept(self, record: Registration, given_up: threading.Event) -> None:
        refusal = self._faults.take_refusal()
        if refusal is not None:
            code, text = refusal
            raise RefusedError(text, code)
        if record.version != VERSION:
            raise RefusedError(
                f"requested API version {json.dumps(record.version)} is not supported by kubelet. "
                f'Supported version is ["{VERSION}"]'
            )
        if not is_extended_resource_name(record.resource):
            raise RefusedError(f"the ResourceName {json.dumps(record.resource)} is invalid")
        # Not checked any further, by the kubelet either: "..", or an absolute path, end up somewhere.
        socket = Path(os.path.normpath(f"{self._directory}/{record.endpoint}"))
        self._connect(record, socket, given_up)

    def _connect(self, record: Registration, socket: Path, given_up: threading.Event) -> None:
        connection = PluginConnection(record.resource, socket, self._history)
        key = (record.resource, "" if self._behaviour.one_client_per_name else str(socket))
        with self._history.changes:
            if self._over.is_set():
                connection.close()
                raise RefusedError("the kubelet is stopping")
            if not self._behaviour.one_client_per_name and key in self._clients:
                connection.close()
                raise RefusedError(f"a device plugin of {record.resource} is already registered on {socket}")
            # Before the dial, as the kubelet does: if the dial fails, the plugin that was there is forgotten too.
            self._clients.pop(key, None)
            self._clients[key] = connection
            self._connections.add(connection)
        cancelled = given_up if self._behaviour.register_cancels_dial else threading.Event()
        try:
            options = connection.connect(dial_limit_s=self._dial_limit_s, cancelled=cancelled)
        except PluginError as error:
            with self._history.changes:
                self._clients.pop(key, None)
                self._connections.discard(connection)
            connection.close()
            raise RefusedError(str(error)) from error
        connection.number = self._history.open_stream()
        with self._history.changes:
            record.options = options
            record.stream = connection.number
        self._devices.connected(connection, options)
        name = f"kubelet-list-{record.resource}-{connection.number}"
        reader = threading.Thread(target=self._run, args=(key, connection), name=name, daemon=True)
        with self._history.changes:
            self._readers[reader] = connection
            reader.start()

    def _run(self, key: tuple[str, str], connection: PluginConnection) -> None:
        why = connection.run(lambda raw: self._receive(connection, raw))
        with self._history.changes:
            del self._readers[threading.current_thread()]
            if self._over.is_set():
                return
            self._history.note(f"stream {connection.number} of {connection.resource} ended: {why}")
            client = self._clients.pop(key, None)
        if client is None:
            return  # forgotten by a failed registration, or stopped already: nobody tells the device manager
        client.close()
        self._devices.disconnected(client)
        with self._history.changes:
            self._connections.discard(client)

    def _receive(self, connection: PluginConnection, raw: bytes) -> None:
        self._over.wait(self._faults.list_delay_s)
        message = self._history.parse_list(connection.resource, stream=connection.number, raw=raw)
        with self._history.changes:  # who sees the list sees what it comes to
            self._history.received(message)
            if self._over.is_set():
                return
            self._devices.received(message)
        self._on_list()
