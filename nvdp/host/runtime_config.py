"""The configuration of the node's container runtime, where its directories are mounted: read, judged and reported."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final

from nvdp.errors import HostError
from nvdp.host.files import load_text
from nvdp.log import Log
from nvdp.model.listing import DeviceListStrategy
from nvdp.model.reasons import Reason
from nvdp.model.status import Trouble
from nvdp.planning.runtime_fit import RuntimeFile, RuntimeFiles, Unsuited, judge_runtime

_ETC: Final = Path("/etc")
_CONTAINERD: Final = Path("containerd/config.toml")
_NVIDIA: Final = Path("nvidia-container-runtime/config.toml")
_LIMIT_BYTES: Final = 1024 * 1024
_MOST_IMPORTS: Final = 32


class RuntimeCheck:
    """Says when the runtime does not fit the strategies in force: in the log, and as troubles of the status.

    ``etc`` is where the runtimes' directories of the host's /etc are mounted (manifests/components/runtime-check).
    The files are read when it is made, and again for each question about troubles, so that a repair is seen at once.
    """

    def __init__(self, *, log: Log, etc: Path) -> None:
        self._log = log
        self._etc = etc
        self._files = load_runtime_files(etc)
        self._strategies: frozenset[DeviceListStrategy] = frozenset()
        self._told: frozenset[str] = frozenset()

    def judge(self, strategies: Iterable[DeviceListStrategy]) -> None:
        """Take the strategies that are in force from now on, and log what is new about them. One thread; no I/O."""
        self._strategies = frozenset(strategies)
        found = judge_runtime(self._files, self._strategies)
        for one in found:
            if one.text not in self._told:
                self._log(Reason.RUNTIME_UNSUITED, f"{one.text}: {one.remedy}", file=one.file, key=one.key)
        self._told = frozenset(one.text for one in found)

    def find_troubles(self) -> tuple[Trouble, ...]:
        """What does not fit now. Any thread; reads a few small files."""
        return tuple(map(_to_trouble, judge_runtime(load_runtime_files(self._etc), self._strategies)))


def load_runtime_files(etc: Path) -> RuntimeFiles:
    """What can be read under ``etc``, the host's /etc. Never raises: a file says itself why it cannot be read."""
    containerd = _load(etc, _CONTAINERD)
    if containerd is None:
        return RuntimeFiles(nvidia=_load(etc, _NVIDIA))
    imports, out_of_sight = _find_imports(etc, containerd.content.get("imports"))
    loaded = (_load(etc, path) for path in imports)
    return RuntimeFiles(
        containerd=(containerd, *(file for file in loaded if file is not None)),
        out_of_sight=out_of_sight,
        nvidia=_load(etc, _NVIDIA),
    )


def _load(etc: Path, path: Path) -> RuntimeFile | None:
    shown = str(_ETC / path)
    try:
        text = load_text(etc / path, limit_bytes=_LIMIT_BYTES)
        if text is None:
            return None
        if len(text) > _LIMIT_BYTES:
            return RuntimeFile(path=shown, problem=f"more than {_LIMIT_BYTES} bytes")
        return RuntimeFile(path=shown, content=_parse(text.decode()))
    except HostError as error:
        return RuntimeFile(path=shown, problem=str(error))
    except (ValueError, RecursionError) as error:
        return RuntimeFile(path=shown, problem=f"not TOML: {error}")


def _parse(text: str) -> dict[str, Any]:
    """Raises ValueError, or RecursionError for a text that is made to."""
    import tomllib  # noqa: PLC0415 - most nodes have none of these files mounted

    return tomllib.loads(text)


def _find_imports(etc: Path, patterns: Any) -> tuple[list[Path], tuple[str, ...]]:
    """The files that containerd's file imports, relative to ``etc``, and the patterns that lead elsewhere.

    One level: files of these directories that import again are rare, and containerd's own drop-ins do not.
    """
    found: list[Path] = []
    elsewhere: list[str] = []
    for pattern in patterns if isinstance(patterns, list) else ():
        if not isinstance(pattern, str):
            continue
        absolute = Path(os.path.normpath(_ETC / _CONTAINERD.parent / pattern))
        if absolute.is_relative_to(_ETC / _CONTAINERD.parent):
            found += _glob(etc, absolute.relative_to(_ETC))
        else:
            elsewhere.append(pattern)
    return found[:_MOST_IMPORTS], tuple(elsewhere)


def _glob(etc: Path, pattern: Path) -> Iterator[Path]:
    """Sorted, as containerd reads them."""
    try:
        found = sorted(islice(etc.glob(str(pattern)), _MOST_IMPORTS))
    except (OSError, ValueError, NotImplementedError):  # a pattern that Python does not take
        return
    yield from (path.relative_to(etc) for path in found)


def _to_trouble(found: Unsuited) -> Trouble:
    return Trouble(reason=Reason.RUNTIME_UNSUITED.word, text=found.text, remedy=found.remedy)
