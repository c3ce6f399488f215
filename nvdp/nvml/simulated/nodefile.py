"""Node files: YAML that describes a simulated machine, in full or by model names; see docs/nvml.md.

Never imports pynvml: the daemon checks a node file before it starts anything.
"""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import yaml

from nvdp.errors import HostError
from nvdp.model.inventory import ComputeMode
from nvdp.model.platforms import Platform
from nvdp.model.topology import Ancestor
from nvdp.nvml.simulated.condition import build_condition, build_default_condition
from nvdp.nvml.simulated.entries import (
    ANCESTOR_WORDS,
    ConditionEntry,
    EccKind,
    EventEntry,
    FaultEntry,
    GpuEntry,
    LinkEntry,
    MistakeError,
    NodeFile,
    find_choices,
)
from nvdp.nvml.simulated.layout import Layout, find_instance, lay_out, merge_layout
from nvdp.nvml.simulated.models import MODELS, Model
from nvdp.nvml.simulated.names import find_call_problem
from nvdp.nvml.simulated.node import (
    EventRule,
    FaultRule,
    Link,
    MigState,
    Node,
    SimulatedGpu,
    build_uuid,
    parse_error_code,
)

NODES: Final = Path(__file__).parent / "nodes"
# Every scalar stays text until a field's type says otherwise: YAML 1.1 would read 0000:17:00.0 as a number.
_LOADER: Final[Any] = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
_PCI: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_UUID: Final = re.compile(r"GPU-[\w.-]+")
_VALIDATION: Final = re.compile(r"(?P<text>.*?)(?: - at `\$\.?(?P<path>.*)`)?")

T = TypeVar("T")


def find_node_file(path_or_name: str) -> Path:
    """The file of a path, or of the name of a node that comes with nvdp. HostError names those there are."""
    path = Path(path_or_name)
    if path.exists() or "/" in path_or_name:
        return path
    named = NODES / f"{path_or_name}.yaml"
    if named.exists():
        return named
    names = ", ".join(sorted(file.stem for file in NODES.glob("*.yaml")))
    raise HostError(f"{path_or_name}: there is no such node file, and no node of that name; there are {names}")


def load_node(path_or_name: str) -> Node:
    """Read and judge a node file. Raises HostError: one line that names the file, the place and the mistake."""
    path = find_node_file(path_or_name)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise HostError(f"{path}: the node file cannot be read: {reason}") from error
    return parse_node(text, name=str(path))


def parse_node(text: str, *, name: str) -> Node:
    """The node that ``text`` describes; ``name`` stands in front of every message. Raises HostError."""
    try:
        file = msgspec.convert(yaml.load(text, Loader=_LOADER) or {}, NodeFile, strict=False)  # noqa: S506 - a base loader makes text, lists and mappings only
        return _build_node(file)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        raise HostError(f"{name}{place}: {error.problem or error.context}") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise HostError(f"{name}: not YAML: {' '.join(str(error).split())}") from error
    except msgspec.ValidationError as error:
        match = _VALIDATION.fullmatch(str(error))
        path, told = (match["path"], match["text"]) if match else (None, str(error))
        told = told.replace("Object contains unknown field", "unknown key").replace("`", "")
        choices = find_choices(path) if path else ()
        told += f"; there are {', '.join(choices)}" if choices else ""
        raise HostError(f"{name}: {f'{path}: ' if path else ''}{told}") from error
    except MistakeError as error:
        raise HostError(f"{name}: {error}") from error


