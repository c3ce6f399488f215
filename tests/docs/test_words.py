"""The words of README.md and docs/: flags, variables, keys, files and links in them exist."""

from __future__ import annotations

import re
import tomllib

import click
import pytest
import yaml

from nvdp.__main__ import COMMANDS, cli
from nvdp.config.keys import find_block, find_item, list_keys
from nvdp.config.load import parse_config
from nvdp.config.options import list_options
from nvdp.config.schema import Document
from nvdp.model.listing import DeviceListStrategy
from nvdp.model.reasons import Reason
from nvdp.nvml.simulated.nodefile import parse_node
from nvdp.planning.runtime_fit import RuntimeFile, RuntimeFiles, judge_runtime
from nvdp.planning.xid_policy import DISABLE, ENABLE
from tests.docs.pages import PAGES, ROOT, find_anchors, find_blocks, find_links, find_spans

README = (ROOT / "README.md").read_text()
OF_OTHERS = {
    "--root-dir",  # the kubelet's
    "--flag",  # in the explanation of how flags are written
    "---",  # YAML's
}
VARIABLES_OF_OTHERS = {"NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES", "TMPDIR", "NO_COLOR"}
VARIABLES_OF_OTHERS |= {"NVIDIA_IMEX_CHANNELS", "NVIDIA_GDRCOPY", "NVIDIA_GDS", "NVIDIA_MOFED"}
VARIABLES_OF_OTHERS |= {"NVIDIA_CTK_LIBCUDA_DIR"}
VARIABLES_OF_OTHERS |= {"CONFIG_FILE_DST", "SEND_SIGNAL", "PROCESS_TO_SIGNAL"}  # of NVIDIA's config manager
VARIABLES_OF_OTHERS |= {
    "CUDA_MPS_PIPE_DIRECTORY",
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
    "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
    "CUDA_ERROR_MPS_CONNECTION_FAILED",  # an error
    "EXCLUSIVE_PROCESS",  # a compute mode
    "CAP_SYS_ADMIN",  # a capability
}
KUBERNETES_KEYS = {"apiVersion", "components", "groups"}


def list_flags():
    found = {f"--{flag}" for option in list_options() for flag in option.key.setting.flags}
    for name in COMMANDS:
        command = cli.get_command(click.Context(cli), name)
        commands = command.commands.values() if isinstance(command, click.Group) else [command]
        found |= {flag for one in commands for parameter in one.params for flag in parameter.opts}
    return found


def list_paths(block=Document, before=""):
    """All keys of the file by their dotted paths; entries of a list as ``resources[].name``."""
    for key in list_keys(block):
        path = f"{before}{key.name}"
        yield path
        inner = find_block(key.type)
        if inner is not None:
            yield from list_paths(inner, f"{path}{'[]' if find_item(key.type) is not None else ''}.")


PATHS = set(list_paths())
TOP_LEVEL = {path.partition(".")[0] for path in PATHS}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_flags_exist(page):
    spans = [span for span in find_spans(page) if span.startswith("--")]
    assert {re.split(r"[ =]", span)[0] for span in spans} - OF_OTHERS <= list_flags()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_variables_exist(page):
    known = {name for option in list_options() for name in option.key.setting.environment} | {DISABLE, ENABLE}
    spans = [span.partition("=")[0] for span in find_spans(page)]
    named = {span for span in spans if re.fullmatch(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)+", span)}
    assert named - VARIABLES_OF_OTHERS <= known


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_keys_of_the_file_exist(page):
    spans = {re.sub(r"\[\d*\]", "[]", span).removesuffix("[]") for span in find_spans(page)}
    dotted = {span for span in spans if re.fullmatch(r"\w+(\[\])?(\.\w+(\[\])?)+", span)}
    assert {span for span in dotted if span.split(".")[0].removesuffix("[]") in TOP_LEVEL} <= PATHS


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for link in find_links(page):
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), link
        assert not anchor or anchor in find_anchors(target), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_of_the_project_exist(page):
    names = "|".join(path.name for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith("."))
    for span in find_spans(page):
        if re.fullmatch(rf"({names})(/[\w.-]+)+", span) and not span.startswith("nvdp/device"):
            assert (ROOT / span).exists(), span


@pytest.mark.parametrize("block", [block for block in find_blocks() if block.language == "yaml"], ids=lambda b: b.page)
def test_examples_in_yaml_are_valid(block):
    content = yaml.safe_load(block.text)
    if "gpus" in content:
        parse_node(block.text, name=block.page)
    elif not KUBERNETES_KEYS & content.keys():
        parse_config(block.text, name=block.page)


def test_kustomizations_of_the_pages_are_made_of_what_is_there():
    contents = [yaml.safe_load(block.text) for block in find_blocks() if block.language == "yaml"]
    named = {
        path
        for content in contents
        if content.get("kind") == "Kustomization" or content.keys() == {"components"}
        for path in (*content.get("resources", []), *content.get("components", []))
    }
    assert len(named) > 1
    for path in named:
        assert (ROOT / path.removeprefix("../nvdp/") / "kustomization.yaml").exists(), path


def test_containerd_heeds_cdi_devices_with_what_the_page_about_cdi_has_for_it():
    (block,) = (block for block in find_blocks() if block.language == "toml")
    file = RuntimeFile(path=block.page, content=tomllib.loads(block.text))
    assert block.page == "cdi.md"
    assert judge_runtime(RuntimeFiles(containerd=(file,)), [DeviceListStrategy.CDI_CRI]) == ()


def test_the_readme_shares_a_gpu_in_six_lines():
    example = next(block.text for block in find_blocks() if block.page == "README.md" and block.language == "yaml")
    (entry,) = parse_config(example, name="README").sharing.time_slicing.resources
    assert (len(example.splitlines()), str(entry.name), entry.replicas) == (6, "nvidia.com/gpu", 4)


def test_the_readme_greps_for_reasons_that_are_logged():
    words = set(re.findall(r"grep (\w+)", README))
    assert words
    assert words <= {reason.word for reason in Reason}


def test_the_first_screen_comes_in_the_order_in_which_people_ask():
    headings = re.findall(r"^## (.+)$", README, re.MULTILINE)
    assert headings[:6] == [
        "Try it: no GPU, no cluster",
        "On a cluster",
        "Share a GPU",
        "Coming from NVIDIA's plugin",
        "What happens when …",
        "What it is not",
    ]
