//! Drives the rdkafka crate, which wraps librdkafka, for the client matrix.

mod matrix;

use std::collections::BTreeSet;
use std::error::Error;
use std::future::Future;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{channel, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rdkafka::admin::{
    AdminClient, AdminOptions, AlterConfig, NewPartitions, NewTopic, ResourceSpecifier, TopicReplication,
};
use rdkafka::client::{DefaultClientContext, OAuthToken};
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer, ConsumerContext, Rebalance};
use rdkafka::error::KafkaError;
use rdkafka::message::{BorrowedMessage, DeliveryResult, Message};
use rdkafka::producer::{BaseRecord, Producer, ProducerContext, ThreadedProducer};
use rdkafka::types::RDKafkaErrorCode;
use rdkafka::{ClientConfig, ClientContext, Offset, TopicPartitionList};
use serde_json::{json, Map};

use matrix::{acked, consumed, did, failed, print, refused, Outcome, Proof, Request, Start};

const POLL: Duration = Duration::from_millis(100);
const CALL_TIMEOUT: Duration = Duration::from_secs(5);
const LONG: Duration = Duration::from_secs(60);
/// librdkafka may never return from `send_offsets_to_transaction` if the coordinator of the group moves meanwhile: its
/// issues 5456 and 5511. The program then starts itself again, as a supervisor would.
const HUNG: Duration = Duration::from_secs(15);
const RECORDS_MAX: usize = 50;

fn main() {
    matrix::main(|verb, request| match verb {
        "produce" => produce(request),
        "write" => write(request),
        "consume" => consume(request),
        "group" => group(request),
        "transact" => transact(request),
        "pipeline" => pipeline(request),
        "admin" => admin(request),
        "login" => login(request),
        "denied" => denied(request),
        other => Err(format!("no such verb: {other}").into()),
    });
}

fn config(request: &Request) -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", request.text("bootstrap"));
    if let Some(security) = request.security() {
        config.set("ssl.ca.location", security.authority).set("security.protocol", "sasl_ssl");
        match security.proof {
            Proof::Certificate(file) => config
                .set("security.protocol", "ssl")
                .set("ssl.certificate.location", file)
                .set("ssl.key.location", file),
            Proof::Token(file) => config.set("sasl.mechanism", "OAUTHBEARER").set("sasl.oauthbearer.config", file),
            Proof::Password { mechanism, user, password } => {
                config.set("sasl.mechanism", mechanism).set("sasl.username", user).set("sasl.password", password)
            }
        };
    }
    config
}

/// A token for the next login. `file` is `sasl.oauthbearer.config`. librdkafka believes in it for ten minutes, whatever is in it.
fn read_token(file: Option<&str>) -> Result<OAuthToken, Box<dyn Error>> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
    Ok(OAuthToken {
        token: std::fs::read_to_string(file.ok_or("no file with a token")?)?,
        principal_name: String::from("unused"),
        lifetime_ms: (now + 10 * LONG).as_millis() as i64,
    })
}

/// A client that only needs tokens.
struct Tokens;

impl ClientContext for Tokens {
    const ENABLE_REFRESH_OAUTH_TOKEN: bool = true;

    fn generate_oauth_token(&self, file: Option<&str>) -> Result<OAuthToken, Box<dyn Error>> {
        read_token(file)
    }
}

impl ConsumerContext for Tokens {}

/// Prints the acknowledgements, if `is_printing`, and remembers the first failure.
#[derive(Default)]
struct Deliveries {
    is_printing: bool,
    failed: Mutex<Option<KafkaError>>,
}

impl ClientContext for Deliveries {
    const ENABLE_REFRESH_OAUTH_TOKEN: bool = true;

    fn generate_oauth_token(&self, file: Option<&str>) -> Result<OAuthToken, Box<dyn Error>> {
        read_token(file)
    }
}

impl ProducerContext for Deliveries {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, _: ()) {
        match result {
            Ok(message) if self.is_printing => {
                let value = String::from_utf8_lossy(message.payload().unwrap_or_default());
                acked(&value, message.partition(), message.offset());
            }
            Ok(_) => {}
            Err((problem, _)) => {
                self.failed.lock().unwrap().get_or_insert(problem.clone());
            }
        }
    }
}

type Sending = ThreadedProducer<Deliveries>;

fn new_producer(config: &ClientConfig, is_printing: bool) -> Result<Sending, KafkaError> {
    config.create_with_context(Deliveries { is_printing, ..Deliveries::default() })
}

