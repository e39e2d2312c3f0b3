//! Rows straight into the target, chunk by chunk, with a table beside it that notes in the same transaction which chunks
//! are there. It owns the protocol:
//!
//! ```text
//!  BEGIN ─▶ insert the ledger's rows ─▶ bulk statements ─▶ COMMIT ─▶ written
//!                   │ conflict                               │ no answer
//!                   ▼                                        ▼
//!            ROLLBACK, already done          on a new connection: BEGIN ─▶ insert the same rows
//!                                               conflict, and they are ours ─▶ written
//!                                               conflict, and they are another's ─▶ already done
//!                                               no conflict ─▶ ROLLBACK: it was not committed
//! ```
//! The ledger's unique key makes whoever comes second wait for the end of the first: also ourselves, for a transaction
//! of ours whose end we do not know. So the second insert does not merely look: it waits until there is an answer.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use millstream_core::sink::{Chunk, Delivered, Delivery, KnownLoad, Ledger, LoadContext, RefusedRow, WrittenChunks};
use millstream_core::{Budget, Error, Result, fail_point};
use tokio::runtime::Handle;
use tokio::sync::OwnedSemaphorePermit;

use super::group::{BadRow, Group, Rows};
use super::lanes::{Lanes, connect, pause};
use super::load::{self, SHOWN_BAD_ROWS, Shared, refused_rows, waiting};
use super::narrow;
use super::server::{Encoder, Failure, Server, Session};
use super::spec::{DatabaseSpec, Mode};
use crate::shared::{counted, digest};

/// The ledger's table.
const TABLE: &str = "_millstream_ledger";

/// How many connections deliver if nobody says so.
const CONNECTIONS: usize = 2;

/// The most rows of the ledger in one statement.
const ROWS: usize = 500;

/// A ledger in a database.
pub(crate) struct DatabaseLedger(Arc<Book>);

/// What the deliveries of a ledger share.
struct Book {
    shared: Shared,
    /// The ledger's table, as SQL text.
    table: String,
    load: String,
    schema: SchemaRef,
    budget: Arc<Budget>,
    io: Handle,
}

/// Whether rows may become visible piece by piece: the user's statements, and a key that waits, are for a load as a whole.
pub(crate) fn may_keep(spec: &DatabaseSpec) -> bool {
    let plain = !spec.atomic && !spec.defer_key && spec.before.is_empty() && spec.after.is_empty();
    spec.mode == Mode::Append && plain
}

/// The ledger of `load`, if rows of this sink can become visible piece by piece.
pub(crate) async fn open(
    server: Arc<dyn Server>,
    spec: DatabaseSpec,
    load: String,
    context: LoadContext,
) -> Result<Option<Arc<dyn Ledger>>> {
    if !may_keep(&spec) {
        return Ok(None);
    }
    let io = context.io.clone();
    waiting(&io, async move {
        let book = set_up(server, spec, load, context).await?;
        Ok(book.map(|book| Arc::new(DatabaseLedger(Arc::new(book))) as Arc<dyn Ledger>))
    })
    .await
}

async fn set_up(
    server: Arc<dyn Server>,
    mut spec: DatabaseSpec,
    load: String,
    context: LoadContext,
) -> Result<Option<Book>> {
    let mut session = connect(server.as_ref(), &spec).await?;
    let table = server.beside(&spec, TABLE);
    if !enter(server.as_ref(), session.as_mut(), &spec, &table, &load).await? {
        return Ok(None);
    }
    let facts = load::ready_target(server.as_ref(), session.as_mut(), &spec, &context.schema).await?;
    let columns = load::bulk_columns(server.as_ref(), &spec, &context.schema, Some(&facts));
    spec.name_like(&columns.iter().map(|column| column.name.clone()).collect::<Vec<_>>());
    let count = if context.ordered { 1 } else { spec.connections.unwrap_or(CONNECTIONS) };
    let shared = Shared {
        bulk: server.bulk(&server.table(&spec), columns, &context.schema),
        place: load::place(server.as_ref(), &spec),
        lanes: Lanes::new(&server, &spec, count),
        direct: false,
        step: context.step,
        detour: std::sync::Mutex::default(),
        server,
        spec,
    };
    let book = Book { shared, table, load, schema: context.schema, budget: context.budget, io: context.io };
    book.shared.lanes.give(session);
    Ok(Some(book))
}

