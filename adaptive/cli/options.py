"""Options that several commands share, and what they add up to."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import typer

from adaptive.cli.errors import UsageError, usage
from adaptive.cli.synthetic import synthetic_acceptance
from adaptive.requests import Sampling

if TYPE_CHECKING:
    from engine.sampling.synthetic import SyntheticAcceptance

PLAIN, LOOKUP = LIBRARIES = ("transformers", "transformers-lookup")  # what `--peers` knows
DEFAULT_MODEL = "smollm2-135m"
DTYPES = ("float32", "bfloat16", "float16")
DRAFTERS = ("ngram", "model", "eagle1", "eagle3", "medusa", "mtp", "none")
ALONE = ("ngram", "none")  # these take no --draft-model; the others have the package's own where there is one
MAX_GAMMA = 16
ENGINE_PANEL = "Engine"
SAMPLING_PANEL = "Sampling"

_debug = False


def debug_wanted() -> bool:
    return _debug


def _set_debug(value: bool) -> bool:
    global _debug
    _debug = value
    return value


Debug = Annotated[
    bool, typer.Option("--debug", callback=_set_debug, is_eager=True, help="Show the traceback of an error.")
]
Raw = Annotated[bool, typer.Option("--raw", help="Give prompts as they are, without the chat template.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON; progress goes to stderr.")]

Model = Annotated[
    str,
    typer.Option(
        "--model",
        help="A known model's name, a GGUF file, a Hugging Face folder or hub id.",
        rich_help_panel=ENGINE_PANEL,
    ),
]
Revision = Annotated[
    str | None,
    typer.Option(
        "--revision",
        help="Branch, tag or commit of a hub id.",
        rich_help_panel=ENGINE_PANEL,
        show_default="main",
    ),
]
Drafter = Annotated[
    str, typer.Option("--drafter", help=f"One of: {', '.join(DRAFTERS)}.", rich_help_panel=ENGINE_PANEL)
]
DraftModel = Annotated[
    str | None,
    typer.Option(
        "--draft-model",
        help="What to draft with: a model named like --model, of the same tokenizer, or a trained drafter's folder.",
        rich_help_panel=ENGINE_PANEL,
        show_default="the package's own for this model",
    ),
]
MaxBatch = Annotated[
    int, typer.Option("--max-batch", min=1, help="Requests decoded side by side.", rich_help_panel=ENGINE_PANEL)
]
TreeNodes = Annotated[
    int,
    typer.Option(
        "--max-tree-nodes",
        min=0,
        max=256,
        help="Draft tokens per request in a tree at most; 0 offers no trees.",
        rich_help_panel=ENGINE_PANEL,
    ),
]
Context = Annotated[
    int | None,
    typer.Option(
        "--context",
        min=1,
        help="Tokens of prompt and answer per request.",
        rich_help_panel=ENGINE_PANEL,
        show_default="the engine's",
    ),
]
Dtype = Annotated[str, typer.Option("--dtype", help=f"One of: {', '.join(DTYPES)}.", rich_help_panel=ENGINE_PANEL)]
Device = Annotated[str, typer.Option("--device", help="cpu or cuda.", rich_help_panel=ENGINE_PANEL)]
Threads = Annotated[
    int | None,
    typer.Option("--threads", min=1, help="CPU threads.", rich_help_panel=ENGINE_PANEL, show_default="all cores"),
]

AllowLossy = Annotated[
    bool,
    typer.Option(
        "--allow-lossy",
        help="Permit acceptance rules that change the text, to the policy and for all requests.",
        rich_help_panel=SAMPLING_PANEL,
    ),
]
MaxTokens = Annotated[
    int, typer.Option("--max-tokens", help="Tokens per answer at most.", rich_help_panel=SAMPLING_PANEL)
]
Temperature = Annotated[
    float, typer.Option("--temperature", help="0 decodes greedily.", rich_help_panel=SAMPLING_PANEL)
]
TopK = Annotated[int, typer.Option("--top-k", help="0 keeps all tokens.", rich_help_panel=SAMPLING_PANEL)]
TopP = Annotated[float, typer.Option("--top-p", help="1 keeps all tokens.", rich_help_panel=SAMPLING_PANEL)]
Seed = Annotated[
    int | None,
    typer.Option(
        "--seed", help="Request i uses SEED + i.", rich_help_panel=SAMPLING_PANEL, show_default="drawn at random"
    ),
]
FixedSeed = Annotated[int, typer.Option("--seed", help="Request i uses SEED + i.", rich_help_panel=SAMPLING_PANEL)]
Stop = Annotated[
    list[str] | None,
    typer.Option("--stop", help="End the answer before this text; repeatable.", rich_help_panel=SAMPLING_PANEL),
]
IgnoreEos = Annotated[
    bool, typer.Option("--ignore-eos", help="Go on past the end-of-text token.", rich_help_panel=SAMPLING_PANEL)
]


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """What `load_engine` is asked for. `drafter` None loads none."""

    model: str
    drafter: str | None
    max_batch: int
    context: int | None
    dtype: str
    device: str
    threads: int | None
    draft_model: str | None = None
    revision: str | None = None
    synthetic: SyntheticAcceptance | None = None
    prefix_reuse: bool = True
    max_tree_nodes: int = 0

    def for_timing(self) -> EngineOptions:
        """The same without prefix reuse: whoever is given a prompt second would not have to read it."""
        return replace(self, prefix_reuse=False)

    def with_synthetic(self, rate: float | None, rates: str | None, length: float | None) -> EngineOptions:
        """The same, with the acceptance that these options ask for, if any; raises UsageError."""
        asked = synthetic_acceptance(rate, rates, length, drafter=self.drafter, max_gamma=MAX_GAMMA)
        return replace(self, synthetic=asked)


def engine_options(
    model: str,
    revision: str | None,
    drafter: str,
    draft_model: str | None,
    max_batch: int,
    context: int | None,
    dtype: str,
    device: str,
    threads: int | None,
    max_tree_nodes: int = 0,
) -> EngineOptions:
    """Checks what can be checked before torch is imported; raises UsageError."""
    if drafter not in DRAFTERS:
        raise UsageError(f"--drafter: {drafter!r} is not known; choose from {', '.join(DRAFTERS)}")
    if drafter in ALONE and draft_model is not None:
        raise UsageError(f"--drafter {drafter}: --draft-model goes with all drafters but {' and '.join(ALONE)}")
    if dtype not in DTYPES:
        raise UsageError(f"--dtype: {dtype!r} is not known; choose from {', '.join(DTYPES)}")
    chosen = None if drafter == "none" else drafter
    return EngineOptions(
        model,
        chosen,
        max_batch,
        context,
        dtype,
        device,
        threads,
        draft_model,
        revision,
        max_tree_nodes=max_tree_nodes,
    )


def refuse_both(ctx: typer.Context, name: str, *others: str) -> None:
    """UsageError where one option and another that says the same are both on the command line."""
    if not ctx.params.get(name):
        return
    for other in others:
        source = ctx.get_parameter_source(other)
        if source is not None and source.name == "COMMANDLINE":
            raise UsageError(f"--{name} and --{other.replace('_', '-')} exclude each other: give one")


def sampling_options(
    *,
    max_tokens: int,
    temperature: float,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int | None = None,
    stop: list[str] | None = None,
    ignore_eos: bool = False,
    logprobs: int | None = None,
) -> Sampling:
    """Raises UsageError for a value out of range."""
    with usage():
        return Sampling(
            max_tokens=max_tokens,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            seed=seed,
            stop=tuple(stop or ()),
            ignore_eos=ignore_eos,
            logprobs=logprobs,
        )
