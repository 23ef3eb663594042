"""Build the images of Containerfile and Containerfile.mirror with buildah, and use them.

Usage: ``python scripts/try_images.py [--base IMAGE] [--store DIR]``. Without ``--base``, the base image of the
Containerfile is pulled; where no image registry can be reached, one is made by debootstrap. Needs root, because
containers run in buildah's chroot isolation: it needs no other container runtime, and they share the host's network.
Images are removed at the end unless ``--store`` names a directory for them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psutil  # type: ignore[import-untyped]
from kafka import KafkaConsumer, KafkaProducer

import klamm

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOT: Final = Path(__file__).parents[1]
NOT_COPIED: Final = (".git", ".venv", ".cache", "build", "dist", "__pycache__")
CERTIFICATES: Final = Path("/etc/ssl/certs/ca-certificates.crt")
PORT, METRICS_PORT, MIRROR_METRICS_PORT = 19092, 19404, 19405
DEBIAN: Final = "python3,python3-venv,python3-dev,ca-certificates"
TIMEOUT_S: Final = 120.0
MIRROR: Final = """
clusters = A, B
A.bootstrap.servers = {source}
B.bootstrap.servers = {target}
A->B.enabled = true
topics = orders
replication.factor = -1
offset.storage.replication.factor = -1
offset-syncs.topic.replication.factor = -1
checkpoints.topic.replication.factor = -1
heartbeats.topic.replication.factor = -1
"""

ARCHIVE_IS_USABLE: Final = """
from klamm.mirror.spark.class_archive import find_archive
archive = find_archive()
assert archive is not None and archive.is_usable, archive and archive.path
"""
"""Program for the mirror's image. Spark starts without the archive, too, but slowly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """A built image and its configuration."""

    name: str
    config: dict[str, Any]

    @property
    def health_command(self) -> list[str]:
        """The command of the health check."""
        kind, *command = self.config["Healthcheck"]["Test"]
        assert kind == "CMD"
        return list(command)


class Store:
    """A directory with images and containers of ours.

    Args:
        folder: Where they are kept.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def command(self, *arguments: str | Path) -> list[str]:
        """Return a buildah command that works on this store."""
        options = ["--root", self.folder / "root", "--runroot", self.folder / "run"]
        return ["buildah", *map(str, (*options, *arguments))]

    def __call__(self, *arguments: str | Path) -> str:
        """Run buildah and return its standard output; exit if it failed."""
        done = subprocess.run(self.command(*arguments), check=False, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"images: buildah {arguments[0]} failed:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
        return done.stdout.strip()

    def succeeds(self, *arguments: str) -> bool:
        """Return whether a buildah command succeeds."""
        return subprocess.run(self.command(*arguments), check=False, capture_output=True).returncode == 0

    def base_image(self, wanted: str | None) -> str:
        """Return the image to build on."""
        default = re.findall(r"^ARG PYTHON_IMAGE=(.*)$", (ROOT / "Containerfile").read_text(), re.MULTILINE)[0]
        name = str(wanted or default)
        if self.succeeds("inspect", "--type", "image", name) or self.succeeds("pull", "--quiet", name):
            return name
        print(f"images: {name} cannot be pulled; making a base image by debootstrap", flush=True)
        if shutil.which("debootstrap") is None:
            sys.exit("images: debootstrap is missing (Debian: apt-get install debootstrap)")
        with tempfile.TemporaryDirectory(prefix="klamm-base-") as folder:
            command = ["debootstrap", "--variant=minbase", f"--include={DEBIAN}", "bookworm", folder]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            Path(folder, "usr/bin/python").symlink_to("python3")
            if CERTIFICATES.exists():  # an index or a proxy may have a certificate that only this host trusts
                shutil.copy(CERTIFICATES, Path(folder, *CERTIFICATES.parts[1:]))
            container = self("from", "scratch")
            self("add", "--quiet", container, folder, "/")
        self("config", "--env", f"PIP_CERT={CERTIFICATES}", container)
        self("commit", "--quiet", "--rm", "--format", "docker", container, "localhost/klamm-base")
        return "localhost/klamm-base"

    def build(self, name: str, file: str, argument: str) -> Image:
        """Build an image. The docker format is the one that keeps health checks."""
        began = time.monotonic()
        options = ["--isolation", "chroot", "--network", "host", "--format", "docker", "--build-arg", argument]
        with tempfile.TemporaryDirectory(prefix="klamm-context-") as folder:
            # buildah walks all of its context before it ignores anything; .venv alone has 30,000 files
            shutil.copytree(ROOT, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(*NOT_COPIED))
            self("build", *options, "--tag", name, "--file", Path(folder, file), folder)
        config = json.loads(self("inspect", "--type", "image", name))["Docker"]["config"]
        print(f"images: {name} built in {time.monotonic() - began:.0f} s", flush=True)
        return Image(name=name, config=config)

    @contextlib.contextmanager
    def container_of(self, image: Image) -> Iterator[Container]:
        """Make a container and remove it afterwards."""
        container = Container(store=self, name=self("from", image.name))
        try:
            yield container
        finally:
            self("rm", container.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """A container in a store."""

    store: Store
    name: str

    def start(self, command: Sequence[str]) -> subprocess.Popen[str]:
        """Start a command, as the user of the image."""
        words = self.store.command("run", "--isolation", "chroot", "--network", "host", self.name, "--", *command)
        return subprocess.Popen(words, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def finish(process: subprocess.Popen[str], what: str) -> str:
    """Wait for the end of a command and return its output; exit if it failed."""
    said, _ = process.communicate(timeout=TIMEOUT_S)
    if process.returncode:
        sys.exit(f"images: {what} ended with {process.returncode}:\n{said[-3000:]}")
    return said


def try_broker(store: Store, image: Image) -> None:
    """Start the broker as configured, check its health, use it, stop it by SIGTERM, and start it again on its data."""
    assert image.config["User"] not in {"", "0", "root"}, "the image runs as root"
    assert list(image.config["Volumes"]) == ["/data"]
    ports = {"9092": str(PORT), "9404": str(METRICS_PORT)}
    moved = [re.sub("9092|9404", lambda found: ports[found[0]], word) for word in image.config["Cmd"]]
    command = [*image.config["Entrypoint"], *moved, "--advertise", f"127.0.0.1:{PORT}"]
    health = [word.replace("9404", str(METRICS_PORT)) for word in image.health_command]
    with store.container_of(image) as container:
        assert finish(container.start(["id", "-u"]), "id").strip() != "0"
        for attempt in range(2):
            broker = container.start(command)
            deadline = time.monotonic() + TIMEOUT_S
            while container.start(health).wait(TIMEOUT_S) != 0:
                assert time.monotonic() < deadline, "the broker did not become healthy"
                assert broker.poll() is None, "the broker ended"
            if not attempt:
                producer = KafkaProducer(bootstrap_servers=f"127.0.0.1:{PORT}")
                producer.send("orders", b"kept").get(timeout=30)
                producer.close()
            consumer = KafkaConsumer("orders", bootstrap_servers=f"127.0.0.1:{PORT}", auto_offset_reset="earliest")
            assert next(consumer).value == b"kept"
            consumer.close()
            (process,) = [found for found in psutil.Process(broker.pid).children(recursive=True) if _is_klamm(found)]
            process.send_signal(signal.SIGTERM)
            assert "Stopping" in finish(broker, "the broker")
    print(f"images: {image.name} works: healthy, not root, stops by SIGTERM, keeps its data", flush=True)


def _is_klamm(process: psutil.Process) -> bool:
    """Return whether a process is klamm itself, and not a process of buildah with klamm's command as arguments."""
    program, *arguments = process.cmdline() or [""]
    return "python" in Path(program).name and arguments[:1] == ["/opt/klamm/bin/klamm"]


