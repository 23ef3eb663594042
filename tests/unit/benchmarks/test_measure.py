from __future__ import annotations

from benchmarks.goals import Goal
from benchmarks.measure import Plan, Spread, alternate


def test_rounds_alternate_the_starting_side() -> None:
    # given
    turns: list[str] = []

    def side(name: str) -> dict[str, float]:
        turns.append(name)
        return {"MB/s": 1.0}

    sides = {"ours": lambda: side("ours"), "theirs": lambda: side("theirs")}
    # when
    measured = list(alternate(sides, benchmark="copying", plan=Plan(quick=False, sides=()), rounds=2))
    # then
    assert turns == ["ours", "theirs", "theirs", "ours"]
    assert [(measurement.side, measurement.round) for measurement in measured] == [
        ("ours", 1),
        ("theirs", 1),
        ("theirs", 2),
        ("ours", 2),
    ]


def test_spread_has_median_and_both_ends() -> None:
    assert Spread.over([5.0, 1.0, 3.0]) == Spread(median=3.0, least=1.0, greatest=5.0)


def test_peer_goal_compares_the_ratio() -> None:
    # given
    goal = Goal(benchmark="mirror", metric="MB/s", peer="MirrorMaker 2", at_least=2)
    medians = {("mirror", "klamm", "MB/s"): 90.0, ("mirror", "MirrorMaker 2", "MB/s"): 50.0}
    # when
    line = goal.judge(medians)
    # then
    assert line == "MISSED   mirror: MB/s 1.8x (goal >= 2x of MirrorMaker 2)"


def test_absolute_goal_compares_the_value() -> None:
    goal = Goal(benchmark="start", metric="start s", at_most=0.5)
    assert goal.judge({("start", "klamm", "start s"): 0.5}) == "reached  start: start s 0.5 (goal <= 0.5)"


def test_goal_without_peer_measurement_is_skipped() -> None:
    goal = Goal(benchmark="mirror", metric="MB/s", peer="MirrorMaker 2", at_least=2)
    assert goal.judge({("mirror", "klamm", "MB/s"): 90.0}) is None
