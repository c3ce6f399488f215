"""The CDI specs that give a node's devices to containers: what stands in each file. Pure.

Contents follow NVIDIA's plugin and toolkit, so that containers find what they know; beyond them, the GPUs have a device
``all``, and each its UUID as a name whatever names pods are given.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

from nvdp.model.cdi import ALL, CdiClass, CdiDevice, CdiWish
from nvdp.model.cdi_found import Found
from nvdp.model.cdi_spec import NAME_PATTERN, NO_EDITS, CdiSpec, SpecDevice, SpecEdits, SpecMount
from nvdp.model.driver_files import DriverFile, Link
from nvdp.planning.cdi_edits import SOCKET_OPTIONS, build_edits, build_mount, is_missing, subtract
from nvdp.planning.cdi_hooks import build_common_hooks, build_link_hooks
from nvdp.planning.cdi_version import find_version

# In the edits of every class: NVIDIA's runtime must not add the GPUs that an image asks for by this variable.
_VOID: Final = "NVIDIA_VISIBLE_DEVICES=void"
_LIBCUDA_DIR: Final = "NVIDIA_CTK_LIBCUDA_DIR"
_NO_SOCKETS: Final = "disable-ipc-discoverer"
_CHANNEL: Final = "/dev/nvidia-caps-imex-channels/channel{}"
_UDEV: Final = "/run/udev"


class _Content(msgspec.Struct, frozen=True, kw_only=True):
    """One class: what all of its devices share, each by its names, and why some that should be there are not."""

    common: SpecEdits
    devices: Mapping[str, SpecEdits]
    problems: tuple[str, ...] = ()


def build_specs(wish: CdiWish, found: Found) -> dict[str, CdiSpec]:
    """The spec of each file name; a class with nothing to give has no file. The same inputs give the same bytes.

    What must be kept stays as it was last written, word for word, unless its device is there to be written anew; so
    does what is wished, was there, and could not be given now. Not so where its device nodes are another device's by
    now: a container that fails to start does less harm than one with what another pod has. ``wish.enabled`` is not
    looked at.
    """
    specs = {}
    for cdi_class in CdiClass:
        content = _build_content(cdi_class, wish, found)
        kept = {device.name: device for device in _list_kept(cdi_class, wish, found)}
        kept = _drop_usurpers(kept, wish) if cdi_class is CdiClass.GPU else kept
        built = {name: SpecDevice(name=name, container_edits=edits) for name, edits in content.devices.items()}
        devices = kept | built
        if devices:
            spec = CdiSpec(
                cdi_version="",
                kind=cdi_class.kind,
                devices=tuple(devices[name] for name in sorted(devices)),
                container_edits=content.common,
            )
            specs[cdi_class.file_name] = msgspec.structs.replace(spec, cdi_version=find_version(spec))
    return specs


def find_problems(wish: CdiWish, found: Found) -> tuple[str, ...]:
    """One line for each device of the wish that the specs cannot give, and why.

    Nothing of features that the node never had: containers do without them (planning/provision.py tells it).
    """
    return tuple(text for cdi_class in CdiClass for text in _build_content(cdi_class, wish, found).problems)


def _build_content(cdi_class: CdiClass, wish: CdiWish, found: Found) -> _Content:
    if cdi_class is CdiClass.GPU:
        return _build_gpus(wish, found)
    if cdi_class is CdiClass.IMEX_CHANNEL:
        return _build_channels(wish, found)
    return _build_feature(cdi_class, wish, found)


def _build_gpus(wish: CdiWish, found: Found) -> _Content:
    common = _build_common(wish, found)
    given: list[CdiDevice] = []
    devices: dict[str, SpecEdits] = {}
    problems: list[str] = []
    for device in wish.devices:
        edits = subtract(_build_device(wish, found, [device]), common)
        problem = _find_problem(device, edits, found, taken=devices)
        if problem:
            problems.append(problem)
        else:
            given.append(device)
            devices |= dict.fromkeys(device.names, edits)
    if given:
        devices[ALL] = subtract(_build_device(wish, found, given), common)
    return _Content(common=common, devices=devices, problems=tuple(problems))


def _find_problem(device: CdiDevice, edits: SpecEdits, found: Found, *, taken: Iterable[str]) -> str:
    """Why the device cannot be in the spec: one that runtimes refuse would take all others with it. Empty if it can."""
    who = device.names[0] if device.names else "a device without a name"
    missing = [path for path in device.nodes if is_missing(found, path)]
    if missing:
        return f"{who}: not in the CDI specs, as this node has no {', '.join(missing)} (nvidia-modprobe creates it)"
    if edits == NO_EDITS:
        return f"{who}: not in the CDI specs, as no device node of its own is known"
    unfit = [name for name in device.names if name in taken or not re.search(NAME_PATTERN, name)]
    if unfit or not device.names:
        return f"{who}: not in the CDI specs, as {', '.join(unfit) or 'it'} is no name that CDI can have for it alone"
    return ""


def _build_device(wish: CdiWish, found: Found, devices: Iterable[CdiDevice]) -> SpecEdits:
    """What a container gets that has these devices: their nodes, and those by which they draw, with their links."""
    nodes: list[str] = [*found.extra_nodes]
    links: list[Link] = []
    for device in devices:
        display = found.displays.get(device.pci) if device.pci is not None else None
        nodes += (*device.nodes, *(display.nodes if display else ()))
        links += display.links if display else ()
    return build_edits(wish, found, nodes=nodes, hooks=build_link_hooks(wish, links))


def _build_common(wish: CdiWish, found: Found) -> SpecEdits:
    """The driver itself, for every container that has one of its devices."""
    driver = found.driver
    where = (f"{_LIBCUDA_DIR}={':'.join(driver.cuda_dirs)}",) if driver.cuda_dirs else ()
    return build_edits(
        wish,
        found,
        env=(_VOID, *where),
        nodes=found.control_nodes,
        mounts=_list_mounts(wish, found),
        hooks=build_common_hooks(wish, driver),
    )


def _list_mounts(wish: CdiWish, found: Found) -> Iterator[SpecMount]:
    driver = found.driver
    for file in (*driver.libraries, *driver.binaries, *driver.firmware, *driver.configs):
        yield build_mount(wish.driver_root, file)
    if _NO_SOCKETS not in wish.feature_flags:
        for socket in driver.sockets:
            yield build_mount(wish.driver_root, socket, SOCKET_OPTIONS)


def _build_channels(wish: CdiWish, found: Found) -> _Content:
    paths = {str(number): _CHANNEL.format(number) for number in wish.imex_channels}
    return _Content(
        common=SpecEdits(env=(_VOID,)),
        devices={
            name: build_edits(wish, found, nodes=[path]) for name, path in paths.items() if not is_missing(found, path)
        },
        problems=tuple(
            f"IMEX channel {name}: not in the CDI specs, as this node has no {path}"
            for name, path in paths.items()
            if is_missing(found, path)
        ),
    )


def _build_feature(cdi_class: CdiClass, wish: CdiWish, found: Found) -> _Content:
    """One device with all nodes of the feature; nothing where it is off, or where its driver is not there."""
    common = SpecEdits(env=(_VOID,))
    if cdi_class not in wish.features:
        return _Content(common=common, devices={})
    mounts: list[SpecMount] = []
    if cdi_class is CdiClass.GDS:
        # What the host's udev knows lies beside its devices, the configuration beside the driver.
        mounts = [
            build_mount(wish.dev_root if path == _UDEV else wish.driver_root, DriverFile(path, path))
            for path in found.gds_files
        ]
    edits = build_edits(wish, found, nodes=found.features.get(cdi_class, ()), mounts=mounts)
    if edits.device_nodes:
        return _Content(common=common, devices={ALL: edits})
    gone = f"{cdi_class.value}: the CDI specs have it as it was, and none of its device nodes is on this node any more"
    return _Content(common=common, devices={}, problems=(gone,) if cdi_class in found.prior else ())


def _list_kept(cdi_class: CdiClass, wish: CdiWish, found: Found) -> Iterator[SpecDevice]:
    """What stays of the spec on disk: whatever a container that is started again may ask for."""
    prior = found.prior.get(cdi_class)
    if prior is None:
        return
    wished = {
        CdiClass.GPU: {*wish.keep, *(name for device in wish.devices for name in device.names)},
        CdiClass.IMEX_CHANNEL: set(map(str, wish.imex_channels)),
    }.get(cdi_class, {ALL} if cdi_class in wish.features else set())
    for device in prior.devices:
        if device.name in wished or cdi_class in wish.keep_classes:
            yield device


def _drop_usurpers(kept: Mapping[str, SpecDevice], wish: CdiWish) -> dict[str, SpecDevice]:
    """Those that give no device of the wish under a name that is not its own.

    Minor numbers are dealt anew when the driver is loaded, and those of MIG devices when they are made.
    """
    owners = {frozenset(device.nodes): frozenset(device.names) for device in wish.devices if device.nodes}
    return {
        name: device for name, device in kept.items() if name in owners.get(_find_own_nodes(device), frozenset({name}))
    }


def _find_own_nodes(device: SpecDevice) -> frozenset[str]:
    """The device nodes without those for drawing."""
    paths = (node.path for node in device.container_edits.device_nodes)
    return frozenset(path for path in paths if not path.startswith("/dev/dri/"))
