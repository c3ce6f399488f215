"""The composition root of ``nvdp run``: builds every part, starts it, and leaves the main thread to the supervisor.

The order is that of the clock: the NVML child is spawned first, and grpc and YAML are imported while it looks for GPUs.
"""

from __future__ import annotations

import queue
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from nvdp import __version__
from nvdp.app.answers import Answers
from nvdp.app.cluster import ClusterParts, Service, build_cluster_parts, build_event_log
from nvdp.app.crashes import catch_thread_crashes
from nvdp.app.frame import run_process
from nvdp.app.gpus import build_driver_services, find_driver_root
from nvdp.app.orders import NodeOrders
from nvdp.app.past import build_adoption, build_past
from nvdp.app.signals import catch_signals
from nvdp.app.starting import build_socket_watch, follow_configuration, warn_at_start
from nvdp.config.overrides import Overrides
from nvdp.config.process import ProcessOptions
from nvdp.host.boot import load_boot_id
from nvdp.host.container import WornContainer
from nvdp.host.pause_file import PauseFile
from nvdp.host.state import StateDirectory
from nvdp.host.watch import Watcher
from nvdp.http.control_server import ControlServer
from nvdp.http.server import HttpServer
from nvdp.kubelet.checkpoint import CHECKPOINT_NAME, load_checkpoint
from nvdp.kubelet.sockets import check_socket_directory, is_listening
from nvdp.log import Log, StreamLog, describe_exception
from nvdp.metrics.recording import Metrics
from nvdp.model.held import Held
from nvdp.model.listing import ResourceList
from nvdp.model.reasons import Reason
from nvdp.model.status import Status, Trouble
from nvdp.services.events import Event
from nvdp.services.idle import IdleCheck
from nvdp.services.remembering import Memory
from nvdp.services.steering import Steering

if TYPE_CHECKING:
    from nvdp.kubelet.starts import StartCheck
    from nvdp.services.cdi import CdiService
    from nvdp.services.granting import GrantService
    from nvdp.services.held import HeldService
    from nvdp.services.offers import Offers
    from nvdp.services.resource import ResourceActor

_DEV = Path("/dev")
_HELD_WAIT_S = 1.0
_MPS_WAIT_S = 0.5
_FLUSH_S = 1.0
_Troubled: TypeAlias = "tuple[Watcher, Memory, HttpServer, IdleCheck, CdiService, GrantService]"


def run(options: ProcessOptions, overrides: Overrides) -> None:
    """Run the daemon until it is told to stop, and end the process; see ``run_process``."""
    run_process(options, lambda log: Daemon(options, overrides, log).run())


