"""nvdp as the image has it: in an environment of its own, compiled ahead, its byte code never checked."""

from __future__ import annotations

import compileall
import importlib.util
import py_compile
import shutil
import sysconfig
import venv
from pathlib import Path

import nvdp

_DEPENDENCIES = ("grpc", "google.protobuf", "msgspec", "yaml", "watchdog", "prometheus_client", "click")
_ENTRY = "import sys; from nvdp.__main__ import main; sys.exit(main())"  # as the script that pip makes


class Installation:
    """A virtual environment in ``directory`` with a copy of nvdp; later edits of the tree do not reach it.

    Dependencies are those of the environment that we run in. ``python`` begins the command of an interpreter, ``nvdp``
    that of the program; both leave out what an editable installation would do at each start.
    """

    def __init__(self, directory: Path) -> None:
        venv.create(directory, symlinks=True)
        paths = sysconfig.get_paths(vars={"base": str(directory), "platbase": str(directory)})
        site_packages = Path(paths["purelib"])
        (site_packages / "dependencies.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
        target = site_packages / "nvdp"
        shutil.copytree(Path(nvdp.__file__).parent, target, ignore=shutil.ignore_patterns("__pycache__"))
        mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
        if not compileall.compile_dir(target, quiet=1, invalidation_mode=mode):
            raise OSError(f"{target}: does not compile")
        self.python = ("env", "-u", "PYTHONPATH", str(directory / "bin/python"), "-P")
        self.nvdp = (*self.python, "-c", _ENTRY)


def are_dependencies_compiled() -> bool:
    """Whether pip left the byte code of what the daemon imports; without it starts are slower and need more memory."""
    specs = [importlib.util.find_spec(name) for name in _DEPENDENCIES]
    return all(spec is not None and spec.cached is not None and Path(spec.cached).exists() for spec in specs)
