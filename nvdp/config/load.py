"""From the text of a file to a configuration that can be used as it is, or to all that is wrong with it. No I/O."""

from __future__ import annotations

import hashlib
from typing import Final

import msgspec

from nvdp.config.document import parse_document
from nvdp.config.findings import Findings
from nvdp.config.nodes import Mapping, Node, Scalar, find_value
from nvdp.config.overrides import NO_OVERRIDES, Overrides
from nvdp.config.reading import Reading
from nvdp.config.rules import NEW_POLICY, OLD_POLICY, check_rules
from nvdp.config.schema import DEFAULT, Config, Document, Origin

_HASH_DIGITS: Final = 12


def parse_config(text: bytes | str, *, name: str, overrides: Overrides = NO_OVERRIDES) -> Config:
    """The configuration that ``text`` holds, YAML or JSON, under ``overrides``; an empty text is all defaults.

    ``name`` is the source as shown to people. Whatever the bytes, the only error is ConfigError, with every problem of
    the file at once unless it is no YAML. Pure; some milliseconds at most for a file of usual size.
    """
    findings = Findings(name)
    root = parse_document(text, name=name)
    _check_not_a_config_map(root, findings)
    reading = Reading(findings, overrides)
    document = reading.read_document(root)
    check_rules(document, findings, overrides)
    findings.raise_problems()
    return Config(
        **msgspec.structs.asdict(_complete(document, reading.origins)),
        name=name,
        hash=build_hash(text),
        warnings=findings.warnings,
        origins=reading.origins,
    )


def build_hash(text: bytes | str) -> str:
    """``sha256:`` and the first 12 hex digits, over the bytes of the file."""
    raw = text.encode() if isinstance(text, str) else text
    return f"sha256:{hashlib.sha256(raw).hexdigest()[:_HASH_DIGITS]}"


def _check_not_a_config_map(root: Node | None, findings: Findings) -> None:
    """Every key of a pasted ConfigMap would be unknown: one line says more than twenty."""
    if not isinstance(root, Mapping):
        return
    kind = find_value(root, "kind")
    is_config_map = isinstance(kind, Scalar) and kind.text == "ConfigMap"
    for key, _ in root.entries:
        if key.text in {"apiVersion", "kind"} and (is_config_map or find_value(root, "data") is not None):
            findings.report(
                key.text,
                "this is a ConfigMap; the configuration is the text under data.<name>",
                mark=key.mark,
            )
            findings.raise_problems()


def _complete(document: Document, origins: dict[str, Origin]) -> Document:
    """The document with the values that follow from others."""
    flags, plugin, allocation = document.flags, document.flags.plugin, document.allocation
    if not flags.nvidia_dev_root:
        flags = msgspec.structs.replace(flags, nvidia_dev_root=flags.nvidia_driver_root)
        origins["flags.nvidiaDevRoot"] = Origin(text="follows nvidiaDriverRoot")
    plugin = msgspec.structs.replace(
        plugin,
        device_list_strategy=tuple(dict.fromkeys(plugin.device_list_strategy)),
        container_driver_root=plugin.container_driver_root or "/",  # never where this process happens to stand
    )
    flags = msgspec.structs.replace(flags, plugin=plugin)
    if plugin.shared_devices_allocation_policy is not None and origins[NEW_POLICY] == DEFAULT:
        allocation = msgspec.structs.replace(allocation, shared_policy=plugin.shared_devices_allocation_policy)
        origins[NEW_POLICY] = Origin(text=f"follows {OLD_POLICY}")
    return msgspec.structs.replace(document, flags=flags, allocation=allocation)
