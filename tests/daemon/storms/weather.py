"""Storms as plain values, drawn from a seed: the same seed draws the same ones, whatever comes of them."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Mapping
from typing import Any

from nvdp.nvml.kinds import NvmlErrorKind
from nvdp.nvml.simulated.names import CALL_NAMES
from tests.daemon.storms.files import File, draw_file
from tests.daemon.storms.world import CARDS, LINKED, OF_ALL, OF_NONE, OF_ONE, Condition, Step

_SLOW = "nvmlInit"  # has a minute, whatever the file says
_XIDS = (13, 31, 43, 45, 48, 63, 64, 74, 79, 79, 94, 95, 109, 119, 154, 999)
_ACTIONS = ("None", "GPUReset", "NodeReboot", "DrainAndReset", "BusReset", "Unknown", "Unsupported")
_FABRIC_FAULTS = ("DegradedBandwidth", "RouteUnhealthy", "Misconfigured")
_ERRORS = tuple(kind.word for kind in NvmlErrorKind)
TRIALS = ("hear_all", "strike", "strike", "strike_for_long", "refuse", "admit_all", "be_still")


@dataclasses.dataclass(frozen=True)
class Storm:
    """Steps without a rest. Then all is well again but for what ``stands``, and ``file`` is published, if any.

    ``ended`` is the part of the pods that end; ``is_paused``: by command; ``is_long``: the calm lasts until all has
    left that is to leave. ``trial`` is a method of ``Trials``; ``arrivals`` are pods that come after it.
    """

    steps: tuple[Step, ...]
    stands: tuple[Step, ...]
    file: File | None
    ended: float
    is_paused: bool
    is_long: bool
    trial: Step
    arrivals: int


def draw_storms(seed: int, steps: int, *, patient: bool) -> list[Storm]:
    """So many steps in storms of 5 to 50. Unless ``patient``, nothing is drawn that takes the daemon a minute."""
    dice = random.Random(seed)
    storms = []
    left = steps
    while left > 0:
        count = min(left, dice.randint(5, 50))
        left -= count
        names = dice.choices(list(_STEPS), weights=[weight for weight, _ in _STEPS.values()], k=count)
        drawn = (Step(name, _STEPS[name][1](dice)) for name in names)
        storms.append(
            Storm(
                steps=tuple(_hurry(step) for step in drawn) if not patient else tuple(drawn),
                stands=_draw_standing(dice),
                file=draw_file(dice, len(CARDS)) if dice.random() < 0.6 else None,
                ended=dice.choice([0.0, 0.0, 0.2, 0.5, 1.0]),
                is_paused=dice.random() < 0.08,
                is_long=dice.random() < 0.25,
                trial=Step(dice.choice(TRIALS), (dice.choice(CARDS),)),
                arrivals=dice.choice([0, 1, 2, 4]),
            )
        )
    return storms


def _hurry(step: Step) -> Step:
    if step.name == "fail" and step.args[0] == _SLOW and step.args[2] == "hang":
        return Step("fail", (*step.args[:2], "Unknown"))
    return Step("stop_child", (True,)) if step.name == "stop_child" else step


def _draw_standing(dice: random.Random) -> tuple[Step, ...]:
    """What is still the matter in a calm: mostly with one card or two, now and then with all."""
    if dice.random() < 0.08:
        return (dice.choice([Step("set_driver", ("missing",)), Step("set_driver", ("not-loaded",)), *_ALL_STAND]),)
    cards = dice.sample(CARDS, dice.choice([0, 0, 1, 1, 2]))
    return tuple(dice.choice(_STANDING)(dice, card) for card in cards)


_ALL_STAND = tuple(Step("fail", (call, None, "Unknown")) for call in OF_ALL)
_STANDING: tuple[Callable[[random.Random, int], Step], ...] = (
    lambda _, card: Step("lose", (card,)),
    lambda _, card: Step("remove", (card,)),
    lambda dice, card: Step("fail", (dice.choice(OF_ONE), card, dice.choice(["Unknown", "GpuIsLost", "hang"]))),
    lambda dice, _: Step("fail", (dice.choice(OF_NONE), None, "Unknown")),
    lambda dice, card: Step("fare", (card, {"recoveryAction": dice.choice(_ACTIONS[1:-1])})),
    lambda dice, card: Step("fare", (card, dice.choice([{"remapFailure": True}, {"retiredPagesPending": True}]))),
    lambda dice, card: Step("fare", (card, {"fabric": {"faults": [dice.choice(_FABRIC_FAULTS)]}})),
    lambda _, card: Step("fare", (card, {"fabric": {"state": "InProgress"}})),
)


def _draw_event(dice: random.Random) -> tuple[Any, ...]:
    if dice.random() < 0.2:
        return (dice.choice(CARDS), None, dice.choice(["single", "double"]))
    return (dice.choice(CARDS), dice.choice([*_XIDS, dice.randrange(1, 200)]))


def _draw_condition(dice: random.Random) -> tuple[Any, ...]:
    card = dice.choice(CARDS)
    parts: list[Condition] = [
        {},
        {"recoveryAction": dice.choice(_ACTIONS)},
        {"ecc": {dice.choice(["memory", "sram"]): dice.randrange(1, 9)}},
        {"remapFailure": True},
        {"retiredPagesPending": True},
        {"fabric": dice.choice([{"state": "InProgress"}, {"faults": [dice.choice(_FABRIC_FAULTS)]}])},
        {"linksDown": [dice.randrange(2)]} if card in LINKED else {},
    ]
    return (card, {**dice.choice(parts), **dice.choice(parts)})


def _draw_fault(dice: random.Random) -> tuple[Any, ...]:
    """Any call, and more often one that no scan can do without, or the one that waits for events."""
    call = dice.choice([*CALL_NAMES, *OF_ALL, *OF_ONE, *["nvmlEventSetWait"] * 6])
    effect = dice.choices(["hang", "crash", dice.choice(_ERRORS)], weights=[2, 1, 7])[0]
    return (call, dice.choice([None, *CARDS]), effect)


def _draw_card(dice: random.Random) -> tuple[Any, ...]:
    return (dice.choice(CARDS),)


def _draw_part(dice: random.Random) -> tuple[Any, ...]:
    return (dice.random(),)


def _draw_nothing(_: random.Random) -> tuple[Any, ...]:
    return ()


# How often each thing happens, of what, and what is drawn for it.
_STEPS: Mapping[str, tuple[int, Callable[[random.Random], tuple[Any, ...]]]] = {
    "tell": (120, _draw_event),
    "fare": (60, _draw_condition),
    "lose": (30, _draw_card),
    "remove": (30, _draw_card),
    "bring_back": (50, _draw_card),
    "fail": (60, _draw_fault),
    "mend": (80, _draw_nothing),
    "count_anew": (25, lambda dice: (tuple(dice.sample(CARDS, len(CARDS))),)),
    "set_driver": (40, lambda dice: (dice.choice(["ready", "ready", "ready", "missing", "not-loaded"]),)),
    "kill_child": (30, _draw_nothing),
    "stop_child": (15, lambda dice: (dice.random() < 0.5,)),
    "edit": (60, lambda dice: (draw_file(dice, len(CARDS)),)),
    "break_file": (30, lambda dice: (dice.choice(["sharing: [", "version: v9\n", "\0", "version: v1\nhelth: {}\n"]),)),
    "hide_file": (10, _draw_nothing),
    "hurry": (20, _draw_nothing),
    "restart_kubelet": (15, lambda dice: (dice.choice([0.0, 0.0, 0.05, 0.5]),)),
    "cut_stream": (25, _draw_part),
    "delete_sockets": (8, _draw_nothing),
    "hide_holders": (8, _draw_nothing),
    "lose_api_server": (12, _draw_nothing),
    "find_api_server": (12, _draw_nothing),
    "admit": (160, lambda dice: (dice.random(), dice.choice([1, 1, 1, 2]))),
    "end_pod": (40, _draw_part),
    "pause": (6, _draw_nothing),
    "resume": (9, _draw_nothing),
    "clear": (8, _draw_card),
    "wait": (120, lambda dice: (dice.choice([0.0, 0.01, 0.02, 0.05, 0.1, 0.3]),)),
    "restart_daemon": (2, lambda dice: (dice.choice(["SIGTERM", "SIGINT", "SIGKILL"]),)),
}
