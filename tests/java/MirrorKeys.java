import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.util.Collection;
import org.apache.kafka.clients.admin.AdminClientConfig;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.common.config.ConfigDef;

/** Prints the keys that MirrorMaker's own classes define for the flow A->B, each at a place where they read it. */
public class MirrorKeys {
    static final String MIRROR = "org.apache.kafka.connect.mirror.";
    static final String RUNTIME = "org.apache.kafka.connect.runtime.";

    public static void main(String[] args) throws Exception {
        for (String connector : new String[] {"MirrorSourceConfig", "MirrorCheckpointConfig", "MirrorHeartbeatConfig"}) {
            Field names = Class.forName(MIRROR + connector).getDeclaredField("CONNECTOR_CONFIG_DEF");
            names.setAccessible(true);
            print("A->B.", ((ConfigDef) names.get(null)).names());
        }
        print("A->B.", definitions(RUNTIME + "SourceConnectorConfig").names());
        print("", definitions(MIRROR + "MirrorMakerConfig").names());
        print("B.", definitions(RUNTIME + "distributed.DistributedConfig").names());
        print("A.consumer.", ConsumerConfig.configNames());
        print("B.producer.", ProducerConfig.configNames());
        print("B.admin.", AdminClientConfig.configNames());
    }

    static ConfigDef definitions(String config) throws Exception {
        for (Method method : Class.forName(config).getDeclaredMethods()) {  // in any order, so overloads must be told apart
            Class<?>[] parameters = method.getParameterTypes();
            boolean isOurs = parameters.length == 0 || (parameters.length == 1 && parameters[0].getSimpleName().equals("Crypto"));
            if (method.getReturnType() == ConfigDef.class && method.getName().startsWith("config") && isOurs) {
                method.setAccessible(true);
                Object[] arguments = parameters.length == 0 ? new Object[0] : new Object[] {parameters[0].getField("SYSTEM").get(null)};
                return (ConfigDef) method.invoke(null, arguments);
            }
        }
        throw new NoSuchMethodException(config);
    }

    static void print(String place, Collection<String> names) {
        names.forEach(name -> System.out.println(place + name));
    }
}
