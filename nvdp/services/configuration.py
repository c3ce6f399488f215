"""Reads the configuration file whenever it changed, and posts what it says.

The watch (host/watch.py) calls ``read`` on its own thread; parsing happens there, so that the supervisor's event loop
gets values only. A file that cannot be read or is not valid is an event like any other.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from nvdp.config.document import SIZE_LIMIT_BYTES
from nvdp.config.load import parse_config
from nvdp.config.overrides import Overrides
from nvdp.errors import ConfigError, HostError
from nvdp.host.change import PathWatch
from nvdp.host.files import FileFingerprint, config_directories, config_fingerprint, config_settle_s, load_text
from nvdp.model.chosen import Chosen
from nvdp.services.events import ConfigRead, Post


class ConfigurationFile:
    """The file at ``path``; with None there is none, and the configuration is what flags and environment say."""

    def __init__(
        self,
        path: Path | None,
        overrides: Overrides,
        post: Post,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = path
        self._overrides = overrides
        self._post = post
        self._clock = clock

    def build_watch(self) -> PathWatch[FileFingerprint | None] | None:
        """The watch that reads the file at each change, the first time at once; None if there is no file to follow."""
        path = self._path
        if path is None:
            return None
        return PathWatch(
            fingerprint=lambda: config_fingerprint(path),
            directories=lambda: config_directories(path),
            on_change=lambda _fingerprint: self.read(),
            settle_s=config_settle_s,
        )

    def read(self) -> None:
        """Read, parse and post. Any thread; blocks as long as the disk does."""
        at = self._clock()
        source = str(self._path) if self._path is not None else "flags and environment"
        try:
            text = load_text(self._path, limit_bytes=SIZE_LIMIT_BYTES) if self._path is not None else b""
            if text is None:
                problem = f"{source}: there is no such file; nvdp goes on by itself once it is there"
                self._post(ConfigRead(source=source, problems=(problem,), missing=True, at=at))
                return
        except HostError as error:
            self._post(ConfigRead(source=source, problems=(str(error),), at=at))
            return
        self._post(judge_text(text, name=source, overrides=self._overrides, at=at))


def judge_text(text: bytes, *, name: str, overrides: Overrides, at: float, chosen: Chosen | None = None) -> ConfigRead:
    """What there is to post about ``text``, which was read at ``name``. Raises nothing; takes milliseconds."""
    try:
        config = parse_config(text, name=name, overrides=overrides)
    except ConfigError as error:
        return ConfigRead(source=name, problems=tuple(str(problem) for problem in error.problems), at=at)
    except Exception as error:  # noqa: BLE001 - a defect that a file brings to light is that file's refusal
        problem = f"{name}: reading it failed, which is a defect of nvdp: {type(error).__name__}: {error}"
        return ConfigRead(source=name, problems=(problem,), at=at)
    return ConfigRead(source=name, config=config, text=text, chosen=chosen, at=at)
