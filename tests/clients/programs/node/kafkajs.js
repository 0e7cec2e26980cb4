// Drives kafkajs for the client matrix.
//
//   node kafkajs.js VERB JSON
//
// kafkajs has gzip. Snappy, LZ4 and zstd come from packages, through the hook that kafkajs has for codecs.
const { randomUUID } = require("crypto");
const { readFileSync } = require("fs");
const { createInterface } = require("readline");
const { CompressionCodecs, CompressionTypes, Kafka, Partitioners, logLevel } = require("kafkajs");

const SESSION_TIMEOUT_MS = 6000;
const HEARTBEAT_INTERVAL_MS = 1000;
const MAX_WAIT_MS = 250;
const ADMIN_TIMEOUT_MS = 60000;
const RETRY_PAUSE_MS = 50;
// By default, 10 s before the end: a login that counts for less time would be renewed before each request, which brokers refuse.
const REAUTHENTICATION_THRESHOLD_MS = 500;
const RETRY = { initialRetryTime: 50, maxRetryTime: 1000, retries: 100 };
const FETCH = 1; // the API key

const print = (line) => process.stdout.write(`${JSON.stringify(line)}\n`);
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const textOf = (bytes) => (bytes === null ? null : bytes.toString());
const stdinCloses = () => new Promise((resolve) => process.stdin.on("end", resolve).resume());

const XERIAL_MAGIC = Buffer.from([0x82, 0x53, 0x4e, 0x41, 0x50, 0x50, 0x59, 0x00]);
const XERIAL_HEADER_SIZE = 16;

// Some clients put Snappy into blocks with a header of the library snappy-java.
const uncompressSnappy = async (bytes) => {
  const snappy = require("snappy");
  if (!bytes.subarray(0, XERIAL_MAGIC.length).equals(XERIAL_MAGIC)) return snappy.uncompress(bytes, { asBuffer: true });
  const blocks = [];
  for (let start = XERIAL_HEADER_SIZE; start < bytes.length; ) {
    const end = start + 4 + bytes.readInt32BE(start);
    blocks.push(await snappy.uncompress(bytes.subarray(start + 4, end), { asBuffer: true }));
    start = end;
  }
  return Buffer.concat(blocks);
};

let zstdIsLoaded;
const withZstd = async (use) => {
  const zstd = require("@bokuweb/zstd-wasm");
  await (zstdIsLoaded ??= zstd.init());
  return Buffer.from(use(zstd));
};

CompressionCodecs[CompressionTypes.Snappy] = () => ({
  compress: (encoder) => require("snappy").compress(encoder.buffer),
  decompress: uncompressSnappy,
});
CompressionCodecs[CompressionTypes.LZ4] = () => ({
  compress: (encoder) => require("lz4-napi").compressFrame(encoder.buffer),
  decompress: (bytes) => require("lz4-napi").decompressFrame(bytes),
});
CompressionCodecs[CompressionTypes.ZSTD] = () => ({
  compress: (encoder) => withZstd((zstd) => zstd.compress(encoder.buffer)),
  decompress: (bytes) => withZstd((zstd) => zstd.decompress(bytes)),
});

const secure = ({ authority, certificate, mechanism, user, password, token }) => {
  const ssl = { ca: [readFileSync(authority, "utf-8")] };
  if (certificate !== undefined) {
    const own = readFileSync(certificate, "utf-8"); // and its key
    return { ssl: { ...ssl, cert: own, key: own } };
  }
  if (token === undefined) return { ssl, sasl: { mechanism: mechanism.toLowerCase(), username: user, password } };
  const oauthBearerProvider = async () => ({ value: readFileSync(token, "utf-8") });
  const sasl = { mechanism: mechanism.toLowerCase(), oauthBearerProvider };
  return { ssl, sasl, reauthenticationThreshold: REAUTHENTICATION_THRESHOLD_MS };
};

const connectTo = ({ bootstrap, security }) =>
  new Kafka({
    brokers: bootstrap.split(","),
    ...(security === undefined ? {} : secure(security)),
    retry: RETRY,
    logLevel: logLevel.WARN,
    logCreator: () => ({ label, log }) => console.error(`${label} ${JSON.stringify(log)}`),
  });

// One request at a time keeps the order. An idempotent producer must not give up.
const newProducer = (client, settings) =>
  client.producer({
    ...settings,
    createPartitioner: Partitioners.DefaultPartitioner,
    maxInFlightRequests: 1,
    retry: settings.idempotent ? { ...RETRY, retries: Number.MAX_SAFE_INTEGER } : RETRY,
  });

