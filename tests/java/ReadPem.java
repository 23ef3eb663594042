import java.nio.charset.StandardCharsets;
import java.util.*;
import org.apache.kafka.common.config.types.Password;
import org.apache.kafka.common.security.ssl.DefaultSslEngineFactory;

/** Prints for each key and certificate, in PEM and Base64, whether Kafka's clients accept them. */
public class ReadPem {
    static Password text(String s) {
        return new Password(new String(Base64.getDecoder().decode(s), StandardCharsets.UTF_8));
    }
    public static void main(String[] none) throws Exception {
        for (String line : new String(System.in.readAllBytes()).split("\n")) {
            String[] given = line.split(" ");
            Map<String, Object> settings = new HashMap<>(Map.of("ssl.protocol", "TLSv1.3", "ssl.cipher.suites",
                List.of(), "ssl.enabled.protocols", List.of("TLSv1.3"), "ssl.keystore.type", "PEM",
                "ssl.truststore.type", "PEM", "ssl.keystore.key", text(given[0]),
                "ssl.keystore.certificate.chain", text(given[1]), "ssl.truststore.certificates", text(given[1])));
            try (DefaultSslEngineFactory factory = new DefaultSslEngineFactory()) {
                factory.configure(settings);
                System.out.println("accepted");
            } catch (Exception e) { System.out.println("rejected"); }
        }
    }
}
