import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.util.Arrays;
import java.util.Base64;
import java.util.concurrent.LinkedBlockingQueue;
import org.apache.kafka.common.utils.Exit;

/**
 * Runs tools of Kafka one after the other in one process, as a start of Java takes most of their time.
 *
 * Each line read is the tool's stdin in Base64, a class and its arguments, parted by tabs; each line written is the exit
 * code, and what the tool wrote to stdout and stderr in Base64.
 */
public class Tools {
    public static void main(String[] none) throws Exception {
        PrintStream answers = System.out;
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        LinkedBlockingQueue<Integer> codes = new LinkedBlockingQueue<>();
        Exit.setExitProcedure((code, message) -> {
            codes.add(code);
            while (true) {  // a tool does not go on behind its exit
                sleep();
            }
        });
        String line;
        while ((line = lines.readLine()) != null) {
            ByteArrayOutputStream out = new ByteArrayOutputStream();
            ByteArrayOutputStream err = new ByteArrayOutputStream();
            System.setOut(new PrintStream(out, true));
            System.setErr(new PrintStream(err, true));
            String[] words = line.split("\t", -1);
            System.setIn(new ByteArrayInputStream(Base64.getDecoder().decode(words[0])));
            Thread tool = new Thread(() -> codes.add(run(words)));
            tool.setDaemon(true);
            tool.start();
            int code = codes.take();
            answers.println(code + " " + encoded(out) + " " + encoded(err));
            answers.flush();
        }
    }

    private static int run(String[] words) {
        try {
            Object arguments = Arrays.copyOfRange(words, 2, words.length);
            Class.forName(words[1]).getMethod("main", String[].class).invoke(null, arguments);
            return 0;
        } catch (InvocationTargetException error) {
            error.getCause().printStackTrace();
            return 1;
        } catch (ReflectiveOperationException error) {
            throw new IllegalStateException(error);
        }
    }

    private static void sleep() {
        try {
            Thread.sleep(Long.MAX_VALUE);
        } catch (InterruptedException ignored) {
            // nobody interrupts it
        }
    }

    private static String encoded(ByteArrayOutputStream bytes) {
        return "=" + Base64.getEncoder().encodeToString(bytes.toByteArray());
    }
}
