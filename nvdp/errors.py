"""The errors of nvdp, one class for each party that has to act.

Third-party exceptions are translated into these at the edge where they occur, chained with ``from``; above the edges
no other exception is expected. The text of each is one line for a person: what happened, to what, what to do.
"""

from __future__ import annotations


class NvdpError(Exception):
    """Base of all expected errors; anything else is a defect."""


class UsageError(NvdpError):
    """A flag or an environment variable that does not parse. Exit code 2: it cannot change while the process runs."""


class NvmlError(NvdpError):
    """An NVML call that failed.

    ``kind`` is the field's word for it (a value of ``NvmlErrorKind``), ``call`` the NVML function and ``gpu`` what is
    known of the GPU concerned: a UUID, a PCI address, ``index 3``, or empty when the library as a whole failed.
    """

    def __init__(self, text: str, *, kind: str, call: str, gpu: str = "") -> None:
        super().__init__(text)
        self.kind = kind
        self.call = call
        self.gpu = gpu


class KubeletError(NvdpError):
    """The kubelet refused, or could not be reached.

    ``refused`` is true when the kubelet answered with an error: the next try must serve under a new socket name.
    """

    def __init__(self, text: str, *, refused: bool = False) -> None:
        super().__init__(text)
        self.refused = refused


class HostError(NvdpError):
    """A file, directory, socket or process of the node that could not be used as needed."""


class ClusterError(NvdpError):
    """The API server refused or could not be reached."""


class AllocationError(NvdpError):
    """A request of the kubelet that must be refused. The text reaches the user in the pod's status.

    ``reason`` is a value of the label ``reason`` of ``nvdp_allocations_refused_total``.
    """

    def __init__(self, text: str, *, reason: str) -> None:
        super().__init__(text)
        self.reason = reason
