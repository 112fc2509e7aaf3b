"""`adaptive bench`: policies, and other libraries, interleaved on the same prompts in one process."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from adaptive.cli import options as o
from adaptive.cli import synthetic as s
from adaptive.cli.configured import ConfigFile, configured
from adaptive.cli.contest import BASELINE, Contest, print_found
from adaptive.cli.errors import UsageError, usage
from adaptive.cli.lineup import Lineup, lineup
from adaptive.cli.peers import peer_options
from adaptive.cli.render import print_json, stderr, stdout, to_json
from adaptive.cli.session import parse_policies
from adaptive.contract import Policy
from adaptive.requests import Sampling

if TYPE_CHECKING:
    from adaptive.benchmark import PromptItem

DEFAULT_POLICIES = "fixed:0,fixed:3,ema"
LEARNED_STATE = "reset before every run (arm x task x repeat)"

Prompts = Annotated[
    Path | None,
    typer.Option("--prompts", help='JSONL file, {"id", "prompt", "task"?} a line.', show_default="the built-in ones"),
]
Policies = Annotated[
    list[str] | None, typer.Option("--policies", help="Comma-separated.", show_default=DEFAULT_POLICIES)
]
Peers = Annotated[
    list[str] | None,
    typer.Option("--peers", help=f"Greedy decoding by other libraries on the same weights: {', '.join(o.LIBRARIES)}."),
]
PeerPrograms = Annotated[
    list[str] | None,
    typer.Option("--peer-program", metavar="LABEL=COMMAND", help="A program asked by JSON lines; repeatable."),
]
Repeat = Annotated[int, typer.Option("--repeat", min=1, help="How often each arm meets each group of prompts.")]
Drafters = Annotated[
    list[str] | None,
    typer.Option(
        "--drafters",
        metavar="NAME[=DRAFT_MODEL],...",
        help="Several instead of --drafter, in one table, on one copy of the model.",
        rich_help_panel=o.ENGINE_PANEL,
        show_default=False,
    ),
]
Batches = Annotated[
    str | None,
    typer.Option(
        "--batches",
        metavar="B1,B2,...",
        help="Several instead of --max-batch, one after the other.",
        rich_help_panel=o.ENGINE_PANEL,
        show_default=False,
    ),
]
JsonFile = Annotated[
    str | None, typer.Option("--json", metavar="FILE", help="Write the result there as JSON; - is stdout.")
]


def bench(
    ctx: typer.Context,
    config: ConfigFile = None,
    prompts: Prompts = None,
    policies: Policies = None,
    peers: Peers = None,
    peer_program: PeerPrograms = None,
    repeat: Repeat = 3,
    raw: o.Raw = False,
    json: JsonFile = None,
    max_tokens: o.MaxTokens = 64,
    temperature: o.Temperature = 0.0,
    top_k: o.TopK = 0,
    top_p: o.TopP = 1.0,
    seed: o.FixedSeed = 0,
    ignore_eos: o.IgnoreEos = False,
    allow_lossy: o.AllowLossy = False,
    model: o.Model = o.DEFAULT_MODEL,
    revision: o.Revision = None,
    drafter: o.Drafter = "ngram",
    draft_model: o.DraftModel = None,
    drafters: Drafters = None,
    max_batch: o.MaxBatch = 1,
    batches: Batches = None,
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
    """Measure policies against plain decoding (fixed:0), arm beside arm, task by task."""
    setup = configured(ctx, allow_lossy=allow_lossy)
    chosen = _with_baseline(setup.parse(policies or [DEFAULT_POLICIES]))
    sampling = o.sampling_options(
        max_tokens=max_tokens, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed, ignore_eos=ignore_eos
    )
    wanted = o.engine_options(
        model, revision, drafter, draft_model, max_batch, context, dtype, device, threads, max_tree_nodes
    ).with_synthetic(synthetic_rate, synthetic_rates, synthetic_length)
    o.refuse_both(ctx, "drafters", "drafter", "draft_model")
    o.refuse_both(ctx, "batches", "max_batch")
    who = lineup(wanted.for_timing(), drafters or [], batches)
    others = peer_options(
        peers or [], peer_program or [], batch=who.batches[-1], greedy=sampling.greedy, taken=[*chosen]
    )
    items = _read_items(prompts, raw)
    _require_folder(json)
    contest = Contest(who, chosen, others, items, sampling, repeat, setup)
    found = contest.run()
    if json is not None:
        settings: dict[str, object] = {"prompts": str(prompts or "built-in"), "requests": len(items), "repeat": repeat}
        _write(json, found.as_json(settings | _settings(sampling, wanted, who)))
    print_found(
        stderr() if json == "-" else stdout(), found, who, wanted.synthetic.notice if wanted.synthetic else None
    )


def _with_baseline(policies: dict[str, Policy]) -> dict[str, Policy]:
    return policies if BASELINE in policies else parse_policies([BASELINE]) | policies


def _read_items(path: Path | None, raw: bool) -> list[PromptItem]:
    from adaptive.benchmark import built_in_prompts, read_prompts

    if path is None:
        items = built_in_prompts()
    else:
        with usage("--prompts"):
            items = read_prompts(path)
    return items if raw else [item.chat() for item in items]


def _require_folder(json: str | None) -> None:
    """Before minutes of measuring, not after."""
    if json is not None and json != "-" and not Path(json).absolute().parent.is_dir():
        raise UsageError(f"--json: the folder of {json} is not there")


def _settings(sampling: Sampling, wanted: o.EngineOptions, who: Lineup) -> dict[str, object]:
    return {
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "ignore_eos": sampling.ignore_eos,
        "max_batch": who.batches[-1],
        "batches": list(who.batches),
        "draft_model": wanted.draft_model,
        "draft_models": {one.drafter: one.draft_model for one in who.options if one.drafter and one.draft_model},
        "synthetic_acceptance": str(wanted.synthetic) if wanted.synthetic else None,
        "learned_state": LEARNED_STATE,
    }


def _write(target: str, result: Mapping[str, object]) -> None:
    if target == "-":
        print_json(result, indent=2)
    else:
        Path(target).write_text(to_json(result, indent=2) + "\n", encoding="utf-8")
