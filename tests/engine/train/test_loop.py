from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.train import loop
from engine.train.build import METHODS, build_drafter
from engine.train.loop import Look, Plan, Training
from tests.engine.train.tiny_school import CONFIG, CONTEXT, random_documents, tiny_drafter, tiny_school, weights

PLAN = Plan(seconds=100, batch_tokens=512, rate=5e-3, look_s=10, depth=3)


class Clock:
    """Time that passes by the same amount at every look at it."""

    def __init__(self, per_look: float) -> None:
        self.now, self.per_look = 0.0, per_look

    def __call__(self) -> float:
        self.now += self.per_look
        return self.now


def training(methods: tuple[str, ...], looks: list[Look], plan: Plan = PLAN) -> Training:
    documents = random_documents(24, 40)
    learnt, held = ([one for one in documents if one.held_out == kind] for kind in (False, True))
    drafters = [tiny_drafter(method, torch.float32) for method in methods]
    return Training(tiny_school(torch.float32), drafters, plan, learnt, held, looks.append)


@pytest.mark.parametrize("method", METHODS)
def test_the_loss_falls(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "monotonic", Clock(0.5))
    looks: list[Look] = []
    course = training((method,), looks)
    course.run()
    losses = [look.loss[method] for look in looks[1:]]
    assert losses[-1] < 0.95 * losses[0]
    assert course.step > 40


def test_drafters_learn_side_by_side_what_they_learn_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    courses = {}
    for methods in (("medusa", "eagle3"), ("medusa",)):
        monkeypatch.setattr(loop, "monotonic", Clock(2.0))
        courses[methods] = training(methods, [])
        courses[methods].run()
    together, alone = (course.pupils[0].drafter.state_dict() for course in courses.values())
    for name, tensor in alone.items():
        torch.testing.assert_close(together[name], tensor)


def test_a_course_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "monotonic", Clock(3.0))
    looks: list[Look] = []
    first = training(("medusa",), looks)
    first.run(tmp_path)
    second = training(("medusa",), [], Plan(seconds=200, batch_tokens=512, look_s=10, depth=3))
    second.resume(tmp_path)
    assert (second.step, second.tokens) == (first.step, first.tokens)
    second.run(tmp_path)
    assert second.step > first.step
    assert second.history[-1].elapsed_s == pytest.approx(200, abs=5)
    assert second.pupils[0].best_tau >= first.pupils[0].best_tau


def test_resuming_refuses_what_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "monotonic", Clock(20.0))
    with pytest.raises(ValueError, match="start without --resume"):
        training(("mtp",), []).resume(tmp_path)
    training(("medusa",), []).run(tmp_path)
    with pytest.raises(ValueError, match="is of medusa, not of mtp"):
        training(("mtp",), []).resume(tmp_path)


def test_it_ends_early_when_nothing_improves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "monotonic", Clock(1.0))
    looks: list[Look] = []
    plan = Plan(seconds=1000, batch_tokens=512, rate=1e-9, look_s=10, depth=3, patience=3)
    training(("medusa",), looks, plan).run()
    assert 500 <= looks[-1].elapsed_s < 600


def test_a_step_with_broken_gradients_is_left_out() -> None:
    course = training(("mtp",), [])
    drafter = course.pupils[0].drafter
    before = {name: tensor.clone() for name, tensor in drafter.state_dict().items()}
    course.school.head_SE = course.school.head_SE * float("nan")
    course._teach(next(course._batches()), 0.5)
    for name, tensor in drafter.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_the_rate_rises_and_falls() -> None:
    course = training(("mtp",), [], Plan(seconds=1, batch_tokens=64, rate=1.0, warm_up=0.1))
    rates = [course._rate(share) for share in (0.0, 0.05, 0.1, 0.5, 1.0)]
    assert rates[0] < rates[1] < rates[2] > rates[3] > rates[4] > 0


def test_there_must_be_text_of_both_kinds() -> None:
    documents = random_documents(2, 20)
    for learnt, held, name in (([], documents, "train on"), (documents, [], "measure on")):
        with pytest.raises(ValueError, match=name):
            Training(tiny_school(torch.float32), [tiny_drafter("mtp")], PLAN, learnt, held, [].append)  # type: ignore[arg-type]


def test_unknown_methods_are_named() -> None:
    with pytest.raises(ValueError, match="'eagle9' is unknown: choose from eagle1"):
        build_drafter("eagle9", CONFIG, weights(), CONTEXT)
