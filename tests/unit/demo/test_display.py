"""Output of the demo."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from examples.demo.display import Claim, Display, ProgressMeter, Sample


def sample(at_s: float, produced: int, copied: int) -> Sample:
    return Sample(at_s=at_s, produced=produced, copied=copied, copied_bytes=copied * 100)


def test_progress_reports_rates_lag_and_time_to_go() -> None:
    # given
    meter = ProgressMeter(total=10_000)
    meter.add(sample(0.0, 3_000, 1_000))
    # when
    progress = meter.add(sample(2.0, 6_000, 5_000))
    # then
    assert progress.text() == "copied 5,000/10,000 (50%)  2,000 records/s  0.2 MB/s  lag 1,000  ETA 2 s"


def test_time_left_is_unknown_without_progress() -> None:
    meter = ProgressMeter(total=10)
    meter.add(sample(0.0, 5, 1))
    assert meter.add(sample(1.0, 5, 1)).eta_s is None


def test_rates_cover_the_last_seconds() -> None:
    # given
    meter = ProgressMeter(total=10_000)
    for second in range(20):
        meter.add(sample(float(second), 10_000, 0))
    # when
    progress = [meter.add(sample(20.0 + second, 10_000, 100 * (second + 1))) for second in range(10)][-1]
    # then
    assert progress.records_per_s == pytest.approx(100.0)


def test_output_to_a_file_has_occasional_plain_lines() -> None:
    # given
    out = io.StringIO()
    meter = ProgressMeter(total=10)
    # when
    with Display(Console(file=out, width=200)) as display:
        for second in range(3):
            display.progress(meter.add(sample(float(second), 5, second)))
    # then
    assert out.getvalue() == "  copied 0/10 (0%)  0 records/s  0.0 MB/s  lag 5  ETA -\n"


def test_claims_are_shown_with_their_evidence() -> None:
    # given
    out = io.StringIO()
    claims = (
        Claim(text="nothing is lost", holds=True, evidence="10 of 10"),
        Claim(text="nothing is doubled", holds=False, evidence="11 of 10"),
    )
    # when
    Display(Console(file=out, width=100)).claims(claims)
    # then
    assert out.getvalue().splitlines() == [
        "▸ 1 of 2 claims proved",
        "  proved  nothing is lost",
        "          10 of 10",
        "  FAILED  nothing is doubled",
        "          11 of 10",
    ]