/// Makes the ledger's table where it is missing; `false` if the user may not.
async fn make_ledger(server: &dyn Server, session: &mut dyn Session, spec: &DatabaseSpec, table: &str) -> Result<bool> {
    let there = server.tables(session, spec, TABLE).await.map_err(Failure::into_error)?;
    if there.iter().any(|name| name == TABLE) {
        return Ok(true);
    }
    match session.execute(&server.create_ledger(table)).await {
        Ok(_) => Ok(true),
        Err(Failure::Other(_)) => {
            // Another load may have made it just now.
            let there = server.tables(session, spec, TABLE).await.map_err(Failure::into_error)?;
            Ok(there.iter().any(|name| name == TABLE))
        }
        Err(Failure::Rows(_)) => Ok(true),
        Err(other) => Err(other.into_error()),
    }
}

/// The unit of the entry that names the load.
fn header() -> String {
    "0".repeat(64)
}

/// Notes in the ledger that there is this load; `false` if there is no ledger, and the user may not make one.
async fn enter(
    server: &dyn Server,
    session: &mut dyn Session,
    spec: &DatabaseSpec,
    table: &str,
    load: &str,
) -> Result<bool> {
    let values = format!("('{}', '{}', -1, '', {})", digest(load), header(), server.text(load));
    let insert = format!("INSERT INTO {table} (load_key, unit_key, chunk, attempt, note) VALUES {values}");
    let mut tries = 0;
    loop {
        if !make_ledger(server, session, spec, table).await? {
            return Ok(false);
        }
        match session.execute(&insert).await {
            // It was there.
            Ok(_) | Err(Failure::Rows(_)) => return Ok(true),
            // A load that ended has taken the empty ledger away just now.
            Err(Failure::Other(_) | Failure::Again { .. }) if tries < spec.retries => {
                tries += 1;
                pause(tries).await;
            }
            Err(other) => return Err(other.into_error()),
        }
    }
}

/// What a load as a whole notes when its rows become visible.
pub(crate) enum Mark {
    /// This statement does it.
    Statement(String),
    /// It is noted.
    There,
}

/// What the load `mark` notes; `None` where there can be no ledger.
pub(crate) async fn mark(
    server: &dyn Server,
    session: &mut dyn Session,
    spec: &DatabaseSpec,
    mark: &str,
) -> Result<Option<Mark>> {
    let table = server.beside(spec, TABLE);
    if !enter(server, session, spec, &table, mark).await? {
        return Ok(None);
    }
    let (load, unit) = (digest(mark), header());
    let query = format!("SELECT 1 FROM {table} WHERE load_key = '{load}' AND unit_key = '{unit}' AND chunk = 0");
    if !session.query(&query).await.map_err(Failure::into_error)?.is_empty() {
        return Ok(Some(Mark::There));
    }
    let columns = "load_key, unit_key, chunk, attempt";
    Ok(Some(Mark::Statement(format!("INSERT INTO {table} ({columns}) VALUES ('{load}', '{unit}', 0, '')"))))
}

/// Forgets the load `mark`; with `unwritten` only if it has noted nothing.
pub(crate) async fn unmark(
    server: Arc<dyn Server>,
    spec: DatabaseSpec,
    mark: String,
    io: &Handle,
    unwritten: bool,
) -> Result<()> {
    waiting(io, async move {
        let mut session = connect(server.as_ref(), &spec).await?;
        let (session, table) = (session.as_mut(), server.beside(&spec, TABLE));
        let there = server.tables(session, &spec, TABLE).await.map_err(Failure::into_error)?;
        if !there.iter().any(|name| name == TABLE) {
            return Ok(());
        }
        if strike_out(session, &table, &digest(&mark), unwritten).await.map_err(Failure::into_error)? {
            // Nobody minds if the table cannot be taken away.
            let _ = tidy(server.as_ref(), session, &table).await;
        }
        Ok(())
    })
    .await
}

