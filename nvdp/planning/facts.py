"""The facts from which Allocate answers, made once per list so that Allocate computes and nothing else."""

from __future__ import annotations

from collections.abc import Sequence

from nvdp.config.schema import Config
from nvdp.model.inventory import Gpu
from nvdp.model.listing import AllocationFacts, DeviceNode, GpuFacts, Strategy
from nvdp.planning.assignment import Assignment

REFUSE_KEY = "sharing.timeSlicing.failRequestsGreaterThanOne"


def build_facts(
    config: Config, gpus: Sequence[Gpu], assignment: Assignment | None, control_nodes: Sequence[str]
) -> AllocationFacts:
    """The facts for ``gpus``, all offered under one resource; ``assignment`` is None for one that is only leaving."""
    plugin = config.flags.plugin
    root = config.flags.nvidia_dev_root
    pass_nodes = plugin.pass_device_specs
    time_slicing = config.sharing.time_slicing
    strategy = assignment.strategy if assignment is not None else Strategy.NONE
    return AllocationFacts(
        gpus=tuple(
            GpuFacts(
                uuid=gpu.uuid,
                index=str(gpu.index),
                nodes=_nodes(root, [f"/dev/nvidia{gpu.minor}"]) if pass_nodes and gpu.minor is not None else (),
            )
            for gpu in gpus
        ),
        control_nodes=_nodes(root, control_nodes) if pass_nodes else (),
        device_list_strategies=plugin.device_list_strategy,
        device_id_strategy=plugin.device_id_strategy,
        pass_device_specs=pass_nodes,
        feature_envs=tuple(
            (name, "enabled")
            for name, on in (
                ("NVIDIA_GDRCOPY", config.flags.gdrcopy_enabled),
                ("NVIDIA_GDS", config.flags.gds_enabled),
                ("NVIDIA_MOFED", config.flags.mofed_enabled),
            )
            if on
        ),
        strategy=strategy,
        replicas=assignment.replicas if assignment is not None else 1,
        shared_policy=config.allocation.shared_policy,
        single_replica_only=strategy is Strategy.TIME_SLICING
        and time_slicing is not None
        and time_slicing.fail_requests_greater_than_one,
        refuse_key=REFUSE_KEY,
    )


def _nodes(root: str, paths: Sequence[str]) -> tuple[DeviceNode, ...]:
    """Device nodes as the container and the host know them; ``root`` is the host's prefix of ``/dev``."""
    prefix = root.rstrip("/")
    return tuple(DeviceNode(container_path=path, host_path=f"{prefix}{path}") for path in paths)
