"""Files of resources: single files, directories, overlays for environments, and Strimzi's manifests.

A file has one section per kind; docs/gitops.md shows them all::

    defaults:
      topics: {replication_factor: 3, ignore: [max.message.bytes]}
    topics:
      orders: {partitions: 6, configs: {retention.ms: 604800000}}
    users:
      billing: {authentication: {type: scram-sha-512, password: {env: BILLING_PASSWORD}}}

A directory stands for one cluster if it has a file ``klamm.yaml``, which names the cluster and the directories that it
changes (``bases``). A directory above such directories stands for all of their clusters.
"""

from __future__ import annotations

from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from klamm.lazy_dataclass import dataclass
from klamm.properties import SettingsError, file_error
from klamm.resources.kinds import ALIASES, KIND_OF, MARKS, RESOURCES, file_shape, named_shape
from klamm.resources.shapes import check, optional_in_overlays
from klamm.resources.specs import declared_resources, unmanaged_resources
from klamm.strict_yaml import StrictYamlError, load_yaml_documents

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from klamm.resources.model import Declared, ResourceKey

CLUSTER_FILE: Final = "klamm.yaml"
_SUFFIXES: Final = frozenset({".yaml", ".yml", ".json"})
_STRIMZI: Final = "kafka.strimzi.io/"
_ANNOTATION: Final = "klamm/"
_MANAGED: Final = "strimzi.io/managed"
_MANIFESTS: Final = {"KafkaTopic": "topics", "KafkaUser": "users"}
_SECTIONS: Final = dict.fromkeys(KIND_OF, named_shape("definitions", "mapping"))
_MANIFEST: Final = named_shape("manifest")
_REMOVED: Final = object()
"""Value of a key that an overlay removes. It stays until the defaults are merged, because it removes a default, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFiles:
    """The resources that files declare for one cluster."""

    cluster: str | None
    """Name of the cluster in the user's profiles. None if the files do not name one."""
    path: Path
    resources: tuple[Declared, ...]


@dataclass(slots=True)
class _Layer:
    """Declarations before they are checked, by section and name. Later ones change earlier ones."""

    specs: dict[tuple[str, str], Any] = field(default_factory=dict)
    places: dict[tuple[str, str], str] = field(default_factory=dict)
    managed: dict[tuple[str, str], bool] = field(default_factory=dict)
    """Whether resources are compared and changed at all, as far as files say so."""
    defaults: dict[str, Any] = field(default_factory=dict)
    cluster: str | None = None
    bases: tuple[Path, ...] = ()

    def add(self, section: str, name: str, spec: Any, place: str) -> None:
        """Add a declaration.

        Raises:
            SettingsError: Another file of the same directory declares this resource.
        """
        if (section, name) in self.specs:
            raise SettingsError(f"{place}: is declared in {self.places[section, name]} as well; expected once")
        self.specs[section, name] = spec
        self.places[section, name] = place

    def change(self, over: _Layer) -> None:
        """Apply the declarations of a layer above this one. One without content removes that of a lower layer."""
        for key, spec in over.specs.items():
            if spec is None and key in self.specs:
                del self.specs[key], self.places[key]
                self.managed.pop(key, None)
                continue
            self.specs[key] = merged(self.specs[key], spec) if key in self.specs else spec
            self.places[key] = over.places[key]
        self.managed |= over.managed
        self.defaults = merged(self.defaults, over.defaults)
        self.cluster = over.cluster or self.cluster


def read_files(path: Path) -> tuple[ClusterFiles, ...]:
    """Return what a file or a directory declares, for each cluster in it. Hidden directories are skipped.

    Raises:
        SettingsError: A file cannot be read or is invalid, or two directories declare the same cluster. The message has
            the file, the resource, the key, the value and what is allowed.
    """
    if not path.is_dir():
        return (_cluster_files(path),)
    if not (path / CLUSTER_FILE).exists():
        clusters: dict[str, ClusterFiles] = {}
        for directory in sorted(file.parent for file in path.rglob(CLUSTER_FILE)):
            if any(name.startswith(".") for name in directory.relative_to(path).parts):
                continue
            files = _cluster_files(directory)
            if files.cluster is None:
                continue
            if files.cluster in clusters:  # with --prune, each would delete what only the other declares
                other = clusters[files.cluster].path
                raise SettingsError(
                    f"{directory}: cluster {files.cluster} is declared in {other} as well; expected once"
                )
            clusters[files.cluster] = files
        if clusters:
            return tuple(clusters.values())
    return (_cluster_files(path),)


def parse_documents(text: str, path: Path = Path("-")) -> tuple[Declared, ...]:
    """Return the resources of the text of one file.

    Raises:
        SettingsError: As of ``read_files``.
    """
    layer = _Layer()
    _parse(path, text, layer, may_set_cluster=True)
    return _declared(layer)


def merged(base: Any, over: Any) -> Any:
    """Return ``base`` changed by ``over``: mappings key by key, where null removes a key; anything else is replaced."""
    if not isinstance(base, dict) or not isinstance(over, dict):
        return over
    result = dict(base)
    for key, value in over.items():
        if value is None:
            result[key] = _REMOVED
        else:
            result[key] = merged(result[key], value) if key in result else value
    return result


def _without_removed(spec: Any) -> Any:
    if not isinstance(spec, dict):
        return spec
    return {key: _without_removed(value) for key, value in spec.items() if value is not _REMOVED}


