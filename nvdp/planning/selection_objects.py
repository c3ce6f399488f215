"""What the choice of a configuration takes out of a Node and a ConfigMap: a label, and texts by name.

An API server may be replaced, proxied or broken: what is not the object that was asked for is said to be none, and
never read as one without a label, or without entries.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from nvdp.config.document import SIZE_LIMIT_BYTES
from nvdp.errors import FormatError
from nvdp.model.cluster import ObjectPath
from nvdp.planning.selection import is_entry

_MOST_ENTRIES: Final = 4096  # a ConfigMap of 1 MiB has no more of any sense
_BINARY: Final = "is binary data; a configuration is a text, under data"


class Entries(msgspec.Struct, frozen=True):
    """The configurations of a ConfigMap by name, and what is wrong with those that are none.

    With a ``problem``, a sentence, it cannot be used, and there are none.
    """

    texts: Mapping[str, bytes] = {}
    refused: Mapping[str, str] = {}
    problem: str = ""

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self.texts) | frozenset(self.refused)


def parse_label(node: Mapping[str, Any], path: ObjectPath, *, key: str) -> str:
    """The value of the Node's label, empty if it has none. FormatError, a sentence, for what is not that Node."""
    labels = _find_metadata(node, path).get("labels")
    if labels is None:
        return ""
    value = labels.get(key, "") if isinstance(labels, Mapping) else None
    if not isinstance(value, str):
        raise FormatError(f"{path}: the API server sent labels that are none")
    return value


def parse_entries(config_map: Mapping[str, Any], path: ObjectPath) -> Entries:
    """The entries of the ConfigMap; of one that is too large no more than shows it. FormatError as above."""
    _find_metadata(config_map, path)
    data, binary = config_map.get("data") or {}, config_map.get("binaryData") or {}
    if not isinstance(data, Mapping) or not isinstance(binary, Mapping):
        raise FormatError(f"{path}: the API server sent entries that are none")
    if len(data) + len(binary) > _MOST_ENTRIES:
        return Entries(problem=f"{path}: has {len(data) + len(binary)} entries; {_MOST_ENTRIES} are allowed")
    texts, refused = {}, {str(name): _BINARY for name in binary if is_entry(str(name))}
    for name, text in data.items():
        if not is_entry(name):
            continue
        if isinstance(text, str):
            texts[name] = text[: SIZE_LIMIT_BYTES + 1].encode(errors="surrogatepass")
        else:
            refused[name] = "is no text"
    return Entries(texts, refused)


def _find_metadata(found: Mapping[str, Any], path: ObjectPath) -> Mapping[str, Any]:
    metadata = found.get("metadata")
    if isinstance(metadata, Mapping) and metadata.get("name") == path.name:
        return metadata
    raise FormatError(f"{path}: the API server sent something else")