def try_mirror(store: Store, image: Image) -> None:
    """Mirror a topic from one broker to another, both outside of the container."""
    with klamm.Broker() as source, klamm.Broker() as target, tempfile.TemporaryDirectory() as folder:
        producer = KafkaProducer(bootstrap_servers=source.bootstrap_servers)
        producer.send("orders", b"mirrored").get(timeout=30)
        producer.close()
        file = Path(folder, "mm2.properties")
        file.write_text(MIRROR.format(source=source.bootstrap_servers, target=target.bootstrap_servers))
        with store.container_of(image) as container:
            store("copy", "--quiet", container.name, file, "/etc/klamm/mm2.properties")
            moved = [word.replace("9404", str(MIRROR_METRICS_PORT)) for word in image.config["Cmd"]]
            # docker and podman write the container's host name into /etc/hosts, buildah does not; Spark looks it up
            host = ["env", "SPARK_LOCAL_HOSTNAME=localhost"]
            finish(container.start([*host, "python", "-c", ARCHIVE_IS_USABLE]), "the use of the class archive")
            command = [*host, *image.config["Entrypoint"], *moved, "--until-caught-up"]
            finish(container.start(command), "the mirror")
        consumer = KafkaConsumer("A.orders", bootstrap_servers=target.bootstrap_servers, auto_offset_reset="earliest")
        assert next(consumer).value == b"mirrored"
        consumer.close()
    print(f"images: {image.name} works: mirrored a topic", flush=True)


def main() -> None:
    """Build and try both images."""
    parser = argparse.ArgumentParser(prog="try_images.py", description=__doc__)
    parser.add_argument("--base", metavar="IMAGE", help="instead of PYTHON_IMAGE in the Containerfile")
    parser.add_argument("--store", type=Path, metavar="DIR", help="keep the images in this directory")
    options = parser.parse_args()
    if os.geteuid():
        sys.exit("images: run as root: sudo make images")
    with contextlib.ExitStack() as cleaning:
        folder = options.store
        if folder is None:
            folder = Path(tempfile.mkdtemp(prefix="klamm-images-"))
            cleaning.callback(shutil.rmtree, folder, ignore_errors=True)
            cleaning.callback(lambda: store.succeeds("rmi", "--all", "--force"))
        store = Store(folder)
        broker = store.build("localhost/klamm", "Containerfile", f"PYTHON_IMAGE={store.base_image(options.base)}")
        try_broker(store, broker)
        mirror = store.build("localhost/klamm-mirror", "Containerfile.mirror", f"KLAMM_IMAGE={broker.name}")
        try_mirror(store, mirror)


if __name__ == "__main__":
    main()
