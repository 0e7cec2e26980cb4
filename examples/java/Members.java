import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Deque;
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
 * A group whose members come and go, as `examples/python/members.py`; for kafka-clients 4.0 and newer.
 *
 *   ottla verify run --topic orders:40 --fault "kill coordinator of billing at 8s" -- \
 *       java -cp '.kafka/4/libs/*' examples/java/Members.java consumer 20
 *
 * The arguments are the group protocol (classic or consumer) and the largest number of members.
 */
public class Members {
    static final String TOPIC = "orders";
    static final String GROUP = "billing";
    static final long JOIN_EVERY_MS = 1000;
    static final long COMMIT_EVERY_MS = 500;
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

    /** A consumer in a thread of its own, which reports what it owns, reads and commits. */
    static class Member extends Thread implements ConsumerRebalanceListener {
        volatile boolean leaving = false;
        private final Properties settings = new Properties();
        private final Map<TopicPartition, OffsetAndMetadata> positions = new HashMap<>();
        private KafkaConsumer<String, String> consumer;

        Member(int number, String servers, String protocol) {
            super("member-" + number);
            settings.put("bootstrap.servers", servers);
            settings.put("client.id", getName());
            settings.put("group.id", GROUP);
            settings.put("group.protocol", protocol);
            settings.put("auto.offset.reset", "earliest");
            settings.put("enable.auto.commit", "false");
            if (protocol.equals("classic")) {
                settings.put(
                    "partition.assignment.strategy", "org.apache.kafka.clients.consumer.CooperativeStickyAssignor");
            }
        }

        @Override
        public void run() {
            try (var reader = new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
                consumer = reader;
                reader.subscribe(List.of(TOPIC), this);
                long committedAt = System.currentTimeMillis();
                while (!leaving) {
                    for (var record : reader.poll(Duration.ofMillis(100))) {
                        billed.add(record.key());  // the work on the record
                        report("consumed group=" + GROUP + " topic=" + TOPIC + " partition=" + record.partition()
                            + " offset=" + record.offset() + " id=" + record.key());
                        positions.put(
                            new TopicPartition(TOPIC, record.partition()), new OffsetAndMetadata(record.offset() + 1));
                    }
                    if (System.currentTimeMillis() > committedAt + COMMIT_EVERY_MS) {
                        commit();
                        committedAt = System.currentTimeMillis();
                    }
                }
                commit();  // before `close`, which no longer looks for a coordinator that has moved
            } finally {
                report("left group=" + GROUP + " member=" + getName());  // also if `close` fails
            }
        }

        private void commit() {
            if (positions.isEmpty()) {
                return;
            }
            try {
                consumer.commitSync(positions);
            } catch (KafkaException moved) {
                System.err.println(getName() + ": commit: " + moved);
                return;  // the next commit, or the partition's next owner, commits them
            }
            positions.forEach((partition, position) -> report("committed group=" + GROUP + " topic=" + TOPIC
                + " partition=" + partition.partition() + " offset=" + position.offset()));
            positions.clear();
        }

        private void tell(String event, Collection<TopicPartition> partitions) {
            for (var partition : partitions) {
                report(event + " group=" + GROUP + " member=" + getName() + " topic=" + TOPIC
                    + " partition=" + partition.partition());
            }
        }

        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
            tell("assigned", partitions);
        }

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
            if (!leaving) {
                commit();  // while they are still its own
            }
            onPartitionsLost(partitions);
        }

        @Override
        public void onPartitionsLost(Collection<TopicPartition> partitions) {
            positions.keySet().removeAll(partitions);
            tell("revoked", partitions);
        }
    }

    /** One member joins after the other until there are enough, then one after the other leaves until one is left, and so on. */
    static void comeAndGo(String servers, String protocol, int most, Thread producing) throws InterruptedException {
        Deque<Member> members = new ArrayDeque<>();
        List<Member> all = new ArrayList<>();
        boolean isGrowing = true;
        while (!stopping) {
            if (isGrowing) {
                Member member = new Member(all.size() + 1, servers, protocol);
                all.add(member);
                members.add(member);
                member.start();
            } else {
                members.remove().leaving = true;
            }
            if (members.size() == 1 || members.size() == most) {
                isGrowing = members.size() == 1;
            }
            Thread.sleep(JOIN_EVERY_MS);
        }
        producing.join();
        while (!billed.containsAll(acknowledged)) {
            Thread.sleep(100);
        }
        for (Member member : all) {
            member.leaving = true;
        }
        for (Member member : all) {
            member.join();
        }
    }

    public static void main(String[] arguments) throws Exception {
        String servers = System.getenv("BOOTSTRAP_SERVERS");
        Thread producing = new Thread(() -> produce(servers));
        Thread reading = new Thread(() -> {
            try {
                comeAndGo(servers, arguments[0], Integer.parseInt(arguments[1]), producing);
            } catch (InterruptedException stopped) {
                Thread.currentThread().interrupt();
            }
        });
        producing.start();
        reading.start();
        // SIGTERM starts this: the producer stops, and what it has written is read before the program ends.
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            stopping = true;
            try {
                reading.join();
            } catch (InterruptedException stopped) {
                Thread.currentThread().interrupt();
            }
        }));
        reading.join();
    }
}
