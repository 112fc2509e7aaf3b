"""Each piece is recorded operation by operation and replayed on its buffers, as a CUDA graph would be, for tests.

Python runs while recording and never again: a number that it took from anywhere is fixed from then on. The recording
holds every intermediate tensor, so it is for tiny models.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from engine.graphs.base import HostAccess, Piece, poison, restored


class BakedDataError(RuntimeError):
    """A piece would have kept, for good, data that the host held while it was recorded."""


class Call(NamedTuple):
    """One operation of a recording."""

    func: Any
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    result: Any


class Tape(TorchDispatchMode):
    """Records the operations run inside it. Refuses those that hand a value to the host."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[Call] = []  # alive as long as the tape, so that no id is used twice

    def __torch_dispatch__(
        self, func: Any, types: object, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if torch.Tag.data_dependent_output in func.tags:
            raise BakedDataError(f"{func.overloadpacket.__name__} hands a value to the host: keep it on the device")
        result = func(*args, **(kwargs or {}))
        self.calls.append(Call(func, args, kwargs or {}, result))
        return result

    def read(self) -> dict[int, Tensor]:
        """By id, the tensors that were read and come from outside."""
        made: set[int] = set()
        found: dict[int, Tensor] = {}
        for call in self.calls:
            inputs = tensors((*call.args, *call.kwargs.values()))
            found.update((id(tensor), tensor) for tensor in inputs if id(tensor) not in made)
            made.update(id(tensor) for tensor in tensors(call.result))
        return found

    def replay(self) -> None:
        """Run the operations again on what the outside tensors hold now."""
        now: dict[int, Tensor] = {}
        for call in self.calls:
            kwargs = {name: renewed(value, now) for name, value in call.kwargs.items()}
            result = call.func(*renewed(call.args, now), **kwargs)
            now.update((id(old), new) for old, new in zip(tensors(call.result), tensors(result), strict=True))


def tensors(value: object) -> Iterator[Tensor]:
    """The tensors among an operation's arguments or results, which nest in lists at most."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from tensors(part)


def renewed(value: Any, now: Mapping[int, Tensor]) -> Any:
    """An argument with every tensor that the recording made replaced by the one made now."""
    if isinstance(value, Tensor):
        return now.get(id(value), value)
    return [renewed(part, now) for part in value] if isinstance(value, list | tuple) else value


def record(piece: Piece) -> Tape:
    """Run a piece twice, and keep the second run.

    Raises BakedDataError when it hands a value to the host, or reads a tensor that was not there the first time:
    whatever only the second run finds was made on the host in between, and would be replayed as it is now.
    """
    rehearsal, tape = Tape(), Tape()
    for run in (rehearsal, tape):
        with run:
            piece()
    known = rehearsal.read()
    for place, tensor in tape.read().items():
        if place not in known:
            raise BakedDataError(f"a tensor made on the host is read (shape {list(tensor.shape)}): use a buffer")
    return tape


class ReplayBackend(HostAccess):
    """Replays at once, on a CPU. Outputs are poisoned before each replay."""

    records = True
    overlaps = False

    def capture(self, piece: Piece, mutable: Sequence[Tensor], outputs: Sequence[Tensor] = ()) -> Piece:
        with restored(mutable):
            tape = record(piece)

        def replay() -> None:
            poison(outputs)
            tape.replay()

        return replay

    def synchronize(self) -> None:
        """Nothing is ever pending."""
