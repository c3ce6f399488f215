"""What each MPS control daemon of the node shall do now, and which GPUs are to have the compute mode for it.

Pure. A daemon that is in use is never ended for a change, a GPU is taken only once it is free, and no GPU is in two
daemons at a time. A daemon serves what of its GPUs can be had: one that is lost, or held in another form, joins it once
that is over and the daemon can be started anew.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Mapping
from typing import Final

import msgspec

from nvdp.model.mps import DaemonSpec
from nvdp.planning.wording import join_some

_NONE: Final[frozenset[str]] = frozenset()
_IN_USE: Final = "pods still use it"


class Stage(enum.Enum):
    """What is to be done for one resource now.

    NOTHING: no daemon runs, and none shall. WAIT: none runs, and something has to happen first. CHECK: to be looked for
    what would be in the way of the target. CLAIM: the GPUs of the target get their compute mode. START: all is
    prepared. KEEP: it runs on as it is. END: it is ended; what it is to become, if anything, is seen after that.
    """

    NOTHING = "nothing"
    WAIT = "wait"
    CHECK = "check"
    CLAIM = "claim"
    START = "start"
    KEEP = "keep"
    END = "end"


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """What is wanted of one resource; None: nobody wants it. See ``model.mps.Grant`` for ``kept``, ``free`` and
    ``at_once``.

    ``occupied`` says why GPUs are not free, by UUID; without a word pods hold them in another form. ``is_in_use``: the
    daemon must not be ended. ``counts_clients``: that is what its clients make of it, so that they
    are to be counted once more before it is ended.
    """

    wanted: DaemonSpec | None = None
    kept: DaemonSpec | None = None
    free: Collection[str] = ()
    occupied: Mapping[str, str] = {}
    is_in_use: bool = False
    counts_clients: bool = False
    at_once: bool = False


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """How it is with one resource. ``running`` is what its process was started as, None without one.

    ``pledged`` are the GPUs of starts that were ordered and may be under way. ``cleared`` are those for which nothing
    was found to be in the way; ``refused`` says what was found, or is empty. ``lacks_multi_user``: the control program
    does not know that option.
    """

    running: DaemonSpec | None = None
    pledged: Collection[str] = ()
    cleared: Collection[str] = ()
    refused: str = ""
    lacks_multi_user: bool = False


class Surroundings(msgspec.Struct, frozen=True, kw_only=True):
    """What all have in common. ``present`` are the GPUs that the driver counts.

    ``claimed`` have the compute mode, ``unclaimable`` cannot get it just now, with the reason. ``paused`` and
    ``obstacle`` are sentences, or empty: that the driver is to be let go of, and why no daemon can be started at all.
    ``is_pause_settled``: what was given out just before the pause is known by now.
    """

    present: Collection[str] = ()
    claimed: Collection[str] = ()
    unclaimable: Mapping[str, str] = {}
    paused: str = ""
    is_pause_settled: bool = True
    obstacle: str = ""


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be done for a resource. ``target`` is what to check, claim or start; ``text`` says what is waited for.

    ``text`` is empty if all is as wanted. ``by_force``: an end takes no account of clients. ``is_in_use``: pods depend
    on the daemon that runs, or may do so.
    """

    stage: Stage
    target: DaemonSpec | None = None
    text: str = ""
    by_force: bool = True
    is_in_use: bool = False


class Course(msgspec.Struct, frozen=True, kw_only=True):
    """The steps by resource, and all GPUs that are to have the compute mode. Every other claim is to be given back."""

    steps: Mapping[str, Step]
    claims: frozenset[str]

    @property
    def staying(self) -> tuple[str, ...]:
        """The resources whose daemons run on."""
        return tuple(name for name, step in self.steps.items() if step.stage is Stage.KEEP)


