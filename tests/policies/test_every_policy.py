"""What holds for every policy that has a name: the contract, with whatever is unknown; copies; an example that runs."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

import policies
from adaptive.check import check_policy
from adaptive.check.traces import BARE, SMALL, WIDE, Drive, make_report, make_view
from adaptive.contract import Capabilities, Decision, DrafterCaps, DraftProgress, Policy, Signal, StepView
from adaptive.legal import Rules, Stepwise, Trimming
from adaptive.registry import ALLOW_LIST, get_policy, list_policies
from policies import AdaSD, AdaSpec, EmaTiers, Fixed, FixedTree, Schedule

NAMED: dict[str, list[str]] = {
    "fixed": ["fixed:0", "fixed:3"],
    "fixed-tree": ["fixed-tree:2x1"],
    "schedule": ["schedule:[[1, 4, 3], [5, 64, 1]]"],
    "ema": ["ema"],
    "ema-sglang": ["ema-sglang"],
    "adaspec": ["adaspec", "adaspec:llama-8b-h100-eagle"],
    "adasd": ["adasd", "adasd:v1", "adasd:lossless"],
}
EVERY = pytest.mark.parametrize("spec", [spec for specs in NAMED.values() for spec in specs])

NARROW = replace(WIDE, batch_buckets=(1, 4, 16), lag=1)
LM = replace(NARROW, drafters={"model": DrafterCaps("lm", 16, signals=WIDE.drafters["eagle"].signals)})
ENGINES = (BARE, SMALL, NARROW, LM)
"""Without drafter, with one that says nothing, with all there is, with a language model."""

OPTIONAL = [field.name for field in fields(StepView) if field.default is None]


def test_all_names_are_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ALLOW_LIST, "")
    assert set(NAMED) == {entry.name for entry in list_policies()}
    made = {type(get_policy(spec)).__name__ for specs in NAMED.values() for spec in specs}
    assert made == set(policies.__all__) - {"Relaxed"}, "which has no name, since it is made of another policy"


@EVERY
def test_keeps_the_contract(spec: str) -> None:
    assert "clones afresh" in check_policy(lambda: get_policy(spec), (SMALL, LM))


def fits(spec: str) -> list[Capabilities]:
    """The engines that the policy works with."""
    fitting = []
    for caps in ENGINES:
        try:
            get_policy(spec).bind(caps)
        except ValueError:
            continue
        fitting.append(caps)
    assert fitting
    return fitting


@EVERY
@pytest.mark.parametrize("known", [False, True], ids=["one unknown", "one known"])
def test_works_whatever_single_field_is_unknown_or_alone_known(spec: str, known: bool) -> None:
    """`check_policy` tries all and none; policies also meet engines that tell some."""
    illegal: list[str] = []

    def note(kind: str, message: str) -> None:
        illegal.append(message)

    for caps in fits(spec):
        drive = Drive(get_policy(spec), caps)
        rules = Rules(caps, drive.needs, allow_lossy=True)
        for step, name in enumerate(OPTIONAL * 6):
            batch = (1, 4, 16)[step % 3]
            full, bare = (make_view(step, batch, caps.lag, full=told) for told in (True, False))
            changed: dict[str, Any] = {name: getattr(full, name) if known else None}
            seen = replace(bare if known else full, **changed)
            decision = drive.policy.decide(seen)
            rules.mend(decision, batch, note)
            ask(drive, seen, decision)
            drive.policy.learn(seen, decision, make_report(seen, decision, drive.needs))
    assert illegal == []


def ask(drive: Drive, seen: StepView, decision: Decision) -> None:
    """Between draft tokens and after them, with signals, without values and without signals."""
    policy, rows, rng = drive.policy, seen.rows, np.random.default_rng(seen.step)

    def told(width: tuple[int, ...]) -> dict[Signal, Any]:
        shape = (len(rows), *width)
        values = rng.random(shape) if seen.step % 2 else np.full(shape, np.nan)
        return {} if seen.step % 5 == 4 else dict.fromkeys(drive.needs.signals, values)

    if drive.needs.stepwise and decision.gamma:
        assert isinstance(policy, Stepwise)
        more = policy.extend(DraftProgress(0, rows, told(())))
        assert more.shape == (len(rows),)
        assert more.dtype == np.bool_
    if drive.needs.trim and decision.gamma:
        assert isinstance(policy, Trimming)
        verify = policy.trim(DraftProgress(0, rows, told((1,))))
        assert verify is None or np.all(np.asarray(verify) >= 0)


@EVERY
def test_shows_an_example_that_runs(spec: str) -> None:
    """Examples in docstrings are run with the tests."""
    assert ">>> " in (inspect.getdoc(type(get_policy(spec))) or "")


CONFIGURED: dict[str, Callable[[], Policy]] = {
    "Fixed": lambda: Fixed(3),
    "FixedTree": lambda: FixedTree((-1, -1, 0)),
    "Schedule": lambda: Schedule([[1, 4, 3]], hysteresis=2),
    "EmaTiers": lambda: EmaTiers(
        {"1": {"candidate_steps": [1, 3]}},
        start=3,
        credit=False,
        dwell=5,
        trial=7,
        backoff=9,
        eager=False,
        graph_batch_sizes=(1, 4),
    ),
    "AdaSpec": lambda: AdaSpec(
        cost="llama-8b-h100-ngram",
        max_gamma=5,
        drafter="eagle",
        calibrate=False,
        pooled=True,
        window=9.0,
        hysteresis=0.2,
        error_bound=0.7,
        look_ahead=False,
        trim=True,
    ),
    "AdaSD": lambda: AdaSD(
        version="v1",
        generation_only=True,
        window=7,
        drafter="model",
        epsilon=0.01,
        min_samples=3,
        prior_weight=1.0,
    ),
}


@pytest.mark.parametrize("name", CONFIGURED)
def test_a_clone_has_every_parameter(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By what its constructor is given; each parameter here differs from its default, so that none can be left out."""
    kind = getattr(policies, name)
    construct, signature = kind.__init__, inspect.signature(kind.__init__)
    given: list[dict[str, Any]] = []

    def constructed(self: Policy, *args: Any, **options: Any) -> None:
        bound = signature.bind(self, *args, **options)
        bound.apply_defaults()
        given.append({key: value for key, value in bound.arguments.items() if key != "self"})
        construct(self, *args, **options)

    monkeypatch.setattr(kind, "__init__", constructed)
    policy = CONFIGURED[name]()
    left_out = [key for key, value in given[0].items() if value == signature.parameters[key].default]
    assert left_out == [], "the example says nothing of these"
    public = {key: value for key, value in vars(policy).items() if not key.startswith("_")}
    twin = policy.clone()
    assert {key: value for key, value in vars(twin).items() if not key.startswith("_")} == public
    kept_otherwise = {"cost", "table"}  # in another form, and public
    lost = [key for key, value in given[0].items() if key not in kept_otherwise and given[-1][key] != value]
    assert lost == []
