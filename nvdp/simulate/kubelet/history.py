"""Everything that happened at the twin since it was made, over its restarts; and the one lock of the twin."""

from __future__ import annotations

import collections
import threading
import time

from nvdp.kubelet.proto import deviceplugin_v1beta1_pb2 as deviceplugin
from nvdp.simulate.kubelet.records import Device, ListMessage, PluginCall, Registration

_JOURNAL_LINES = 200


class History:
    """Registrations, lists and calls, in order. ``changes`` guards all state of the twin and is notified with it.

    Any thread. No method blocks on anything but that lock, which nobody holds during a call to a plugin.
    """

    def __init__(self) -> None:
        self.changes = threading.Condition()
        self.registrations: list[Registration] = []
        self.calls: list[PluginCall] = []
        self.messages: dict[str, list[ListMessage]] = {}
        self._streams = 0
        self._journal: collections.deque[str] = collections.deque(maxlen=_JOURNAL_LINES)
        self._began = time.monotonic()

    def note(self, text: str) -> None:
        """Add a line to the kubelet's journal, which failing tests show."""
        with self.changes:
            self._journal.append(f"{time.monotonic() - self._began:9.3f} {text}")
            self.changes.notify_all()

    @property
    def journal(self) -> tuple[str, ...]:
        with self.changes:
            return tuple(self._journal)

    def open_stream(self) -> int:
        """The number of a new stream."""
        with self.changes:
            self._streams += 1
            return self._streams

    def registered(self, request: deviceplugin.RegisterRequest) -> Registration:
        """Record a Register call that has just arrived."""
        record = Registration(
            at=time.monotonic(),
            version=request.version,
            endpoint=request.endpoint,
            resource=request.resource_name,
            request_options=request.options,
        )
        with self.changes:
            self.registrations.append(record)
            self.note(f"Register {record.resource} on {record.endpoint}")
        return record

    def called(self, call: PluginCall) -> None:
        """Record a call to a plugin that has ended."""
        with self.changes:
            self.calls.append(call)
            outcome = call.error or f"{len(call.answer or call.ids)} devices"
            self.note(f"{call.method} {call.resource}: {outcome} in {call.seconds:.4f}s")

    def parse_list(self, resource: str, *, stream: int, raw: bytes) -> ListMessage:
        """A list that has come. One with the same bytes as the list before shares its devices: reconnects cost no
        memory.
        """
        at = time.monotonic()
        with self.changes:
            previous = next(reversed(self.messages.get(resource, ())), None)
        if previous is None or previous.raw != raw:
            return ListMessage(at, resource, stream, raw, parse_devices(raw))
        return ListMessage(at, resource, stream, previous.raw, previous.devices)

    def received(self, message: ListMessage) -> None:
        """Record a list."""
        counts = f"{len(message.devices)} devices, {len(message.healthy)} Healthy"
        with self.changes:
            self.messages.setdefault(message.resource, []).append(message)
            self.note(f"list {message.resource}: {counts}, stream {message.stream}")


def parse_devices(raw: bytes) -> tuple[Device, ...]:
    """The devices of an encoded ListAndWatchResponse."""
    return tuple(
        Device(device.id, device.health, tuple(node.id for node in device.topology.nodes))
        if device.HasField("topology")
        else Device(device.id, device.health)
        for device in deviceplugin.ListAndWatchResponse.FromString(raw).devices
    )
