"""The command line as a whole: exit codes, one line per error, and no command that pays for another."""

from __future__ import annotations

import contextlib
import importlib
import re
import signal
import subprocess
import sys

import click
import pytest

import nvdp
from nvdp.__main__ import COMMANDS, main

NVDP = [sys.executable, "-m", "nvdp"]


@pytest.mark.parametrize("flag", ["--version", "-v"])
def test_the_version_is_one_line(flag: str, capsys):
    assert main([flag]) == 0
    assert capsys.readouterr().out == f"nvdp {nvdp.__version__}\n"


def test_help_lists_every_command_without_importing_one(capsys):
    code = "import sys; from nvdp.__main__ import main; main(['--help']); "
    code += "print(sorted(name for name in sys.modules if 'nvdp.' in name))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    for name, command in COMMANDS.items():
        assert re.search(rf"^  {name} +{re.escape(command.summary)}$", done.stdout, re.MULTILINE)
    assert done.stdout.splitlines()[-1] == "['nvdp.__main__', 'nvdp.errors']"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_where_the_table_says(name: str):
    module, _, attribute = COMMANDS[name].place.partition(":")
    assert isinstance(getattr(importlib.import_module(module), attribute), click.Command)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["frobnicate"], "nvdp: No such command 'frobnicate'. Try nvdp --help\n"),
        (["config", "check"], "nvdp config check: Missing argument 'FILE...'. Try nvdp config check --help\n"),
        (["config", "show", "--frob"], "nvdp config show: No such option '--frob'. Try nvdp config show --help\n"),
        (["config", "show", "--metrics-port", "x"], 'flag --metrics-port: "x" is not a number\n'),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(arguments: list[str], said: str, capsys):
    assert main(arguments) == 2
    assert capsys.readouterr() == ("", said)


@pytest.mark.parametrize("group", ["config", "health"])
def test_no_summary_of_a_command_is_cut(group: str, capsys):
    assert main([group, "--help"]) == 0
    assert "..." not in capsys.readouterr().out.partition("Commands:\n")[2]


@pytest.mark.parametrize("arguments", [[], ["config"]])
def test_no_command_is_the_help_and_exit_code_2(arguments: list[str], capsys):
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "Commands:" in err


@pytest.mark.parametrize("pause_s", [0.2, 0.002])
def test_an_interrupted_command_is_exit_code_130_however_often_it_is_interrupted(pause_s: float):
    process = subprocess.Popen([*NVDP, "config", "check", "-"], stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    with process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(b"#" * 100_000)  # more than a pipe holds: afterwards the command is reading
        process.stdin.flush()
        for _ in range(10_000):  # a signal just before a read is seen with the next one
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=pause_s)
                break
        assert process.returncode == 130
        assert b"Traceback" not in process.stderr.read()


HEAVY = {"grpc", "google.protobuf", "kubernetes", "prometheus_client", "watchdog", "pynvml", "rich", "difflib"}


@pytest.mark.parametrize(
    "code",
    [
        "import nvdp.config.options, nvdp.config.load as load; load.parse_config('', name='f')",
        "import sys; from nvdp.__main__ import main; main(['config', 'show'])",
    ],
)
def test_the_configuration_costs_no_library_that_it_does_not_need(code: str):
    code += "; import sys; print(sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    loaded = set(re.findall(r"'([^']+)'", done.stdout.splitlines()[-1]))
    assert "nvdp.config.load" in loaded
    assert HEAVY & loaded == set()
