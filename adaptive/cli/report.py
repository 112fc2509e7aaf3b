"""A benchmark's result in tables, and the warnings that go with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from adaptive.cli.render import number, share, table
from adaptive.slo import Attainment

if TYPE_CHECKING:
    from adaptive.benchmark import ArmSummary, Comparison, Figures, ForeignCpu, Outcome, Ratio
    from adaptive.stats import ControllerStats

POSITIONS_SHOWN = 6
INFEASIBLE = "slo_infeasible"  # the reason that policies give
LOSSY_TITLE = (
    "Beyond the exact rule (of accepted: the share that the exact rule would have refused; divergence: spent per "
    "answer; agreement: share of an answer before it leaves plain decoding's)"
)


def print_outcome(console: Console, outcome: Outcome) -> None:
    """Tables: all prompts; by task; against peers; limits."""
    summaries = outcome.summaries
    console.print(_overall_table(summaries))
    console.print(_task_table(summaries))
    if outcome.comparisons:
        console.print(_peer_table(outcome.comparisons))
    print_slo(console, {one.label: one.slo for one in summaries})
    print_infeasible(console, {one.label: one.reasons for one in summaries})


def print_slos(console: Console, outcomes: Sequence[Outcome]) -> None:
    """Who kept the limits on the time per token, for each batch size."""
    for outcome in outcomes:
        named = {_named(one, outcome, outcomes): one for one in outcome.summaries}
        print_slo(console, {name: one.slo for name, one in named.items()})
        print_infeasible(console, {name: one.reasons for name, one in named.items()})


def print_lossy(console: Console, outcomes: Sequence[Outcome]) -> None:
    """What arms accepted beyond the exact rule, and what that did to their answers; nothing where none did."""
    rows = [
        [
            _named(one, outcome, outcomes),
            number(one.overall.tokens_per_s),
            *ratio_cells(one.overall),
            share(one.overall.lossy_accepted / one.overall.accepted),
            number(one.overall.divergence_spent / one.overall.requests, 2),
            share(one.agreement),
        ]
        for outcome in outcomes
        for one in outcome.summaries
        if one.overall.lossy_accepted
    ]
    if rows:
        columns = ["arm", "tokens/s", "ratio", "min–max", "of accepted", "divergence", "agreement"]
        console.print(table(LOSSY_TITLE, columns, rows))


def print_lossless(console: Console, outcome: Outcome, names_batch: bool, notice: str | None) -> None:
    """The lossless check, or why there can be none."""
    line = "Lossless check: does not apply to synthetic acceptance." if notice else lossless_line(outcome.summaries)
    console.print(f"Batch {outcome.batch}. {line}" if names_batch else line, markup=False)


def print_foreign_cpu(console: Console, others: ForeignCpu) -> None:
    """How busy the machine was with other things, with a warning where that spoils the times."""
    console.print(
        f"Other processes used {share(others.mean)} of the machine during the runs "
        f"({share(others.worst)} in the worst run)."
    )
    if others.too_high:
        console.print(
            "[bold yellow]Warning:[/] with that much going on beside them, these times say little about the arms; "
            "repeat on a quiet machine."
        )


def print_slo(console: Console, arms: Mapping[str, Mapping[str, Attainment]]) -> None:
    """Who kept the limits on the time per token; nothing where no request had one."""
    rows = [
        [slo_class, arm, str(one.finished), f"{one.met} ({share(one.share)})", number(one.tpot_ms)]
        for slo_class in sorted({name for kept in arms.values() for name in kept})
        for arm, kept in arms.items()
        if (one := kept.get(slo_class)) is not None
    ]
    if rows:
        columns = ["class", "arm", "requests", "kept", "mean TPOT ms"]
        console.print(table("Limits on the time per token", columns, rows, left=2))


def print_infeasible(console: Console, reasons: Mapping[str, Mapping[str, int]]) -> None:
    """Policies that foresaw that limits could not be kept, and in how many steps; nothing where none did."""
    for name, counts in reasons.items():
        if INFEASIBLE in counts:
            steps = sum(counts.values())
            console.print(
                f"{name}: in {counts[INFEASIBLE]} of {steps} steps no number of draft tokens was expected to keep "
                f"every limit ({INFEASIBLE}). Raise the limits, or serve fewer requests side by side.",
                markup=False,
            )


def print_afterwards(console: Console, policy: str, stats: ControllerStats) -> None:
    """What a policy tells of itself, and who kept the limits; nothing where there is nothing to tell."""
    if stats.metrics:
        console.print("Policy: " + ", ".join(f"{name} {number(value, 2)}" for name, value in stats.metrics.items()))
    print_slo(console, {policy: stats.slo})
    print_infeasible(console, {policy: stats.reasons})


def lossless_line(summaries: list[ArmSummary]) -> str:
    """How many requests of each arm have other tokens than plain decoding's."""
    if summaries[0].mismatches is None:
        return "Lossless check: needs greedy decoding (--temperature 0)."
    requests = summaries[0].distinct_requests
    differing = [f"{one.label} {one.mismatches} of {requests}{_ties(one)}" for one in summaries if one.mismatches]
    if not differing:
        return f"Lossless check: every arm gave plain decoding's tokens for all {requests} requests."
    looked_at = any(one.near_ties is not None for one in summaries)
    return (
        f"Lossless check: requests whose tokens differ from plain decoding's: {', '.join(differing)}. "
        f"Where two tokens are almost equally likely{' (a near tie)' if looked_at else ''}, rounding may swap them."
    )