/// Waits for all acknowledgements.
fn flush(producer: &Sending) -> Outcome {
    producer.flush(LONG)?;
    match producer.context().failed.lock().unwrap().take() {
        Some(problem) => Err(problem.into()),
        None => Ok(()),
    }
}

fn produce(request: &Request) -> Outcome {
    let mut config = config(request);
    config
        .set("acks", request.text("acks"))
        .set("compression.type", request.text("compression"))
        .set("enable.idempotence", request.is("idempotent").to_string())
        .set("linger.ms", "5");
    let producer = new_producer(&config, true)?;
    for (index, value) in request.values().into_iter().enumerate() {
        if index > 0 {
            thread::sleep(Duration::from_millis(request.number("pause_ms").unwrap_or_default() as u64));
        }
        let mut record = BaseRecord::<str, str>::to(request.text("topic")).payload(value);
        record.key = request.key(index);
        producer.send(record).map_err(|(problem, _)| problem)?;
    }
    flush(&producer)
}

/// Prints what became of each record.
struct Told;

impl ClientContext for Told {}

impl ProducerContext for Told {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, _: ()) {
        let (message, problem) = match result {
            Ok(message) => (message, None),
            Err((problem, message)) => (message, Some(problem)),
        };
        let value = String::from_utf8_lossy(message.payload().unwrap_or_default());
        match problem {
            None => acked(&value, message.partition(), message.offset()),
            Some(problem) => failed(&value, problem),
        }
    }
}

fn write(request: &Request) -> Outcome {
    let mut config = config(request);
    config.set("enable.idempotence", request.is("idempotent").to_string()).set("linger.ms", "5");
    let producer: ThreadedProducer<Told> = config.create_with_context(Told)?;
    for line in std::io::stdin().lines() {
        let value = line?;
        let record = BaseRecord::<str, str>::to(request.text("topic")).payload(&value);
        if let Err((problem, _)) = producer.send(record) {
            failed(&value, &problem);
        }
    }
    Ok(producer.flush(LONG)?)
}

fn consume(request: &Request) -> Outcome {
    let (topic, partition) = (request.text("topic"), request.partition());
    let consumer: BaseConsumer<Tokens> = config(request)
        .set("group.id", "unused")
        .set("enable.auto.commit", "false")
        .set("isolation.level", request.text("isolation"))
        .create_with_context(Tokens)?;
    let offset = match request.start() {
        Start::Earliest => Offset::Beginning,
        Start::Latest => Offset::Offset(consumer.fetch_watermarks(topic, partition, LONG)?.1),
        Start::Offset(offset) => Offset::Offset(offset),
        Start::Timestamp(timestamp_ms) => {
            let mut times = TopicPartitionList::new();
            times.add_partition_offset(topic, partition, Offset::Offset(timestamp_ms))?;
            consumer.offsets_for_times(times, LONG)?.elements()[0].offset()
        }
    };
    let mut assignment = TopicPartitionList::new();
    assignment.add_partition_offset(topic, partition, offset)?;
    consumer.assign(&assignment)?;
    print(json!({"ready": true}));
    for _ in 0..request.number("count").unwrap_or_default() {
        let message = loop {
            if let Some(message) = polled(&consumer, POLL)? {
                break message;
            }
        };
        let timestamp_ms = message.timestamp().to_millis().unwrap_or(-1);
        consumed(message.key(), message.payload(), message.partition(), message.offset(), timestamp_ms);
    }
    Ok(())
}

/// A record, or None after `wait` or an error from which librdkafka recovers by itself.
fn polled<C: ConsumerContext>(
    consumer: &BaseConsumer<C>,
    wait: Duration,
) -> Result<Option<BorrowedMessage<'_>>, KafkaError> {
    match consumer.poll(wait) {
        None => Ok(None),
        Some(Ok(message)) => Ok(Some(message)),
        Some(Err(problem @ KafkaError::MessageConsumptionFatal(_))) => Err(problem),
        Some(Err(problem)) => {
            eprintln!("{problem}");
            Ok(None)
        }
    }
}

/// The records that are there now, or the first one that comes while the function waits.
fn some_records<C: ConsumerContext>(consumer: &BaseConsumer<C>) -> Result<Vec<BorrowedMessage<'_>>, KafkaError> {
    let mut found = Vec::new();
    while found.len() < RECORDS_MAX {
        let wait = if found.is_empty() { POLL } else { Duration::ZERO };
        match polled(consumer, wait)? {
            Some(message) => found.push(message),
            None => break,
        }
    }
    Ok(found)
}

