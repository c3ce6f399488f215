"""Names of resources, and the patterns that choose GPUs by product or MIG devices by profile."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from nvdp.errors import FormatError, quote

DEFAULT_DOMAIN: Final = "nvidia.com/"
NAME_LIMIT: Final = 63  # characters of the whole name; NVIDIA's limit, here it also covers the suffix
SHARED_SUFFIX: Final = ".shared"
_LABEL: Final = r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?"
_DOMAIN: Final = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")  # DNS-1123 subdomain
_NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")  # Kubernetes' qualified name


class ResourceName(str):
    """A resource as the kubelet knows it, domain included: ``nvidia.com/gpu``. Made by ``parse_resource_name``."""

    __slots__ = ()

    def build_shared(self) -> ResourceName:
        """The name under which ``renameByDefault`` offers shared devices. Its length is not checked here."""
        return ResourceName(self + SHARED_SUFFIX)


GPU_RESOURCE: Final = ResourceName("nvidia.com/gpu")  # what a GPU is offered as when no rule names it


def parse_resource_name(text: str) -> ResourceName:
    """The full name; without a domain, NVIDIA's is put in front. FormatError where Kubernetes would refuse it."""
    full = text if "/" in text else DEFAULT_DOMAIN + text
    domain, _, name = full.partition("/")
    if not _DOMAIN.fullmatch(domain):
        raise FormatError(
            f'{quote(text)} is not a resource name; before "/" stands a domain like nvidia.com, '
            "of lower-case letters, digits, - and ."
        )
    if not _NAME.fullmatch(name):
        raise FormatError(
            f"{quote(text)} is not a resource name; write one like nvidia.com/gpu, of letters, digits, -, _ and ., "
            "with a letter or digit at both ends"
        )
    if domain == "kubernetes.io" or domain.endswith(".kubernetes.io") or domain.startswith("requests."):
        raise FormatError(f"{quote(text)} is in a domain that Kubernetes keeps for itself; use another one")
    check_name_length(full)
    return ResourceName(full)


def check_name_length(name: str) -> None:
    """FormatError if ``name`` has more characters than a resource may have."""
    if len(name) > NAME_LIMIT:
        raise FormatError(f"{quote(name)} has {len(name)} characters; {NAME_LIMIT} are allowed")


class Pattern(msgspec.Struct, frozen=True):
    """``*`` is any text, everything else stands for itself; the whole text must match and case counts."""

    text: str

    def __str__(self) -> str:
        return self.text

    def matches(self, text: str) -> bool:
        """Linear in ``text`` for each piece between stars, whatever the pattern: no back-tracking."""
        first, *rest = self.text.split("*")
        if not rest:
            return text == first
        *middle, last = rest
        if not text.startswith(first) or not text.endswith(last) or len(text) < len(first) + len(last):
            return False
        at, end = len(first), len(text) - len(last)
        for piece in middle:
            found = text.find(piece, at, end)
            if found < 0:
                return False
            at = found + len(piece)
        return True

    def covers(self, other: Pattern) -> bool:
        """Whether all that ``other`` matches, this pattern matches too.

        The other's stars can only be met by stars, so its own text, in which no literal piece holds a star, decides.
        """
        return self.matches(other.text)
