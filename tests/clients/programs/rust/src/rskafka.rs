//! Drives the rskafka crate for the client matrix. It has no groups, no transactions, and one setting of acks: all.

mod matrix;

use std::error::Error;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use rskafka::client::error::{Error as KafkaError, ProtocolError};
use rskafka::client::partition::{Compression, OffsetAt, PartitionClient, UnknownTopicHandling};
use rskafka::client::{Client, ClientBuilder, Credentials, OauthBearerCredentials, OauthCallback, SaslConfig};
use rskafka::record::Record;
use rskafka::BackoffConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use serde_json::json;

use matrix::{acked, consumed, did, failed, print, refused, unsupported, Outcome, Proof, Request, Start};

const MAX_WAIT_MS: i32 = 250;
const BYTES_MAX: i32 = 1 << 20;
const ADMIN_TIMEOUT_MS: i32 = 60_000;
const PAUSE: Duration = Duration::from_millis(50);
const TRIES: usize = 1200;

fn main() {
    matrix::main(|verb, request| match verb {
        "produce" => wait_for(produce(request)),
        "write" => wait_for(write(request)),
        "consume" => wait_for(consume(request)),
        "admin" => wait_for(admin(request)),
        "login" => wait_for(login(request)),
        "denied" => wait_for(denied(request)),
        "group" => unsupported("rskafka has no consumer groups"),
        "transact" | "pipeline" => unsupported("rskafka has no transactions"),
        other => Err(format!("no such verb: {other}").into()),
    });
}

fn wait_for<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime.expect("a runtime").block_on(future)
}

async fn connect(request: &Request) -> Result<Client, Box<dyn Error>> {
    Ok(builder(request)?.build().await?)
}

fn builder(request: &Request) -> Result<ClientBuilder, Box<dyn Error>> {
    let brokers = request.text("bootstrap").split(',').map(String::from).collect();
    let builder = ClientBuilder::new(brokers);
    let Some(security) = request.security() else { return Ok(builder) };
    let mut trusted = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(security.authority)? {
        trusted.add(certificate?)?;
    }
    let encrypted = ClientConfig::builder().with_root_certificates(trusted);
    let login = match security.proof {
        Proof::Certificate(file) => {
            let own = CertificateDer::pem_file_iter(file)?.collect::<Result<Vec<_>, _>>()?;
            let encrypted = encrypted.with_client_auth_cert(own, PrivateKeyDer::from_pem_file(file)?)?;
            return Ok(builder.tls_config(Arc::new(encrypted)));
        }
        Proof::Token(file) => by_token(file),
        Proof::Password { mechanism, user, password } => by_password(mechanism, user, password),
    };
    Ok(builder.tls_config(Arc::new(encrypted.with_no_client_auth())).sasl_config(login))
}

fn by_password(mechanism: &str, user: &str, password: &str) -> SaslConfig {
    let user = Credentials::new(user.into(), password.into());
    match mechanism {
        "PLAIN" => SaslConfig::Plain(user),
        "SCRAM-SHA-256" => SaslConfig::ScramSha256(user),
        "SCRAM-SHA-512" => SaslConfig::ScramSha512(user),
        other => unsupported(&format!("without {other}")),
    }
}

fn by_token(file: &str) -> SaslConfig {
    let file = String::from(file);
    let callback: OauthCallback = Arc::new(move || {
        let token = std::fs::read_to_string(&file);
        Box::pin(async move { Ok(token?) })
    });
    SaslConfig::Oauthbearer(OauthBearerCredentials { callback, authz_id: None, bearer_kvs: Vec::new() })
}

async fn client_of(
    client: &Client,
    topic: &str,
    partition: i32,
) -> Result<PartitionClient, rskafka::client::error::Error> {
    client.partition_client(topic, partition, UnknownTopicHandling::Retry).await
}

/// rskafka has no partitioner: all records go to partition 0.
async fn produce(request: &Request) -> Outcome {
    if request.text("acks") != "all" {
        unsupported("rskafka always waits for all replicas");
    }
    if request.is("idempotent") {
        unsupported("rskafka has no idempotent producer");
    }
    let compression = match request.text("compression") {
        "gzip" => Compression::Gzip,
        "snappy" => Compression::Snappy,
        "lz4" => Compression::Lz4,
        "zstd" => Compression::Zstd,
        _ => Compression::NoCompression,
    };
    let pause = Duration::from_millis(request.number("pause_ms").unwrap_or_default() as u64);
    let client = connect(request).await?;
    let partition = client_of(&client, request.text("topic"), 0).await?;
    for (index, value) in request.values().into_iter().enumerate() {
        if index > 0 {
            tokio::time::sleep(pause).await;
        }
        let record = Record {
            key: request.key(index).map(|key| key.as_bytes().to_vec()),
            value: Some(value.as_bytes().to_vec()),
            headers: Default::default(),
            timestamp: Utc::now(),
        };
        let offsets = partition.produce(vec![record], compression).await?;
        acked(value, partition.partition(), offsets[0]);
    }
    Ok(())
}

async fn write(request: &Request) -> Outcome {
    if request.is("idempotent") {
        unsupported("rskafka has no idempotent producer");
    }
    let client = connect(request).await?;
    let partition = client_of(&client, request.text("topic"), 0).await?;
    for line in std::io::stdin().lines() {
        let value = line?;
        let record = Record {
            key: None,
            value: Some(value.as_bytes().to_vec()),
            headers: Default::default(),
            timestamp: Utc::now(),
        };
        match partition.produce(vec![record], Compression::NoCompression).await {
            Ok(offsets) => acked(&value, partition.partition(), offsets[0]),
            Err(problem) => failed(&value, &problem),
        }
    }
    Ok(())
}

