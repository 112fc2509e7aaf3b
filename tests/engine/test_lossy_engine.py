"""Rules that are not exact in the engine: on rows that allow them, in every backend, with their cost in the outputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from adaptive.contract import TABLE, Acceptance, AcceptanceKind
from adaptive.requests import Output, Request, RequestStats, Sampling
from engine.core import LLMEngine
from engine.sampling.rules import RULES
from engine.sampling.synthetic import SyntheticAcceptance
from tests.engine.joint_law import SMALL, joint_law, p_value
from tests.engine.relaxing import KIND, LOOSE, RATIOS, STANDARD, TABLED, Relaxing
from tests.engine.spy import Spy
from tests.engine.test_model_drafter import NEAR
from tests.engine.tiny import DraftModel, near_weights, random_weights, run_all, tiny_engine, tokens_of


def requests(allow: Sequence[bool]) -> list[Request]:
    """Greedy and sampled ones in turn."""
    prompts = [[1, 2, 3, 1, 2], [4, 5, 4], [9, 9, 3, 9], [7, 8, 7, 8], [3], [6, 2, 6]]
    samplings = [
        Sampling(16),
        Sampling(14, 0.9),
        Sampling(12),
        Sampling(15, 1.3, top_k=4),
        Sampling(18),
        Sampling(9, 1),
    ]
    return [
        Request(prompt, replace(sampling, seed=place), id=str(place), allow_lossy=allowed)
        for place, (prompt, sampling, allowed) in enumerate(zip(prompts, samplings, allow, strict=True))
    ]


NOBODY, SOME, ALL = [False] * 6, [True, True, False, False, True, False], [True] * 6
MOST = [True, True, False, True, True, True]


def serve(
    rule: Acceptance, allow: Sequence[bool], backend: str = "eager", copied: bool = False
) -> dict[str, list[int]]:
    engine = tiny_engine(max_batch=6, max_gamma=4, draft_model=None if copied else NEAR, backend=backend)
    engine.attach(Relaxing((4,), rule))
    return {name: tokens_of(outputs) for name, outputs in run_all(engine, requests(allow)).items()}


@cache
def exact(copied: bool = False) -> dict[str, list[int]]:
    return serve(STANDARD, NOBODY, copied=copied)


# --- only where it is allowed ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LOOSE)
def test_other_rows_of_the_batch_get_what_they_get_without_the_rule(name: str) -> None:
    mixed = serve(LOOSE[name], SOME)
    assert [mixed[str(place)] for place in (2, 3, 5)] == [exact()[str(place)] for place in (2, 3, 5)]
    if name not in RATIOS:
        assert mixed["0"] != exact()["0"], "a greedy row that allows it does not"
    assert serve(LOOSE[name], ALL) != exact()


@pytest.mark.parametrize("name", [name for name, rule in LOOSE.items() if not RULES[rule.kind].needs])
def test_copied_drafts_too(name: str) -> None:
    mixed = serve(LOOSE[name], SOME, copied=True)
    assert [mixed[str(place)] for place in (2, 3, 5)] == [exact(True)[str(place)] for place in (2, 3, 5)]


@pytest.mark.parametrize("name", RATIOS)
def test_ratios_leave_greedy_rows_as_they_are(name: str) -> None:
    assert serve(LOOSE[name], ALL)["0"] == exact()["0"]


def used_kinds(engine: LLMEngine) -> set[AcceptanceKind]:
    return {key.acceptance for key in engine.runner._bundles}


def test_where_nobody_allows_it_the_step_is_the_exact_one() -> None:
    engine = tiny_engine(max_batch=6, max_gamma=4, draft_model=NEAR)
    controller = Relaxing((4, 0), LOOSE["typical"])
    engine.attach(controller)
    outputs = run_all(engine, requests(NOBODY))
    assert used_kinds(engine) == {KIND.STANDARD}
    assert {name: tokens_of(parts) for name, parts in outputs.items()}["0"] == exact()["0"]
    assert all(report.lossy_accepted is None and report.divergence_spent is None for report in controller.reports)


def test_trees_and_plain_decoding_are_exact() -> None:
    engine = tiny_engine(max_batch=6, max_gamma=4, draft_model=NEAR, max_tree_nodes=8)
    engine.attach(Relaxing((0, (-1, -1, 0)), LOOSE["typical"]))
    greedy = requests(ALL)[::2]
    outputs = run_all(engine, greedy)
    assert used_kinds(engine) == {KIND.STANDARD}
    assert [tokens_of(outputs[request.id or ""]) for request in greedy] == [exact()[name] for name in ("0", "2", "4")]


def test_synthetic_acceptance_has_the_last_word() -> None:
    engine = tiny_engine(max_gamma=4, draft_model=NEAR, synthetic=SyntheticAcceptance(rate=0.5))
    controller = Relaxing((4,), LOOSE["typical"])
    engine.attach(controller)
    run_all(engine, requests(ALL))
    assert all(report.lossy_accepted is None for report in controller.reports)


def test_rules_are_offered_where_the_drafter_has_their_signals() -> None:
    assert tiny_engine(draft_model=NEAR).capabilities().acceptances == set(AcceptanceKind)
    copying = set(AcceptanceKind) - {KIND.JS, KIND.DIVERGENCE}
    assert tiny_engine().capabilities().acceptances == copying
    assert tiny_engine(draft=False).capabilities().acceptances == {KIND.STANDARD, KIND.BLOCK}


# --- backends, and one copy ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LOOSE)
def test_late_equals_eager(name: str) -> None:
    assert serve(LOOSE[name], SOME, "late") == serve(LOOSE[name], SOME)


@pytest.mark.parametrize("name", ["js v2", "fly"])
def test_replay_equals_eager(name: str) -> None:
    """New tables and thresholds reach a recorded step: it is recorded with the first, and replayed with the others."""
    results: list[tuple[list[list[int]], list[list[int]], list[float]]] = []
    for backend in ("replay", "eager"):
        engine = tiny_engine(max_batch=2, max_gamma=3, draft_model=NEAR, backend=backend)
        controller = Relaxing((3,), LOOSE[name])
        engine.attach(controller)
        chosen = [requests(ALL)[place] for place in (0, 1)]
        first = run_all(engine, chosen)
        harder = {"js v2": replace(TABLED, params={TABLE: np.zeros(33)}), "fly": Acceptance(KIND.FLY, {"entropy": 9.0})}
        controller.rule = harder[name]
        again = run_all(engine, chosen)
        loose, hard = ([tokens_of(outputs) for outputs in run.values()] for run in (first, again))
        spent = [report.divergence_spent for report in controller.reports if report.divergence_spent is not None]
        results.append((loose, hard, [round(float(one.sum()), 9) for one in spent]))
    assert results[0] == results[1]
    assert results[0][0] != results[0][1]


def test_a_lossy_step_reads_once(monkeypatch: pytest.MonkeyPatch) -> None:
    spy = Spy(monkeypatch)
    engine = tiny_engine(max_batch=2, max_gamma=3, draft_model=NEAR)
    engine.attach(Relaxing((3,), LOOSE["js v2"]))
    for request in requests(ALL)[:2]:
        engine.submit(request)
    spy.step(engine)
    spy.steps(engine, 2)


# --- the meter -------------------------------------------------------------------------------------------------------


def stats_of(outputs: Sequence[Output]) -> RequestStats:
    stats = outputs[-1].stats
    assert stats is not None
    return stats


@pytest.mark.parametrize("name", LOOSE)
def test_outputs_tell_what_the_rule_let_stand_and_what_it_cost(name: str) -> None:
    engine = tiny_engine(max_batch=6, max_gamma=4, draft_model=NEAR)
    controller = Relaxing((4, 0, 2), LOOSE[name])
    engine.attach(controller)
    outputs = {place: stats_of(parts) for place, parts in run_all(engine, requests(MOST)).items()}
    lossy, spent = np.zeros(6), np.zeros(6)
    for report in controller.reports:
        if report.lossy_accepted is not None and report.divergence_spent is not None:
            assert (report.lossy_accepted <= report.accepted).all()
            assert (report.divergence_spent >= 0).all()
            lossy[report.rows] += report.lossy_accepted
            spent[report.rows] += report.divergence_spent
    for place, stats in outputs.items():
        assert stats.lossy_accepted == lossy[int(place)]
        assert stats.divergence_spent == pytest.approx(spent[int(place)])
        if not MOST[int(place)]:
            assert (stats.lossy_accepted, stats.divergence_spent) == (0, 0)
    assert sum(stats.lossy_accepted for stats in outputs.values()) > 0
    assert sum(stats.divergence_spent for stats in outputs.values()) > 0


# --- the joint law of four tokens ------------------------------------------------------------------------------------

SEED, PLAIN, PAIRS = 3, Sampling(4, temperature=0.9), 1_000
MID_SMALL = DraftModel(SMALL, near_weights(SMALL, SEED, noise=0.6))
FAR_SMALL = DraftModel(SMALL, random_weights(SMALL, seed=12))


def answers(rule: Acceptance, draft: DraftModel) -> tuple[Counter[tuple[int, ...]], Counter[tuple[int, ...]], float]:
    """Of requests that allow the rule, of others beside them in every batch, and the mean spent by the first."""
    engine = tiny_engine(SMALL, max_batch=128, max_gamma=3, seed=SEED, prefill_chunk=1024, draft_model=draft)
    engine.attach(Relaxing((3,), rule))
    wanted = [
        Request([1], replace(PLAIN, seed=place), id=str(place), allow_lossy=place % 2 == 0)
        for place in range(2 * PAIRS)
    ]
    counts: tuple[Counter[tuple[int, ...]], ...] = (Counter(), Counter())
    spent = 0.0
    for place, outputs in run_all(engine, wanted).items():
        counts[int(place) % 2][tuple(tokens_of(outputs))] += 1
        spent += stats_of(outputs).divergence_spent
    return counts[0], counts[1], spent / PAIRS


@pytest.mark.parametrize("name", LOOSE)
def test_a_lossy_rule_changes_the_joint_law_of_its_own_rows_alone_and_the_meter_bounds_the_change(name: str) -> None:
    law = joint_law(PLAIN, SEED, prompt=[1])
    loose, strict, spent = answers(LOOSE[name], FAR_SMALL if name in ("mentored", "cactus", "typical") else MID_SMALL)
    assert p_value(strict, law) > 1e-3
    assert p_value(loose, law) < 1e-6
    distance = sum(abs(loose[answer] / PAIRS - chance) for answer, chance in law.items()) / 2
    noise = sum((chance / PAIRS) ** 0.5 for chance in law.values()) / 2
    assert distance - noise < spent
    assert distance + noise > spent / 5, "nor is it far more"
