"""What the tour prints, on terminals of all kinds and for results of all kinds."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

import click
import pytest
import yaml

from nvdp.__main__ import cli
from nvdp.commands.simulate import STEP_NAMES
from nvdp.nvml.simulated.nodefile import load_node, parse_node
from nvdp.simulate.narration import Narrator, build_next, describe_gpus, to_ascii, wrap
from nvdp.simulate.session import find_program
from nvdp.simulate.steps import STEPS
from nvdp.simulate.tour import StepResult, TourResult

REPOSITORY = Path(__file__).parents[2]


class Terminal(io.StringIO):
    def isatty(self):
        return True


def build_result(*, lines=(), expected=None, seen=None):
    return StepResult(
        number=2,
        name="pods",
        title="Three pods",
        seconds=0.5,
        limit_s=1,
        lines=lines,
        expected=expected,
        seen=seen,
    )


def tell(result, stream):
    narrator = Narrator(count=6, program="nvdp", stream=stream)
    narrator.begin(2, STEPS[1])
    narrator.end(result)
    narrator.conclude(TourResult(steps=(result,), not_run=0, seconds=1.0))
    return stream.getvalue()


def test_a_terminal_gets_colours_and_the_title_of_a_step_that_still_runs(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    text = tell(build_result(expected="one", seen="another"), Terminal())
    assert f"[2/6] {STEPS[1].title} ...\r" in text
    assert "\x1b[31m" in text
    assert "FAILED" in click.unstyle(text)


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_colours_can_be_refused(name, value, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv(name, value)
    text = tell(build_result(expected="one", seen="another"), Terminal())
    assert "\x1b" not in text
    assert "FAILED" in text


def test_without_colours_the_words_are_the_same(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    result = build_result(lines=("seen",))
    coloured = click.unstyle(tell(result, Terminal()))
    assert coloured.replace(f"[2/6] {STEPS[1].title} ...\r", "") == tell(result, io.StringIO())


def test_long_lines_are_broken_between_words_and_nothing_is_cut():
    path = f"/{'p' * 110}"
    seen = f"{' '.join(['word'] * 40)} {path} end"
    text = tell(build_result(expected="one", seen=seen), io.StringIO())
    assert max(len(line) for line in text.splitlines() if path not in line) <= 100
    assert " ".join(text.split()).count("word") == 40
    assert path in text.split()


@pytest.mark.parametrize(("columns", "widest"), [("20", 80), ("80", 80), ("90", 90), ("200", 100)])
def test_a_terminal_is_filled_and_not_overrun(columns, widest, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setenv("NO_COLOR", "1")
    lines = ("kubectl describe node      |  nvidia.com/gpu:  0 -> 32     (8 GPUs x 4, all healthy)", "word " * 30)
    shown = tell(build_result(lines=lines, expected="one", seen="another"), Terminal()).splitlines()
    assert max(len(line.rpartition("\r")[2]) for line in shown) <= widest
    assert "limit 1 s   FAILED" in " ".join(shown)


def test_what_does_not_fit_stands_below_its_column_in_one_piece_if_it_can():
    step = "      kubectl describe node      |  nvidia.com/gpu:  0 -> 32     (8 GPUs x 4, all healthy)"
    assert wrap(step, 80) == [step[:60], f"{' ' * 36}(8 GPUs x 4, all healthy)"]
    row = "  real       the nvdp daemon (pid 4711), gRPC on Unix sockets, the config file and its watch"
    assert wrap(row, 80) == [row.removesuffix(" and its watch"), f"{' ' * 13}and its watch"]
    assert wrap(row, 100) == [row]


def test_text_of_others_is_made_ascii():
    assert to_ascii("GPU 3 × 4 → gone… é") == "GPU 3 x 4 -> gone... \\xe9"


def test_every_command_that_is_named_exists():
    for line in build_next("nvdp"):
        words = line.removeprefix("Next:").split()
        if words[0] == "kubectl":
            assert words[1:3] == ["apply", "-k"]
            assert (REPOSITORY / words[3] / "kustomization.yaml").exists()
            continue
        assert words[0] == "nvdp"
        command = cli.get_command(click.Context(cli), words[1])
        assert command is not None
        if isinstance(command, click.Group):
            assert words[2] in command.commands
        else:
            assert words[2] in {name for parameter in command.params for name in parameter.opts}


def test_the_names_in_the_words_of_kubectl_are_those_of_the_manifests():
    found = {}
    for path in (REPOSITORY / "manifests" / "base").glob("*.yaml"):
        for document in yaml.safe_load_all(path.read_text()):
            if "metadata" in document:
                found[document["kind"]] = document["metadata"]["name"]
    script = (REPOSITORY / "nvdp/simulate/steps.py").read_text()
    assert set(re.findall(r"kubectl -n (\S+)", script)) == {found["Namespace"]}
    assert set(re.findall(r"configmap (\w[\w-]+)", script)) == {found["ConfigMap"]}
    assert set(re.findall(r"ds/([\w-]+)", script)) == {found["DaemonSet"]}


def test_a_node_is_described_by_its_products():
    assert describe_gpus(load_node("mixed")) == "2 x NVIDIA A100-SXM4-80GB, 2 x NVIDIA L40S"
    assert describe_gpus(parse_node("", name="n")) == "no GPU"


@pytest.mark.parametrize(
    ("argv0", "path", "expected"),
    [
        ("{bin}/nvdp", "{bin}", "nvdp"),
        ("{cwd}/.venv/bin/nvdp", "", ".venv/bin/nvdp"),
        ("/opt/nvdp/bin/nvdp", "", "/opt/nvdp/bin/nvdp"),
        (".venv/bin/nvdp", "", ".venv/bin/nvdp"),
    ],
)
def test_the_next_commands_can_be_typed_as_they_stand(argv0, path, expected, tmp_path):
    (tmp_path / "nvdp").touch(0o755)
    names = {"bin": str(tmp_path), "cwd": str(Path.cwd())}
    assert find_program(argv0.format(**names), path.format(**names) or "/nowhere") == expected


def test_a_module_is_called_again_as_a_module():
    shown = find_program("/somewhere/nvdp/__main__.py", "/nowhere")
    assert shown.endswith(" -m nvdp")
    assert Path(Path.cwd(), shown.removesuffix(" -m nvdp")) == Path(sys.executable)


def test_every_step_can_be_chosen():
    assert tuple(step.name for step in STEPS) == STEP_NAMES
