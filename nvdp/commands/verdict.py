"""What ``nvdp config check`` found out about one file, as lines and as JSON."""

from __future__ import annotations

import enum
from typing import Any, Final

import click
import msgspec

from nvdp.config.nvidia import Difference
from nvdp.config.nvidia_rows import Effect
from nvdp.errors import Problem


class Verdict(enum.Enum):
    VALID = "valid"
    UNREADABLE = "unreadable"
    INVALID = "invalid"
    DANGEROUS = "dangerous"  # valid, but not what the file says where it is to go


_EXIT_CODES: Final = {  # the worst first: what could not be judged may be dangerous as well
    Verdict.INVALID: 2,
    Verdict.UNREADABLE: 1,
    Verdict.DANGEROUS: 3,
    Verdict.VALID: 0,
}


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """One file. ``unreadable`` says why there is nothing else; ``differences`` is None where nobody asked for them."""

    name: str
    unreadable: str = ""
    errors: tuple[Problem, ...] = ()
    warnings: tuple[Problem, ...] = ()
    differences: tuple[Difference, ...] | None = None

    @property
    def verdict(self) -> Verdict:
        if self.unreadable:
            return Verdict.UNREADABLE
        if self.errors:
            return Verdict.INVALID
        return Verdict.DANGEROUS if self.count(Effect.DANGEROUS) else Verdict.VALID

    def count(self, effect: Effect) -> int:
        """How many differences have this effect."""
        return sum(difference.effect is effect for difference in self.differences or ())


def find_exit_code(checked: list[Checked]) -> int:
    """That of the worst file."""
    verdicts = {one.verdict for one in checked}
    return next(code for verdict, code in _EXIT_CODES.items() if verdict in verdicts)


def print_checked(checked: Checked) -> None:
    """On stderr what is wrong or doubtful; on stdout the differences, and as the last line that the file is valid."""
    for line in (checked.unreadable, *map(str, checked.errors)):
        if line:
            click.echo(line, err=True)
    print_warnings(checked.warnings)
    for difference in checked.differences or ():
        click.echo(str(difference))
    if not checked.unreadable and not checked.errors:
        click.echo(f"{checked.name}: {_judge(checked)}")


def print_warnings(warnings: tuple[Problem, ...]) -> None:
    """On stderr what does not stop the file from being used."""
    for warning in warnings:
        click.echo(warning.render_warning(), err=True)


def build_checked(checked: Checked) -> dict[str, Any]:
    """The same in JSON's own types."""
    built: dict[str, Any] = {"file": checked.name, "verdict": checked.verdict.value}
    built["errors"] = [_build_problem(error) for error in checked.errors]
    if checked.unreadable:
        built["errors"] = [{"message": checked.unreadable}]
    built["warnings"] = [_build_problem(warning) for warning in checked.warnings]
    if checked.differences is not None:
        built["differences"] = [{"effect": it.effect.value, **_build_problem(it)} for it in checked.differences]
    return built


def _judge(checked: Checked) -> str:
    """For people and for grep: it does not hold the words, with their colon, that mark a difference."""
    if checked.differences is None:
        return "valid"
    if not checked.differences:
        return "valid, and means the same to NVIDIA's plugin"
    dangerous, notes = checked.count(Effect.DANGEROUS), checked.count(Effect.NOTE)
    counted = f"{dangerous} dangerous, {notes} {'note' if notes == 1 else 'notes'}"
    return f"valid; going back to NVIDIA's plugin is {'dangerous' if dangerous else 'not dangerous'} ({counted})"


def _build_problem(problem: Problem) -> dict[str, Any]:
    return {"line": problem.line, "column": problem.column, "path": problem.path, "message": problem.message}
