"""What is said of a file, against a model of NVIDIA's plugin: whether it starts there, and what it shares."""

from __future__ import annotations

import json
import re
from typing import Any

import yaml
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from nvdp.config.nvidia_rows import Effect
from nvdp.config.schema import Config, MigStrategy
from tests.config.judged import differences_of, lines_of
from tests.config.nvidia_examples import UUID
from tests.config.nvidia_loader import GPU, RefusedError, Shared, load
from tests.config.reading import errors_of, read

WORDS = st.from_regex(r"[a-z][a-z0-9]{2,8}", fullmatch=True).filter(lambda word: not word.startswith(("inf", "nan")))
PATHS = WORDS.map(lambda word: f"/{word}")


def _block(**keys: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=keys)


def _entries(*, most: int, first: str = "") -> st.SearchStrategy[list[dict[str, Any]]]:
    """Entries as NVIDIA's plugin takes them, for different resources."""
    names = st.lists(WORDS | WORDS.map(lambda word: f"nvidia.com/{word}"), min_size=1, max_size=3)
    named = names.map(lambda some: [first, *some] if first else some)
    return named.flatmap(
        lambda some: st.tuples(
            *(
                st.fixed_dictionaries(
                    {"name": st.just(name), "replicas": st.integers(2, most)}, optional={"devices": st.just("all")}
                )
                for name in {name.removeprefix("nvidia.com/"): name for name in some}.values()
            )
        ).map(list)
    )


def _sharing(*, most: int, fail: st.SearchStrategy[bool], first: str = ""):
    return st.fixed_dictionaries(
        {"resources": _entries(most=most, first=first)},
        optional={"renameByDefault": st.booleans(), "failRequestsGreaterThanOne": fail},
    )


GFD = _block(
    oneshot=st.booleans(),
    noTimestamp=st.booleans(),
    sleepInterval=st.sampled_from(["60s", "1m30s", "500ms", "infinite", "0", 0, "0s"]),
    outputFile=PATHS,
    machineTypeFile=PATHS,
)
STRATEGIES = st.sampled_from(["envvar", "volume-mounts"])
PLUGIN_FLAGS = _block(
    passDeviceSpecs=st.booleans(),
    deviceListStrategy=STRATEGIES | st.lists(STRATEGIES, min_size=1, max_size=2),
    deviceIDStrategy=st.sampled_from(["uuid", "index"]),
    cdiAnnotationPrefix=WORDS.map(lambda word: f"{word}/"),
    nvidiaCTKPath=PATHS,
    containerDriverRoot=PATHS,
    sharedDevicesAllocationPolicy=st.sampled_from(["distributed", "packed"]),
)
FLAGS = {
    "failOnInitError": st.just(value=False),
    "mpsRoot": PATHS,
    "nvidiaDriverRoot": PATHS,
    "nvidiaDevRoot": PATHS,
    **dict.fromkeys(("gdrcopyEnabled", "gdsEnabled", "mofedEnabled", "useNodeFeatureAPI"), st.booleans()),
    "deviceDiscoveryStrategy": st.sampled_from(["auto", "nvml", "tegra"]),
    "plugin": PLUGIN_FLAGS,
    "gfd": GFD,
}
COMMON = {
    "version": st.just("v1"),
    "imex": _block(channelIDs=st.sampled_from([[], [0]]), required=st.just(value=False)),
}
NVIDIA_FILES = st.one_of(
    _block(
        flags=_block(**FLAGS, migStrategy=st.sampled_from(["none", "single", "mixed"])),
        sharing=_block(timeSlicing=_sharing(most=100, fail=st.booleans())),
        **COMMON,
    ),
    _block(
        flags=_block(**FLAGS, migStrategy=st.just("none")),
        sharing=_block(mps=_sharing(most=48, first="nvidia.com/gpu", fail=st.just(value=True))),
        **COMMON,
    ),
)
DUMPS = st.sampled_from([json.dumps, yaml.safe_dump])


@settings(deadline=None)
@given(NVIDIA_FILES, DUMPS)
def test_a_file_of_nvidias_keys_in_nvidias_meaning_has_no_difference(file: dict[str, Any], dump):
    text = dump(file)
    assert lines_of(text) == []
    assert load(text) == _list_shared(read(text))


