from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from adaptive.contract import (
    TABLE,
    Acceptance,
    AcceptanceKind,
    Capabilities,
    Confidence,
    Decision,
    DrafterCaps,
    DraftProgress,
    DraftStop,
    Needs,
    TreeLimits,
    TreeShape,
)
from adaptive.guard import Guard, GuardConfig
from adaptive.legal import checked_needs
from tests.adaptive.scripted import Scripted, always, fail, view_of

BATCH = 3
NO_DWELL = GuardConfig()
CAPS = Capabilities(
    gammas=(0, 1, 2, 4, 8),
    batch_buckets=(1, 4, 8),
    drafters={
        "lm": DrafterCaps("lm", 8, signals=frozenset({"top_prob", "entropy"})),
        "ngram": DrafterCaps("ngram", 2),
    },
    acceptances=frozenset({AcceptanceKind.STANDARD, AcceptanceKind.BLOCK, AcceptanceKind.TYPICAL, AcceptanceKind.JS}),
    ragged=True,
    verify_budget=True,
    stepwise=True,
    tree=TreeLimits(max_depth=4, max_width=3, max_nodes=8, dynamic=True),
)
NEEDS = Needs(
    gammas={1: (0, 8), 4: (0, 1, 2, 4), 8: (0, 1)},
    drafters=frozenset({"lm", "ngram"}),
    signals=frozenset({"top_prob"}),
    acceptances=frozenset({AcceptanceKind.STANDARD, AcceptanceKind.BLOCK, AcceptanceKind.TYPICAL, AcceptanceKind.JS}),
    budget=True,
)
THREE = np.array([1.0, 2.0, 3.0])
TYPICAL = Acceptance(AcceptanceKind.TYPICAL, {"epsilon": 0.3})


def guard_of(
    caps: Capabilities = CAPS, needs: Needs = NEEDS, *, allow_lossy: bool = True, config: GuardConfig = NO_DWELL
) -> Guard:
    return Guard(config, caps, needs, allow_lossy=allow_lossy)


def decide(guard: Guard, decision: object, batch: int = BATCH) -> Decision:
    return guard.decide(Scripted(lambda view: decision), view_of(batch))


@pytest.mark.parametrize(
    ("gamma", "batch", "expected", "kind"),
    [
        (-1, 3, 0, "gamma_negative"),
        (3, 3, 2, "gamma_not_offered"),
        (10**30, 3, 4, "gamma_not_offered"),
        (8, 3, 4, "gamma_not_prepared"),
        (4, 1, 0, "gamma_not_prepared"),
        (4, 8, 1, "gamma_not_prepared"),
        (8, 99, 1, "gamma_not_prepared"),
        (2.0, 3, 0, "gamma_type"),
        (math.nan, 3, 0, "gamma_type"),
        ("2", 3, 0, "gamma_type"),
        (True, 3, 0, "gamma_type"),
        (None, 3, 0, "gamma_type"),
        (np.array([1, 2]), 3, 0, "gamma_type"),
    ],
)
def test_illegal_gamma_becomes_a_legal_one(gamma: Any, batch: int, expected: int, kind: str) -> None:
    guard = guard_of()
    assert decide(guard, Decision(gamma), batch).gamma == expected
    assert guard.faults.clamped == {kind: 1}
    assert guard.faults.errors == {}


@pytest.mark.parametrize("answer", [None, 2, "ema", {"gamma": 2}, Decision, (2,)])
def test_what_is_no_decision_is_replaced(answer: object) -> None:
    guard = guard_of()
    assert decide(guard, answer) == Decision(0, reason="fallback")
    assert guard.faults.clamped == {"decision": 1}


