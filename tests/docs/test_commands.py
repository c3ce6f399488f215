"""Every command in README.md and docs/: nvdp's are run, those for a cluster are held against manifests/."""

from __future__ import annotations

import contextlib
import functools
import re
import signal
import subprocess
import sys

import click
import pytest
import yaml

from nvdp.__main__ import cli
from nvdp.config.cluster import NODE_LABEL
from tests.docs.pages import (
    COMMANDS,
    ROOT,
    find_block_commands,
    find_blocks,
    find_span_commands,
    find_spans,
    is_output,
    is_shell,
)

BLOCK_COMMANDS = find_block_commands()
ALL_COMMANDS = [*BLOCK_COMMANDS, *find_span_commands()]
NVDP = (sys.executable, "-m", "nvdp")
PLACEHOLDERS = {"FILE": "config/time-slicing.yaml"}
KINDS = {"ds": "DaemonSet", "daemonset": "DaemonSet", "configmap": "ConfigMap", "pod": "Pod", "namespace": "Namespace"}
KINDS |= {"serviceaccount": "ServiceAccount", "deployment": "Deployment"}
KUBECTL_VERBS = {
    "apply",
    "cordon",
    "delete",
    "drain",
    "get",
    "describe",
    "edit",
    "exec",
    "label",
    "logs",
    "port-forward",
    "rollout",
    "uncordon",
    "wait",
}


def commands_of(found, *names):
    chosen = dict.fromkeys(command for command in found if command.words[0] in names)
    return pytest.mark.parametrize("command", chosen, ids=str)


@functools.cache
def load_manifests():
    """Kind and name of all that manifests/ holds, and its text."""
    texts = [path.read_text() for path in (ROOT / "manifests").rglob("*.yaml")]
    documents = [document for text in texts for document in yaml.safe_load_all(text)]
    named = {(document["kind"], document["metadata"]["name"]) for document in documents if "metadata" in document}
    return named, "\n".join(texts)


@contextlib.contextmanager
def running(*command):
    """The process; it is over afterwards, whatever happens."""
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(command, cwd=ROOT, text=True, **pipes) as process:
        try:
            yield process
        finally:
            process.terminate()


def read_until(process, pattern):
    """What it prints, to the first line with the pattern, which comes."""
    seen = []
    for line in process.stdout:
        seen.append(line)
        if re.search(pattern, line):
            return "".join(seen)
    raise AssertionError(f"no {pattern}: {''.join(seen)}")


def is_played(command):
    """Whether it takes more than one command to see something of it."""
    return command.page == "mps.md" and "simulate" in command.words


def is_placeholder(word):
    return re.fullmatch(r"[A-Z]+", word) is not None


def test_every_block_is_commands_or_output_or_names_its_language():
    unknown = [
        line
        for block in find_blocks()
        if is_shell(block)
        for line in block.text.splitlines()
        if line.split()[0] not in COMMANDS
    ]
    assert unknown == []
    assert {block.language for block in find_blocks()} <= {"", "yaml", "python", "toml"}
    with_output = {"observability.md", "performance.md", "plan.md", "status.md"}
    assert {block.page for block in find_blocks() if is_output(block)} == with_output


@commands_of([command for command in BLOCK_COMMANDS if not is_played(command)], "nvdp", ".venv/bin/nvdp")
def test_a_command_of_nvdp_works(command, tmp_path):
    words = [PLACEHOLDERS.get(word, word) for word in command.words[1:]]
    if words[0] == "simulate":
        words += ["--slack", "5"]
    with running(*NVDP, *words) as process:
        if "--serve" not in words:
            output, errors = process.communicate(timeout=40)
            assert process.returncode == 0, output + errors
            return
        assert any("allocatable 0 -> 32" in line for line in process.stdout)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=10)
        assert process.returncode == 130


def test_mps_is_tried_without_a_gpu_as_its_page_says():
    (command,) = (found for found in BLOCK_COMMANDS if is_played(found))
    (typed,) = (span for span in find_spans(ROOT / "docs" / command.page) if span.startswith("pod "))
    with running(*NVDP, *command.words[1:]) as node:
        (script,) = re.findall(r" mps +(\S+) ", read_until(node, r"^ +probes "))
        read_until(node, "MPSDaemonFailed")
        with running(script) as keeper:
            read_until(node, r"nvidia\.com/gpu\.mps: +allocatable 0 -> 16 ")
            node.stdin.write(f"{typed}\n")
            node.stdin.flush()
            read_until(node, r" CUDA_MPS_PIPE_DIRECTORY=/mps/nvidia\.com/gpu\.mps/pipe$")
            keeper.send_signal(signal.SIGINT)
            read_until(node, r"allocatable 16 -> 0 ")
            assert keeper.wait(20) == 0
        node.send_signal(signal.SIGINT)
        node.communicate(timeout=20)


