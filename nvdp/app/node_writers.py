"""Builds what writes to the own Node, as the options say: events, the condition, the removal of a start-up taint."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import TYPE_CHECKING

import msgspec

from nvdp.cluster.node_events import NodeEvents
from nvdp.cluster.node_status import NodeConditionWriter, NodeTaintRemover, format_time
from nvdp.config.process import ProcessOptions
from nvdp.log import Log
from nvdp.model.cluster import ObjectSeen
from nvdp.model.status import Status, Trouble
from nvdp.planning.start_spread import StartDelays
from nvdp.services.node_events import EventLog, EventService
from nvdp.services.node_status import NodeStatusService
from nvdp.services.node_writer import NodeWriter
from nvdp.services.startup_taint import StartupTaintService

if TYPE_CHECKING:
    from nvdp.cluster.api import Api


class NodeWriters(msgspec.Struct, frozen=True):
    """The services, each of which is started by its owner. ``see``, ``follow`` and ``look`` do not block."""

    services: tuple[NodeWriter, ...] = ()

    def see(self, seen: ObjectSeen) -> None:
        """The own Node as it is now: from whoever watches it."""
        for service in self.services:
            service.see(seen)

    def follow(self, status: Status) -> None:
        """The state of now: from the main thread, after every turn."""
        for service in self.services:
            service.follow(status)

    def look(self) -> None:
        """Try again now what waits for another try."""
        for service in self.services:
            service.look()

    def find_troubles(self) -> Iterator[Trouble]:
        """What cannot be written. Any thread."""
        yield from (service.trouble for service in self.services if service.trouble is not None)


def build_node_writers(
    options: ProcessOptions, *, api: Api, lines: EventLog | None, log: Log, delays: StartDelays, rng: Random
) -> NodeWriters:
    """The services that the options call for; ``lines`` become events, ``log`` tells of us."""
    node_name = options.node_name
    services: list[NodeWriter] = []
    if lines is not None:
        writer = NodeEvents(api, node_name=node_name, instance=options.pod_name)
        services.append(
            EventService(lines, writer, node_name=node_name, log=log, rng=rng, first_delay_s=delays.events_s)
        )
    if options.node_condition:
        services.append(
            NodeStatusService(
                NodeConditionWriter(api, node_name=node_name, condition_type=options.node_condition),
                condition_type=options.node_condition,
                format_time=format_time,
                log=log,
                rng=rng,
                first_delay_s=delays.state_s,
            )
        )
    if options.startup_taint:
        services.append(
            StartupTaintService(
                NodeTaintRemover(api, node_name=node_name),
                key=options.startup_taint,
                node_name=node_name,
                log=log,
                rng=rng,
                first_delay_s=delays.state_s,
            )
        )
    return NodeWriters(tuple(services))
