"""The edits that the tour makes to a configuration: more replicas, and a typo. Text in, text out."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from nvdp.config.load import parse_config
from nvdp.config.schema import Config
from nvdp.config.sharing import SharedResource, TimeSlicing
from nvdp.errors import ConfigError, UsageError
from nvdp.model.listing import SharedPolicy

TOUR_CONFIG: Final = """\
version: v1
sharing:
  timeSlicing:
    resources:
    - name: nvidia.com/gpu
      replicas: 4
"""
_REPLICAS: Final = re.compile(r"""(?P<key>(["']?)\breplicas\b\2)\s*:\s*(?P<value>[0-9]+)""")


class SharedConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A configuration that shares GPUs by time-slicing, and the place where it says into how many.

    ``resource`` is the name that pods ask for; ``key`` and ``value`` are spans of ``text``; ``config`` and ``entry``
    are the file and the path of its entry as they were first.
    """

    text: str
    resource: str
    replicas: int
    key: tuple[int, int]
    value: tuple[int, int]
    config: Config
    entry: str

    @property
    def one_each(self) -> bool:
        """Whether a container that asks for two is refused."""
        return self._time_slicing.fail_requests_greater_than_one

    @property
    def distinct(self) -> bool:
        """Whether the shares of one container are of different GPUs where there are several."""
        return self.requires_distinct or self.config.allocation.shared_policy is not SharedPolicy.PACKED

    @property
    def requires_distinct(self) -> bool:
        """Whether a container that asks for more shares than there are GPUs is refused."""
        return self._time_slicing.require_distinct_gpus

    @property
    def _time_slicing(self) -> TimeSlicing:
        assert self.config.sharing.time_slicing is not None
        return self.config.sharing.time_slicing

    @property
    def line(self) -> int:
        """The line of the ``replicas`` key, counted from 1."""
        return self.text.count("\n", 0, self.key[0]) + 1

    @property
    def column(self) -> int:
        """The column of the ``replicas`` key, counted from 1."""
        return self.key[0] - self.text.rfind("\n", 0, self.key[0])

    def share_by(self, replicas: int) -> SharedConfig:
        """The same with another number of replicas."""
        start, end = self.value
        text = f"{self.text[:start]}{replicas}{self.text[end:]}"
        return msgspec.structs.replace(self, text=text, replicas=replicas, value=(start, start + len(str(replicas))))

    def build_typo(self, replicas: int) -> str:
        """The text of ``share_by`` with the key misspelt: ``replica``."""
        wanted = self.share_by(replicas)
        start, end = wanted.key
        return wanted.text[:start] + wanted.text[start:end].replace("replicas", "replica") + wanted.text[end:]

    def show_line(self) -> str:
        """The line of the ``replicas`` key."""
        return self.text.splitlines()[self.line - 1]


def parse_shared(text: str, *, name: str) -> SharedConfig:
    """Raises ConfigError if ``text`` is not valid, UsageError if the tour has nothing to edit in it."""
    config = parse_config(text, name=name)
    entry = _find_entry(config)
    if entry is None or config.sharing.time_slicing is None:
        raise UsageError(
            f"{name}: the tour edits sharing.timeSlicing.resources[0].replicas, which must be 2 or more here; "
            "nvdp simulate --serve takes any configuration"
        )
    for match in _REPLICAS.finditer(text, _find_offset(text, entry.line)):
        found = SharedConfig(
            text=text,
            resource=str(entry.build_final_name(rename_by_default=config.sharing.time_slicing.rename_by_default)),
            replicas=entry.replicas,
            key=match.span("key"),
            value=match.span("value"),
            config=config,
            entry=entry.path,
        )
        if _is_the_place(found, name):
            return found
    raise UsageError(
        f"{name}: the tour edits the text of {entry.path}.replicas, and that is an alias here; write it out"
    )


def _find_entry(config: Config) -> SharedResource | None:
    shared = config.sharing.time_slicing.resources if config.sharing.time_slicing is not None else ()
    return shared[0] if shared and shared[0].is_shared else None


def _find_offset(text: str, line: int) -> int:
    return sum(len(one) for one in text.splitlines(keepends=True)[: max(0, line - 1)])


def _is_the_place(found: SharedConfig, name: str) -> bool:
    """Whether an edit there has the effect; it has none in a comment, or in another entry."""
    wanted = found.replicas + 1
    try:
        entry = _find_entry(parse_config(found.share_by(wanted).text, name=name))
    except ConfigError:
        return False
    return entry is not None and entry.replicas == wanted