@commands_of(ALL_COMMANDS, "nvdp", ".venv/bin/nvdp")
def test_a_command_of_nvdp_exists_with_its_flags(command):
    check_nvdp(command.words[1:])


def test_a_command_that_is_not_built_yet_is_not_there():
    for command in find_span_commands(built=False):
        assert command.words[0] == "nvdp"
        assert cli.get_command(click.Context(cli), command.words[1]) is None


def check_nvdp(words):
    group = cli
    words = list(words)
    while words and isinstance(group, click.Group):
        found = group.get_command(click.Context(group), words[0])
        assert found is not None, words[0]
        group = found
        words.pop(0)
    known = {name for parameter in group.params for name in parameter.opts}
    assert {word.partition("=")[0] for word in words if word.startswith("--")} <= known


@commands_of(ALL_COMMANDS, "make")
def test_a_target_of_make_exists(command):
    (target,) = command.words[1:]
    subprocess.run(["make", "-n", target], cwd=ROOT, check=True, capture_output=True, timeout=20)


@commands_of(ALL_COMMANDS, ".venv/bin/python")
def test_a_module_of_python_is_in_the_checkout(command):
    assert command.words[1] == "-m"
    assert (ROOT / command.words[2].replace(".", "/") / "__main__.py").exists()


@commands_of(ALL_COMMANDS, "kubectl")
def test_a_command_for_a_cluster_names_what_is_in_the_manifests(command):
    objects, text = load_manifests()
    words = list(command.words[1:])
    options, rest = {}, []
    if "--" in words:
        at = words.index("--")
        words, inner = words[:at], words[at + 1 :]
        assert inner[0] != "nvdp" or check_nvdp(inner[1:]) is None
    while words:
        word = words.pop(0)
        if word in {"-n", "-k", "-f", "-l", "-o"} and not (word == "-f" and rest[:1] == ["logs"]):
            options[word] = words.pop(0)
        elif not word.startswith("-"):
            rest.append(word)
    verb, *named = rest
    assert verb in KUBECTL_VERBS
    namespace = options.get("-n", "nvdp")
    assert is_placeholder(namespace) or ("Namespace", namespace) in objects
    assert "-k" not in options or (ROOT / options["-k"] / "kustomization.yaml").exists()
    assert "-f" not in options or (ROOT / options["-f"]).exists()
    if "-l" in options:
        key, _, value = options["-l"].partition("=")
        assert f"{key}: {value}" in text
    for kind, _, name in (word.partition("/") for word in named if "/" in word and "=" not in word):
        assert (KINDS[kind], name) in objects
    if len(named) == 2 and named[0] in KINDS:
        assert is_placeholder(named[1]) or (KINDS[named[0]], named[1]) in objects
    if verb == "label":
        key = named[-1].partition("=")[0]
        assert key == NODE_LABEL or f"key: {key}," in text
    if verb == "port-forward":
        assert f"containerPort: {named[-1]}" in text


@commands_of(ALL_COMMANDS, "curl")
def test_an_address_is_one_that_the_plugin_answers(command):
    source = (ROOT / "nvdp/app/answers.py").read_text()
    (path,) = re.findall(r"localhost:9402(/\w+)", command.words[-1])
    assert f'"{path}"' in source


def test_what_the_readme_says_apply_prints_is_first_and_last_of_the_base():
    text = (ROOT / "README.md").read_text()
    printed = re.findall(r"`([\w.]+)/(\w+) created`", text)
    base = yaml.safe_load((ROOT / "manifests/base/kustomization.yaml").read_text())["resources"]
    assert [name for _, name in printed] == ["nvdp", "nvdp"]
    assert [kind for kind, _ in printed] == ["namespace", "daemonset.apps"]
    assert (base[0], base[-1]) == ("namespace.yaml", "daemonset.yaml")
