"""Made-up batches and reports, odd ones among them, to drive a policy without an engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from adaptive.check.asking import drafted
from adaptive.contract import (
    AcceptanceKind,
    Capabilities,
    Decision,
    DrafterCaps,
    Needs,
    Policy,
    StepReport,
    StepView,
    TreeLimits,
)
from adaptive.legal import Rules, Trimming, checked_needs
from adaptive.trimming import lawful

BARE = Capabilities(gammas=(0,), batch_buckets=(1, 4))
SMALL = Capabilities(gammas=(0, 1, 3), batch_buckets=(1, 2, 4, 8), drafters={"ngram": DrafterCaps("ngram", 3)})


class LinearCost:
    """A step costs a fixed part and a part per token."""

    def draft_s(self, batch: int, gamma: int, context_tokens: int) -> float:
        return gamma * (1e-3 + 1e-5 * batch)

    def verify_s(self, batch: int, verify_tokens: int, context_tokens: int) -> float:
        return 1e-2 + 5e-5 * verify_tokens + 1e-8 * context_tokens


WIDE = Capabilities(
    gammas=tuple(range(17)),
    batch_buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256, 512),
    drafters={
        "ngram": DrafterCaps("ngram", 16, signals=frozenset({"match_len"})),
        "eagle": DrafterCaps("eagle", 16, signals=frozenset({"top_prob", "entropy", "margin", "target_entropy", "js"})),
    },
    acceptances=frozenset(AcceptanceKind),
    ragged=True,
    verify_budget=True,
    stepwise=True,
    tree=TreeLimits(max_depth=16, max_width=8, max_nodes=64, dynamic=True),
    lag=2,
    cost=LinearCost(),
)
DELAYED = replace(WIDE, cost=None, lag=1, delay=1, ragged=False, tree=None)


def make_view(step: int, batch: int, lag: int, *, full: bool) -> StepView:
    """A read-only batch of `batch` rows; `full` fills in every optional field."""
    rng = np.random.default_rng([step, batch])
    rows = _fixed(np.sort(rng.choice(2 * batch, batch, replace=False)))
    view = StepView(
        step=step,
        known_step=step - 1 - lag,
        now=step * 0.01,
        num_decode=batch,
        rows=rows,
        context_lens=_fixed(rng.integers(1, 4000, batch)),
        emitted=_fixed(rng.integers(0, 400, batch)),
    )
    if not full:
        return view
    return replace(
        view,
        num_prefill_tokens=int(rng.integers(0, 512)),
        num_waiting=int(rng.integers(0, 9)),
        kv_free=float(rng.random()),
        elapsed=_fixed(rng.random(batch)),
        tpot_slo=_fixed(np.where(rng.random(batch) < 0.5, np.nan, 0.03)),
        slo_class=tuple("interactive" if place % 2 else None for place in range(batch)),
        greedy=_fixed(rng.random(batch) < 0.5),
        allow_lossy=_fixed(rng.random(batch) < 0.5),
        may_speculate=_fixed(rng.random(batch) < 0.9),
        match_len=_fixed(rng.integers(0, 12, batch)),
        stale_tokens={name: _fixed(rng.integers(0, 30, batch)) for name in ("ngram", "eagle")},
    )


def make_report(view: StepView, decision: Decision, needs: Needs) -> StepReport:
    """What might come of `decision`. By turns: usual, censored, untimed, all rows ended, no rows, drafting less."""
    rng = np.random.default_rng([view.step, decision.gamma])
    kind = view.step % 6
    rows = view.rows[:0] if kind == 4 else view.rows
    gamma = decision.gamma // 2 if kind == 5 else decision.gamma
    batch = len(rows)
    drafted = np.full(batch, gamma)
    verified = rng.integers(0, drafted + 1) if kind == 1 else drafted
    skill = 0.2 + 0.7 * (np.sin(view.step / 40) > 0)
    stood = np.minimum(verified, rng.geometric(1 - skill, batch) - 1)
    live = rng.random(batch) < (0.0 if kind == 3 else 0.9)
    timed = kind not in (2, 4)
    return StepReport(
        step=view.step,
        gamma=gamma,
        rows=rows,
        live=_fixed(live),
        drafted=_fixed(drafted),
        verified=_fixed(verified),
        accepted=_fixed(stood),
        emitted=_fixed(np.where(live, stood + 1, 0)),
        step_s=0.01 + 0.001 * gamma if timed else float("nan"),
        draft_s=0.001 * gamma if timed else float("nan"),
        verify_s=0.01 if timed else float("nan"),
        signals={signal: _fixed(rng.random((batch, gamma))) for signal in needs.signals} if kind != 2 else None,
    )


@dataclass
class Drive:
    """Binds `policy` and leads it through steps as a controller would, reports `caps.lag` steps late."""

    policy: Policy
    caps: Capabilities
    illegal: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.needs = checked_needs(self.policy, self.policy.bind(self.caps), self.caps, allow_lossy=True)
        self._rules = Rules(self.caps, self.needs, allow_lossy=True)

    def run(self, batches: Sequence[int], *, full: bool, forgetful: bool = True, trims: bool = False) -> list[Decision]:
        """One step for each of `batches`; the decisions made. `trims`: the policy is also asked what to trim."""
        decisions: list[Decision] = []
        views: list[StepView] = []
        late = self.caps.lag + self.caps.delay
        for step, batch in enumerate(batches):
            views.append(make_view(step, batch, late, full=full))
            decisions.append(self.policy.decide(views[step]))
            legal = self._rules.mend(decisions[step], batch, self._note)
            if legal is None:
                break
            if trims and legal.gamma and legal.tree is None:
                self._trim(views[step], legal)
            done = step - late
            if done >= 0 and step % 7 != 3:
                view, decision = views[done], decisions[done]
                self.policy.learn(view, decision, make_report(view, decision, self.needs))
            if forgetful and step % 5 == 4:
                self.policy.forget(views[max(done, 0)].rows[::3].tolist())
        return decisions

    def _trim(self, view: StepView, decision: Decision) -> None:
        progress = drafted(self.policy, self.needs, view, decision.gamma)
        answer = cast(Trimming, self.policy).trim(progress)
        verify = self._rules.verify(answer, decision.gamma, len(view.rows), self._note)
        lawful(verify, decision, view, progress, self._note)

    def _note(self, kind: str, message: str) -> None:
        self.illegal.append(message)


def same(one: object, other: object) -> bool:
    """Equality of decisions, numpy arrays inside included."""
    return bool(_frozen(one) == _frozen(other))


def _frozen(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.dtype.kind, value.shape, value.tobytes()
    if isinstance(value, dict):
        return {key: _frozen(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_frozen(item) for item in value]
    fields: tuple[str, ...] = getattr(value, "__slots__", ())
    return [_frozen(getattr(value, name)) for name in fields] if fields else value


def _fixed(array: NDArray[Any]) -> NDArray[Any]:
    array.setflags(write=False)
    return array
