//! A stream of Redis as a queue: from its settings to a consumer.

use std::sync::Arc;

use async_trait::async_trait;
use millstream_core::queue::{Consumer, Event, Joining, MessageId, Messages, Queue};
use millstream_core::{Error, Result, spec};
use tokio::runtime::Handle;
use tokio::sync::mpsc::unbounded_channel;

use super::connection::Connection;
use super::consumer::RedisConsumer;
use super::fault::{Fault, Reaction};
use super::gaps::{GroupFacts, Seen, StreamFacts};
use super::place::Place;
use super::reader::{other_groups, recreated};
use super::reply::{EntryId, Fields};
use super::rows::Rows;
use super::shared::{Shared, shown};
use super::spec::{Acked, OnGap, RedisRead, Start};
use super::stream::Stream;

/// A stream of a Redis server, read by a consumer group.
#[derive(Debug, Clone)]
pub struct RedisQueue {
    place: Arc<Place>,
    stream: Stream,
    settings: RedisRead,
    shown: String,
}

impl RedisQueue {
    /// The stream that `settings` name, of the server at `url`. With `headers`, the fields of entries that are not the
    /// message are given beside it.
    ///
    /// # Errors
    /// If it is not the URL of a Redis server.
    pub fn new(url: &str, settings: RedisRead, headers: bool) -> Result<Self, spec::Fault> {
        let place = Arc::new(Place::parse(url, &settings.access())?);
        let fields = Fields { body: settings.field.clone(), others: headers };
        let stream = Stream { key: settings.stream.clone(), group: settings.group.clone(), fields };
        Ok(RedisQueue { shown: shown(&place, &stream.key), place, stream, settings })
    }

    /// What the stream and the group are like; `None` if one of them is not there.
    async fn facts(&self, connection: &mut Connection) -> Result<Option<(StreamFacts, GroupFacts)>> {
        match self.stream.facts(connection).await {
            Ok(facts) => Ok(Some(facts)),
            Err(fault) if fault.reaction() == Reaction::NoGroup => Ok(None),
            Err(fault) => Err(self.error(fault, "joining")),
        }
    }

    fn error(&self, fault: Fault, doing: &str) -> Error {
        fault.into_error(&self.place, &format!("{doing} {}", self.shown))
    }

    /// The same, after the group was created if it was not there. It begins with the first entry where a target knows
    /// it: then it was deleted.
    async fn facts_of_group(
        &self,
        connection: &mut Connection,
        is_known: bool,
    ) -> Result<(StreamFacts, GroupFacts, Vec<Event>)> {
        let is_there = self.facts(connection).await?.is_some();
        let start = if is_known { Start::Earliest } else { self.settings.start };
        let events = match is_known && !is_there {
            true if self.settings.on_gap == OnGap::Fail => return Err(recreated(&self.shown)),
            true => vec![Event::Gap(recreated(&self.shown))],
            false => Vec::new(),
        };
        let created = self.stream.create(connection, start).await;
        created.map_err(|fault| self.error(fault, "creating the consumer group of"))?;
        match self.facts(connection).await? {
            Some((stream, group)) => Ok((stream, group, events)),
            None => Err(recreated(&self.shown)),
        }
    }
}

#[async_trait]
impl Queue for RedisQueue {
    fn shown(&self) -> String {
        self.shown.clone()
    }

    fn name(&self) -> String {
        format!("redis {} {}", self.place.database, self.stream.key)
    }

    fn group(&self) -> &str {
        &self.stream.group
    }

    async fn sample(&self, bytes: usize, io: &Handle) -> Result<Messages> {
        let queue = self.clone();
        let looked = io.spawn(async move {
            let mut connection = Connection::open(&queue.place, "millstream-looks").await?;
            let sample = queue.stream.sample(&mut connection, bytes).await;
            sample.map_err(|fault| queue.error(fault, "looking at"))
        });
        looked.await.map_err(|cause| Error::internal("looking at a stream failed").cause(cause))?
    }

    fn shown_id(&self, id: MessageId) -> String {
        EntryId::from(id).to_string()
    }

    async fn join(&self, joining: Joining) -> Result<Box<dyn Consumer>> {
        let queue = self.clone();
        let io = joining.io.clone();
        let joined = io.spawn(async move { queue.begin(joining).await }).await;
        let consumer = joined.map_err(|cause| Error::internal("joining a group failed").cause(cause))?;
        Ok(Box::new(consumer?))
    }
}

impl RedisQueue {
    async fn begin(self, joining: Joining) -> Result<RedisConsumer> {
        let mut connection = Connection::open(&self.place, "millstream-joins").await?;
        let rows = self.rows(&joining).await?;
        let is_known = rows.iter().any(|rows| rows.group.is_some());
        let (stream, group, events) = self.facts_of_group(&mut connection, is_known).await?;
        if self.settings.acked == Acked::Delete && group.others > 0 {
            return Err(other_groups(&self.shown, group.others));
        }
        let seen = if events.is_empty() { seen(&rows) } else { Seen::default() };
        let (told, events_of_tasks) = unbounded_channel();
        let RedisQueue { place, stream: key, settings, .. } = self;
        let shared = Arc::new(Shared::new(place, key, settings, joining, told, (seen, stream.last)));
        RedisConsumer::begin(shared, events_of_tasks, events, stream.added).await
    }

    async fn rows(&self, joining: &Joining) -> Result<Vec<Rows>> {
        let mut all = Vec::new();
        for positions in joining.positions.iter().flatten() {
            all.push(Rows::of(&self.stream.key, &positions.glance().await?)?);
        }
        Ok(all)
    }
}

/// What consumers have seen before this one.
fn seen(rows: &[Rows]) -> Seen {
    let groups = || rows.iter().filter_map(|rows| rows.group.as_ref()).map(|group| &group.state);
    Seen {
        position: rows.iter().map(Rows::high).max().unwrap_or_default(),
        added: groups().map(|group| group.added).max().unwrap_or_default(),
        told: groups().map(|group| group.told).max().unwrap_or_default(),
    }
}
