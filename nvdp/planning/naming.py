"""Which resource each device belongs to before anything is shared: the rules of ``resources``, then the default."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from nvdp.config.schema import Config, MigStrategy, NamedPattern
from nvdp.model.mig import MigProfile
from nvdp.model.names import DEFAULT_DOMAIN, GPU_RESOURCE, ResourceName
from nvdp.planning.devices import Device


class Named(msgspec.Struct, frozen=True):
    """A device's plain name, and the place in the file that gives it (empty: the default)."""

    name: ResourceName
    rule: str = ""


_DEFAULT = Named(GPU_RESOURCE)


def name_device(config: Config, device: Device) -> Named | None:
    """The first rule whose pattern matches the product, or the profile of a MIG device, else the default.

    None if that could not be read and the file has several names to choose from; of a MIG device if it has no profile.
    """
    if device.instance is not None:
        return _name_instance(config, device.profile) if device.profile is not None else None
    rules = _list_rules("gpus", config.resources.gpus)
    product = device.product
    if product is None:
        possible = [*rules, _DEFAULT]
        covered = [at for at, rule in enumerate(config.resources.gpus) if set(rule.pattern.text) == {"*"}]
        if covered:
            possible = rules[: covered[0] + 1]
        return possible[-1] if len({named.name for named in possible}) == 1 else None
    return _find_match(config.resources.gpus, rules, product) or _DEFAULT


def _name_instance(config: Config, profile: MigProfile) -> Named:
    """Under ``single`` MIG devices are what GPUs are elsewhere."""
    named = _find_match(config.resources.mig, _list_rules("mig", config.resources.mig), str(profile))
    if named is not None or config.flags.mig_strategy is MigStrategy.SINGLE:
        return named or _DEFAULT
    return Named(ResourceName(DEFAULT_DOMAIN + profile.resource_part))


def _list_rules(block: str, rules: Sequence[NamedPattern]) -> list[Named]:
    return [Named(rule.name, f"resources.{block}[{at}]") for at, rule in enumerate(rules)]


def _find_match(rules: Sequence[NamedPattern], named: Sequence[Named], text: str) -> Named | None:
    return next((one for one, rule in zip(named, rules, strict=True) if rule.pattern.matches(text)), None)
