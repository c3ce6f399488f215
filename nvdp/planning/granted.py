"""Which GPUs ``nvdp mps`` may take by what it was told, or may have been told: facts, as far as they are known. Pure.

A GPU that is granted is offered in no other form before the file says otherwise and ``nvdp mps`` has said that it acts
by that file. However long a disk or that process takes for it, nobody is asked to be quick.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from nvdp.model.mps import DaemonSpec, Grant, MpsGrants, MpsView

_MOST_WORDS: Final = 64  # of which it is not known which one counts; beyond that the oldest count as one

_NONE: Final[frozenset[str]] = frozenset()


class Word(msgspec.Struct, frozen=True, kw_only=True):
    """Grants that were in the file, and the GPUs that they let be taken."""

    digest: str
    gpus: frozenset[str]


class Granted(msgspec.Struct, frozen=True, kw_only=True):
    """What ``nvdp mps`` may act upon.

    ``words`` are what the file said, oldest first: by one of them, or one after it, ``nvdp mps`` acts. The last is in
    the file, as far as is known. ``asked`` is what is to be written; ``pending`` are the GPUs of all that was to be
    written since the file had the newest, any of which it may have. ``daemons`` are by resource as what a daemon was to
    be kept, or wanted, last.
    """

    words: tuple[Word, ...] = ()
    daemons: Mapping[str, DaemonSpec] = {}
    asked: MpsGrants | None = None
    pending: frozenset[str] = _NONE

    @property
    def in_file(self) -> frozenset[str]:
        """The GPUs that the file lets be taken, or may do so."""
        return self.pending.union(*(word.gpus for word in self.words[-1:]))

    @property
    def unheard(self) -> frozenset[str]:
        """Those that it let be taken before, as long as ``nvdp mps`` may not have heard that this is over."""
        return _NONE.union(*(word.gpus for word in self.words[:-1])) - self.in_file

    @property
    def is_any(self) -> bool:
        """Whether there is anything that ``nvdp mps`` may take."""
        return bool(self.in_file or self.unheard)

    def find_wait(self, uuid: str) -> str:
        """Why a GPU must not be offered otherwise yet, though no daemon is seen with it; empty if it may."""
        if uuid in self.in_file:
            return "kept for MPS until the grants for nvdp mps could be written that take it back"
        if uuid in self.unheard:
            return "kept for MPS until nvdp mps has heard that it is wanted otherwise"
        return ""

    def complete(self, grants: MpsGrants) -> MpsGrants:
        """These grants, with what a successor has to know of those before."""
        resources = {
            resource: msgspec.structs.replace(grant, kept=_find_kept(grant, self.daemons.get(resource)))
            for resource, grant in grants.resources.items()
        }
        complete = msgspec.structs.replace(grants, resources=resources)
        leaving = (self.in_file | self.unheard) - _list_gpus(complete)
        return msgspec.structs.replace(complete, leaving=tuple(sorted(leaving)))

    def ask(self, grants: MpsGrants) -> Granted:
        """These are to be written from now on."""
        if grants == self.asked:
            return self
        return msgspec.structs.replace(
            self, asked=grants, pending=self.pending | _list_gpus(grants), daemons=_list_daemons(grants)
        )

    def note_written(self, grants: MpsGrants) -> Granted:
        """These are in the file, the very value that was asked for; perhaps others are to be written by now."""
        words = self.words
        if not words or words[-1].digest != grants.digest:
            words = (*words, Word(digest=grants.digest, gpus=_list_gpus(grants)))
        if len(words) > _MOST_WORDS:
            first, second, *others = words
            words = (Word(digest=second.digest, gpus=first.gpus | second.gpus), *others)
        return msgspec.structs.replace(self, words=words, pending=_NONE if grants is self.asked else self.pending)

    def hear(self, view: MpsView) -> Granted:
        """``nvdp mps`` was seen: it says by which word it acts, or is not there and will read what there is then."""
        at = len(self.words) - 1 if view.problem else self._find(view.heard)
        return msgspec.structs.replace(self, words=self.words[at:]) if at > 0 else self

    def _find(self, digest: str) -> int:
        return next((at for at in reversed(range(len(self.words))) if self.words[at].digest == digest), 0)


def restore_granted(found: MpsGrants) -> Granted:
    """What a predecessor left in the file, and what it took back without knowing that this was heard."""
    before = Word(digest="", gpus=frozenset(found.leaving))
    newest = Word(digest=found.digest, gpus=_list_gpus(found))
    return Granted(words=(before, newest), daemons=_list_daemons(found))


def _list_gpus(grants: MpsGrants) -> frozenset[str]:
    found: set[str] = set()
    for grant in grants.resources.values():
        found.update(grant.free, grant.kept.gpus if grant.kept is not None else ())
        if grant.at_once and grant.wanted is not None:
            found.update(grant.wanted.gpus)
    return frozenset(found)


def _list_daemons(grants: MpsGrants) -> dict[str, DaemonSpec]:
    specs = {resource: grant.kept or grant.wanted for resource, grant in grants.resources.items()}
    return {resource: spec for resource, spec in specs.items() if spec is not None}


def _find_kept(grant: Grant, before: DaemonSpec | None) -> DaemonSpec | None:
    """What is wanted, with the GPUs of the daemon ``before`` that pods hold still, as these pods have them."""
    wanted = grant.wanted
    known = wanted.gpus if wanted is not None else ()
    rest = [gpu for gpu in before.gpus if gpu in grant.held and gpu not in known] if before is not None else []
    if before is None or not rest or grant.at_once:
        return None
    memory_mib = {gpu: mib for gpu, mib in before.memory_mib.items() if gpu in rest}
    if wanted is None:
        return msgspec.structs.replace(before, gpus=tuple(rest), memory_mib=memory_mib)
    return msgspec.structs.replace(wanted, gpus=(*known, *rest), memory_mib={**wanted.memory_mib, **memory_mib})
