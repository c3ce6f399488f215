"""A second copy of what ``nvdp mps`` has claimed, on the disk: the report may be lost, or of another version.

Without either, nobody would know any more which GPUs have the compute mode of MPS, and which one they had before.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from nvdp.errors import HostError
from nvdp.host.exchange import load_value, remove_value, replace_value

_NAME: Final = "claims.json"
_MODE: Final = 0o600
_DIRECTORY_MODE: Final = 0o700


class _Kept(msgspec.Struct, frozen=True, kw_only=True):
    """``claims`` are those of ``MpsReport``; they count within that boot only."""

    boot_id: str
    claims: Mapping[str, str]


class ClaimsCopy:
    """The copy in ``directory``, of the boot ``boot_id``, which is empty where no boot is told from another.

    One thread at a time; all block for the disk and raise HostError.
    """

    def __init__(self, directory: Path, *, boot_id: str) -> None:
        self._path = directory / _NAME
        self._boot_id = boot_id
        self._saved: Mapping[str, str] | None = None

    def load(self) -> dict[str, str]:
        """What was saved in this boot; nothing if there is no copy."""
        found = load_value(self._path, _Kept)
        return dict(found.claims) if found is not None and found.boot_id == self._boot_id else {}

    def save(self, claims: Mapping[str, str]) -> None:
        """These are on the disk when this returns. The directory is made, for root alone, if it is missing."""
        if claims == self._saved:
            return
        try:
            self._path.parent.mkdir(mode=_DIRECTORY_MODE, parents=True, exist_ok=True)
        except OSError as error:
            raise HostError(f"{self._path.parent}: cannot be made: {error.strerror}") from error
        replace_value(self._path, _Kept(boot_id=self._boot_id, claims=claims), mode=_MODE, sync=True)
        self._saved = dict(claims)

    def remove(self) -> None:
        """Nothing is claimed any more."""
        self._saved = None
        remove_value(self._path)
