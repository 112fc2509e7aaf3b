"""What a policy may make of drafts that are drawn: it cuts rows under greedy decoding, and no others.

Tokens are drawn by the time `trim` is asked, and the signals of a later one follow from those before it. A length that
goes by them biases a row that samples, and whether it did is not to be seen from the answer. Under an exact rule a
greedy row has one right token at every place, however far it is verified.

Shapes: B rows of the step, G = γ.
"""

from __future__ import annotations

import numpy as np

from adaptive.contract import Decision, DraftProgress, IntArray, StepView
from adaptive.legal import Note


def lawful(
    verify: int | IntArray | None, decision: Decision, view: StepView, progress: DraftProgress, note: Note
) -> int | IntArray | None:
    """What `trim` answered, with rows that sample verified as far as `decision`, made before drafting, has them.

    `verify` is legal otherwise. A budget is shared by all rows, so that beside one that samples none is set or lifted:
    None, which keeps the decision's own. Where the engine does not tell which rows are greedy, all of them sample.
    What is taken back is told to `note`; an answer for other rows than the decision was made for is taken back whole.
    """
    if not np.array_equal(view.rows, progress.rows):
        note("trim", f"trim was asked of rows {progress.rows.tolist()} of a step decided for {view.rows.tolist()}")
        return None
    greedy_B = view.greedy
    if verify is None or (greedy_B is not None and greedy_B.all()):
        return verify
    decided = decision.verify
    if isinstance(verify, int) or isinstance(decided, int):
        if not _same_budget(verify, decided, len(progress.rows) * (progress.position + 2)):
            note("trim", f"trim makes verify={verify!r} of {decided!r}, a budget that is shared by rows which sample")
        return None
    known_B = decision.gamma if decided is None else decided
    lens_B: IntArray = np.where(False if greedy_B is None else greedy_B, verify, known_B)
    if not np.array_equal(lens_B, verify):
        drafted_B = _drafted(progress)
        changed_B = np.minimum(lens_B, drafted_B) != np.minimum(verify, drafted_B)
        if changed_B.any():
            note(
                "trim",
                f"trim makes other lengths of rows {progress.rows[changed_B].tolist()}, which sample: cut greedy rows "
                "alone (`StepView.greedy`), and decide other lengths before drafting",
            )
    return lens_B


def _same_budget(verify: int | IntArray, decided: int | IntArray | None, everything: int) -> bool:
    """Whether two budgets verify the same of at most `everything`, which is what None verifies."""
    if isinstance(verify, np.ndarray) or isinstance(decided, np.ndarray):
        return False
    return min(verify, everything) == (everything if decided is None else min(decided, everything))


def _drafted(progress: DraftProgress) -> int | IntArray:
    """Draft tokens of each row `[B]` where signals tell, else the most that a row can have."""
    for values_BG in progress.signals.values():
        drafted_B: IntArray = (~np.isnan(values_BG)).sum(1)
        return drafted_B
    return progress.position + 1
