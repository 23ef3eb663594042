"""Apache Kafka's own jars from Maven and a runner for the programs in them."""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final

from klamm.class_archive import ClassArchive, lock
from tests.support.class_archives import CACHE, ROOT
from tests.support.processes import die_with_this_thread, start_process

if TYPE_CHECKING:
    from collections.abc import Sequence

_BROKER_POM = ROOT / "tests" / "java" / "pom.xml"
_TOOLS_POM = ROOT / "tests" / "java" / "tools" / "pom.xml"
_STREAMS_POM = ROOT / "tests" / "java" / "streams" / "pom.xml"
_SPARK_POM = ROOT / "tests" / "java" / "spark" / "pom.xml"
STREAMS: Final = ROOT / "tests" / "java" / "streams" / "Count.java"
"""Program of Kafka Streams. Its arguments are in its comment."""
KAFKA_RELEASE: Final = "4.4.0"
"""Release of the real Kafka that the tests ask, the default in ``tests/java/pom.xml``."""
TOOLS_RELEASE: Final = "4.3.1"
"""Release of Kafka's tools, the default in ``tests/java/tools/pom.xml``. Its class path holds the broker as well."""
_LOG_SETTINGS = ROOT / "tests" / "java" / "log4j2.properties"
_MAVEN_TIMEOUT_S = 600
QUICK_TO_START: Sequence[str] = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""JVM options for programs that live for seconds. ``quick_to_start`` returns more of them for Kafka's programs."""


class JavaUnavailableError(RuntimeError):
    """Java, Maven or the artifacts are unavailable. The message names which, and what was tried."""


def java_executable() -> str:
    """Return the ``java`` of JAVA_HOME, else of PATH.

    Raises:
        JavaUnavailableError: Neither is there.
    """
    home = os.environ.get("JAVA_HOME")
    if home and (candidate := Path(home) / "bin" / "java").is_file():
        return str(candidate)
    if found := shutil.which("java"):
        return found
    raise JavaUnavailableError("no java on PATH and no JAVA_HOME: install a Java 17 or 21 runtime")


def class_path() -> str:
    """Return the class path of Kafka's tools and MirrorMaker 2. See ``class_path_of``."""
    return class_path_of(_TOOLS_POM)


def broker_class_path(release: str = KAFKA_RELEASE) -> str:
    """Return the class path of Kafka's broker in a release. See ``class_path_of``."""
    if release == TOOLS_RELEASE:
        return class_path()
    return class_path_of(_BROKER_POM, None if release == KAFKA_RELEASE else release)


def streams_class_path() -> str:
    """Return the class path of Kafka Streams. See ``class_path_of``."""
    return class_path_of(_STREAMS_POM)


def spark_connector_jars() -> list[str]:
    """Return Spark's connector to Kafka and the jars that it needs and pyspark does not have. See ``class_path_of``."""
    needed = ("spark-sql-kafka-", "spark-token-provider-kafka-", "kafka-clients-", "commons-pool2-")
    return [jar for jar in class_path_of(_SPARK_POM).split(":") if Path(jar).name.startswith(needed)]


def clients_class_path() -> str:
    """Return the class path of Kafka's tools over the Java clients of the broker's release."""
    clients = [jar for jar in broker_class_path().split(":") if Path(jar).name.startswith("kafka-clients-")]
    return ":".join((*clients, class_path()))


@functools.cache
def class_path_of(pom: Path, kafka_release: str | None = None) -> str:
    """Return the class path of the dependencies of a Maven project.

    The first call asks Maven and remembers the answer under ``.cache/java``; later runs need neither Maven nor network.

    Args:
        pom: Project file.
        kafka_release: Value of the project's property ``kafka.version``. None for the one in the project file.

    Raises:
        JavaUnavailableError: Maven is missing or could not resolve the artifacts.
    """
    digest = hashlib.sha256(pom.read_bytes() + (kafka_release or "").encode()).hexdigest()[:16]
    remembered = CACHE / "java" / f"{digest}.classpath"
    with lock(CACHE / "java" / ".lock"):
        if not _is_complete(remembered):
            _resolve(pom, kafka_release, remembered)
        return remembered.read_text().strip()


