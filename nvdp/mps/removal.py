"""Taking away what others made in a directory, however much and however deep: pods may write where ours are mounted.

No recursion and no chain of open directories: a directory that is in the way is moved beside the one that is emptied,
out of the reach of those who have that one mounted, and taken apart there level by level. No link is followed. What
cannot be taken apart, or is too much for one go, stays there, where it is in nobody's way.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterable
from typing import Final, Self

from nvdp.mps.directories import open_below

ASIDE: Final = "removed"
"""The directory beside the one that is emptied, for what could not be removed."""
LIMIT: Final = 20_000
"""How many names one go takes on: for a second at most, where nothing else keeps the machine busy."""


def empty_directory(above: int, name: str, *, first: Iterable[str] = (), limit: int = LIMIT) -> None:
    """Take all out of the directory ``name`` in ``above``; it itself stays. ``first`` are the names that matter most.

    Of these none is left. Of others some may be, where there are very many or are made all the time. Raises OSError if
    something can neither be removed nor moved aside. Blocks for ``limit`` names of the directory and as many below.
    """
    with _Removal(above, limit) as removal:
        directory = open_below(above, name)
        try:
            for each in first:
                removal.take_away(directory, each)
            removal.empty(directory)
        finally:
            os.close(directory)
        problem = removal.problem
    with _Removal(above, limit) as removal:
        removal.drain()
    if problem is not None:
        raise problem


def remove_directories(above: int, names: Iterable[str], *, limit: int = LIMIT) -> bool:
    """Take these directories in ``above`` away, with all that is in them; whether nothing of them is left.

    What is left is in ``removed``. One that is missing is fine. Raises OSError if one can neither be removed nor moved
    aside. Blocks for ``limit`` names.
    """
    with _Removal(above, limit) as removal:
        for name in names:
            removal.take_away(above, name)
        if removal.problem is not None:
            raise removal.problem
        return removal.drain()


class _Removal:
    """One go, with its end. ``problem`` is the first that was met."""

    def __init__(self, above: int, limit: int) -> None:
        self._above = above
        self._left = limit
        self._aside = -1
        self._gone = 0
        self.problem: OSError | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        if self._aside >= 0:
            os.close(self._aside)

    def take_away(self, directory: int, name: str) -> None:
        """Unlink it, or move it aside if it is a directory. What is not there is fine."""
        self._left -= 1
        try:
            try:
                os.unlink(name, dir_fd=directory)
            except IsADirectoryError:
                os.rename(name, uuid.uuid4().hex, src_dir_fd=directory, dst_dir_fd=self._make_aside())
        except FileNotFoundError:
            return
        except OSError as error:
            self.problem = self.problem or error
            return
        self._gone += 1

    def empty(self, directory: int) -> None:
        """One pass: what is made meanwhile may be without end."""
        with os.scandir(directory) as entries:
            for entry in entries:
                if self._left <= 0:
                    return
                self.take_away(directory, entry.name)

    def drain(self) -> bool:
        """Take apart what lies aside. Whether all is away, the place for it too.

        A directory within another is moved up to its side, so that none is ever deeper than one level when its turn
        comes, and each is moved once.
        """
        try:
            self._open_aside()
        except FileNotFoundError:
            return True
        before = -1
        while before != self._gone and self._left > 0:
            before = self._gone
            with os.scandir(self._aside) as entries:
                for entry in entries:
                    if self._left <= 0:
                        break
                    with contextlib.suppress(OSError):  # it stays where it is
                        self._take_apart(entry.name)
        try:
            os.rmdir(ASIDE, dir_fd=self._above)
        except OSError:
            return False
        return True

    def _take_apart(self, name: str) -> None:
        self._left -= 1
        try:
            directory = open_below(self._aside, name)
        except NotADirectoryError:  # it became another thing before it was moved
            os.unlink(name, dir_fd=self._aside)
            return
        try:
            self.empty(directory)
        finally:
            os.close(directory)
        os.rmdir(name, dir_fd=self._aside)

    def _make_aside(self) -> int:
        with contextlib.suppress(FileExistsError):
            os.mkdir(ASIDE, 0o700, dir_fd=self._above)
        return self._open_aside()

    def _open_aside(self) -> int:
        if self._aside < 0:
            self._aside = open_below(self._above, ASIDE)
        return self._aside
