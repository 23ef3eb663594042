"""Admin client for klamm and Apache Kafka clusters.

::

    with AdminClient(bootstrap_servers="localhost:9092") as admin:
        admin.alter_topic_configs("orders", set={"retention.ms": 60_000}, append={"cleanup.policy": "compact"}).result()
        print(admin.topic_configs("orders").result()["retention.ms"].value)

The same in the style of KIP-339, for any resource type and several resources at once::

        topic = ConfigResource(ResourceType.TOPIC, "orders")
        result = admin.incremental_alter_configs(
            {topic: [AlterConfigOp(ConfigEntry("retention.ms", "1000"), OpType.SET)]}
        )
        result.result()  # raises the first error; result.values()[topic] is the future of one resource

``AdminClient.from_properties`` reads the properties of the Java client. Every call returns immediately. Its futures are
``concurrent.futures.Future`` objects that can also be awaited. They fail with ``KafkaApiError`` (an error code from the
broker), ``TimeoutError`` or ``ConnectionError``. Calls:

- ``alter_topic_configs(topic, set=, append=, subtract=, delete=)``, ``alter_broker_configs(id or None, ...)``,
  ``topic_configs(topic)``: one future. Altered configs return None, or the ``PolicyOverride`` of a policy of klamm
- ``incremental_alter_configs(configs, options)``, ``replace_all_configs`` (``alter_configs`` is its deprecated name),
  ``describe_configs(resources, include_synonyms=...)``: futures per ``ConfigResource``
- ``create_topics``, ``delete_topics``, ``create_partitions``, ``describe_topics``: futures per topic name
- ``list_offsets({TopicPartition: OffsetSpec or ms})``: futures per partition
- ``check_connection()``: one future, which fails at once if the cluster accepts no calls
- ``list_topics``, ``list_config_resources(type)``, ``describe_cluster``, ``describe_client_configs(filter)``: one
  future
- ``list_groups``: one future, which fails while a broker does not respond; its ``valid()`` and ``errors()`` return
  futures of the groups of the other brokers and of the errors by broker id
- ``describe_acls(filter)``: one future; ``create_acls([Acl])``: futures per ``Acl``;
  ``delete_acls([AclFilter])``: futures per filter
- ``alter_partition_reassignments({TopicPartition: broker ids or None})``, ``elect_leaders(type, partitions)``: futures
  per partition; ``list_partition_reassignments(partitions)``: one future
- ``describe_log_dirs([broker id])``: futures per broker
- ``describe_producers([TopicPartition])``, ``fetch_batches({TopicPartition: offset}, max_bytes=...)``: futures per
  partition; ``list_transactions()``: one future
- ``describe_client_quotas(filter)``: one future; ``alter_client_quotas({ClientQuotaEntity: [ClientQuotaOp]})``: futures
  per entity
- ``describe_user_scram_credentials(users)``, ``alter_user_scram_credentials([upsertion or deletion])``: futures per
  user; ``list_user_scram_credentials()``: one future
- ``describe_groups``, ``delete_groups``, ``list_group_offsets({group: partitions or None})``: futures per group;
  ``alter_group_offsets(group, {TopicPartition: OffsetAndMetadata})``, ``delete_group_offsets``: futures per partition
- ``alter_client_configs({ClientConfigEntity: [ClientConfigOp]})``: futures per entity
"""

from klamm.admin._client_configs import ClientCompatibility, ClientConfigOp, ClientConfigsDescription
from klamm.admin._credentials import (
    ScramCredentialInfo,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from klamm.admin._leader_calls import ActiveProducer
from klamm.admin._log_dirs import LogDirDescription, ReplicaInfo
from klamm.admin._quotas import ClientQuotaEntity, ClientQuotaFilter, ClientQuotaFilterComponent, ClientQuotaOp
from klamm.admin._reassignments import ElectionType, PartitionReassignment
from klamm.admin.client import AdminClient
from klamm.admin.results import (
    AlterConfigsResult,
    CreatePartitionsResult,
    CreateTopicsResult,
    DeleteTopicsResult,
    DescribeConfigsResult,
    DescribeGroupsResult,
    DescribeTopicsResult,
    ListGroupOffsetsResult,
    ListGroupsResult,
    ListOffsetsResult,
    PerKeyResult,
)
from klamm.admin.types import (
    AlterConfigOp,
    AlterConfigsOptions,
    ClusterDescription,
    ConfigEntry,
    ConfigResource,
    ConfigSynonym,
    CreatedTopic,
    GroupDescription,
    GroupListing,
    GroupMember,
    ListedOffset,
    NewPartitions,
    NewTopic,
    Node,
    OffsetAndMetadata,
    OffsetSpec,
    OpType,
    PartitionDescription,
    TopicDescription,
    TopicListing,
)
from klamm.client_configs.description import EntityFilter, FilterComponent, MatchType
from klamm.client_configs.entities import ClientConfigEntity, EntityType
from klamm.policy.answers import PolicyOverride
from klamm.protocol.errors import ErrorCode, KafkaApiError, UnsupportedVersionError
from klamm.protocol.types import ConfigSource, ResourceType, TopicPartition
from klamm.security.acls import Acl, AclFilter, AclOperation, AclPermission, AclResourceType, PatternType
from klamm.security.scram import ScramMechanism

__all__ = [
    "Acl",
    "AclFilter",
    "AclOperation",
    "AclPermission",
    "AclResourceType",
    "ActiveProducer",
    "AdminClient",
    "AlterConfigOp",
    "AlterConfigsOptions",
    "AlterConfigsResult",
    "ClientCompatibility",
    "ClientConfigEntity",
    "ClientConfigOp",
    "ClientConfigsDescription",
    "ClientQuotaEntity",
    "ClientQuotaFilter",
    "ClientQuotaFilterComponent",
    "ClientQuotaOp",
    "ClusterDescription",
    "ConfigEntry",
    "ConfigResource",
    "ConfigSource",
    "ConfigSynonym",
    "CreatePartitionsResult",
    "CreateTopicsResult",
    "CreatedTopic",
    "DeleteTopicsResult",
    "DescribeConfigsResult",
    "DescribeGroupsResult",
    "DescribeTopicsResult",
    "ElectionType",
    "EntityFilter",
    "EntityType",
    "ErrorCode",
    "FilterComponent",
    "GroupDescription",
    "GroupListing",
    "GroupMember",
    "KafkaApiError",
    "ListGroupOffsetsResult",
    "ListGroupsResult",
    "ListOffsetsResult",
    "ListedOffset",
    "LogDirDescription",
    "MatchType",
    "NewPartitions",
    "NewTopic",
    "Node",
    "OffsetAndMetadata",
    "OffsetSpec",
    "OpType",
    "PartitionDescription",
    "PartitionReassignment",
    "PatternType",
    "PerKeyResult",
    "PolicyOverride",
    "ReplicaInfo",
    "ResourceType",
    "ScramCredentialInfo",
    "ScramMechanism",
    "TopicDescription",
    "TopicListing",
    "TopicPartition",
    "UnsupportedVersionError",
    "UserScramCredentialDeletion",
    "UserScramCredentialUpsertion",
]
