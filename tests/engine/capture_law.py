"""What a CUDA graph could not record, refused on a CPU."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from engine.attention import ragged
from engine.graphs import EagerBackend, Piece

MASKS = (torch.bool, torch.uint8)
INDEXING = ("index", "index_put", "index_put_", "_unsafe_index", "_index_put_impl_", "_unsafe_index_put")


class NotCapturable(Exception):
    """The piece did something whose result or shape only the host could know."""


class CaptureLaw(TorchDispatchMode):
    """Refuses shapes and branches that depend on data, generators, masks as indices, host data and other devices.

    What a piece may read are the tensors that were alive when the law was made, and what it computed itself: anything
    else came from the host meanwhile and would be baked in.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        gc.collect()
        self._alive = [thing for thing in gc.get_objects() if issubclass(type(thing), Tensor)]
        self._known = {storage(tensor) for tensor in self._alive}
        self.ops: set[str] = set()

    def __torch_dispatch__(
        self, func: Any, types: object, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name = func.overloadpacket.__name__
        inputs = tensors((args, kwargs or {}))
        if draws(func, args, kwargs or {}):
            raise NotCapturable(f"{name} draws from a generator")
        self._check_inputs(name, func.tags, args, inputs)
        result = func(*args, **(kwargs or {}))
        outputs = tensors(result)
        if len({tensor.device for tensor in (*inputs, *outputs)}) > 1:
            raise NotCapturable(f"{name} copies between devices")
        self._alive += outputs  # kept, so that no address is used twice
        self._known |= {storage(tensor) for tensor in outputs}
        self.ops.add(name)
        return result

    def _check_inputs(self, name: str, tags: Iterable[torch.Tag], args: Sequence[Any], inputs: list[Tensor]) -> None:
        dynamic = torch.Tag.dynamic_output_shape in tags and name not in INDEXING
        if dynamic or torch.Tag.data_dependent_output in tags:
            raise NotCapturable(f"{name} waits for the device")
        if name in INDEXING and any(index.dtype in MASKS for index in tensors(args[1])):
            raise NotCapturable(f"{name} has a mask for an index")
        if any(storage(tensor) not in self._known for tensor in inputs):
            raise NotCapturable(f"{name} reads data made on the host")


def draws(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Attention could draw, but only for dropout."""
    names = [argument.name for argument in func._schema.arguments]
    given = dict(zip(names, args, strict=False)) | dict(kwargs)
    silent = "dropout_p" in names and given.get("dropout_p", 0.0) == 0.0
    return torch.Tag.nondeterministic_seeded in func.tags and not silent


def tensors(tree: object) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


class LawfulBackend(EagerBackend):
    """Runs every piece under the law. Made by the engine once its buffers exist."""

    def __init__(self) -> None:
        super().__init__("cpu")
        self.law = CaptureLaw()
        self.pieces: set[str] = set()

    def capture(self, piece: Piece, mutable: Sequence[Tensor], outputs: Sequence[Tensor] = ()) -> Piece:
        self.pieces.add(piece.__code__.co_names[0])

        def run() -> None:
            with self.law:
                piece()

        return run


class HostReads:
    """Counts every way a tensor's values reach Python, but for what attention on a CPU looks at as any kernel does."""

    WAYS = ("numpy", "tolist", "item", "cpu", "__bool__", "__int__", "__float__", "__index__", "__array__")

    def __init__(self, patch: Callable[[object, str, object], None]) -> None:
        self.count = 0
        for way in self.WAYS:
            patch(Tensor, way, self._counted(getattr(Tensor, way)))
        patch(ragged, "look", self._uncounted(ragged.look))

    def _counted(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def read(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
            self.count += 1
            return original(tensor, *args, **kwargs)

        return read

    def _uncounted(self, original: Callable[[Tensor], Any]) -> Callable[[Tensor], Any]:
        def look(tensor: Tensor) -> Any:
            count = self.count
            found = original(tensor)
            self.count = count
            return found

        return look
