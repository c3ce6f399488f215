"""Options of the process that parse, and whose values are probably not meant."""

from __future__ import annotations

from collections.abc import Iterator

from nvdp.config.process import ProcessOptions
from nvdp.model.cdi import FEATURE_FLAGS, HOOKS, NO_HOOKS


def find_doubts(options: ProcessOptions) -> Iterator[tuple[str, str]]:
    """Each flag with a word that nothing knows, and a sentence. NVIDIA's plugin passes over such words in silence."""
    for flag, words, known in (
        ("--cdi-feature-flags", options.cdi_feature_flags, FEATURE_FLAGS),
        ("--cdi-disable-hooks", options.cdi_disable_hooks, (NO_HOOKS, *HOOKS)),
    ):
        for word in words:
            if word not in known:
                yield flag, f"{flag}: {word} is not known and has no effect; there are {', '.join(known)}"