/// Forgets a load, once nobody is about to write to it; with `unwritten` only if nothing of it is written. Whether it did.
async fn strike_out(session: &mut dyn Session, table: &str, key: &str, unwritten: bool) -> Result<bool, Failure> {
    session.execute("BEGIN").await?;
    // Whoever is writing holds the entry, and is waited for.
    let entry = format!("SELECT 1 FROM {table} WHERE load_key = '{key}' AND chunk = -1 FOR UPDATE");
    session.query(&entry).await?;
    let written = format!("SELECT 1 FROM {table} WHERE load_key = '{key}' AND chunk >= 0 LIMIT 1");
    if unwritten && !session.query(&written).await?.is_empty() {
        session.execute("ROLLBACK").await?;
        return Ok(false);
    }
    session.execute(&format!("DELETE FROM {table} WHERE load_key = '{key}'")).await?;
    session.execute("COMMIT").await?;
    Ok(true)
}

/// Takes the ledger away if it has no load any more. Nobody minds if that cannot be done.
async fn tidy(server: &dyn Server, session: &mut dyn Session, table: &str) -> Result<(), Failure> {
    let (lock, unlock) = server.lock_table(table);
    for statement in lock {
        session.execute(&statement).await?;
    }
    let left = session.query(&format!("SELECT 1 FROM {table} LIMIT 1")).await?;
    if left.is_empty() {
        session.execute(&format!("DROP TABLE {table}")).await?;
    }
    session.execute(unlock).await?;
    Ok(())
}

impl Book {
    /// Notes chunks, inside of the transaction that is open.
    async fn note(&self, session: &mut dyn Session, chunks: &[Chunk], attempt: &str) -> Result<(), Failure> {
        let load = digest(&self.load);
        for some in chunks.chunks(ROWS) {
            let row = |chunk: &Chunk| format!("('{load}', '{}', {}, '{attempt}')", digest(&chunk.unit), chunk.number);
            let rows: Vec<String> = some.iter().map(row).collect();
            let insert =
                format!("INSERT INTO {} (load_key, unit_key, chunk, attempt) VALUES {}", self.table, rows.join(", "));
            session.execute(&insert).await?;
        }
        Ok(())
    }

    /// All chunks that are written; with `attempt`, by that one.
    async fn all(&self, session: &mut dyn Session, attempt: Option<&str>) -> Result<WrittenChunks, Failure> {
        let by = attempt.map_or(String::new(), |attempt| format!(" AND attempt = '{attempt}'"));
        let query = format!(
            "SELECT unit_key, chunk FROM {} WHERE load_key = '{}' AND chunk >= 0{by}",
            self.table,
            digest(&self.load)
        );
        let rows = session.query(&query).await?.into_iter();
        let known = rows.filter_map(|row| {
            let mut cells = row.into_iter().flatten();
            Some((cells.next()?, cells.next()?.parse().ok()?))
        });
        Ok(WrittenChunks::new(known, digest))
    }

    /// Which of `chunks` are written; with `attempt`, by that one.
    async fn written(
        &self,
        session: &mut dyn Session,
        chunks: &[Chunk],
        attempt: Option<&str>,
    ) -> Result<Vec<Chunk>, Failure> {
        let known = self.all(session, attempt).await?;
        Ok(chunks.iter().filter(|chunk| known.contains(chunk)).cloned().collect())
    }

    /// Keeps the entry of the load as it is until the transaction ends. Once a load is forgotten, its notes keep nobody
    /// from writing its rows again: whoever has slept through that must not.
    async fn check_entry(&self, session: &mut dyn Session) -> Result<(), Failure> {
        let query = format!(
            "SELECT 1 FROM {} WHERE load_key = '{}' AND unit_key = '{}' AND chunk = -1 {}",
            self.table,
            digest(&self.load),
            header(),
            self.shared.server.share_lock()
        );
        match session.query(&query).await?.is_empty() {
            false => Ok(()),
            true => Err(Failure::Other(forgotten(&self.shared.place))),
        }
    }

    /// Begins a transaction with the notes; the chunks that are there already, if some are.
    async fn begin(
        &self,
        session: &mut dyn Session,
        chunks: &[Chunk],
        attempt: &str,
    ) -> Result<Option<Vec<Chunk>>, Failure> {
        session.execute("BEGIN").await?;
        fail_point::pass("ledger.before");
        self.check_entry(session).await?;
        match self.note(session, chunks, attempt).await {
            Ok(()) => {
                fail_point::pass("ledger.after");
                Ok(None)
            }
            Err(Failure::Rows(_)) => {
                session.execute("ROLLBACK").await?;
                self.written(session, chunks, None).await.map(Some)
            }
            Err(other) => Err(other),
        }
    }

