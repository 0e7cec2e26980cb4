// Runs Kafka's command line tools one after another in one JVM, whose start costs more than most of them do (kafka_tools.py).
//   in:   int number of words, then the words (DataOutput.writeUTF): the class and its arguments
//   out:  int exit code, int length, both outputs of the tool: first what it printed, then what it complained of
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.EOFException;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import org.apache.kafka.common.utils.Exit;

public class KafkaToolServer {
    static class Exited extends Error { }

    // The same two for all runs: Scala's console and log4j keep the streams that they find first.
    static final ByteArrayOutputStream PRINTED = new ByteArrayOutputStream();
    static final ByteArrayOutputStream COMPLAINED = new ByteArrayOutputStream();
    static int exitCode;
    static byte[] output;

    /** What the tool has said up to here is its output; a tool that catches Exited and says that too is not heard. */
    static synchronized void end(int code) {
        if (output == null) {
            ByteArrayOutputStream both = new ByteArrayOutputStream();
            both.writeBytes(PRINTED.toByteArray());
            both.writeBytes(COMPLAINED.toByteArray());
            output = both.toByteArray();
            exitCode = code;
        }
    }

    static void exited(int code, String message) {
        end(code);
        throw new Exited();
    }

    static void run(String[] words) throws Exception {
        PRINTED.reset();
        COMPLAINED.reset();
        output = null;
        String[] arguments = Arrays.copyOfRange(words, 1, words.length);
        try {
            Class.forName(words[0]).getMethod("main", String[].class).invoke(null, (Object) arguments);
            end(0);
        } catch (InvocationTargetException thrown) {
            if (output == null) {
                thrown.getCause().printStackTrace();
            }
            end(1);
        }
    }

    public static void main(String[] none) throws Exception {
        DataInputStream questions = new DataInputStream(System.in);
        DataOutputStream answers = new DataOutputStream(System.out);
        System.setOut(new PrintStream(PRINTED, true, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(COMPLAINED, true, StandardCharsets.UTF_8));
        Exit.setExitProcedure(KafkaToolServer::exited);
        Exit.setHaltProcedure(KafkaToolServer::exited);
        while (true) {
            String[] words;
            try {
                words = new String[questions.readInt()];
            } catch (EOFException end) {
                Runtime.getRuntime().halt(0);
                return;
            }
            for (int number = 0; number < words.length; number++) {
                words[number] = questions.readUTF();
            }
            run(words);
            answers.writeInt(exitCode);
            answers.writeInt(output.length);
            answers.write(output);
            answers.flush();
        }
    }
}
