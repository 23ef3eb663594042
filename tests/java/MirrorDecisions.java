import java.io.StringReader;
import java.lang.reflect.Constructor;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import org.apache.kafka.connect.mirror.MirrorCheckpointConfig;
import org.apache.kafka.connect.mirror.MirrorHeartbeatConfig;
import org.apache.kafka.connect.mirror.MirrorMakerConfig;
import org.apache.kafka.connect.mirror.MirrorSourceConfig;
import org.apache.kafka.connect.mirror.MirrorSourceConnector;
import org.apache.kafka.connect.mirror.ReplicationPolicy;
import org.apache.kafka.connect.mirror.SourceAndTarget;

/**
 * Prints what MirrorMaker's own classes make of properties files.
 *
 * The arguments are names of topics and of groups, parted by commas. Each line read is one file in Base64. Each line
 * written holds the decisions of one enabled flow as key=value, parted by tabs; a line "." ends each file.
 */
public class MirrorDecisions {
    public static void main(String[] names) throws Exception {
        for (String line : new String(System.in.readAllBytes(), StandardCharsets.US_ASCII).split("\n")) {
            try {
                Properties file = new Properties();
                file.load(new StringReader(new String(Base64.getDecoder().decode(line), StandardCharsets.UTF_8)));
                Map<String, String> properties = new HashMap<>(Map.of("plugin.discovery", "service_load"));
                file.stringPropertyNames().forEach(key -> properties.put(key, file.getProperty(key)));
                MirrorMakerConfig config = new MirrorMakerConfig(properties);
                List<String> out = new ArrayList<>();
                for (SourceAndTarget pair : config.clusterPairs()) {
                    Map<String, String> base = config.connectorBaseConfig(pair, MirrorSourceConnector.class);
                    if (new MirrorSourceConfig(base).getBoolean("enabled")) {
                        out.add(decisions(pair, base, config, names[0].split(","), names[1].split(",")));
                    }
                }
                out.forEach(System.out::println);
            } catch (Throwable error) {
                Throwable cause = error instanceof InvocationTargetException ? error.getCause() : error;
                System.out.println("error=" + String.valueOf(cause).split("\n")[0]);
            }
            System.out.println(".");
        }
    }

    static String decisions(SourceAndTarget pair, Map<String, String> base, MirrorMakerConfig config, String[] topics,
            String[] groups) throws Exception {
        MirrorSourceConfig source = new MirrorSourceConfig(base);
        MirrorCheckpointConfig checkpoint = new MirrorCheckpointConfig(base);
        MirrorHeartbeatConfig heartbeat = new MirrorHeartbeatConfig(base);
        Map<String, String> out = new TreeMap<>(Map.of("flow", pair.toString()));
        for (String name : List.of("refreshTopicsInterval", "syncTopicConfigsInterval", "syncTopicAclsInterval")) {
            out.put(name, interval(call(source, name)));
        }
        for (String name : List.of("emitCheckpointsInterval", "syncGroupOffsetsInterval", "refreshGroupsInterval")) {
            out.put(name, interval(call(checkpoint, name)));
        }
        out.put("emitHeartbeatsInterval", interval(call(heartbeat, "emitHeartbeatsInterval")));
        for (String name : List.of("offsetSyncsTopic", "checkpointsTopic", "replicationFactor", "maxOffsetLag")) {
            out.put(name, String.valueOf(call(source, name)));
        }
        try {
            out.put("offsetsTopic", config.workerConfig(pair).get("offset.storage.topic"));
        } catch (Exception e) {  // a file of a config provider is missing
            out.put("offsetsTopic", "?");
        }
        String from = source.getString("source.cluster.alias"), to = source.getString("target.cluster.alias");
        out.put("aliases", from + ">" + to);
        Constructor<?> constructor = null;
        for (Constructor<?> each : MirrorSourceConnector.class.getDeclaredConstructors()) {
            constructor = each.getParameterCount() == 5 ? each : constructor;
        }
        constructor.setAccessible(true);
        Object connector = constructor.newInstance(new SourceAndTarget(from, to), call(source, "replicationPolicy"),
            call(source, "topicFilter"), call(source, "configPropertyFilter"),
            call(source, "heartbeatsReplicationEnabled"));
        StringBuilder mirrored = new StringBuilder();
        for (String topic : topics) {
            if ((boolean) call(connector, "shouldReplicateTopic", topic)) {
                mirrored.append(topic).append('>').append(call(connector, "formatRemoteTopic", topic)).append(' ');
            }
        }
        out.put("topics", mirrored.toString().trim());
        StringBuilder chosen = new StringBuilder();
        Object filter = call(checkpoint, "groupFilter");
        for (String group : groups) {
            if ((boolean) call(filter, "shouldReplicateGroup", group)) {
                chosen.append(group).append(' ');
            }
        }
        out.put("groups", chosen.toString().trim());
        StringBuilder line = new StringBuilder();
        out.forEach((key, value) -> line.append(line.length() == 0 ? "" : "\t").append(key).append('=').append(value));
        return line.toString();
    }

    static String interval(Object duration) {
        return ((Duration) duration).isNegative() ? "off" : String.valueOf(((Duration) duration).toSeconds());
    }

    static Object call(Object object, String name, Object... arguments) throws Exception {
        for (Class<?> type = object.getClass(); type != null; type = type.getSuperclass()) {
            for (Method method : type.getDeclaredMethods()) {
                if (method.getName().equals(name) && method.getParameterCount() == arguments.length) {
                    method.setAccessible(true);
                    return method.invoke(object, arguments);
                }
            }
        }
        throw new NoSuchMethodException(name);
    }
}
