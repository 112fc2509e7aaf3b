"""How likely draft tokens are to stand: from counts of what stood, or from the drafter's own confidence.

Position k is 0 for the first draft token. Its *rate* is the chance that it stands once those before it do; its
*survival* is the product of the rates up to it, the chance that it counts.
"""

from __future__ import annotations

import numpy as np

from adaptive.contract import BoolArray, FloatArray, IntArray

START = 0.6  # AdaSpec's first guess of a draft token's confidence
# Simulated on measured CPU costs, 25 to 50 followed a switch of text every 100 steps and lost at most 2 % without one.
WINDOW = 50.0  # draft tokens after which two thirds of what was learnt before have faded
SHORTEST_MEMORY = 8  # steps: a large batch alone must not wipe out what was learnt in one
IDLE_MEMORY = 128  # steps without drafting after which two thirds of the evidence have faded


class PositionRates:
    """One rate per position `[M]`, each drawn toward the rate of the position before it, the first toward `prior`.

    Evidence fades with each step by 1 / `window` per observation of the first position, at most by an eighth; with
    `window` None it never does. `strength` is how many observations the neighbour is worth.

    >>> rates = PositionRates(2, prior=0.5, strength=2.0)
    >>> rates.add(np.array([4.0, 2.0]), np.array([4.0, 0.0]))
    >>> rates.values.round(3).tolist()  # (4 + 2 · .5) / (4 + 2), then (0 + 2 · .833) / (2 + 2)
    [0.833, 0.417]
    """

    def __init__(self, positions: int, *, prior: float, strength: float = 4.0, window: float | None = None) -> None:
        self.prior = prior
        self.strength = strength
        self.window = window
        self._counts_2M: FloatArray = np.zeros((2, positions))
        self.trials_M, self.hits_M = self._counts_2M
        self._seen = False  # whether there is evidence that could fade
        self._values_M: FloatArray | None = None

    @property
    def values(self) -> FloatArray:
        """The rates `[M]`."""
        if self._values_M is None:
            rate, strength = self.prior, self.strength
            rates = []
            for trials, hits in zip(self.trials_M.tolist(), self.hits_M.tolist(), strict=True):
                weight = trials + strength
                rate = (hits + strength * rate) / weight if weight else rate
                rates.append(rate)
            self._values_M = np.array(rates)
        return self._values_M

    def forget_to(self, observations: float) -> None:
        """Let evidence fade until the first position has no more than so many observations."""
        if self.trials_M[0] > observations:
            self.fade(observations / float(self.trials_M[0]))

    def add(self, trials: FloatArray | IntArray, hits: FloatArray | IntArray) -> None:
        """Count observations `[≤ M]`, from the first position on."""
        positions = len(trials)
        if not positions:
            return
        self._fade_for(float(trials[0]))
        self.trials_M[:positions] += trials
        self.hits_M[:positions] += hits
        self._seen, self._values_M = True, None

    def add_at(self, position: int, trials: float, hits: float) -> None:
        """Count observations of one position; the first one's come first."""
        if position == 0:
            self._fade_for(trials)
        self.trials_M[position] += trials
        self.hits_M[position] += hits
        self._seen, self._values_M = True, None

    def fade(self, keep: float) -> None:
        """Keep this share of the evidence: estimates move toward the prior."""
        if self._seen:
            self._counts_2M *= keep
            self._values_M = None

    def _fade_for(self, observations: float) -> None:
        """What so many new observations of the first position leave of the old evidence."""
        if self.window is not None:
            self.fade(1 - min(observations / self.window, 1 / SHORTEST_MEMORY))


