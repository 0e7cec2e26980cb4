// Kafka's own ProducerStateManager, asked line by line by test_producer_state_kafka.py:
//   client|coordinator|copy <producer id> <epoch> <sequence> <count> <timestamp> <attributes>
//                                               -> ok <first offset> | duplicate <first> <last> | error <name>
//   the same with a marker: <count> 0, <sequence> is the coordinator epoch, <attributes> commit or abort
//                                               -> also the transaction that it ends, with the last stable offset
//   replicated <offset>                         -> ok   (the high watermark)
//   unstable                                    -> ok <first unstable offset>, -1 without one
//   cut <end offset>                            -> ok   (the caller copies what the snapshot does not have)
//   end                                         -> ok <end offset of the state>
//   snapshot                                    -> ok
//   load <snapshot file>                        -> as dump, of that file
//   dump                                        -> <producer id>:<epoch>:<last timestamp>:<coordinator epoch>:<open since>[:<last seq>,<last offset>,<delta>]...
import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.util.Collection;
import java.util.Optional;
import java.util.TreeMap;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.errors.ApiException;
import org.apache.kafka.common.record.ControlRecordType;
import org.apache.kafka.common.record.EndTransactionMarker;
import org.apache.kafka.common.record.MemoryRecords;
import org.apache.kafka.common.record.RecordBatch;
import org.apache.kafka.common.record.SimpleRecord;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.storage.internals.log.AppendOrigin;
import org.apache.kafka.storage.internals.log.BatchMetadata;
import org.apache.kafka.storage.internals.log.CompletedTxn;
import org.apache.kafka.storage.internals.log.ProducerAppendInfo;
import org.apache.kafka.storage.internals.log.ProducerStateEntry;
import org.apache.kafka.storage.internals.log.ProducerStateManager;
import org.apache.kafka.storage.internals.log.ProducerStateManagerConfig;

public class ProducerStateOracle {
    static String dump(Collection<ProducerStateEntry> entries) {
        TreeMap<Long, String> texts = new TreeMap<>();
        for (ProducerStateEntry entry : entries) {
            StringBuilder text = new StringBuilder();
            text.append(entry.producerId()).append(':').append(entry.producerEpoch()).append(':').append(entry.lastTimestamp());
            text.append(':').append(entry.coordinatorEpoch()).append(':').append(entry.currentTxnFirstOffset().orElse(-1));
            for (BatchMetadata batch : entry.batchMetadata()) {
                text.append(':').append(batch.lastSeq).append(',').append(batch.lastOffset).append(',').append(batch.offsetDelta);
            }
            texts.put(entry.producerId(), text.toString());
        }
        return String.join(" ", texts.values());
    }

    static RecordBatch batch(long offset, String[] words) {
        long producerId = Long.parseLong(words[1]);
        short epoch = Short.parseShort(words[2]);
        int sequence = Integer.parseInt(words[3]);
        long timestamp = Long.parseLong(words[5]);
        if (words[4].equals("0")) {
            ControlRecordType type = words[6].equals("commit") ? ControlRecordType.COMMIT : ControlRecordType.ABORT;
            return MemoryRecords.withEndTransactionMarker(offset, timestamp, 0, producerId, epoch,
                new EndTransactionMarker(type, sequence)).batches().iterator().next();
        }
        SimpleRecord[] records = new SimpleRecord[Integer.parseInt(words[4])];
        for (int index = 0; index < records.length; index++) {
            records[index] = new SimpleRecord(timestamp, new byte[1]);
        }
        MemoryRecords found = words[6].equals("transactional")
            ? MemoryRecords.withTransactionalRecords(offset, Compression.NONE, producerId, epoch, sequence, 0, records)
            : MemoryRecords.withIdempotentRecords(offset, Compression.NONE, producerId, epoch, sequence, 0, records);
        return found.batches().iterator().next();
    }

    static String append(ProducerStateManager state, String[] words) {
        long offset = state.mapEndOffset();
        long producerId = Long.parseLong(words[1]);
        RecordBatch batch = batch(offset, words);
        String ended = "";
        AppendOrigin origin = words[0].equals("client") ? AppendOrigin.CLIENT
            : words[0].equals("coordinator") ? AppendOrigin.COORDINATOR : AppendOrigin.REPLICATION;
        if (origin == AppendOrigin.CLIENT) {
            Optional<BatchMetadata> found = state.lastEntry(producerId).flatMap(entry -> entry.findDuplicateBatch(batch));
            if (found.isPresent()) {
                return "duplicate " + found.get().firstOffset() + " " + found.get().lastOffset;
            }
        }
        try {
            ProducerAppendInfo info = state.prepareUpdate(producerId, origin);
            Optional<CompletedTxn> completed = info.append(batch, Optional.empty());
            state.update(info);
            if (completed.isPresent()) {
                CompletedTxn transaction = completed.get();
                ended = " ends " + transaction.firstOffset + " " + state.lastStableOffset(transaction);
                state.completeTxn(transaction);
            }
        } catch (ApiException error) {
            return "error " + error.getClass().getSimpleName();
        }
        state.updateMapEndOffset(batch.nextOffset());
        return "ok " + offset + ended;
    }

    public static void main(String[] arguments) throws Exception {
        ProducerStateManager state = new ProducerStateManager(new TopicPartition("t", 0), new File(arguments[0]), 60000,
            new ProducerStateManagerConfig(86400000, false), Time.SYSTEM);
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] words = line.split(" ");
            String answer = "ok";
            switch (words[0]) {
                case "cut" -> state.truncateAndReload(0, Long.parseLong(words[1]), 0);
                case "replicated" -> state.onHighWatermarkUpdated(Long.parseLong(words[1]));
                case "unstable" -> answer = "ok " + state.firstUnstableOffset().map(found -> found.messageOffset).orElse(-1L);
                case "end" -> answer = "ok " + state.mapEndOffset();
                case "snapshot" -> state.takeSnapshot();
                case "load" -> answer = dump(ProducerStateManager.readSnapshot(new File(words[1])));
                case "dump" -> answer = dump(state.activeProducers().values());
                default -> answer = append(state, words);
            }
            System.out.println(answer);
            System.out.flush();
        }
    }
}
