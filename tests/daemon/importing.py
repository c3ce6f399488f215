"""``nvdp`` that leaves the name of each module it looks for, from the start to the end, in a file.

python -m tests.daemon.importing FILE python -m nvdp run FLAGS
"""

from __future__ import annotations

import os
import sys
from pathlib import Path


def build_launcher(file: Path) -> tuple[str, ...]:
    """A launcher for ``Daemon``."""
    return sys.executable, "-m", "tests.daemon.importing", str(file)


def main() -> int:
    file = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC)

    def note(event: str, arguments: tuple[object, ...]) -> None:
        if event == "import":
            os.write(file, f"{arguments[0]}\n".encode())

    sys.addaudithook(note)
    words = sys.argv[sys.argv.index("nvdp") :]
    sys.argv = words
    from nvdp.__main__ import main as run

    return run(words[1:])


if __name__ == "__main__":
    sys.exit(main())
