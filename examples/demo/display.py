"""Output of the demo: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.text import Text

if TYPE_CHECKING:
    from types import TracebackType

_WINDOW_S: Final = 5.0
_PLAIN_INTERVAL_S: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """State of source and target at one moment."""

    at_s: float
    """Seconds of the monotonic clock."""
    produced: int
    copied: int
    copied_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoProgress:
    """Progress derived from a sample and the ones before it."""

    produced: int
    copied: int
    total: int
    records_per_s: float
    """Average over the last seconds."""
    megabytes_per_s: float
    """Growth of the target's log over the last seconds, in millions of bytes per second."""
    eta_s: float | None
    """Estimated seconds to the end; None while nothing is copied."""

    @property
    def lag(self) -> int:
        """Return the number of records on the source that the target lacks."""
        return max(0, self.produced - self.copied)

    def text(self) -> str:
        """Return the progress as one line."""
        eta = "-" if self.eta_s is None else f"{self.eta_s:.0f} s"
        share = self.copied / self.total
        return (
            f"copied {self.copied:,}/{self.total:,} ({share:.0%})  {self.records_per_s:,.0f} records/s  "
            f"{self.megabytes_per_s:.1f} MB/s  lag {self.lag:,}  ETA {eta}"
        )


class ProgressMeter:
    """Calculator of progress from samples. Used by one thread."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._samples: deque[Sample] = deque()

    def add(self, sample: Sample) -> DemoProgress:
        """Add a sample and return the current progress."""
        self._samples.append(sample)
        while len(self._samples) > 2 and sample.at_s - self._samples[0].at_s > _WINDOW_S:  # noqa: PLR2004 - a pair
            self._samples.popleft()
        first = self._samples[0]
        elapsed = sample.at_s - first.at_s
        rate = (sample.copied - first.copied) / elapsed if elapsed > 0 else 0.0
        byte_rate = (sample.copied_bytes - first.copied_bytes) / elapsed if elapsed > 0 else 0.0
        return DemoProgress(
            produced=sample.produced,
            copied=sample.copied,
            total=self._total,
            records_per_s=rate,
            megabytes_per_s=byte_rate / 1e6,
            eta_s=(self._total - sample.copied) / rate if rate > 0 else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A claim about klamm and whether the demo confirmed it."""

    text: str
    holds: bool
    evidence: str
    """Observation that decided about the claim."""


class Display:
    """Output of steps, facts and progress. Not thread-safe: one thread draws."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False)
        self._live: Live | None = None
        self._plain_at_s = 0.0

    def __enter__(self) -> Self:
        """Start the live line."""
        if self.console.is_terminal:
            self._live = Live(console=self.console, transient=True, refresh_per_second=8)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Remove the live line."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def step(self, text: str) -> None:
        """Print the step that begins."""
        self._print(Text(f"▸ {text}", style="bold"))

    def fact(self, text: str) -> None:
        """Print an observation."""
        self._print(Text(f"  {text}"))

    def table(self, text: str) -> None:
        """Print a table given as text."""
        for line in text.rstrip().splitlines():
            self.fact(line)

    def progress(self, progress: DemoProgress) -> None:
        """Show the progress of the mirror."""
        if self._live is not None:
            bar = ProgressBar(total=progress.total, completed=progress.copied, width=48)
            self._live.update(Group(Text(f"  {progress.text()}", style="cyan"), bar))
            return
        now = time.monotonic()
        if now - self._plain_at_s >= _PLAIN_INTERVAL_S:
            self._plain_at_s = now
            self.fact(progress.text())

    def claims(self, claims: tuple[Claim, ...]) -> None:
        """Print which claims were confirmed and which were not."""
        self.step(f"{sum(claim.holds for claim in claims)} of {len(claims)} claims proved")
        for claim in claims:
            mark = Text("  proved  ", style="green") if claim.holds else Text("  FAILED  ", style="bold red")
            self._print(mark + Text(claim.text))
            self._print(Text(f"          {claim.evidence}", style="dim"))

    def _print(self, text: Text) -> None:
        self.console.print(text, soft_wrap=True)