// Sends one record, and prints where it is. With acks=0 kafkajs does not say.
const send = async (sender, { topic, message, ...settings }) => {
  const [place] = await sender.send({ topic, messages: [message], ...settings });
  print({ acked: message.value, partition: place?.partition ?? -1, offset: Number(place?.baseOffset ?? -1) });
};

const produce = async (request) => {
  const codecs = {
    none: CompressionTypes.None,
    gzip: CompressionTypes.GZIP,
    snappy: CompressionTypes.Snappy,
    lz4: CompressionTypes.LZ4,
    zstd: CompressionTypes.ZSTD,
  };
  const acks = { all: -1, 1: 1, 0: 0 }[request.acks];
  const producer = newProducer(connectTo(request), { idempotent: request.idempotent });
  await producer.connect();
  for (const [index, value] of request.values.entries()) {
    if (index > 0) await pause(request.pause_ms);
    const message = { value, key: request.keys?.[index] ?? null };
    await send(producer, { topic: request.topic, message, acks, compression: codecs[request.compression] });
  }
  await producer.disconnect();
};

const write = async ({ topic, idempotent, ...connection }) => {
  const producer = newProducer(connectTo(connection), { idempotent });
  await producer.connect();
  for await (const value of createInterface({ input: process.stdin })) {
    try {
      await send(producer, { topic, message: { value } });
    } catch (problem) {
      print({ failed: value, error: String(problem) });
    }
  }
  await producer.disconnect();
};

const newConsumer = (client, groupId, isolation) =>
  client.consumer({
    groupId,
    sessionTimeout: SESSION_TIMEOUT_MS,
    heartbeatInterval: HEARTBEAT_INTERVAL_MS,
    maxWaitTimeInMs: MAX_WAIT_MS,
    readUncommitted: isolation === "read_uncommitted",
    retry: RETRY,
  });

// kafkajs reads in groups only. The group has one member and commits nothing; other partitions are paused.
const consume = async (request) => {
  const { topic, partition, from, count } = request;
  const client = connectTo(request);
  const admin = client.admin();
  await admin.connect();
  let start = from.offset;
  if (from.timestamp_ms !== undefined) {
    const found = await admin.fetchTopicOffsetsByTimestamp(topic, from.timestamp_ms);
    start = found.find((place) => place.partition === partition).offset;
  }
  const groupId = `alone-${randomUUID()}`;
  const consumer = newConsumer(client, groupId, request.isolation);
  await consumer.connect();
  await consumer.subscribe({ topics: [topic], fromBeginning: from === "earliest" });
  consumer.on(consumer.events.GROUP_JOIN, ({ payload }) => {
    const others = payload.memberAssignment[topic].filter((other) => other !== partition);
    consumer.pause([{ topic, partitions: others }]);
  });
  let isReady = false;
  const sayReady = () => {
    if (!isReady) print({ ready: true });
    isReady = true;
  };
  // This event follows the answer to a Fetch: the position is known.
  consumer.on(consumer.events.REQUEST, ({ payload }) => payload.apiKey === FETCH && sayReady());
  let seen = 0;
  await new Promise((resolve, reject) => {
    consumer.on(consumer.events.CRASH, ({ payload }) => payload.restart || reject(payload.error));
    consumer
      .run({
        autoCommit: false,
        eachBatch: async ({ batch, resolveOffset, heartbeat }) => {
          for (const { key, value, offset, timestamp } of batch.messages) {
            if (seen < count) {
              sayReady();
              const place = { partition: batch.partition, offset: Number(offset), timestamp_ms: Number(timestamp) };
              print({ value: textOf(value), key: textOf(key), ...place });
              seen += 1;
            }
            resolveOffset(offset);
          }
          await heartbeat();
          if (seen >= count) resolve();
        },
      })
      .catch(reject);
    if (start !== undefined) consumer.seek({ topic, partition, offset: String(start) });
  });
  await consumer.disconnect();
  await admin.deleteGroups([groupId]);
  await admin.disconnect();
};