def _build_node(file: NodeFile) -> Node:
    if file.platform is Platform.TEGRA and file.gpus:
        raise MistakeError("gpus: a Tegra system has no cards, but the GPU of its chip; remove them")
    gpus: list[SimulatedGpu] = []
    layouts: list[tuple[Layout, Model]] = []
    for number, entry in enumerate(file.gpus):
        model = _find_model(entry, place=f"gpus[{number}]")
        _build_gpus(entry, model, gpus, place=f"gpus[{number}]")
        layout = Layout(
            mig=entry.mig, mig_pending=entry.mig_pending, instances=entry.instances, place=f"gpus[{number}]"
        )
        layouts += [(layout, model)] * entry.count
    for number, change in enumerate(file.layouts):
        position = _resolve(change.gpu, gpus, place=f"layouts[{number}].gpu")
        before, model = layouts[position]
        layouts[position] = merge_layout(before, change, place=f"layouts[{number}]"), model
    for position, (layout, model) in enumerate(layouts):
        gpus[position] = lay_out(gpus[position], layout, model.mig_kinds, driver=file.driver.version)
    _check_unique(gpus)
    nvlinks = tuple(_build_link(entry, gpus, place=f"nvlinks[{n}]") for n, entry in enumerate(file.nvlinks))
    for number, condition in enumerate(file.conditions):
        _apply_condition(condition, gpus, nvlinks, place=f"conditions[{number}]")
    return Node(
        driver=file.driver,
        platform=file.platform,
        gpus=tuple(gpus),
        lost=frozenset(_resolve(ref, gpus, place="lost") for ref in file.lost),
        removed=frozenset(_resolve(ref, gpus, place="removed") for ref in file.removed),
        nvlinks=nvlinks,
        pcie_switches=tuple(
            frozenset(_resolve(ref, gpus, place=f"pcieSwitches[{n}]") for ref in refs)
            for n, refs in enumerate(file.pcie_switches)
        ),
        ancestors=_build_ancestors(file.ancestors, gpus),
        faults=tuple(_build_fault(entry, gpus, place=f"faults[{n}]") for n, entry in enumerate(file.faults)),
        events=tuple(_build_event(entry, gpus, place=f"events[{n}]") for n, entry in enumerate(file.events)),
    )


def _check_unique(gpus: Sequence[SimulatedGpu]) -> None:
    names = {
        "uuid": [gpu.uuid for gpu in gpus if gpu.uuid],
        "pci": [gpu.pci for gpu in gpus],
        "instance": [instance.uuid for gpu in gpus for instance in gpu.instances],
    }
    for what, values in names.items():
        for value in values:
            if values.count(value) > 1:
                raise MistakeError(f"gpus: {what} {value} is used twice")


def _build_gpus(entry: GpuEntry, model: Model, gpus: list[SimulatedGpu], *, place: str) -> None:
    if entry.count < 1:
        raise MistakeError(f"{place}.count: must be 1 or more, not {entry.count}")
    for number in range(entry.count):
        position = len(gpus)
        seed = f"{entry.model or model.product}/{position}"
        pci = _pick(entry.pci, number, entry.count, place=f"{place}.pci") or _build_pci(position)
        uuid = _pick(entry.uuid, number, entry.count, place=f"{place}.uuid")
        minor = _pick(entry.minor, number, entry.count, place=f"{place}.minor")
        compute_mode = _pick(entry.compute_mode, number, entry.count, place=f"{place}.computeMode")
        if not _PCI.fullmatch(pci.lower()):
            raise MistakeError(f"{place}.pci: {pci} is no PCI address; write it like 0000:17:00.0")
        if uuid and not _UUID.fullmatch(uuid):
            raise MistakeError(f"{place}.uuid: {uuid} is no GPU UUID; write it like {build_uuid('GPU', seed)}")
        gpus.append(
            SimulatedGpu(
                position=position,
                uuid=build_uuid("GPU", seed) if uuid is None else uuid,
                pci=pci.lower(),
                minor=position if minor is None else minor,
                product=model.product,
                memory_bytes=model.memory_bytes,
                compute_capability=model.compute_capability,
                numa=_pick(entry.numa, number, entry.count, place=f"{place}.numa"),
                mig=MigState.UNSUPPORTED,
                compute_mode=compute_mode or ComputeMode.DEFAULT,
                nvswitch_links=entry.nvswitch_links,
                processes=entry.processes,
                condition=build_default_condition(model.compute_capability, nvswitch_links=entry.nvswitch_links),
            )
        )


def _find_model(entry: GpuEntry, *, place: str) -> Model:
    """The model's facts, with what the entry itself says in their place."""
    if entry.model is None:
        if entry.product is None:
            raise MistakeError(f"{place}: model or product is missing; models are {', '.join(MODELS)}")
        return Model(
            product=entry.product,
            memory_bytes=entry.memory_bytes or 0,
            compute_capability=entry.compute_capability or "0.0",
        )
    if entry.model not in MODELS:
        near = difflib.get_close_matches(entry.model, MODELS, n=1)
        remedy = f"did you mean {near[0]}?" if near else f"models are {', '.join(MODELS)}"
        raise MistakeError(f"{place}.model: there is no model {entry.model}; {remedy}")
    model = MODELS[entry.model]
    return msgspec.structs.replace(
        model,
        product=entry.product or model.product,
        memory_bytes=model.memory_bytes if entry.memory_bytes is None else entry.memory_bytes,
        compute_capability=entry.compute_capability or model.compute_capability,
    )


