"""Gathers what ``nvdp plan`` judges a configuration by, on this node or from a node file, and has it judged.

It only looks: nothing is registered, written or moved aside. What cannot be learned is a note; only without GPUs there
is no plan, and without what is advertised now no comparison.
"""

from __future__ import annotations

import enum
import platform
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from nvdp.app.gpus import scan_once, scan_this_node
from nvdp.config.doubts import find_doubts
from nvdp.config.process import ProcessOptions
from nvdp.config.schema import Config
from nvdp.errors import ConfigError, HostError, KubeletError, NvmlError
from nvdp.host.state import State, read_state
from nvdp.kubelet.checkpoint import CHECKPOINT_NAME, load_checkpoint, load_registered
from nvdp.log import silence_libraries
from nvdp.model.health import Ailment
from nvdp.model.held import Held, Source
from nvdp.model.inventory import Gpu
from nvdp.model.reasons import Cause
from nvdp.model.status import DeviceStatus, Status
from nvdp.planning.cdi_wish import build_wish
from nvdp.planning.changes import Changes, Running, build_running, build_running_of_ids, find_changes
from nvdp.planning.comparison import Comparison, compare
from nvdp.planning.devices import list_instances
from nvdp.planning.means import Means
from nvdp.planning.preview import Node, Preview, build_preview, find_refusal
from nvdp.planning.provision import uses_cdi
from nvdp.services.events import GpusScanned
from nvdp.services.steering import build_source

if TYPE_CHECKING:
    from nvdp.kubelet.podresources import PodResourcesClient

_DAEMON_LIMIT_S: Final = 2.0
_KUBELET_LIMIT_S: Final = 5.0
_SETTLING_S: Final = 30.0
_SPECS_UNSEEN: Final = (
    "flags.plugin.deviceListStrategy: whether the CDI specs can be written, the node alone can tell; nvdp plan there"
    " looks"
)


class Teller(enum.Enum):
    """Who said what is advertised now."""

    NVDP = "nvdp"
    POD_RESOURCES = "pod-resources"
    CHECKPOINT = "checkpoint"


class Outlook(msgspec.Struct, frozen=True, kw_only=True):
    """A preview with all that was learned around it.

    ``changes`` is None for a node file. ``told_by`` is None where nobody says what is advertised now. ``notes`` say
    what could not be learned, and why.
    """

    node_name: str
    preview: Preview
    changes: Changes | None = None
    told_by: Teller | None = None
    comparison: Comparison | None = None
    notes: tuple[str, ...] = ()


def foresee_offline(config: Config, options: ProcessOptions, node_file: Path) -> Outlook:
    """What the machine of a node file would offer. Blocks while its child starts, half a second.

    Raises HostError for a node file that is no good, NvmlError for a machine whose driver does not answer, ConfigError
    if the daemon would refuse the configuration there.
    """
    from nvdp.nvml.simulated.nodefile import load_node  # noqa: PLC0415 - brings yaml

    load_node(str(node_file))
    scanned = scan_once(msgspec.structs.replace(options, simulated_node=node_file), build_source(config))
    assert scanned.inventory is not None
    # Whether it has device nodes and channels only a node can tell.
    means = Means(imex_channels=config.imex.channel_ids)
    node = Node(inventory=scanned.inventory, ailments=scanned.ailments, means=means, doubts=_list_doubts(options))
    return Outlook(
        node_name=node_file.stem, preview=_judge(config, node), notes=(_SPECS_UNSEEN,) if uses_cdi(config) else ()
    )


