"""A directory as the kubelet makes it of a ConfigMap: an edit is a rename, the file itself is never written to."""

from __future__ import annotations

import datetime as dt
import shutil
import tempfile
import time
from pathlib import Path

_DATA = "..data"
_DATA_NEW = "..data_tmp"


class ConfigMapDirectory:
    """One entry, ``path``, of a mounted ConfigMap. ``directory`` must be there; for one thread."""

    def __init__(self, directory: Path, *, entry: str = "config.yaml") -> None:
        self._directory = directory
        self.path = directory / entry

    def write(self, text: str) -> float:
        """Bring a new content to the node; the monotonic time at which a reader could see it first.

        In the kubelet's own order: a new directory beside the old one, ``..data`` is led there by a rename, the old
        directory goes. The entry is a link through ``..data`` and stays.
        """
        old = self._directory / _DATA
        before = old.resolve() if old.is_symlink() else None
        stamp = dt.datetime.now(dt.UTC).strftime("..%Y_%m_%d_%H_%M_%S.")
        fresh = Path(tempfile.mkdtemp(prefix=stamp, dir=self._directory))
        fresh.chmod(0o755)
        (fresh / self.path.name).write_text(text, encoding="utf-8")
        new = self._directory / _DATA_NEW
        new.symlink_to(fresh.name, target_is_directory=True)
        swapped_at = time.monotonic()
        new.rename(old)
        if not self.path.is_symlink():
            self.path.symlink_to(Path(_DATA, self.path.name))
        if before is not None:
            shutil.rmtree(before)
        return swapped_at
