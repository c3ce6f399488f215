"""What every process of ours that runs until it is told to stop has around its work: a log, last words, an exit."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import NoReturn

from nvdp.app.crashes import log_defects
from nvdp.config.process import ProcessOptions
from nvdp.errors import HostError
from nvdp.log import (
    TERMINATION_LOG,
    StreamLog,
    configure_log,
    open_standard_streams,
    silence_libraries,
    write_termination_message,
)
from nvdp.model.reasons import Level, Reason


def run_process(options: ProcessOptions, work: Callable[[StreamLog], int]) -> NoReturn:
    """Do the work with a log made as the options say, and end the process with the exit code that it returns.

    Exit code 1: it cannot do its job at all and waiting cannot help (HostError), or a defect; the last line of the log
    says why, and so does the pod's termination message.
    """
    open_standard_streams()
    silence_libraries()
    log = configure_log(format=options.log_format.value if options.log_format else None, level=options.log_level.value)
    log_defects(log)
    code = 1
    try:
        code = work(log)
    except HostError as error:
        log(Reason.STOPPED, str(error), level=Level.ERROR)
        write_termination_message(TERMINATION_LOG, str(error))
    except Exception as error:  # noqa: BLE001 - the last line before an exit says why
        sys.excepthook(type(error), error, error.__traceback__)
        write_termination_message(TERMINATION_LOG, f"a defect ended nvdp: {error}")
    log.flush()
    # A thread that is stuck in C, or an executor's exit hook, would keep the process alive.
    os._exit(code)
