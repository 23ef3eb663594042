import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Collection;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.coordinator.group.api.assignor.ConsumerGroupPartitionAssignor;
import org.apache.kafka.coordinator.group.api.assignor.GroupSpec;
import org.apache.kafka.coordinator.group.api.assignor.MemberAssignment;
import org.apache.kafka.coordinator.group.api.assignor.MemberSubscription;
import org.apache.kafka.coordinator.group.api.assignor.SubscribedTopicDescriber;
import org.apache.kafka.coordinator.group.api.assignor.SubscriptionType;
import org.apache.kafka.coordinator.group.assignor.RangeAssignor;
import org.apache.kafka.coordinator.group.assignor.UniformAssignor;

/**
 * Answers assignment problems with the assignors of Apache Kafka's broker.
 *
 * Reads one problem per line: {"assignor": name, "topics": {number: partitions}, "members": {id: {"instance": id or null,
 * "topics": [number], "assigned": {number: [partition]}}}}. Writes {id: {number: [partition]}} for each. Each member and
 * each replica is on a rack that depends on its number.
 */
public class Assign {
    private static final ObjectMapper JSON = new ObjectMapper();

    public static void main(String[] args) throws Exception {
        BufferedReader problems = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        StringBuilder answers = new StringBuilder();
        for (String line = problems.readLine(); line != null; line = problems.readLine()) {
            answers.append(JSON.writeValueAsString(answer(JSON.readTree(line)))).append('\n');
        }
        System.out.print(answers);
    }

    private static Map<String, Map<String, Set<Integer>>> answer(JsonNode problem) {
        Group group = new Group(problem);
        ConsumerGroupPartitionAssignor assignor =
            problem.get("assignor").asText().equals("range") ? new RangeAssignor() : new UniformAssignor();
        Map<String, Map<String, Set<Integer>>> answer = new TreeMap<>();
        assignor.assign(group, group).members().forEach((member, assignment) -> {
            Map<String, Set<Integer>> shown = new TreeMap<>();
            assignment.partitions().forEach((topic, partitions) ->
                shown.put(Long.toString(topic.getLeastSignificantBits()), new TreeSet<>(partitions)));
            answer.put(member, shown);
        });
        return answer;
    }

    private static Uuid topic(String number) {
        return new Uuid(0, Long.parseLong(number));
    }

    private record Subscription(Optional<String> rackId, Optional<String> instanceId, Set<Uuid> subscribedTopicIds)
        implements MemberSubscription {
    }

    private record Assignment(Map<Uuid, Set<Integer>> partitions) implements MemberAssignment {
    }

    private static class Group implements GroupSpec, SubscribedTopicDescriber {
        private final Map<Uuid, Integer> topics = new HashMap<>();
        private final Map<String, Subscription> subscriptions = new LinkedHashMap<>();
        private final Map<String, Assignment> assignments = new HashMap<>();
        private final Map<Uuid, Set<Integer>> assigned = new HashMap<>();

        Group(JsonNode problem) {
            problem.get("topics").fields().forEachRemaining(each ->
                topics.put(topic(each.getKey()), each.getValue().asInt()));
            problem.get("members").fields().forEachRemaining(each -> add(each.getKey(), each.getValue()));
        }

        private void add(String member, JsonNode facts) {
            Set<Uuid> subscribed = new HashSet<>();
            facts.get("topics").forEach(number -> subscribed.add(topic(number.asText())));
            Map<Uuid, Set<Integer>> owned = new HashMap<>();
            facts.get("assigned").fields().forEachRemaining(each -> {
                Set<Integer> partitions = new HashSet<>();
                each.getValue().forEach(partition -> partitions.add(partition.asInt()));
                owned.put(topic(each.getKey()), partitions);
                assigned.computeIfAbsent(topic(each.getKey()), id -> new HashSet<>()).addAll(partitions);
            });
            Optional<String> instance = facts.get("instance").isNull()
                ? Optional.empty() : Optional.of(facts.get("instance").asText());
            Optional<String> rack = Optional.of("rack" + subscriptions.size() % 3);
            subscriptions.put(member, new Subscription(rack, instance, subscribed));
            assignments.put(member, new Assignment(Collections.unmodifiableMap(owned)));
        }

        @Override
        public Collection<String> memberIds() {
            return subscriptions.keySet();
        }

        @Override
        public SubscriptionType subscriptionType() {
            long different = subscriptions.values().stream().map(Subscription::subscribedTopicIds).distinct().count();
            return different <= 1 ? SubscriptionType.HOMOGENEOUS : SubscriptionType.HETEROGENEOUS;
        }

        @Override
        public boolean isPartitionAssigned(Uuid topic, int partition) {
            return assigned.getOrDefault(topic, Set.of()).contains(partition);
        }

        @Override
        public boolean isPartitionAssignable(Uuid topic, int partition) {
            return true;
        }

        @Override
        public MemberSubscription memberSubscription(String member) {
            return subscriptions.get(member);
        }

        @Override
        public MemberAssignment memberAssignment(String member) {
            return assignments.get(member);
        }

        @Override
        public int numPartitions(Uuid topic) {
            return topics.getOrDefault(topic, -1);
        }

        @Override
        public Set<String> racksForPartition(Uuid topic, int partition) {
            return Set.of("rack" + partition % 3);
        }
    }
}
