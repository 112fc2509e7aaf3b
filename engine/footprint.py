"""How many bytes the tensors of an engine take, by purpose: of a running one, or of a sketch without memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import FunctionType
from typing import TYPE_CHECKING

from torch import Tensor

from engine.kv import KVCache

if TYPE_CHECKING:
    from engine.core import LLMEngine

OURS = "engine."


class Ledger:
    """Adds up tensors, each once, whatever finds it first. Views of one storage count no more than that storage."""

    def __init__(self) -> None:
        self._views: dict[int, dict[tuple[int, ...], int]] = {}
        self._kept: list[Tensor] = []  # so that no address is used twice

    def add(self, *things: object) -> int:
        """The bytes of all tensors reachable from `things` that were not counted before."""
        before = self.total
        for tensor in reachable(*things):
            key, place, size = _place(tensor)
            self._views.setdefault(key, {})[place] = size
            self._kept.append(tensor)
        return self.total - before

    @property
    def total(self) -> int:
        sizes = {_place(tensor)[0]: _capacity(tensor) for tensor in self._kept}
        return sum(min(sizes[key], sum(views.values())) for key, views in self._views.items())

    @property
    def storages(self) -> set[int]:
        return set(self._views)


def reachable(*things: object) -> Iterator[Tensor]:
    """Every tensor held by these objects: in our own classes, containers, and what functions close over."""
    stack, seen = list(things), set[int]()
    while stack:
        thing = stack.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, Tensor):
            yield thing
        else:
            stack.extend(_parts(thing))


def footprint(engine: LLMEngine) -> dict[str, int]:
    """Bytes by purpose."""
    ledger, drafter = Ledger(), engine.drafter
    found = {
        "target weights": ledger.add(engine.decoder),
        "target KV cache": ledger.add(engine.kv),
    }
    if drafter is not None and drafter.when == "before":
        cache = getattr(drafter, "kv", None)
        found["drafter KV cache"] = ledger.add(cache) if isinstance(cache, KVCache) else 0
        features = drafter.features
        found["features"] = ledger.add(features and features.cache_SE, getattr(drafter, "sources", None))
        found["draft distributions"] = ledger.add(drafter.q_RMV, drafter.plain_RMV)
        found["drafter weights"] = ledger.add(drafter)
    elif drafter is not None:
        found["n-gram index"] = ledger.add(drafter)
    found["step buffers"] = ledger.add(engine)
    return {name: size for name, size in found.items() if size}


def _parts(thing: object) -> Iterator[object]:
    if isinstance(thing, Mapping):
        yield from thing.values()
    elif isinstance(thing, list | tuple | set | frozenset):
        yield from thing
    elif isinstance(thing, FunctionType):
        yield from (cell.cell_contents for cell in thing.__closure__ or ())
    elif not isinstance(thing, type) and type(thing).__module__.startswith(OURS):
        yield from getattr(thing, "__dict__", {}).values()
        slots = (name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ()))
        yield from (getattr(thing, name) for name in slots if hasattr(thing, name))


def _place(tensor: Tensor) -> tuple[int, tuple[int, ...], int]:
    """Its storage, where in it, and how many bytes it covers. oneDNN's packed tensors have no storage to look at."""
    size = tensor.numel() * tensor.element_size()
    if tensor.is_mkldnn:
        return id(tensor), (), size
    place = (tensor.storage_offset(), *tensor.shape, *tensor.stride())
    return tensor.untyped_storage()._cdata, place, size


def _capacity(tensor: Tensor) -> int:
    if tensor.is_mkldnn:
        return tensor.numel() * tensor.element_size()
    return tensor.untyped_storage().nbytes()