def _cluster_files(path: Path) -> ClusterFiles:
    layer = _stacked(path, ())
    return ClusterFiles(cluster=layer.cluster, path=path, resources=_declared(layer))


def _declared(layer: _Layer) -> tuple[Declared, ...]:
    resources: dict[ResourceKey, Declared] = {}
    for (section, name), spec in layer.specs.items():
        place = layer.places[section, name]
        if layer.managed.get((section, name), True):
            spec_with_defaults = merged(layer.defaults.get(section, {}), {} if spec is None else spec)
            declared = declared_resources(section, name, _without_removed(spec_with_defaults), place)
        else:
            declared = unmanaged_resources(section, name, _without_removed(spec), place)
        for resource in declared:
            if resource.key in resources:
                other = resources[resource.key].place
                raise SettingsError(f"{place}: {resource.key} is declared in {other} as well; expected once")
            resources[resource.key] = resource
    return tuple(resources.values())


def _stacked(path: Path, above: tuple[Path, ...]) -> _Layer:
    """Return the declarations of a path on top of those of its bases."""
    here = path.resolve()
    if here in above:
        raise SettingsError(f"{path}: bases: the directories are bases of each other: expected none twice")
    own = _Layer()
    files = tuple(_files(path))
    if not files:  # such as a directory that is not mounted: --prune would delete everything
        raise SettingsError(f"{path}: expected at least one file *.yaml, *.yml or *.json in the directory")
    for file in files:
        _read(file, own, may_set_cluster=file.name == CLUSTER_FILE or not path.is_dir())
    result = _Layer()
    for base in own.bases:
        lower = _stacked(base, (*above, here))
        lower.cluster = None
        result.change(lower)
    result.change(own)
    return result


def _files(path: Path) -> Iterator[Path]:
    if not path.is_dir():
        yield path
        return
    for child in sorted(path.iterdir()):
        if child.is_dir():
            if not child.name.startswith(".") and not (child / CLUSTER_FILE).exists():
                yield from _files(child)
        elif child.suffix in _SUFFIXES:
            yield child


def _read(file: Path, layer: _Layer, *, may_set_cluster: bool) -> None:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{file}: cannot be read: {file_error(error)}") from error
    _parse(file, text, layer, may_set_cluster=may_set_cluster)


def _parse(file: Path, text: str, layer: _Layer, *, may_set_cluster: bool) -> None:
    try:
        documents = load_yaml_documents(text)
    except StrictYamlError as error:
        raise SettingsError(f"{file}: {error}") from error
    if not documents:
        documents = [None]
    for document in documents:
        if isinstance(document, dict) and "apiVersion" in document:
            _add_manifest(file, document, layer)
        else:
            _add_sections(file, document, layer, may_set_cluster=may_set_cluster)


def _add_sections(file: Path, document: Any, layer: _Layer, *, may_set_cluster: bool) -> None:
    check(f"{file}: ", document, file_shape(_SECTIONS, may_set_cluster=may_set_cluster))
    for section in KIND_OF:
        for name, spec in document.get(section, {}).items():
            layer.add(section, name, _renamed(spec), f"{file}: {section}.{name}")
    for section, spec in document.get("defaults", {}).items():
        renamed = _renamed(spec)
        check(f"{file}: defaults.{section}", renamed, optional_in_overlays(RESOURCES[section]))
        layer.defaults = merged(layer.defaults, {section: renamed})
    layer.cluster = document.get("cluster", layer.cluster)
    layer.bases += tuple(_bases(file, document.get("bases", ())))


def _bases(file: Path, names: Iterable[str]) -> Iterator[Path]:
    for name in names:
        base = file.parent / name
        if not base.exists():
            raise SettingsError(f"{file}: bases: {name}: expected a directory or file relative to {file.parent}")
        yield base


def _add_manifest(file: Path, document: dict[str, Any], layer: _Layer) -> None:
    """Add Strimzi's KafkaTopic or KafkaUser. Other Kubernetes objects are none of klamm's resources."""
    items = document.get("items")
    if isinstance(items, list):
        for item in items:
            if isinstance(item, dict):
                _add_manifest(file, item, layer)
        return
    section = _MANIFESTS.get(str(document.get("kind")))
    if section is None or not str(document["apiVersion"]).startswith(_STRIMZI):
        return
    place = f"{file}: {document['kind']}"
    content = {key: document[key] for key in ("metadata", "spec") if document.get(key) is not None}
    check(place, content, _MANIFEST)
    metadata, spec = content["metadata"], _renamed(content.get("spec", {}))
    name, annotations = metadata["name"], metadata.get("annotations", {})
    place = f"{place} {name}"
    spec.pop("template", None)  # of the Kubernetes secret that the operator creates
    marks = {mark: annotations[_ANNOTATION + mark] for mark in MARKS if _ANNOTATION + mark in annotations}
    if "prune" in marks:
        marks["prune"] = {"true": True, "false": False}.get(marks["prune"], marks["prune"])
    if "ignore" in marks:
        marks["ignore"] = [pattern.strip() for pattern in str(marks["ignore"]).split(",")]
    name = str(spec.pop("topicName", name))
    layer.add(section, name, {**spec, **marks}, place)
    if _MANAGED in annotations:
        layer.managed[section, name] = annotations[_MANAGED] not in ("false", False)


def _renamed(spec: Any) -> Any:
    return {ALIASES.get(key, key): value for key, value in spec.items()} if isinstance(spec, dict) else spec