GPU_NAMES = ["nvidia.com/gpu", "gpu"]
NAMES = [*GPU_NAMES, "a100", "nvidia.com/mig-1g.10gb", "example.com/gpu", "GPU", 7, True, "1.5"]
DEVICES = [2, [0], ["1", "0:1"], ["0000:17:00.0"], [f"gpu-{UUID}"], [f"GPU-{UUID.upper()}"], [f"MIG-{UUID}"]]
RENAMES = ["nvidia.com/gpu", "gpu.shared", "nvidia.com/a100.shared", "gpu.mps", "s", "x.org/s", 5, None]


def _mostly(usual: list[Any], rare: list[Any]) -> st.SearchStrategy[Any]:
    return st.sampled_from([*usual * len(rare) * 2, *rare])


ENTRY = st.one_of(
    st.fixed_dictionaries({"name": _mostly(GPU_NAMES, NAMES), "replicas": _mostly([2, 4], [1, 48, 49])}),
    st.fixed_dictionaries(
        {"name": _mostly(GPU_NAMES, NAMES), "replicas": _mostly([2, 4], [1, 48, 49])},
        optional={"rename": st.sampled_from(RENAMES), "devices": _mostly(["all"], DEVICES)},
    ),
)
SOME_SHARING = st.fixed_dictionaries(
    {"resources": st.lists(ENTRY, min_size=1, max_size=2)},
    optional={"renameByDefault": st.booleans(), "failRequestsGreaterThanOne": st.booleans()},
)
RULE = st.fixed_dictionaries(
    {"pattern": _mostly(["*A100*", "1g.10gb", "*"], [5090]), "name": _mostly(GPU_NAMES, NAMES)}
)
SOME_FILES = _block(
    flags=_block(
        migStrategy=st.sampled_from(["none", "single", "mixed"]),
        gfd=_block(sleepInterval=_mostly([5, "5s", "0", 0, "infinite"], ["5", "0.0"])),
    ),
    resources=_block(gpus=st.lists(RULE, max_size=2), mig=st.lists(RULE, max_size=1)),
    sharing=st.one_of(
        _block(timeSlicing=SOME_SHARING), _block(mps=SOME_SHARING), _block(timeSlicing=SOME_SHARING, mps=SOME_SHARING)
    ),
    imex=_block(channelIDs=_mostly([[], [0]], [[0, 0]])),
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(SOME_FILES, DUMPS)
def test_a_file_is_called_dangerous_where_it_does_not_start_there_or_gives_something_else(file: dict[str, Any], dump):
    text = dump(file)
    assume(errors_of(text) == [])
    dangerous = [it for it in differences_of(text) if it.effect is Effect.DANGEROUS]
    stops = any(re.search("does not start|offers nothing", it.message) for it in dangerous)
    try:
        there = load(text)
    except RefusedError:
        assert stops
    else:
        config = read(text)
        same = there == _list_shared(config) and not _chooses_devices(config) and not _chooses_names(config)
        assert not stops
        assert bool(dangerous) is not same


def _list_shared(config: Config) -> dict[str, Shared]:
    """What nvdp shares, as the model says it of NVIDIA's plugin; every entry takes all devices of its name."""
    blocks = {"timeSlicing": config.sharing.time_slicing, "mps": config.sharing.mps}
    return {
        str(entry.name): Shared(
            mode,
            str(entry.build_final_name(rename_by_default=block.rename_by_default)),
            entry.replicas,
            block.fail_requests_greater_than_one,
        )
        for mode, block in blocks.items()
        if block is not None
        for entry in block.resources
    }


def _chooses_devices(config: Config) -> bool:
    blocks = (config.sharing.time_slicing, config.sharing.mps)
    return not all(entry.devices.is_all for block in blocks if block is not None for entry in block.resources)


def _chooses_names(config: Config) -> bool:
    """Whether ``resources`` gives a name that the devices do not have anyway."""
    strategy = config.flags.mig_strategy
    if any(rule.name != GPU for rule in config.resources.gpus):
        return True
    if strategy is MigStrategy.SINGLE:
        return any(rule.name != GPU for rule in config.resources.mig)
    return strategy is MigStrategy.MIXED and any(
        rule.name != f"nvidia.com/mig-{rule.pattern}" for rule in config.resources.mig
    )
