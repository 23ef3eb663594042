import java.nio.charset.StandardCharsets;
import java.util.*;
import java.util.regex.*;

/** Prints for each pattern which of the texts of the first line it matches, all in Base64. */
public class MatchPatterns {
    static String text(String s) { return new String(Base64.getDecoder().decode(s), StandardCharsets.UTF_8); }
    public static void main(String[] args) throws Exception {
        String[] lines = new String(System.in.readAllBytes()).split("\n");
        List<String> texts = new ArrayList<>();
        for (String each : lines[0].split(" ", -1)) texts.add(text(each));
        for (int i = 1; i < lines.length; i++) {
            StringBuilder out = new StringBuilder();
            try {
                Pattern pattern = Pattern.compile(text(lines[i]));
                for (String each : texts) out.append(pattern.matcher(each).matches() ? '1' : '0');
            } catch (PatternSyntaxException e) { out.append("rejected"); }
            System.out.println(out);
        }
    }
}