def _build_link(entry: LinkEntry, gpus: Sequence[SimulatedGpu], *, place: str) -> Link:
    first, second = (_resolve(ref, gpus, place=f"{place}.gpus") for ref in entry.gpus)
    if first == second:
        raise MistakeError(f"{place}.gpus: a link is between two cards, not from {entry.gpus[0]} to itself")
    return Link(gpus=(first, second), links=entry.links)


def _build_ancestors(
    entries: Mapping[str, Sequence[Sequence[str]]], gpus: Sequence[SimulatedGpu]
) -> dict[frozenset[int], Ancestor | None]:
    """By pair of cards: each two of a group have it."""
    found: dict[frozenset[int], Ancestor | None] = {}
    for word, groups in entries.items():
        place = f"ancestors.{word}"
        if word not in ANCESTOR_WORDS:
            raise MistakeError(f"{place}: {word} is none of {', '.join(ANCESTOR_WORDS)}")
        for number, refs in enumerate(groups):
            positions = {_resolve(ref, gpus, place=f"{place}[{number}]") for ref in refs}
            for pair in map(frozenset, itertools.combinations(positions, 2)):
                if found.setdefault(pair, ANCESTOR_WORDS[word]) is not ANCESTOR_WORDS[word]:
                    raise MistakeError(f"{place}[{number}]: cards {sorted(pair)} have another one already")
    return found


def _apply_condition(entry: ConditionEntry, gpus: list[SimulatedGpu], nvlinks: Sequence[Link], *, place: str) -> None:
    position = _resolve(entry.gpu, gpus, place=f"{place}.gpu")
    gpu = gpus[position]
    links = gpu.nvswitch_links + sum(link.links for link in nvlinks if position in link.gpus)
    condition = build_condition(entry, gpu.condition, links=links, place=place)
    gpus[position] = msgspec.structs.replace(gpu, condition=condition)


def _build_event(entry: EventEntry, gpus: Sequence[SimulatedGpu], *, place: str) -> EventRule:
    if (entry.xid is None) == (entry.ecc is None):
        raise MistakeError(f"{place}: give one of xid and ecc: single or double")
    position = _resolve(entry.gpu, gpus, place=f"{place}.gpu")
    named = entry.instance
    instance = find_instance(gpus[position], named, place=f"{place}.instance") if named is not None else None
    return EventRule(position=position, xid=entry.xid, double=entry.ecc is EccKind.DOUBLE, instance=instance)


def _build_fault(entry: FaultEntry, gpus: Sequence[SimulatedGpu], *, place: str) -> FaultRule:
    if [entry.error is not None, entry.hang, entry.crash].count(True) != 1:
        raise MistakeError(f"{place}: give one of error, hang: true and crash: true")
    if problem := find_call_problem(entry.call):
        raise MistakeError(f"{place}.call: {problem}")
    code = parse_error_code(entry.error) if entry.error is not None else None
    if entry.error is not None and code is None:
        raise MistakeError(f"{place}.error: {entry.error} is no NVML error; write it like GpuIsLost or 15")
    position = None if entry.gpu is None else _resolve(entry.gpu, gpus, place=f"{place}.gpu")
    instance = None
    if entry.instance is not None:
        if position is None:
            raise MistakeError(f"{place}.instance: say of which gpu")
        instance = find_instance(gpus[position], entry.instance, place=f"{place}.instance").uuid
    return FaultRule(
        call=entry.call, position=position, instance=instance, code=code, hang=entry.hang, crash=entry.crash
    )


def _resolve(ref: str, gpus: Sequence[SimulatedGpu], *, place: str) -> int:
    """The position of a card that is given by position, UUID or PCI address."""
    for gpu in gpus:
        if ref in {str(gpu.position), gpu.uuid} or ref.lower() == gpu.pci:
            return gpu.position
    raise MistakeError(f"{place}: there is no card {ref}; give its place in the file, its UUID or its PCI address")


def _pick(value: T | tuple[T | None, ...] | None, number: int, count: int, *, place: str) -> T | None:
    """The value of one card of an entry."""
    if not isinstance(value, tuple):
        if value is not None and count > 1 and place.endswith((".uuid", ".pci", ".minor")):
            raise MistakeError(f"{place}: {count} cards cannot share it; give a list of {count}")
        return value
    if len(value) != count:
        raise MistakeError(f"{place}: {len(value)} values for {count} cards")
    return value[number]


def _build_pci(position: int) -> str:
    domain, slot = divmod(position, 29)
    return f"{domain:04x}:{0x10 + 8 * slot:02x}:00.0"
