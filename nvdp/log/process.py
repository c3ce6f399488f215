"""What a process says outside its log: nothing by its libraries, and one sentence to Kubernetes when it fails."""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from pathlib import Path
from typing import TypedDict

TERMINATION_LOG = Path("/dev/termination-log")  # where Kubernetes looks unless the container says otherwise
_LAST_STANDARD = 2
_TERMINATION_LIMIT_BYTES = 4096  # the kubelet reads no more of it


def silence_libraries() -> None:
    """Keep stderr to the log's own lines; call it before grpc is imported.

    What matters of a library is raised, and translated at the edge where it occurs. ``GRPC_VERBOSITY`` and ``-W`` of
    the person who starts the process are obeyed: who asks for a library's own words gets them.
    """
    import logging  # noqa: PLC0415 - grpc brings it along; other commands need not pay for it

    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    logging.lastResort = None
    logging.getLogger().addHandler(logging.NullHandler())
    if not sys.warnoptions:
        warnings.simplefilter("ignore")


def open_standard_streams() -> None:
    """Give a process that was started without standard streams empty ones.

    Else the next socket or pipe gets the number of one of them, and what a library prints ends up in there.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= _LAST_STANDARD:
        os.set_inheritable(descriptor, True)  # noqa: FBT003 - the standard library's signature
    os.close(descriptor)


class Described(TypedDict):
    """Fields of a log line about an unexpected exception: ``error`` is one line, class and text."""

    error: str
    trace: str


def describe_exception(error: BaseException) -> Described:
    """The fields that say of an unexpected exception what it was and where it came from."""
    return {
        "error": " ".join("".join(traceback.format_exception_only(error)).split()),
        "trace": "".join(traceback.format_exception(error)),
    }


def write_termination_message(path: Path, text: str) -> None:
    """Leave ``text`` where ``kubectl describe pod`` shows it. Never raises.

    The kubelet makes the file; outside a pod there is none, and none is made.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return
    try:
        content = text.encode("utf-8", "backslashreplace")[:_TERMINATION_LIMIT_BYTES]
        os.write(descriptor, content.decode("utf-8", "ignore").encode())
    except OSError:
        pass  # a full disk: the log has the same sentence
    finally:
        os.close(descriptor)
