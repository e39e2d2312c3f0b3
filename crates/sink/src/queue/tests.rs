//! Rows as messages; the crate of queues tests how they are sent, and the command tests both with real servers.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringViewArray, TimestampMicrosecondArray};
use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use millstream_core::sink::SinkParts;
use millstream_core::{Budget, Error, Result};
use tokio::runtime::Handle;

use super::message::{Form, Message, Part};
use super::outlet::{Outlet, Terms};
use super::sender::Sender;
use super::spec::parts;
use crate::conformance::Csv;
use crate::encode::Encoding;

pub(super) fn form(parts: &[Part]) -> Form {
    let format = Some(Arc::new(Csv) as Arc<_>);
    let of_sink = SinkParts { target: String::new(), format, codec: None, store: None };
    let encoding = Encoding::new(&of_sink, None).expect("an encoding");
    Form { encoding, parts: parts.to_vec(), taken: ["body", "_key"].map(str::to_owned).to_vec(), id: None }
}

/// Rows with an id, a key, headers and a time.
pub(super) fn rows(headers: &[Option<&str>]) -> RecordBatch {
    let count = i64::try_from(headers.len()).expect("few");
    let keys = (0..count).map(|id| (id > 0).then(|| format!("k{id}")));
    let columns: [(&str, ArrayRef); 4] = [
        ("_time", Arc::new((0..count).map(|id| (id > 0).then_some(id * 1_500)).collect::<TimestampMicrosecondArray>())),
        ("id", Arc::new(Int64Array::from_iter_values(0..count))),
        ("_key", Arc::new(keys.collect::<StringViewArray>())),
        ("_headers", Arc::new(headers.iter().copied().collect::<StringViewArray>())),
    ];
    RecordBatch::try_from_iter(columns).expect("columns of one length")
}

pub(super) fn schema() -> SchemaRef {
    rows(&[]).schema()
}

#[test]
fn a_column_identifies_messages() {
    let batch = rows(&[None, None]);
    let of = |id: &str| Form { id: Some(id.to_owned()), ..form(&[Part::Key]) };
    let encoded = of("id").rows(&batch.schema()).encode(&batch).expect("messages");
    let ids: Vec<_> = encoded.messages.iter().map(|(_, message)| message.id.as_deref()).collect();
    assert_eq!(ids, [Some("0"), Some("1")]);
    // The first row has no key.
    let encoded = of("_key").rows(&batch.schema()).encode(&batch).expect("messages");
    assert_eq!(encoded.messages.len(), 1);
    assert_eq!((encoded.refused[0].row, encoded.refused[0].reason.as_str()), (0, "it has no id: the value is null"));
    for (id, what) in [
        ("it", "`id` names `it`, which is not a column of the rows"),
        ("_time", "`id` names `_time`, which has the type timestamp"),
    ] {
        assert_eq!(of(id).faults(&schema())[0].what(), what);
    }
}

#[test]
fn some_columns_are_beside_the_body() {
    let batch = rows(&[None, Some("{}"), Some("{\"b\": \"2\", \"a\": \"\"}")]);
    let encoded = form(&Part::ALL).rows(&batch.schema()).encode(&batch).expect("messages");
    assert!(encoded.refused.is_empty());
    let message = |key: Option<&str>, headers: &[(&str, &str)], time, body: &str| Message {
        key: key.map(str::to_owned),
        headers: headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
        time,
        id: None,
        body: body.as_bytes().to_vec(),
    };
    let mut messages: Vec<Message> = encoded.messages.into_iter().map(|(_, message)| message).collect();
    messages[2].headers.sort_unstable();
    assert_eq!(
        messages,
        [
            message(None, &[], None, "\"0\""),
            message(Some("k1"), &[], Some(1), "\"1\""),
            message(Some("k2"), &[("a", ""), ("b", "2")], Some(3), "\"2\""),
        ]
    );
    let encoded = form(&[Part::Time]).rows(&batch.schema()).encode(&batch).expect("messages");
    assert_eq!(encoded.messages[1].1.body, b"\"1\",\"k1\",\"{}\"");
}

