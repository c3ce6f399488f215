"""GPU models that a node file may name, with the facts that NVML reports of them."""

from __future__ import annotations

from typing import Final

import msgspec

from nvdp.nvml.simulated.mig_kinds import FOUR_SLICES, SEVEN_SLICES, Kind

MIB: Final = 1 << 20


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """What all cards of a model have in common."""

    product: str
    memory_bytes: int
    compute_capability: str
    mig_kinds: tuple[Kind, ...] = ()


MODELS: Final = {
    "b200-sxm6-180gb": Model(
        product="NVIDIA B200", memory_bytes=183359 * MIB, compute_capability="10.0", mig_kinds=SEVEN_SLICES
    ),
    "h200-sxm5-141gb": Model(
        product="NVIDIA H200", memory_bytes=143771 * MIB, compute_capability="9.0", mig_kinds=SEVEN_SLICES
    ),
    "h100-sxm5-80gb": Model(
        product="NVIDIA H100 80GB HBM3", memory_bytes=81559 * MIB, compute_capability="9.0", mig_kinds=SEVEN_SLICES
    ),
    "a100-sxm4-80gb": Model(
        product="NVIDIA A100-SXM4-80GB", memory_bytes=81920 * MIB, compute_capability="8.0", mig_kinds=SEVEN_SLICES
    ),
    "a100-sxm4-40gb": Model(
        product="NVIDIA A100-SXM4-40GB", memory_bytes=40536 * MIB, compute_capability="8.0", mig_kinds=SEVEN_SLICES
    ),
    "rtx-pro-6000-96gb": Model(
        product="NVIDIA RTX PRO 6000 Blackwell Server Edition",
        memory_bytes=97887 * MIB,
        compute_capability="12.0",
        mig_kinds=FOUR_SLICES,
    ),
    "l40s": Model(product="NVIDIA L40S", memory_bytes=46068 * MIB, compute_capability="8.9"),
    "l4": Model(product="NVIDIA L4", memory_bytes=23034 * MIB, compute_capability="8.9"),
    "a10": Model(product="NVIDIA A10", memory_bytes=23028 * MIB, compute_capability="8.6"),
    "t4": Model(product="Tesla T4", memory_bytes=15360 * MIB, compute_capability="7.5"),
}
