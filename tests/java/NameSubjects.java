import java.nio.charset.StandardCharsets;
import java.util.*;
import javax.security.auth.x500.X500Principal;

/** Prints the text of each X.500 name, or the error, in Base64. */
public class NameSubjects {
    public static void main(String[] args) throws Exception {
        for (String line : new String(System.in.readAllBytes()).split("\n")) {
            String name;
            try {
                name = "=" + new X500Principal(Base64.getDecoder().decode(line)).getName(X500Principal.RFC2253);
            } catch (RuntimeException e) {
                name = "!" + e;
            }
            System.out.println(Base64.getEncoder().encodeToString(name.getBytes(StandardCharsets.UTF_8)));
        }
    }
}
