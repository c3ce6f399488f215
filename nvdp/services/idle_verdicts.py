"""What comes of a check before a container starts, in words: for the log, and for the pod that was refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nvdp.errors import AllocationError
from nvdp.host.processes import NodeProcess, NodeProcesses
from nvdp.log import Log
from nvdp.model.listing import ResourceList
from nvdp.model.reasons import Reason
from nvdp.nvml.frames import ComputeProcess
from nvdp.planning.idleness import Foreign, describe_foreign


class Verdicts:
    """Any thread. ``processes`` has the names of those that the driver knows by their PIDs."""

    def __init__(self, processes: NodeProcesses, *, log: Log) -> None:
        self._processes = processes
        self._log = log

    def warn(self, listed: ResourceList, unanswered: Mapping[str, str]) -> None:
        """A container starts though it is not known of these GPUs, by UUID with the reason, whether they are idle."""
        names, why = ", ".join(unanswered), "; ".join(dict.fromkeys(unanswered.values()))
        self._log(
            Reason.DEVICE_NOT_IDLE,
            f"{names}: nobody can tell whether a process is on it ({why}); the container starts all the same",
            resource=listed.resource,
        )

    def refuse(self, listed: ResourceList, busy: Mapping[str, Sequence[ComputeProcess]]) -> AllocationError:
        """Log each GPU, by UUID, with the processes that kept a container from starting; the error for its pod."""
        waited = f"{listed.facts.pre_start_timeout_s:g}s (allocation.preStartTimeout)"
        nameless = "name unknown" if self._processes.are_all_seen else "name unknown without hostPID"
        texts = []
        for uuid, processes in busy.items():
            foreign = [self._describe(process) for process in processes]
            first = foreign[0]
            used = f"not idle after {waited}: used by {describe_foreign(foreign, nameless=nameless)}"
            index = next((gpu.index for gpu in listed.facts.gpus if gpu.uuid == uuid), "")
            fields: dict[str, Any] = {"device": uuid, "index": int(index) if index else None}
            fields |= {"resource": listed.resource, "pid": first.pid, "process_name": first.name or None}
            fields |= {"container": first.container or None}
            known = {name: value for name, value in fields.items() if value is not None}
            self._log(Reason.DEVICE_NOT_IDLE, f"{used}; a container was kept from starting", level=None, **known)
            texts.append(f"{uuid}{f' (index {index})' if index else ''} is {used}")
        return AllocationError(f"{listed.resource}: {'; '.join(texts)}", reason="not_idle")

    def _describe(self, process: ComputeProcess) -> Foreign:
        found = self._processes.find_process(process.pid) or NodeProcess("")
        return Foreign(pid=process.pid, name=found.name, container=found.container, memory_bytes=process.memory_bytes)
