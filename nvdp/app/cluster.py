"""Builds what is read from the cluster and written to it, as the options say. Without such an option nothing of it is
imported, and an API server that is away disturbs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import TYPE_CHECKING, Protocol

import msgspec

from nvdp.config.cluster import LabelTarget
from nvdp.config.cluster_rules import is_by_label
from nvdp.config.overrides import Overrides
from nvdp.config.process import ProcessOptions
from nvdp.host.boot import find_boot_age_s
from nvdp.log import Log
from nvdp.model.cluster import ObjectPath, ObjectSeen, build_node_path
from nvdp.model.status import Status, Trouble
from nvdp.planning.start_spread import StartDelays, plan_start, starts_with_others
from nvdp.services.events import ConfigRead

if TYPE_CHECKING:
    from nvdp.app.node_writers import NodeWriters
    from nvdp.cluster.api import Api
    from nvdp.cluster.contact import Contact
    from nvdp.cluster.watching import ObjectWatch
    from nvdp.planning.node_facts import LabelFacts
    from nvdp.services.labelling import LabelService
    from nvdp.services.node_events import EventLog
    from nvdp.services.selection import SelectionService


class Service(Protocol):
    """Something with a thread, which may be started again after a crash."""

    @property
    def THREAD(self) -> str: ...  # noqa: N802 - a constant of each service

    def start(self) -> None: ...


class Counts(Protocol):
    """Who counts (metrics/)."""

    def api_request(self, verb: str, resource: str, code: str) -> None: ...

    def labels_written(self, result: str) -> None: ...


class ClusterParts(msgspec.Struct, frozen=True):
    """All that concerns the cluster. ``selection`` is None where there is one file for all, or none.

    Nothing here blocks; ``see``, ``follow`` and ``label`` may be called from any thread.
    """

    selection: SelectionService | None = None
    labels: LabelService[LabelFacts] | None = None
    writers: NodeWriters | None = None
    watches: tuple[ObjectWatch, ...] = ()
    contact: Contact | None = None

    @property
    def services(self) -> tuple[Service, ...]:
        """All that is to be started, what reads last: whoever wants to know of it is there then."""
        own: list[Service] = [part for part in (self.selection, self.labels) if part is not None]
        return (*own, *(self.writers.services if self.writers is not None else ()), *self.watches)

    def follow(self, status: Status) -> None:
        """The state of now, after every turn of the main thread."""
        if self.writers is not None:
            self.writers.follow(status)

    @property
    def label(self) -> Callable[[LabelFacts], None] | None:
        """Whom to tell what labels are made of, after every turn with a complete scan; None where none are written."""
        return self.labels.want if self.labels is not None else None

    def look(self) -> None:
        """Do now what waits to be done again."""
        for part in (self.labels, self.writers, *self.watches):
            if part is not None:
                part.look()

    def find_troubles(self) -> Iterator[Trouble]:
        """What cannot be read or written. Any thread."""
        for part in (self.contact, self.labels):
            trouble = part.trouble if part is not None else None
            if trouble is not None:
                yield trouble
        if self.writers is not None:
            yield from self.writers.find_troubles()


def build_event_log(options: ProcessOptions, log: Log) -> EventLog | None:
    """The log to use in place of ``log``, from the first line on, if there are to be events; else None."""
    if not options.events:
        return None
    from nvdp.services.node_events import EventLog  # noqa: PLC0415 - only for events

    return EventLog(log)


def build_cluster_parts(
    options: ProcessOptions,
    overrides: Overrides,
    *,
    post: Callable[[ConfigRead], None],
    log: Log,
    lines: EventLog | None,
    counts: Counts,
    has_applied: bool,
    writes: bool = True,
) -> ClusterParts:
    """What the options call for; without ``writes`` only what chooses the configuration.

    ``lines`` are those that become events, None if none are to. ``has_applied``: a configuration was applied on this
    node before, with which it goes on until it knows of another.
    """
    is_read = is_by_label(options)
    writes_node = writes and (lines is not None or bool(options.node_condition) or bool(options.startup_taint))
    target = options.write_labels if writes else LabelTarget.NONE
    if not (is_read or writes_node or target is not LabelTarget.NONE):
        return ClusterParts()
    with_others = starts_with_others(boot_age_s=find_boot_age_s(), has_applied=has_applied)
    rng = Random()  # noqa: S311 - spreads requests
    delays = plan_start(options, with_others=with_others, rng=rng)
    builder = _Builder(options, delays=delays, log=log, counts=counts)
    selection = builder.build_selection(overrides, post=post, keeps_one=has_applied) if is_read else None
    labels = builder.build_labels() if target is not LabelTarget.NONE else None
    writers = builder.build_writers(lines, rng=rng) if writes_node else None

    def see(seen: ObjectSeen) -> None:
        for told in (
            selection.see_node if selection is not None else None,
            labels.see if labels is not None else None,
            writers.see if writers is not None else None,
        ):
            if told is not None:
                told(seen)

    watches: list[ObjectWatch] = []
    if is_read or writes_node or target is LabelTarget.NODE:
        watches.append(builder.build_watch(build_node_path(options.node_name), name="node", on_seen=see))
    config_map = builder.find_config_map() if selection is not None else None
    if selection is not None and config_map is not None:
        watches.append(builder.build_watch(config_map, name="configmap", on_seen=selection.see_config_map))
    return ClusterParts(
        selection=selection, labels=labels, writers=writers, watches=tuple(watches), contact=builder.contact
    )


class _Builder:
    """Builds the parts of one process, and what they share once it is needed."""

    def __init__(self, options: ProcessOptions, *, delays: StartDelays, log: Log, counts: Counts) -> None:
        self._options = options
        self._delays = delays
        self._log = log
        self._counts = counts
        self._api: Api | None = None
        self.contact: Contact | None = None  # of those that watch

    def build_selection(
        self, overrides: Overrides, *, post: Callable[[ConfigRead], None], keeps_one: bool
    ) -> SelectionService:
        from nvdp.app.selection import build_selection  # noqa: PLC0415 - brings YAML

        return build_selection(
            self._options,
            overrides,
            post=post,
            namespace=self._namespace,
            first_delay_s=self._delays.ask_s,
            keeps_one=keeps_one,
        )

    def build_labels(self) -> LabelService[LabelFacts]:
        from nvdp.app.labelling import build_label_service  # noqa: PLC0415 - only for labels

        return build_label_service(
            self._options,
            api=self._find_api,
            namespace=self._namespace,
            first_delay_s=self._delays.labels_s,
            log=self._log,
            count=self._counts.labels_written,
        )

    def build_writers(self, lines: EventLog | None, *, rng: Random) -> NodeWriters:
        from nvdp.app.node_writers import build_node_writers  # noqa: PLC0415 - only for these

        return build_node_writers(
            self._options, api=self._find_api(), lines=lines, log=self._log, delays=self._delays, rng=rng
        )

    def build_watch(self, path: ObjectPath, *, name: str, on_seen: Callable[[ObjectSeen], None]) -> ObjectWatch:
        from nvdp.cluster.contact import Contact  # noqa: PLC0415 - only for what reads
        from nvdp.cluster.watching import ObjectWatch  # noqa: PLC0415 - as above

        if self.contact is None:
            self.contact = Contact(self._log)
        return ObjectWatch(
            self._find_api(),
            path,
            name=name,
            on_seen=on_seen,
            contact=self.contact,
            first_delay_s=self._delays.ask_s,
        )

    def find_config_map(self) -> ObjectPath | None:
        from nvdp.app.selection import find_config_map  # noqa: PLC0415 - brings YAML

        return find_config_map(self._options, namespace=self._namespace)

    @property
    def _namespace(self) -> str:
        from nvdp.cluster.namespace import find_namespace  # noqa: PLC0415 - only for the cluster

        return find_namespace(self._options.namespace)

    def _find_api(self) -> Api:
        if self._api is None:
            from nvdp.cluster.api import Api  # noqa: PLC0415 - only for who asks
            from nvdp.cluster.reaching import build_access  # noqa: PLC0415 - as above

            self._api = Api(build_access(self._options.kubeconfig), count=self._counts.api_request)
        return self._api
