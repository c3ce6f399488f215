"""Random walks over a node: what can happen, how often, and the shortest story of what went wrong.

A history is a list of steps that mean something in any state of the node, so that a failing one can be cut down and
told, and runs again exactly.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence
from typing import Any

from tests.planning import promises
from tests.planning.files import Drawing, Part, Spelled
from tests.planning.hardware import PARTS, PROFILES, SLOTS, card_uuid, part_uuid, slot_pci
from tests.planning.histories import Node

SPELLED = tuple(Spelled(slot, slot_pci(slot), (card_uuid(slot), card_uuid(slot, 1))) for slot in range(SLOTS))
PLACES = tuple(
    Part(f"{slot}:{index}", (part_uuid(slot, index), part_uuid(slot, index + PARTS)))
    for slot in range(3)
    for index in range(PARTS)
)
_SHRINK_RUNS = 400


@dataclasses.dataclass(frozen=True)
class Step:
    """A method of the node, or of what is around it, and its arguments."""

    name: str
    arguments: tuple[Any, ...] = ()

    def __str__(self) -> str:
        return f"{self.name}({', '.join(map(repr, self.arguments))})"


_ACTIONS: dict[str, Callable[..., None]] = {
    "take_lists": Node.take_lists,
    "take_list": lambda node, number, delay_s, late: node.take_list(number, delay_s, late=late),
    "deliver_reports": Node.deliver_reports,
    "choose": Node.choose,
    "choose_again": lambda node, number: node.kubelet.choose_again(number, node.now),
    "arrive": Node.arrive,
    "end_allocate": Node.end_allocate,
    "record": lambda node: node.kubelet.unrecorded.clear(),
    "end_pod": lambda node, number: node.kubelet.end_pod(number, node.now),
    "request_holders": Node.request_holders,
    "answer_holders": lambda node, late: node.answer_holders(late=late),
    "pass_time": Node.pass_time,
    "edit": Node.edit,
    "scan": Node.scan,
    "pull": lambda node, slot: node.machine.pull(slot),
    "plug": lambda node, slot, copy: node.machine.plug(slot, copy),
    "switch": lambda node, slot, on: node.machine.switch(slot, on=on),
    "make": lambda node, slot, profile: node.machine.make(slot, profile),
    "destroy": lambda node, slot, number: node.machine.destroy(slot, number),
    "trouble": lambda node, slot, state: node.machine.trouble(slot, state),
    "heal": lambda node: node.machine.heal(),
    "lose_driver": Node.lose_driver,
    "set_kubelet_up": lambda node, up: node.set_kubelet_up(up=up),
    "set_keeper_up": lambda node, up: node.set_keeper_up(up=up),
    "set_disk_full": lambda node, full: node.set_disk_full(full=full),
    "set_readable": lambda node, readable: node.set_readable(readable=readable),
    "restart_plugin": lambda node, forget: node.restart_plugin(forget=forget),
    "restart_actor": Node.restart_actor,
    "black_out": Node.black_out,
    "settle": Node.settle,
}


def draw_history(chance: random.Random, *, steps: int, is_cut: bool = False) -> list[Step]:
    """Streams are read and answers come often, as on a node; the rest is trouble. ``is_cut``: and MIG comes into it."""
    drawing = Drawing(chance, SPELLED, parts=PLACES if is_cut else (), immediately=0.1)
    draw: dict[str, tuple[int, Callable[[], tuple[Any, ...]]]] = {
        "take_lists": (90, tuple),
        "take_list": (60, lambda: (chance.randrange(12), chance.choice([0.0, 0.05, 0.09]), chance.random() < 0.3)),
        "deliver_reports": (30, tuple),
        "choose": (130, lambda: (chance.randrange(12), chance.randrange(24), chance.choice([1, 1, 1, 2, 3]))),
        "choose_again": (10, lambda: (chance.randrange(10),)),
        "arrive": (140, lambda: (chance.randrange(4),)),
        "end_allocate": (120, lambda: (chance.randrange(10),)),
        "record": (20, tuple),
        "end_pod": (25, lambda: (chance.randrange(10),)),
        "request_holders": (100, tuple),
        "answer_holders": (110, lambda: (chance.random() < 0.5,)),
        "pass_time": (
            140,
            lambda: (
                chance.choice([0.05, 0.4, 1.1, 2.0, 3.0, 5.2]),
                chance.choice(["busy", "awake", "awake", "asking"]),
            ),
        ),
        "edit": (40, lambda: (drawing.draw().text,)),
        "scan": (30, tuple),
        "pull": (6, lambda: (chance.randrange(SLOTS),)),
        "plug": (10, lambda: (chance.randrange(SLOTS), chance.choice([0, 0, 1]))),
        "trouble": (5, lambda: (chance.randrange(SLOTS), chance.choice(["lost", "mute", "hung"]))),
        "heal": (5, tuple),
        "lose_driver": (3, tuple),
        "set_kubelet_up": (10, lambda: (chance.random() < 0.75,)),
        "set_keeper_up": (8, lambda: (chance.random() < 0.8,)),
        "set_disk_full": (6, lambda: (chance.random() < 0.4,)),
        "set_readable": (15, lambda: (chance.random() < 0.6,)),
        "restart_plugin": (10, lambda: (chance.random() < 0.1,)),
        "restart_actor": (6, lambda: (chance.randrange(12),)),
        "black_out": (6, lambda: (drawing.draw().text,)),
        "settle": (6, tuple),
    }
    if is_cut:
        draw |= {
            "switch": (20, lambda: (chance.randrange(SLOTS), chance.random() < 0.7)),
            "make": (90, lambda: (chance.randrange(SLOTS), chance.choice(PROFILES))),
            "destroy": (25, lambda: (chance.randrange(SLOTS), chance.randrange(PARTS))),
            "scan": (90, tuple),
        }
    names = chance.choices(list(draw), weights=[weight for weight, _ in draw.values()], k=steps)
    return [Step(name, draw[name][1]()) for name in names]


def find_fault(steps: Sequence[Step], **node: Any) -> tuple[int, str] | None:
    """Which step of this history breaks a promise, and which; None if none does. ``node`` is how it is made."""
    at = 0
    try:
        walked = Node(**node)
        promises.check(walked)
        for step in steps:
            _ACTIONS[step.name](walked, *step.arguments)
            promises.check(walked)
            if step.name == "settle":
                promises.check_settled(walked)
            at += 1
    except AssertionError as error:
        return at, str(error).splitlines()[0] if str(error) else repr(error)
    return None


def shrink(steps: Sequence[Step], **node: Any) -> list[Step]:
    """A shorter history that breaks a promise as well: pieces are left out for as long as that works."""
    found = find_fault(steps, **node)
    assert found is not None
    kept = list(steps[: found[0] + 1])
    runs, size = 0, max(1, len(kept) // 2)
    while size and runs < _SHRINK_RUNS:
        at = 0
        while at < len(kept) and runs < _SHRINK_RUNS:
            shorter = kept[:at] + kept[at + size :]
            runs += 1
            if (found := find_fault(shorter, **node)) is not None:
                kept = shorter[: found[0] + 1]
            else:
                at += size
        size //= 2
    return kept


def tell(steps: Sequence[Step], **node: Any) -> str:
    """The story of a failing history, cut down, as it can be run again."""
    node["look_closely_every"] = 1
    short = shrink(steps, **node)
    found = find_fault(short, **node)
    assert found is not None
    story = "\n".join(f"    {step}" for step in short)
    return f"{found[1]}\nafter {len(short)} of {len(steps)} steps on Node(**{node}):\n{story}"
