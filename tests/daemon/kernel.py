"""Launchers: surroundings that a daemon can meet and a test cannot simply make, as commands in front of its own."""

from __future__ import annotations

import errno
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

# A system call that the kernel refuses to this process and to all that it starts, by way of a seccomp filter.
_REFUSE = """
import ctypes, os, struct, sys
numbers, code = [int(number) for number in sys.argv[1].split(",")], int(sys.argv[2])
steps = [struct.pack("HBBI", 0x20, 0, 0, 0)]                                  # load the number of the call
steps += [struct.pack("HBBI", 0x15, len(numbers) - at, 0, number) for at, number in enumerate(numbers)]
steps += [struct.pack("HBBI", 0x06, 0, 0, 0x7FFF0000)]                        # allow
steps += [struct.pack("HBBI", 0x06, 0, 0, 0x00050000 | code)]                 # fail with errno
text = ctypes.create_string_buffer(b"".join(steps))
class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("steps", ctypes.c_void_p)]
libc = ctypes.CDLL(None, use_errno=True)
program = Program(len(steps), ctypes.addressof(text))
if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, ctypes.byref(program)):
    raise OSError(ctypes.get_errno(), "no seccomp filter")
os.execvp(sys.argv[3], sys.argv[3:])
"""
_NUMBERS = {
    "x86_64": {"inotify_init": "253,294", "fsync": "74"},
    "aarch64": {"inotify_init": "26", "fsync": "82"},
}


def refuse(call: str, code: int) -> list[str]:
    """A launcher under which ``call`` fails with ``code``. Skips the test where the machine's numbers are unknown."""
    machine = subprocess.check_output(["uname", "-m"], text=True).strip()
    if machine not in _NUMBERS:
        pytest.skip(f"the numbers of system calls on {machine} are not in the table")
    return [sys.executable, "-c", _REFUSE, _NUMBERS[machine][call], str(code)]


def exhaust_inotify() -> list[str]:
    """No inotify instance is to be had."""
    return refuse("inotify_init", errno.EMFILE)


def mount(*steps: Sequence[str | Path]) -> list[str]:
    """A launcher with mounts of its own: each step is a command. Skips the test where that is not allowed."""
    enter = ["unshare", "--mount", "--map-root-user"]
    try:
        subprocess.run([*enter, "mount", "-t", "tmpfs", "none", "/mnt"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no mount namespaces for this user: {error}")
    script = "\n".join(" ".join(map(str, step)) + " || exit 90" for step in steps)
    return [*enter, "sh", "-c", f'{script}\nexec "$@"', "sh"]


def pod_dev(directory: Path, *files: Path) -> list[str]:
    """A launcher under which ``/dev`` is as in a pod, with ``files`` of the host under their own names.

    What is written there is written to them. ``directory`` is made, for the mounts.
    """
    directory.mkdir()
    wanted = [*(Path("/dev", name) for name in ("null", "zero", "random", "urandom")), *files]
    for path in wanted:
        (directory / path.name).touch()
    return mount(
        *(["mount", "--bind", path, directory / path.name] for path in wanted), ["mount", "--rbind", directory, "/dev"]
    )
