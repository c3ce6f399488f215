"""The composition root of ``nvdp mps``: builds every part, starts it, and leaves the main thread to the supervisor."""

from __future__ import annotations

import os
import queue
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any, Final

from nvdp import __version__
from nvdp.app.cluster import ClusterParts, build_cluster_parts
from nvdp.app.crashes import catch_thread_crashes
from nvdp.app.frame import run_process
from nvdp.app.mps_gpus import build_gpu_service, build_occupancy_service
from nvdp.app.mps_probes import Probes
from nvdp.app.mps_turn import WAITING, wait_for_turn
from nvdp.app.past import build_adoption
from nvdp.app.signals import catch_signals
from nvdp.app.starting import follow_configuration
from nvdp.config.overrides import Overrides
from nvdp.config.process import ProcessOptions
from nvdp.errors import HostError
from nvdp.host.boot import load_boot_id
from nvdp.host.change import PathWatch
from nvdp.host.files import FileFingerprint, config_fingerprint
from nvdp.host.mps_claims import ClaimsCopy
from nvdp.host.mps_report import load_report, remove_report, write_report
from nvdp.host.pause_file import PauseFile
from nvdp.host.processes import NodeProcesses
from nvdp.host.sole_owner import SoleOwner
from nvdp.host.state import StateDirectory
from nvdp.host.watch import Watcher
from nvdp.http.server import HttpServer
from nvdp.log import StreamLog, describe_exception
from nvdp.metrics.recording import Metrics
from nvdp.model.mps import MpsReport
from nvdp.model.reasons import Reason
from nvdp.mps import selinux
from nvdp.mps.shm import SharedMemory
from nvdp.nvml.children import NvmlChildren
from nvdp.nvml.compute_mode import set_compute_modes
from nvdp.services.events import PauseOrdered
from nvdp.services.mps_crew import Crew
from nvdp.services.mps_daemon import DaemonActor
from nvdp.services.mps_driver import DriverUse
from nvdp.services.mps_events import MpsEvent
from nvdp.services.mps_grants import build_grants_watch, load_takeable
from nvdp.services.mps_left import find_left
from nvdp.services.mps_modes import ModeService
from nvdp.services.mps_node import Node
from nvdp.services.mps_readiness import Readiness
from nvdp.services.mps_reporting import Reporter
from nvdp.services.mps_running import Program
from nvdp.services.mps_shm import SharedMemoryService
from nvdp.services.mps_supervisor import Collaborators, MpsSupervisor
from nvdp.services.remembering import Memory

METRICS_PORT: Final = 9403
"""The port of the probes where no option says another: the plugin's pod on the same node may have the next one."""
_STATE_NAME: Final = "mps"
_STOP_LIMIT_S: Final = 25.0
_FLUSH_S: Final = 1.0
_CALL_LIMIT_S: Final = 5.0


def run(options: ProcessOptions, overrides: Overrides) -> None:
    """Run the control daemons until told to stop, and end the process; see ``run_process``."""
    run_process(options, lambda log: MpsDaemons(options, overrides, log).run())