    /// Finds out what became of a commit that was not answered.
    async fn resolve(&self, chunks: &[Chunk], attempt: &str) -> Result<Outcome> {
        let mut tries = 0;
        loop {
            let unknown = match self.try_resolve(chunks, attempt).await {
                Ok(outcome) => return Ok(outcome),
                Err(error) => error,
            };
            if tries >= self.shared.spec.retries {
                let what = format!("the connection was lost while {} was committed", self.shared.place);
                return Err(Error::refused(what)
                    .cause(unknown.cause_text().unwrap_or(unknown.what()))
                    .hint("the ledger knows whether the rows are there: go on when the server is back"));
            }
            pause(tries).await;
            tries += 1;
        }
    }

    async fn try_resolve(&self, chunks: &[Chunk], attempt: &str) -> Result<Outcome> {
        let mut session = connect(self.shared.server.as_ref(), &self.shared.spec).await?;
        let session = session.as_mut();
        let there = self.begin(session, chunks, &new_attempt()).await.map_err(Failure::into_error)?;
        let Some(there) = there else {
            session.execute("ROLLBACK").await.map_err(Failure::into_error)?;
            return Ok(Outcome::Undone);
        };
        let ours = self.written(session, chunks, Some(attempt)).await.map_err(Failure::into_error)?;
        Ok(if ours.is_empty() { Outcome::Others(there) } else { Outcome::Ours })
    }
}

/// The load is not in the ledger any more.
fn forgotten(place: &str) -> Error {
    Error::refused(format!("another run has completed this load into {place}, or has given it up"))
        .hint("look at `millstream runs`; nothing was written twice")
}

/// What became of a commit.
enum Outcome {
    Ours,
    Others(Vec<Chunk>),
    Undone,
}

/// A name that no other delivery has.
fn new_attempt() -> String {
    use std::hash::{BuildHasher, RandomState};
    format!("{:016x}", RandomState::new().hash_one(()))
}

impl DatabaseLedger {
    /// Forgets a load, once nobody is about to write to it; with `unwritten` only if nothing of it is written.
    async fn strike_out(&self, load: &str, unwritten: bool) -> Result<bool> {
        let (book, key) = (Arc::clone(&self.0), digest(load));
        waiting(&self.0.io, async move {
            let _permit = book.shared.lanes.permit().await?;
            let mut session = book.shared.lanes.take().await?;
            let struck = strike_out(session.as_mut(), &book.table, &key, unwritten).await;
            let struck = struck.map_err(Failure::into_error)?;
            // Nobody minds if the table cannot be taken away.
            if !struck || tidy(book.shared.server.as_ref(), session.as_mut(), &book.table).await.is_ok() {
                book.shared.lanes.give(session);
            }
            Ok(struck)
        })
        .await
    }
}

#[async_trait]
impl Ledger for DatabaseLedger {
    async fn written(&self) -> Result<WrittenChunks> {
        let book = Arc::clone(&self.0);
        waiting(&self.0.io, async move {
            let _permit = book.shared.lanes.permit().await?;
            let mut session = book.shared.lanes.take().await?;
            let written = book.all(session.as_mut(), None).await.map_err(Failure::into_error)?;
            book.shared.lanes.give(session);
            Ok(written)
        })
        .await
    }

    async fn delivery(&self, mut chunks: Vec<Chunk>, bad_rows: usize) -> Result<Box<dyn Delivery>> {
        // Two who note the same chunks in the same order wait for each other, and never in a circle.
        chunks.sort();
        chunks.dedup();
        let book = Arc::clone(&self.0);
        let encoder = book.shared.server.encoder(&book.shared.bulk, &book.schema, &book.shared.spec);
        Ok(Box::new(TableDelivery {
            encoder,
            chunks,
            attempt: new_attempt(),
            group: None,
            lane: None,
            already: None,
            rows: 0,
            sealed: 0,
            refused: Vec::new(),
            bad_rows,
            book,
        }))
    }

    async fn forget(&self, load: &str) -> Result<()> {
        self.strike_out(load, false).await.map(drop)
    }

    async fn forget_unwritten(&self, load: &str) -> Result<bool> {
        self.strike_out(load, true).await
    }

    fn summary(&self, rows: u64) -> String {
        format!("{} added to {}", counted(rows, "row"), self.0.shared.place)
    }

