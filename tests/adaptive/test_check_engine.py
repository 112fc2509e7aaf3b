"""`check_engine` passes what is right and, one mutant each, finds what is wrong."""

from __future__ import annotations

import runpy
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from adaptive.check import ToyEngine, check_engine
from adaptive.contract import (
    Capabilities,
    Controller,
    Engine,
    StepReport,
)
from adaptive.requests import Output, Request
from tests.rules.project import ROOT

EXAMPLE = ROOT / "examples" / "own_engine.py"


def own_engine() -> Engine:
    engine: Engine = runpy.run_path(str(EXAMPLE))["OwnEngine"]()
    return engine


@pytest.mark.parametrize(
    "engine",
    [
        ToyEngine,
        ToyEngine(),
        lambda: ToyEngine(lag=2),
        lambda: ToyEngine(lag=1, delay=1),
        lambda: ToyEngine(gammas=(0,), max_batch=1),
        own_engine,
    ],
    ids=["class", "instance", "lagging", "delayed", "plain", "example"],
)
def test_right_engines_pass(engine: Engine | Callable[[], Engine]) -> None:
    assert "stays greedy" in check_engine(engine)


def test_the_example_prints_where_gamma_went(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    out = capsys.readouterr().out
    assert "400 tokens" in out
    assert "τ = " in out
    assert out.count("γ = ") > 2


class Reporting(ToyEngine):
    """Changes reports on their way."""

    change: Callable[[StepReport], StepReport]

    def _deliver(self, controller: Controller, newest: int) -> None:
        self._reports = type(self._reports)(self.change(report) for report in self._reports)
        super()._deliver(controller, newest)


class OverDrafting(Reporting):
    def change(self, report: StepReport) -> StepReport:
        return replace(report, drafted=report.drafted + 1)


class OverAccepting(Reporting):
    def change(self, report: StepReport) -> StepReport:
        return replace(report, verified=report.verified - 1)


class OverEmitting(Reporting):
    def change(self, report: StepReport) -> StepReport:
        return replace(report, emitted=report.emitted + 1)


class Misnumbering(Reporting):
    def change(self, report: StepReport) -> StepReport:
        return replace(report, step=report.step - 1)


class Reshaping(Reporting):
    def change(self, report: StepReport) -> StepReport:
        return replace(report, accepted=report.accepted[:1].repeat(2 * len(report.rows)))


class Deeper(ToyEngine):
    """Drafts one more than it is told."""

    def _run(self, gamma: int) -> list[Output]:
        return super()._run(gamma + 1)


class Longer(ToyEngine):
    """Goes past the budget."""

    def submit(self, request: Request) -> str:
        sampling = replace(request.sampling, max_tokens=request.sampling.max_tokens + 1)
        return super().submit(replace(request, sampling=sampling))


class Biased(ToyEngine):
    """Another token when drafting."""

    def _run(self, gamma: int) -> list[Output]:
        for running in self._rows.values():
            running.tokens[-1] += gamma > 2
        return super()._run(gamma)


class Deaf(ToyEngine):
    """Does not hear that a request opts out."""

    def submit(self, request: Request) -> str:
        return super().submit(replace(request, speculation=True))


class Stubborn(ToyEngine):
    """Loses cancelled requests."""

    def step(self) -> Sequence[Output]:
        return [output for output in super().step() if output.finish_reason != "cancelled"]


class Hasty(ToyEngine):
    """Reuses a row before it is forgotten."""

    def _end(self, row: int) -> None:
        super()._end(row)
        self._ended.pop()
        self._free.append(row)


class Early(ToyEngine):
    """Forgets a row before its last report."""

    def _end(self, row: int) -> None:
        super()._end(row)
        assert self._controller is not None
        self._controller.forget([row])


class Amnesiac(ToyEngine):
    """Never says that a row has ended."""

    def attach(self, controller: Controller) -> None:
        super().attach(controller)
        controller.forget = lambda rows: None  # type: ignore[method-assign]


class Later(ToyEngine):
    """Reports later than it declares."""

    def capabilities(self) -> Capabilities:
        return replace(super().capabilities(), lag=1)

    def attach(self, controller: Controller) -> None:
        controller.attach(self.capabilities())
        self._controller = controller


class Restless(ToyEngine):
    """Plans when there is nothing to do."""

    def step(self) -> Sequence[Output]:
        if not self._rows and not self._waiting and self._controller is not None:
            self._controller.plan(self._view())
        return super().step()


class Unattached(ToyEngine):
    """Never asks what the policy needs."""

    def attach(self, controller: Controller) -> None:
        self._controller = controller


class Boastful(ToyEngine):
    """Offers more than its drafter can."""

    def capabilities(self) -> Capabilities:
        return replace(self._caps, gammas=(0, 99))


@pytest.mark.parametrize(
    ("engine", "complaint"),
    [
        (OverDrafting, "breaks 0 ≤ accepted"),
        (OverAccepting, "breaks 0 ≤ accepted"),
        (OverEmitting, "1 to accepted"),
        (OverEmitting, "accounts for tokens"),
        (Misnumbering, "was not planned"),
        (Reshaping, "not one element for each"),
        (Deeper, "planned was"),
        (Deeper, "drafted with gamma=0"),
        (Longer, "max_tokens=1 gave 2 tokens"),
        (Biased, "not those of plain decode"),
        (Biased, "policy is swapped"),
        (Deaf, "speculation=False"),
        (Stubborn, "had no last output"),
        (Hasty, "reuses row"),
        (lambda: Early(lag=2), "forgotten before it"),
        (Amnesiac, "never forgotten"),
        (lambda: Later(lag=3), "steps late"),
        (Restless, "idle step called plan"),
        (Unattached, "attaches first"),
        (Boastful, "gammas go to 99"),
    ],
)
def test_wrong_engines_are_found_out(
    engine: Callable[[], Engine], complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("adaptive.check.running.MAX_STEPS", 100)
    with pytest.raises(AssertionError) as failure:
        check_engine(engine)
    assert complaint in str(failure.value)
