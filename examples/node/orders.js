// Writes orders, reads them as a consumer group, and reports what it did for `ottla verify run`.
//
//   npm install --prefix examples/node
//   ottla verify run --topic orders:6 --fault "kill leader of orders-0 at 5s" -- node examples/node/orders.js
const { Kafka, logLevel } = require("kafkajs");

const TOPIC = "orders";
const GROUP = "billing";
const kafka = new Kafka({
  brokers: process.env.BOOTSTRAP_SERVERS.split(","),
  logLevel: logLevel.NOTHING,
  retry: { initialRetryTime: 50, retries: 30 },
});
const acknowledged = new Set();
const billed = new Set();
let stopping = false;

// One write for each line.
const report = (line) => process.stdout.write(`@ottla ${line}\n`);
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

const produce = async () => {
  const producer = kafka.producer({ idempotent: true, maxInFlightRequests: 1 });
  await producer.connect();
  for (let number = 0; !stopping; number++) {
    const order = `order-${number}`;
    report(`produced topic=${TOPIC} id=${order}`); // before it is sent
    try {
      const [place] = await producer.send({ topic: TOPIC, acks: -1, messages: [{ key: order, value: `${number} pieces` }] });
      report(`acked topic=${TOPIC} partition=${place.partition} offset=${place.baseOffset} id=${order}`);
      acknowledged.add(order);
    } catch (problem) {
      report(`failed topic=${TOPIC} id=${order}`);
    }
    await pause(5);
  }
  await producer.disconnect();
};

const consume = async () => {
  const consumer = kafka.consumer({ groupId: GROUP });
  await consumer.connect();
  await consumer.subscribe({ topics: [TOPIC], fromBeginning: true });
  await consumer.run({
    autoCommit: false,
    eachBatch: async ({ batch, resolveOffset, heartbeat }) => {
      const { partition } = batch;
      for (const { key, offset } of batch.messages) {
        billed.add(key.toString()); // the work on the record
        report(`consumed group=${GROUP} topic=${TOPIC} partition=${partition} offset=${offset} id=${key}`);
        resolveOffset(offset);
        await heartbeat();
      }
      const next = (BigInt(batch.lastOffset()) + 1n).toString();
      await consumer.commitOffsets([{ topic: TOPIC, partition, offset: next }]);
      report(`committed group=${GROUP} topic=${TOPIC} partition=${partition} offset=${next}`);
    },
  });
  return consumer;
};

const main = async () => {
  process.on("SIGTERM", () => (stopping = true));
  const consumer = await consume();
  await produce();
  while ([...acknowledged].some((order) => !billed.has(order))) await pause(50);
  await consumer.disconnect();
};

main().then(() => process.exit(0));