class MeasuredSurvival:
    """Survival by position, from counts of verified and accepted tokens; no signal of the drafter is needed.

    A position was at risk where all before it stood and it was verified; past that nothing is known (censored).

    >>> measured = MeasuredSurvival(3, prior=0.5, strength=0.0, window=None)
    >>> measured.learn(np.array([3, 3, 1]), np.array([2, 0, 1]))
    >>> measured.rates.round(2).tolist()  # at risk 3, 1, 1; stood 2, 1, 0
    [0.67, 1.0, 0.0]
    """

    def __init__(
        self, max_gamma: int, *, prior: float = START, strength: float = 2.0, window: float | None = WINDOW
    ) -> None:
        self._rates = PositionRates(max_gamma, prior=prior, strength=strength, window=window)

    @property
    def rates(self) -> FloatArray:
        """`[M]`: chance of each position to stand once those before it do."""
        return self._rates.values

    @property
    def survival(self) -> FloatArray:
        """`[M]`, falling."""
        survival: FloatArray = np.cumprod(self._rates.values, dtype=np.float64)
        return survival

    def learn(self, verified: IntArray, accepted: IntArray) -> None:
        """One step: draft tokens verified and accepted of each row that drafted `[B]`."""
        positions = len(self._rates.trials_M)
        # Where a row's drafts ended, and whether for want of a token that was verified and fell: in one count.
        ends = np.bincount(2 * accepted + (verified > accepted), minlength=2 * positions + 2)
        if len(ends) > 2 * positions + 2:
            self.learn(np.minimum(verified, positions), np.minimum(accepted, positions))
            return
        stayed, fell = ends[::2], ends[1::2]
        stood = (stayed + fell)[:0:-1].cumsum()[::-1]
        self._rates.add(stood + fell[:-1], stood)

    def idle(self) -> None:
        """A step at γ = 0: fade toward the prior, so that drafting is tried again."""
        self._rates.fade(1 - 1 / IDLE_MEMORY)

    def forget_to(self, observations: float) -> None:
        """See `PositionRates.forget_to`."""
        self._rates.forget_to(observations)

    def ease(self, share: float) -> None:
        """This share of the requests has left, and half of what they taught goes with them."""
        self._rates.fade(1 - share / 2)


class Reach:
    """Share of drafting rows whose draft gets to each position: n-gram drafters find fewer tokens than asked for.

    >>> reach = Reach(3)
    >>> reach.learn(np.array([3, 1]), 3)
    >>> reach.values.round(2).tolist()  # with almost one made-up row that got everywhere: 1.99 / 2.99
    [1.0, 0.67, 0.67]
    """

    def __init__(self, max_gamma: int, window: float = 4 * WINDOW) -> None:
        self.values: FloatArray = np.ones(max_gamma)
        self._window = window
        self._counts_2M: FloatArray = np.ones((2, max_gamma))
        """Rows that could have got to each position, and rows that did."""

    def learn(self, drafted: IntArray, gamma: int) -> None:
        """One step at `gamma`: tokens drafted by each row that drafted `[B]`."""
        rows = len(drafted)
        counts_2G = self._counts_2M[:, :gamma]
        counts_2G *= 1 - min(rows / self._window, 1 / SHORTEST_MEMORY)
        if int(np.minimum.reduce(drafted)) >= gamma:
            counts_2G += rows
        else:
            counts_2G[0] += rows
            counts_2G[1] += longer_than(drafted, gamma)
        could_M, got_M = self._counts_2M
        self.values = np.minimum.accumulate(got_M / could_M)


def longer_than(lengths: IntArray, positions: int) -> IntArray:
    """`[positions]`: how many lengths are above 0, 1, 2, ....

    >>> longer_than(np.array([0, 1, 3]), 4).tolist()
    [2, 1, 1, 0]
    """
    counts = np.bincount(np.minimum(lengths, positions), minlength=positions + 1)
    above: IntArray = counts[:0:-1].cumsum()[::-1]
    return above


