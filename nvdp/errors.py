"""The errors of nvdp, one class for each party that has to act.

Third-party exceptions are translated into these at the edge where they occur, chained with ``from``; above the edges
no other exception is expected. The text of each is one line for a person: what happened, to what, what to do.
"""

from __future__ import annotations

import enum

import msgspec

_QUOTE_LIMIT = 80  # characters of somebody's text that an error repeats


def quote(text: str) -> str:
    """Somebody's text as an error repeats it: in quotes, on one line, its middle left out where it is long."""
    shown = text if len(text) <= _QUOTE_LIMIT else f"{text[: _QUOTE_LIMIT // 2]}…{text[-_QUOTE_LIMIT // 4 :]}"
    return '"' + "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in shown) + '"'


class NvdpError(Exception):
    """Base of all expected errors; anything else is a defect."""


class UsageError(NvdpError):
    """A flag or an environment variable that does not parse. Exit code 2: it cannot change while the process runs."""


class FormatError(NvdpError):
    """A text that is not a value of its type. The message says what is wrong, without where the text stands."""


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """One thing wrong, or doubtful, in a configuration. Lines and columns count from 1.

    ``path`` is the dotted key concerned, ``syntax`` for a text that is no YAML, or empty for the file as a whole.
    """

    file: str
    line: int
    column: int
    path: str
    message: str

    def __str__(self) -> str:
        return self._render("")

    def render_warning(self) -> str:
        """The same line, marked as something that does not stop the configuration from being used."""
        return self._render("warning: ")

    def _render(self, mark: str) -> str:
        path = f"{self.path}: " if self.path else ""
        return f"{self.file}:{self.line}:{self.column}: {mark}{path}{self.message}"


class ConfigError(NvdpError):
    """A configuration that is not used. ``problems`` holds all that is wrong with it, first line first."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = problems


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


class ClusterFault(enum.Enum):
    """What kind of failure of the API server it is, as far as that decides what to do."""

    UNREACHABLE = "unreachable"  # no connection, no answer in time, TLS, an answer that is none
    DENIED = "denied"  # 401, 403
    MISSING = "missing"  # 404
    CONFLICT = "conflict"  # 409
    GONE = "gone"  # 410: this version is too old to go on from
    THROTTLED = "throttled"  # 429
    REFUSED = "refused"  # any other 4xx: the request is at fault
    FAILED = "failed"  # 5xx


class ClusterError(NvdpError):
    """The API server refused, or could not be asked. The text names what was asked for, and for DENIED what is missing.

    ``retry_after_s`` is what the server asked for, in seconds; None where it said nothing.
    """

    def __init__(self, text: str, *, fault: ClusterFault, retry_after_s: float | None = None) -> None:
        super().__init__(text)
        self.fault = fault
        self.retry_after_s = retry_after_s


class HostError(NvdpError):
    """A file, directory, socket or process of the node that could not be used as needed."""


class AllocationError(NvdpError):
    """A request of the kubelet that must be refused. The text reaches the user in the pod's status.

    ``reason`` is a value of the label ``reason`` of ``nvdp_allocations_refused_total``.
    """

    def __init__(self, text: str, *, reason: str) -> None:
        super().__init__(text)
        self.reason = reason
