import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Writes orders, reads them as a consumer group, and reports what it did for `ottla verify run`.
 *
 *   ottla verify run --topic orders:6 --fault "kill leader of orders-0 at 5s" -- java -cp '.kafka/libs/*' examples/java/Orders.java
 */
public class Orders {
    static final String TOPIC = "orders";
    static final String GROUP = "billing";
    static final Set<String> acknowledged = ConcurrentHashMap.newKeySet();
    static final Set<String> billed = ConcurrentHashMap.newKeySet();
    static volatile boolean stopping = false;

    /** println writes the line at once, and lines of two threads do not mix. */
    static void report(String line) {
        System.out.println("@ottla " + line);
    }

    static void produce(String servers) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", servers);
        settings.put("acks", "all");
        settings.put("enable.idempotence", "true");
        try (var producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            for (int number = 0; !stopping; number++) {
                String order = "order-" + number;
                report("produced topic=" + TOPIC + " id=" + order);  // before it is sent
                producer.send(new ProducerRecord<>(TOPIC, order, number + " pieces"), (place, problem) -> {
                    if (problem != null) {
                        report("failed topic=" + TOPIC + " id=" + order);
                        return;
                    }
                    report("acked topic=" + TOPIC + " partition=" + place.partition()
                        + " offset=" + (place.hasOffset() ? place.offset() : -1) + " id=" + order);
                    acknowledged.add(order);
                });
                Thread.sleep(5);
            }
        } catch (InterruptedException stopped) {
            Thread.currentThread().interrupt();
        }
    }

    static void commit(KafkaConsumer<String, String> consumer, Map<TopicPartition, OffsetAndMetadata> positions) {
        if (positions.isEmpty()) {
            return;
        }
        try {
            consumer.commitSync(positions);
        } catch (KafkaException moved) {
            return;  // the next commit will do
        }
        positions.forEach((partition, position) -> report("committed group=" + GROUP + " topic=" + TOPIC
            + " partition=" + partition.partition() + " offset=" + position.offset()));
        positions.clear();
    }

    static void consume(String servers, Thread producing) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", servers);
        settings.put("group.id", GROUP);
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", "false");
        try (var consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            Map<TopicPartition, OffsetAndMetadata> positions = new HashMap<>();
            consumer.subscribe(List.of(TOPIC), new ConsumerRebalanceListener() {
                public void onPartitionsRevoked(java.util.Collection<TopicPartition> partitions) {
                    commit(consumer, positions);
                }

                public void onPartitionsAssigned(java.util.Collection<TopicPartition> partitions) {}
            });
            while (producing.isAlive() || !billed.containsAll(acknowledged)) {
                for (var record : consumer.poll(Duration.ofMillis(100))) {
                    billed.add(record.key());  // the work on the record
                    report("consumed group=" + GROUP + " topic=" + TOPIC + " partition=" + record.partition()
                        + " offset=" + record.offset() + " id=" + record.key());
                    positions.put(
                        new TopicPartition(TOPIC, record.partition()), new OffsetAndMetadata(record.offset() + 1));
                }
                commit(consumer, positions);
            }
        }
    }

    public static void main(String[] arguments) throws Exception {
        String servers = System.getenv("BOOTSTRAP_SERVERS");
        Thread producing = new Thread(() -> produce(servers));
        Thread consuming = new Thread(() -> consume(servers, producing));
        producing.start();
        consuming.start();
        // SIGTERM starts this: the producer stops, and what it has written is read before the program ends.
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            stopping = true;
            try {
                consuming.join();
            } catch (InterruptedException stopped) {
                Thread.currentThread().interrupt();
            }
        }));
        consuming.join();
    }
}
