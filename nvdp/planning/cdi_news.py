"""What CDI specs hold, and what a change of them comes to in words for the log. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

import msgspec

from nvdp.model.cdi import VENDOR, CdiClass, CdiState, CdiWish, qualify
from nvdp.model.cdi_spec import CdiSpec, decode_spec, names_of

_SHOWN: Final = 4  # names in a row, or problems in one line
_LEFTOVER: Final = "no strategy uses CDI now, but pods hold what they got by it, and need the specs to start again"


class News(msgspec.Struct, frozen=True, kw_only=True):
    """``text`` says what was done, and to which names; ``devices`` is how many names there are now."""

    text: str
    devices: int


_CLASSES: Final = {cdi_class.file_name: cdi_class for cdi_class in CdiClass}


def decode_specs(files: Mapping[str, bytes]) -> dict[CdiClass, CdiSpec]:
    """The specs that are whole, of files by their names."""
    return {_CLASSES[name]: spec for name, content in files.items() if (spec := decode_spec(content)) is not None}


def build_state(files: Mapping[str, bytes]) -> CdiState:
    """What resolves in these files, not as an answer to any wish."""
    specs = decode_specs(files)
    return CdiState(names=list_names(specs), nodes=list_nodes(specs))


def join_problems(problems: Sequence[str]) -> str:
    """All in one line; empty if there are none."""
    more = f"; and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
    return f"{'; '.join(problems[:_SHOWN])}{more}"


def explain_problem(problem: str, wish: CdiWish | None) -> str:
    """The problem, with what it matters for where the file says nothing of CDI any more; empty if there is none."""
    return f"{problem} ({_LEFTOVER})" if problem and wish is not None and wish.is_leftover else problem


def list_names(specs: Mapping[CdiClass, CdiSpec]) -> frozenset[str]:
    """The full names that resolve in them."""
    return frozenset().union(*map(names_of, specs.values()))


def list_nodes(specs: Mapping[CdiClass, CdiSpec]) -> dict[str, frozenset[str]]:
    """The device nodes of each GPU and MIG device in them, by full name, as containers see them."""
    spec = specs.get(CdiClass.GPU)
    return {
        qualify(CdiClass.GPU, device.name): frozenset(node.path for node in device.container_edits.device_nodes)
        for device in (spec.devices if spec is not None else ())
    }


def build_news(
    before: Mapping[CdiClass, CdiSpec],
    after: Mapping[CdiClass, CdiSpec],
    *,
    written: Sequence[str],
    removed: Sequence[str],
) -> News:
    """What writing and removing these files made of the specs before."""
    old, new = list_names(before), list_names(after)
    parts = [f"{word} {', '.join(files)}" for word, files in (("wrote", written), ("removed", removed)) if files]
    changes = [f"{word} {_join(names)}" for word, names in (("new", new - old), ("gone", old - new)) if names]
    if not changes:
        changes = ["the same names, as the driver's files or nodes have changed"]
    return News(text=f"{', '.join(parts)}: {'; '.join(changes)}", devices=len(new))


def _join(names: Collection[str]) -> str:
    """``gpu=all, gpu=GPU-…``: the vendor is in the files' names."""
    short = [name.removeprefix(f"{VENDOR}/") for name in sorted(names)]
    more = f" and {len(short) - _SHOWN} more" if len(short) > _SHOWN else ""
    return f"{', '.join(short[:_SHOWN])}{more}"