/// Prints the assignments of a member. Those of a group of the new kind are told as changes.
#[derive(Default)]
struct Member {
    mine: Mutex<BTreeSet<i32>>,
}

impl ClientContext for Member {}

impl ConsumerContext for Member {
    fn pre_rebalance(&self, _: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        let mut mine = self.mine.lock().expect("no thread panics with it");
        match rebalance {
            Rebalance::Assign(partitions) => mine.extend(partitions.elements().iter().map(|place| place.partition())),
            Rebalance::Revoke(partitions) => {
                for place in partitions.elements() {
                    mine.remove(&place.partition());
                }
            }
            Rebalance::Error(problem) => {
                eprintln!("{problem}");
                return;
            }
        }
        print(json!({"assigned": *mine}));
    }
}

fn new_member(request: &Request, topic: &str, isolation: &str) -> Result<BaseConsumer<Member>, KafkaError> {
    let mut settings = config(request);
    settings
        .set("group.id", request.text("group"))
        .set("auto.offset.reset", "earliest")
        .set("enable.auto.commit", "false")
        .set("isolation.level", isolation);
    match request.optional("protocol") {
        Some(protocol) => settings.set("group.protocol", protocol),
        None => settings.set("session.timeout.ms", "6000").set("heartbeat.interval.ms", "1000"),
    };
    let consumer: BaseConsumer<Member> = settings.create_with_context(Member::default())?;
    consumer.subscribe(&[topic])?;
    Ok(consumer)
}

fn stdin_closed() -> Arc<AtomicBool> {
    let closed = Arc::new(AtomicBool::new(false));
    let shared = Arc::clone(&closed);
    thread::spawn(move || {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        shared.store(true, Ordering::SeqCst);
    });
    closed
}

/// Partition -> the offset behind the last record.
fn behind(topic: &str, messages: &[BorrowedMessage<'_>]) -> Result<TopicPartitionList, KafkaError> {
    let mut offsets = TopicPartitionList::new();
    for message in messages {
        let next = Offset::Offset(message.offset() + 1);
        if offsets.find_partition(topic, message.partition()).is_some() {
            offsets.set_partition_offset(topic, message.partition(), next)?;
        } else {
            offsets.add_partition_offset(topic, message.partition(), next)?;
        }
    }
    Ok(offsets)
}

fn group(request: &Request) -> Outcome {
    let topic = request.text("topic");
    let closed = stdin_closed();
    let consumer = new_member(request, topic, "read_committed")?;
    while !closed.load(Ordering::SeqCst) {
        let messages = some_records(&consumer)?;
        for message in &messages {
            let value = String::from_utf8_lossy(message.payload().unwrap_or_default());
            print(json!({"value": value, "partition": message.partition(), "offset": message.offset()}));
        }
        if messages.is_empty() {
            continue;
        }
        let offsets = behind(topic, &messages)?;
        match consumer.commit(&offsets, CommitMode::Sync) {
            Ok(()) => {
                let committed: Map<_, _> = offsets
                    .elements()
                    .iter()
                    .map(|place| (place.partition().to_string(), json!(place.offset().to_raw())))
                    .collect();
                print(json!({"committed": committed}));
            }
            Err(problem) => eprintln!("{problem}"), // the next commit has these offsets, too
        }
    }
    Ok(()) // the consumer leaves the group when it is dropped
}

/// Calls again after a retriable error. If a call hangs, the program starts again.
fn insist(mut call: impl FnMut() -> Result<(), KafkaError>) -> Result<(), KafkaError> {
    loop {
        let watch = start_again_after(HUNG);
        let outcome = call();
        let _ = watch.send(());
        match outcome {
            Err(KafkaError::Transaction(problem)) if problem.is_retriable() => eprintln!("{problem}"),
            other => return other,
        }
    }
}

/// The program is replaced by a new one, unless the sender is used before.
fn start_again_after(limit: Duration) -> Sender<()> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        if receiver.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
            eprintln!("a call did not return in {limit:?}: the program starts again");
            let mut arguments = std::env::args();
            let program = arguments.next().expect("a program has a name");
            let problem = Command::new(program).args(arguments).exec();
            eprintln!("{problem}");
            std::process::exit(1);
        }
    });
    sender
}

fn transactional(request: &Request, is_printing: bool) -> Result<Sending, KafkaError> {
    let mut config = config(request);
    config
        .set("transactional.id", request.text("transactional_id"))
        .set("transaction.timeout.ms", "10000")
        .set("linger.ms", "2");
    let producer = new_producer(&config, is_printing)?;
    insist(|| producer.init_transactions(CALL_TIMEOUT))?;
    Ok(producer)
}

