"""Lists as a plan would make them, for tests of what serves them."""

from __future__ import annotations

from collections.abc import Collection

from nvdp.model.listing import (
    AllocationFacts,
    DeviceNode,
    GpuFacts,
    ListedDevice,
    ResourceList,
    SharedPolicy,
    Strategy,
)
from nvdp.model.reasons import Cause


def gpu_uuid(number: int) -> str:
    return f"GPU-{number:08x}-0000-4000-8000-000000000000"


def replica(gpu: int, number: int) -> str:
    return f"{gpu_uuid(gpu)}::{number}"


def build_list(
    *,
    resource: str = "nvidia.com/gpu",
    gpus: int = 2,
    replicas: int = 2,
    unhealthy: Collection[str] = (),
    numa_nodes: tuple[int | None, ...] = (None,),
    text: str = "",
    **facts: object,
) -> ResourceList:
    """``gpus`` GPUs with ``replicas`` each (1: whole GPUs with plain IDs); GPU n is on ``numa_nodes[n % len]``."""
    ids = [
        (gpu, replica(gpu, number) if replicas > 1 else gpu_uuid(gpu))
        for gpu in range(gpus)
        for number in range(replicas)
    ]
    return ResourceList(
        resource=resource,
        devices=tuple(
            ListedDevice(
                id=device_id,
                gpu_uuid=gpu_uuid(gpu),
                numa_node=numa_nodes[gpu % len(numa_nodes)],
                cause=Cause.CALL_FAILED if device_id in unhealthy else None,
                text=text if device_id in unhealthy else "",
            )
            for gpu, device_id in ids
        ),
        facts=AllocationFacts(
            gpus=tuple(
                GpuFacts(
                    uuid=gpu_uuid(gpu),
                    index=str(gpu),
                    nodes=(DeviceNode(container_path=f"/dev/nvidia{gpu}", host_path=f"/dev/nvidia{gpu}"),),
                )
                for gpu in range(gpus)
            ),
            strategy=Strategy.TIME_SLICING if replicas > 1 else Strategy.NONE,
            replicas=replicas,
            shared_policy=SharedPolicy.DISTRIBUTED,
            **facts,
        ),
    )
