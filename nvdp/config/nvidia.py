"""What in a valid file means something else to NVIDIA's plugin: the check before going back to it.

Only the file is judged. What flags and environment say, and how the two programs differ whatever the file says, is left
to docs/from-nvidia.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from nvdp.config.document import parse_document
from nvdp.config.goyaml import find_late_merges, find_version_directive
from nvdp.config.nodes import Mark
from nvdp.config.nvidia_rows import ROWS, Effect, Row
from nvdp.config.schema import Config
from nvdp.config.written import iterate_written
from nvdp.errors import Problem

_PLUGIN: Final = "NVIDIA's plugin"
OTHER_VERSION: Final = "does not start: it reads YAML 1.1 only; remove the %YAML line"
LATE_MERGE: Final = "lets << replace what stands before it; put << first"


class Difference(Problem, frozen=True, kw_only=True):
    """One thing in a file that means something else there, at the key or value concerned."""

    effect: Effect

    def __str__(self) -> str:
        return self._render(f"{self.effect.value}: ")


def find_differences(config: Config, text: bytes | str) -> tuple[Difference, ...]:
    """Everything that differs, in the order of the file. ``config`` is what ``parse_config`` made of ``text``. Pure."""
    decoded = (text if isinstance(text, str) else text.decode()).removeprefix("\ufeff")
    found = [*_iterate_spellings(config, decoded), *_iterate_rows(config, decoded)]
    return tuple(sorted(found, key=lambda difference: (difference.line, difference.column)))


def _iterate_rows(config: Config, text: str) -> Iterator[Difference]:
    rows_of: dict[str, list[Row]] = {}
    for written in iterate_written(parse_document(text, name=config.name), config):
        rows = rows_of.get(written.pattern)
        if rows is None:
            rows = rows_of[written.pattern] = [row for row in ROWS if row.matches(written.pattern)]
        for row in rows:
            if row.null is written.is_null and row.differs(written):
                yield _build(config, written.node.mark, written.path, row.effect, row.tell(written))


def _iterate_spellings(config: Config, text: str) -> Iterator[Difference]:
    """What is not about one key: the text as YAML."""
    directive = find_version_directive(text)
    if directive is not None:
        yield _build(config, directive, "", Effect.DANGEROUS, OTHER_VERSION)
    for merge in find_late_merges(text):
        yield _build(config, merge.mark, merge.path, Effect.DANGEROUS, LATE_MERGE)


def _build(config: Config, mark: Mark, path: str, effect: Effect, meaning: str) -> Difference:
    return Difference(
        file=config.name,
        line=mark.line,
        column=mark.column,
        path=path,
        message=f"{_PLUGIN} {meaning}",
        effect=effect,
    )
