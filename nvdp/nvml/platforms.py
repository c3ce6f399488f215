"""Systems on which all that computes is one device: how they are told from others, and what they answer.

Runs in the child. The answers are those of ``scan.GpuReader``, with one GPU in them at most. No events, no vitals and
no processes are told of it.
"""

# ruff: noqa: PTH110, PTH123 - pathlib would cost the child a tenth of its start

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import Final, Protocol

import pynvml

from nvdp.errors import NvmlError
from nvdp.model.inventory import ComputeMode, Driver, Fault, Gpu, GpuRef, Inventory, MigMode
from nvdp.model.platforms import TEGRA_UUID, WSL_UUID, Platform
from nvdp.nvml.asking import Asker, build_fault, read_driver
from nvdp.nvml.frames import ComputeModeSet, Probed, ProcessesRead, Scanned
from nvdp.nvml.kinds import NvmlErrorKind

_TEGRA_RELEASE: Final = "etc/nv_tegra_release"
_CHIP_FAMILY: Final = "sys/devices/soc0/family"
_FAMILY: Final = "tegra"
# What NVML's names of GPUs have in them that are part of a Tegra chip.
_INTEGRATED_MARKS: Final = ("(nvgpu)", "NVIDIA Thor")
_PRODUCT: Final = "tegra"  # what patterns of the file match, as with NVIDIA's plugin
_UNSETTABLE: Final = "this system has no compute modes that could be set"
_UNTOLD: Final = "this system does not tell which processes use its GPUs"


class Reader(Protocol):
    """What answers the commands of one session; see ``scan.GpuReader``."""

    def scan(self, skip: Collection[GpuRef], *, ancestors: bool = True) -> Scanned: ...

    def probe(self, wanted: GpuRef, skip: Collection[GpuRef]) -> Probed: ...

    def read_processes(self, wanted: GpuRef, skip: Collection[GpuRef]) -> ProcessesRead: ...

    def set_compute_mode(self, wanted: GpuRef, mode: ComputeMode, skip: Collection[GpuRef]) -> ComputeModeSet: ...


def has_tegra_files(root: str) -> bool:
    """Whether the files under ``root`` are those of a Tegra system. What cannot be read is not there."""
    if os.path.exists(os.path.join(root, _TEGRA_RELEASE)):  # noqa: PTH118 - as above
        return True
    try:
        with open(os.path.join(root, _CHIP_FAMILY), errors="replace") as file:  # noqa: PTH118 - as above
            return file.read(len(_FAMILY)).lower() == _FAMILY
    except OSError:
        return False


def is_integrated(gpu: Gpu) -> bool:
    """Whether this is the GPU of a Tegra chip, which NVML knows by now."""
    return gpu.product is not None and any(mark in gpu.product for mark in _INTEGRATED_MARKS)


class _OneReader(ABC):
    """Answers about the one device of a system; ``_read`` says what it is."""

    uuid: str
    platform: Platform

    def scan(self, skip: Collection[GpuRef], *, ancestors: bool = True) -> Scanned:  # noqa: ARG002 - one has none
        """The one device, if there is one. Raises NvmlError if nobody can say."""
        skipped = tuple(entry for entry in skip if self._is_meant(entry))
        driver = self._read_driver()
        gpu = None if skipped else self._read()
        inventory = Inventory(driver=driver, platform=self.platform, gpus=(gpu,) if gpu is not None else ())
        return Scanned(inventory=inventory, skipped=skipped, unwatched=tuple(one.uuid for one in inventory.gpus))

    def probe(self, wanted: GpuRef, skip: Collection[GpuRef]) -> Probed:
        """The device alone is all that there is to ask."""
        gpu = self._read() if self._is_meant(wanted) and not any(map(self._is_meant, skip)) else None
        return Probed(gpu=gpu, fault=gpu.fault if gpu is not None else None)

    def read_processes(self, wanted: GpuRef, skip: Collection[GpuRef]) -> ProcessesRead:  # noqa: ARG002 - as the Protocol says
        """Nobody tells them."""
        if not self._is_meant(wanted):
            return ProcessesRead()
        call, kind = "nvmlDeviceGetComputeRunningProcesses", NvmlErrorKind.NOT_SUPPORTED.word
        return ProcessesRead(fault=Fault(call=call, kind=kind, text=_UNTOLD))

    def set_compute_mode(self, wanted: GpuRef, mode: ComputeMode, skip: Collection[GpuRef]) -> ComputeModeSet:  # noqa: ARG002 - as the Protocol says
        """There are none."""
        if not self._is_meant(wanted):
            return ComputeModeSet()
        call, kind = "nvmlDeviceGetComputeMode", NvmlErrorKind.NOT_SUPPORTED.word
        return ComputeModeSet(fault=Fault(call=call, kind=kind, text=_UNSETTABLE))

    def _is_meant(self, ref: GpuRef) -> bool:
        return ref.uuid == self.uuid

    @abstractmethod
    def _read_driver(self) -> Driver: ...

    @abstractmethod
    def _read(self) -> Gpu | None: ...


class TegraReader(_OneReader):
    """The GPU of a Tegra system. It is there, and nothing is known of it: no library is asked."""

    uuid = TEGRA_UUID
    platform = Platform.TEGRA

    def _read_driver(self) -> Driver:
        return Driver(version="", cuda_version="")

    def _read(self) -> Gpu:
        return Gpu(uuid=TEGRA_UUID, index=0, product=_PRODUCT, mig=MigMode.UNSUPPORTED)


class WslReader(_OneReader):
    """All GPUs of WSL2, which Windows hands over together: it ails if NVML can reach none of them.

    NVML must be initialised. A call about one of them is announced as one about all, for no container can do without
    the one that does not answer.
    """

    uuid = WSL_UUID
    platform = Platform.WSL

    def __init__(self, asker: Asker) -> None:
        self._asker = asker

    def _read_driver(self) -> Driver:
        return read_driver(self._asker)

    def _read(self) -> Gpu | None:
        count: int = self._asker.ask("nvmlDeviceGetCount", pynvml.nvmlDeviceGetCount)
        if not count:
            return None
        products, faults = [], []
        for index in range(count):
            try:
                products.append(self._read_product(index))
            except NvmlError as error:
                faults.append(build_fault(error))
        return Gpu(
            uuid=WSL_UUID,
            index=0,
            product=", ".join(sorted(set(products))) or None,
            mig=MigMode.UNSUPPORTED,
            fault=faults[0] if faults and not products else None,
        )

    def _read_product(self, index: int) -> str:
        ref = GpuRef(index=0, count=1, uuid=WSL_UUID)
        get_handle, get_name = pynvml.nvmlDeviceGetHandleByIndex, pynvml.nvmlDeviceGetName
        handle = self._asker.ask("nvmlDeviceGetHandleByIndex", get_handle, index, gpu=ref)
        product: str = self._asker.ask("nvmlDeviceGetName", get_name, handle, gpu=ref)
        return product
