"""`adaptive profile`: what a step costs here, piece by piece, in a file that policies read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer
from rich.table import Table

from adaptive.cli import options as o
from adaptive.cli.configured import ConfigFile
from adaptive.cli.errors import UsageError, usage
from adaptive.cli.render import Steps, number, print_json, share, stderr, stdout, table
from adaptive.cli.report import print_foreign_cpu
from adaptive.cli.session import TextEngine, load
from adaptive.lists import whole_numbers

if TYPE_CHECKING:
    from adaptive.benchmark import CpuMeter
    from adaptive.profiling import Grid
    from policies.cost import StepCost
    from policies.cost_fit import StepSample

Out = Annotated[Path, typer.Option("--out", metavar="FILE", help="Where the profile is written.")]
Batches = Annotated[str, typer.Option("--batches", metavar="B1,B2,...", help="Requests side by side.")]
Contexts = Annotated[str, typer.Option("--contexts", metavar="C1,C2,...", help="Tokens per request.")]
Gammas = Annotated[str, typer.Option("--gammas", metavar="G1,G2,...", help="Tokens drafted; 0 is always among them.")]
Rounds = Annotated[int, typer.Option("--rounds", min=1, help="How often each combination is timed.")]
MaxBatch = Annotated[
    int | None,
    typer.Option(
        "--max-batch",
        min=1,
        help="Requests the engine holds.",
        rich_help_panel=o.ENGINE_PANEL,
        show_default="the largest of --batches",
    ),
]


def profile(
    ctx: typer.Context,
    config: ConfigFile = None,
    out: Out = Path("cost-profile.json"),
    batches: Batches = "1,2,4,8",
    contexts: Contexts = "64,256,1024",
    gammas: Gammas = "0,1,2,3,5,7",
    rounds: Rounds = 4,
    json: o.Json = False,
    model: o.Model = o.DEFAULT_MODEL,
    revision: o.Revision = None,
    drafter: o.Drafter = "ngram",
    draft_model: o.DraftModel = None,
    max_batch: MaxBatch = None,
    context: o.Context = None,
    dtype: o.Dtype = "float32",
    device: o.Device = "cpu",
    threads: o.Threads = None,
    debug: o.Debug = False,
) -> None:
    """Time drafting, verification and plain decoding on this machine, and fit the cost model that AdaSpec uses."""
    from adaptive.benchmark import CpuMeter
    from adaptive.profiling import fit_profile, held_out_error, profile_steps

    grid = _grid(batches, contexts, gammas, rounds)
    if drafter == "none":
        raise UsageError("--drafter none: a profile needs steps that draft; choose a drafter")
    if not out.absolute().parent.is_dir():
        raise UsageError(f"--out: the folder of {out} is not there")
    rows = max_batch or max(grid.batches)
    wanted = o.engine_options(model, revision, drafter, draft_model, rows, context, dtype, device, threads)
    engine = load(wanted.with_synthetic(0.0, None, None))
    caps = engine.capabilities()
    with usage():
        grid.require(caps)
    with Steps("profile", len(grid.cells)) as steps, CpuMeter() as others:
        samples = profile_steps(engine, grid, _prompt(engine), steps.begin)
    cost = fit_profile(samples, caps, label=f"measured here: {model}, {drafter} drafter")
    cost.save(out)
    held_out = held_out_error(samples, caps)
    if json:
        print_json(_as_json(cost, samples, held_out, others, out), indent=2)
    _print(cost, samples, grid, held_out, others, out, json=json)


def _grid(batches: str, contexts: str, gammas: str, rounds: int) -> Grid:
    from adaptive.profiling import Grid

    with usage():
        return Grid(
            whole_numbers("--batches", batches, least=1),
            whole_numbers("--contexts", contexts, least=2),
            tuple(sorted({0, *whole_numbers("--gammas", gammas)})),
            rounds,
        )


def _prompt(engine: TextEngine) -> Callable[[int], Sequence[int]]:
    """Real text, repeated to the length asked for."""
    from adaptive.benchmark import built_in_prompts

    text = "\n".join(str(item.prompt) for item in built_in_prompts())
    ids = engine.tokenizer.encode(text)
    return lambda length: np.resize(ids, length).tolist()


def _as_json(
    cost: StepCost, samples: list[StepSample], held_out: float, others: CpuMeter, out: Path
) -> dict[str, object]:
    return {
        "file": str(out),
        "label": cost.label,
        "identity": cost.identity and cost.identity._asdict(),
        "samples": len(samples),
        "error": cost.error,
        "held_out_error": held_out,
        "foreign_cpu": others.foreign,
        "draft": cost.draft,
        "verify": cost.verify,
        "plain": cost.plain,
    }


def _print(
    cost: StepCost,
    samples: list[StepSample],
    grid: Grid,
    held_out: float,
    others: CpuMeter,
    out: Path,
    *,
    json: bool,
) -> None:
    from adaptive.benchmark import ForeignCpu

    console = stderr() if json else stdout()
    console.print(_table(cost, samples, grid))
    console.print(
        f"Median error of the fit {share(cost.error)}, at shapes left out of it {share(held_out)}.", markup=False
    )
    print_foreign_cpu(console, ForeignCpu(others.foreign, others.foreign))
    console.print(f"Written to {out}: use it as --policy adaspec:{out}", markup=False, soft_wrap=True)


def _table(cost: StepCost, samples: list[StepSample], grid: Grid) -> Table:
    """Milliseconds per step, measured and predicted, at the middle context."""
    from policies.cost_fit import predicted_s

    middle = grid.contexts[len(grid.contexts) // 2]
    rows = []
    for batch in grid.batches:
        for gamma in grid.gammas:
            near = [
                one
                for one in samples
                if (one.batch, one.gamma) == (batch, gamma) and abs(one.context / batch - middle) < middle / 4 + 64
            ]
            if near:
                measured = 1e3 * float(np.median([one.total_s for one in near]))
                predicted = 1e3 * float(np.median([predicted_s(cost, one) for one in near]))
                drafting = 1e3 * cost.draft_s(batch, gamma, batch * middle)
                rows.append([str(batch), str(gamma), number(measured), number(predicted), number(drafting)])
    columns = ["batch", "γ", "step ms", "predicted", "drafting"]
    return table(f"One step at a context of {middle} tokens", columns, rows, left=2)