class MpsDaemons:
    """All parts of one process; ``run`` is called once, on the main thread."""

    def __init__(self, options: ProcessOptions, overrides: Overrides, log: StreamLog) -> None:
        self._options = options
        self._overrides = overrides
        self._log = log
        self._events: queue.SimpleQueue[MpsEvent] = queue.SimpleQueue()
        self._post = self._events.put
        self._is_simulated = options.simulated_node is not None
        self._boot_id = load_boot_id()
        self._owner = SoleOwner(options.mps_dir)
        self._supervisor: MpsSupervisor | None = None

    def run(self) -> int:
        """Start everything and turn until told to stop; the exit code. HostError if the job cannot be done at all."""
        options, log = self._options, self._log
        catch_signals(self._post, limit_s=_STOP_LIMIT_S)
        log(Reason.STARTING, f"nvdp mps {__version__}  python {sys.version.split()[0]}")
        catch_thread_crashes(self._post)
        if not options.mps_dir.is_dir():
            raise HostError(f"{options.mps_dir}: no such directory; mount the node's MPS root there, see --mps-dir")
        probes = Probes(self._get_readiness, post=self._post)
        http = HttpServer(port=options.metrics_port, routes=probes.routes, log=log, defect=self._report_defect)
        http.start()
        if wait_for_turn(self._owner, self._events, log=log, restart=http.start):
            self._keep(http)
        log(Reason.STOPPED, f"nvdp mps {__version__}")
        return 0

    def _keep(self, http: HttpServer) -> None:
        """Keep the daemons of the MPS root, which is ours alone, until told to stop."""
        options, log = self._options, self._log
        copy = ClaimsCopy(options.state_dir / _STATE_NAME, boot_id=self._boot_id)
        last = self._load_last_report(copy)
        reporter = Reporter(
            self._write_report,
            copy=copy.save,
            first=MpsReport(
                at=time.monotonic(), boot_id=self._boot_id, pid=os.getpid(), version=__version__, claims=last.claims
            ),
            log=log,
        )
        children = NvmlChildren(simulated=str(options.simulated_node or ""))
        gpus = build_gpu_service(children, options, post=self._post, log=log)
        modes = ModeService(
            partial(set_compute_modes, children, limit_s=_CALL_LIMIT_S),
            reporter.persist,
            partial(load_takeable, options.state_dir),
            claims=last.claims,
            post=self._post,
            log=log,
        )
        crew = self._build_crew()
        for resource, adopted in find_left(options.mps_dir, last.daemons).items():
            crew.adopt(resource, adopted)

        states = StateDirectory(options.state_dir / _STATE_NAME, log=log)
        state = states.load_state()
        memory = Memory(state, states.save_state, is_kept=lambda: states.is_kept, log=log, boot_id=self._boot_id)
        adoption = build_adoption(
            state, memory, overrides=self._overrides, options=options, log=log, count_edit=lambda _result: None
        )
        cluster = build_cluster_parts(
            options,
            self._overrides,
            post=self._post,
            log=log,
            lines=None,
            counts=Metrics(),
            has_applied=adoption.has_last_good,
            writes=False,
        )
        watcher = self._build_watcher(cluster)
        memory_mount = SharedMemory(options.mps_dir, size_kib=_find_shm_kib(options))
        shared_memory = SharedMemoryService(partial(self._mount, memory_mount), post=self._post, log=log)
        occupancy = build_occupancy_service(children, find_own_pids=crew.find_pids, post=self._post)
        services: list[Any] = [gpus, modes, reporter, memory, watcher, shared_memory, occupancy, *cluster.services]

        def look_now() -> None:
            gpus.look_now()
            watcher.check_now()
            cluster.look()

        supervisor = MpsSupervisor(
            self._events,
            Collaborators(
                adoption=adoption,
                crew=crew,
                modes=modes,
                driver=DriverUse(gpus, log=log),
                occupancy=occupancy,
                reporter=reporter,
                log=log,
                restart=lambda thread: _start(services, thread),
                look_now=look_now,
            ),
        )
        self._supervisor = supervisor
        for service in services:
            service.start()
        services.append(http)
        supervisor.run()
        gpus.stop()
        occupancy.stop()
        shared_memory.stop()
        self._leave(reporter, memory_mount, copy, claims_left=len(supervisor.claims))
        memory.flush(_FLUSH_S)

    def _mount(self, shared_memory: SharedMemory) -> str:
        if self._is_simulated:
            return ""
        shared_memory.mount()
        return shared_memory.find_unseen()

    def _load_last_report(self, copy: ClaimsCopy) -> MpsReport:
        """What an earlier process of this boot left; nothing of it counts after a reboot, which ended all of it."""
        try:
            found = load_report(self._options.mps_dir)
        except HostError as error:
            text = f"{error}; what it claimed is read from its copy, and daemons are looked for"
            self._log(Reason.STATE_DAMAGED, text, error=str(error))
            found = None
        if found is not None:
            is_of_another = self._boot_id and found.boot_id not in {"", self._boot_id}
            return MpsReport(at=0.0) if is_of_another else found
        try:
            return MpsReport(at=0.0, claims=copy.load())
        except HostError as error:
            text = f"{error}; compute modes that an earlier nvdp mps changed are not put back: see nvidia-smi -q"
            self._log(Reason.STATE_DAMAGED, text, error=str(error))
            return MpsReport(at=0.0)

    def _write_report(self, report: MpsReport, sync: bool) -> None:  # noqa: FBT001 - the reporter's own callback
        write_report(self._options.mps_dir, report, sync=sync)

    def _build_crew(self) -> Crew:
        processes = NodeProcesses()

        def is_alive(pid: int) -> bool:
            return self._is_simulated or not processes.are_all_seen or processes.find_process(pid) is not None

        def label(pipe_dir: Path) -> None:
            if not self._is_simulated:
                selinux.label(pipe_dir)

        node = Node(
            mps_dir=self._options.mps_dir,
            program=Program(name=self._options.mps_control, label=label),
            post=self._post,
            log=self._log,
            find_own_pids=lambda: crew.find_pids(),  # noqa: PLW0108 - there is no crew yet
            find_minors=lambda: self._supervisor.minors if self._supervisor is not None else {},
            is_client_alive=is_alive,
        )
        crew = Crew(lambda resource, adopted: DaemonActor(resource, node, adopted=adopted))
        return crew

    def _build_watcher(self, cluster: ClusterParts) -> Watcher:
        """What is followed: the plugin's grants, an order to pause, and the configuration if it is in files."""
        options = self._options
        followed = follow_configuration(options, self._overrides, self._post, cluster.selection)
        grants = build_grants_watch(options.state_dir, self._post)
        return Watcher([grants, self._build_pause_watch(), *filter(None, [followed])], log=self._log)

    def _build_pause_watch(self) -> PathWatch[FileFingerprint | None]:
        file = PauseFile(self._options.run_dir, boot_id=self._boot_id)
        return PathWatch(
            fingerprint=lambda: config_fingerprint(file.path),
            directories=lambda: (self._options.run_dir,),
            on_change=lambda _fingerprint: self._post(PauseOrdered(pause=file.load())),
        )

    def _leave(self, reporter: Reporter, shared_memory: SharedMemory, copy: ClaimsCopy, *, claims_left: int) -> None:
        """Take away what is ours, the report last; it stays if the next start has something to put back."""
        options, log = self._options, self._log
        try:
            if not self._is_simulated:
                shared_memory.unmount()
        except HostError as error:
            log(Reason.STATE_DAMAGED, str(error), error=str(error))
        try:
            reporter.flush()
            reporter.stop()
            if not claims_left:
                copy.remove()
                remove_report(options.mps_dir)
                return
            text = f"{claims_left} GPUs keep the compute mode of MPS: the next start of nvdp mps puts theirs back"
            log(Reason.MPS_UNSUPPORTED, text)
        except HostError as error:
            log(Reason.STATE_DAMAGED, str(error), error=str(error))

    def _get_readiness(self) -> Readiness:
        supervisor = self._supervisor
        return supervisor.readiness if supervisor is not None else Readiness(problems=(WAITING,))

    def _report_defect(self, error: Exception) -> None:
        text = "a request to the metrics port failed"
        self._log(Reason.SERVICE_RESTARTED, text, level=None, **describe_exception(error))


def _find_shm_kib(options: ProcessOptions) -> int | None:
    return options.mps_shm_size.bytes // 1024 if options.mps_shm_size is not None else None


def _start(services: list[Any], thread: str) -> bool:
    """Start the service of that thread anew; False if there is none."""
    for service in services:
        if thread == service.THREAD:
            service.start()
            return True
    return False
