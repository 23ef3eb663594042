"""Generate the message classes in ``src/klamm/protocol/messages`` from Kafka's message schemas.

The schemas are the JSON files that kafka-python ships as data, and those in ``src/klamm/protocol/schemas``: klamm's
own, and messages that kafka-python does not have yet. ``schemas/metadata`` has the records of KRaft's metadata log;
their classes are messages whose API key is the record type, as in Kafka.
Names, types, versions and defaults are taken over, texts are not. Run by ``make generate``; a test checks that
what is committed is what this script writes.
"""

from __future__ import annotations

import json
import re
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

SOURCE = Path(__file__).resolve().parent.parent / "src" / "klamm" / "protocol"
LATEST = 32767
"""Stands for an open range of versions."""

PYTHON_TYPES = {
    "bool": "bool",
    "int8": "int",
    "int16": "int",
    "uint16": "int",
    "int32": "int",
    "uint32": "int",
    "int64": "int",
    "float64": "float",
    "string": "str",
    "bytes": "bytes",
    "records": "bytes | bytearray | memoryview",
    "uuid": "UUID",
}
APIS = (
    "Produce",
    "Fetch",
    "ListOffsets",
    "Metadata",
    "OffsetCommit",
    "OffsetFetch",
    "FindCoordinator",
    "JoinGroup",
    "Heartbeat",
    "LeaveGroup",
    "SyncGroup",
    "DescribeGroups",
    "ListGroups",
    "SaslHandshake",
    "CreateTopics",
    "DeleteTopics",
    "DeleteRecords",
    "InitProducerId",
    "OffsetForLeaderEpoch",
    "AddPartitionsToTxn",
    "AddOffsetsToTxn",
    "EndTxn",
    "WriteTxnMarkers",
    "DescribeAcls",
    "CreateAcls",
    "DeleteAcls",
    "DescribeConfigs",
    "AlterConfigs",
    "DescribeLogDirs",
    "SaslAuthenticate",
    "CreatePartitions",
    "ElectLeaders",
    "IncrementalAlterConfigs",
    "AlterPartitionReassignments",
    "ListPartitionReassignments",
    "OffsetDelete",
    "DescribeClientQuotas",
    "AlterClientQuotas",
    "DescribeUserScramCredentials",
    "AlterUserScramCredentials",
    "DescribeQuorum",
    "DescribeCluster",
    "DescribeProducers",
    "DescribeTransactions",
    "ListTransactions",
    "ListConfigResources",
    "DescribeTopicPartitions",
)


def snake(name: str) -> str:
    """Return ``ThrottleTimeMs`` as ``throttle_time_ms``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def load(path: Path) -> dict[str, Any]:
    """Read a schema; Kafka's files hold comments."""
    text = re.sub(r"^\s*//.*$", "", path.read_text("utf-8"), flags=re.MULTILINE)
    schema: dict[str, Any] = json.loads(text)
    return schema


def schema_files() -> Iterator[tuple[str, Path, Path]]:
    """Yield (API name, request schema, response schema)."""
    spec = find_spec("kafka")
    assert spec is not None
    assert spec.origin is not None
    kafka = Path(spec.origin).parent / "protocol" / "schemas" / "resources"
    for api in APIS:
        yield api, kafka / f"{api}Request.json", kafka / f"{api}Response.json"
    for path in sorted((SOURCE / "schemas").glob("*Request.json")):
        api = path.name.removesuffix("Request.json")
        yield api, path, path.with_name(f"{api}Response.json")


def versions(text: str | None) -> tuple[int, int] | None:
    """Parse ``3``, ``0-2``, ``4+`` or ``none``."""
    if text is None or text == "none":
        return None
    if text.endswith("+"):
        return int(text[:-1]), LATEST
    first, _, last = text.partition("-")
    return int(first), int(last or first)


def _plain_default(kind: str, given: Any) -> Any:
    match kind:
        case "string":
            return given or ""
        case "bytes" | "records":
            return b""
        case "bool":
            return str(given).lower() == "true"
        case "float64":
            return float(given or 0)
        case _:
            return int(str(given), 0) if given not in {None, ""} else 0


