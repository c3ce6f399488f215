"""Whether the container runtime is configured for the way in which containers are given their devices.

Two files decide. containerd drops CDI devices without a word while ``enable_cdi`` is off, which it is up to version 1.7
unless the file says otherwise; those of an annotation as well, which the NVIDIA runtime may heed instead. The NVIDIA
runtime takes a list of devices from a container's environment, from its mounts, or from neither; from the environment
it takes it of any image as well, asked for or not. CRI-O needs nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from nvdp.model.listing import CDI_STRATEGIES, DeviceListStrategy

_CRI_PLUGIN: Final = {1: "cri", 2: "io.containerd.grpc.v1.cri", 3: "io.containerd.cri.v1.runtime"}
_CDI_BY_DEFAULT: Final = 3  # files of this version are read by containerd 2 and newer, where CDI is on
_ENVIRONMENT: Final = "accept-nvidia-visible-devices-envvar-when-unprivileged"
_MOUNTS: Final = "accept-nvidia-visible-devices-as-volume-mounts"
_RESTART: Final = "restart containerd"
# Unprivileged, nvdp's own container has the driver by the very variable.
_OWN_DRIVER: Final = "once nvdp has its own driver without it, by overlays/cdi or overlays/privileged"


class RuntimeFile(msgspec.Struct, frozen=True, kw_only=True):
    """One file of a runtime's configuration: its path on the host, and what it holds or why that cannot be told."""

    path: str
    content: Mapping[str, Any] = {}
    problem: str = ""


class RuntimeFiles(msgspec.Struct, frozen=True, kw_only=True):
    """What could be read. ``containerd`` is its file and those that it imports, in the order in which they count.

    ``out_of_sight`` are imports that may exist and cannot be seen from here.
    """

    containerd: tuple[RuntimeFile, ...] = ()
    out_of_sight: tuple[str, ...] = ()
    nvidia: RuntimeFile | None = None


class Unsuited(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that does not fit: the file on the host, the key, what happens, and what to do about it."""

    file: str
    key: str
    text: str
    remedy: str


def judge_runtime(files: RuntimeFiles, strategies: Iterable[DeviceListStrategy]) -> tuple[Unsuited, ...]:
    """What does not fit these device-list strategies. Nothing is said about files that are not there."""
    chosen = frozenset(strategies)
    return (*_judge_containerd(files, chosen), *_judge_nvidia(files.nvidia, chosen))


def _judge_containerd(files: RuntimeFiles, chosen: frozenset[DeviceListStrategy]) -> Iterable[Unsuited]:
    if CDI_STRATEGIES.isdisjoint(chosen) or not files.containerd:
        return
    for file in files.containerd:
        if file.problem:
            yield _unreadable(file, "enable_cdi", "whether containerd heeds CDI devices")
            return
    file, section, settings = _find_cri(files.containerd)
    key = f'plugins."{section}".enable_cdi'
    if settings.get("enable_cdi", _find_version(file) >= _CDI_BY_DEFAULT) or files.out_of_sight:
        return
    written = "enable_cdi" in settings
    why = f"{key} is {'false' if written else 'not set'} in {file.path}"
    effect = "pods start without their GPU, and no error says so"
    if DeviceListStrategy.CDI_CRI not in chosen and files.nvidia is not None:
        effect += ", unless the NVIDIA runtime heeds the annotation"
    yield Unsuited(
        file=file.path,
        key=key,
        text=f"containerd drops CDI devices: {why}; {effect}"
        if written
        else f"containerd up to 1.7 drops CDI devices: {why}; {effect} (containerd 2 heeds them)",
        remedy=f"set {key} = true in {file.path} on the node and {_RESTART}",
    )


def _find_cri(files: tuple[RuntimeFile, ...]) -> tuple[RuntimeFile, str, Mapping[str, Any]]:
    """The plugin's section that counts, its name, and its file: the last one takes the place of all others as a whole.

    Without any it is the first file's, empty.
    """
    for file in reversed(files):
        plugins = file.content.get("plugins")
        section = _CRI_PLUGIN.get(_find_version(file), "")
        settings = plugins.get(section) if isinstance(plugins, dict) else None
        if isinstance(settings, dict):
            return file, section, settings
    return files[0], _CRI_PLUGIN.get(_find_version(files[0]), _CRI_PLUGIN[_CDI_BY_DEFAULT]), {}


def _find_version(file: RuntimeFile) -> int:
    version = file.content.get("version", 1)
    return version if isinstance(version, int) else 1


def _judge_nvidia(file: RuntimeFile | None, chosen: frozenset[DeviceListStrategy]) -> Iterable[Unsuited]:
    if file is None:
        return
    if file.problem:
        yield _unreadable(file, _ENVIRONMENT, "whether pods can give themselves GPUs")
        return
    by_mounts = file.content.get(_MOUNTS) is True
    by_environment = file.content.get(_ENVIRONMENT) is not False
    if DeviceListStrategy.VOLUME_MOUNTS in chosen and not by_mounts:
        yield Unsuited(
            file=file.path,
            key=_MOUNTS,
            text=f"the NVIDIA runtime heeds no devices given by volume-mounts: {_MOUNTS} is not true in {file.path}; "
            "containers with a GPU fail to start, or start without it",
            remedy=f"set {_MOUNTS} = true in {file.path} on the node",
        )
    if by_environment:
        cure = f"set {_ENVIRONMENT} = false in {file.path} on the node, {_OWN_DRIVER}"
        if DeviceListStrategy.ENVVAR in chosen:
            cure = f"first set deviceListStrategy to cdi-cri, or volume-mounts, then {cure}"
        yield Unsuited(
            file=file.path,
            key=_ENVIRONMENT,
            text="any pod gets all GPUs that its image asks for by NVIDIA_VISIBLE_DEVICES: "
            f"{_ENVIRONMENT} is not false in {file.path}",
            remedy=cure,
        )
    elif chosen == {DeviceListStrategy.ENVVAR}:
        yield Unsuited(
            file=file.path,
            key=_ENVIRONMENT,
            text=f"unprivileged containers get no GPU by envvar: {_ENVIRONMENT} is false in {file.path}",
            remedy="set deviceListStrategy to cdi-cri, or to volume-mounts where the runtime accepts these",
        )


def _unreadable(file: RuntimeFile, key: str, question: str) -> Unsuited:
    return Unsuited(
        file=file.path,
        key=key,
        text=f"{file.path} cannot be read, so that nobody knows {question}: {file.problem}",
        remedy=f"correct {file.path} on the node",
    )
