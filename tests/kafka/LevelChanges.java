import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Properties;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * One transactional producer: `java LevelChanges.java SERVERS TOPIC`. It does what each line of its input says, and answers with a line:
 * `begin` a transaction and write to partition 0: begun; `end` it after a record to partition 1, or `commit` it: committed, or aborted.
 */
public class LevelChanges {
    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("transactional.id", "level-changes");
        String topic = arguments[1];
        var lines = new BufferedReader(new InputStreamReader(System.in));
        try (var producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            producer.initTransactions();
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                boolean writes = line.equals("end");
                System.out.println(line.equals("begin") ? begin(producer, topic) : end(producer, topic, writes));
            }
        }
    }

    static String begin(KafkaProducer<String, String> producer, String topic) {
        producer.beginTransaction();
        producer.send(new ProducerRecord<>(topic, 0, null, "first"));
        producer.flush();
        return "begun";
    }

    static String end(KafkaProducer<String, String> producer, String topic, boolean writes) {
        try {
            if (writes) {
                producer.send(new ProducerRecord<>(topic, 1, null, "second"));
            }
            producer.commitTransaction();
            return "committed";
        } catch (KafkaException refused) {
            producer.abortTransaction();
            return "aborted";
        }
    }
}
