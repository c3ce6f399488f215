"""The NVML child: ``python -m nvdp.nvml.child --fd 5 --driver-root /driver-root``, started by ``nvml.children`` only.

The daemon never loads libnvidia-ml. This process does, answers one command at a time and says before each call what
it is about to do, so that a call that never returns, or crashes, costs this process and not the daemon. After the
first scan a second thread waits for events and tells them as they come. It imports little, for it is started often; it
ends with its parent.
"""

from __future__ import annotations

# isort: off
import nvdp.nvml.lean  # noqa: F401 - first, or it has no effect

# isort: on
import ctypes
import os
import signal
import sys
import threading
from typing import Final

import msgspec
import pynvml

from nvdp.errors import NvmlError
from nvdp.model.inventory import GpuRef
from nvdp.model.platforms import DeviceDiscoveryStrategy, Platform
from nvdp.nvml.asking import Asker
from nvdp.nvml.driver import DriverLibrary
from nvdp.nvml.frames import (
    Answer,
    Breadcrumb,
    Close,
    Command,
    Message,
    Probe,
    Processes,
    Refused,
    Scan,
    Scanned,
    SetComputeMode,
    read_command,
    write_frame,
)
from nvdp.nvml.kinds import describe_code, find_kind
from nvdp.nvml.library import Library
from nvdp.nvml.platforms import Reader, TegraReader, WslReader, is_integrated
from nvdp.nvml.scan import GpuReader
from nvdp.nvml.watch import EventWatch

_PR_SET_PDEATHSIG: Final = 1


class Options(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    """The arguments: the inherited end of the socket pair, and where NVML comes from."""

    fd: int
    driver_root: str = "/"
    discovery: DeviceDiscoveryStrategy = DeviceDiscoveryStrategy.AUTO
    simulated: str = ""


class Session:
    """One NVML session: opened by the first command, never opened twice.

    A process cannot load a new libnvidia-ml, since the old one stays mapped: after ``Refused`` a new child is needed.
    """

    def __init__(self, options: Options) -> None:
        self._fd = options.fd
        self._writing = threading.Lock()
        self._library = _choose_library(options)
        self._discovery = options.discovery
        self._asker = Asker(self._announce)
        self._watch = EventWatch(self._asker, self._send)
        self._reader: Reader | None = None

    def answer(self, command: Command) -> bool:
        """Do what ``command`` says and send the answer; false after Close. Raises OSError when the daemon is gone.

        A session that has scanned tells events from then on.
        """
        if isinstance(command, Close):
            return False
        answer = self._find_answer(command)
        self._send(answer)
        if isinstance(answer, Scanned) and answer.inventory.platform is Platform.NVML:
            self._watch.start()
        return True

    def _find_answer(self, command: Scan | Probe | Processes | SetComputeMode) -> Answer:
        try:
            reader = self._reader = self._reader or self._start()
            match command:
                case Scan():
                    return self._scan(reader, command)
                case Probe(gpu=gpu, skip=skip):
                    return reader.probe(gpu, skip)
                case Processes(gpu=gpu, skip=skip):
                    return reader.read_processes(gpu, skip)
                case SetComputeMode(gpu=gpu, mode=mode, skip=skip):
                    return reader.set_compute_mode(gpu, mode, skip)
        except NvmlError as error:
            return self._refuse(error)

    def _scan(self, reader: Reader, command: Scan) -> Scanned:
        scanned = reader.scan(command.skip, ancestors=command.ancestors)
        if self._discovery is DeviceDiscoveryStrategy.AUTO and any(map(is_integrated, scanned.inventory.gpus)):
            reader = self._reader = TegraReader()
            return reader.scan(command.skip)
        return scanned

    def _start(self) -> Reader:
        """Find out what system this is, and open NVML where it is asked."""
        if self._discovery is DeviceDiscoveryStrategy.TEGRA:
            return TegraReader()
        self._announce("dlopen", None)
        try:
            self._library.install()
        except NvmlError:
            if self._is_tegra():
                return TegraReader()
            raise
        self._initialise()
        if self._library.has_dxcore():
            return WslReader(self._asker)
        return GpuReader(self._asker, self._watch, complete=self._library.complete)

    def _is_tegra(self) -> bool:
        """Whether this is a Tegra system, where there is no NVML."""
        if self._discovery is DeviceDiscoveryStrategy.NVML or self._library.has_dxcore():
            return False
        return self._library.has_tegra_files()

    def _initialise(self) -> None:
        self._announce("nvmlInit", None)
        try:
            pynvml.nvmlInitWithFlags(pynvml.NVML_INIT_FLAG_NO_GPUS)  # a node without GPUs is no failure
        except pynvml.NVMLError as error:
            word, text = describe_code(error.value)
            raise NvmlError(f"nvmlInit: {text}", kind=word, call="nvmlInit") from error

    def _refuse(self, error: NvmlError) -> Refused:
        kind = find_kind(word=error.kind)
        remedy = self._library.explain(kind) if kind is not None and error.call != "dlopen" else ""
        return Refused(call=error.call, kind=error.kind, text=f"{error}; {remedy}" if remedy else str(error))

    def _announce(self, call: str, gpu: GpuRef | None) -> None:
        self._send(Breadcrumb(call=call, gpu=gpu))

    def _send(self, message: Message) -> None:
        with self._writing:  # frames of two threads must not interleave
            write_frame(self._fd, message)


def main(arguments: list[str]) -> int:
    """Serve commands until Close or the end of the daemon. Returns the exit code."""
    _die_with_parent()
    # A key pressed in a terminal is meant for the daemon, which ends its children itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    options = parse_options(arguments)
    session = Session(options)
    try:
        while (command := read_command(options.fd)) is not None and session.answer(command):
            pass
    except (BrokenPipeError, ConnectionResetError):
        pass  # the daemon has gone: so do we
    return 0


def parse_options(arguments: list[str]) -> Options:
    """``--name value`` pairs. argparse alone would cost a sixth of the start."""
    pairs = zip(arguments[::2], arguments[1::2], strict=True)
    return msgspec.convert({name.removeprefix("--"): value for name, value in pairs}, Options, strict=False)


def _choose_library(options: Options) -> Library:
    if options.simulated:
        from nvdp.nvml.simulated.library import SimulatedLibrary  # noqa: PLC0415 - a real node never loads it

        return SimulatedLibrary(options.simulated)
    return DriverLibrary(options.driver_root)


def _die_with_parent() -> None:
    """Even inside a call that never returns, where the end of the socket would go unseen."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    # Not through the destructors of a driver library, which may not return; nor through nvmlShutdown, which is not
    # defined while a thread waits for events. The end of the process is what lets go of the driver, as after SIGKILL.
    os._exit(main(sys.argv[1:]))
