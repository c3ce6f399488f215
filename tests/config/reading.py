"""One way for tests to read a configuration: what it says, or the lines that a person would see."""

from __future__ import annotations

import textwrap

from nvdp.config.load import parse_config
from nvdp.config.overrides import NO_OVERRIDES, Overrides
from nvdp.config.schema import Config
from nvdp.errors import ConfigError


def read(text: str | bytes, overrides: Overrides = NO_OVERRIDES) -> Config:
    if isinstance(text, str):
        text = textwrap.dedent(text)
    return parse_config(text, name="f", overrides=overrides)


def errors_of(text: str | bytes, overrides: Overrides = NO_OVERRIDES) -> list[str]:
    """The lines of the refusal; empty if the file is valid."""
    try:
        read(text, overrides)
    except ConfigError as error:
        return str(error).split("\n")
    return []


def warnings_of(text: str) -> list[str]:
    return [warning.render_warning() for warning in read(text).warnings]
