"""What drafting by copying costs per step: the n-gram index against a scan of the whole context.

    python bench/ngram_index.py [--rounds N] [--threads N] [--json FILE]

Both find the longest match of the newest tokens and write the drafts of a batch. The text is this project's own
documentation, word by word, each row beginning elsewhere. Rounds of both are interleaved. `alike` is the share of
places, over a whole text of that length, where the index found as long a match as the scan: entries may be overwritten.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import product
from pathlib import Path
from time import perf_counter_ns
from typing import Annotated, Any

import numpy as np
import torch
import typer
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from adaptive.benchmark.machine import FOREIGN_CPU_LIMIT, CpuMeter, machine_facts
from engine.batch import RowState
from engine.config import EngineConfig
from engine.drafters import NgramDrafter
from engine.graphs.base import store

CONTEXTS = (64, 256, 1024, 2048, 8192)
BATCHES = (1, 8)
MIN_MATCH, MAX_MATCH, MAX_GAMMA = 2, 8, 16


def scan(state: RowState, batch: int, context: int) -> None:
    """The same answer from comparing every place of the context with the newest tokens, one after the other."""
    history_BC, lens_B1 = state.history_RP[:batch, :context], state.lens_R[:batch].unsqueeze(1)
    run_BC, equal_BC = torch.zeros_like(history_BC), torch.ones_like(history_BC, dtype=torch.bool)
    for back in range(MAX_MATCH):
        same_BC = history_BC == history_BC.gather(1, (lens_B1 - 1 - back).clamp(min=0))
        equal_BC = equal_BC & F.pad(same_BC[:, : context - back], (back, 0))
        run_BC = run_BC + equal_BC
    index_C = torch.arange(context, device=history_BC.device)
    past_BC = torch.where(index_C < lens_B1 - 1, run_BC, 0)
    match_B1, end_B1 = (past_BC * context + index_C).max(1, keepdim=True)
    match_B1 = match_B1 // context
    period_B1 = (lens_B1 - 1 - end_B1).clamp(min=1)
    source_BM = end_B1 + 1 + torch.arange(MAX_GAMMA, device=history_BC.device) % period_B1
    state.drafts_RM[:batch].copy_(history_BC.gather(1, source_BM.clamp(max=context - 1)))
    matched_B1 = match_B1 >= MIN_MATCH
    state.draft_lens_R[:batch].copy_((matched_B1 * MAX_GAMMA).squeeze(1))
    state.match_lens_R[:batch].copy_((matched_B1 * match_B1).squeeze(1))


class Operations(TorchDispatchMode):
    """Counts what would be a kernel on a GPU: operations that make no view."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: object, args: Any = (), kwargs: Any = None) -> Any:
        self.count += not func.is_view
        return func(*args, **(kwargs or {}))


def words() -> Tensor:
    """The documentation as numbers, a number per different word."""
    root = Path(__file__).resolve().parents[1]
    text = " ".join(path.read_text(encoding="utf-8") for path in sorted(root.glob("docs/*.md"))).split()
    known = {word: place for place, word in enumerate(dict.fromkeys(text))}
    return torch.tensor([known[word] for word in text])


class Bench:
    """Rows full of text up to `context`, indexed."""

    def __init__(self, batch: int, context: int, text: Tensor) -> None:
        self.batch, self.context = batch, context
        config = EngineConfig(max_batch=batch, context_len=context, max_gamma=MAX_GAMMA)
        self.state = RowState(batch, context, MAX_GAMMA, "cpu")
        self.drafter = NgramDrafter(config, min_match=MIN_MATCH, max_match=MAX_MATCH)
        for row in range(batch):
            self.state.history_RP[row] = text.roll(-997 * row).repeat(1 + context // len(text))[:context]
        self.state.lens_R.fill_(context)
        for row, start in product(range(batch), range(0, context, 256)):
            self.drafter.aim(store, row, start)
            self.drafter.take_in(self.state, 256)

    def index(self) -> None:
        self.drafter.propose(self.state, self.batch)

    def scan(self) -> None:
        scan(self.state, self.batch, self.context)

    def alike(self) -> float:
        """Share of a growing first row's places at which both find as long a match."""
        same = 0
        self.drafter.admit(store, 0)
        for length in range(2, self.context + 1):
            self.state.lens_R[0] = length
            self.drafter.propose(self.state, 1)
            found = int(self.state.match_lens_R[0])
            scan(self.state, 1, self.context)
            same += found == int(self.state.match_lens_R[0])
        return same / (self.context - 1)


def time_us(call: Callable[[], None], times: int) -> list[float]:
    """Microseconds per call."""
    taken = []
    for _ in range(times):
        started = perf_counter_ns()
        call()
        taken.append((perf_counter_ns() - started) / 1e3)
    return taken


def count(call: Callable[[], None]) -> int:
    """Operations of one call."""
    operations = Operations()
    with operations:
        call()
    return operations.count


def measure(rounds: int, text: Tensor) -> list[dict[str, Any]]:
    """One line per batch and context."""
    lines = []
    for batch, context in product(BATCHES, CONTEXTS):
        bench = Bench(batch, context, text)
        line: dict[str, Any] = {"batch": batch, "context": context}
        taken: dict[str, list[float]] = {"index": [], "scan": []}
        for round_ in range(rounds + 1):
            for name, arm in (("index", bench.index), ("scan", bench.scan)):
                taken[name] += time_us(arm, 20)[5 if round_ else 20 :]
        for name, arm in (("index", bench.index), ("scan", bench.scan)):
            low, median, high = np.percentile(taken[name], [10, 50, 90]).round(1).tolist()
            line[name] = {"us": median, "p10": low, "p90": high, "operations": count(arm)}
        line["alike"] = round(bench.alike(), 4) if batch == 1 and context <= 2048 else None
        lines.append(line)
    return lines


def show(lines: list[dict[str, Any]], foreign: float, console: Console) -> None:
    """One line per batch and context."""
    table = Table(title="drafting by copying, µs per step (median; 10th to 90th percentile)")
    for column in ("batch", "context", "index", "operations", "scan", "operations", "alike"):
        table.add_column(column, justify="right")
    for line in lines:
        figures = []
        for name in ("index", "scan"):
            arm = line[name]
            figures += [f"{arm['us']:.0f} ({arm['p10']:.0f}–{arm['p90']:.0f})", f"{arm['operations']}"]
        alike = "–" if line["alike"] is None else f"{line['alike']:.1%}"
        table.add_row(f"{line['batch']}", f"{line['context']}", *figures, alike)
    console.print(table)
    quiet = "" if foreign <= FOREIGN_CPU_LIMIT else ": not a quiet machine, the figures are too high"
    console.print(f"{foreign:.0%} of the CPUs were used by other processes{quiet}")


def main(
    rounds: Annotated[int, typer.Option(min=1, help="interleaved rounds")] = 20,
    threads: Annotated[int | None, typer.Option(min=1, help="torch's CPU threads")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="write the figures here")] = None,
) -> None:
    """Measure what a draft costs by index and by scan."""
    console = Console()
    if threads is not None:
        torch.set_num_threads(threads)
    with CpuMeter() as meter:
        lines = measure(rounds, words())
    show(lines, meter.foreign, console)
    if json_file is not None:
        record = {"machine": machine_facts({}), "foreign_cpu": round(meter.foreign, 3), "lines": lines}
        json_file.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
