"""Why a text is no YAML, in the words of someone who edits it.

libyaml and PyYAML's own parser name the same fault differently; what is said here rests on the place and on the text.
"""

from __future__ import annotations

from typing import Final

import msgspec

from nvdp.config.nodes import Mark
from nvdp.errors import quote

_CLOSING: Final = {"[": "]", "{": "}"}
_IN_WORDS: Final = (  # part of the parser's context, part of its problem, what to say; the first that fits
    ("", "mapping values", 'a ":" is not expected here; check the indentation, or quote the text'),
    ("", "document start", "this line does not continue what is above it; check the indentation"),
    ("block", "expected", "this line does not continue what is above it; check the indentation"),
    ("", "escape", "a backslash sequence in double quotes is not known; use single quotes"),
    ("", "incompatible YAML", "only YAML 1.1 and 1.2 are read; remove the %YAML line"),
)


class Opened(msgspec.Struct, frozen=True):
    """The innermost list or block that was open. ``bracket`` is empty for one that is written by indentation."""

    bracket: str
    mark: Mark


class _Fault(msgspec.Struct, frozen=True):
    """What the parser said, and the text at the place where it said so."""

    mark: Mark
    lines: list[str]
    context: str
    problem: str
    start: Mark | None
    opened: Opened | None

    @property
    def line(self) -> str:
        return self.lines[self.mark.line - 1]

    @property
    def found(self) -> str:
        return self.line[self.mark.column - 1 : self.mark.column]


def explain(error: Exception, *, text: str, opened: Opened | None) -> tuple[Mark, str]:
    """Where and why ``text`` stopped being YAML."""
    lines = text.splitlines() or [""]
    start = getattr(error, "context_mark", None)
    fault = _Fault(
        _find_mark(getattr(error, "problem_mark", None) or start, lines),
        lines,
        str(getattr(error, "context", None) or ""),
        str(getattr(error, "problem", None) or ""),
        _find_mark(start, lines) if start else None,
        opened,
    )
    if tab := _find_tab(fault):
        return tab, "found a tab where only spaces may indent"
    message = _explain_quote(fault) or _explain_bracket(fault) or _explain_words(fault)
    return fault.mark, message


def _find_mark(mark: object, lines: list[str]) -> Mark:
    line, column = getattr(mark, "line", len(lines)), getattr(mark, "column", 0)
    return Mark(line + 1, column + 1) if line < len(lines) else Mark(len(lines), len(lines[-1]) + 1)


def _find_tab(fault: _Fault) -> Mark | None:
    indent = fault.line[: _count_indent(fault.line)]
    if "\t" in indent:
        return Mark(fault.mark.line, indent.index("\t") + 1)
    return fault.mark if fault.found == "\t" and "cannot start" in fault.problem else None


def _explain_quote(fault: _Fault) -> str | None:
    if "quoted scalar" not in fault.context or "end of" not in fault.problem or fault.start is None:
        return None
    return f"quote opened at {fault.start.line}:{fault.start.column} is not closed"


def _explain_bracket(fault: _Fault) -> str | None:
    """A missing bracket where the text ends, closes something else, or goes on outside; else a missing comma."""
    if fault.opened is None or not fault.opened.bracket or "scanning" in fault.context:
        return None
    bracket, opened = fault.opened.bracket, fault.opened.mark
    closing, where = _CLOSING[bracket], f"{opened.line}:{opened.column}"
    rest = fault.line[fault.mark.column - 1 :].strip()
    outside = fault.mark.line > opened.line and _count_indent(fault.line) <= _count_indent(fault.lines[opened.line - 1])
    if not rest or outside or rest[0] in set(_CLOSING.values()) - {closing}:
        return f'"{bracket}" opened at {where} is not closed'
    return f'"," or "{closing}" is missing before this, after the "{bracket}" opened at {where}'


def _explain_words(fault: _Fault) -> str:
    if fault.found in _CLOSING.values():
        return f'"{fault.found}" closes nothing'
    if "cannot start" in fault.problem and fault.found:
        return f"text may not start with {quote(fault.found)}; quote it"
    fitting = (said for context, problem, said in _IN_WORDS if context in fault.context and problem in fault.problem)
    return next(fitting, fault.problem or "this is not readable as YAML")


def _count_indent(line: str) -> int:
    return len(line) - len(line.lstrip())
