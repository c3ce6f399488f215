"""Plays the tour: one step after the other, each held against its limit, until one does not go as expected."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import msgspec

from nvdp.simulate.kubelet import KubeletCrashedError
from nvdp.simulate.scene import Outcome, Scene, UnexpectedError
from nvdp.simulate.steps import Step


class StepResult(msgspec.Struct, frozen=True, kw_only=True):
    """How a step went. ``expected`` and ``seen`` are None if it went well; ``number`` counts from 1."""

    number: int
    name: str
    title: str
    seconds: float
    limit_s: float
    lines: tuple[str, ...] = ()
    expected: str | None = None
    seen: str | None = None

    @property
    def is_ok(self) -> bool:
        return self.expected is None


class TourResult(msgspec.Struct, frozen=True, kw_only=True):
    """The whole tour; ``not_run`` counts the steps that a failed one kept from being played."""

    steps: tuple[StepResult, ...]
    not_run: int
    seconds: float

    @property
    def is_ok(self) -> bool:
        return all(step.is_ok for step in self.steps)


def play_tour(
    scene: Scene,
    steps: Sequence[Step],
    *,
    only: str | None,
    pace_s: float,
    slack: float,
    begin: Callable[[int, Step], None] = lambda _number, _step: None,
    end: Callable[[StepResult], None] = lambda _result: None,
) -> TourResult:
    """Play ``steps``; the daemon has just been started. ``begin`` and ``end`` are told of each step that is shown.

    With ``only`` the steps before the one of that name are played for their effect: one of them is shown if it fails.
    ``pace_s`` is waited before each step but the first; ``slack`` multiplies the limits.
    """
    began = time.monotonic()
    results: list[StepResult] = []
    for number, step in enumerate(steps, 1):
        shown = only in {None, step.name}
        if shown and results:
            time.sleep(pace_s)
        if shown:
            begin(number, step)
        result = _play(scene, number, msgspec.structs.replace(step, limit_s=step.limit_s * slack))
        if shown or not result.is_ok:
            results.append(result)
            end(result)
        if not result.is_ok or step.name == only:
            break
    wanted = 1 if only is not None else len(steps)
    return TourResult(steps=tuple(results), not_run=max(0, wanted - len(results)), seconds=time.monotonic() - began)


def _play(scene: Scene, number: int, step: Step) -> StepResult:
    began = time.monotonic()
    about = StepResult(number=number, name=step.name, title=step.title, seconds=0.0, limit_s=step.limit_s)
    try:
        outcome = step.play(scene)
        _check_limit(outcome, step)
    except UnexpectedError as error:
        expected, seen = error.expected, error.seen
    except KubeletCrashedError as error:
        expected, seen = "a kubelet that lives", f"it crashed: {error}"
    else:
        return msgspec.structs.replace(about, seconds=outcome.seconds, lines=outcome.lines)
    return msgspec.structs.replace(about, seconds=time.monotonic() - began, expected=expected, seen=seen)


def _check_limit(outcome: Outcome, step: Step) -> None:
    if outcome.seconds > step.limit_s:
        raise UnexpectedError(
            expected=f"all of it within {step.limit_s:g} s",
            seen=f"all of it, after {outcome.seconds:.2f} s; --slack 3 makes allowance for a busy machine",
        )
