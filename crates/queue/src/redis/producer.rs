//! Writes messages to a stream: many at once over one connection, in their order, and waits until the server has
//! confirmed them.
//!
//! What is sent at once is a transaction: a server without memory refuses all of it, and no message overtakes one that
//! was refused. A connection that is lost leaves it open whether the transaction was made: it is sent again, so each
//! message is there at least once. One that has an id is there once: the server remembers ids.

use std::sync::Arc;
use std::time::Duration;

use millstream_core::{Error, Result};

use super::connection::{Commands, Connection};
use super::fault::{Fault, code};
use super::link::{Change, Link, Outage};
use super::place::Place;
use super::reply::Value;
use super::shared::shown;

/// About how many bytes are sent before answers are waited for.
const SENT_AT_ONCE: usize = 1 << 20;

/// The most messages that are sent before answers are waited for.
const MOST_AT_ONCE: usize = 2000;

/// How long the server may take for what is sent at once.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long the server remembers an id, in seconds.
const REMEMBERED: &str = "604800";

/// Adds an entry whose id is not known yet; if the server refuses the entry, it forgets the id. KEYS: stream, id. ARGV:
/// how long to remember the id, fields.
const ADD_ONCE: &str = "
if not redis.call('SET', KEYS[2], '', 'NX', 'EX', ARGV[1]) then return false end
local added = redis.pcall('XADD', KEYS[1], '*', unpack(ARGV, 2))
if type(added) == 'table' and added.err then redis.call('DEL', KEYS[2]) end
return added";

/// Takes what happens to the server: it is waited for, or it is back after some time.
pub type OnOutage = Box<dyn Fn(Result<Duration, millstream_core::Error>) + Send + Sync>;

/// A writer to a stream.
pub struct RedisProducer {
    key: String,
    doing: String,
    link: Link,
    /// The transaction.
    commands: Commands,
    is_closed: bool,
    /// Messages that the server has confirmed.
    confirmed: u64,
    /// Those of them that it has left out, since it knew their ids.
    known: u64,
}

impl RedisProducer {
    /// A writer to the stream `key` of the server at `place`. It connects when it has something to send.
    pub fn new(place: Place, key: &str, on_outage: OnOutage) -> Self {
        let (place, doing) = (Arc::new(place.clone()), format!("writing to {}", shown(&place, key)));
        let changes = move |change| match change {
            Change::Waiting(error) => on_outage(Err(error)),
            Change::Back(time) => on_outage(Ok(time)),
        };
        let link = Link::new(place, "millstream-writes", Arc::new(Outage::default()), Box::new(changes));
        RedisProducer {
            key: key.to_owned(),
            doing,
            link,
            commands: Commands::default(),
            is_closed: false,
            confirmed: 0,
            known: 0,
        }
    }

    /// Asks the server whether the key can be written to, and changes nothing there.
    ///
    /// # Errors
    /// If the server cannot be reached or refuses, or the key holds no stream.
    pub async fn look(place: &Place, key: &str) -> Result<()> {
        let mut connection = Connection::open(place, "millstream-looks").await?;
        let answer = connection.command(&[b"TYPE", key.as_bytes()]).await;
        let answer = match answer.and_then(|answer| answer.refusal().map(|()| answer)) {
            Ok(answer) => answer,
            // The right to write is enough.
            Err(Fault::Answer(text)) if code(&text) == "NOPERM" => return Ok(()),
            Err(fault) => return Err(fault.into_error(place, &format!("writing to {}", shown(place, key)))),
        };
        match answer.text() {
            Some("none" | "stream") | None => Ok(()),
            Some(kind) => Err(Error::refused(format!("{} is not a stream", shown(place, key)))
                .cause(format!("the key holds a {kind}"))
                .hint("check its name and the number of the database")),
        }
    }

