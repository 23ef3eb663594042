import java.io.*;
import java.nio.charset.StandardCharsets;
import java.util.*;

/** Prints the keys and values of each properties text, all in Base64. */
public class ReadProperties {
    static String b(String s) { return Base64.getEncoder().encodeToString(s.getBytes(StandardCharsets.UTF_16BE)); }
    public static void main(String[] args) throws IOException {
        for (String line : new String(System.in.readAllBytes()).split("\n")) {
            StringBuilder out = new StringBuilder();
            try {
                Properties read = new Properties();
                read.load(new StringReader(new String(Base64.getDecoder().decode(line), StandardCharsets.UTF_8)));
                for (String key : read.stringPropertyNames())
                    out.append(b(key)).append('=').append(b(read.getProperty(key))).append(' ');
            } catch (IllegalArgumentException e) { out.append("rejected"); }
            System.out.println(out.toString().strip());
        }
    }
}
