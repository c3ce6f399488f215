"""A configuration that came into force: how the log tells it, and what is kept of it. Part of ``adoption``."""

from __future__ import annotations

from nvdp.config.schema import Config, PreStartCheck
from nvdp.host.state import AppliedConfig
from nvdp.log import Log
from nvdp.model.chosen import Chosen
from nvdp.model.reasons import Level, Reason
from nvdp.services.events import ConfigRead


def build_applied(config: Config, read: ConfigRead) -> AppliedConfig:
    """What a restart is to go on with: ``config``, which came with ``read``."""
    return AppliedConfig(text=read.text.decode(), source=config.name, hash=config.hash, chosen=read.chosen)


def tell_applied(config: Config, chosen: Chosen | None, what: str, *, log: Log) -> None:
    """It is in force; ``what`` says what that changes, or that it changes nothing."""
    by = f" ({chosen.by})" if chosen is not None else ""
    text = f"{config.name}{by} {config.hash}  {what}"
    log(Reason.CONFIG_APPLIED, text, config=config.name, hash=config.hash)


def tell_remarks(config: Config, *, log: Log) -> None:
    """What is doubtful in it."""
    for warning in config.warnings:
        text = warning.render_warning()
        log(Reason.CONFIG_APPLIED, text, level=Level.WARNING, config=config.name, hash=config.hash)


def tell_of_next_start(config: Config, *, until: PreStartCheck, log: Log) -> None:
    """It changes what only a new process can follow; ``until`` then the former counts."""
    wanted = config.allocation.pre_start_check.value
    text = f"allocation.preStartCheck: {wanted} is used from the next start of nvdp on; until then it is {until.value}"
    log(Reason.CONFIG_APPLIED, text, level=Level.WARNING, config=config.name, hash=config.hash)
