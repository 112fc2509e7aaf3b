"""Decoding with trees: no greedy answer changes, no probability of a sampled one, and caches stay whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from adaptive import AdaptiveController
from adaptive.requests import Request, Sampling
from engine import SyntheticAcceptance
from engine.core import LLMEngine
from engine.tree import static_tree
from policies import FixedTree
from tests.engine.greedy import CONTEXT, PROMPTS, Arrival, check_course, check_greedy, plain_answer
from tests.engine.test_model_drafter import FAR, ITSELF, NEAR, check_books, model_drafter
from tests.engine.test_tree import parent_lists
from tests.engine.tiny import (
    TINY,
    Cycling,
    DraftModel,
    Shape,
    random_weights,
    run_all,
    tiny_engine,
    tokens_of,
)

CHAIN = (-1, 0, 1)
WIDE = (-1, -1, -1, -1)
BINARY = (-1, -1, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5)
RAGGED = (-1, 0, -1, 1, 0, 2, 3, 3)
TREES = {"chain": CHAIN, "wide": WIDE, "binary": BINARY, "ragged": RAGGED}
MIXED: tuple[Shape, ...] = (BINARY, 0, 3, RAGGED, WIDE, 0, 0, CHAIN, 5, RAGGED, 1)
NODES = len(BINARY)
DRAFTERS = {"near": NEAR, "far": FAR, "itself": ITSELF, "ngram": None}


def plain(prompt: Sequence[int], count: int) -> list[int]:
    return plain_answer(TINY, prompt, count)


def tree_engine(
    draft: DraftModel | None, batch: int = 3, backend: str = "eager", prefill_chunk: int = 8, nodes: int = NODES
) -> LLMEngine:
    return tiny_engine(
        max_batch=batch, draft_model=draft, backend=backend, prefill_chunk=prefill_chunk, max_tree_nodes=nodes
    )


# --- greedy ----------------------------------------------------------------------------------------------------------


def check_shapes(engine: LLMEngine, shapes: Sequence[Shape]) -> Cycling:
    """One request opted out: its row has no tree."""
    controller = Cycling(shapes)
    engine.attach(controller)
    check_greedy(engine, opted_out=[3])
    return controller


@pytest.mark.parametrize("draft", DRAFTERS.values(), ids=DRAFTERS)
@pytest.mark.parametrize("shape", TREES.values(), ids=TREES)
def test_greedy_equals_plain_decode(shape: tuple[int, ...], draft: DraftModel | None) -> None:
    controller = check_shapes(tree_engine(draft), [shape])
    depth = static_tree(shape, 99).depth
    assert {report.gamma for report in controller.reports} == {depth}
    assert max(int(report.verified.max()) for report in controller.reports) == len(shape)
    assert max(int(report.accepted.max()) for report in controller.reports) <= depth


@pytest.mark.parametrize("batch", [1, 3, 8])
@pytest.mark.parametrize("draft", DRAFTERS.values(), ids=DRAFTERS)
def test_greedy_equals_plain_decode_while_the_shape_changes(draft: DraftModel | None, batch: int) -> None:
    check_shapes(tree_engine(draft, batch), MIXED)


@pytest.mark.parametrize("backend", ["replay", "late"])
@pytest.mark.parametrize("draft", [NEAR, None], ids=["near", "ngram"])
def test_greedy_equals_plain_decode_on_other_backends(draft: DraftModel | None, backend: str) -> None:
    check_shapes(tree_engine(draft, backend=backend), MIXED)


@settings(max_examples=15, deadline=None)
@given(
    draft=st.sampled_from([*DRAFTERS.values()]),
    shapes=st.lists(st.integers(0, 5) | parent_lists(), min_size=1, max_size=5),
    arrivals=st.lists(st.tuples(st.integers(0, 7), st.integers(1, 30), st.integers(0, 5)), min_size=1, max_size=8),
)
def test_greedy_survives_any_course_of_shapes_arrivals_and_cancels(
    draft: DraftModel | None, shapes: list[Shape], arrivals: list[Arrival]
) -> None:
    engine = tree_engine(draft)
    engine.attach(Cycling([shape if isinstance(shape, int) else static_tree(shape, 5).parents for shape in shapes]))
    if draft is None:
        check_course(engine, arrivals)
    else:
        check_course(engine, arrivals, check_books)


# --- what a tree gains, and a chain as a tree ------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("draft", [NEAR, FAR, None], ids=["near", "far", "ngram"])
def test_a_chain_as_a_tree_is_the_chain(draft: DraftModel | None, temperature: float) -> None:
    """Token for token and step for step; a draft model draws for its chains and not for its trees, unless greedy."""
    if draft is not None and temperature:
        return
    courses = []
    for shapes in ((3, 0, 5, 1), (CHAIN, 0, (-1, 0, 1, 2, 3), (-1,))):
        engine = tree_engine(draft)
        controller = Cycling(shapes)
        engine.attach(controller)
        requests = [
            Request(prompt, Sampling(30, temperature, seed=place), id=str(place))
            for place, prompt in enumerate(PROMPTS)
        ]
        outputs = run_all(engine, requests, per_step=1)
        steps = [(r.gamma, r.rows.tolist(), r.verified.tolist(), r.accepted.tolist()) for r in controller.reports]
        courses.append(({name: tokens_of(output) for name, output in outputs.items()}, steps))
    assert courses[0] == courses[1]


@pytest.mark.parametrize("shapes", [*zip(TREES.values()), MIXED], ids=[*TREES, "changing"])
def test_with_itself_as_drafter_the_first_path_stands(shapes: tuple[Shape, ...]) -> None:
    """A hole in its cache, or what another branch left there, would show."""
    engine = tree_engine(ITSELF)
    controller = Cycling(shapes)
    engine.attach(controller)
    outputs = run_all(engine, [Request(p, Sampling(max_tokens=40), id=str(i)) for i, p in enumerate(PROMPTS)], 1)
    for place, prompt in enumerate(PROMPTS):
        assert tokens_of(outputs[str(place)]) == plain(prompt, 40)
    for view, report in zip(controller.views, controller.reports, strict=True):
        room = 40 - view.emitted - 1
        assert report.accepted.tolist() == room.clip(max=report.gamma).tolist()


def accepted_by_length(draft: DraftModel | None, shape: Shape) -> dict[int, int]:
    engine = tree_engine(draft, batch=1)
    controller = Cycling([shape])
    engine.attach(controller)
    run_all(engine, [Request([1, 2, 3, 1, 2], Sampling(max_tokens=80))])
    pairs = zip(controller.views, controller.reports, strict=True)
    return {int(view.context_lens[0]): int(report.accepted[0]) for view, report in pairs}


@pytest.mark.parametrize("draft", [NEAR, FAR, None], ids=["near", "far", "ngram"])
def test_a_tree_that_holds_the_chain_accepts_as_much_and_more(draft: DraftModel | None) -> None:
    chain, binary = accepted_by_length(draft, 3), accepted_by_length(draft, BINARY)
    shared = chain.keys() & binary.keys()
    assert len(shared) > 5
    assert all(chain[length] <= binary[length] for length in shared)
    assert len(binary) < len(chain), "fewer steps for the same text"


# --- caches ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("draft", [NEAR, ITSELF, None], ids=["near", "itself", "ngram"])
def test_the_cache_is_what_a_prefill_writes(draft: DraftModel | None) -> None:
    prompt = [1, 2, 3, 1, 2]
    engine = tree_engine(draft, batch=1)
    controller = Cycling((BINARY, RAGGED, 0, WIDE))
    engine.attach(controller)
    engine.submit(Request(prompt, Sampling(max_tokens=80)))
    tokens = list(prompt)
    for _ in range(14):
        tokens += tokens_of(engine.step())
    assert sum(int(report.accepted.sum()) for report in controller.reports) > 5
    fresh = tree_engine(draft, batch=1, prefill_chunk=96)
    fresh.attach(Cycling((0, 1)))
    fresh.submit(Request(tokens, Sampling(max_tokens=10)))
    fresh.step()
    same_cache(engine.kv.keys + engine.kv.values, fresh.kv.keys + fresh.kv.values, len(tokens) - 1)
    if draft is not None:
        fresh.step()  # catches up
        cached = int(engine.state.cached_R[0])
        assert cached >= len(tokens) - 2
        mine, theirs = model_drafter(engine).kv, model_drafter(fresh).kv
        same_cache(mine.keys + mine.values, theirs.keys + theirs.values, cached)


def same_cache(mine: list[Tensor], theirs: list[Tensor], length: int) -> None:
    for half, other in zip(mine, theirs, strict=True):
        assert half[:, :length].abs().amin(dim=(0, 2)).gt(0).any()
        torch.testing.assert_close(half[:, :length], other[:, :length], atol=1e-11, rtol=0)


# --- limits ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("draft", [ITSELF, FAR, None], ids=["itself", "far", "ngram"])
def test_rows_fill_their_context_to_the_last_token(draft: DraftModel | None) -> None:
    """Near the end there is no slot for all nodes; at the end none for any."""
    engine = tree_engine(draft, batch=2)
    controller = Cycling([BINARY])
    engine.attach(controller)
    prompts = [[6] * 20, [1, 2, 3, 1, 2, 3, 1]]
    outputs = run_all(engine, [Request(p, Sampling(max_tokens=500), id=str(i)) for i, p in enumerate(prompts)])
    for place, prompt in enumerate(prompts):
        assert tokens_of(outputs[str(place)]) == plain(prompt, CONTEXT)
    for view, report in zip(controller.views, controller.reports, strict=True):
        assert (view.context_lens + report.verified <= CONTEXT).all()
    assert any(0 < count < NODES for report in controller.reports for count in report.verified.tolist())


@pytest.mark.parametrize("limit", [5, 12, 30])
def test_a_row_beyond_the_drafters_context_stops_drafting_and_goes_on(limit: int) -> None:
    engine = tree_engine(DraftModel(replace(TINY, context_len=limit), random_weights(TINY)), batch=2)
    controller = Cycling((BINARY, RAGGED, 0, 3))
    engine.attach(controller)
    prompts = [[1, 2, 3], [6] * 20]
    outputs = run_all(engine, [Request(p, Sampling(max_tokens=50), id=str(i)) for i, p in enumerate(prompts)])
    for place, prompt in enumerate(prompts):
        assert tokens_of(outputs[str(place)]) == plain(prompt, 50)
    for view, report in zip(controller.views, controller.reports, strict=True):
        room = view.context_lens + report.verified - 1
        assert (room[report.verified > 0] <= limit).all()


def test_budgets_cut_the_tree_level_by_level() -> None:
    engine = tree_engine(ITSELF, batch=4)
    controller = Cycling([BINARY])
    engine.attach(controller)
    run_all(engine, [Request([1, 2], Sampling(max_tokens=n), id=str(n)) for n in (1, 2, 3, 4)])
    first = controller.reports[0]
    assert first.verified.tolist() == [0, 2, 6, 14]
    assert first.accepted.tolist() == [0, 1, 2, 3]
    assert first.emitted.tolist() == [1, 2, 3, 4]


def test_rows_that_opt_out_verify_their_root() -> None:
    engine = tree_engine(ITSELF, batch=2)
    controller = Cycling([RAGGED])
    engine.attach(controller)
    run_all(engine, [Request([1, 2], Sampling(max_tokens=9), id=str(n), speculation=n == 0) for n in (0, 1)])
    assert not any(report.verified[report.rows == 1].any() for report in controller.reports)


def test_statistics_count_by_depth() -> None:
    engine = tree_engine(ITSELF, batch=1)
    engine.attach(Cycling([BINARY]))
    outputs = run_all(engine, [Request([1, 2], Sampling(max_tokens=8), id="one")])
    stats = outputs["one"][-1].stats
    assert stats is not None
    assert stats.gamma_histogram == {3: 2}
    assert stats.drafted_by_position == (4, 8, 16)
    assert stats.accepted_by_position == (2, 2, 2)
    assert stats.drafted == 28


def test_a_smaller_gamma_than_the_depth_cuts_the_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = tree_engine(ITSELF, batch=1)
    controller = Cycling([BINARY])
    monkeypatch.setattr(controller, "plan", lambda view, plan=controller.plan: replace(plan(view), gamma=2))
    engine.attach(controller)
    run_all(engine, [Request([1, 2], Sampling(max_tokens=30))])
    assert {report.gamma for report in controller.reports} == {2}
    assert int(controller.reports[0].verified[0]) == 6


def test_trees_are_offered_only_where_asked_for() -> None:
    assert tiny_engine(draft_model=NEAR).capabilities().tree is None
    assert tiny_engine(draft=False, max_tree_nodes=8).capabilities().tree is None
    limits = tiny_engine(draft_model=NEAR, max_gamma=4, max_tree_nodes=9).capabilities().tree
    assert limits is not None
    assert (limits.max_depth, limits.max_width, limits.max_nodes, limits.dynamic) == (4, 9, 9, False)


@pytest.mark.parametrize("draft", [NEAR, None], ids=["model", "ngram"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_synthetic_acceptance_goes_down_a_tree(draft: DraftModel | None, temperature: float) -> None:
    engine = tiny_engine(
        draft_model=draft, max_tree_nodes=NODES, synthetic=SyntheticAcceptance(rates=[1.0, 1.0, 0.0, 0.0, 0.0])
    )
    controller = Cycling((BINARY, 3, RAGGED))
    engine.attach(controller)
    run_all(engine, [Request([1, 2, 3], Sampling(31, temperature, seed=1))])
    assert {int(report.accepted[0]) for report in controller.reports[:-1]} == {2}


# --- beside others, under a controller -------------------------------------------------------------------------------


def test_a_greedy_row_beside_sampled_ones_gives_its_plain_tokens() -> None:
    engine = tree_engine(NEAR)
    engine.attach(Cycling(MIXED))
    sampled = [Request([4, 4, 5], Sampling(25, 1.5, seed=1)), Request([7], Sampling(25, 0.7, top_k=3, seed=2))]
    outputs = run_all(engine, [*sampled, Request([1, 2, 3, 1, 2], Sampling(max_tokens=25), id="greedy")])
    assert tokens_of(outputs["greedy"]) == plain([1, 2, 3, 1, 2], 25)


@pytest.mark.parametrize("draft", [NEAR, None], ids=["model", "ngram"])
def test_a_policy_with_a_tree_has_it_prepared(draft: DraftModel | None) -> None:
    engine = tree_engine(draft, batch=2, backend="replay", nodes=4)
    controller = AdaptiveController(engine, policy=FixedTree.branching(2, 1))
    before = set(engine.runner._bundles)
    assert {key.tree for key in before} == {None, static_tree((-1, -1, 0, 1), 2).key}
    answers = controller.generate([[1, 2, 3, 1, 2], [4]], Sampling(max_tokens=20))
    assert [list(answer.tokens) for answer in answers] == [plain([1, 2, 3, 1, 2], 20), plain([4], 20)]
    assert set(engine.runner._bundles) == before, "nothing is recorded while serving"
    assert not controller.stats().clamped
    assert not controller.stats().policy_errors


def test_a_policy_with_a_tree_is_refused_where_there_are_none() -> None:
    with pytest.raises(ValueError, match="give it max_tree_nodes"):
        AdaptiveController(tiny_engine(draft_model=NEAR), policy=FixedTree.branching(2, 1))