@pytest.mark.parametrize(
    ("field", "value", "kind"),
    [
        ("verify", 2, "verify"),
        ("verify", -5, "verify"),
        ("verify", np.array([1, 2]), "verify"),
        ("verify", np.array([1.0, 2.0, 2.0]), "verify"),
        ("verify", np.array([[1], [2], [2]]), "verify"),
        ("verify", np.array([1, -1, 9]), "verify"),
        ("verify", [1, 1, 1], "verify"),
        ("row_target", THREE[:2], "row_target"),
        ("row_target", THREE * math.nan, "row_target"),
        ("row_target", 1.5, "row_target"),
        ("confidence", Confidence("top_prob", THREE, THREE), "confidence"),
        ("confidence", Confidence("entropy", THREE[:2], THREE[:2]), "confidence"),
        ("confidence", "top_prob", "confidence"),
        ("draft_stop", DraftStop("top_prob", math.nan), "draft_stop"),
        ("draft_stop", DraftStop("top_prob", THREE[:2]), "draft_stop"),
        ("draft_stop", DraftStop("js", 0.5), "draft_stop"),
        ("tree", TreeShape(parents=(-1, 1)), "tree"),
        ("tree", TreeShape(parents=(-1, 0, 1, 2, 3)), "tree"),
        ("tree", TreeShape(parents=(-1,) * 4), "tree"),
        ("tree", TreeShape(parents=()), "tree"),
        ("tree", TreeShape(depth=2, width=9, nodes=4), "tree"),
        ("tree", (-1, 0), "tree"),
        ("acceptance", Acceptance(AcceptanceKind.FLY), "acceptance"),
        ("acceptance", Acceptance(AcceptanceKind.TYPICAL, {"epsilom": 0.1}), "acceptance"),
        ("acceptance", Acceptance(AcceptanceKind.TYPICAL, {"epsilon": np.ones((3, 2))}), "acceptance"),
        ("acceptance", Acceptance(AcceptanceKind.TYPICAL, {TABLE: np.ones((3, 2))}), "acceptance"),
        ("acceptance", Acceptance(AcceptanceKind.JS, {TABLE: np.ones((3, 1))}), "acceptance"),
        ("acceptance", Acceptance(AcceptanceKind.JS, {TABLE: np.ones((2, 33))}), "acceptance"),
        ("acceptance", Acceptance(AcceptanceKind.JS, {TABLE: 0.5}), "acceptance"),
        ("acceptance", Acceptance("standard"), "acceptance"),  # type: ignore[arg-type]
        ("acceptance", Acceptance(AcceptanceKind.TYPICAL, {"epsilon": math.inf}), "acceptance"),
        ("acceptance", Acceptance(AcceptanceKind.TYPICAL, {"epsilon": THREE[:2]}), "acceptance"),
        ("acceptance", None, "acceptance"),
        ("drafter", "medusa", "drafter"),
        ("drafter", ("lm", "lm"), "drafter"),
        ("drafter", ("lm", "lm", "medusa"), "drafter"),
        ("drafter", 7, "drafter"),
        ("reason", None, "reason"),
        ("reason", ["why"], "reason"),
    ],
)
def test_illegal_field_is_corrected_and_gamma_kept(field: str, value: object, kind: str) -> None:
    guard = guard_of()
    decision = decide(guard, replace(Decision(2, reason="deep"), **{field: value}))  # type: ignore[arg-type]
    assert decision.gamma == 2
    assert guard.faults.clamped == {kind: 1}
    again = guard_of()
    decide(again, decision)
    assert again.faults.clamped == {}, "what the guard lets through is legal"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("verify", 7),
        ("verify", np.int64(7)),
        ("verify", np.array([0, 1, 2])),
        ("row_target", THREE),
        ("confidence", Confidence("top_prob", THREE[:2], THREE[:2])),
        ("draft_stop", DraftStop("top_prob", 0.5)),
        ("draft_stop", DraftStop("top_prob", THREE)),
        ("tree", TreeShape(parents=(-1, -1, 0))),
        ("tree", TreeShape(depth=2, width=3, nodes=6)),
        ("acceptance", TYPICAL),
        ("acceptance", Acceptance(AcceptanceKind.TYPICAL, {"epsilon": np.ones(3)})),
        ("acceptance", Acceptance(AcceptanceKind.JS, {TABLE: np.ones((3, 2))})),
        ("drafter", "ngram"),
        ("drafter", ("lm", "lm", "ngram")),
    ],
)
def test_legal_fields_pass(field: str, value: object) -> None:
    guard = guard_of()
    decision = decide(guard, replace(Decision(np.int64(2)), **{field: value}))  # type: ignore[arg-type]
    assert decision.gamma == 2
    assert type(decision.gamma) is int
    assert np.array_equal(getattr(decision, field), value)  # type: ignore[arg-type]
    assert guard.faults.clamped == {}


def test_a_dynamic_tree_is_dropped_where_trees_are_static() -> None:
    static = replace(CAPS, tree=TreeLimits(max_depth=4, max_width=3, max_nodes=8))
    guard = guard_of(static)
    assert decide(guard, Decision(2, tree=TreeShape(depth=2, width=3, nodes=6))) == Decision(2)
    assert guard.faults.clamped == {"tree": 1}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("verify", 7),
        ("verify", np.array([0, 1, 2])),
        ("tree", TreeShape(parents=(-1, 0))),
        ("confidence", Confidence("top_prob", THREE[:2], THREE[:2])),
        ("draft_stop", DraftStop("top_prob", 0.5)),
        ("acceptance", TYPICAL),
        ("drafter", "lm"),
    ],
)
def test_what_the_engine_does_not_offer_is_dropped(field: str, value: object) -> None:
    caps = Capabilities(gammas=(0, 1, 2), batch_buckets=(4,))
    guard = guard_of(caps, Needs.everywhere(caps, (2,)))
    assert decide(guard, replace(Decision(2), **{field: value})) == Decision(2)  # type: ignore[arg-type]
    assert guard.faults.clamped == {field: 1}