def plan_daemons(wishes: Mapping[str, Wish], standings: Mapping[str, Standing], surroundings: Surroundings) -> Course:
    """The course of now. A resource without a wish has no daemon; the order of the mappings does not matter."""
    taken = {name: _list_occupied(standing) for name, standing in standings.items()}
    steps = {}
    for name in sorted(wishes.keys() | standings.keys()):
        others = _NONE.union(*(gpus for other, gpus in taken.items() if other != name))
        situation = _Situation(wishes.get(name, Wish()), standings.get(name, Standing()), others, surroundings)
        step = situation.plan()
        in_use = situation.wish.is_in_use
        steps[name] = msgspec.structs.replace(step, by_force=situation.is_force_allowed, is_in_use=in_use)
        if step.target is not None:
            gpus = frozenset(step.target.gpus)
            # What is looked at is not taken yet, and what was taken before stays.
            gpus = gpus & set(surroundings.claimed) if step.stage is Stage.CHECK else gpus
            taken[name] = taken.get(name, _NONE) | gpus
    return Course(steps=steps, claims=_NONE.union(*taken.values()))


def keep_all(standings: Mapping[str, Standing], *, text: str) -> Course:
    """The course as long as nobody knows what is wanted: what runs goes on, and nothing is started."""
    steps = {
        name: Step(stage=Stage.KEEP if standing.running is not None else Stage.WAIT, text=text, is_in_use=True)
        for name, standing in standings.items()
    }
    return Course(steps=steps, claims=_NONE.union(*map(_list_occupied, standings.values())))


