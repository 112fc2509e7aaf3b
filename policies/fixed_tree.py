"""The same tree of draft tokens at every step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from adaptive.contract import Capabilities, Decision, Needs, StepReport, StepView, TreeShape


class FixedTree:
    """Draft the tree `parents` at every step.

    Node i hangs below node `parents[i]` < i, or below the newest token where that is -1. A node's children are tried in
    order, and drafters give the first the likeliest token. What an engine can not hold is refused.

    >>> from adaptive.contract import Capabilities, TreeLimits
    >>> policy = FixedTree.branching(2, 1)
    >>> policy.parents
    (-1, -1, 0, 1)
    >>> limits = TreeLimits(max_depth=4, max_width=8, max_nodes=16)
    >>> policy.bind(Capabilities(gammas=(0, 1, 2), batch_buckets=(1, 8), tree=limits)).gammas
    {1: (0, 2), 8: (0, 2)}
    """

    def __init__(self, parents: Sequence[int]) -> None:
        """ValueError unless each parent comes before its child."""
        self.parents = tuple(parents)
        depths: list[int] = []
        for node, parent in enumerate(self.parents):
            if not -1 <= parent < node:
                raise ValueError(f"parents={self.parents!r}: node {node} hangs below {parent}, give -1 to {node - 1}")
            depths.append(1 if parent == -1 else depths[parent] + 1)
        if not depths:
            raise ValueError("parents=() is not valid: a tree has at least one node; for plain decode take Fixed(0)")
        self.gamma = max(depths)
        self.width = max(depths.count(depth) for depth in depths)
        self._decision = Decision(self.gamma, tree=TreeShape(self.parents), reason="tree")

    @classmethod
    def branching(cls, *widths: int) -> Self:
        """As many children below every node of a level: `widths[0]` below the root, `widths[1]` below each of those."""
        parents, level = [], [-1]
        for width in widths:
            parents += [parent for parent in level for _ in range(width)]
            level = list(range(len(parents) - len(level) * width, len(parents)))
        return cls(parents)

    def bind(self, caps: Capabilities) -> Needs:
        if caps.tree is None:
            raise ValueError("this engine has no trees: give it max_tree_nodes, and a drafter that fills them")
        limits = caps.tree
        sizes = (("depth", self.gamma, limits.max_depth), ("width", self.width, limits.max_width))
        for name, size, most in (*sizes, ("number of nodes", len(self.parents), limits.max_nodes)):
            if size > most:
                raise ValueError(f"the tree's {name} is {size} and this engine offers {most}: see its max_tree_nodes")
        if self.gamma not in caps.gammas:
            raise ValueError(f"the tree's depth {self.gamma} is not offered by this engine: {list(caps.gammas)}")
        gammas = {bucket: (0, self.gamma) for bucket in caps.batch_buckets}
        return Needs(gammas, trees=frozenset({TreeShape(self.parents)}), self_paced=True)

    def decide(self, view: StepView) -> Decision:
        return self._decision

    def learn(self, view: StepView, decision: Decision, report: StepReport) -> None:
        """Nothing to learn."""

    def forget(self, rows: Sequence[int]) -> None:
        """Nothing is kept per row."""

    def clone(self) -> Self:
        return type(self)(self.parents)