fn transact(request: &Request) -> Outcome {
    let producer = transactional(request, true)?;
    producer.begin_transaction()?;
    for value in request.values() {
        let mut record = BaseRecord::<str, str>::to(request.text("topic")).payload(value);
        record.partition = request.number("partition").map(|partition| partition as i32);
        producer.send(record).map_err(|(problem, _)| problem)?;
    }
    flush(&producer)?;
    match request.text("end") {
        "commit" => insist(|| producer.commit_transaction(CALL_TIMEOUT))?,
        _ => insist(|| producer.abort_transaction(CALL_TIMEOUT))?,
    }
    print(json!({"ended": request.text("end")}));
    Ok(())
}

/// As librdkafka asks of an application: retries, or aborts and continues at the committed offsets, or replaces the
/// producer.
fn pipeline(request: &Request) -> Outcome {
    let closed = stdin_closed();
    let consumer = new_member(request, request.text("source"), "read_committed")?;
    let mut producer = transactional(request, false)?;
    while !closed.load(Ordering::SeqCst) {
        let messages = some_records(&consumer)?;
        if messages.is_empty() {
            continue;
        }
        match process(request, &messages, &producer, &consumer) {
            Ok(()) => print(json!({"committed": messages.len()})),
            Err(problem) => {
                eprintln!("{problem}");
                let is_fatal = matches!(&problem, KafkaError::Transaction(details) if details.is_fatal());
                if is_fatal || !abort(&producer) {
                    producer = transactional(request, false)?;
                }
                drop(messages);
                seek_to_committed(&consumer)?;
            }
        }
    }
    Ok(())
}

fn process(
    request: &Request,
    messages: &[BorrowedMessage<'_>],
    producer: &Sending,
    consumer: &BaseConsumer<Member>,
) -> Result<(), KafkaError> {
    producer.begin_transaction()?;
    for message in messages {
        let value = [b"processed ", message.payload().unwrap_or_default()].concat();
        let mut record = BaseRecord::<[u8], [u8]>::to(request.text("sink")).payload(&value);
        record.key = message.key();
        producer.send(record).map_err(|(problem, _)| problem)?;
    }
    let offsets = behind(request.text("source"), messages)?;
    let member = consumer.group_metadata().expect("a member of a group");
    insist(|| producer.send_offsets_to_transaction(&offsets, &member, CALL_TIMEOUT))?;
    insist(|| producer.commit_transaction(CALL_TIMEOUT))
}

fn abort(producer: &Sending) -> bool {
    insist(|| producer.abort_transaction(CALL_TIMEOUT)).inspect_err(|problem| eprintln!("{problem}")).is_ok()
}

fn seek_to_committed(consumer: &BaseConsumer<Member>) -> Outcome {
    for place in consumer.committed(LONG)?.elements() {
        let offset = match place.offset() {
            Offset::Offset(offset) => Offset::Offset(offset),
            _ => Offset::Beginning,
        };
        consumer.seek(place.topic(), place.partition(), offset, LONG)?;
    }
    Ok(())
}

fn wait_for<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(future)
}

fn admin(request: &Request) -> Outcome {
    let topic = request.text("topic");
    let client: AdminClient<DefaultClientContext> = config(request).create()?;
    let options = AdminOptions::new().operation_timeout(Some(LONG)).request_timeout(Some(LONG));

    let created = NewTopic::new(topic, 2, TopicReplication::Fixed(3)).set("retention.ms", "3600000");
    check(wait_for(client.create_topics([&created], &options))?)?;
    did("create_topics", json!({"topic": topic}));
    did("describe_topics", describe(&client, topic, 2)?);

    check(wait_for(client.create_partitions([&NewPartitions::new(topic, 4)], &options))?)?;
    did("create_partitions", describe(&client, topic, 4)?);

    let changed = AlterConfig::new(ResourceSpecifier::Topic(topic)).set("retention.ms", "7200000");
    for answer in wait_for(client.alter_configs([&changed], &options))? {
        answer.map_err(|(_, code)| KafkaError::AdminOp(code))?;
    }
    did("alter_configs", json!({"retention.ms": "7200000"}));

    let described = wait_for(client.describe_configs([&ResourceSpecifier::Topic(topic)], &options))?.remove(0);
    let resource = described.map_err(KafkaError::AdminOp)?;
    let value = resource.get("retention.ms").and_then(|entry| entry.value.clone());
    did("describe_configs", json!({"retention.ms": value}));

    let topics = client.inner().fetch_metadata(None, LONG)?;
    let names: Vec<&str> = topics.topics().iter().map(|found| found.name()).collect();
    did("list_topics", json!(names));

    let groups = client.inner().fetch_group_list(None, LONG)?;
    let ids: Vec<&str> = groups.groups().iter().map(|found| found.name()).collect();
    did("list_groups", json!(ids));

    check(wait_for(client.delete_topics(&[topic], &options))?)?;
    did("delete_topics", json!({"topic": topic}));
    Ok(())
}

