import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * The client `java` of tools/bench/transactions.py: `java TransactionLoad.java SERVERS TOPIC ID PRODUCERS PARTITIONS BYTES`.
 *
 * <p>It prints an empty line when all producers are initialized. For each line with a number of seconds it runs transactions for so
 * long, and prints the microseconds of each, then an empty line.
 */
public class TransactionLoad {
    public static void main(String[] args) throws Exception {
        String topic = args[1];
        int count = Integer.parseInt(args[3]);
        int partitions = Integer.parseInt(args[4]);
        byte[] value = new byte[Integer.parseInt(args[5])];
        List<KafkaProducer<byte[], byte[]>> producers = new ArrayList<>();
        for (int number = 0; number < count; number++) {
            Properties settings = new Properties();
            settings.put("bootstrap.servers", args[0]);
            settings.put("transactional.id", args[2] + "-" + number);
            var producer = new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
            producer.initTransactions();
            producers.add(producer);
        }
        System.out.println();
        ExecutorService pool = Executors.newFixedThreadPool(count);
        var input = new BufferedReader(new InputStreamReader(System.in));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            long until = System.nanoTime() + (long) (Double.parseDouble(line) * 1e9);
            List<Callable<List<Long>>> work = new ArrayList<>();
            for (var producer : producers) {
                work.add(() -> transactions(producer, topic, partitions, value, until));
            }
            StringBuilder answer = new StringBuilder();
            for (Future<List<Long>> times : pool.invokeAll(work)) {
                times.get().forEach(time -> answer.append(time).append('\n'));
            }
            System.out.println(answer);
        }
        System.exit(0);
    }

    static List<Long> transactions(
            KafkaProducer<byte[], byte[]> producer, String topic, int partitions, byte[] value, long until) {
        List<Long> times = new ArrayList<>();
        while (System.nanoTime() < until) {
            long began = System.nanoTime();
            producer.beginTransaction();
            for (int partition = 0; partition < partitions; partition++) {
                producer.send(new ProducerRecord<>(topic, partition, null, value));
            }
            producer.commitTransaction();
            times.add((System.nanoTime() - began) / 1000);
        }
        return times;
    }
}
