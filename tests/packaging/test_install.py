"""`.ci/install.py` on a small project: real environments, real pip, one wheel made here and no network."""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.campaign,
    pytest.mark.timeout(240),  # an environment takes four seconds to make, and many times that on a busy machine
    pytest.mark.skipif(
        os.environ.get("NVDP_CAMPAIGN") != "full",
        reason="makes several environments; `.ci/run` makes one of a clean clone, and `make campaign` does it",
    ),
]

ROOT = Path(__file__).resolve().parents[2]
BACKEND = """
import base64, hashlib, pathlib, zipfile
def _write(path, files):
    with zipfile.ZipFile(path, "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)
def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    info = "small-1.0.dist-info"
    files = {
        "small.pth": str(pathlib.Path.cwd()) + "\\n",
        f"{info}/METADATA": "Metadata-Version: 2.1\\nName: small\\nVersion: 1.0\\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\\nGenerator: test\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{name},,\\n" for name in [*files, f"{info}/RECORD"])
    name = "small-1.0-py3-none-any.whl"
    _write(pathlib.Path(wheel_directory) / name, files)
    return name
"""


def make_wheel(directory: Path, name: str, version: str) -> str:
    """A wheel with one module; returns its line for a lock file."""
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": f"version = {version!r}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    records = [
        f"{path},sha256={base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b'=').decode()},{len(text)}"
        for path, text in files.items()
    ]
    files[f"{info}/RECORD"] = "\n".join([*records, f"{info}/RECORD,,"]) + "\n"
    path = directory / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for inner, text in files.items():
            wheel.writestr(zipfile.ZipInfo(inner), text)  # without a date: the same content has the same hash
    return f"{name}=={version} --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}\n"


class Checkout:
    """A project that is set up by a copy of our own scripts."""

    def __init__(self, root: Path) -> None:
        self.root, self.wheels = root / "project", root / "wheels"
        (self.root / ".ci").mkdir(parents=True)
        self.wheels.mkdir()
        for script in ("setup", "install.py"):
            shutil.copy(ROOT / ".ci" / script, self.root / ".ci" / script)
        (self.root / "backend.py").write_text(BACKEND)
        (self.root / "pyproject.toml").write_text(
            '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
            '[project]\nname = "small"\nversion = "1.0"\n'
        )
        (self.root / ".ci/build.lock").write_text("")
        self.lock("runtime", "1.0")
        (self.root / ".ci/dev.lock").write_text(
            (self.root / ".ci/runtime.lock").read_text() + make_wheel(self.wheels, "devtool", "1.0")
        )

    def lock(self, kind: str, version: str) -> None:
        (self.root / f".ci/{kind}.lock").write_text(make_wheel(self.wheels, "payload", version))

    def setup(self, kind: str = "runtime") -> subprocess.CompletedProcess[str]:
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("PIP_")},
            "PYTHON": getattr(sys, "_base_executable", sys.executable),
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(self.wheels),
            "PIP_CONFIG_FILE": os.devnull,
        }
        return subprocess.run(
            [self.root / ".ci/setup", kind], env=environment, capture_output=True, text=True, check=False, timeout=200
        )

    def ask(self, program: str) -> str:
        python = self.root / ".venv/bin/python"
        return subprocess.run([python, "-c", program], capture_output=True, text=True, check=True).stdout.strip()

    def made_at(self) -> int:
        return (self.root / ".venv/pyvenv.cfg").stat().st_mtime_ns


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    made = Checkout(tmp_path_factory.mktemp("checkout"))
    done = made.setup()
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1].startswith("setup: ready: .venv has what runtime needs")
    return made


def test_a_clean_clone_gets_what_the_lock_says_and_the_project_itself(checkout: Checkout):
    assert checkout.ask("import payload, backend; print(payload.version)") == "1.0"


def test_a_second_time_there_is_nothing_to_do_or_say(checkout: Checkout):
    before = checkout.made_at()
    done = checkout.setup()
    assert (done.returncode, done.stdout, done.stderr, checkout.made_at()) == (0, "", "", before)


def test_a_changed_lock_is_followed_without_starting_over(checkout: Checkout):
    before = checkout.made_at()
    checkout.lock("runtime", "2.0")
    assert checkout.setup().returncode == 0
    assert (checkout.ask("import payload; print(payload.version)"), checkout.made_at()) == ("2.0", before)


def test_a_failed_installation_shows_the_installers_words_and_what_it_left_is_made_anew(checkout: Checkout):
    checkout.lock("runtime", "2.0")
    good = (checkout.root / ".ci/runtime.lock").read_text()
    (checkout.root / ".ci/runtime.lock").write_text(make_wheel(checkout.wheels, "payload", "3.0")[:-3] + "00\n")
    done = checkout.setup()
    assert done.returncode == 1
    assert "payload" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("setup: installing what runtime needs failed")
    before = checkout.made_at()
    (checkout.root / ".venv/bin/python").unlink()
    (checkout.root / ".ci/runtime.lock").write_text(good)
    assert checkout.setup().returncode == 0
    assert checkout.ask("import payload; print(payload.version)") == "2.0"
    assert checkout.made_at() != before
    assert checkout.setup().stderr == ""


def test_development_brings_all_of_runtime(checkout: Checkout):
    (checkout.root / ".ci/runtime.lock").write_text(make_wheel(checkout.wheels, "payload", "1.0"))
    assert checkout.setup("dev").returncode == 0
    assert checkout.ask("import payload, devtool; print(payload.version)") == "1.0"
    assert checkout.setup("runtime").stderr == ""


def test_a_checkout_that_was_moved_gets_an_environment_of_its_own(checkout: Checkout, tmp_path: Path):
    moved = Checkout(tmp_path)
    shutil.rmtree(moved.root)
    shutil.copytree(checkout.root, moved.root, symlinks=True)
    moved.wheels = checkout.wheels
    before = moved.made_at()
    assert moved.setup().returncode == 0
    assert moved.made_at() != before
    assert str(moved.root) in (moved.root / ".venv/bin/pip").read_text()
