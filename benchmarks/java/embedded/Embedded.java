import org.springframework.kafka.test.EmbeddedKafkaBroker;
import org.springframework.kafka.test.EmbeddedKafkaKraftBroker;

/** Starts EmbeddedKafka of Spring when a byte arrives on standard input, prints its address, and ends with the next byte. */
public class Embedded {
    public static void main(String[] args) throws Exception {
        EmbeddedKafkaBroker broker = new EmbeddedKafkaKraftBroker(1, 1);
        System.in.read();
        broker.afterPropertiesSet();
        System.out.println(broker.getBrokersAsString());
        System.in.read();
        broker.destroy();
    }
}