class _Situation(msgspec.Struct, frozen=True):
    """One resource with all that matters to it. ``others`` are the GPUs of other daemons."""

    wish: Wish
    standing: Standing
    others: frozenset[str]
    surroundings: Surroundings

    def plan(self) -> Step:
        running, target = self.standing.running, self._build_target()
        if running is None:
            return self._plan_start(target)
        if self.surroundings.paused:
            return self._pause(self.surroundings.paused)
        if target is None:
            wanted = self.wish.wanted
            return self._leave("no longer wanted" if wanted is None else self._explain_missing(wanted.gpus))
        return self._plan_change(running, target)

    @property
    def is_force_allowed(self) -> bool:
        return not self.wish.counts_clients or (self.wish.at_once and not self.surroundings.paused)

    def _plan_change(self, running: DaemonSpec, target: DaemonSpec) -> Step:
        if _is_same(running, target):
            return Step(stage=Stage.KEEP, text=self._explain_rest(target))
        if self._must_stay:
            return Step(stage=Stage.KEEP, text=f"a change waits: {_IN_USE}")
        if self.surroundings.obstacle:
            return Step(stage=Stage.KEEP, text=f"a change waits: {self.surroundings.obstacle}")
        prepared = self._prepare(target)
        return prepared or Step(stage=Stage.END, target=target, text="it is started anew with its new settings")

    @property
    def _wanted(self) -> DaemonSpec | None:
        """What it is to be. Where none runs, it is started for those who would have no daemon otherwise, too."""
        return self.wish.kept or self.wish.wanted if self.standing.running is None else self.wish.wanted

    def _plan_start(self, target: DaemonSpec | None) -> Step:
        wanted = self._wanted
        if wanted is None:
            return Step(stage=Stage.NOTHING)
        if reason := self.surroundings.paused or self.surroundings.obstacle:
            return Step(stage=Stage.WAIT, text=reason)
        if target is None:
            return Step(stage=Stage.WAIT, text=self._explain_missing(wanted.gpus))
        return self._prepare(target) or Step(stage=Stage.START, target=target, text=self._explain_rest(target))

    def _prepare(self, target: DaemonSpec) -> Step | None:
        """What has to be done before a daemon can be started as ``target``; None if nothing is left."""
        if not set(self.standing.cleared).issuperset(target.gpus):
            return Step(stage=Stage.CHECK, target=target, text=self.standing.refused or "its GPUs are looked at")
        if not set(self.surroundings.claimed).issuperset(target.gpus):
            return Step(stage=Stage.CLAIM, target=target, text="its GPUs get their compute mode")
        return None

    def _leave(self, why: str) -> Step:
        """End it, without a target, if it is not in use."""
        at_once = self.wish.at_once and not self.surroundings.paused
        if self.wish.is_in_use and not at_once:
            return Step(stage=Stage.KEEP, text=f"{why}, but {_IN_USE}")
        return Step(stage=Stage.END, text=why)

    def _pause(self, why: str) -> Step:
        """End it if it is not in use, which is only known a while after the pause began."""
        if self.surroundings.is_pause_settled or self.wish.is_in_use:
            return self._leave(why)
        return Step(stage=Stage.KEEP, text=f"{why}; it is waited for what was given out just before")

    @property
    def _must_stay(self) -> bool:
        return self.wish.is_in_use and not self.wish.at_once

    def _build_target(self) -> DaemonSpec | None:
        """What is wanted, as far as it can be had; None if nothing of it can."""
        wanted = self._wanted
        if wanted is None:
            return None
        gpus = tuple(gpu for gpu in wanted.gpus if self._object(gpu) is None)
        if not gpus:
            return None
        return msgspec.structs.replace(
            wanted,
            gpus=gpus,
            memory_mib={gpu: mib for gpu, mib in wanted.memory_mib.items() if gpu in gpus},
            multi_user=wanted.multi_user and not self.standing.lacks_multi_user,
        )

    def _object(self, gpu: str) -> str | None:
        """Why this GPU cannot be had; None if it can. One that the daemon has already is not taken from it."""
        if gpu in self.others:
            return "still served by another resource's daemon"
        if self.standing.running is not None and gpu in self.standing.running.gpus:
            return None
        if gpu not in self.surroundings.present:
            return "not counted by the driver"
        if gpu not in self.wish.free and not self._is_kept(gpu) and not self.wish.at_once:
            return self.wish.occupied.get(gpu, "not free yet: pods hold it in another form")
        return self.surroundings.unclaimable.get(gpu)

    def _is_kept(self, gpu: str) -> bool:
        """Whether pods have it by this very daemon, though it is to leave it."""
        kept, wanted = self.wish.kept, self.wish.wanted
        return kept is not None and gpu in kept.gpus and (wanted is None or gpu not in wanted.gpus)

    def _explain_missing(self, gpus: Iterable[str]) -> str:
        reasons: dict[str, list[str]] = {}
        for gpu in gpus:
            if (reason := self._object(gpu)) is not None:
                reasons.setdefault(reason, []).append(gpu)
        return "; ".join(f"{join_some(names)}: {reason}" for reason, names in reasons.items())

    def _explain_rest(self, target: DaemonSpec) -> str:
        """What of the wanted the target leaves out, and why."""
        wanted = self._wanted
        assert wanted is not None
        missing = self._explain_missing(gpu for gpu in wanted.gpus if gpu not in target.gpus)
        lack = "multiUser: the control daemon of this driver does not know it" if self._lacks_wanted_option else ""
        return "; ".join(filter(None, (missing, lack)))

    @property
    def _lacks_wanted_option(self) -> bool:
        wanted = self._wanted
        return self.standing.lacks_multi_user and wanted is not None and wanted.multi_user


def _list_occupied(standing: Standing) -> frozenset[str]:
    """The GPUs that a process has, or may have in a moment."""
    running = standing.running.gpus if standing.running is not None else ()
    return frozenset((*running, *standing.pledged))


def _is_same(one: DaemonSpec, other: DaemonSpec) -> bool:
    """Whether a daemon started as one need not be started anew to be the other: the order of GPUs is of no interest."""
    return _sort(one) == _sort(other)


def _sort(spec: DaemonSpec) -> DaemonSpec:
    return msgspec.structs.replace(spec, gpus=tuple(sorted(spec.gpus)))
