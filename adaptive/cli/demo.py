"""`adaptive demo`: a real model on three kinds of text, without drafting, with a fixed depth, with an adaptive one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from time import sleep
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from adaptive.cli import options as o
from adaptive.cli.generate import answer_json
from adaptive.cli.models import fetch_with_progress, known_models
from adaptive.cli.render import Steps, number, print_json, share, stderr, stdout, table
from adaptive.cli.report import lossless_line, print_foreign_cpu
from adaptive.cli.session import TextEngine, load, parse_policies
from adaptive.cli.timeline import print_timeline
from adaptive.requests import Output, Sampling

if TYPE_CHECKING:
    from adaptive.benchmark import Answer, ArmSummary, Measurement, PromptItem

PLAIN, FIXED, ADAPTIVE = "fixed:0", "fixed:3", "ema"
SHOWN_TASK = "text-edit"

# The comparison takes about a minute on two quiet cores; on a slow or busy machine the answers get shorter.
COMPARISON_S = 150.0
FEWEST_TOKENS = 16
PASSES_PER_TOKEN = 2.2  # of the three policies together, prompts included

BUSY_CHECK_S = 0.5
BUSY = 0.2  # of the machine, used by others

GUESSING = {
    "ngram": "it looks for the last words earlier in the text (n-gram) and copies on",
    "model": "a smaller model writes them",
}

Tokens = Annotated[int, typer.Option("--max-tokens", help="Tokens per answer at most.")]


def demo(
    max_tokens: Tokens = 64,
    json: o.Json = False,
    model: o.Model = o.DEFAULT_MODEL,
    drafter: o.Drafter = "ngram",
    device: o.Device = "cpu",
    threads: o.Threads = None,
    debug: o.Debug = False,
) -> None:
    """Fetch a small model and compare no drafting, a fixed depth and an adaptive depth on real prompts."""
    console = stderr() if json else stdout()
    sampling = o.sampling_options(max_tokens=max_tokens, temperature=0.0)
    wanted = o.engine_options(model, None, drafter, None, 1, None, "float32", device, threads)
    policies = parse_policies([PLAIN, FIXED, ADAPTIVE])
    if _yield_to_others():
        console.print("Other programs keep this machine busy: the times below will suffer.")
    if model in known_models():
        fetch_with_progress(model)
    engine = load(wanted.for_timing(), policies)
    _introduce(console, wanted, max_tokens)
    items = _demo_prompts()
    answer = _stream_one(console, engine, next(item for item in items if item.task == SHOWN_TASK), sampling)
    affordable = _affordable_tokens(answer, len(items))
    if affordable < max_tokens:
        console.print(f"This machine is slow or busy: comparing answers of {affordable} tokens.\n")
    compared = _compare(engine, drafter, items, replace(sampling, max_tokens=min(max_tokens, affordable)))
    if json:
        print_json(compared.as_json() | {"model": model, "answer": answer_json(answer)}, indent=2)
    else:
        _show(console, compared)


@dataclass(frozen=True, slots=True)
class _Comparison:
    summaries: list[ArmSummary]
    results: list[Measurement]

    def adaptive_runs(self) -> list[Measurement]:
        return [result for result in self.results if result.arm == ADAPTIVE]

    def as_json(self) -> dict[str, object]:
        return {
            "arms": [summary.as_json() for summary in self.summaries],
            "timeline": [
                {
                    "task": result.task,
                    "gamma": [step.gamma for step in result.run.steps],
                    "accepted": [step.accepted for step in result.run.steps],
                    "reason": [step.reason for step in result.run.steps],
                }
                for result in self.adaptive_runs()
            ],
        }


def _demo_prompts() -> list[PromptItem]:
    from adaptive.benchmark import built_in_prompts

    return [item.chat() for item in built_in_prompts() if item.demo]


def _yield_to_others() -> bool:
    """Whether the machine is busy; if so, threads will sleep while they wait for each other.

    By default they spin, which is a third faster alone, and twenty times slower where others take a core away.
    OpenMP reads this once, when torch is imported.
    """
    from adaptive.benchmark import CpuMeter

    with CpuMeter() as meter:
        sleep(BUSY_CHECK_S)
    busy = meter.foreign > BUSY
    if busy:
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    return busy


def _introduce(console: Console, wanted: o.EngineOptions, max_tokens: int) -> None:
    how = GUESSING.get(str(wanted.drafter), f"heads trained on the model's hidden states do ({wanted.drafter})")
    console.print(
        f"\n[bold]{wanted.model}[/] on {wanted.device}, greedy, up to {max_tokens} tokens an answer.\n"
        f"The drafter guesses the next tokens: {how}.\n"
        "One pass of the model checks the guesses and keeps what it would have written itself; γ is their number.\n"
    )


def _stream_one(console: Console, engine: TextEngine, item: PromptItem, sampling: Sampling) -> Answer:
    from adaptive.benchmark import ask
    from adaptive.controller import AdaptiveController

    console.print(f"[bold]One answer, live[/] ({item.task}, policy {ADAPTIVE}; [green]green[/]: guessed and kept)")
    policy = parse_policies([ADAPTIVE])[ADAPTIVE]

    def show(_: Answer, output: Output) -> None:
        style = "green" if len(output.tokens) > 1 else ""
        console.print(output.text, end="\n" if output.finished else "", style=style, markup=False, soft_wrap=True)

    (answer,) = ask(AdaptiveController(engine, policy=policy), [item], sampling, show)
    assert answer.stats is not None, "a finished answer has statistics"
    console.print(
        f"[dim]{answer.stats.tokens} tokens in {answer.stats.steps} passes of the model, "
        f"{number(answer.stats.tau, 1)} a pass[/]\n"
    )
    return answer


def _affordable_tokens(answer: Answer, prompts: int) -> int:
    """How long the compared answers may be, by the pace of the answer just seen."""
    passes = max(1, len(answer.itl_ms))
    pass_s = max(1e-6, sum(answer.itl_ms) / passes / 1e3)
    return max(FEWEST_TOKENS, int(COMPARISON_S / (pass_s * PASSES_PER_TOKEN * prompts)))


def _compare(engine: TextEngine, drafter: str, items: Sequence[PromptItem], sampling: Sampling) -> _Comparison:
    from adaptive.benchmark import PolicyArm, measure, summarize, units

    policies = parse_policies([PLAIN, FIXED, ADAPTIVE])
    arms = [PolicyArm(spec, policy, engine, drafter) for spec, policy in policies.items()]
    with Steps("comparing", units(arms, items, repeat=1)) as steps:
        results = measure(arms, items, sampling, 1, steps.begin)
    return _Comparison(summarize(arms, results, comparable=True), results)


def _show(console: Console, compared: _Comparison) -> None:
    from adaptive.benchmark import foreign_cpu

    rows = []
    for task in compared.summaries[0].tasks:
        for summary in compared.summaries:
            figures = summary.tasks[task]
            rows.append(
                [
                    task,
                    summary.policy,
                    number(figures.tokens_per_s),
                    f"{number(figures.ratio.median, 2)}x",
                    number(figures.tau, 2),
                    share(figures.alpha),
                    str(figures.wasted),
                ]
            )
    columns = ["task", "policy", "tokens/s", "speed-up", "τ tokens/pass", "α accepted", "wasted guesses"]
    console.print(table("Comparison (prompt processing included)", columns, rows, left=2))
    console.print(lossless_line(compared.summaries), markup=False)
    print_foreign_cpu(console, foreign_cpu(compared.results))
    adaptive = next(summary for summary in compared.summaries if summary.policy == ADAPTIVE)
    print_timeline(console, {result.task: result.run.steps for result in compared.adaptive_runs()}, adaptive.reasons)
