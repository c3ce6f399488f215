"""The facts from which Allocate answers, made once per list so that Allocate computes and nothing else."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from nvdp.config.schema import Config
from nvdp.model.listing import AllocationFacts, DeviceNode, GpuFacts, MpsFacts, MpsShare, Strategy
from nvdp.model.mps import DEFAULT_ROOT, DaemonSpec, MpsView
from nvdp.model.topology import Connection, Weights
from nvdp.planning.allotment import Allotment
from nvdp.planning.assignment import Assignment
from nvdp.planning.daemons import build_pipe
from nvdp.planning.devices import Device
from nvdp.planning.mps_specs import allows_several
from nvdp.planning.provision import build_imex_node, find_channels, list_features, list_nodes, name_extras, passes_nodes
from nvdp.planning.weights import build_weights

_MIB = 2**20
_ONE_KEY = "sharing.timeSlicing.failRequestsGreaterThanOne"
_ONE_MPS_KEY = "sharing.mps.failRequestsGreaterThanOne"
_DISTINCT_KEY = "sharing.timeSlicing.requireDistinctGPUs"


def build_facts(
    config: Config,
    devices: Sequence[Device],
    assignments: Collection[Assignment],
    control_nodes: Sequence[str],
    *,
    imex_channels: Collection[int] = (),
    cdi_names: Collection[str] = (),
    connections: Iterable[Connection] = (),
    mps: MpsFacts | None = None,
) -> AllocationFacts:
    """The facts for ``devices``, of one resource. ``assignments`` are those offered under it, none if it only leaves.

    One name is shared in one way, though not every GPU need have as many replicas (configuration contract, "sharing").
    ``control_nodes`` and ``imex_channels`` are those that this node has, ``cdi_names`` what resolves in its specs:
    a channel or feature that is not there is left out. ``connections`` are those between GPUs. ``mps`` are the facts of
    its control daemon, if it has one.
    """
    plugin = config.flags.plugin
    root = config.flags.nvidia_dev_root
    pass_nodes = passes_nodes(config)
    controls = () if any(device.is_all_there_is for device in devices) else control_nodes
    channels = find_channels(config, imex_channels)
    time_slicing = config.sharing.time_slicing
    strategy = next((assignment.strategy for assignment in assignments), Strategy.NONE)
    sliced = time_slicing if strategy is Strategy.TIME_SLICING else None
    is_shared = any(assignment.form.shared for assignment in assignments)
    single = _ONE_KEY if sliced is not None and sliced.fail_requests_greater_than_one else ""
    if mps is not None and is_shared and not allows_several(config):
        single = _ONE_MPS_KEY
    return AllocationFacts(
        gpus=tuple(
            GpuFacts(
                uuid=device.uuid,
                index=device.index,
                parent_uuid=device.parent_uuid,
                nodes=_nodes(root, list_nodes(device)) if pass_nodes else (),
            )
            for device in devices
        ),
        weights=_weigh(devices, connections) if assignments and not is_shared else (),
        control_nodes=_nodes(root, controls) if pass_nodes else (),
        device_list_strategies=plugin.device_list_strategy,
        device_id_strategy=plugin.device_id_strategy,
        pass_device_specs=pass_nodes,
        imex_channels=channels,
        imex_nodes=_nodes(root, [build_imex_node(channel) for channel in channels]) if pass_nodes else (),
        cdi_extras=name_extras(config, channels, cdi_names),
        cdi_annotation_prefix=plugin.cdi_annotation_prefix,
        feature_envs=tuple((f"NVIDIA_{feature.name}", "enabled") for feature in list_features(config)),
        strategy=strategy,
        replicas=tuple(sorted({assignment.replicas for assignment in assignments})) or (1,),
        shared_policy=config.allocation.shared_policy,
        single_replica_key=single,
        distinct_gpus_key=_DISTINCT_KEY if sliced is not None and sliced.require_distinct_gpus else "",
        mps=mps,
        pre_start_timeout_s=config.allocation.pre_start_timeout.seconds,
        call_timeout_s=config.health.call_timeout.seconds,
    )


def build_mps_facts(
    config: Config, allotment: Allotment, spec: DaemonSpec | None, view: MpsView | None
) -> MpsFacts | None:
    """The facts of the daemon that is to be as ``spec``; None without one.

    As long as it runs as something else, for pods hold it, that is what its clients have at most.
    """
    if spec is None:
        return None
    daemon = view.daemons.get(spec.resource) if view is not None else None
    now = daemon.running if daemon is not None and daemon.running is not None else spec
    root = (config.flags.mps_root or DEFAULT_ROOT).rstrip("/")
    shares = {
        device.uuid: MpsShare(
            thread_percent=limits.thread_percent,
            memory_mib=limits.memory_mib,
            all_mib=device.memory_bytes // _MIB if device.memory_bytes is not None else None,
            most_mib=now.memory_mib.get(device.uuid),
        )
        for device in allotment.devices
        if device.uuid in spec.gpus and (limits := allotment.limits.get(device.uuid)) is not None
    }
    return MpsFacts(
        host_pipe=f"{root}/{spec.resource}/pipe",
        host_shm=f"{root}/shm",
        client_pipe=build_pipe(spec.resource),
        most_percent=now.thread_percent,
        shares=shares,
        one_gpu_key=_ONE_MPS_KEY if shares and allows_several(config) else "",
    )


def _weigh(devices: Sequence[Device], connections: Iterable[Connection]) -> Weights:
    """What connects whole GPUs; MIG devices are chosen by their GPUs instead."""
    if any(device.instance is not None for device in devices):
        return ()
    return build_weights([device.gpu for device in devices], connections)


def _nodes(root: str, paths: Sequence[str]) -> tuple[DeviceNode, ...]:
    """Device nodes as the container and the host know them; ``root`` is the host's prefix of ``/dev``."""
    prefix = root.rstrip("/")
    return tuple(DeviceNode(container_path=path, host_path=f"{prefix}{path}") for path in paths)
