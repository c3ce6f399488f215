"""Where exceptions go that nobody expected: into the event queue, and never silently to nowhere."""

from __future__ import annotations

import sys
import threading
from types import TracebackType

from nvdp.log import Log, describe_exception
from nvdp.model.reasons import Level, Reason
from nvdp.services.events import Post, ServiceCrashed


def catch_thread_crashes(post: Post) -> None:
    """From now on a thread that dies posts ``ServiceCrashed``, and the supervisor starts its service again."""

    def hook(args: threading.ExceptHookArgs) -> None:
        if args.exc_value is None:
            return
        name = args.thread.name if args.thread is not None else "unknown"
        post(ServiceCrashed(thread=name, **describe_exception(args.exc_value)))

    threading.excepthook = hook


def log_defects(log: Log) -> None:
    """From now on an exception that ends the process, or that Python can only report, is a line of the log."""

    def hook(_kind: type[BaseException], error: BaseException, _trace: TracebackType | None) -> None:
        log(Reason.STOPPED, "a defect ended nvdp; please report it", level=Level.ERROR, **describe_exception(error))

    def unraisable(args: sys.UnraisableHookArgs) -> None:
        if args.exc_value is not None:
            fields = describe_exception(args.exc_value)
            log(Reason.SERVICE_RESTARTED, f"ignored by Python in {args.object!r:.200}", **fields)

    sys.excepthook = hook
    sys.unraisablehook = unraisable
