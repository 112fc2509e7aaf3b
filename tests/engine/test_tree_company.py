"""Trees beside the rest of the engine: the n-gram index, reused prefixes, levers, and drafters that fill none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from adaptive import AdaptiveController
from adaptive.contract import Decision, StepView, TreeShape
from adaptive.requests import Request, Sampling
from policies import Fixed
from tests.engine.greedy import PROMPTS
from tests.engine.heads import HeadSpec
from tests.engine.steering import Steering
from tests.engine.test_heads import EACH_KIND, SPECS, engine_of
from tests.engine.test_index_upkeep import SPARSE, serve_checked
from tests.engine.test_model_drafter import ITSELF, NEAR, check_books
from tests.engine.test_prefix_reuse import SYSTEM, conversation
from tests.engine.tiny import (
    TINY,
    Cycling,
    DraftModel,
    Shape,
    random_weights,
    reference_greedy,
    run_all,
    tiny_engine,
    tokens_of,
)

BINARY = (-1, -1, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5)
RAGGED = (-1, 0, -1, 1, 0, 2, 3, 3)
DEEP = (-1, 0, 1, 2, 3, -1)
NODES = len(BINARY)
DRAFTS = pytest.mark.parametrize("draft", [None, NEAR, ITSELF], ids=["ngram", "near", "itself"])


@pytest.mark.parametrize("shapes", [(DEEP,), (BINARY, 0, 0, RAGGED), (DEEP, 3, 0, 5, BINARY)], ids=str)
@pytest.mark.parametrize("backend", ["eager", "late"])
def test_the_index_holds_what_paths_emit(
    backend: str, shapes: Sequence[Shape], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.drafters.ngram_index.cells_for", lambda capacity: 1 << 14)
    engine = tiny_engine(max_batch=2, backend=backend, max_tree_nodes=NODES)
    controller = Cycling(shapes)
    engine.attach(controller)
    assert serve_checked(engine, SPARSE) > 8
    assert max(int(report.accepted.max()) for report in controller.reports) >= 3


@DRAFTS
@pytest.mark.parametrize("shapes", [(BINARY,), (RAGGED, 0, 3, DEEP)], ids=["always", "mixed"])
def test_what_a_path_left_is_reused(draft: DraftModel | None, shapes: Sequence[Shape]) -> None:
    """Keys and values of other branches, or of a path not moved, would change the answers that begin with them."""
    engine = tiny_engine(draft_model=draft, max_tree_nodes=NODES)
    controller = Cycling(shapes)
    engine.attach(controller)
    answers, stats = conversation(engine, Sampling(max_tokens=14))
    prompt = list(SYSTEM)
    for turn, answer in enumerate(answers):
        assert answer == reference_greedy(TINY, random_weights(TINY), prompt, 14)
        prompt += [*answer, turn, 7]
    assert [one.cached_prompt_tokens for one in stats] == [0, *(one.prompt_tokens - 3 for one in stats[1:])]
    if draft is ITSELF:  # its own cache was copied, too: a hole in it would show
        for view, report in zip(controller.views, controller.reports, strict=True):
            assert report.accepted.tolist() == (14 - view.emitted - 1).clip(max=report.gamma).tolist()


@pytest.mark.parametrize("draft", [None, NEAR], ids=["ngram", "model"])
def test_levers_do_nothing_to_a_tree(draft: DraftModel | None) -> None:
    """An engine without a guard before it: every second step is a tree, with levers drawn at random beside it."""
    engine = tiny_engine(draft_model=draft, max_batch=3, max_tree_nodes=NODES)
    controller = Steering((RAGGED, 3), stepwise=True)
    engine.attach(controller)
    requests = [Request(prompt, Sampling(max_tokens=30), id=str(place)) for place, prompt in enumerate(PROMPTS)]
    outputs = run_all(engine, requests, per_step=1)
    for place, prompt in enumerate(PROMPTS):
        assert tokens_of(outputs[str(place)]) == reference_greedy(TINY, random_weights(TINY), prompt, 30)
    trees = [place for place, decision in enumerate(controller.decisions) if decision.tree is not None]
    assert any(controller.decisions[place].verify is not None for place in trees)
    for place in trees:
        report = controller.reports[place]
        assert report.verified.tolist() == report.drafted.tolist()
        assert report.signals is None
        assert not controller.asked[place], "nobody is asked between a tree's levels"
    assert any(controller.reports[place].verified.max() == len(RAGGED) for place in trees)
    chains = [report for place, report in enumerate(controller.reports) if place not in trees]
    assert any((report.verified < report.drafted).any() for report in chains), "the levers work on chains"


@pytest.mark.parametrize("shapes", [(BINARY,), (RAGGED, 0, 3, DEEP, 0, 0)], ids=["always", "mixed"])
def test_a_small_model_of_some_tokens_fills_trees(shapes: Sequence[Shape]) -> None:
    """Its tokens are numbered within its draft vocabulary."""
    spec = SPECS["a small model"]
    engine = engine_of(spec, max_batch=3, max_tree_nodes=NODES)
    engine.attach(Cycling(shapes))
    waiting = [Request(prompt, Sampling(max_tokens=25), id=str(place)) for place, prompt in enumerate(PROMPTS)]
    got: dict[str, list[int]] = {}
    assert spec.ids is not None
    while waiting or not engine.scheduler.idle:
        if waiting:
            engine.submit(waiting.pop(0))
        for output in engine.step():
            got.setdefault(output.request_id, []).extend(output.tokens)
        check_books(engine)
    trees = engine.runner._step.trees
    assert trees is not None
    assert set(trees.tokens_RT[:3].flatten().tolist()) <= {*spec.ids, 0}  # 0 where no tree of a row's reached
    assert len(set(trees.tokens_RT[:3].flatten().tolist())) > 2
    for place, prompt in enumerate(PROMPTS):
        assert got[str(place)] == reference_greedy(spec.model, random_weights(spec.model), prompt, 25)


class Hopeful(Fixed):
    """Decides a tree whether or not there are any."""

    def decide(self, view: StepView) -> Decision:
        return replace(super().decide(view), tree=TreeShape((-1, -1, 0)))


@EACH_KIND
def test_trained_heads_offer_no_trees_and_refuse_them(spec: HeadSpec) -> None:
    engine = engine_of(spec, max_tree_nodes=NODES)
    assert engine.capabilities().tree is None
    assert engine.runner._step.trees is None
    controller = AdaptiveController(engine, Hopeful(2))
    answer = controller.generate([PROMPTS[0]], Sampling(max_tokens=20))[0]
    assert list(answer.tokens) == reference_greedy(spec.model, random_weights(spec.model), PROMPTS[0], 20)
    stats = controller.stats()
    assert set(stats.clamped) == {"tree"}
    assert stats.policy_errors == {}
    assert stats.drafted > 0, "a chain is drafted in its place"


@EACH_KIND
def test_trained_heads_without_a_guard_draft_chains(spec: HeadSpec) -> None:
    engine = engine_of(spec, max_tree_nodes=NODES)
    controller = Cycling([(-1, -1, 0)])
    engine.attach(controller)
    run_all(engine, [Request(PROMPTS[0], Sampling(max_tokens=20))])
    assert {report.gamma for report in controller.reports} == {2}
    assert max(int(report.verified.max()) for report in controller.reports) == 2


def test_trained_heads_take_no_memory_for_trees() -> None:
    for name in ("eagle1", "medusa", "a small model"):
        engines = [engine_of(SPECS[name], max_tree_nodes=nodes) for nodes in (NODES, 0)]
        rows = [engine.runner._step.logits_NV.shape[0] for engine in engines]
        assert (rows[0] == rows[1]) == (name != "a small model")