const group = async (request) => {
  if (request.protocol) {
    print({ unsupported: "KafkaJS has no groups of the new kind" });
    process.exit(3);
  }
  const { topic } = request;
  const consumer = newConsumer(connectTo(request), request.group, request.isolation);
  await consumer.connect();
  await consumer.subscribe({ topics: [topic], fromBeginning: true });
  consumer.on(consumer.events.GROUP_JOIN, ({ payload }) => {
    print({ assigned: (payload.memberAssignment[topic] ?? []).sort((a, b) => a - b) });
  });
  const crash = new Promise((_, reject) => {
    consumer.on(consumer.events.CRASH, ({ payload }) => payload.restart || reject(payload.error));
  });
  await consumer.run({
    autoCommit: false,
    eachBatch: async ({ batch: { partition, messages }, resolveOffset, heartbeat, isRunning, isStale }) => {
      let next;
      for (const { value, offset } of messages) {
        if (!isRunning() || isStale()) break;
        print({ value: textOf(value), partition, offset: Number(offset) });
        resolveOffset(offset);
        next = (BigInt(offset) + 1n).toString();
        await heartbeat();
      }
      if (next === undefined) return;
      await consumer.commitOffsets([{ topic, partition, offset: next }]);
      print({ committed: { [partition]: Number(next) } });
    },
  });
  await Promise.race([stdinCloses(), crash]);
  await consumer.disconnect(); // leaves the group
};

const transact = async (request) => {
  const { topic, partition } = request;
  const producer = newProducer(connectTo(request), { idempotent: true, transactionalId: request.transactional_id });
  await producer.connect();
  const transaction = await producer.transaction();
  for (const value of request.values) {
    await send(transaction, { topic, message: { value, ...(partition === undefined ? {} : { partition }) } });
  }
  await (request.end === "commit" ? transaction.commit() : transaction.abort());
  print({ ended: request.end });
  await producer.disconnect();
};

// A commit is acknowledged before the group shows its offsets, and kafkajs does not ask for stable offsets (KIP-447): a
// consumer that joined again in between would read the records once more.
const showsCommit = async (admin, groupId, topic, partition, next) => {
  for (;;) {
    const [found] = await admin.fetchOffsets({ groupId, topics: [topic] });
    const place = found.partitions.find((other) => other.partition === partition);
    if (place !== undefined && BigInt(place.offset) >= BigInt(next)) return;
    await pause(RETRY_PAUSE_MS);
  }
};

// Records keep their partition. kafkajs 2.2 remembers what it has sent by broker, and chooses a partition again for each
// attempt: if a send goes to several leaders and one of them moves, records are left out or written twice.
const pipeline = async (request) => {
  const { source, sink } = request;
  const client = connectTo(request);
  const producer = newProducer(client, { idempotent: true, transactionalId: request.transactional_id });
  const admin = client.admin();
  const consumer = newConsumer(client, request.group, "read_committed");
  await producer.connect();
  await admin.connect();
  await consumer.connect();
  await consumer.subscribe({ topics: [source], fromBeginning: true });
  const crash = new Promise((_, reject) => {
    consumer.on(consumer.events.CRASH, ({ payload }) => payload.restart || reject(payload.error));
  });
  await consumer.run({
    autoCommit: false,
    eachBatchAutoResolve: false,
    eachBatch: async ({ batch: { partition, messages }, resolveOffset, heartbeat }) => {
      if (messages.length === 0) return;
      const next = (BigInt(messages[messages.length - 1].offset) + 1n).toString();
      const transaction = await producer.transaction();
      try {
        const processed = messages.map(({ key, value }) => ({ key, partition, value: `processed ${textOf(value)}` }));
        await transaction.send({ topic: sink, messages: processed });
        await transaction.sendOffsets({
          consumerGroupId: request.group,
          topics: [{ topic: source, partitions: [{ partition, offset: next }] }],
        });
        await transaction.commit();
      } catch (problem) {
        if (transaction.isActive()) await transaction.abort();
        throw problem; // the batch is read again
      }
      await showsCommit(admin, request.group, source, partition, next);
      resolveOffset(messages[messages.length - 1].offset);
      print({ committed: messages.length });
      await heartbeat();
    },
  });
  await Promise.race([stdinCloses(), crash]);
  await consumer.disconnect();
  await admin.disconnect();
  await producer.disconnect();
};

// Waits until the broker that is asked knows `count` partitions: brokers learn of them one after another.
const describe = async (admin, topic, count) => {
  for (const deadline = Date.now() + ADMIN_TIMEOUT_MS; ; await pause(RETRY_PAUSE_MS)) {
    const { topics } = await admin.fetchTopicMetadata({ topics: [topic] });
    const { partitions } = topics[0];
    if (partitions.length === count) return { partitions: count, replicas: partitions[0].replicas.length };
    if (Date.now() > deadline) throw new Error(`${topic} has ${partitions.length} partitions, and not ${count}`);
  }
};

