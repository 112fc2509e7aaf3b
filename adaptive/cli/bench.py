"""`adaptive bench`: policies, and other libraries, interleaved on the same prompts in one process."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from adaptive.cli import options as o
from adaptive.cli import synthetic as s
from adaptive.cli.configured import ConfigFile, Configured, configured
from adaptive.cli.errors import UsageError, usage
from adaptive.cli.peers import peer_arms, peer_options
from adaptive.cli.prompt_ids import token_ids
from adaptive.cli.render import Steps, print_json, stderr, stdout, to_json
from adaptive.cli.report import print_outcome
from adaptive.cli.session import TextEngine, check_policies, load, parse_policies
from adaptive.contract import Policy
from adaptive.requests import Sampling

if TYPE_CHECKING:
    from adaptive.benchmark import Arm, PromptItem

BASELINE = "fixed:0"
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
    max_batch: o.MaxBatch = 1,
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
    from adaptive.benchmark import conclude, make_gap, measure, units

    setup = configured(ctx, allow_lossy=allow_lossy)
    chosen = _with_baseline(setup.parse(policies or [DEFAULT_POLICIES]))
    sampling = o.sampling_options(
        max_tokens=max_tokens, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed, ignore_eos=ignore_eos
    )
    wanted = o.engine_options(
        model, revision, drafter, draft_model, max_batch, context, dtype, device, threads, max_tree_nodes
    ).with_synthetic(synthetic_rate, synthetic_rates, synthetic_length)
    others = peer_options(peers or [], peer_program or [], batch=max_batch, greedy=sampling.greedy, taken=[*chosen])
    items = _read_items(prompts, raw)
    _require_folder(json)

    engine = load(wanted.for_timing())
    check_policies(engine, chosen, allow_lossy=setup.allow_lossy)
    with peer_arms(engine, others, wanted, ignore_eos=ignore_eos) as theirs:
        arms = [*_policy_arms(engine, chosen, wanted, setup), *theirs]
        with Steps("bench", units(arms, items, repeat)) as steps:
            results = measure(arms, items, sampling, repeat, steps.begin)
    gap = make_gap(engine, chosen[BASELINE], {item.id: token_ids(engine.tokenizer, item.prompt) for item in items})
    comparable = sampling.greedy and wanted.synthetic is None
    outcome = conclude(arms, results, peers=others.labels, comparable=comparable, gap=gap)
    if json is not None:
        settings: dict[str, object] = {"prompts": str(prompts or "built-in"), "requests": len(items), "repeat": repeat}
        _write(json, outcome.as_json(engine.describe(), settings | _settings(sampling, wanted)))
    print_outcome(stderr() if json == "-" else stdout(), outcome, wanted.synthetic.notice if wanted.synthetic else None)


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


def _policy_arms(
    engine: TextEngine, policies: Mapping[str, Policy], wanted: o.EngineOptions, setup: Configured
) -> list[Arm]:
    from adaptive.benchmark import PolicyArm

    return [
        PolicyArm(spec, policy, engine, wanted.drafter, setup.slo, setup.allow_lossy)
        for spec, policy in policies.items()
    ]


def _settings(sampling: Sampling, wanted: o.EngineOptions) -> dict[str, object]:
    return {
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "ignore_eos": sampling.ignore_eos,
        "max_batch": wanted.max_batch,
        "draft_model": wanted.draft_model,
        "synthetic_acceptance": str(wanted.synthetic) if wanted.synthetic else None,
        "learned_state": LEARNED_STATE,
    }


def _write(target: str, result: Mapping[str, object]) -> None:
    if target == "-":
        print_json(result, indent=2)
    else:
        Path(target).write_text(to_json(result, indent=2) + "\n", encoding="utf-8")
