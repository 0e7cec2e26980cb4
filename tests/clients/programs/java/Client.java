import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.function.Predicate;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.InvalidProducerEpochException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.errors.TopicAuthorizationException;
import org.apache.kafka.common.errors.UnknownTopicOrPartitionException;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** Kafka's own client for Java as a program of the client matrix: `Client VERB JSON`. */
public class Client {
    static final ObjectMapper JSON = new ObjectMapper();
    static final PrintStream LINES = System.out;
    static final Duration POLL = Duration.ofMillis(200);
    static final long SEEN_WITHIN_MS = 30_000;
    static final int PARTITIONS = 2;
    static final int MORE_PARTITIONS = 4;
    static final short REPLICAS = 3;
    static final String RETENTION = "retention.ms";
    static final String SECURITY = "org.apache.kafka.common.security.";

    static JsonNode asked;
    static volatile boolean isStopped;

    public static void main(String[] arguments) throws Exception {
        System.setOut(System.err); // log lines go there
        asked = JSON.readTree(arguments[1]);
        switch (arguments[0]) {
            case "produce" -> produce();
            case "write" -> write();
            case "consume" -> consume();
            case "group" -> group();
            case "transact" -> transact();
            case "pipeline" -> pipeline();
            case "admin" -> admin();
            case "login" -> login();
            case "denied" -> denied();
            case "load" -> load();
            default -> throw new IllegalArgumentException("unknown verb " + arguments[0]);
        }
    }

    /** Loads the classes that all verbs need, for an archive of them. Nobody listens at the address. */
    static void load() {
        try (var producer = producer(Map.of());
                var consumer = consumer(Map.of("group.id", "unused"));
                var admin = Admin.create(connection())) {
            consumer.subscribe(List.of("unused"), new Assignment());
            consumer.poll(POLL);
            System.err.printf("%d and %d metrics%n", producer.metrics().size(), admin.metrics().size());
        }
    }

    // output

    /** One JSON object with these names and values, in turn. */
    static synchronized void print(Object... namesAndValues) {
        Map<String, Object> line = new LinkedHashMap<>();
        for (int at = 0; at < namesAndValues.length; at += 2) {
            line.put((String) namesAndValues[at], namesAndValues[at + 1]);
        }
        try {
            LINES.write((JSON.writeValueAsString(line) + "\n").getBytes(StandardCharsets.UTF_8));
        } catch (IOException closed) {
            throw new IllegalStateException("stdout is closed", closed);
        }
        LINES.flush();
    }

    static void printAcked(String value, RecordMetadata metadata) {
        long offset = metadata.hasOffset() ? metadata.offset() : -1;
        print("acked", value, "partition", metadata.partition(), "offset", offset);
    }

    static void complain(String what, Exception error) {
        System.err.println(what + ": " + error);
    }

    /** Sets `isStopped` when stdin is closed. */
    static void watchStdin() {
        Thread watcher = new Thread(() -> {
            try {
                while (System.in.read() >= 0) { }
            } catch (IOException closed) {
                complain("stdin", closed);
            }
            isStopped = true;
        });
        watcher.setDaemon(true);
        watcher.start();
    }

    // the clients

    static String text(String name) {
        return asked.get(name).asText();
    }

    /** Settings for a cluster, and for the login there. */
    static Properties connection() {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", text("bootstrap"));
        JsonNode security = asked.get("security");
        if (security != null) {
            settings.put("ssl.truststore.type", "PEM");
            settings.put("ssl.truststore.location", security.get("authority").asText());
            if (security.has("certificate")) {
                settings.put("security.protocol", "SSL");
                settings.put("ssl.keystore.type", "PEM");
                settings.put("ssl.keystore.location", security.get("certificate").asText());
            } else {
                settings.put("security.protocol", "SASL_SSL");
                settings.put("sasl.mechanism", security.get("mechanism").asText());
                putLogin(settings, security);
            }
        }
        return settings;
    }

    static void putLogin(Properties settings, JsonNode security) {
        String mechanism = security.get("mechanism").asText();
        if (mechanism.equals("OAUTHBEARER")) {
            String address = Path.of(security.get("token").asText()).toUri().toString();
            System.setProperty("org.apache.kafka.sasl.oauthbearer.allowed.urls", address);
            settings.put("sasl.oauthbearer.token.endpoint.url", address);
            settings.put("sasl.login.callback.handler.class", SECURITY + "oauthbearer.OAuthBearerLoginCallbackHandler");
            settings.put("sasl.jaas.config", SECURITY + "oauthbearer.OAuthBearerLoginModule required;");
        } else {
            String module = mechanism.equals("PLAIN") ? "plain.PlainLoginModule" : "scram.ScramLoginModule";
            settings.put("sasl.jaas.config", String.format(
                "%s%s required username=\"%s\" password=\"%s\";",
                SECURITY, module, security.get("user").asText(), security.get("password").asText()));
        }
    }

