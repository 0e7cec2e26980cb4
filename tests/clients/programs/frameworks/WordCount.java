import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import java.io.IOException;
import java.io.PrintStream;
import java.util.Arrays;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.kstream.Produced;

/**
 * The word count of Kafka Streams: `WordCount run JSON`, with "bootstrap", "source", "sink", "application", "guarantee", "state", and
 * perhaps "settings" of Kafka Streams.
 *
 * Each word of the source makes a record in the sink: the word, and how often it has been read until now. No cache joins two counts of
 * a word. Prints {"state": its state} whenever that changes, and {"error": [an exception, its cause, ...]} when one ends a thread, and so
 * the application. Ends when stdin is closed.
 */
public class WordCount {
    static final PrintStream LINES = System.out;
    static final ObjectMapper JSON = new ObjectMapper();

    static synchronized void say(JsonNode line) {
        LINES.println(line);
        LINES.flush();
    }

    /** The error, its cause, the cause of that, and so on. */
    static ArrayNode withCauses(Throwable error) {
        ArrayNode found = JSON.createArrayNode();
        for (Throwable each = error; each != null; each = each.getCause()) {
            found.add(each.toString());
        }
        return found;
    }

    static Topology topology(String source, String sink) {
        StreamsBuilder builder = new StreamsBuilder();
        builder.<String, String>stream(source)
            .flatMapValues(line -> Arrays.asList(line.split(" ")))
            .groupBy((key, word) -> word)
            .count()
            .toStream()
            .mapValues(String::valueOf)
            .to(sink, Produced.with(Serdes.String(), Serdes.String()));
        return builder.build();
    }

    public static void main(String[] arguments) throws IOException {
        System.setOut(System.err); // log lines go there
        JsonNode asked = JSON.readTree(arguments[1]);
        Properties settings = new Properties();
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, asked.get("bootstrap").asText());
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, asked.get("application").asText());
        settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, asked.get("guarantee").asText());
        settings.put(StreamsConfig.STATE_DIR_CONFIG, asked.get("state").asText());
        settings.put(StreamsConfig.REPLICATION_FACTOR_CONFIG, 3);
        settings.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, 2);
        settings.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, 100);
        settings.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 0);
        settings.put(StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
        settings.put(StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
        settings.put(StreamsConfig.consumerPrefix(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG), "earliest");
        settings.put(StreamsConfig.consumerPrefix(ConsumerConfig.SESSION_TIMEOUT_MS_CONFIG), 6000);
        settings.put(StreamsConfig.consumerPrefix(ConsumerConfig.HEARTBEAT_INTERVAL_MS_CONFIG), 1000);
        asked.path("settings").fields().forEachRemaining(each -> settings.put(each.getKey(), each.getValue().asText()));
        KafkaStreams streams = new KafkaStreams(topology(asked.get("source").asText(), asked.get("sink").asText()), settings);
        streams.setStateListener((now, before) -> say(JSON.createObjectNode().put("state", now.toString())));
        streams.setUncaughtExceptionHandler(error -> {
            say(JSON.createObjectNode().set("error", withCauses(error)));
            return StreamThreadExceptionResponse.SHUTDOWN_CLIENT; // as without a handler
        });
        streams.start();
        while (System.in.read() >= 0) { }
        streams.close();
    }
}
