import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Writes orders, and an invoice for each in transactions, exactly once, and reports what it did for `ottla verify run`.
 *
 *   ottla verify run --topic orders:4 --topic invoices:4 -- java -cp '.kafka/libs/*' examples/java/ExactlyOnce.java
 *
 * The second transaction and each twentieth after it are aborted, as if an order could not be priced. The argument `--bug` plants a bug:
 * offsets are committed by the consumer, outside of the transaction, so the orders of an aborted transaction are never read again.
 */
public class ExactlyOnce {
    static final String ORDERS = "orders";
    static final String INVOICES = "invoices";
    static final String GROUP = "billing";
    static final int ABORT_EVERY = 20;
    static final Set<String> ordered = ConcurrentHashMap.newKeySet();
    static final Set<String> invoiced = ConcurrentHashMap.newKeySet();
    static volatile boolean stopping = false;
    static boolean hasBug = false;
    static int number = 0;

    static void report(String line) {
        System.out.println("@ottla " + line);
    }

    static KafkaProducer<String, String> producer(String servers, String transactionalId) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", servers);
        settings.put("acks", "all");
        settings.put("enable.idempotence", "true");
        if (transactionalId != null) {
            settings.put("transactional.id", transactionalId);
            settings.put("transaction.timeout.ms", "20000");
        }
        return new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer());
    }

    /** `within`: empty, or ` txn=NAME`. */
    static void send(KafkaProducer<String, String> producer, String topic, String id, String within) {
        report("produced topic=" + topic + within + " id=" + id);
        producer.send(new ProducerRecord<>(topic, id, ""), (place, problem) -> {
            if (problem != null) {
                report("failed topic=" + topic + within + " id=" + id);
                return;
            }
            report("acked topic=" + topic + " partition=" + place.partition() + " offset="
                + (place.hasOffset() ? place.offset() : -1) + within + " id=" + id);
            if (within.isEmpty()) {
                ordered.add(id);
            }
        });
    }

    static void order(String servers) {
        try (var producer = producer(servers, null)) {
            for (int count = 0; !stopping; count++) {
                send(producer, ORDERS, "order-" + count, "");
                Thread.sleep(10);
            }
        } catch (InterruptedException stopped) {
            Thread.currentThread().interrupt();
        }
    }

    static void bill(String servers, Thread ordering) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", servers);
        settings.put("group.id", GROUP);
        settings.put("isolation.level", "read_committed");
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", "false");
        settings.put("max.poll.records", "50");
        try (var consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(ORDERS));
            var producer = producer(servers, "billing");
            producer.initTransactions();
            while (ordering.isAlive() || (!hasBug && invoiced.size() < ordered.size())) {
                var records = consumer.poll(Duration.ofMillis(200));
                if (!records.isEmpty() && !transaction(consumer, producer, records)) {
                    producer.close(Duration.ZERO);  // its transaction has an end that nobody knows
                    producer = producer(servers, "billing");
                    producer.initTransactions();
                    goBack(consumer);
                }
            }
            producer.close();
        }
    }

    /** False: a new producer must go on. */
    static boolean transaction(
            KafkaConsumer<String, String> consumer,
            KafkaProducer<String, String> producer,
            ConsumerRecords<String, String> records) {
        String txn = "t" + ++number;
        String within = " txn=" + txn;
        report("begun" + within + " transactional-id=billing");
        try {
            producer.beginTransaction();
            Map<TopicPartition, OffsetAndMetadata> positions = new HashMap<>();
            for (var record : records) {
                report("consumed group=" + GROUP + " topic=" + ORDERS + " partition=" + record.partition()
                    + " offset=" + record.offset() + within + " id=" + record.key());
                send(producer, INVOICES, "invoice of " + record.key(), within);
                positions.put(
                    new TopicPartition(ORDERS, record.partition()), new OffsetAndMetadata(record.offset() + 1));
            }
            if (hasBug) {
                consumer.commitSync(positions);
            } else {
                producer.sendOffsetsToTransaction(positions, consumer.groupMetadata());
            }
            positions.forEach((partition, position) -> report((hasBug ? "committed" : "sent-offsets" + within)
                + " group=" + GROUP + " topic=" + ORDERS + " partition=" + partition.partition()
                + " offset=" + position.offset()));
            if (number % ABORT_EVERY == 2) {
                producer.flush();
                producer.abortTransaction();
                report("aborted-txn" + within);
                goBack(consumer);
                return true;
            }
            report("committing" + within);
            commit(producer);
        } catch (KafkaException problem) {
            System.err.println(txn + ": " + problem);
            return false;
        }
        report("committed-txn" + within);
        records.forEach(record -> invoiced.add(record.key()));
        return true;
    }

    static void commit(KafkaProducer<String, String> producer) {
        while (true) {
            try {
                producer.commitTransaction();
                return;
            } catch (TimeoutException late) {
                System.err.println("the commit is tried again: " + late);
            }
        }
    }

    /** To what is committed. */
    static void goBack(KafkaConsumer<String, String> consumer) {
        consumer.committed(consumer.assignment()).forEach((partition, position) ->
            consumer.seek(partition, position == null ? 0 : position.offset()));
    }

    public static void main(String[] arguments) throws Exception {
        hasBug = List.of(arguments).contains("--bug");
        String servers = System.getenv("BOOTSTRAP_SERVERS");
        Thread ordering = new Thread(() -> order(servers));
        Thread billing = new Thread(() -> bill(servers, ordering));
        ordering.start();
        billing.start();
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            stopping = true;
            try {
                billing.join();
            } catch (InterruptedException stopped) {
                Thread.currentThread().interrupt();
            }
        }));
        billing.join();
    }
}
