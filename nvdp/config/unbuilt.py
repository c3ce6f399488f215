"""The keys that are read and checked, but whose feature this version does not have. The one list of them.

Such a key is ignored: what is on offer is the same without it, and one warning at start says what is missing. A test
holds this list against the code: a key that something outside of ``config`` reads is not in it, and the other way
round.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from nvdp.config.keys import find_key
from nvdp.config.process import ProcessOptions
from nvdp.config.schema import Config


class Unbuilt(msgspec.Struct, frozen=True, kw_only=True):
    """One use of such a key. ``text`` says what it would have done; ``line`` is 0 for an option."""

    path: str
    line: int = 0
    text: str

    @property
    def sentence(self) -> str:
        """For people: the key, what it would have done, and what becomes of it."""
        return f"{self.path}: not built yet ({self.text}); it is ignored"


class Later(msgspec.Struct, frozen=True):
    """A key whose feature comes later: any value but the default calls for it."""

    path: str
    text: str


LATER: Final = (
    Later("flags.gfd.noTimestamp", "the label with the time would be left out"),
    Later("flags.gfd.machineTypeFile", "the machine's type would be read there"),
)
LATER_OPTIONS: Final = (
    Later("events", "the node would get events"),
    Later("nodeCondition", "the node would get a condition"),
    Later("startupTaint", "the node would lose this taint"),
)


def find_unbuilt(config: Config) -> tuple[Unbuilt, ...]:
    """Every use of a key that has no effect yet, in the order of the list."""
    return tuple(
        Unbuilt(path=later.path, line=config.origins[later.path].line, text=later.text)
        for later in LATER
        if _is_used(later, config)
    )


def find_unbuilt_options(options: ProcessOptions) -> tuple[Unbuilt, ...]:
    """The same for flags and environment variables without a key in the file. Their path is the flag."""
    return tuple(
        Unbuilt(path=f"--{key.setting.flags[0]}", text=later.text)
        for later in LATER_OPTIONS
        for key in (find_key(ProcessOptions, later.path),)
        if getattr(options, key.attribute) != key.default
    )


def _is_used(later: Later, config: Config) -> bool:
    block: Any = config
    *blocks, last = later.path.split(".")
    for name in blocks:
        block = getattr(block, find_key(type(block), name).attribute)
    key = find_key(type(block), last)
    return bool(getattr(block, key.attribute) != key.default)
