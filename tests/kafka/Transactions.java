import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeSet;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.InvalidProducerEpochException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** Transactions by Kafka's own client: `java Transactions.java SERVERS SOURCE SINK`. Each step prints what it found. */
public class Transactions {
    static String servers;

    static KafkaProducer<String, String> producer(String id) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", servers);
        settings.put("transactional.id", id);
        var producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer());
        producer.initTransactions();
        return producer;
    }

    static KafkaConsumer<String, String> consumer(String group, String isolation) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", servers);
        settings.put("group.id", group);
        settings.put("isolation.level", isolation);
        settings.put("enable.auto.commit", "false");
        settings.put("auto.offset.reset", "earliest");
        return new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer());
    }

    /** Sorted, up to the end that a consumer of this isolation is told. */
    static List<String> read(String topic, String isolation) {
        try (var consumer = consumer("readers", isolation)) {
            List<TopicPartition> partitions = new ArrayList<>();
            consumer.partitionsFor(topic).forEach(p -> partitions.add(new TopicPartition(topic, p.partition())));
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            Map<TopicPartition, Long> ends = consumer.endOffsets(partitions);
            List<String> found = new ArrayList<>();
            while (!partitions.stream().allMatch(p -> consumer.position(p) >= ends.get(p))) {
                consumer.poll(Duration.ofMillis(200)).forEach(record -> found.add(record.value()));
            }
            Collections.sort(found);
            return found;
        }
    }

    static void write(KafkaProducer<String, String> producer, String topic, String kind, int count) {
        for (int number = 0; number < count; number++) {
            producer.send(new ProducerRecord<>(topic, number % 3, null, kind + number));
        }
        producer.flush();
    }

    /** Until the markers are written, which may be a moment after the commit was answered. */
    static List<String> readUntil(String topic, int count) throws InterruptedException {
        List<String> found = read(topic, "read_committed");
        for (int attempt = 0; found.size() < count && attempt < 100; attempt++) {
            Thread.sleep(100);
            found = read(topic, "read_committed");
        }
        return found;
    }

    static void commitsAndAborts(String topic) throws InterruptedException {
        try (var producer = producer(topic + "-java")) {
            producer.beginTransaction();
            write(producer, topic, "c", 3);
            producer.commitTransaction();
            producer.beginTransaction();
            write(producer, topic, "a", 3);
            producer.abortTransaction();
        }
        System.out.println("committed: " + readUntil(topic, 3));
        System.out.println("all: " + read(topic, "read_uncommitted"));
    }

    static void pipeline(String source, String sink) throws InterruptedException {
        int before = read(sink, "read_committed").size();
        String group = sink + "-java-group";
        int done = 0;
        try (var producer = producer(sink + "-java-pipeline"); var consumer = consumer(group, "read_committed")) {
            consumer.subscribe(List.of(source));
            for (int round = 0; done < 30; round++) {
                var records = consumer.poll(Duration.ofMillis(500));
                if (records.isEmpty()) {
                    continue;
                }
                Map<TopicPartition, OffsetAndMetadata> positions = new HashMap<>();
                producer.beginTransaction();
                for (ConsumerRecord<String, String> record : records) {
                    producer.send(new ProducerRecord<>(sink, record.partition(), null, "of " + record.value()));
                    positions.put(new TopicPartition(source, record.partition()), new OffsetAndMetadata(record.offset() + 1));
                }
                producer.sendOffsetsToTransaction(positions, consumer.groupMetadata());
                if (round == 0) {
                    producer.abortTransaction();
                    consumer.seekToBeginning(consumer.assignment());
                } else {
                    producer.commitTransaction();
                    done += records.count();
                }
            }
        }
        List<String> found = readUntil(sink, before + 30);
        found.removeIf(value -> !value.startsWith("of "));
        boolean once = new TreeSet<>(found).size() == found.size();
        System.out.println("processed: " + found.size() + (once ? ", each once" : ", some twice: " + found));
        try (var consumer = consumer(group, "read_committed")) {
            long position = 0;
            for (var partition : consumer.partitionsFor(source)) {
                var tp = new TopicPartition(source, partition.partition());
                OffsetAndMetadata committed = consumer.committed(java.util.Set.of(tp)).get(tp);
                position += committed == null ? 0 : committed.offset();
            }
            System.out.println("position: " + position);
        }
    }

    static void zombie(String topic) {
        try (var zombie = producer(topic + "-java-zombie")) {
            zombie.beginTransaction();
            write(zombie, topic, "zombie", 1);
            try (var successor = producer(topic + "-java-zombie")) {
                zombie.commitTransaction();
                System.out.println("the zombie has committed");
            } catch (ProducerFencedException | InvalidProducerEpochException fenced) {
                System.out.println("the zombie is fenced");
            }
        } catch (KafkaException closed) {
            System.out.println("an error of " + closed.getClass() + ": " + closed.getMessage());
        }
    }

    public static void main(String[] arguments) throws InterruptedException {
        servers = arguments[0];
        commitsAndAborts(arguments[2]);
        pipeline(arguments[1], arguments[2]);
        zombie(arguments[2]);
    }
}