class Daemon:
    """All parts of one process; ``run`` is called once, on the main thread.

    ``probe_clock`` gives the seconds for which ``/healthz`` is patient with a container that is worn out.
    """

    def __init__(
        self,
        options: ProcessOptions,
        overrides: Overrides,
        log: StreamLog,
        *,
        probe_clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._probe_clock = probe_clock
        self._options = options
        self._overrides = overrides
        self._lines = build_event_log(options, log)
        self._log: Log = self._lines or log
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._post = self._events.put
        self._metrics = Metrics()
        self._directory = options.kubelet_socket.parent
        self._troubles: tuple[Trouble, ...] = ()

    def run(self) -> int:
        """Start everything and turn until told to stop; the exit code. HostError if the job cannot be done at all."""
        options, log = self._options, self._log
        catch_signals(self._post)  # first: in a container nobody else would take them
        log(Reason.STARTING, f"nvdp {__version__}  python {sys.version.split()[0]}")
        catch_thread_crashes(self._post)
        check_socket_directory(self._directory)
        states = StateDirectory(options.state_dir, log=log)
        state = states.load_state()
        boot_id = load_boot_id()
        past = build_past(state, boot_id=boot_id, options=options, log=log)
        gpus, idle = build_driver_services(
            options, self._overrides, past=past, post=self._post, log=log, observer=self._metrics
        )
        pause_file = PauseFile(options.run_dir, boot_id=boot_id)
        steering = Steering(
            gpus, ordered=pause_file.load(), is_held=past.is_held, log=log, clock=time.monotonic, wall=time.time
        )
        gpus.start()

        # grpc takes longer to import than everything else together; the child looks for GPUs meanwhile.
        from nvdp.app.handing import build_cdi_service, build_mps_services  # noqa: PLC0415 - see above
        from nvdp.host.runtime_config import RuntimeCheck  # noqa: PLC0415 - see above
        from nvdp.kubelet.podresources import PodResourcesClient  # noqa: PLC0415 - see above
        from nvdp.kubelet.server import choose_socket_path, remove_stale_sockets  # noqa: PLC0415 - see above
        from nvdp.services.collaborators import Collaborators  # noqa: PLC0415 - see above
        from nvdp.services.held import HeldService  # noqa: PLC0415 - see above
        from nvdp.services.offers import Offers  # noqa: PLC0415 - see above
        from nvdp.services.standing import StandingService  # noqa: PLC0415 - see above
        from nvdp.supervisor import Supervisor  # noqa: PLC0415 - see above

        choose_socket_path(self._directory, "resource")
        held = HeldService(
            self._post,
            pod_resources=PodResourcesClient(options.pod_resources_socket),
            load_checkpoint=partial(load_checkpoint, self._directory / CHECKPOINT_NAME),
            kubelet_answers=partial(is_listening, options.kubelet_socket),
            log=log,
        )
        held.start()
        memory = Memory(state, states.save_state, is_kept=lambda: states.is_kept, log=log, boot_id=boot_id)
        memory.start()
        remove_stale_sockets(self._directory)
        offers = Offers(
            lambda listed: self._make_actor(listed, idle.begin if adoption.checks_starts else None),
            observer=self._metrics,
            log=log,
            clock=time.monotonic,
        )
        adoption = build_adoption(
            state, memory, overrides=self._overrides, options=options, log=log, count_edit=self._metrics.config_edit
        )
        cluster = build_cluster_parts(
            options,
            self._overrides,
            post=self._post,
            log=log,
            lines=self._lines,
            counts=self._metrics,
            has_applied=adoption.has_last_good,
        )
        standing = StandingService(self._post, pod_resources=PodResourcesClient(options.pod_resources_socket))
        specs = build_cdi_service(options, post=self._post, log=log)
        runtime = RuntimeCheck(log=log, etc=options.host_etc)
        mps, grants = build_mps_services(options, post=self._post, log=log, boot_id=boot_id)
        mps.start()
        watcher = self._build_watcher(specs, cluster)
        answers = self._build_answers(
            offers,
            held,
            NodeOrders(
                file=pause_file, post=self._post, gpus=gpus, get_status=lambda: answers.status, flush=memory.flush
            ),
            lambda: [
                *self._find_troubles((watcher, memory, http, idle, specs, grants)),
                *cluster.find_troubles(),
                *runtime.find_troubles(),
            ],
        )
        http, control = self._build_servers(answers)
        own = (gpus, held, standing, memory, watcher, http, control, idle, specs, mps, grants)
        supervisor = Supervisor(
            self._events,
            Collaborators(
                adoption=adoption,
                offers=offers,
                steering=steering,
                holders=held,
                standing=standing,
                specs=specs,
                mps=mps,
                grants=grants,
                runtime=runtime,
                memory=memory,
                observer=self._metrics,
                log=log,
                restart=partial(_start, _list_starts((*own, *cluster.services))),
                look_now=partial(
                    _call_all,
                    (gpus.look_now, held.ask, standing.ask_soon, watcher.check_now, specs.look, mps.look, cluster.look),
                ),
                publish_status=partial(_tell_all, (answers.publish, cluster.follow)),
                label=cluster.label,
            ),
            held=held.first_answer(_HELD_WAIT_S) or Held(),
        )
        self._troubles = warn_at_start(options, log)
        mps.wait_seen(_MPS_WAIT_S)
        _call_all([service.start for service in (standing, specs, grants, watcher, http, control)])
        _call_all([service.start for service in cluster.services])
        code = supervisor.run()
        _call_all((control.stop, gpus.stop))
        memory.flush(_FLUSH_S)
        log(Reason.STOPPED, f"nvdp {__version__}")
        return code

    def _build_watcher(self, specs: CdiService, cluster: ClusterParts) -> Watcher:
        """What is followed: the kubelet's directory, the CDI specs, and the configuration if it is in files."""
        followed = follow_configuration(self._options, self._overrides, self._post, cluster.selection)
        sockets = build_socket_watch(self._options.kubelet_socket, self._post)
        return Watcher([sockets, *filter(None, [followed]), specs.build_watch()], log=self._log)

    def _build_servers(self, answers: Answers) -> tuple[HttpServer, ControlServer]:
        options, log = self._options, self._log
        defect = self._report_from("metrics port")
        http = HttpServer(port=options.metrics_port, routes=answers.routes, log=log, defect=defect)
        control = ControlServer(
            options.run_dir,
            routes=answers.control_routes,
            orders=answers.control_orders,
            log=log,
            defect=self._report_from("control socket"),
        )
        return http, control

    def _build_answers(
        self,
        offers: Offers,
        held: HeldService,
        orders: NodeOrders,
        find_troubles: Callable[[], Iterable[Trouble]],
    ) -> Answers:
        answers = Answers(
            metrics=self._metrics,
            post=self._post,
            count_events=self._events.qsize,
            get_actors=lambda: offers.actors,
            container_problem=WornContainer(
                directory=self._directory,
                dev=_DEV,
                host_dev=self._options.host_dev,
                follows_driver=Path(find_driver_root(self._overrides)).is_dir(),
                get_driver=lambda: answers.status.driver,
                clock=self._probe_clock,
            ),
            refresh_holders=held.refresh,
            find_troubles=find_troubles,
            orders=orders,
        )
        return answers

    def _find_troubles(self, services: _Troubled) -> Iterator[Trouble]:
        yield from self._troubles
        yield from (service.trouble for service in services if service.trouble is not None)

    def _make_actor(self, listed: ResourceList, start_check: StartCheck | None) -> ResourceActor:
        from nvdp.services.resource import ResourceActor  # noqa: PLC0415 - brings grpc, see ``run``

        return ResourceActor(
            listed,
            directory=self._directory,
            kubelet_socket=self._options.kubelet_socket,
            post=self._post,
            log=self._log,
            observer=self._metrics,
            log_allocations=self._options.log_allocations,
            start_check=start_check,
        )

    def _report_from(self, asked: str) -> Callable[[Exception], None]:
        text = f"a request to the {asked} failed"
        return lambda error: self._log(Reason.SERVICE_RESTARTED, text, level=None, **describe_exception(error))


def _tell_all(followers: tuple[Callable[[Status], None], ...], status: Status) -> None:
    for follow in followers:
        follow(status)


def _start(starts: Mapping[str, Callable[[], None]], thread: str) -> bool:
    """Start the service of that thread anew; False if there is none."""
    if thread in starts:
        starts[thread]()
    return thread in starts


def _list_starts(services: Iterable[Service]) -> dict[str, Callable[[], None]]:
    return {service.THREAD: service.start for service in services}


def _call_all(calls: Iterable[Callable[[], None]]) -> None:
    for call in calls:
        call()
