"""GPU models that a node file may name, with the facts that NVML reports of them."""

from __future__ import annotations

from typing import Final

import msgspec

MIB: Final = 1 << 20


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """What all cards of a model have in common."""

    product: str
    memory_bytes: int
    compute_capability: str
    has_mig: bool = False


MODELS: Final = {
    "h200-sxm5-141gb": Model(product="NVIDIA H200", memory_bytes=143771 * MIB, compute_capability="9.0", has_mig=True),
    "h100-sxm5-80gb": Model(
        product="NVIDIA H100 80GB HBM3", memory_bytes=81559 * MIB, compute_capability="9.0", has_mig=True
    ),
    "a100-sxm4-80gb": Model(
        product="NVIDIA A100-SXM4-80GB", memory_bytes=81920 * MIB, compute_capability="8.0", has_mig=True
    ),
    "l40s": Model(product="NVIDIA L40S", memory_bytes=46068 * MIB, compute_capability="8.9"),
    "l4": Model(product="NVIDIA L4", memory_bytes=23034 * MIB, compute_capability="8.9"),
    "a10": Model(product="NVIDIA A10", memory_bytes=23028 * MIB, compute_capability="8.6"),
    "t4": Model(product="Tesla T4", memory_bytes=15360 * MIB, compute_capability="7.5"),
}
