"""`AdaptiveController`: a policy at the wheel of an engine, and the object a user holds."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import NamedTuple, TypedDict, Unpack

from adaptive.contract import (
    BoolArray,
    Capabilities,
    Decision,
    DraftProgress,
    Engine,
    IntArray,
    Needs,
    Policy,
    StepReport,
    StepView,
)
from adaptive.delivery import Delivery, completion
from adaptive.guard import OFF, Guard, GuardConfig
from adaptive.legal import checked_needs
from adaptive.prompts import as_prompts, as_samplings
from adaptive.registry import get_policy
from adaptive.requests import Completion, Output, Prompt, Request, RequestId, Sampling
from adaptive.slo import NO_LIMITS, Slo, SloLedger
from adaptive.stats import ControllerStats, Tally, reached, total

SPARE_DECISIONS = 8  # steps an engine may leave unreported before their decisions are dropped


class RequestOptions(TypedDict, total=False):
    """What a request may ask for besides its prompt and sampling; see `adaptive.requests.Request`."""

    tpot_slo_ms: float | None
    slo_class: str | None
    allow_lossy: bool
    speculation: bool
    priority: int


class _Seat(NamedTuple):
    policy: Policy
    name: str
    needs: Needs


class _Open(NamedTuple):
    """A decision whose report is still to come; `policy` is None where the kill switch decided."""

    view: StepView
    decision: Decision
    policy: Policy | None


class AdaptiveController:
    """Runs `engine` with γ chosen by `policy`: an object, or a name such as "ema" or "fixed:3" (`list_policies()`).

    It answers the engine's calls (`attach`, `plan`, `extend`, `trim`, `report`, `forget`) and serves the user's
    (`generate`, `stream`, or `submit` and `step`), all from one thread. `allow_lossy` is the operator's consent;
    without it requests and policies that ask for lossy acceptance are refused. `slo` gives requests without a limit of
    their own that of their class.

    `clock` (seconds) measures the controller's own cost.
    """

    def __init__(
        self,
        engine: Engine,
        policy: Policy | str = "ema",
        *,
        guard: GuardConfig = GuardConfig(),  # noqa: B008 - frozen
        slo: Slo = NO_LIMITS,
        allow_lossy: bool = False,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.engine = engine
        self.allow_lossy = allow_lossy
        self.slo = slo
        self._ledger = SloLedger()
        self._clock = clock
        self._delivery = Delivery()
        self._open: dict[int, _Open] = {}
        self._reasons: Counter[str] = Counter()
        self._unmatched = 0
        self._control_s = 0.0
        self._next: _Seat | None = None
        self._caps = engine.capabilities()
        self._tally = Tally(self._caps.gammas[-1])
        self._seat = self._bind(policy)
        self.guard = Guard(guard, self._caps, self._seat.needs, allow_lossy=allow_lossy)
        engine.attach(self)

    # --- for the user ---------------------------------------------------------------------------------------------

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling: Sampling | Sequence[Sampling] = Sampling(),  # noqa: B008 - frozen
        **options: Unpack[RequestOptions],
    ) -> list[Completion]:
        """Whole answers in the order of `prompts`; `sampling` is one for all or one for each.

        One prompt is a string, a sequence of token ids, or a sequence of chat messages (mappings); a sequence of
        those is many, told apart by its elements. Requests others submitted go on meanwhile, and the next `step`
        returns their outputs. An exception, Ctrl-C included, cancels this call's requests and no others.
        """
        texts = as_prompts(prompts)
        samplings = as_samplings(sampling, len(texts))
        requests = [self._request(text, one, **options) for text, one in zip(texts, samplings, strict=True)]
        answers: list[list[Output]] = [[] for _ in requests]
        with closing(self._serve(requests)) as served:
            for index, output in served:
                answers[index].append(output)
        return [completion(outputs) for outputs in answers]

    def stream(
        self,
        prompt: Prompt,
        sampling: Sampling = Sampling(),  # noqa: B008 - frozen
        **options: Unpack[RequestOptions],
    ) -> Generator[Output]:
        """One answer as it comes; submitted when iteration begins, cancelled when the iterator is closed early."""
        with closing(self._serve([self._request(prompt, sampling, **options)])) as served:
            for _, output in served:
                yield output

    def submit(
        self,
        prompt: Prompt,
        sampling: Sampling = Sampling(),  # noqa: B008 - frozen
        *,
        id: RequestId | None = None,
        **options: Unpack[RequestOptions],
    ) -> RequestId:
        """Queue one request; its outputs come from `step`. ValueError for what can not be served, with the fix."""
        return self._enqueue(self._request(prompt, sampling, id=id, **options))

    def step(self) -> Sequence[Output]:
        """Run the engine one step: what it added to submitted requests, and what came while `generate` ran."""
        self._advance()
        return self._delivery.collect()

    def cancel(self, request: RequestId) -> None:
        """End a request early; its last output says so."""
        self.engine.cancel(request)

    @property
    def policy(self) -> Policy:
        """The policy in charge. Set it (object or name) while running: the new one decides from the next `step` on.

        A policy that does not fit raises at once, from its own `bind`, and the old one goes on. Reports that arrive
        late still go to the policy that decided. If the engine fails to prepare, the old one goes on (see `stats`).
        """
        return self._seat.policy

    @policy.setter
    def policy(self, policy: Policy | str) -> None:
        if policy is self._seat.policy:
            self._next = None
        elif self._next is None or policy is not self._next.policy:
            self._next = self._bind(policy)

    @property
    def speculation(self) -> bool:
        """The kill switch: False decodes with γ=0, and asks no policy, until it is set to True again."""
        return self.guard.speculation

    @speculation.setter
    def speculation(self, on: bool) -> None:
        self.guard.speculation = on

    def stats(self) -> ControllerStats:
        """Totals since the controller was opened."""
        tally, faults = self._tally, self.guard.faults
        tally.fold()
        return ControllerStats(
            policy=self._seat.name,
            steps=tally.steps,
            row_steps=int(tally.accepted.sum()),
            tokens=tally.tokens,
            drafted=total(tally.drafted),
            verified=total(tally.verified),
            accepted=total(tally.accepted),
            lossy_accepted=tally.lossy_accepted,
            divergence_spent=tally.divergence_spent,
            verified_by_position=reached(tally.verified),
            accepted_by_position=reached(tally.accepted),
            gamma_histogram=dict(sorted(tally.gammas.items())),
            switches=tally.switches,
            reasons=dict(self._reasons),
            held=self.guard.held,
            clamped=dict(faults.clamped),
            policy_errors=dict(faults.errors),
            last_error=faults.last,
            unmatched=self._unmatched,
            control_s=self._control_s,
            slo=self._ledger.attainment(),
            metrics=self.guard.metrics(self._seat.policy),
        )

    # --- for the engine -------------------------------------------------------------------------------------------

    def attach(self, caps: Capabilities) -> Needs:
        """The policy's needs, plain decode included at every bucket. An engine may declare anew what it can do."""
        if caps != self._caps:
            self._caps = caps
            self._seat = self._bind(self._seat.policy, self._seat.name)
            if self._next is not None:
                self._next = self._bind(self._next.policy, self._next.name)
        self.guard.adopt(caps, self._seat.needs)
        return self._seat.needs

    def plan(self, view: StepView) -> Decision:
        """A legal decision, whatever the policy does."""
        start = self._clock()
        if self.guard.speculation:
            policy: Policy | None = self._seat.policy
            decision = self.guard.decide(self._seat.policy, view)
        else:
            policy, decision = None, OFF
        caps = self._caps
        self._open[view.step + caps.delay] = _Open(view, decision, policy)
        if len(self._open) > caps.lag + caps.delay + SPARE_DECISIONS:
            del self._open[next(iter(self._open))]
        self._control_s += self._clock() - start
        return decision

    def extend(self, progress: DraftProgress) -> BoolArray:
        """True where a row drafts one more token."""
        return self.guard.extend(self._seat.policy, progress)

    def trim(self, progress: DraftProgress) -> int | IntArray | None:
        """What to verify of the drafts of the step planned last; becomes part of the decision that was executed."""
        step = next(reversed(self._open), None)
        if step is None:
            return None
        made = self._open[step]
        verify = self.guard.trim(self._seat.policy, progress, made.view, made.decision)
        if verify is not None:
            self._open[step] = made._replace(decision=replace(made.decision, verify=verify))
        return verify

    def report(self, report: StepReport) -> None:
        """Count it, and tell the policy that decided the step."""
        start = self._clock()
        self._tally.add(report)
        made = self._open.pop(report.step, None)
        if made is None:
            self._unmatched += 1
        else:
            self._reasons[made.decision.reason] += 1
            if made.policy is not None:
                self.guard.learn(made.policy, made.view, executed(made.decision, report.gamma), report)
        self._control_s += self._clock() - start

    def forget(self, rows: Sequence[int]) -> None:
        """Tell every policy that knows of these rows: the one in charge and those that still await reports."""
        live = {id(made.policy): made.policy for made in self._open.values() if made.policy is not None}
        live[id(self._seat.policy)] = self._seat.policy
        for policy in live.values():
            self.guard.forget(policy, rows)

    # --- inside ---------------------------------------------------------------------------------------------------

    def _bind(self, policy: Policy | str, name: str | None = None) -> _Seat:
        name = name or (policy if isinstance(policy, str) else type(policy).__name__)
        bound: object = get_policy(policy) if isinstance(policy, str) else policy
        if isinstance(bound, type) or not isinstance(bound, Policy):
            raise ValueError(
                f"policy={policy!r} is not a policy: give an object with bind, decide, learn, forget, clone"
            )
        needs = checked_needs(bound, bound.bind(self._caps), self._caps, allow_lossy=self.allow_lossy)
        return _Seat(bound, name, needs)

    def _take_over(self) -> None:
        """A waiting policy takes its seat once the engine is ready for it."""
        seat = self._next
        if seat is None:
            return
        try:
            self.engine.prepare(seat.needs)
        except Exception as error:
            self._next = None
            self.guard.faults.error("prepare", error)
            return
        self._seat, self._next = seat, None
        self.guard.adopt(self._caps, seat.needs)

    def _request(
        self, prompt: Prompt, sampling: Sampling, id: RequestId | None = None, **options: Unpack[RequestOptions]
    ) -> Request:
        if options.get("allow_lossy", False) and not self.allow_lossy:
            raise ValueError("allow_lossy=True is refused: open AdaptiveController(..., allow_lossy=True) to permit it")
        return self.slo.applied(Request(prompt, sampling, id=id, **options))

    def _enqueue(self, request: Request) -> RequestId:
        name = self.engine.submit(request)
        self._ledger.opened(name, request)
        return name

    def _advance(self) -> None:
        self._take_over()
        outputs = self.engine.step()
        self._ledger.closed(outputs)
        self._delivery.route(outputs)

    def _serve(self, requests: Sequence[Request]) -> Generator[tuple[int, Output]]:
        """Outputs of these requests with their place in `requests`; whoever stops listening cancels what is left."""
        inbox: deque[Output] = deque()
        places: dict[RequestId, int] = {}
        try:
            for place, request in enumerate(requests):
                name = self._enqueue(request)
                self._delivery.claim(name, inbox)
                places[name] = place
            while places:
                if not inbox:
                    self._advance()
                while inbox:
                    output = inbox.popleft()
                    place = places.pop(output.request_id) if output.finished else places[output.request_id]
                    yield place, output
        finally:
            for name in places:
                self._delivery.abandon(name)
            for name in places:
                self.engine.cancel(name)


def executed(decision: Decision, gamma: int) -> Decision:
    """The decision with the γ that was run. Written out: `dataclasses.replace` takes several times as long."""
    if decision.gamma == gamma:
        return decision
    return Decision(
        gamma,
        decision.verify,
        decision.row_target,
        decision.confidence,
        decision.draft_stop,
        decision.tree,
        decision.acceptance,
        decision.drafter,
        decision.reason,
    )