async fn consume(request: &Request) -> Outcome {
    let client = connect(request).await?;
    let partition = client_of(&client, request.text("topic"), request.partition()).await?;
    let mut next = match request.start() {
        Start::Earliest => partition.get_offset(OffsetAt::Earliest).await?,
        Start::Latest => partition.get_offset(OffsetAt::Latest).await?,
        Start::Offset(offset) => offset,
        Start::Timestamp(timestamp_ms) => {
            let time = DateTime::from_timestamp_millis(timestamp_ms).ok_or("no such time")?;
            partition.get_offset(OffsetAt::Timestamp(time)).await?
        }
    };
    print(json!({"ready": true}));
    let mut missing = request.number("count").unwrap_or_default();
    while missing > 0 {
        let fetched = partition.fetch_records(next, 1..BYTES_MAX, MAX_WAIT_MS).await;
        // rskafka 0.6 reads the marker of a transaction as if it had no fields of a record around it.
        if fetched.as_ref().is_err_and(|problem| problem.to_string().contains("control batch record")) {
            unsupported("rskafka cannot read a partition that has transactions");
        }
        let (records, _) = fetched?;
        for found in records {
            next = found.offset + 1;
            if missing > 0 {
                missing -= 1;
                let Record { key, value, timestamp, .. } = found.record;
                let number = partition.partition();
                consumed(key.as_deref(), value.as_deref(), number, found.offset, timestamp.timestamp_millis());
            }
        }
    }
    Ok(())
}

/// The client has no configs, no list of groups, and adds no partitions.
async fn admin(request: &Request) -> Outcome {
    let topic = request.text("topic");
    let client = connect(request).await?;
    let controller = client.controller_client()?;
    controller.create_topic(topic, 2, 3, ADMIN_TIMEOUT_MS).await?;
    did("create_topics", json!({"topic": topic}));
    did("list_topics", json!(topics_with(&client, topic).await?));
    controller.delete_topic(topic, ADMIN_TIMEOUT_MS).await?;
    did("delete_topics", json!({"topic": topic}));
    Ok(())
}

/// Waits until the broker that is asked knows the topic: brokers learn of topics one after another.
async fn topics_with(client: &Client, topic: &str) -> Result<Vec<String>, Box<dyn Error>> {
    for _ in 0..TRIES {
        let names: Vec<String> = client.list_topics().await?.into_iter().map(|found| found.name).collect();
        if names.iter().any(|name| name == topic) {
            return Ok(names);
        }
        tokio::time::sleep(PAUSE).await;
    }
    Err(format!("the list of topics does not have {topic}").into())
}

/// Kafka's name of an error that a broker has answered.
fn name_of(problem: &KafkaError) -> &'static str {
    match problem {
        KafkaError::ServerError { protocol_error: ProtocolError::TopicAuthorizationFailed, .. } => {
            "TOPIC_AUTHORIZATION_FAILED"
        }
        _ => "another error",
    }
}

/// rskafka tries a failed login again without an end, unless it has a deadline; the error is then one of its retries.
async fn login(request: &Request) -> Outcome {
    let tries = BackoffConfig { deadline: Some(Duration::from_secs(2)), ..BackoffConfig::default() };
    match builder(request)?.backoff_config(tries).build().await {
        Ok(_) => print(json!({"logged_in": true})),
        Err(problem) if format!("{problem:?}").contains("SaslAuthenticationFailed") => {
            print(json!({"refused": "SASL_AUTHENTICATION_FAILED", "saw": problem.to_string()}));
        }
        Err(problem) if problem.to_string().contains("callback error") => {
            print(json!({"refused": "callback error", "saw": problem.to_string()}));
        }
        Err(problem) => return Err(problem.into()),
    }
    Ok(())
}

async fn denied(request: &Request) -> Outcome {
    let client = connect(request).await?;
    for (topic, value) in request.writes() {
        let record = Record {
            key: None,
            value: Some(value.as_bytes().to_vec()),
            headers: Default::default(),
            timestamp: Utc::now(),
        };
        let written = match client_of(&client, topic, 0).await {
            Ok(partition) => partition.produce(vec![record], Compression::NoCompression).await,
            Err(problem) => Err(problem),
        };
        match written {
            Ok(offsets) => acked(value, 0, offsets[0]),
            Err(problem) => refused(name_of(&problem), "write", topic, &problem),
        }
    }
    for topic in request.denied() {
        let read = match client_of(&client, topic, 0).await {
            Ok(partition) => partition.fetch_records(0, 1..BYTES_MAX, MAX_WAIT_MS).await.map(|_| ()),
            Err(problem) => Err(problem),
        };
        match read {
            Ok(()) => return Err(format!("{topic} can be read").into()),
            Err(problem) => refused(name_of(&problem), "read", topic, &problem),
        }
    }
    let partition = client_of(&client, request.text("topic"), 0).await?;
    let mut next = 0;
    while (next as usize) < request.count_of_writes() {
        for found in partition.fetch_records(next, 1..BYTES_MAX, MAX_WAIT_MS).await?.0 {
            next = found.offset + 1;
            let Record { key, value, timestamp, .. } = found.record;
            consumed(key.as_deref(), value.as_deref(), 0, found.offset, timestamp.timestamp_millis());
        }
    }
    Ok(())
}
