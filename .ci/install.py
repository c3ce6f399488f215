"""Makes ``.venv`` from the lock files: ``install.py runtime`` for what nvdp needs to run, ``install.py dev`` for all.

Standard library only; run by ``.ci/setup`` with the Python that the environment shall have. It installs exactly what a
lock file says, with checked hashes, and never resolves anything. A stamp in the environment says what is complete: an
environment without one was interrupted half-way, or made by someone else, and is made anew.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import itertools
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
STAMP = VENV / "nvdp-setup.json"
LOCKS = {"runtime": ("build.lock", "runtime.lock"), "dev": ("build.lock", "dev.lock")}
PROGRESS_INTERVAL_S = {True: 0.1, False: 10.0}  # on a terminal a moving line, elsewhere a sign of life now and then


def main() -> int:
    kind = sys.argv[1]
    with one_at_a_time():
        stamp = load_stamp()
        usable = stamp.get("made_for") == made_for() and works(VENV / "bin" / "python")
        if usable and stamp.get(kind) == digest(kind):
            return 0
        started = time.monotonic()
        if not usable:
            make_environment()
            stamp = {}
        STAMP.unlink(missing_ok=True)
        install(kind)
        complete = {name: digest(name) for name in LOCKS if kind in {name, "dev"} or stamp.get(name) == digest(name)}
        STAMP.write_text(json.dumps({"made_for": made_for(), **complete}))
        say(f"ready: .venv has what {kind} needs ({time.monotonic() - started:.0f} s)")
    return 0


def digest(kind: str) -> str:
    """Changes when anything changes that the environment is made from. ``dev`` has all of ``runtime`` in it."""
    content = hashlib.sha256()
    for name in LOCKS[kind]:
        content.update((ROOT / ".ci" / name).read_bytes())
    content.update((ROOT / "pyproject.toml").read_bytes())
    return content.hexdigest()


def made_for() -> str:
    """An environment has the paths of its checkout and its interpreter inside: for others it is made anew."""
    return f"{ROOT} {sys.version_info[:2]}"


def load_stamp() -> dict[str, str]:
    """What is installed, by kind; empty if the environment is missing or half made."""
    try:
        return dict(json.loads(STAMP.read_text()))
    except (OSError, ValueError):
        return {}


def works(python: Path) -> bool:
    """Whether the environment's interpreter starts and is of the version that makes this one."""
    ask = [python, "-c", "import sys; print(sys.version_info[:2])"]
    try:
        done = subprocess.run(ask, capture_output=True, text=True, check=False, timeout=60)
    except OSError:
        return False
    return done.returncode == 0 and done.stdout.strip() == str(sys.version_info[:2])


def make_environment() -> None:
    shutil.rmtree(VENV, ignore_errors=True)
    run([sys.executable, "-m", "venv", str(VENV)], "making .venv")


def install(kind: str) -> None:
    pip = [str(VENV / "bin" / "python"), "-m", "pip", "install", "--disable-pip-version-check", "--no-deps"]
    locks = [argument for name in LOCKS[kind] for argument in ("-r", str(ROOT / ".ci" / name))]
    run([*pip, "--require-hashes", "--only-binary", ":all:", *locks], f"installing what {kind} needs")
    run([*pip, "--no-build-isolation", "--editable", str(ROOT)], "installing nvdp")


def run(command: list[str], what: str) -> None:
    """Run ``command`` with its output hidden behind a moving line; if it fails, show all of it and exit."""
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        lines: list[str] = []
        reader = threading.Thread(target=lambda: lines.extend(process.stdout or ()), daemon=True)
        reader.start()
        show_progress(reader, lines, what)
        status = process.wait()
    if status:
        sys.stderr.writelines(lines)
        sys.exit(f"setup: {what} failed (exit {status}); its words are above. Run it again: it starts afresh")


def show_progress(reader: threading.Thread, lines: list[str], what: str) -> None:
    terminal = sys.stderr.isatty()
    started = time.monotonic()
    for turn in itertools.cycle("|/-\\"):
        reader.join(PROGRESS_INTERVAL_S[terminal])
        seconds = time.monotonic() - started
        if not reader.is_alive():
            break
        if terminal:
            width = shutil.get_terminal_size().columns - 1
            last = lines[-1].strip().partition(" (")[0] if lines else ""
            sys.stderr.write("\r\x1b[K" + f"{turn} {what} {seconds:3.0f} s  {last}"[:width])
            sys.stderr.flush()
        else:
            packages = sum(line.startswith("Collecting") for line in lines)
            say(f"{what} … {seconds:.0f} s{f', {packages} packages' if packages else ''}")
    if terminal:
        sys.stderr.write("\r\x1b[K")


def say(text: str) -> None:
    sys.stderr.write(f"setup: {text}\n")
    sys.stderr.flush()


@contextlib.contextmanager
def one_at_a_time() -> Iterator[None]:
    """Two ``make`` runs of one checkout must not build one environment at once: the second waits, then has it."""
    directory = os.open(ROOT / ".ci", os.O_RDONLY)
    try:
        try:
            fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another setup is at work here; waiting for it")
            fcntl.flock(directory, fcntl.LOCK_EX)
        yield
    finally:
        os.close(directory)


if __name__ == "__main__":
    os.environ.setdefault("PIP_NO_INPUT", "1")
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
