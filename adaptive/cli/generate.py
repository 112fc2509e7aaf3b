"""`adaptive generate`: answers to prompts, each with what its speculation did."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.rule import Rule
from rich.table import Table

from adaptive.cli import options as o
from adaptive.cli import synthetic as s
from adaptive.cli.configured import ConfigFile, configured
from adaptive.cli.errors import UsageError, usage
from adaptive.cli.render import number, print_json, share, stderr, stdout, table
from adaptive.cli.report import print_afterwards
from adaptive.cli.session import TextCodec, load, prompts_that_fit
from adaptive.requests import Output, TokenLogprob

if TYPE_CHECKING:
    from adaptive.benchmark import Answer, PromptItem

Prompts = Annotated[
    Path | None, typer.Option("--prompts", help='JSONL file, {"id", "prompt", "task"?} a line.', show_default=False)
]
PromptText = Annotated[list[str] | None, typer.Option("--prompt", help="One prompt; repeatable.", show_default=False)]
PolicyName = Annotated[str, typer.Option("--policy", help="NAME[:ARG]; `adaptive policies` lists them.")]
Logprobs = Annotated[
    int | None,
    typer.Option(
        "--logprobs", help="Log-probabilities, with this many alternatives.", rich_help_panel=o.SAMPLING_PANEL
    ),
]


def generate(
    ctx: typer.Context,
    config: ConfigFile = None,
    prompts: Prompts = None,
    prompt: PromptText = None,
    policy: PolicyName = "ema",
    raw: o.Raw = False,
    json: o.Json = False,
    max_tokens: o.MaxTokens = 128,
    temperature: o.Temperature = 0.0,
    top_k: o.TopK = 0,
    top_p: o.TopP = 1.0,
    seed: o.Seed = None,
    stop: o.Stop = None,
    ignore_eos: o.IgnoreEos = False,
    allow_lossy: o.AllowLossy = False,
    logprobs: Logprobs = None,
    model: o.Model = o.DEFAULT_MODEL,
    revision: o.Revision = None,
    drafter: o.Drafter = "ngram",
    draft_model: o.DraftModel = None,
    max_batch: o.MaxBatch = 8,
    context: o.Context = None,
    dtype: o.Dtype = "float32",
    device: o.Device = "cpu",
    threads: o.Threads = None,
    max_tree_nodes: o.TreeNodes = 0,
    synthetic_rate: s.Rate = None,
    synthetic_rates: s.Rates = None,
    synthetic_length: s.Length = None,
    debug: o.Debug = False,
) -> None:
    """Answer prompts with a policy, and say per request what was drafted and accepted."""
    from adaptive.benchmark import ask
    from adaptive.controller import AdaptiveController

    setup = configured(ctx, allow_lossy=allow_lossy)
    policy, chosen = setup.parse_one(policy)
    sampling = o.sampling_options(
        max_tokens=max_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        stop=stop,
        ignore_eos=ignore_eos,
        logprobs=logprobs,
    )
    wanted = o.engine_options(
        model, revision, drafter, draft_model, max_batch, context, dtype, device, threads, max_tree_nodes
    ).with_synthetic(synthetic_rate, synthetic_rates, synthetic_length)
    items = _read_items(prompts, prompt, raw)
    engine = load(wanted, {policy: chosen}, allow_lossy=setup.allow_lossy)
    printer = _printer(items, wanted, engine.tokenizer, json=json)
    controller = AdaptiveController(engine, policy=chosen, slo=setup.slo, allow_lossy=setup.allow_lossy)
    with prompts_that_fit():
        answers = ask(controller, items, sampling, printer, allow_lossy=setup.allow_lossy)
    if not json:
        stdout().print(_summary(answers, policy))
        print_afterwards(stdout(), policy, controller.stats())


def _read_items(path: Path | None, texts: list[str] | None, raw: bool) -> list[PromptItem]:
    from adaptive.benchmark import PromptItem, read_prompts

    if (path is None) == (not texts):
        raise UsageError("give either --prompts FILE.jsonl or --prompt TEXT")
    if path is None:
        items = [PromptItem(str(place), text) for place, text in enumerate(texts or (), start=1)]
    else:
        with usage("--prompts"):
            items = read_prompts(path)
    return items if raw else [item.chat() for item in items]


def _printer(items: list[PromptItem], wanted: o.EngineOptions, codec: TextCodec, *, json: bool) -> _JsonLines | _Reader:
    """What shows the answers, once it is said where they mean nothing."""
    if wanted.synthetic is not None:
        (stderr() if json else stdout()).print(wanted.synthetic.notice, markup=False)
    return _JsonLines(items, wanted) if json else _Reader(items, stdout(), codec)


class _JsonLines:
    """One object a request, in the order of the prompts, each as soon as it and all before it are done."""

    def __init__(self, items: list[PromptItem], wanted: o.EngineOptions) -> None:
        self._order = [item.id for item in items]
        self._mark = {"synthetic_acceptance": str(wanted.synthetic)} if wanted.synthetic else {}
        self._done: dict[str, Answer] = {}

    def __call__(self, answer: Answer, output: Output) -> None:
        if not output.finished:
            return
        self._done[answer.item.id] = answer
        while self._order and self._order[0] in self._done:
            print_json(answer_json(self._done.pop(self._order.pop(0))) | self._mark)


class _Reader:
    """For people: a single answer as it is written, several each when it is complete."""

    def __init__(self, items: list[PromptItem], console: Console, codec: TextCodec) -> None:
        self._stream = len(items) == 1
        self._console = console
        self._codec = codec

    def __call__(self, answer: Answer, output: Output) -> None:
        if self._stream:
            self._console.out(output.text, end="\n" if output.finished else "", highlight=False)
        elif output.finished:
            self._console.print(Rule(answer.item.id, align="left"))
            self._console.out(answer.text, highlight=False)
        if output.finished and answer.logprobs:
            self._console.print(_logprob_table(answer.logprobs, self._codec))


def answer_json(answer: Answer) -> dict[str, object]:
    stats = answer.stats
    assert stats is not None, f"request {answer.item.id} finished without statistics"
    record: dict[str, object] = {
        "id": answer.item.id,
        "task": answer.item.task,
        "text": answer.text,
        "tokens": answer.tokens,
        "finish_reason": answer.finish_reason,
        "prompt_tokens": stats.prompt_tokens,
        "ttft_ms": stats.ttft_ms,
        "tpot_ms": stats.tpot_ms,
        "steps": stats.steps,
        "drafted": stats.drafted,
        "accepted": stats.accepted,
        "lossy_accepted": stats.lossy_accepted,
        "divergence_spent": stats.divergence_spent,
        "tau": stats.tau,
        "alpha": stats.alpha,
        "gamma_histogram": dict(stats.gamma_histogram),
    }
    if answer.logprobs:
        record["logprobs"] = [
            {"token": one.token, "logprob": one.logprob, "top": [list(pair) for pair in one.top]}
            for one in answer.logprobs
        ]
    return record


def _summary(answers: list[Answer], policy: str) -> Table:
    columns = ["id", "tokens", "end", "TTFT ms", "TPOT ms", "steps", "drafted", "accepted", "τ", "α", "γ: steps"]
    lossy = any(answer.stats is not None and answer.stats.lossy_accepted for answer in answers)
    columns += ["beyond", "spent"] if lossy else []
    rows = []
    for answer in answers:
        stats = answer.stats
        assert stats is not None, f"request {answer.item.id} finished without statistics"
        rows.append(
            [
                answer.item.id,
                str(stats.tokens),
                str(answer.finish_reason),
                number(stats.ttft_ms, 0),
                number(stats.tpot_ms),
                str(stats.steps),
                str(stats.drafted),
                str(stats.accepted),
                number(stats.tau, 2),
                share(stats.alpha),
                " ".join(f"{gamma}:{count}" for gamma, count in sorted(stats.gamma_histogram.items())),
                *([str(stats.lossy_accepted), number(stats.divergence_spent, 2)] if lossy else []),
            ]
        )
    return table(f"policy {policy}", columns, rows)


def _logprob_table(logprobs: list[TokenLogprob], codec: TextCodec) -> Table:
    def shown(token: int) -> str:
        return repr(codec.decode([token]))

    rows = [
        [shown(one.token), number(one.logprob, 3), "  ".join(f"{shown(token)} {value:.2f}" for token, value in one.top)]
        for one in logprobs
    ]
    return table("", ["token", "log p", "most likely"], rows)