    async fn loads(&self) -> Result<Vec<KnownLoad>> {
        let query = format!(
            "SELECT MAX(note), COUNT(*) - 1, {} FROM {} GROUP BY load_key ORDER BY 3, 1",
            self.0.shared.server.seconds_since("MAX(written_at)"),
            self.0.table
        );
        let book = Arc::clone(&self.0);
        waiting(&self.0.io, async move {
            let _permit = book.shared.lanes.permit().await?;
            let mut session = book.shared.lanes.take().await?;
            let (server, spec) = (book.shared.server.as_ref(), &book.shared.spec);
            let there = server.tables(session.as_mut(), spec, TABLE).await.map_err(Failure::into_error)?;
            let rows = match there.iter().any(|name| name == TABLE) {
                true => session.query(&query).await.map_err(Failure::into_error)?,
                false => Vec::new(),
            };
            book.shared.lanes.give(session);
            let known = rows.into_iter().filter_map(|row| {
                let mut cells = row.into_iter();
                let load = cells.next().flatten()?;
                let mut number = || cells.next().flatten().and_then(|text| text.parse().ok()).unwrap_or(0);
                Some(KnownLoad { load, chunks: number(), idle_seconds: number() })
            });
            Ok(known.collect())
        })
        .await
    }
}

/// A connection with a transaction in which the chunks are noted.
struct Lane {
    session: Box<dyn Session>,
    _permit: OwnedSemaphorePermit,
}

/// Rows of some chunks on their way into a table.
struct TableDelivery {
    book: Arc<Book>,
    encoder: Box<dyn Encoder>,
    chunks: Vec<Chunk>,
    attempt: String,
    group: Option<Group>,
    lane: Option<Lane>,
    /// The chunks that others have done: nothing more is sent.
    already: Option<Vec<Chunk>>,
    /// Rows that came.
    rows: u64,
    /// Those of them in groups that were sent.
    sealed: u64,
    refused: Vec<RefusedRow>,
    bad_rows: usize,
}

#[async_trait]
impl Delivery for TableDelivery {
    async fn write(&mut self, batch: RecordBatch) -> Result<()> {
        let mut row = 0;
        while row < batch.num_rows() && self.already.is_none() {
            let start = std::time::Instant::now();
            let spec = &self.book.shared.spec;
            let bytes = usize::try_from(spec.batch_bytes.0).unwrap_or(usize::MAX);
            let group = self.group.get_or_insert_with(|| Group::new(&self.book.budget, bytes));
            row = self.encoder.encode(&batch, row, None, group)?;
            let full = group.is_full(spec.batch_rows);
            self.book.shared.step.add_busy(start.elapsed());
            if full {
                self.flush().await?;
            }
        }
        self.rows += batch.num_rows() as u64;
        Ok(())
    }

    async fn commit(mut self: Box<Self>) -> Result<Delivered> {
        self.flush().await?;
        if let Some(already) = self.already {
            return Ok(Delivered::AlreadyDone(already));
        }
        let Some(mut lane) = self.lane.take() else { return Err(Error::internal("a delivery lost its connection")) };
        let (book, chunks, attempt) = (Arc::clone(&self.book), self.chunks, self.attempt);
        let outcome = waiting(&self.book.io, async move {
            fail_point::pass("commit.before");
            match lane.session.execute("COMMIT").await {
                Ok(_) => {
                    fail_point::pass("commit.after");
                    book.shared.lanes.give(lane.session);
                    Ok(Outcome::Ours)
                }
                Err(Failure::Lost(_)) => {
                    drop(lane);
                    book.resolve(&chunks, &attempt).await
                }
                Err(other) => Err(other.into_error()),
            }
        });
        match outcome.await? {
            Outcome::Ours => {
                Ok(Delivered::Written { rows: self.rows - self.refused.len() as u64, refused: self.refused })
            }
            Outcome::Others(chunks) => Ok(Delivered::AlreadyDone(chunks)),
            Outcome::Undone => Err(Error::transient(format!(
                "the connection was lost before {} was committed",
                self.book.shared.place
            ))
            .hint("look at the server's log; nothing of the rows is there, and they can be sent again")),
        }
    }
}

/// What sending a group has come to.
enum Sent {
    Done(Lane, Vec<BadRow>),
    Already(Vec<Chunk>),
}

