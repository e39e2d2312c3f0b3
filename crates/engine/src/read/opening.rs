//! Units are opened some time before they are read: of each server as many as its pace allows.
//!
//! ```text
//!          ┌▶ lane of one server:     held … │ opening … ─┐
//!  units ──┤                                              ├─▶ opened, from the lanes in turn
//!          └▶ lane of another server: held … │ opening … ─┘
//! ```
//! A server that is slow keeps only its own units waiting. Where no order is asked for, neither does a slow unit.
//! The parts of an archive, which all tasks share, are opened before any further unit of their server.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use futures::future::BoxFuture;
use futures::stream::{BoxStream, Fuse, FuturesOrdered, FuturesUnordered};
use futures::{FutureExt, Stream, StreamExt};
use millstream_core::{Result, Unit};
use tokio::sync::futures::OwnedNotified;

use super::Reader;
use super::concurrency::ConcurrencyLimit;
use super::helpers::ReadHelpers;
use super::unit::{OpenUnit, Readable, open, open_part};

/// The most units that are open at once for all tasks together, of however many servers.
const MOST_OPEN: usize = 256;

/// The most units that are held back because their own server has enough to do, while another's are looked for.
const MOST_HELD: usize = 256;

/// The most lanes that are kept while nothing is in them.
const IDLE_LANES: usize = 16;

/// What the opened units are ordered by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// They come out as the units came in.
    Given,
    /// Only those of one server do.
    ByServer,
    /// They come out as they are open.
    Any,
}

/// `units`, opened some time before they are read. One of `tasks` tasks of the source opens its part of what may be
/// open at once, and of the parts of archives that the tasks of `pool` share. What has come to its end may go on when
/// another of them shares an archive.
pub fn opened<S>(
    reader: Arc<Reader>,
    units: S,
    tasks: usize,
    pool: &Arc<ReadHelpers>,
    order: Order,
) -> impl Stream<Item = Result<OpenUnit>> + Send + use<S>
where
    S: Stream<Item = Result<Unit>> + Send + 'static,
{
    let mut opening = Opening {
        reader,
        units: units.boxed().fuse(),
        tasks,
        sharing: Box::pin(pool.sharing()),
        pool: Arc::clone(pool),
        order,
        lanes: Vec::new(),
        turn: 0,
        held: 0,
        waiting: None,
    };
    futures::stream::poll_fn(move |context| opening.poll_next(context))
}

struct Opening {
    reader: Arc<Reader>,
    units: Fuse<BoxStream<'static, Result<Unit>>>,
    tasks: usize,
    pool: Arc<ReadHelpers>,
    /// Ends when parts of an archive are shared.
    sharing: Pin<Box<OwnedNotified>>,
    order: Order,
    lanes: Vec<Lane>,
    /// The lane that is asked first.
    turn: usize,
    /// Units held back in all lanes.
    held: usize,
    /// Since when whoever wants the next waits for one that is being opened.
    waiting: Option<Instant>,
}

/// The units of one server.
struct Lane {
    server: String,
    limit: Arc<ConcurrencyLimit>,
    held: VecDeque<Unit>,
    opening: Opens,
    /// Parts of archives, which are read first.
    parts: Opens,
}

