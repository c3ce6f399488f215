"""The keys that are read and checked, but whose feature this version does not have. The one list of them.

Where ignoring a key would offer a device that the file does not offer, what it concerns is withheld; where it would
not, one warning at start says what is missing. A test holds this list against the code: a key that something outside
of ``config`` reads is not in it, and the other way round.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from nvdp.config.keys import find_key
from nvdp.config.process import ProcessOptions
from nvdp.config.schema import Config
from nvdp.config.sharing import SharedResource


class Outcome(enum.Enum):
    """What becomes of a file that uses such a key."""

    WITHHOLD = "withhold"
    WARN = "warn"


_EFFECTS: Final = {Outcome.WITHHOLD: "what it concerns is withheld", Outcome.WARN: "it is ignored"}


class Unbuilt(msgspec.Struct, frozen=True, kw_only=True):
    """One use of such a key. ``text`` says what it would have done; ``line`` is 0 if the file does not have it."""

    path: str
    line: int = 0
    outcome: Outcome
    text: str

    @property
    def sentence(self) -> str:
        """For people: the key, what it would have done, and what becomes of it."""
        return f"{self.path}: not built yet ({self.text}); {_EFFECTS[self.outcome]}"


class Later(msgspec.Struct, frozen=True):
    """A key whose feature comes later: any value but the default calls for it."""

    path: str
    outcome: Outcome
    text: str


_HOLD, _WARN = Outcome.WITHHOLD, Outcome.WARN
LATER: Final = (
    # Devices that the file keeps back, or offers in another form or on conditions: ignored, they would be offered.
    Later("sharing.mps.resources[]", _HOLD, "these devices would be shared through MPS"),
    # The same devices are on offer without these: what is missing is a label, a mount, or a refusal later on.
    Later("flags.mpsRoot", _WARN, "MPS daemons would be looked for there"),
    Later("flags.useNodeFeatureAPI", _WARN, "labels would be written to a file"),
    Later("flags.gfd.oneshot", _WARN, "the node would be labelled once"),
    Later("flags.gfd.noTimestamp", _WARN, "the label with the time would be left out"),
    Later("flags.gfd.sleepInterval", _WARN, "labels would be looked at this often"),
    Later("flags.gfd.outputFile", _WARN, "labels would be written to this file"),
    Later("flags.gfd.machineTypeFile", _WARN, "the machine's type would be read there"),
)  # fmt: skip
LATER_OPTIONS: Final = (Later("nodeCondition", _WARN, "the node would get a condition"),)


def find_unbuilt(config: Config) -> tuple[Unbuilt, ...]:
    """Every use of a key that has no effect yet, in the order of the list."""
    return tuple(unbuilt for later in LATER for unbuilt in _find_uses(later, config))


def find_unbuilt_options(options: ProcessOptions) -> tuple[Unbuilt, ...]:
    """The same for flags and environment variables without a key in the file. Their path is the flag."""
    return tuple(
        Unbuilt(path=f"--{key.setting.flags[0]}", outcome=later.outcome, text=later.text)
        for later in LATER_OPTIONS
        for key in (find_key(ProcessOptions, later.path),)
        if getattr(options, key.attribute) != key.default
    )


class _Place(msgspec.Struct, frozen=True):
    """One key of one configuration: its value, whether that is the default, and the blocks around it, inner first."""

    path: str
    value: Any
    is_default: bool
    blocks: tuple[Any, ...]


def _find_uses(later: Later, config: Config) -> Iterator[Unbuilt]:
    for place in _find_places(later.path.split("."), "", (config,)):
        if not place.is_default:
            line = _find_line(place, config)
            yield Unbuilt(path=place.path, line=line, outcome=later.outcome, text=later.text)


def _find_places(segments: list[str], path: str, blocks: tuple[Any, ...]) -> Iterator[_Place]:
    """All places that a path like ``sharing.mps.resources[].name`` stands for."""
    name, *rest = segments
    key = find_key(type(blocks[0]), name.removesuffix("[]"))
    value = getattr(blocks[0], key.attribute)
    inner = f"{path}.{key.name}" if path else key.name
    found = [(f"{inner}[{at}]", entry) for at, entry in enumerate(value)] if name.endswith("[]") else [(inner, value)]
    for found_path, item in found:
        if not rest:
            yield _Place(found_path, item, item == key.default, (item, *blocks) if name.endswith("[]") else blocks)
        elif item is not None:
            yield from _find_places(rest, found_path, (item, *blocks))


def _find_line(place: _Place, config: Config) -> int:
    if place.path in config.origins:
        return config.origins[place.path].line
    return next((block.line for block in (place.value, *place.blocks) if isinstance(block, SharedResource)), 0)