impl TableDelivery {
    /// Sends the rows that were gathered, and notes the chunks before the first of them.
    async fn flush(&mut self) -> Result<()> {
        if self.already.is_some() {
            return Ok(());
        }
        let mut group = self.group.take().unwrap_or_else(|| Group::new(&self.book.budget, 0));
        if group.is_empty() && self.lane.is_some() {
            return Ok(());
        }
        let own = std::mem::take(&mut group.refused);
        self.check_limit(&own)?;
        let left = self.bad_rows - self.refused.len() - own.len();
        let rows = group.sealed();
        let start = std::time::Instant::now();
        let lane = self.lane.take();
        let (book, chunks, attempt) = (Arc::clone(&self.book), self.chunks.clone(), self.attempt.clone());
        let sending = rows.clone();
        let sent = waiting(&self.book.io, async move { send(&book, lane, &chunks, &attempt, &sending, left).await });
        let sent = sent.await;
        self.book.shared.step.add_waiting_output(start.elapsed());
        match sent? {
            Sent::Already(chunks) => self.already = Some(chunks),
            Sent::Done(lane, bad) => {
                self.lane = Some(lane);
                self.check_limit(&[own.as_slice(), bad.as_slice()].concat())?;
                self.book.shared.step.add_bytes(rows.part(0..rows.count()).len() as u64);
                self.tell(&rows, own, bad);
            }
        }
        Ok(())
    }

    fn check_limit(&self, bad: &[BadRow]) -> Result<()> {
        if self.refused.len() + bad.len() <= self.bad_rows {
            return Ok(());
        }
        Err(refused_rows(&self.book.shared.place, bad.iter().take(SHOWN_BAD_ROWS).cloned().collect()))
    }

    /// Adds the bad rows of a group: those that could not be encoded, which its numbers leave out, and those that the
    /// server did not take.
    fn tell(&mut self, rows: &Rows, own: Vec<BadRow>, bad: Vec<BadRow>) {
        let count = (rows.count() + own.len()) as u64;
        // A row stands behind those before it that could not be encoded.
        let skipped = |index: usize| own.iter().filter(|one| one.index <= index).count();
        let mut all: Vec<(usize, &BadRow)> = bad.iter().map(|one| (one.index + skipped(one.index), one)).collect();
        all.extend(own.iter().enumerate().map(|(before, one)| (one.index + before, one)));
        all.sort_by_key(|(row, _)| *row);
        let base = self.sealed;
        self.refused.extend(all.into_iter().map(|(row, one)| RefusedRow {
            row: base + row as u64,
            shown: one.shown.clone(),
            column: one.column.clone(),
            reason: one.reason.clone(),
        }));
        self.sealed += count;
    }
}

/// Sends a group in the transaction of `lane`, or in a new one that notes the chunks first.
async fn send(
    book: &Book,
    lane: Option<Lane>,
    chunks: &[Chunk],
    attempt: &str,
    rows: &Rows,
    left: usize,
) -> Result<Sent> {
    let begins = lane.is_none();
    let mut lane = match lane {
        Some(lane) => lane,
        None => Lane { _permit: book.shared.lanes.permit().await?, session: book.shared.lanes.take().await? },
    };
    let most = (left + 1).max(SHOWN_BAD_ROWS);
    let mut tries = 0;
    loop {
        let session = lane.session.as_mut();
        let sent = async {
            if !begins {
                session.execute(narrow::REMEMBER).await?;
            } else if let Some(already) = book.begin(session, chunks, attempt).await? {
                return Ok(Err(already));
            }
            fail_point::pass("bulk.before");
            let bad = narrow::load(book.shared.server.as_ref(), session, &book.shared.bulk, rows, most).await?;
            fail_point::pass("bulk.after");
            Ok(Ok(bad))
        };
        match sent.await {
            Ok(Ok(bad)) => return Ok(Sent::Done(lane, bad)),
            Ok(Err(already)) => {
                book.shared.lanes.give(lane.session);
                return Ok(Sent::Already(already));
            }
            Err(Failure::Again { error, undone }) => {
                // What went before in the same transaction is not here any more.
                if tries >= book.shared.spec.retries || (undone && !begins) {
                    return Err(error);
                }
                let back = if begins { "ROLLBACK" } else { narrow::TAKE_BACK };
                lane.session.execute(back).await.map_err(Failure::into_error)?;
                pause(tries).await;
                tries += 1;
            }
            Err(other) => return Err(other.into_error()),
        }
    }
}
