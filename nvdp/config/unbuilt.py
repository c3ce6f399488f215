"""The options that are read and checked, but whose feature this version does not have. The one list of them.

Such an option is ignored: what is on offer is the same without it, and one warning at start says what is missing. A
test holds this list against the code: an option that something outside of ``config`` reads is not in it, and the other
way round. Of the keys of the file there is none.
"""

from __future__ import annotations

from typing import Final

import msgspec

from nvdp.config.keys import find_key
from nvdp.config.process import ProcessOptions


class Unbuilt(msgspec.Struct, frozen=True, kw_only=True):
    """One use of such an option. ``path`` is the flag, ``text`` says what it would have done."""

    path: str
    text: str

    @property
    def sentence(self) -> str:
        """For people: the flag, what it would have done, and what becomes of it."""
        return f"{self.path}: not built yet ({self.text}); it is ignored"


class Later(msgspec.Struct, frozen=True):
    """An option whose feature comes later: any value but the default calls for it. ``path`` is as in the struct."""

    path: str
    text: str


LATER_OPTIONS: Final = (
    Later("events", "the node would get events"),
    Later("nodeCondition", "the node would get a condition"),
    Later("startupTaint", "the node would lose this taint"),
)


def find_unbuilt_options(options: ProcessOptions) -> tuple[Unbuilt, ...]:
    """Every use of an option, by flag or variable, that has no effect yet, in the order of the list."""
    return tuple(
        Unbuilt(path=f"--{key.setting.flags[0]}", text=later.text)
        for later in LATER_OPTIONS
        for key in (find_key(ProcessOptions, later.path),)
        if getattr(options, key.attribute) != key.default
    )
