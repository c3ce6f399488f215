"""Which resource each GPU belongs to before anything is shared: the rules of ``resources.gpus``, then the default."""

from __future__ import annotations

import msgspec

from nvdp.config.schema import Config
from nvdp.model.inventory import Gpu
from nvdp.model.names import GPU_RESOURCE, ResourceName


class Named(msgspec.Struct, frozen=True):
    """A GPU's plain name, and the place in the file that gives it (empty: the default)."""

    name: ResourceName
    rule: str = ""


_DEFAULT = Named(GPU_RESOURCE)


def name_gpu(config: Config, gpu: Gpu) -> Named | None:
    """The first rule whose pattern matches the product, else the default.

    None if the product could not be read and the file has several names to choose from.
    """
    rules = [Named(rule.name, f"resources.gpus[{at}]") for at, rule in enumerate(config.resources.gpus)]
    product = gpu.product
    if product is None:
        possible = [*rules, _DEFAULT]
        covered = [at for at, rule in enumerate(config.resources.gpus) if set(rule.pattern.text) == {"*"}]
        if covered:
            possible = rules[: covered[0] + 1]
        return possible[-1] if len({named.name for named in possible}) == 1 else None
    for named, rule in zip(rules, config.resources.gpus, strict=True):
        if rule.pattern.matches(product):
            return named
    return _DEFAULT