def ratio_cells(figures: Figures) -> list[str]:
    return [f"{number(figures.ratio.median, 2)}x", _range(figures.ratio)]


def _named(summary: ArmSummary, outcome: Outcome, outcomes: Sequence[Outcome]) -> str:
    return summary.label if len(outcomes) == 1 else f"{summary.label}, batch {outcome.batch}"


def _overall_table(summaries: list[ArmSummary]) -> Table:
    columns = ["arm", "tokens/s", "ratio", "min–max", "TTFT", "TPOT p50", "p99", "ITL p50", "p99", "wasted", "µs/step"]
    rows = [
        [
            one.policy,
            number(one.overall.tokens_per_s),
            *ratio_cells(one.overall),
            number(one.overall.ttft_ms, 0),
            number(one.overall.tpot_ms),
            number(one.overall.tpot_p99_ms),
            number(one.overall.itl_p50_ms),
            number(one.overall.itl_p99_ms),
            str(one.overall.wasted),
            number(one.controller_us_per_step, 0),
        ]
        for one in summaries
    ]
    return table("All prompts (latencies in ms; µs/step: the controller's own time)", columns, rows)


def _task_table(summaries: list[ArmSummary]) -> Table:
    columns = ["task", "arm", "tokens/s", "ratio", "min–max", "TPOT p50", "τ", "α", "α by position (%)"]
    rows = []
    for task in summaries[0].tasks:
        for summary in summaries:
            figures = summary.tasks[task]
            positions = [f"{100 * alpha:.0f}" for alpha in figures.alpha_by_position[:POSITIONS_SHOWN]]
            rows.append(
                [
                    task,
                    summary.policy,
                    number(figures.tokens_per_s),
                    *ratio_cells(figures),
                    number(figures.tpot_ms),
                    number(figures.tau, 2),
                    share(figures.alpha),
                    " ".join(positions),
                ]
            )
    return table("By task", columns, rows, left=2)


def _peer_table(comparisons: list[Comparison]) -> Table:
    """A line for each task and peer, a column for each of our arms."""
    ours = list(dict.fromkeys(one.policy for one in comparisons))
    lines: dict[tuple[str, str], dict[str, Ratio]] = {}
    for one in comparisons:
        lines.setdefault((one.task or "all of them", one.peer), {})[one.policy] = one.ratio
    rows = [[*names, *(_with_range(ratios[policy]) for policy in ours)] for names, ratios in lines.items()]
    title = "Against others (tokens/s of ours over theirs within the same repeat: median, min–max)"
    return table(title, ["task", "theirs", *ours], rows, left=2)


def _with_range(ratio: Ratio) -> str:
    return f"{number(ratio.median, 2)}x ({_range(ratio)})"


def _range(ratio: Ratio) -> str:
    return f"{number(ratio.low, 2)}–{number(ratio.high, 2)}"


def _ties(summary: ArmSummary) -> str:
    """How many of the differing requests differ by near ties only."""
    return "" if summary.near_ties is None else f" ({summary.near_ties} by near ties)"
