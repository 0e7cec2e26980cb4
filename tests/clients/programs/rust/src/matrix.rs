//! Reads what a program of the client matrix is asked for, and prints what the client saw.
//!
//! Each answer is one line of JSON on stdout. The exit code is 0 if the client did what was asked, 3 if it has no such
//! thing, and 1 if it failed.

use std::error::Error;
use std::io::Write;
use std::process::exit;

use serde_json::{json, Value};

pub type Outcome = Result<(), Box<dyn Error>>;

#[allow(dead_code)] // a client may have everything
const UNSUPPORTED_EXIT_CODE: i32 = 3;

/// Writes a line at once.
pub fn print(line: Value) {
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{line}").and_then(|()| stdout.flush()).expect("stdout is closed");
}

pub fn acked(value: &str, partition: i32, offset: i64) {
    print(json!({"acked": value, "partition": partition, "offset": offset}));
}

pub fn failed(value: &str, saw: &dyn std::fmt::Display) {
    print(json!({"failed": value, "error": saw.to_string()}));
}

/// Prints a record that a consumer without a group has read.
pub fn consumed(key: Option<&[u8]>, value: Option<&[u8]>, partition: i32, offset: i64, timestamp_ms: i64) {
    print(json!({
        "value": value.map(String::from_utf8_lossy),
        "key": key.map(String::from_utf8_lossy),
        "partition": partition,
        "offset": offset,
        "timestamp_ms": timestamp_ms,
    }));
}

/// Prints one step of an admin client.
pub fn did(step: &str, saw: Value) {
    print(json!({"did": step, "saw": saw}));
}

/// Prints the error by which a broker refused a topic: Kafka's name of the error, and "write" or "read".
pub fn refused(name: &str, to: &str, topic: &str, saw: &dyn std::fmt::Display) {
    print(json!({"refused": name, "to": to, "topic": topic, "saw": saw.to_string()}));
}

/// How a client says who it is, to a broker with TLS.
pub struct Security<'a> {
    /// A file: whoever it has signed is trusted.
    pub authority: &'a str,
    pub proof: Proof<'a>,
}

pub enum Proof<'a> {
    Password {
        mechanism: &'a str,
        user: &'a str,
        password: &'a str,
    },
    /// A file with a token of OAUTHBEARER.
    Token(&'a str),
    /// A file with a certificate and its key, and no login.
    Certificate(&'a str),
}

/// Ends the program of a client that does not have what was asked for.
#[allow(dead_code)]
pub fn unsupported(reason: &str) -> ! {
    print(json!({"unsupported": reason}));
    exit(UNSUPPORTED_EXIT_CODE);
}

/// What the program is asked for.
pub struct Request(Value);

impl Request {
    /// A text; panics if it is missing.
    pub fn text(&self, name: &str) -> &str {
        self.0[name].as_str().unwrap_or_else(|| panic!("no {name} in the request"))
    }

    pub fn optional(&self, name: &str) -> Option<&str> {
        self.0[name].as_str()
    }

    pub fn number(&self, name: &str) -> Option<i64> {
        self.0[name].as_i64()
    }

    pub fn is(&self, name: &str) -> bool {
        self.0[name] == Value::Bool(true)
    }

    pub fn values(&self) -> Vec<&str> {
        self.texts("values")
    }

    fn texts(&self, name: &str) -> Vec<&str> {
        let listed = self.0[name].as_array().unwrap_or_else(|| panic!("no {name} in the request"));
        listed.iter().filter_map(Value::as_str).collect()
    }

    /// None: in the clear.
    pub fn security(&self) -> Option<Security<'_>> {
        let given = self.0.get("security")?;
        let text = |name: &str| given[name].as_str();
        let proof = match (text("certificate"), text("token")) {
            (Some(file), _) => Proof::Certificate(file),
            (_, Some(file)) => Proof::Token(file),
            _ => Proof::Password { mechanism: text("mechanism")?, user: text("user")?, password: text("password")? },
        };
        Some(Security { authority: text("authority")?, proof })
    }

    /// The topics that the verb "denied" may not use.
    pub fn denied(&self) -> Vec<&str> {
        self.texts("denied")
    }

    /// What the verb "denied" writes: to its topic, to those that are denied, and to its topic again.
    pub fn writes(&self) -> Vec<(&str, &str)> {
        let topic = self.text("topic");
        let to_topic = |name| self.texts(name).into_iter().map(move |value| (topic, value));
        let to_others = self.denied().into_iter().map(|other| (other, "denied"));
        to_topic("before").chain(to_others).chain(to_topic("after")).collect()
    }

    /// How many records the verb "denied" reads.
    pub fn count_of_writes(&self) -> usize {
        self.texts("before").len() + self.texts("after").len()
    }

    /// The key of the value with that index.
    pub fn key(&self, index: usize) -> Option<&str> {
        self.0["keys"][index].as_str()
    }

    /// The partition; panics if it is missing.
    pub fn partition(&self) -> i32 {
        self.number("partition").expect("no partition") as i32
    }

    /// Where a consumer starts: "earliest", "latest", {"offset": n} or {"timestamp_ms": t}.
    pub fn start(&self) -> Start {
        let from = &self.0["from"];
        match (from.as_str(), from["offset"].as_i64(), from["timestamp_ms"].as_i64()) {
            (Some("latest"), _, _) => Start::Latest,
            (_, Some(offset), _) => Start::Offset(offset),
            (_, _, Some(timestamp_ms)) => Start::Timestamp(timestamp_ms),
            _ => Start::Earliest,
        }
    }
}

pub enum Start {
    Earliest,
    Latest,
    Offset(i64),
    Timestamp(i64),
}

/// Runs the verb of the command line, and ends the process.
pub fn main(run: impl FnOnce(&str, &Request) -> Outcome) -> ! {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, verb, json] = arguments.as_slice() else {
        eprintln!("usage: PROGRAM VERB JSON");
        exit(2);
    };
    let request = match serde_json::from_str(json) {
        Ok(value) => Request(value),
        Err(problem) => {
            eprintln!("the JSON argument cannot be read: {problem}");
            exit(2);
        }
    };
    match run(verb, &request) {
        Ok(()) => exit(0),
        Err(problem) => {
            eprintln!("{problem}");
            exit(1);
        }
    }
}