const administrate = async (request) => {
  const { topic } = request;
  const admin = connectTo(request).admin();
  const resource = { type: 2, name: topic }; // a topic
  const did = (step, saw) => print({ did: step, saw });
  await admin.connect();

  const configEntries = [{ name: "retention.ms", value: "3600000" }];
  await admin.createTopics({ topics: [{ topic, numPartitions: 2, replicationFactor: 3, configEntries }] });
  did("create_topics", { topic });
  did("describe_topics", await describe(admin, topic, 2));

  await admin.createPartitions({ topicPartitions: [{ topic, count: 4 }] });
  did("create_partitions", await describe(admin, topic, 4));

  const changed = [{ name: "retention.ms", value: "7200000" }];
  await admin.alterConfigs({ validateOnly: false, resources: [{ ...resource, configEntries: changed }] });
  did("alter_configs", { "retention.ms": "7200000" });

  const { resources } = await admin.describeConfigs({ resources: [{ ...resource, configNames: ["retention.ms"] }] });
  const described = resources[0].configEntries.map(({ configName, configValue }) => [configName, configValue]);
  did("describe_configs", Object.fromEntries(described));

  did("list_topics", await admin.listTopics());
  const { groups } = await admin.listGroups();
  did("list_groups", groups.map(({ groupId }) => groupId));

  await admin.deleteTopics({ topics: [topic] });
  did("delete_topics", { topic });
  await admin.disconnect();
};

// Kafka's name of an error that a broker has answered. kafkajs keeps it, in the cause perhaps, but for a failed login.
const nameOf = (problem) => {
  if (problem.name === "KafkaJSSASLAuthenticationError") return "SASL_AUTHENTICATION_FAILED";
  return problem.type ?? problem.cause?.type ?? problem.name;
};

// kafkajs takes the first answer to a refused token for a login: only the next request fails.
const logIn = async (request) => {
  const admin = connectTo(request).admin({ retry: { ...RETRY, retries: 2 } });
  try {
    await admin.connect();
    await admin.listTopics();
    print({ logged_in: true });
  } catch (problem) {
    print({ refused: nameOf(problem.cause ?? problem), saw: problem.message });
  }
  await admin.disconnect();
};

// The error that ends a consumer of the topic, or the values that it has read.
const readAll = async (request, topic, count) => {
  const consumer = newConsumer(connectTo(request), `${request.group}-${topic}`, "read_committed");
  await consumer.connect();
  const values = [];
  try {
    await consumer.subscribe({ topics: [topic], fromBeginning: true });
    await new Promise((resolve, reject) => {
      consumer.on(consumer.events.CRASH, ({ payload }) => reject(payload.error));
      const eachMessage = async ({ message }) => {
        if (values.push(textOf(message.value)) === count) resolve();
      };
      consumer.run({ autoCommit: false, eachMessage }).catch(reject);
    });
  } finally {
    await consumer.disconnect();
  }
  return values;
};

const beDenied = async (request) => {
  const { topic, before, after, denied } = request;
  const producer = newProducer(connectTo(request), { idempotent: false });
  const refused = (to, other) => (problem) =>
    print({ refused: nameOf(problem), to, topic: other, saw: problem.message });
  await producer.connect();
  for (const value of before) await send(producer, { topic, message: { value } });
  for (const other of denied) {
    await send(producer, { topic: other, message: { value: "denied" } }).catch(refused("write", other));
  }
  for (const value of after) await send(producer, { topic, message: { value } });
  await producer.disconnect();
  for (const other of denied) await readAll(request, other, 1).catch(refused("read", other));
  for (const value of await readAll(request, topic, before.length + after.length)) print({ value });
};

const VERBS = { produce, write, consume, group, transact, pipeline, admin: administrate, login: logIn, denied: beDenied };

const main = async ([verb, json]) => {
  if (!VERBS[verb] || json === undefined) {
    console.error("usage: kafkajs.js VERB JSON");
    process.exit(2);
  }
  await VERBS[verb](JSON.parse(json));
};

main(process.argv.slice(2)).then(
  // An exit drops what a slow reader of a pipe has not taken yet.
  () => process.stdout.write("", () => process.exit(0)),
  (problem) => {
    console.error(problem);
    process.exit(1);
  },
);