def quick_to_start(jars: str | None = None) -> Sequence[str]:
    """Return the JVM options for programs of Kafka that live for seconds.

    Args:
        jars: Class path. None for that of Kafka's tools.
    """
    return (*QUICK_TO_START, *kafka_archive(jars).options())


def kafka_archive(jars: str | None = None) -> ClassArchive:
    """Return the class archive of Kafka's jars. The first ``KafkaCluster`` of a checkout writes it."""
    program = Path(java_executable()).resolve()
    identity = (class_path() if jars is None else jars, program, program.stat().st_mtime_ns)
    return ClassArchive(CACHE / "java", "kafka", identity)


def _is_complete(remembered: Path) -> bool:
    return remembered.is_file() and all(Path(jar).is_file() for jar in remembered.read_text().strip().split(":"))


def _resolve(pom: Path, kafka_release: str | None, target: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise JavaUnavailableError("no mvn on PATH: install maven (Apache Kafka comes from Maven)")
    java_executable()
    fresh = target.with_suffix(".new")
    command = [
        maven, "-q", "-B", "-f", str(pom), "dependency:build-classpath",
        f"-Dmdep.outputFile={fresh}", "-Dmdep.includeScope=runtime",
        *([f"-Dkafka.version={kafka_release}"] if kafka_release else []),
    ]  # fmt: skip
    try:
        done = subprocess.run(
            command,
            env={"MAVEN_OPTS": " ".join(QUICK_TO_START), **os.environ},
            capture_output=True,
            text=True,
            timeout=_MAVEN_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise JavaUnavailableError(f"Maven did not answer within {_MAVEN_TIMEOUT_S} s: {' '.join(command)}") from error
    if done.returncode != 0 or not fresh.is_file():
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-5:])
        raise JavaUnavailableError(f"Maven could not resolve {pom} (exit {done.returncode}): {tail}")
    fresh.rename(target)


def java_command(
    main_class: str,
    *args: str,
    heap: str = "256m",
    jvm_options: Sequence[str] | None = None,
    jars: str | None = None,
) -> list[str]:
    """Return the command that runs a class of Kafka's jars.

    Args:
        main_class: Fully qualified name, e.g. ``org.apache.kafka.tools.TopicCommand``.
        *args: Its arguments.
        heap: ``-Xmx``.
        jvm_options: Further options. None: those of ``quick_to_start``; benchmarks pass their own.
        jars: Class path. None for that of Kafka's tools.
    """
    options = quick_to_start(jars) if jvm_options is None else jvm_options
    return [
        java_executable(), f"-Xmx{heap}", *options, "-Xshare:auto", f"-Dlog4j2.configurationFile={_LOG_SETTINGS}",
        "-cp", class_path() if jars is None else jars, main_class, *args,
    ]  # fmt: skip


def java_tool(
    main_class: str,
    *args: str,
    stdin: str = "",
    timeout_s: float = 300.0,
    heap: str = "256m",
    jvm_options: Sequence[str] | None = None,
    jars: str | None = None,
) -> str:
    """Run one of Kafka's Java programs to its end and return its stdout.

    Raises:
        subprocess.CalledProcessError: It failed; the error carries both outputs.
        subprocess.TimeoutExpired: It took longer than ``timeout_s`` seconds.
    """
    done = subprocess.run(
        java_command(main_class, *args, heap=heap, jvm_options=jvm_options, jars=jars),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        preexec_fn=die_with_this_thread(),
    )
    if done.returncode != 0:
        error = subprocess.CalledProcessError(done.returncode, (main_class, *args), done.stdout, done.stderr)
        error.add_note(f"stdout: {done.stdout[-2000:]}\nstderr: {done.stderr[-2000:]}")
        raise error
    return done.stdout


def start_java(
    main_class: str,
    *args: str,
    log: Path | None = None,
    stdin: int | None = subprocess.DEVNULL,
    stdout: int | None = None,
    heap: str = "256m",
    jars: str | None = None,
) -> subprocess.Popen[bytes]:
    """Start one of Kafka's Java programs in the background; it ends with the calling thread."""
    return start_process(java_command(main_class, *args, heap=heap, jars=jars), log=log, stdin=stdin, stdout=stdout)