class Writer:
    """Writes the class of one message with its nested structs."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self.schema = schema
        self.structs = {struct["name"]: struct for struct in schema.get("commonStructs", [])}
        self.message = schema["name"]
        self.lines: list[str] = []

    def write(self) -> list[str]:
        """Return the lines of the class."""
        low, high = versions(self.schema["validVersions"]) or (0, 0)
        flexible = versions(self.schema.get("flexibleVersions"))
        self._collect(self.schema["fields"])
        key = "record type" if self.schema["type"] == "metadata" else "key"
        head = [
            f"class {self.message}(Message):",
            f'    """{self.message}, {key} {self.schema["apiKey"]}."""',
            "",
            f"    API_KEY = {self.schema['apiKey']}",
            f"    VERSIONS = ({low}, {high})",
            f"    FLEXIBLE_FROM = {flexible[0] if flexible else None}",
        ]
        self.lines = head
        for name in self._in_order():
            self._struct(name, self.structs[name]["fields"])
        self.lines.append("")
        self._body(self.schema["fields"], "    ")
        for name in self._in_order():
            self._fields(f"{self.message}.{name}", self.structs[name]["fields"])
        self._fields(self.message, self.schema["fields"])
        return self.lines

    def _collect(self, fields: list[dict[str, Any]]) -> None:
        for field in list(fields):
            if "fields" in field:
                name = field["type"].removeprefix("[]")
                self.structs.setdefault(name, {"name": name, "fields": field["fields"]})
                self._collect(field["fields"])
        for struct in self.schema.get("commonStructs", []):
            if struct.get("collected") is None:
                struct["collected"] = True
                self._collect(struct["fields"])

    def _in_order(self) -> list[str]:
        """Structs before those that contain them."""
        order: list[str] = []

        def visit(name: str) -> None:
            if name in order:
                return
            for field in self.structs[name]["fields"]:
                inner = field["type"].removeprefix("[]")
                if inner in self.structs:
                    visit(inner)
            order.append(name)

        for name in self.structs:
            visit(name)
        return order

    def _struct(self, name: str, fields: list[dict[str, Any]]) -> None:
        self.lines += ["", f"    class {name}(Struct):", f'        """{name} of {self.message}."""', ""]
        self._body(fields, "        ")

    def _body(self, fields: list[dict[str, Any]], pad: str) -> None:
        names = [snake(field["name"]) for field in fields]
        slots = ", ".join(f'"{name}"' for name in names) + ("," if len(names) == 1 else "")
        self.lines += [f"{pad}__slots__ = ({slots})", "", f"{pad}def __init__(", f"{pad}    self,"]
        if fields:
            self.lines.append(f"{pad}    *,")
        self.lines += [f"{pad}    {snake(field['name'])}: {self._annotation(field)}," for field in fields]
        self.lines.append(f"{pad}) -> None:")
        for field, name in zip(fields, names, strict=True):
            self.lines.append(f"{pad}    self.{name} = {self._assigned(field, name)}")
        if not fields:
            self.lines.append(f"{pad}    pass")

    def _fields(self, owner: str, fields: list[dict[str, Any]]) -> None:
        """Behind the class, since a nested class does not see its siblings' names."""
        self.lines += ["", f"{owner}.FIELDS = ("]
        self.lines += [f"    {self._field(field)}," for field in fields]
        self.lines.append(")")

    def _kind(self, field: Mapping[str, Any]) -> tuple[str, bool]:
        return field["type"].removeprefix("[]"), field["type"].startswith("[]")

    def _default(self, field: Mapping[str, Any]) -> Any:
        """Return the default of a field; ``...`` for one that is created each time."""
        kind, is_array = self._kind(field)
        given = field.get("default")
        if given == "null" or (kind == "records" and field.get("nullableVersions")):
            return None
        if is_array:
            return []
        if kind in self.structs or kind == "uuid":
            return ...
        return _plain_default(kind, given)

    def _field(self, field: Mapping[str, Any]) -> str:
        kind, is_array = self._kind(field)
        low, high = versions(field.get("versions") or field.get("taggedVersions")) or (0, LATEST)
        parts = [f'"{snake(field["name"])}"', f'"{"struct" if kind in self.structs else kind}"', f"({low}, {high})"]
        if is_array:
            parts.append("is_array=True")
        if kind in self.structs:
            parts.append(f"struct={self.message}.{kind}")
        if nullable := versions(field.get("nullableVersions")):
            parts.append(f"nullable_versions={nullable}")
        if "tag" in field:
            parts.append(f"tag={field['tag']}, tagged_versions={versions(field['taggedVersions'])}")
        default = self._default(field)
        if default is ...:
            parts.append("default=ZERO_UUID" if kind == "uuid" else "default=()")
        elif default is not None:
            parts.append(f"default={'()' if default == [] else repr(default)}")
        return f"Field({', '.join(parts)})"

    def _annotation(self, field: Mapping[str, Any]) -> str:
        kind, is_array = self._kind(field)
        default = self._default(field)
        python = f"{self.message}.{kind}" if kind in self.structs else PYTHON_TYPES[kind]
        if is_array:
            python = f"list[{python}]"
        if default == [] and field.get("nullableVersions"):
            return f"{python} | tuple[()] | None = ()"
        may_be_none = field.get("nullableVersions") is not None or default is None
        if may_be_none or default in ([], ...):
            python += " | None" if kind != "uuid" or is_array else ""
        if kind == "uuid" and not is_array:
            return f"{python} = ZERO_UUID"
        return f"{python} = {'None' if default in ([], ...) else repr(default)}"

    def _assigned(self, field: Mapping[str, Any], name: str) -> str:
        kind, _ = self._kind(field)
        default = self._default(field)
        if default == []:
            if field.get("nullableVersions"):
                return f"[] if isinstance({name}, tuple) else {name}"
            python = f"{self.message}.{kind}" if kind in self.structs else PYTHON_TYPES[kind]
            return f"{name} if {name} is not None else list[{python}]()"
        if default is ... and kind in self.structs:
            return f"{name} if {name} is not None else {self.message}.{kind}()"
        return name


