"""Stop strings in streamed text: nothing is shown that a later match would cut away."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class StopText:
    """Passes text through until one of `stops` has appeared, wherever the pieces break. The stop itself is cut."""

    stops: tuple[str, ...]
    stopped: bool = False
    held: str = ""

    def push(self, piece: str) -> str:
        """The text that is now certain to stay."""
        if self.stopped:
            return ""
        self.held += piece
        found = [(place + len(stop), place) for stop in self.stops if (place := self.held.find(stop)) >= 0]
        if found:
            _, place = min(found)  # the first that was complete, as if the text came letter by letter
            self.stopped = True
            shown, self.held = self.held[:place], ""
            return shown
        cut = len(self.held) - self._partial()
        shown, self.held = self.held[:cut], self.held[cut:]
        return shown

    def _partial(self) -> int:
        """Length of the longest tail that could be the beginning of a stop string."""
        longest = min(len(self.held), max((len(stop) for stop in self.stops), default=1) - 1)
        tails = range(longest, 0, -1)
        return next((size for size in tails if any(stop.startswith(self.held[-size:]) for stop in self.stops)), 0)

    def flush(self) -> str:
        """At the end of the request: a tail that only resembled a stop string is text after all."""
        shown, self.held = ("" if self.stopped else self.held), ""
        return shown