/// What is being opened.
enum Opens {
    InOrder(FuturesOrdered<BoxFuture<'static, Result<Readable>>>),
    AsReady(FuturesUnordered<BoxFuture<'static, Result<Readable>>>),
}

impl Opening {
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<OpenUnit>>> {
        if let Some(since) = self.waiting.take() {
            self.reader.steps.decode.add_waiting_input(since.elapsed());
        }
        let next = self.poll_opened(context);
        if next.is_pending() && self.lanes.iter().any(Lane::is_opening) {
            self.waiting = Some(Instant::now());
        }
        next
    }

    fn poll_opened(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<OpenUnit>>> {
        loop {
            self.take_parts(context);
            for index in 0..self.lanes.len() {
                self.fill(index);
            }
            let exhausted = match self.take_units(context) {
                Ok(exhausted) => exhausted,
                Err(error) => return Poll::Ready(Some(Err(error))),
            };
            match self.next_readable(context) {
                Some(Ok(Readable::Unit(open))) => return Poll::Ready(Some(Ok(open))),
                Some(Ok(Readable::Archive(archive))) => self.pool.share(archive.parts()),
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None if exhausted && self.lanes.iter().all(Lane::is_idle) => return Poll::Ready(None),
                None => return Poll::Pending,
            }
        }
    }

    /// Takes parts of archives that are shared, as far as there is room for them.
    fn take_parts(&mut self, context: &mut Context<'_>) {
        loop {
            if let Some(part) = self.pool.part(|part| self.has_room_for(part.unit())) {
                let index = self.lane_of(part.unit());
                let (reader, limit) = (Arc::clone(&self.reader), Arc::clone(&self.lanes[index].limit));
                self.lanes[index].parts.push(open_part(reader, part, limit).boxed());
            } else if self.sharing.as_mut().poll(context).is_ready() {
                self.sharing = Box::pin(self.pool.sharing());
            } else {
                return;
            }
        }
    }

    /// Takes units, as long as one of the lanes can use them. Whether there are no more.
    fn take_units(&mut self, context: &mut Context<'_>) -> Result<bool> {
        while self.held < MOST_HELD && !self.all_have_enough() {
            match self.units.poll_next_unpin(context) {
                Poll::Ready(Some(unit)) => self.add(unit?),
                Poll::Ready(None) => return Ok(true),
                Poll::Pending => break,
            }
        }
        Ok(false)
    }

    /// The next that is open, from the lanes in turn.
    fn next_readable(&mut self, context: &mut Context<'_>) -> Option<Result<Readable>> {
        for step in 0..self.lanes.len() {
            let index = (self.turn + step) % self.lanes.len();
            let lane = &mut self.lanes[index];
            let mut next = lane.parts.poll_next(context);
            // In the order in which they were given, an archive comes before what is behind it.
            if !matches!(next, Poll::Ready(Some(_))) && (self.order != Order::Given || lane.parts.is_empty()) {
                next = lane.opening.poll_next(context);
            }
            if let Poll::Ready(Some(readable)) = next {
                lane.limit.opened();
                self.turn = index + 1;
                return Some(readable);
            }
        }
        None
    }

    fn has_room_for(&self, unit: &Unit) -> bool {
        let server = self.server_of(unit);
        let lane = self.lanes.iter().find(|lane| lane.server == server);
        self.may_open() && lane.is_none_or(|lane| lane.has_room(self.tasks))
    }

    /// Whether so few units of all servers are open that there may be more.
    fn may_open(&self) -> bool {
        self.lanes.iter().map(Lane::open).sum::<usize>() < (MOST_OPEN / self.tasks).max(1)
    }

    fn server_of<'unit>(&self, unit: &'unit Unit) -> &'unit str {
        match self.order {
            Order::Given => "",
            Order::ByServer | Order::Any => server_of(&unit.uri),
        }
    }

    /// Then units stay where other tasks can take them.
    fn all_have_enough(&self) -> bool {
        !self.may_open() || (!self.lanes.is_empty() && self.lanes.iter().all(|lane| !lane.has_room(self.tasks)))
    }

    fn add(&mut self, unit: Unit) {
        let index = self.lane_of(&unit);
        self.lanes[index].held.push_back(unit);
        self.held += 1;
        self.fill(index);
    }

    fn lane_of(&mut self, unit: &Unit) -> usize {
        let server = self.server_of(unit);
        self.lanes.iter().position(|lane| lane.server == server).unwrap_or_else(|| self.new_lane(unit))
    }

    fn new_lane(&mut self, unit: &Unit) -> usize {
        if self.lanes.len() >= IDLE_LANES {
            self.lanes.retain(|lane| !lane.is_idle());
        }
        let server = server_of(&unit.uri);
        let limit = self.reader.limit(server, unit);
        let server = self.server_of(unit).to_owned();
        let (opening, parts) = (Opens::new(self.order), Opens::new(self.order));
        self.lanes.push(Lane { server, limit, held: VecDeque::new(), opening, parts });
        self.lanes.len() - 1
    }

    /// Opens what the lane holds back, as far as its server's pace allows.
    fn fill(&mut self, index: usize) {
        // A list of many servers has many lanes: what is looked at over all of them comes last.
        while !self.lanes[index].held.is_empty() && self.lanes[index].has_room(self.tasks) && self.may_open() {
            let lane = &mut self.lanes[index];
            let Some(unit) = lane.held.pop_front() else { return };
            self.held -= 1;
            lane.opening.push(open(Arc::clone(&self.reader), unit, Arc::clone(&lane.limit)).boxed());
        }
    }
}

impl Lane {
    fn has_room(&self, tasks: usize) -> bool {
        self.open() < (self.limit.limit() / tasks).max(1)
    }

    fn open(&self) -> usize {
        self.opening.len() + self.parts.len()
    }

    fn is_opening(&self) -> bool {
        self.open() > 0
    }

    fn is_idle(&self) -> bool {
        self.held.is_empty() && !self.is_opening()
    }
}

impl Opens {
    fn new(order: Order) -> Self {
        match order {
            Order::Given | Order::ByServer => Opens::InOrder(FuturesOrdered::new()),
            Order::Any => Opens::AsReady(FuturesUnordered::new()),
        }
    }

    fn push(&mut self, opening: BoxFuture<'static, Result<Readable>>) {
        match self {
            Opens::InOrder(opens) => opens.push_back(opening),
            Opens::AsReady(opens) => opens.push(opening),
        }
    }

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Readable>>> {
        match self {
            Opens::InOrder(opens) => opens.poll_next_unpin(context),
            Opens::AsReady(opens) => opens.poll_next_unpin(context),
        }
    }

    fn len(&self) -> usize {
        match self {
            Opens::InOrder(opens) => opens.len(),
            Opens::AsReady(opens) => opens.len(),
        }
    }

    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The server of `uri` (or the bucket, which has servers of its own); nothing for what is on this machine.
fn server_of(uri: &str) -> &str {
    let scheme = uri.find(':').filter(|colon| uri[*colon..].starts_with("://"));
    let Some(authority) = scheme.map(|colon| colon + "://".len()) else { return "" };
    let path = uri[authority..].find(['/', '?', '#']).map_or(uri.len(), |length| authority + length);
    &uri[..path]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_what_stands_before_the_path() {
        for (uri, server) in [
            ("data/a.gz", ""),
            ("-", ""),
            ("file:///data/a.gz", "file://"),
            ("https://example.org/a/b.gz", "https://example.org"),
            ("https://example.org:8443?list", "https://example.org:8443"),
            ("s3://bucket/a://b", "s3://bucket"),
        ] {
            assert_eq!(server_of(uri), server, "{uri}");
        }
    }
}
