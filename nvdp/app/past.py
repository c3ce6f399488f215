"""What a start begins with: what a predecessor knew, what the environment says, and whether the driver may be touched.

All of it is read before anything is started, so it must be quick: no YAML, no grpc.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nvdp.config.overrides import Overrides
from nvdp.config.process import ProcessOptions
from nvdp.config.schema import Config
from nvdp.errors import ConfigError, HostError
from nvdp.host.config_directory import directory_fingerprint
from nvdp.host.files import load_text
from nvdp.host.state import AppliedConfig, State
from nvdp.log import Log
from nvdp.model.reasons import Level, Reason
from nvdp.planning.xid_policy import DISABLE, ENABLE, parse_xid_variables
from nvdp.services.events import ConfigRead
from nvdp.services.health import KnownFaults
from nvdp.services.past import Past
from nvdp.services.remembering import Memory

if TYPE_CHECKING:
    from nvdp.services.adoption import Adoption

_PAUSED: Final = b"paused"
_LOOKED_AT_BYTES: Final = 2**20  # a configuration has no more


def build_past(state: State, *, boot_id: str, options: ProcessOptions, log: Log) -> Past:
    """What the service that knows the GPUs begins with. Warns of variables that are not understood.

    It waits for the configuration if that may say that the driver is not to be touched. Blocks for the disk.
    """
    variables = parse_xid_variables(disable=os.environ.get(DISABLE), enable=os.environ.get(ENABLE))
    for warning in variables.warnings:
        log(Reason.STARTING, warning, level=Level.WARNING)
    seen = state.seen
    return Past(
        faults=KnownFaults(records=state.health, boot_id=boot_id, variables=variables.rules),
        inventory=seen.inventory if seen is not None and boot_id and seen.boot_id == boot_id else None,
        is_held=_may_be_paused(state, options),
    )


def parse_kept(kept: AppliedConfig | None, overrides: Overrides, *, log: Log) -> Config | None:
    """A configuration that a predecessor kept, if it is still one."""
    if kept is None:
        return None
    from nvdp.config.load import parse_config  # noqa: PLC0415 - brings YAML, see ``app.daemon``

    try:
        return parse_config(kept.text, name=kept.source, overrides=overrides)
    except ConfigError as error:
        text = f"the last good configuration of {kept.source} is none for this version: {error}"
        log(Reason.STATE_DAMAGED, text, error=str(error))
        return None


def _may_be_paused(state: State, options: ProcessOptions) -> bool:
    """Whether the word stands in a file, or in one that is kept, which counts if that is broken or missing.

    Of a ConfigMap only what is kept is known here; where none was in force yet it may say anything.
    """
    if options.config_map and state.config is None:
        return True
    directory = options.config_dir
    files = [options.config_file] if options.config_file is not None else []
    if directory is not None:
        files += [directory / name for name in directory_fingerprint(directory).files]
    if not files and directory is None and not options.config_map:
        return False
    kept = [one.text.encode() for one in (state.candidate, state.config) if one is not None]
    return any(_PAUSED in text for text in kept) or any(map(_has_word, files))


def _has_word(file: Path) -> bool:
    try:
        text = load_text(file, limit_bytes=_LOOKED_AT_BYTES)
    except HostError:
        return False  # it is told, and tried again, by who reads the file
    return text is not None and _PAUSED in text


def build_adoption(
    state: State,
    memory: Memory,
    *,
    overrides: Overrides,
    options: ProcessOptions,
    log: Log,
    count_edit: Callable[[str], None],
) -> Adoption:
    """Who decides which configuration is in force, with those that are kept in the state."""
    from nvdp.services.adoption import Adoption  # noqa: PLC0415 - brings planning, which the child need not wait for

    return Adoption(
        last_good=parse_kept(state.config, overrides, log=log),
        memory=memory,
        log=log,
        count_edit=count_edit,
        wall=time.time,
        clock=time.monotonic,
        choose_delay_s=partial(random.uniform, 0.0, options.apply_jitter.seconds),
        last_chosen=state.config.chosen if state.config is not None else None,
        left=_build_left(state.candidate, overrides, log=log),
    )


def _build_left(candidate: AppliedConfig | None, overrides: Overrides, *, log: Log) -> ConfigRead | None:
    """The one that the predecessor did not come to judge, as if it were read now."""
    config = parse_kept(candidate, overrides, log=log)
    if candidate is None or config is None:
        return None
    return ConfigRead(
        source=candidate.source,
        config=config,
        text=candidate.text.encode(),
        chosen=candidate.chosen,
        at=time.monotonic(),
    )