    /// Adds a message of these fields, names and values by turns, behind all before it; one with an `id` only if no
    /// other one had it within the last 7 days. It may be sent at once, or with later ones.
    ///
    /// # Errors
    /// If the server refuses messages, and waiting does not help.
    pub async fn send(&mut self, fields: &[(&[u8], &[u8])], id: Option<&[u8]>) -> Result<()> {
        if self.commands.is_empty() {
            self.commands.add([b"MULTI".as_slice()]);
        }
        let key = self.key.as_bytes();
        // In a cluster of servers, both keys are on the same one.
        let known = id.map(|id| [b"millstream-sent:{", key, b"}:", id].concat());
        let fields = fields.iter().flat_map(|(name, value)| [*name, *value]);
        match &known {
            None => self.commands.add([b"XADD".as_slice(), key, b"*"].into_iter().chain(fields).collect::<Vec<_>>()),
            Some(id) => {
                let words = [b"EVAL".as_slice(), ADD_ONCE.as_bytes(), b"2", key, id, REMEMBERED.as_bytes()];
                self.commands.add(words.into_iter().chain(fields).collect::<Vec<_>>());
            }
        }
        match self.commands.bytes() >= SENT_AT_ONCE || self.commands.len() >= MOST_AT_ONCE {
            true => self.confirm().await,
            false => Ok(()),
        }
    }

    /// Waits until the server has confirmed all messages.
    ///
    /// # Errors
    /// If the server refuses messages, and waiting does not help.
    pub async fn confirm(&mut self) -> Result<()> {
        if !self.commands.is_empty() && !std::mem::replace(&mut self.is_closed, true) {
            self.commands.add([b"EXEC".as_slice()]);
        }
        while self.is_closed {
            let connection = self.link.ready().await?;
            match connection.all(&self.commands, PATIENCE).await.and_then(|answers| confirmed(&answers)) {
                Ok((count, known)) => {
                    self.link.works();
                    self.confirmed += count;
                    self.known += known;
                    self.commands.clear();
                    self.is_closed = false;
                }
                Err(fault) => self.link.failed(fault, &self.doing).await?,
            }
        }
        Ok(())
    }

    /// How many messages the server has confirmed.
    pub fn confirmed(&self) -> u64 {
        self.confirmed
    }

    /// How many of them it has left out, since it knew their ids.
    pub fn known(&self) -> u64 {
        self.known
    }
}

/// How many messages a transaction has confirmed, by its answers, and how many of them it has left out.
fn confirmed(answers: &[Value]) -> Result<(u64, u64), Fault> {
    // What is refused inside says why; the end says only that something was.
    answers.iter().try_for_each(Value::refusal)?;
    let ids = answers.last().and_then(Value::array).unwrap_or_default();
    ids.iter().try_for_each(Value::refusal)?;
    let known = ids.iter().filter(|id| matches!(id, Value::Nil)).count();
    Ok((ids.len() as u64, known as u64))
}