def foresee_live(config: Config, options: ProcessOptions, *, compares: bool) -> Outlook:
    """What this node would offer, and what that changes. Blocks while driver, daemon and kubelet answer.

    With ``compares`` also ID by ID against what the kubelet has now, whoever advertises it. Raises NvmlError if the
    driver cannot be asked, ConfigError if the daemon would refuse the configuration, and HostError if there is nothing
    to compare with.
    """
    scanned = _scan_this_node(config, options)
    assert scanned.inventory is not None
    notes: list[str] = []
    state = _read_state(options, notes)
    status = _ask_daemon(options, [] if compares else notes)
    unanswered: list[str] = []
    view = _ask_kubelet(options, unanswered, wants_advertised=compares or status is None)
    if compares and view.advertised is None:
        raise HostError(f"nothing to compare with: {'; '.join(dict.fromkeys(unanswered))}")
    node = Node(
        inventory=scanned.inventory,
        ailments=scanned.ailments,
        pins=state.pins,
        names=frozenset(state.resources),
        indices=state.indices,
        parents=state.parents,
        by_mps=state.by_mps,
        held=view.held,
        means=Means(missing_nodes=scanned.missing_nodes, imex_channels=scanned.imex_channels),
        in_force=state.config.hash if state.config is not None else "",
        doubts=_list_doubts(options),
    )
    node = node if status is None else _learn(node, status)
    preview = _judge(config, node)
    if uses_cdi(config):
        preview = build_preview(config, _look_at_specs(config, options, node, preview))
    if preview.plan.grants.resources:
        from nvdp.app.handing import foresee_daemons  # noqa: PLC0415 - only where there are to be any

        doubts = (*preview.node.doubts, *foresee_daemons(options, preview.plan.grants))
        preview = build_preview(config, msgspec.structs.replace(preview.node, doubts=doubts))
    running, told_by = _find_running(preview, status, view)
    return Outlook(
        node_name=platform.node(),
        preview=preview,
        changes=find_changes(preview, running),
        told_by=told_by,
        comparison=compare(preview, view.advertised or {}) if compares else None,
        notes=tuple(dict.fromkeys((*notes, *unanswered))),
    )


class _View(msgspec.Struct, frozen=True, kw_only=True):
    """What the kubelet tells: who holds what, and the IDs of Healthy devices by resource, None if it does not."""

    held: Held
    advertised: Mapping[str, frozenset[str]] | None = None
    teller: Teller | None = None


def _scan_this_node(config: Config, options: ProcessOptions) -> GpusScanned:
    try:
        return scan_this_node(options, build_source(config))
    except NvmlError as error:
        remedy = "nvdp plan --node FILE with what nvdp devices --export prints on a node, or --node dgx-h100"
        text = f"{error}. Without a driver: {remedy}"
        raise NvmlError(text, kind=error.kind, call=error.call) from error


def _judge(config: Config, node: Node) -> Preview:
    refusal = find_refusal(config, node)
    if refusal is not None:
        raise ConfigError((refusal,))
    return build_preview(config, node)


def _look_at_specs(config: Config, options: ProcessOptions, node: Node, preview: Preview) -> Node:
    """The node with what the specs for this preview would come to there."""
    from nvdp.app.handing import foresee_specs  # noqa: PLC0415 - only where there are to be any

    ailments, means = preview.node.ailments, node.means
    wish = build_wish(config, preview.plan, node.inventory, ailments=ailments, means=means)
    foreseen = foresee_specs(options, wish)
    return msgspec.structs.replace(
        node,
        means=msgspec.structs.replace(means, specs=foreseen.state),
        doubts=(*node.doubts, *filter(None, [foreseen.hook_problem])),
    )


def _list_doubts(options: ProcessOptions) -> tuple[str, ...]:
    return tuple(text for _, text in find_doubts(options))


def _learn(node: Node, status: Status) -> Node:
    """The node with what the daemon knows beyond one scan: who ails, and who has vanished and is still listed."""
    ailing = {one.uuid: one for one in map(_uncordon, status.devices) if one.cause is not None}
    known = {gpu.uuid for gpu in node.inventory.gpus}
    vanished = (
        Gpu(uuid=one.uuid, index=one.index, pci=one.pci or None, product=one.product or None)
        for one in ailing.values()
        if one.cause is Cause.VANISHED and one.uuid not in known and not one.parent_uuid
    )
    inventory = msgspec.structs.replace(node.inventory, gpus=(*node.inventory.gpus, *vanished))
    here = {gpu.uuid for gpu in inventory.gpus} | {one.uuid for gpu in inventory.gpus for one in list_instances(gpu)}
    told = {
        one.uuid: Ailment(cause=one.cause, text=one.text, since=one.changed_at)
        for one in ailing.values()
        if one.cause is not None and one.uuid in here
    }
    return msgspec.structs.replace(
        node,
        inventory=inventory,
        ailments={**told, **node.ailments},
        names=node.names.union(one.name for one in status.resources),
    )


