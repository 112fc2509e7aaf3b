"""Names of policies, as the command line and `AdaptiveController(engine, policy="ema")` take them: NAME[:ARG].

Other distributions add names with an entry point in group `adaptive.policies` that loads to a policy class or another
callable; it is called with ARG where there is one. The environment variable `ADAPTIVE_PLUGINS` (names, separated by
commas) restricts which are loaded.
"""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import EntryPoint, entry_points

from adaptive.contract import Policy
from adaptive.lists import words
from policies import AdaSD, AdaSpec, EmaTiers, Fixed, FixedTree, Schedule

GROUP = "adaptive.policies"
ALLOW_LIST = "ADAPTIVE_PLUGINS"

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PolicyEntry:
    """A name, how it is written with its argument, one line on what it does, and what makes it from the argument."""

    name: str
    usage: str
    description: str
    make: Callable[[str], Policy]


def get_policy(spec: str) -> Policy:
    """The policy that NAME or NAME:ARG stands for. ValueError for an unknown name or a bad argument.

    >>> get_policy("fixed:3").gamma
    3
    """
    name, _, argument = spec.partition(":")
    if name in _BUILT_IN:
        try:
            return _BUILT_IN[name].make(argument)
        except OSError as error:
            raise ValueError(f"policy {spec!r} names a file that can not be read: {error}") from error
    plugins = _plugins()
    if name not in plugins:
        known = ", ".join(sorted({*_BUILT_IN, *plugins}))
        raise ValueError(f"policy {spec!r} is not known: choose from {known}")
    try:
        entry = _load(plugins[name])
    except Exception as error:
        raise ValueError(
            f"policy {name!r} comes from {plugins[name].value!r}, which failed to load: {error}"
        ) from error
    return entry.make(argument)


def list_policies() -> list[PolicyEntry]:
    """Every policy that can be named, built-in ones first; a plug-in that fails to load is logged and left out."""
    entries = list(_BUILT_IN.values())
    for name, plugin in sorted(_plugins().items()):
        try:
            entries.append(_load(plugin))
        except Exception as error:
            logger.warning("policy plug-in %r (%s) failed to load: %s", name, plugin.value, error)
    return entries


def _plugins() -> dict[str, EntryPoint]:
    allowed = os.environ.get(ALLOW_LIST)
    names = None if allowed is None else words([allowed])
    found = {}
    for plugin in entry_points(group=GROUP):
        if plugin.name in _BUILT_IN:
            logger.warning("policy plug-in %r (%s) is ignored: the name is built in", plugin.name, plugin.value)
        elif names is None or plugin.name in names:
            found[plugin.name] = plugin
    return found


def _load(plugin: EntryPoint) -> PolicyEntry:
    factory = plugin.load()
    description = (inspect.getdoc(factory) or "").partition("\n")[0]
    return PolicyEntry(plugin.name, f"{plugin.name}[:ARG]", description, partial(_make_plugin, factory))


def _make_plugin(factory: Callable[..., Policy], argument: str) -> Policy:
    return factory(argument) if argument else factory()


def _fixed(argument: str) -> Policy:
    if not argument.isdecimal():
        raise ValueError(
            f"policy 'fixed:{argument}' is not valid: write fixed:K with K tokens to draft, such as fixed:3"
        )
    return Fixed(int(argument))


def _fixed_tree(argument: str) -> Policy:
    widths = argument.split("x")
    if not all(width.isdecimal() and int(width) for width in widths):
        raise ValueError(
            f"policy 'fixed-tree:{argument}' is not valid: write the children of each node level by level, "
            "such as fixed-tree:3x2x1"
        )
    return FixedTree.branching(*map(int, widths))


def _schedule(argument: str) -> Policy:
    if not argument:
        raise ValueError("policy 'schedule' needs a table: write schedule:FILE or schedule:[[1,4,5],[5,64,2]]")
    return Schedule.from_json(argument)


def _ema(argument: str) -> Policy:
    if argument:
        raise ValueError(
            f"policy 'ema:{argument}' is not valid: ema takes no argument (ema-sglang takes a config file)"
        )
    return EmaTiers()


def _ema_sglang(argument: str) -> Policy:
    return EmaTiers.sglang(argument or None)


def _adaspec(argument: str) -> Policy:
    return AdaSpec(cost=argument or None)


def _adasd(argument: str) -> Policy:
    if argument == "lossless":
        return AdaSD(generation_only=True)
    if argument == "v1":
        return AdaSD(version="v1")
    if argument in ("", "v2"):
        return AdaSD()
    raise ValueError(f"policy 'adasd:{argument}' is not valid: write adasd, adasd:v1, adasd:v2 or adasd:lossless")


_BUILT_IN = {
    entry.name: entry
    for entry in (
        PolicyEntry("fixed", "fixed:K", "the same γ = K at every step; fixed:0 is plain decode", _fixed),
        PolicyEntry(
            "fixed-tree",
            "fixed-tree:KxKx...",
            "the same tree at every step, K children below each node of a level",
            _fixed_tree,
        ),
        PolicyEntry("schedule", "schedule:PATH_OR_JSON", "γ by batch size, a table in vLLM's JSON form", _schedule),
        PolicyEntry("ema", "ema", "γ follows an average of accepted tokens, with gates against flapping", _ema),
        PolicyEntry(
            "ema-sglang", "ema-sglang[:PATH]", "SGLang 0.5.23's adaptive rule, with its config file", _ema_sglang
        ),
        PolicyEntry(
            "adaspec", "adaspec[:COST]", "most tokens per second within limits on TPOT; COST is a profile", _adaspec
        ),
        PolicyEntry("adasd", "adasd[:v1|v2|lossless]", "entropy stop, acceptance by JS distance (lossy)", _adasd),
    )
}
