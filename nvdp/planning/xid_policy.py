"""Which XIDs make a device Unhealthy: the profile, then the file, then two environment variables; later wins.

What has to happen before the device is Healthy again is another question: the class of the XID (``planning/xids``) says
that, under either profile.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import Final

import msgspec

from nvdp.config.schema import HealthProfile, XidSet
from nvdp.errors import quote
from nvdp.planning.xids import CATALOGUE, XidClass, classify_xid

DISABLE: Final = "DP_DISABLE_HEALTHCHECKS"
ENABLE: Final = "DP_ENABLE_HEALTHCHECKS"
NVIDIA_IGNORES: Final = frozenset({13, 31, 43, 45, 68, 109})
_IGNORED_BY_PROFILE: Final = {
    HealthProfile.COMPAT: NVIDIA_IGNORES,
    HealthProfile.CATALOG: frozenset(xid for xid in CATALOGUE if classify_xid(xid) is not XidClass.RESET),
}
_EVERY: Final = frozenset({"all", "xids"})
_HIGHEST: Final = 2**64 - 1  # NVML reports an XID in 64 bits
_DOUBLE_BIT_XID: Final = 48
# Both report uncorrected memory errors; a counter of these does not tell which of them it was.
_MEMORY_XIDS: Final = (_DOUBLE_BIT_XID, 94)


class Verdict(enum.Enum):
    """What becomes of an XID; the words of the label ``verdict`` of ``nvdp_xid_events_total``."""

    FATAL = "fatal"
    IGNORED = "ignored"


class Judgement(msgspec.Struct, frozen=True):
    """``xid_class`` counts only where the verdict is FATAL."""

    verdict: Verdict
    xid_class: XidClass


class XidRules(msgspec.Struct, frozen=True, kw_only=True):
    """What the keys ``ignoredXIDs`` and ``fatalXIDs`` of the file say, or the two variables."""

    ignored: XidSet = XidSet()
    fatal: XidSet = XidSet()

    def find_verdict(self, xid: int) -> Verdict | None:
        """None where this source says nothing of it. A number wins over ``all``, then fatal over ignored."""
        answers = (
            (xid in self.fatal.numbers, Verdict.FATAL),
            (xid in self.ignored.numbers, Verdict.IGNORED),
            (self.fatal.every, Verdict.FATAL),
            (self.ignored.every, Verdict.IGNORED),
        )
        return next((verdict for applies, verdict in answers if applies), None)


class XidVariables(msgspec.Struct, frozen=True, kw_only=True):
    """The two variables as they were read. ``warnings`` are sentences about what in them is no XID."""

    rules: XidRules = XidRules()
    warnings: tuple[str, ...] = ()


class XidPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The whole policy. An XID that nobody ignores is fatal."""

    profile: HealthProfile = HealthProfile.COMPAT
    file: XidRules = XidRules()
    variables: XidRules = XidRules()

    def judge(self, xid: int) -> Judgement:
        xid_class = classify_xid(xid)
        said = self.variables.find_verdict(xid) or self.file.find_verdict(xid)
        if said is None:
            said = Verdict.IGNORED if xid in _IGNORED_BY_PROFILE[self.profile] else Verdict.FATAL
        return Judgement(said, xid_class)

    @property
    def heeds_double_bit_events(self) -> bool:
        """Whether the driver's event of a double-bit memory error makes a device Unhealthy: where its XID would.

        A contained error is another one and has its own XID, so what becomes of that says nothing here.
        """
        return self.judge(_DOUBLE_BIT_XID).verdict is Verdict.FATAL

    @property
    def heeds_memory_errors(self) -> bool:
        """Whether new uncorrected memory errors that a probe counts, and no XID explains, make a device Unhealthy.

        Not if one of the XIDs that report such errors is ignored: whoever leaves contained errors to the application
        does not want to lose the GPU by their counter. What was not contained brings an XID of its own.
        """
        return all(self.judge(xid).verdict is Verdict.FATAL for xid in _MEMORY_XIDS)

    @property
    def heeds_vitals(self) -> bool:
        """Whether what probes read makes a device Unhealthy: not where ``DP_DISABLE_HEALTHCHECKS`` says ``all``.

        To NVIDIA's plugin that means no health check whatever, unless ``DP_ENABLE_HEALTHCHECKS`` says ``all`` too. XIDs
        that are enabled by number count all the same.
        """
        return not self.variables.ignored.every


def parse_xid_variables(*, disable: str | None, enable: str | None) -> XidVariables:
    """The values of ``DP_DISABLE_HEALTHCHECKS`` and ``DP_ENABLE_HEALTHCHECKS``, None where one is not set.

    Lists with commas, any case; ``all`` or ``xids`` means every XID. What is enabled wins over what is disabled. What
    is neither these nor a number from 1 on is left out, with a warning: also ``0``, which NVIDIA's plugin takes for
    ``all`` by accident.
    """
    ignored, fatal = _split(disable or ""), _split(enable or "")
    warnings = (*_find_doubts(DISABLE, ignored), *_find_doubts(ENABLE, fatal))
    enabled = _collect(fatal)
    # Unlike the file's lists these are two sources: what is enabled altogether is so whatever number is disabled.
    disabled = XidSet() if enabled.every else _collect(ignored)
    return XidVariables(rules=XidRules(ignored=disabled, fatal=enabled), warnings=warnings)


def _split(text: str) -> list[str]:
    return [token for token in (part.strip().lower() for part in text.split(",")) if token]


def _collect(tokens: list[str]) -> XidSet:
    if not _EVERY.isdisjoint(tokens):
        # Numbers beside "all" of the same variable say nothing more.
        return XidSet(every=True)
    return XidSet(numbers=tuple(sorted({int(token) for token in tokens if _is_xid(token)})))


def _find_doubts(variable: str, tokens: list[str]) -> Iterator[str]:
    for token in dict.fromkeys(tokens):
        if token not in _EVERY and not _is_xid(token):
            yield f"{variable}: {quote(token)} is not an XID and is left out; write numbers with commas, or all"


def _is_xid(token: str) -> bool:
    return token.isascii() and token.isdigit() and len(token) <= len(str(_HIGHEST)) and 0 < int(token) <= _HIGHEST