/// The first failure of an admin request for topics.
fn check(answers: Vec<Result<String, (String, RDKafkaErrorCode)>>) -> Outcome {
    for answer in answers {
        answer.map_err(|(topic, code)| format!("{topic}: {code}"))?;
    }
    Ok(())
}

/// Waits until the broker that is asked knows `count` partitions: brokers learn of them one after another.
fn describe(
    client: &AdminClient<DefaultClientContext>,
    topic: &str,
    count: usize,
) -> Result<serde_json::Value, Box<dyn Error>> {
    let start = Instant::now();
    loop {
        let metadata = client.inner().fetch_metadata(Some(topic), LONG)?;
        let partitions = metadata.topics()[0].partitions();
        if partitions.len() == count {
            return Ok(json!({"partitions": count, "replicas": partitions[0].replicas().len()}));
        }
        if start.elapsed() > LONG {
            return Err(format!("{topic} has {} partitions, and not {count}", partitions.len()).into());
        }
        thread::sleep(POLL);
    }
}

/// Kafka's name of an error.
fn name_of(problem: &KafkaError) -> &'static str {
    match problem.rdkafka_error_code() {
        Some(RDKafkaErrorCode::TopicAuthorizationFailed) => "TOPIC_AUTHORIZATION_FAILED",
        Some(RDKafkaErrorCode::Authentication) => "SASL_AUTHENTICATION_FAILED",
        _ => "another error",
    }
}

/// librdkafka tries a failed login again without an end, and reports each failure as an event.
fn login(request: &Request) -> Outcome {
    let consumer: BaseConsumer<Tokens> = config(request).set("group.id", "unused").create_with_context(Tokens)?;
    consumer.subscribe(&["unused"])?;
    loop {
        match consumer.poll(POLL) {
            Some(Err(problem)) if name_of(&problem) == "SASL_AUTHENTICATION_FAILED" => {
                print(json!({"refused": name_of(&problem), "saw": problem.to_string()}));
                return Ok(());
            }
            Some(Err(problem)) => eprintln!("{problem}"),
            _ if consumer.fetch_metadata(None, POLL).is_ok() => {
                print(json!({"logged_in": true}));
                return Ok(());
            }
            _ => {}
        }
    }
}

fn denied(request: &Request) -> Outcome {
    let (topic, others) = (request.text("topic"), request.denied());
    let producer = new_producer(&config(request), true)?;
    for (name, value) in request.writes() {
        // The error comes at once if librdkafka knows already what the broker says of the topic.
        let sent = producer.send(BaseRecord::<str, str>::to(name).payload(value)).map_err(|(problem, _)| problem);
        producer.flush(LONG)?;
        if let Some(problem) = sent.err().or_else(|| producer.context().failed.lock().unwrap().take()) {
            refused(name_of(&problem), "write", name, &problem);
        }
    }
    for name in others {
        let consumer = from_the_beginning(request, name)?;
        let problem = loop {
            match consumer.poll(POLL) {
                Some(Err(problem)) => break problem,
                Some(Ok(_)) => return Err(format!("{name} can be read").into()),
                None => {}
            }
        };
        refused(name_of(&problem), "read", name, &problem);
    }
    let consumer = from_the_beginning(request, topic)?;
    for _ in 0..request.count_of_writes() {
        let message = loop {
            if let Some(message) = polled(&consumer, POLL)? {
                break message;
            }
        };
        let timestamp_ms = message.timestamp().to_millis().unwrap_or(-1);
        consumed(message.key(), message.payload(), message.partition(), message.offset(), timestamp_ms);
    }
    Ok(())
}

/// A member of a group of its own: librdkafka reports a topic that it may not see to subscribers only.
fn from_the_beginning(request: &Request, topic: &str) -> Result<BaseConsumer, KafkaError> {
    let consumer: BaseConsumer = config(request)
        .set("group.id", format!("{}-{topic}", request.text("group")))
        .set("auto.offset.reset", "earliest")
        .set("enable.auto.commit", "false")
        .create()?;
    consumer.subscribe(&[topic])?;
    Ok(consumer)
}
