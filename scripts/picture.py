"""Write docs/images/change.svg: the terminal of a real run that changes a topic and a running producer.

``python scripts/picture.py`` starts a broker, runs the commands that the picture shows, and renders what they print.
Commands and outputs appear one after the other, once. Where nothing is animated, the picture shows all of them.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import tempfile
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kafka import KafkaAdminClient, OffsetAndMetadata, TopicPartition
from rich.console import Console
from rich.text import Text

import klamm
from klamm import cli
from klamm.clients import KafkaProducer

if TYPE_CHECKING:
    from collections.abc import Sequence

TARGET: Final = Path(__file__).parents[1] / "docs" / "images" / "change.svg"
WIDTH: Final = 150
_HOUR_MS: Final = 3_600_000
_METRICS: Final = "127.0.0.1:19404"
_POLL_MS: Final = 3_000
_STEP_S: Final = 1.2
"""Time between a command and its output, and between an output and the next command."""
_ANIMATION: Final = """
    @media (prefers-reduced-motion: no-preference) {
      text[style] { animation: appear .2s backwards; }
      @keyframes appear { from { opacity: 0; } }
    }
"""
_STYLES: Final = {
    r"LOSS|Impact: loss": "bold red",
    r"pending": "yellow",
    r"in line": "green",
}
FILE: Final = "orders.yaml"
DECLARED: Final = "topics:\n  orders: {configs: {retention.ms: 1h}}\n"
PLAN: Final = f"klamm plan {FILE}"
CHANGE: Final = "klamm configs --alter --user-defaults --add-config acks=all"
CLIENTS: Final = "klamm clients list"


def main() -> None:
    """Run the commands and write the picture."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    with klamm.Broker(control=True, topics={"orders": 1}, config={"metrics.listen": _METRICS}) as broker:
        fill(broker)
        changed = threading.Event()
        producer = KafkaProducer(
            bootstrap_servers=broker.bootstrap_servers,
            client_id="shop",
            acks=1,
            enable_idempotence=False,
            metadata_max_age_ms=_POLL_MS,
            on_dynamic_config_change=lambda _: changed.set(),
        )
        with contextlib.closing(producer):
            producer.send("orders", b"new").get(timeout=30)
            steps = [*show(console, f"cat {FILE}", DECLARED)]
            with tempfile.TemporaryDirectory() as directory, contextlib.chdir(directory):
                Path(FILE).write_text(DECLARED, encoding="utf-8")
                steps += show(console, PLAN, output_of(PLAN, broker))
            steps += [
                *show(console, CHANGE, output_of(CHANGE, broker)),
                *show(console, CLIENTS, output_of(CLIENTS, broker)),
            ]
            if not changed.wait(30):
                raise TimeoutError("the producer has not received its configs")
            producer.send("orders", b"new").get(timeout=30)
            note = f"# the producer requests its configs every {_POLL_MS // 1000} s"
            steps += show(console, CLIENTS, output_of(CLIENTS, broker), note=note)
    TARGET.parent.mkdir(exist_ok=True)
    picture = console.export_svg(title="klamm", unique_id="klamm")
    # A picture in a page loads no fonts, so the ones that rich names at a server are left out.
    picture = re.sub(r"\s*@font-face \{.*?\}", "", picture, flags=re.DOTALL)
    TARGET.write_text(animated(picture, steps), encoding="utf-8")


def animated(picture: str, steps: Sequence[int]) -> str:
    """Return an SVG image of rich whose lines appear step by step.

    Args:
        picture: The image, with ``klamm`` as its unique id.
        steps: Number of the first line of each step, ascending from 0. The first step is visible from the start.
    """
    delays = {line: index for index, (first, end) in enumerate(pairwise([*steps, 1000])) for line in range(first, end)}

    def delayed(match: re.Match[str]) -> str:
        delay_s = delays[int(match[1])] * _STEP_S
        return f'{match[0]} style="animation-delay:{delay_s:g}s"' if delay_s else match[0]

    picture = re.sub(r'<text\b[^>]*clip-path="url\(#klamm-line-(\d+)\)"', delayed, picture)
    return picture.replace("</style>", f"{_ANIMATION}    </style>", 1)


def fill(broker: klamm.Broker) -> None:
    """Write records of two days, of which a group has read the older half."""
    now_ms = time.time_ns() // 1_000_000
    for hours in range(48, 0, -1):
        broker.produce("orders", "x" * 10_000, key=f"k{hours}", timestamp=now_ms - hours * _HOUR_MS)
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    with contextlib.closing(admin):
        admin.alter_group_offsets("billing", {TopicPartition("orders", 0): OffsetAndMetadata(24, "", -1)})


def output_of(command: str, broker: klamm.Broker) -> str:
    """Run a command and return what it prints."""
    address = ["--metrics", _METRICS] if command == CLIENTS else ["--bootstrap-server", broker.bootstrap_servers]
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        cli.main([*shlex.split(command)[1:], *address])
    return output.getvalue()


def show(console: Console, command: str, output: str, *, note: str = "") -> tuple[int, int]:
    """Print a command and its output. Return the numbers of the first lines of both."""
    first = printed_lines(console)
    if note:
        console.print(Text(note, style="dim"))
    console.print(Text(f"$ {command}", style="bold"))
    begin = printed_lines(console)
    text = Text(output.rstrip() + "\n")
    for pattern, style in _STYLES.items():
        text.highlight_regex(re.compile(pattern), style)
    console.print(text)
    return first, begin


def printed_lines(console: Console) -> int:
    """Return the number of lines that a recording console has printed."""
    return console.export_text(clear=False).count("\n")


if __name__ == "__main__":
    main()
