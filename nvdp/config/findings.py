"""What was found wrong or doubtful in one file, and where its values stand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeVar

from nvdp.config.nodes import Mark
from nvdp.errors import ConfigError, Problem

_Value = TypeVar("_Value")
_SHOWN: Final = 100  # a pasted log file is one mistake, not ten thousand


class Findings:
    """Collects problems and warnings of one file, by the path of the value concerned."""

    def __init__(self, name: str) -> None:
        self.count = 0
        self._name = name
        self._marks: dict[str, Mark] = {"": Mark(1, 1)}
        self._kept: dict[str, list[int]] = {}
        self._problems: list[Problem] = []
        self._warnings: list[Problem] = []

    @property
    def warnings(self) -> tuple[Problem, ...]:
        """In the order of the file."""
        return tuple(sorted(self._warnings, key=_find_place))

    @property
    def is_full(self) -> bool:
        """Whether further problems are only counted: what they say need not be worked out."""
        return self.count >= _SHOWN

    def report(self, path: str, message: str, *, mark: Mark | None = None) -> None:
        """Something is wrong at ``mark``, or where ``path`` stands."""
        self.count += 1
        if self.count <= _SHOWN:
            self._problems.append(self._build(path, message, mark))

    def warn(self, path: str, message: str) -> None:
        """Something is doubtful, and does not stop the file from being used."""
        if len(self._warnings) < _SHOWN:
            self._warnings.append(self._build(path, message, None))

    def place(self, path: str, mark: Mark) -> None:
        """The value of ``path`` stands at ``mark``."""
        self._marks[path] = mark

    def keep(self, path: str, kept: list[int]) -> None:
        """Of the list at ``path`` only the entries with these numbers were right; the others were left out."""
        self._kept[path] = kept

    def is_whole(self, path: str) -> bool:
        """Whether nothing was left out of the list at ``path``."""
        return path not in self._kept

    def trace(self, path: str, values: Sequence[_Value]) -> list[tuple[str, _Value]]:
        """The values of a list, each with its path in the file."""
        numbers = self._kept.get(path, range(len(values)))
        return [(f"{path}[{number}]", value) for number, value in zip(numbers, values, strict=True)]

    def is_given(self, path: str) -> bool:
        """Whether the file itself has a value for this key."""
        return path in self._marks

    def find_line(self, path: str) -> int:
        """The line of a value; if the file does not have it, of the block around it."""
        return self._find_mark(path).line

    def raise_problems(self) -> None:
        """Raise ConfigError with everything that was reported, in the order of the file, if anything was."""
        if not self.count:
            return
        problems = sorted(self._problems, key=_find_place)
        if self.count > _SHOWN:
            last = problems[-1]
            problems.append(self._build("", f"{self.count - _SHOWN} more", Mark(last.line, last.column)))
        raise ConfigError(tuple(problems))

    def _build(self, path: str, message: str, mark: Mark | None) -> Problem:
        mark = mark or self._find_mark(path)
        return Problem(file=self._name, line=mark.line, column=mark.column, path=path, message=message)

    def _find_mark(self, path: str) -> Mark:
        while path not in self._marks:
            path = path[: max(path.rfind("."), path.rfind("["), 0)]
        return self._marks[path]


def _find_place(problem: Problem) -> tuple[int, int]:
    return problem.line, problem.column