def render(title: str, schemas: Iterable[Path]) -> str:
    """Return the module with the messages of some schemas."""
    lines = [
        f'"""{title}, generated by scripts/generate_messages.py from Kafka\'s schemas: do not edit."""',
        "",
        "from __future__ import annotations",
        "",
    ]
    bodies = [Writer(load(path)).write() for path in schemas]
    text = "\n".join("\n".join(body) for body in bodies)
    if "UUID" in text:
        lines += ["from uuid import UUID", ""]
    lines.append("from klamm.protocol.schema import Field, Message" + (", Struct" if "(Struct)" in text else ""))
    if "ZERO_UUID" in text:
        lines += ["", "ZERO_UUID = UUID(int=0)"]
    for body in bodies:
        lines += ["", "", *body]
    return "\n".join(lines) + "\n"


def rendered() -> dict[Path, str]:
    """Return every generated file with its text."""
    target = SOURCE / "messages"
    files = {
        target / f"{snake(api)}.py": render(f"Messages of {api}", (request, response))
        for api, request, response in schema_files()
    }
    records = sorted((SOURCE / "schemas" / "metadata").glob("*.json"))
    files[target / "metadata_records.py"] = render("Records of the metadata log", records)
    files[target / "__init__.py"] = (
        '"""Wire messages, one module per API, generated by scripts/generate_messages.py."""\n'
    )
    return files


def main() -> int:
    """Write the files; with ``--check`` tell which differ."""
    files = rendered()
    if "--check" in sys.argv:
        stale = [path.name for path, text in files.items() if not path.exists() or path.read_text("utf-8") != text]
        if stale:
            sys.stderr.write(f"Out of date, run make generate: {', '.join(stale)}\n")
        return 1 if stale else 0
    (SOURCE / "messages").mkdir(exist_ok=True)
    for path, text in files.items():
        path.write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