#[test]
fn rows_with_other_headers_are_refused() {
    let bad = ["", "[]", "{\"a\": 1}", "{\"body\": \"x\"}"];
    let batch = rows(&bad.map(Some));
    let encoded = form(&[Part::Headers]).rows(&batch.schema()).encode(&batch).expect("messages");
    assert!(encoded.messages.is_empty());
    let reasons: Vec<&str> = encoded.refused.iter().map(|row| row.reason.as_str()).collect();
    assert!(reasons[0].starts_with("`_headers` is not a JSON object"), "{reasons:?}");
    assert!(reasons[1].starts_with("`_headers` is not a JSON object"), "{reasons:?}");
    assert_eq!(
        reasons[2..],
        ["the header `a` is not text", "the header `body` has the name of another field of the entry"]
    );
    assert_eq!(encoded.refused[3].row, 3);
    assert!(encoded.refused[3].shown.contains("id=3, _key='k3', _headers='{\"body\": \"x\"}'"), "{encoded:?}");
}

#[test]
fn columns_that_do_not_fit_are_faults() {
    let told = |parts: &[Part], schema: SchemaRef| -> Vec<String> {
        form(parts).faults(&schema).iter().map(|error| error.what().to_owned()).collect()
    };
    assert!(told(&Part::ALL, schema()).is_empty());
    let few = Arc::new(schema().project(&[1, 2]).expect("columns"));
    assert_eq!(told(&[Part::Headers, Part::Key], few).len(), 1);
    let only = Arc::new(schema().project(&[2]).expect("columns"));
    assert_eq!(told(&[Part::Key], only), ["no column is left for the body of the messages"]);
    let add = |names: &[&str]| parts(&names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>(), &[]);
    assert_eq!(add(&["_time", "_key"]), Ok(vec![Part::Time, Part::Key]));
    let faults = add(&["_id", "_key", "key", "_key"]).expect_err("faults");
    let paths: Vec<String> = faults.iter().map(|fault| fault.path.join(".")).collect();
    assert_eq!(paths, ["add.0", "add.2", "add.3"]);
}

/// Takes messages, and refuses those whose numbers since the last confirmation are given.
struct Refusing {
    sent: Arc<Mutex<Vec<Vec<u8>>>>,
    refused: VecDeque<Vec<usize>>,
}

#[async_trait]
impl Outlet for Refusing {
    async fn send(&mut self, message: &Message) -> Result<()> {
        self.sent.lock().expect("not poisoned").push(message.body.clone());
        Ok(())
    }

    async fn confirm(&mut self) -> Result<Vec<(usize, Error)>> {
        let refused = self.refused.pop_front().unwrap_or_default();
        Ok(refused.into_iter().map(|number| (number, Error::refused("no").cause("too large"))).collect())
    }
}

/// A row that the queue refuses is found by the number of its message, over batches, rows that are no messages, and
/// confirmations in the middle of a batch.
#[tokio::test]
async fn refused_messages_are_found() {
    // A body has three bytes, and a key two; the first message has none. So it is 0 1 2 4 | 5, 6 7 8 | 9.
    let terms = Terms { window: 36, patience: Duration::ZERO, io: Handle::current() };
    let sent = Arc::default();
    let outlet = Refusing { sent: Arc::clone(&sent), refused: VecDeque::from([vec![1, 3], vec![0, 2], vec![0]]) };
    let mut sender = Sender::new(outlet, &terms, &Budget::new(1 << 20));
    let mut encoder = form(&[Part::Headers, Part::Key, Part::Time]).rows(&rows(&[None, Some("bad")]).schema());
    let batch = rows(&[None, None, None, Some("bad"), None, None, None, None, None, None]);
    for part in [batch.slice(0, 6), batch.slice(6, 4)] {
        sender.send(encoder.encode(&part).expect("messages")).await.expect("sent");
    }
    sender.confirm().await.expect("confirmed");
    let bodies: Vec<Vec<u8>> = [0, 1, 2, 4, 5, 6, 7, 8, 9].map(|id| format!("\"{id}\"").into_bytes()).to_vec();
    assert_eq!(*sent.lock().expect("not poisoned"), bodies);
    let (count, refused) = sender.take();
    let numbers: Vec<u64> = refused.iter().map(|row| row.row).collect();
    assert_eq!((count, numbers), (10, vec![1, 3, 4, 5, 7, 9]));
    assert!(refused[2].shown.contains("id=4"), "{}", refused[2].shown);
}