    static KafkaProducer<String, String> producer(Map<String, String> more) {
        Properties settings = connection();
        settings.putAll(more);
        return new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer());
    }

    static KafkaConsumer<String, String> consumer(Map<String, String> more) {
        Properties settings = connection();
        settings.put("enable.auto.commit", "false");
        settings.putAll(more);
        return new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer());
    }

    // produce

    static void produce() throws InterruptedException, ExecutionException {
        Map<String, String> settings = Map.of(
            "compression.type", text("compression"),
            "acks", text("acks"),
            "enable.idempotence", text("idempotent"));
        JsonNode values = asked.get("values");
        JsonNode keys = asked.get("keys");
        long pause = asked.path("pause_ms").asLong(0);
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        try (var producer = producer(settings)) {
            for (int number = 0; number < values.size(); number++) {
                if (number > 0 && pause > 0) {
                    Thread.sleep(pause);
                }
                String key = keys == null || keys.isNull() ? null : keys.get(number).asText();
                sent.add(send(producer, new ProducerRecord<>(text("topic"), key, values.get(number).asText())));
            }
            for (Future<RecordMetadata> one : sent) {
                one.get();
            }
        }
    }

    static void write() throws IOException {
        var lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        try (var producer = producer(Map.of("acks", "all", "enable.idempotence", text("idempotent")))) {
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                String value = line;
                producer.send(new ProducerRecord<>(text("topic"), value), (metadata, error) -> {
                    if (error == null) {
                        printAcked(value, metadata);
                    } else {
                        print("failed", value, "error", error.toString());
                    }
                });
            }
        }
    }

    static Future<RecordMetadata> send(KafkaProducer<String, String> producer, ProducerRecord<String, String> record) {
        return producer.send(record, (metadata, error) -> {
            if (error == null) {
                printAcked(record.value(), metadata);
            }
        });
    }

    // consume

    static void consume() {
        String isolation = asked.path("isolation").asText("read_uncommitted");
        TopicPartition partition = new TopicPartition(text("topic"), asked.get("partition").asInt());
        try (var consumer = consumer(Map.of("isolation.level", isolation))) {
            consumer.assign(List.of(partition));
            seek(consumer, partition, asked.get("from"));
            consumer.position(partition);
            print("ready", true);
            int left = asked.get("count").asInt();
            while (left > 0) {
                for (ConsumerRecord<String, String> record : consumer.poll(POLL)) {
                    if (left-- > 0) {
                        print("value", record.value(), "key", record.key(), "partition", record.partition(),
                            "offset", record.offset(), "timestamp_ms", record.timestamp());
                    }
                }
            }
        }
    }

    static void seek(KafkaConsumer<String, String> consumer, TopicPartition partition, JsonNode from) {
        if (from.has("offset")) {
            consumer.seek(partition, from.get("offset").asLong());
        } else if (from.has("timestamp_ms")) {
            var found = consumer.offsetsForTimes(Map.of(partition, from.get("timestamp_ms").asLong())).get(partition);
            if (found == null) {
                consumer.seekToEnd(List.of(partition));
            } else {
                consumer.seek(partition, found.offset());
            }
        } else if (from.asText().equals("latest")) {
            consumer.seekToEnd(List.of(partition));
        } else {
            consumer.seekToBeginning(List.of(partition));
        }
    }

    // group

    /** Prints the whole assignment whenever it changes. */
    static class Assignment implements ConsumerRebalanceListener {
        final TreeSet<Integer> partitions = new TreeSet<>();

        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> added) {
            added.forEach(one -> partitions.add(one.partition()));
            print("assigned", partitions);
        }

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> removed) {
            removed.forEach(one -> partitions.remove(one.partition()));
            print("assigned", partitions);
        }
    }

    static void group() {
        watchStdin();
        Map<String, String> settings = new HashMap<>(Map.of("group.id", text("group"), "auto.offset.reset", "earliest"));
        if (asked.hasNonNull("protocol")) {
            settings.put("group.protocol", text("protocol"));
        } else {
            settings.putAll(Map.of("session.timeout.ms", "6000", "heartbeat.interval.ms", "1000"));
        }
        try (var consumer = consumer(settings)) {
            consumer.subscribe(List.of(text("topic")), new Assignment());
            while (!isStopped) {
                ConsumerRecords<String, String> records = consumer.poll(POLL);
                for (ConsumerRecord<String, String> record : records) {
                    print("value", record.value(), "partition", record.partition(), "offset", record.offset());
                }
                if (!records.isEmpty()) {
                    commit(consumer, records);
                }
            }
        }
    }

    static void commit(KafkaConsumer<String, String> consumer, ConsumerRecords<String, String> records) {
        try {
            consumer.commitSync();
        } catch (KafkaException failed) {
            complain("not committed; the next commit has these offsets, too, or other members read the records again", failed);
            return;
        }
        Map<String, Long> positions = new TreeMap<>();
        records.partitions().forEach(one -> positions.put(String.valueOf(one.partition()), consumer.position(one)));
        print("committed", positions);
    }

    // transactions

    static void transact() {
        Integer partition = asked.hasNonNull("partition") ? Integer.valueOf(asked.get("partition").asInt()) : null;
        try (var producer = producer(Map.of("transactional.id", text("transactional_id")))) {
            producer.initTransactions();
            producer.beginTransaction();
            asked.get("values").forEach(value ->
                send(producer, new ProducerRecord<>(text("topic"), partition, null, value.asText())));
            producer.flush();
            if (text("end").equals("commit")) {
                producer.commitTransaction();
            } else {
                producer.abortTransaction();
            }
            print("ended", text("end"));
        }
    }

    /** Starts again with new clients after an error that ends a producer, as an application would. */
    static void pipeline() {
        watchStdin();
        while (!isStopped) {
            Map<String, String> reading = Map.of(
                "group.id", text("group"), "isolation.level", "read_committed", "auto.offset.reset", "earliest",
                "session.timeout.ms", "6000", "heartbeat.interval.ms", "1000");
            Map<String, String> writing = Map.of("transactional.id", text("transactional_id"));
            try (var consumer = consumer(reading); var producer = producer(writing)) {
                consumer.subscribe(List.of(text("source")));
                producer.initTransactions();
                while (!isStopped) {
                    ConsumerRecords<String, String> records = consumer.poll(POLL);
                    if (!records.isEmpty()) {
                        process(consumer, producer, records);
                    }
                }
            } catch (KafkaException error) {
                complain("the pipeline starts again", error);
            }
        }
    }

    /** One transaction. KafkaException: these clients cannot go on. */
    static void process(
            KafkaConsumer<String, String> consumer,
            KafkaProducer<String, String> producer,
            ConsumerRecords<String, String> records) {
        try {
            producer.beginTransaction();
            Map<TopicPartition, OffsetAndMetadata> positions = new HashMap<>();
            for (ConsumerRecord<String, String> record : records) {
                producer.send(new ProducerRecord<>(text("sink"), "processed " + record.value()));
                TopicPartition partition = new TopicPartition(record.topic(), record.partition());
                positions.put(partition, new OffsetAndMetadata(record.offset() + 1));
            }
            producer.sendOffsetsToTransaction(positions, consumer.groupMetadata());
            commitTransaction(producer);
            print("committed", records.count());
        } catch (ProducerFencedException | InvalidProducerEpochException fenced) {
            throw fenced;
        } catch (KafkaException error) {
            complain("the transaction is aborted", error);
            producer.abortTransaction();
            returnToCommitted(consumer);
        }
    }

    /** A commit that timed out may have happened: only another commit tells. */
    static void commitTransaction(KafkaProducer<String, String> producer) {
        while (true) {
            try {
                producer.commitTransaction();
                return;
            } catch (TimeoutException late) {
                complain("the commit is tried again", late);
            }
        }
    }

    static void returnToCommitted(KafkaConsumer<String, String> consumer) {
        Set<TopicPartition> assigned = consumer.assignment();
        Map<TopicPartition, OffsetAndMetadata> committed = consumer.committed(assigned);
        for (TopicPartition partition : assigned) {
            if (committed.get(partition) == null) {
                consumer.seekToBeginning(List.of(partition));
            } else {
                consumer.seek(partition, committed.get(partition));
            }
        }
    }

    // admin

    static void admin() throws Exception {
        String topic = text("topic");
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        try (Admin admin = Admin.create(connection())) {
            NewTopic wanted = new NewTopic(topic, PARTITIONS, REPLICAS).configs(Map.of(RETENTION, "3600000"));
            admin.createTopics(List.of(wanted)).all().get();
            print("did", "create_topics", "saw", topic);
            int partitions = seen(() -> partitions(admin, topic), count -> count == PARTITIONS);
            print("did", "describe_topics", "saw", partitions);
            admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(MORE_PARTITIONS))).all().get();
            partitions = seen(() -> partitions(admin, topic), count -> count == MORE_PARTITIONS);
            print("did", "create_partitions", "saw", partitions);
            ConfigEntry entry = new ConfigEntry(RETENTION, "7200000");
            AlterConfigOp change = new AlterConfigOp(entry, AlterConfigOp.OpType.SET);
            admin.incrementalAlterConfigs(Map.of(resource, List.of(change))).all().get();
            print("did", "alter_configs", "saw", entry.value());
            String retention = seen(
                () -> admin.describeConfigs(List.of(resource)).all().get().get(resource).get(RETENTION).value(),
                value -> value.equals(entry.value()));
            print("did", "describe_configs", "saw", retention);
            print("did", "list_topics", "saw", admin.listTopics().names().get());
            print("did", "list_groups", "saw", admin.listConsumerGroups().all().get().size());
            admin.deleteTopics(List.of(topic)).all().get();
            seen(() -> admin.listTopics().names().get(), names -> !names.contains(topic));
            print("did", "delete_topics", "saw", topic);
        }
    }

    // what is refused

    static void login() throws InterruptedException {
        try (Admin admin = Admin.create(connection())) {
            admin.listTopics().names().get();
            print("logged_in", true);
        } catch (ExecutionException failed) {
            print("refused", Errors.forException(failed.getCause()).name(), "saw", String.valueOf(failed.getCause()));
        }
    }

    static void refused(Throwable error, String to, String topic) {
        print("refused", Errors.forException(error).name(), "to", to, "topic", topic, "saw", String.valueOf(error));
    }

    static void denied() throws InterruptedException {
        List<String> topics = new ArrayList<>();
        asked.get("denied").forEach(topic -> topics.add(topic.asText()));
        try (var producer = producer(Map.of())) {
            asked.get("before").forEach(value -> send(producer, new ProducerRecord<>(text("topic"), value.asText())));
            for (String topic : topics) {
                try {
                    producer.send(new ProducerRecord<>(topic, "denied")).get();
                } catch (ExecutionException failed) {
                    refused(failed.getCause(), "write", topic);
                }
            }
            asked.get("after").forEach(value -> send(producer, new ProducerRecord<>(text("topic"), value.asText())));
        }
        Set<String> unrefused = new TreeSet<>(topics);
        topics.add(text("topic"));
        List<TopicPartition> partitions = topics.stream().map(topic -> new TopicPartition(topic, 0)).toList();
        try (var consumer = consumer(Map.of("auto.offset.reset", "earliest"))) {
            consumer.assign(partitions);
            int left = asked.get("before").size() + asked.get("after").size();
            while (left > 0 || !unrefused.isEmpty()) {
                try {
                    for (ConsumerRecord<String, String> record : consumer.poll(POLL)) {
                        print("value", record.value(), "partition", record.partition(), "offset", record.offset());
                        left--;
                    }
                } catch (TopicAuthorizationException error) {
                    for (String topic : error.unauthorizedTopics()) {
                        if (unrefused.remove(topic)) {
                            refused(error, "read", topic);
                        }
                    }
                }
            }
        } catch (KafkaException error) {
            if (!(error.getCause() instanceof TopicAuthorizationException)) {
                throw error;
            }
            complain("the consumer is closed", error); // `close` repeats the last error
        }
    }

    static int partitions(Admin admin, String topic) throws Exception {
        try {
            return admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic).partitions().size();
        } catch (ExecutionException failed) {
            if (failed.getCause() instanceof UnknownTopicOrPartitionException) {
                return 0; // the broker that was asked does not know the topic yet
            }
            throw failed;
        }
    }

    /** What the cluster says, as soon as it is `wanted`: a change reaches all brokers a moment after its answer. */
    static <T> T seen(Callable<T> look, Predicate<T> wanted) throws Exception {
        long deadline = System.nanoTime() + SEEN_WITHIN_MS * 1_000_000;
        while (true) {
            T found = look.call();
            if (wanted.test(found)) {
                return found;
            }
            if (System.nanoTime() > deadline) {
                throw new IllegalStateException("the cluster still says " + found);
            }
            Thread.sleep(50);
        }
    }
}
