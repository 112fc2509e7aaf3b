"""A picture of a training: loss and held-out acceptance over time."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from engine.train.loop import Look


def can_plot() -> bool:
    """Whether matplotlib is there; training does not need it."""
    return find_spec("matplotlib") is not None


def plot_history(path: Path, history: Sequence[Look], method: str) -> Path | None:
    """Write a PNG; None, and no file, without matplotlib."""
    if not can_plot():
        return None
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.5), layout="constrained")
    loss, rates = figure.subplots(1, 2)
    minutes = [look.elapsed_s / 60 for look in history]
    loss.plot(minutes, [look.loss[method] for look in history], color="tab:gray")
    loss.set(title="loss", xlabel="minutes")
    depth = len(history[-1].held_out[method]["all"].alpha)
    for step in range(depth):
        rates.plot(
            minutes, [look.held_out[method]["all"].alpha[step] for look in history], label=f"position {step + 1}"
        )
    rates.set(title="held-out acceptance", xlabel="minutes", ylim=(0, 1))
    rates.legend(fontsize="small")
    figure.savefig(path, dpi=110)
    return path