class RunningConfidence:
    """The mean confidence of drafted tokens, to guess that of tokens not drafted yet; `START` before any was.

    AdaSpec keeps one mean for all positions over its whole life (`pooled`, `window` None). Otherwise there is one per
    position, drawn toward the one before, which forgets.

    >>> running = RunningConfidence(2, pooled=True, window=None)
    >>> running.add(np.array([[1.0, 0.9], [0.5, np.nan]]))
    >>> running.rates.round(3).tolist()  # 2.4 / 3
    [0.8, 0.8]
    """

    def __init__(self, max_gamma: int, *, start: float = START, pooled: bool = False, window: float | None = WINDOW):
        self._pooled = pooled
        # A confidence says more than whether a token stood: one of them weighs as much as the first guess.
        self._rates = PositionRates(max_gamma, prior=start, strength=1.0, window=window)

    @property
    def rates(self) -> FloatArray:
        """`[M]`: what the confidence of a token at each position is expected to be."""
        if not self._pooled:
            return self._rates.values
        trials, hits = self._rates.trials_M.sum(), self._rates.hits_M.sum()
        return np.full(len(self._rates.trials_M), hits / trials if trials else self._rates.prior)

    @property
    def survival(self) -> FloatArray:
        """`[M]`, falling."""
        survival: FloatArray = np.cumprod(self.rates, dtype=np.float64)
        return survival

    def add(self, confidences: FloatArray) -> None:
        """Confidences `[B, G]` of one step's draft tokens; nan where none was."""
        width = len(self._rates.trials_M)
        trials: IntArray | FloatArray = np.full(confidences.shape[1], float(len(confidences)))
        hits = np.add.reduce(confidences)
        if np.isnan(hits).any():
            counted = ~np.isnan(confidences)
            trials, hits = np.add.reduce(counted), np.add.reduce(np.where(counted, confidences, 0.0))
        self._rates.add(trials[:width], hits[:width])

    def add_at(self, position: int, total: float, count: int) -> None:
        """`count` confidences that sum to `total`, of tokens drafted at one position."""
        if position < len(self._rates.trials_M):
            self._rates.add_at(position, count, total)

    def idle(self) -> None:
        """A step at γ = 0: a mean that forgets fades toward its start."""
        if self._rates.window is not None:
            self._rates.fade(1 - 1 / IDLE_MEMORY)

    def forget_to(self, observations: float) -> None:
        """See `PositionRates.forget_to`; a mean that forgets nothing keeps all."""
        if self._rates.window is not None:
            self._rates.forget_to(observations)

    def ease(self, share: float) -> None:
        """This share of the requests has left: a mean that forgets loses half of what they taught."""
        if self._rates.window is not None:
            self._rates.fade(1 - share / 2)


class Reliability:
    """What a confidence was worth: the share of tokens that stood, by bins of confidence, at first the bin itself.

    Between bin centres it is interpolated. Each bin starts with `strength` made-up tokens, of which its own centre
    would stand, times the ratio of tokens that stood to those that confidences let expect in all bins together: a
    drafter that is too sure everywhere is found out long before every bin has been. `scale_strength` expected tokens
    are made up for that ratio.

    >>> table = Reliability(bins=2, strength=1.0, scale_strength=1.0)
    >>> table.learn(np.array([0.9, 0.8, 0.9]), np.array([False, False, True]))
    >>> table.apply(np.array([0.75])).round(3).tolist()  # ratio (1 + 1) / (2.6 + 1), then (1 + .556 * .75) / (3 + 1)
    [0.354]
    """

    def __init__(
        self, bins: int = 16, strength: float = 20.0, window: float = 4000.0, scale_strength: float = 10.0
    ) -> None:
        self._centres = (np.arange(bins) + 0.5) / bins
        self._window = window
        self._strength, self._scale_strength = strength, scale_strength
        self._counts_2K: FloatArray = np.zeros((2, bins))
        """Tokens of each bin, and those of them that stood."""
        self._expected = self._stood = 0.0
        self._shares = self._centres

    def apply(self, confidences: FloatArray) -> FloatArray:
        """The calibrated chance to stand, same shape."""
        return np.interp(confidences, self._centres, self._shares)

    def learn(self, confidences: FloatArray, stood: BoolArray) -> None:
        """Tokens at risk `[N]` and whether each stood."""
        count, bins = len(confidences), len(self._centres)
        if not count:
            return
        place = np.minimum((confidences * bins).astype(np.int64), bins - 1)
        fell_or_stood = np.bincount(2 * place + stood, minlength=2 * bins)
        keep, strength = 1 - min(count / self._window, 1 / SHORTEST_MEMORY), self._strength
        counts_2K = self._counts_2K
        counts_2K *= keep
        counts_2K += fell_or_stood[1::2]
        counts_2K[0] += fell_or_stood[::2]
        self._expected = keep * self._expected + float(np.add.reduce(confidences))
        self._stood = keep * self._stood + np.count_nonzero(stood)
        ratio = (self._stood + self._scale_strength) / (self._expected + self._scale_strength)
        tokens_K, stood_K = counts_2K
        shares = (stood_K + strength * ratio * self._centres) / (tokens_K + strength)
        self._shares = np.minimum(shares, 1.0)