@pytest.mark.parametrize("field", ["verify", "row_target", "confidence", "draft_stop"])
def test_what_steers_chains_is_dropped_beside_a_tree(field: str) -> None:
    levers = {
        "verify": 7,
        "row_target": THREE,
        "confidence": Confidence("top_prob", THREE[:2], THREE[:2]),
        "draft_stop": DraftStop("top_prob", 0.5),
    }
    guard, tree = guard_of(), Decision(2, tree=TreeShape(parents=(-1, -1, 0)))
    assert decide(guard, replace(tree, **{field: levers[field]})) == tree  # type: ignore[arg-type]
    assert guard.faults.clamped == {"tree_levers": 1}
    assert field in str(guard.faults.last)
    kept = decide(guard, replace(tree, tree=TreeShape(parents=()), **{field: levers[field]}))  # type: ignore[arg-type]
    assert getattr(kept, field) is not None, "of an illegal tree a chain is left"


def test_budget_is_cut_to_what_the_batch_can_use() -> None:
    assert decide(guard_of(), Decision(2, verify=1000)).verify == BATCH * 3
    assert decide(guard_of(), Decision(2, verify=1)).verify == BATCH


def test_lossy_acceptance_takes_consent() -> None:
    guard = guard_of(allow_lossy=False)
    assert decide(guard, Decision(2, acceptance=TYPICAL)).acceptance.lossless
    assert guard.faults.clamped == {"lossy": 1}
    assert decide(guard, Decision(2, acceptance=Acceptance(AcceptanceKind.BLOCK))).acceptance.kind == "block"
    assert guard.faults.clamped == {"lossy": 1}


def test_gamma_past_the_named_drafter_is_lowered() -> None:
    guard = guard_of()
    assert decide(guard, Decision(4, drafter="ngram")).gamma == 2
    assert guard.faults.clamped == {"gamma_drafter": 1}


@pytest.mark.parametrize("drafter", ["ngram", ("lm", "lm", "ngram")])
@pytest.mark.parametrize("field", ["draft_stop", "confidence"])
def test_a_signal_that_the_named_drafter_lacks_is_dropped(field: str, drafter: str | tuple[str, ...]) -> None:
    guard = guard_of()
    levers = {"draft_stop": DraftStop("top_prob", 0.5), "confidence": Confidence("top_prob", THREE[:2], THREE[:2])}
    wish = Decision(2, drafter=drafter)
    assert decide(guard, replace(wish, **{field: levers[field]})) == wish  # type: ignore[arg-type]
    assert guard.faults.clamped == {field: 1}
    assert decide(guard, replace(wish, drafter="lm", **{field: levers[field]})).drafter == "lm"  # type: ignore[arg-type]
    assert guard.faults.clamped == {field: 1}


@pytest.mark.parametrize(
    "lever",
    [
        {"draft_stop": DraftStop("js", 0.5)},
        {"draft_stop": DraftStop("match_len", 2)},
        {"confidence": Confidence("target_entropy", THREE[:2], THREE[:2])},
    ],
    ids=str,
)
def test_a_signal_that_comes_too_late_or_not_per_token_is_dropped(lever: dict[str, Any]) -> None:
    caps = replace(
        CAPS, drafters={"lm": DrafterCaps("lm", 8, signals=frozenset({"js", "match_len", "target_entropy"}))}
    )
    needs = replace(NEEDS, signals=frozenset({"js", "match_len", "target_entropy"}), drafters=frozenset({"lm"}))
    guard = guard_of(caps, needs)
    assert decide(guard, Decision(2, **lever)) == Decision(2)
    assert guard.faults.clamped == dict.fromkeys(lever, 1)
    fine = Decision(2, confidence=Confidence("match_len", THREE[:2], THREE[:2]))
    assert decide(guard, fine) == fine


def test_last_good_gamma_stands_in_until_patience_ends() -> None:
    guard = guard_of(config=GuardConfig(patience=2))
    assert decide(guard, Decision(4)).gamma == 4
    gammas = [guard.decide(Scripted(fail), view_of(BATCH, step)).gamma for step in range(1, 5)]
    assert gammas == [4, 4, 0, 0]
    assert guard.faults.errors == {"decide": 4}
    assert decide(guard, Decision(2)).gamma == 2


def test_last_good_gamma_is_lowered_for_a_wider_batch() -> None:
    guard = guard_of()
    decide(guard, Decision(4))
    assert guard.decide(Scripted(fail), view_of(8, 1)).gamma == 1


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_interrupts_pass(interrupt: type[BaseException]) -> None:
    def script(view: object) -> Decision:
        raise interrupt

    with pytest.raises(interrupt):
        guard_of().decide(Scripted(script), view_of(1))