def _uncordon(device: DeviceStatus) -> DeviceStatus:
    """Without a cordon, which the configuration that is judged may not have."""
    if device.cause is not Cause.CORDONED:
        return device
    return msgspec.structs.replace(device, cause=device.fault, text=device.fault_text)


def _read_state(options: ProcessOptions, notes: list[str]) -> State:
    try:
        return read_state(options.state_dir)
    except HostError as error:
        notes.append(f"{error}; references by index mean what has the index now")
        return State()


def _ask_daemon(options: ProcessOptions, notes: list[str]) -> Status | None:
    from nvdp.http.control import load_status  # noqa: PLC0415 - brings the standard library's HTTP

    try:
        return load_status(options.run_dir, timeout_s=_DAEMON_LIMIT_S)
    except HostError as error:
        notes.append(str(error))
        return None


def _ask_kubelet(options: ProcessOptions, notes: list[str], *, wants_advertised: bool) -> _View:
    """Its PodResources are asked, else its checkpoint is read."""
    silence_libraries()
    from nvdp.kubelet.podresources import PodResourcesClient  # noqa: PLC0415 - brings grpc

    checkpoint = options.kubelet_socket.parent / CHECKPOINT_NAME
    client = PodResourcesClient(options.pod_resources_socket)
    try:
        held = _find_held(client, checkpoint, notes)
        if held.source is Source.POD_RESOURCES:
            _note_young(options.pod_resources_socket, notes)
        if not wants_advertised:
            return _View(held=held)
        advertised, teller = _find_advertised(client, checkpoint, notes)
        return _View(held=held, advertised=advertised, teller=teller)
    finally:
        client.close()


def _find_held(client: PodResourcesClient, checkpoint: Path, notes: list[str]) -> Held:
    asked_at = time.monotonic()
    try:
        found = client.list(_KUBELET_LIMIT_S)
        return Held(source=Source.POD_RESOURCES, requested_at=asked_at, holdings=found)
    except KubeletError as error:
        notes.append(str(error))
    try:
        return Held(source=Source.CHECKPOINT, requested_at=asked_at, holdings=load_checkpoint(checkpoint))
    except HostError as error:
        notes += [str(error), "which pods hold GPUs is unknown: what waits for them is not shown"]
        return Held(source=Source.CHECKPOINT, requested_at=asked_at)


def _find_advertised(
    client: PodResourcesClient, checkpoint: Path, notes: list[str]
) -> tuple[Mapping[str, frozenset[str]] | None, Teller | None]:
    try:
        return client.list_healthy(_KUBELET_LIMIT_S), Teller.POD_RESOURCES
    except KubeletError as error:
        notes.append(str(error))
    try:
        return load_registered(checkpoint), Teller.CHECKPOINT
    except HostError as error:
        notes.append(str(error))
        return None, None


def _note_young(socket: Path, notes: list[str]) -> None:
    """A kubelet that has just started answers before it knows its pods."""
    try:
        age_s = time.time() - socket.stat().st_ctime
    except OSError:
        return
    if 0 <= age_s < _SETTLING_S:
        notes.append(f"the kubelet started {age_s:.0f}s ago and may not name all pods yet; look again in a while")


def _find_running(preview: Preview, status: Status | None, view: _View) -> tuple[Running | None, Teller | None]:
    """By the daemon's word, which also knows what is Unhealthy; else by the kubelet's."""
    if status is not None:
        return build_running(status), Teller.NVDP
    if view.advertised is not None:
        return build_running_of_ids(view.advertised, preview), view.teller
    return None, None
