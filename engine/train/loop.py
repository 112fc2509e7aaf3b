"""Training within a budget of time: drafters side by side on the same lessons, looks at held-out text, files to resume.

The step size follows the share of the budget that is spent, so that any budget ends with a settled drafter.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

import torch
from torch import Tensor

from engine.train.batches import epoch
from engine.train.corpus import Document
from engine.train.drafter import TrainableDrafter
from engine.train.evaluate import Acceptance, by_task, evaluate
from engine.train.lesson import Batch, Lesson, guess_loss
from engine.train.school import School

STEP_DECAY = 0.8  # each later draft step counts that much less: it is reached more rarely
LARGEST_NORM = 1.0
FINAL_RATE = 0.03
CHECKPOINT = "training.pt"


@dataclass(frozen=True, slots=True)
class Plan:
    """`seconds` of training in all, `batch_tokens` a step with padding, `rate` the largest step size.

    Every `look_s` seconds the held-out text is measured with chains of `depth` steps; after `patience` looks without
    progress training stops, once half of the time is over. `warm_up` is a share of the time.
    """

    seconds: float
    batch_tokens: int
    rate: float = 1e-3
    look_s: float = 30.0
    depth: int = 5
    patience: int = 8
    warm_up: float = 0.03
    weight_decay: float = 0.01
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Look:
    """What was seen at one moment, per drafter's method: mean loss since the last look (nan without steps), held-out
    acceptance."""

    step: int
    elapsed_s: float
    tokens: int
    rate: float
    loss: Mapping[str, float]
    held_out: Mapping[str, Mapping[str, Acceptance]]

    def as_json(self) -> dict[str, Any]:
        held = {name: {task: one.rounded() for task, one in tasks.items()} for name, tasks in self.held_out.items()}
        return asdict(self) | {"held_out": held}


@dataclass
class Pupil:
    """A drafter with its optimizer; `best` are the tensors of its best look, `best_tau` how good that was."""

    drafter: TrainableDrafter
    optimizer: torch.optim.AdamW
    best_tau: float = -math.inf
    best: dict[str, Tensor] = field(default_factory=dict)
    stale: int = 0
    loss: Tensor | float = 0.0

    def study(self, school: School, lesson: Lesson, rate: float) -> None:
        """One step down the loss; a step without finite gradients is left out."""
        self.drafter.train()
        with school.precision():
            loss = total_loss(self.drafter, lesson)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.drafter.parameters(), LARGEST_NORM)
        self.loss = self.loss + loss.detach()
        if not math.isfinite(float(norm)):
            return
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["share"]
        self.optimizer.step()

    def judge(self, tau: float) -> None:
        """Keep the tensors where they are the best so far."""
        self.stale += 1
        if tau > self.best_tau:
            self.best_tau, self.stale = tau, 0
            self.best = {name: tensor.detach().clone() for name, tensor in self.drafter.state_dict().items()}


def total_loss(drafter: TrainableDrafter, lesson: Lesson) -> Tensor:
    """Cross-entropy of all steps, later ones weighing less, and what else the method wants learnt."""
    outputs = drafter.outputs(lesson, drafter.depth)
    weights = [STEP_DECAY**step for step in range(len(outputs))]
    guesses = [
        weight * guess_loss(lesson.logits(out, step), lesson.law_RS)
        for step, (weight, out) in enumerate(zip(weights, outputs, strict=True))
    ]
    loss = drafter.guess_weight * torch.stack(guesses).sum() / sum(weights)
    extra = drafter.extra_loss(lesson, outputs)
    return loss if extra is None else loss + extra


class Training:
    """One course for some drafters. `report` is told of every look."""

    def __init__(
        self,
        school: School,
        drafters: Sequence[TrainableDrafter],
        plan: Plan,
        documents: Sequence[Document],
        held_out: Sequence[Document],
        report: Callable[[Look], None],
        rate_shares: Mapping[str, float] | None = None,
        spent: Callable[[float], None] | None = None,
    ) -> None:
        """`rate_shares` gives methods a part of the plan's step size; `spent` is told the share of the time gone.

        ValueError without documents of both kinds.
        """
        for name, some in (("train on", documents), ("measure on", held_out)):
            if not some:
                raise ValueError(f"there is no text to {name}: give more, at least a few hundred sentences")
        self.school, self.plan, self.report, self.spent = school, plan, report, spent
        self.documents = documents
        self._measured = by_task(held_out, plan.batch_tokens, school.device)
        self.pupils = [self._pupil(drafter, (rate_shares or {}).get(drafter.method, 1.0)) for drafter in drafters]
        self.step = self.tokens = self.done_epochs = 0
        self.history: list[Look] = []
        self._spent = 0.0
        self._looked_at = 0

    def _pupil(self, drafter: TrainableDrafter, rate_share: float) -> Pupil:
        drafter.to(self.school.device)
        groups: dict[tuple[float, float], list[torch.nn.Parameter]] = {}
        for name, one in drafter.named_parameters():
            share = next((share for prefix, share in drafter.slow.items() if name.startswith(prefix)), 1.0)
            decay = self.plan.weight_decay if one.ndim > 1 else 0.0
            groups.setdefault((share * rate_share, decay), []).append(one)
        listed = [{"params": some, "share": key[0], "weight_decay": key[1]} for key, some in groups.items()]
        fused = self.school.device.type == "cuda"
        return Pupil(drafter, torch.optim.AdamW(listed, lr=0.0, betas=(0.9, 0.95), fused=fused))

    def run(self, folder: Path | None = None) -> None:
        """Until the time is spent or nothing improves; the drafters end as they were at their best look.

        With `folder`, every look leaves a checkpoint there that `resume` takes up.
        """
        started, spent = monotonic(), self._spent
        self.look()
        next_look = spent + monotonic() - started + self.plan.look_s
        for batch in self._batches():
            self._spent = spent + monotonic() - started
            share = self._spent / self.plan.seconds
            if self.spent is not None:
                self.spent(min(1.0, share))
            if share >= 1 or self._stuck(share):
                break
            self._teach(batch, share)
            if spent + monotonic() - started >= next_look:
                self.look(folder)
                next_look = spent + monotonic() - started + self.plan.look_s
        if self.step > self._looked_at:
            self.look(folder)
        for pupil in self.pupils:
            pupil.drafter.load_state_dict(pupil.best)

    def look(self, folder: Path | None = None) -> None:
        """Measure on the held-out text."""
        drafters = [pupil.drafter for pupil in self.pupils]
        found = evaluate(self.school, drafters, self._measured, self.plan.depth)
        steps = self.step - self._looked_at
        look = Look(
            step=self.step,
            elapsed_s=round(self._spent, 1),
            tokens=self.tokens,
            rate=self._rate(self._spent / self.plan.seconds),
            loss={pupil.drafter.method: float(pupil.loss) / steps if steps else math.nan for pupil in self.pupils},
            held_out={drafter.method: one for drafter, one in zip(drafters, found, strict=True)},
        )
        for pupil, one in zip(self.pupils, found, strict=True):
            pupil.judge(one["all"].tau)
            pupil.loss = 0.0
        self._looked_at = self.step
        self.history.append(look)
        self.report(look)
        if folder is not None:
            self.save(folder)

    def _teach(self, batch: Batch, share: float) -> None:
        depth = max(pupil.drafter.depth for pupil in self.pupils)
        lesson = self.school.lesson(batch, [pupil.drafter for pupil in self.pupils], depth)
        if len(lesson.rows_R) == 0:
            return
        if self.step == 0:
            for pupil in self.pupils:
                pupil.drafter.begin(lesson.features)
        for pupil in self.pupils:
            pupil.study(self.school, lesson, self._rate(share))
        self.step += 1
        self.tokens += batch.tokens_BT.numel()

    def _batches(self) -> Iterator[Batch]:
        # The same batches every time, in another order: what the teacher thought of them can be kept.
        batches = list(epoch(self.documents, self.plan.batch_tokens, self.school.device, random.Random(self.plan.seed)))
        while True:
            rng = random.Random(f"{self.plan.seed} {self.done_epochs} {self.step}")
            yield from rng.sample(batches, len(batches))
            self.done_epochs += 1

    def _rate(self, share: float) -> float:
        rise = min(1.0, share / self.plan.warm_up) if self.plan.warm_up else 1.0
        fall = FINAL_RATE + (1 - FINAL_RATE) * 0.5 * (1 + math.cos(math.pi * min(1.0, share)))
        return self.plan.rate * max(rise, 0.01) * fall

    def _stuck(self, share: float) -> bool:
        return share > 0.5 and all(pupil.stale >= self.plan.patience for pupil in self.pupils)

    def save(self, folder: Path) -> None:
        """Everything that `resume` needs; the file before it stands until this one is whole."""
        folder.mkdir(parents=True, exist_ok=True)
        state = {
            "step": self.step,
            "tokens": self.tokens,
            "done_epochs": self.done_epochs,
            "spent": self._spent,
            "pupils": {
                pupil.drafter.method: {
                    "drafter": pupil.drafter.state_dict(),
                    "optimizer": pupil.optimizer.state_dict(),
                    "best": pupil.best,
                    "best_tau": pupil.best_tau,
                }
                for pupil in self.pupils
            },
        }
        partial = folder / (CHECKPOINT + ".partial")
        torch.save(state, partial)
        partial.replace(folder / CHECKPOINT)

    def resume(self, folder: Path) -> None:
        """Go on where `save` left off. ValueError where there is nothing, or of other drafters."""
        path = folder / CHECKPOINT
        if not path.is_file():
            raise ValueError(f"{folder} holds no {CHECKPOINT} to resume: start without --resume")
        state = torch.load(path, map_location=self.school.device, weights_only=True)
        methods = sorted(pupil.drafter.method for pupil in self.pupils)
        if sorted(state["pupils"]) != methods:
            raise ValueError(f"{path} is of {', '.join(sorted(state['pupils']))}, not of {', '.join(methods)}")
        self.step, self.tokens = state["step"], state["tokens"]
        self.done_epochs, self._spent, self._looked_at = state["done_epochs"], state["spent"], state["step"]
        for pupil in self.pupils:
            kept = state["pupils"][pupil.drafter.method]
            pupil.drafter.load_state_dict(kept["drafter"])
            pupil.optimizer.load_state_dict(kept["optimizer"])
            pupil.best, pupil.best_tau = deepcopy(kept["best"]), kept["best_tau"]