def test_each_kind_is_logged_once_for_each_policy(caplog: pytest.LogCaptureFixture) -> None:
    guard = guard_of()
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            decide(guard, Decision(-1))
            decide(guard, Decision(3))
            guard.decide(Scripted(fail), view_of(1))
    assert len(caplog.records) == 3
    assert [record.exc_info is not None for record in caplog.records] == [False, False, True]
    guard.adopt(CAPS, NEEDS)
    decide(guard, Decision(-1))
    assert len(caplog.records) == 4


def test_dwell_holds_gamma_for_so_many_steps() -> None:
    guard = guard_of(config=GuardConfig(dwell=3))
    wish = iter([1, 2, 4, 2, 4, 4, 4])
    gammas = [
        guard.decide(Scripted(lambda view: Decision(next(wish))), view_of(BATCH, step)).gamma for step in range(7)
    ]
    assert gammas == [1, 1, 1, 2, 2, 2, 4]
    assert guard.held == 4
    assert guard.faults.clamped == {}


def test_dwell_yields_to_the_bucket_and_to_self_paced_policies() -> None:
    guard = guard_of(config=GuardConfig(dwell=100))
    assert decide(guard, Decision(4)).gamma == 4
    assert guard.decide(Scripted(always(1)), view_of(8, 1)).gamma == 1
    paced = guard_of(needs=replace(NEEDS, self_paced=True), config=GuardConfig(dwell=100))
    assert [decide(paced, Decision(gamma)).gamma for gamma in (4, 1, 2)] == [4, 1, 2]


def test_dwell_yields_to_a_shallower_drafter_and_drops_what_fits_another_gamma() -> None:
    guard = guard_of(config=GuardConfig(dwell=100))
    decide(guard, Decision(4, drafter="lm"))
    held = decide(guard, Decision(1, drafter="lm", verify=np.array([1, 1, 1])))
    assert (held.gamma, held.drafter, held.verify, held.reason) == (4, "lm", None, "dwell")
    assert decide(guard, Decision(1, drafter="ngram")).gamma == 1


@pytest.mark.parametrize("name", ["dwell", "patience"])
def test_config_refuses_negative_steps(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}=-1"):
        GuardConfig(**{name: -1})


class Extending(Scripted):
    def extend(self, progress: DraftProgress) -> Any:
        return self.needs["answer"]()

    def clone(self) -> Extending:
        return Extending(self.script, self.gammas, self.needs)


@pytest.mark.parametrize(
    ("answer", "expected", "clamped", "errors"),
    [
        (lambda: np.array([True, False, True]), [True, False, True], 0, 0),
        (lambda: [True, False, True], [True, False, True], 0, 0),
        (lambda: np.array([True]), [False] * 3, 1, 0),
        (lambda: np.array([1, 0, 1]), [False] * 3, 1, 0),
        (lambda: None, [False] * 3, 1, 0),
        (fail, [False] * 3, 0, 1),
    ],
)
def test_extend_that_fails_stops_drafting(
    answer: Callable[[], Any], expected: list[bool], clamped: int, errors: int
) -> None:
    guard = guard_of()
    more = guard.extend(Extending(needs={"answer": answer}), DraftProgress(0, np.arange(3), {}))
    assert more.tolist() == expected
    assert (guard.faults.clamped["extend"], guard.faults.errors["extend"]) == (clamped, errors)


@pytest.mark.parametrize(
    ("needs", "message"),
    [
        (None, "returned None"),
        (Needs({2: (0,)}), "bucket 2"),
        (Needs({}, trees=frozenset({TreeShape((-1,) * 4)})), r"parents=\(-1, -1, -1, -1\).*max_width=3"),
        (Needs({4: (0, 3)}), r"gamma \[0, 3\]"),
        (replace(NEEDS, drafters=frozenset({"medusa"})), "medusa"),
        (replace(NEEDS, signals=frozenset({"js"})), "js"),
        (replace(NEEDS, acceptances=frozenset({AcceptanceKind.FLY})), "fly"),
        (replace(NEEDS, stepwise=True), "stepwise"),
        (NEEDS, "allow_lossy=True"),
    ],
)
def test_needs_that_can_not_be_met_are_refused(needs: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        checked_needs(Scripted(), needs, CAPS, allow_lossy=False)


def test_needs_always_include_plain_decode() -> None:
    needs = checked_needs(Scripted(), Needs({4: (2,)}), CAPS, allow_lossy=False)
    assert needs.gammas == {1: (0,), 4: (0, 2), 8: (0,)}
    extending = checked_needs(Extending(), Needs({}, stepwise=True), CAPS, allow_lossy=False)
    assert extending.stepwise