impl std::fmt::Debug for RedisProducer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RedisProducer")
            .field("key", &self.key)
            .field("confirmed", &self.confirmed)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use millstream_net::server::Access;
    use millstream_testkit::{Break, Proxy, Redis, RedisOptions};

    use super::*;

    fn producer(port: u16) -> (RedisProducer, Arc<Mutex<Vec<String>>>) {
        let place = Place::parse(&format!("redis://127.0.0.1:{port}/0"), &Access::default()).expect("a place");
        let events = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&events);
        let note = move |event: Result<Duration>| {
            let event = event.map_or_else(|error| format!("{error:?}"), |_| "back".to_owned());
            noted.lock().expect("not poisoned").push(event);
        };
        (RedisProducer::new(place, "s", Box::new(note)), events)
    }

    async fn send(producer: &mut RedisProducer, numbers: std::ops::Range<usize>, body: &str) -> Result<()> {
        for number in numbers {
            let number = number.to_string();
            producer.send(&[(b"n".as_slice(), number.as_bytes()), (b"body", body.as_bytes())], None).await?;
        }
        producer.confirm().await
    }

    /// The numbers in the stream, in order.
    fn numbers(server: &Redis) -> Vec<usize> {
        let entries = server.command(&["XRANGE", "s", "-", "+"]);
        let lines: Vec<&str> = entries.lines().collect();
        lines.windows(2).filter(|pair| pair[0] == "n").map(|pair| pair[1].parse().expect("a number")).collect()
    }

    #[tokio::test]
    async fn messages_stay_in_order() {
        let server = Redis::start(RedisOptions::default());
        let (mut producer, events) = producer(server.port());
        send(&mut producer, 0..5000, "x").await.expect("they are confirmed");
        send(&mut producer, 5000..5001, "x").await.expect("it is confirmed");
        assert_eq!((numbers(&server), producer.confirmed()), ((0..5001).collect(), 5001));
        assert!(events.lock().expect("not poisoned").is_empty());
    }

    #[tokio::test]
    async fn what_is_not_confirmed_is_sent_again() {
        let server = Redis::start(RedisOptions::default());
        // A connection that is lost once is no outage yet.
        let breaks = [Break::CutSending(50_000), Break::CutSending(50_000), Break::Nothing];
        let proxy = Proxy::start(server.port(), &breaks);
        let (mut producer, events) = producer(proxy.port());
        send(&mut producer, 0..5000, "x").await.expect("they are confirmed");
        assert_eq!((numbers(&server), producer.confirmed()), ((0..5000).collect(), 5000));
        let events = events.lock().expect("not poisoned");
        assert_eq!((events.len(), events[1].as_str()), (2, "back"), "{events:?}");
    }

    #[tokio::test]
    async fn a_message_whose_confirmation_is_lost_is_there_twice() {
        let server = Redis::start(RedisOptions::default());
        let proxy = Proxy::start(server.port(), &[Break::SwallowAnswer("EXEC"), Break::Nothing]);
        let (mut producer, _) = producer(proxy.port());
        send(&mut producer, 0..1, "x").await.expect("it is confirmed");
        assert_eq!((numbers(&server), producer.confirmed()), (vec![0, 0], 1));
    }

    #[tokio::test]
    async fn a_message_with_an_id_is_there_once() {
        let server = Redis::start(RedisOptions::default());
        let proxy = Proxy::start(server.port(), &[Break::SwallowAnswer("EXEC"), Break::Nothing]);
        let (mut first, _) = producer(proxy.port());
        let (mut second, _) = producer(server.port());
        for (producer, ids) in [(&mut first, 0..10), (&mut second, 5..12)] {
            for number in ids {
                let number = number.to_string();
                let fields = [(b"n".as_slice(), number.as_bytes()), (b"body", b"x")];
                producer.send(&fields, Some(number.as_bytes())).await.expect("it is sent");
            }
            producer.confirm().await.expect("they are confirmed");
        }
        assert_eq!(numbers(&server), (0..12).collect::<Vec<_>>());
        // The first transaction was made, and its answer was lost.
        assert_eq!((first.confirmed(), first.known()), (10, 10));
        assert_eq!((second.confirmed(), second.known()), (7, 5));
        let left: i64 = server.command(&["TTL", "millstream-sent:{s}:3"]).trim().parse().expect("a number");
        assert!((600_000..=604_800).contains(&left), "{left}");
    }

    #[tokio::test]
    async fn the_id_of_a_message_that_is_refused_is_not_remembered() {
        let server = Redis::start(RedisOptions::default());
        server.command(&["SET", "s", "no stream"]);
        for _ in 0..2 {
            let (mut producer, _) = producer(server.port());
            producer.send(&[(b"n".as_slice(), b"1".as_slice())], Some(b"1")).await.expect("it is sent");
            producer.confirm().await.expect_err("it is refused");
        }
        server.command(&["DEL", "s"]);
        let (mut producer, _) = producer(server.port());
        producer.send(&[(b"n".as_slice(), b"1".as_slice())], Some(b"1")).await.expect("it is sent");
        producer.confirm().await.expect("it is confirmed");
        assert_eq!((producer.known(), numbers(&server)), (0, vec![1]));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_server_without_memory_is_waited_for() {
        let settings = vec![("maxmemory".to_owned(), "4mb".to_owned())];
        let server = Redis::start(RedisOptions { settings, ..RedisOptions::default() });
        let (mut producer, events) = producer(server.port());
        let seen = Arc::clone(&events);
        let sending = tokio::spawn(async move { send(&mut producer, 0..20_000, &"x".repeat(1000)).await });
        let end = std::time::Instant::now() + PATIENCE;
        while seen.lock().expect("not poisoned").is_empty() {
            assert!(std::time::Instant::now() < end, "it has enough memory");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert!(events.lock().expect("not poisoned")[0].contains("`maxmemory`"), "{events:?}");
        server.command(&["CONFIG", "SET", "maxmemory", "100mb"]);
        sending.await.expect("no panic").expect("they are confirmed");
        assert_eq!(numbers(&server), (0..20_000).collect::<Vec<_>>());
    }

    #[tokio::test]
    async fn a_key_that_is_no_stream_is_an_error() {
        let server = Redis::start(RedisOptions::default());
        server.command(&["SET", "s", "1"]);
        let (mut producer, _) = producer(server.port());
        let error = send(&mut producer, 0..1, "x").await.expect_err("it is no stream");
        assert!(error.hint_text().is_some_and(|hint| hint.contains("not a stream")), "{error:?}");
    }
}
