//! One unit, opened: its bytes, however they are had, and the text that is unpacked from them.
//!
//! Small units that are at hand (files in the page cache), and those that come by a connection which is kept, are read
//! by the task that decodes them: a task of their own would cost more than the reading. Everything else is fetched
//! where waiting is done.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use datafusion::common::runtime::SpawnedTask;
use futures::{FutureExt, StreamExt};
use millstream_codec::{Unpack, Unpacked, is_zip};
use millstream_core::format::{ReadAt, Reading};
use millstream_core::pace::wait;
use millstream_core::source::Content;
use millstream_core::{ByteStream, Error, Reservation, Result, Unit};

use super::Reader;
use super::archive::{self, Archive, Found, Part};
use super::concurrency::ConcurrencyLimit;
use super::helpers::Member;
use super::lines::{self, Before};
use super::ranges::ranged_file;

/// Units up to this size in bytes are read by the task that decodes them, if that needs no waiting.
const WHOLE: usize = 1 << 20;

/// An opened unit and its bytes.
pub struct OpenUnit {
    /// The unit.
    pub unit: Unit,
    /// Its bytes.
    pub bytes: UnitBytes,
    /// What is told how much comes.
    pub limit: Arc<ConcurrencyLimit>,
}

/// The bytes of a unit, in one of the ways to get them.
pub enum UnitBytes {
    /// The format asks for ranges.
    Ranged(Arc<dyn ReadAt>),
    /// All of them, charged to the budget.
    Whole(Bytes, Reservation),
    /// As they come.
    Stream(ByteStream),
    /// Those of a part of an archive, as they come.
    Part(Part, ByteStream),
    /// Some lines of a text, and what stands before them, if something does.
    Lines(Option<Before>, ByteStream),
    /// None: the place gives rows.
    Rows,
    /// None: the unit cannot be opened, and is left out.
    Missing,
}

impl From<Content> for UnitBytes {
    fn from(content: Content) -> Self {
        match content {
            Content::Whole(bytes, held) => UnitBytes::Whole(bytes, held),
            Content::Stream(bytes) => UnitBytes::Stream(bytes),
        }
    }
}

/// What there is to read.
pub enum Readable {
    /// A unit, or a part of one.
    Unit(OpenUnit),
    /// The parts of an archive: several tasks may take them.
    Archive(Arc<Archive>),
}

/// Opens `unit` for the format of `reader`. What comes of it is told to `pace`.
pub async fn open(reader: Arc<Reader>, unit: Unit, limit: Arc<ConcurrencyLimit>) -> Result<Readable> {
    reader.context.budget.admitted().await;
    reader.context.pace.admitted().await;
    reader.begins(&unit.uri);
    let bytes = match found(&reader, &unit, &limit).await {
        Ok(Found::Bytes(bytes)) => bytes,
        Ok(Found::Archive(archive)) => {
            if unit.size.is_some() {
                reader.steps.fetch.expect_less(archive.left_out());
            }
            return Ok(Readable::Archive(archive));
        }
        // It can be opened: this is no reason to leave it out.
        Ok(Found::Unwanted(error)) => return Err(error),
        Err(error) => {
            reader.unopened.leave_out(error.in_unit(&unit.uri, None))?;
            UnitBytes::Missing
        }
    };
    Ok(Readable::Unit(OpenUnit { unit, bytes, limit }))
}

async fn found(reader: &Arc<Reader>, unit: &Unit, limit: &Arc<ConcurrencyLimit>) -> Result<Found<UnitBytes>> {
    let ranged = match reader.format.reading() {
        Reading::Rows => return Ok(Found::Bytes(UnitBytes::Rows)),
        reading => matches!(reading, Reading::Ranges(_)),
    };
    if !ranged && unit.records.is_some() {
        let unit = unit.clone();
        return on_io(reader, |reader| async move { open_records(&reader, &unit).await }).await;
    }
    let whole = reader.context.pace.ahead().map_or(WHOLE, |ahead| WHOLE.min(ahead));
    if !ranged && let Some((bytes, reservation)) = reader.read_now(unit, whole) {
        return Ok(Found::Bytes(UnitBytes::Whole(bytes, reservation)));
    }
    if !ranged && reader.source_of(&unit.uri)?.opens_lightly() {
        return Ok(archive::open(reader, unit).await?.map(UnitBytes::from));
    }
    let (unit, limit) = (unit.clone(), Arc::clone(limit));
    on_io(reader, |reader| async move {
        let file = if ranged { ranged_file(&reader, &unit, Some(limit)).await? } else { None };
        match file {
            Some(file) => Ok(Found::Bytes(UnitBytes::Ranged(file))),
            None if unit.records.is_some() => Err(gives_no_ranges()),
            None => Ok(archive::open(&reader, &unit).await?.map(UnitBytes::from)),
        }
    })
    .await
}

/// Some records of `unit`, which is a zip or a text.
async fn open_records(reader: &Arc<Reader>, unit: &Unit) -> Result<Found<UnitBytes>> {
    let cut = unit.as_cut().ok_or_else(|| Error::internal("some records are read of a unit that was not cut"))?;
    let head = lines::head(reader, &cut).await?.ok_or_else(gives_no_ranges)?;
    if !is_zip(&head) {
        let (before, bytes) = lines::open(reader, &cut, head).await?;
        return Ok(Found::Bytes(UnitBytes::Lines(before, bytes)));
    }
    match archive::by_directory(reader, &cut).await? {
        Some(Found::Archive(archive)) if archive.is_empty() => {
            Err(Error::refused("the archive is not the one that was listed"))
        }
        Some(found) => Ok(found.map(UnitBytes::from)),
        None => Err(Error::refused("the directory of the archive cannot be read here")
            .hint("is there memory for it? It takes about 100 bytes for each member")),
    }
}

fn gives_no_ranges() -> Error {
    Error::refused("the place of the file gives no ranges of it any more")
}

/// Opens a part of an archive. Other parts of it may have been read, so a fault of it is one of the run.
pub async fn open_part(reader: Arc<Reader>, part: Part, limit: Arc<ConcurrencyLimit>) -> Result<Readable> {
    reader.context.budget.admitted().await;
    reader.context.pace.admitted().await;
    on_io(&reader, |reader| async move {
        let bytes = part.open(&reader).await?;
        Ok(Readable::Unit(OpenUnit { unit: part.unit().clone(), bytes: UnitBytes::Part(part, bytes), limit }))
    })
    .await
}

/// Runs `work` where waiting is done.
async fn on_io<T: Send + 'static, F: Future<Output = Result<T>> + Send + 'static>(
    reader: &Arc<Reader>,
    work: impl FnOnce(Arc<Reader>) -> F,
) -> Result<T> {
    let task = {
        let (work, io) = (work(Arc::clone(reader)), reader.context.io.clone());
        let _enter = io.enter();
        SpawnedTask::spawn(work)
    };
    task.join().await.map_err(|join| Error::internal("a task failed").cause(join))?
}

/// The text of a unit.
pub struct UnitText {
    reader: Arc<Reader>,
    unit: Unit,
    limit: Arc<ConcurrencyLimit>,
    unpack: Unpack,
    input: Input,
    /// It is a part of the unit.
    part: Option<Part>,
    /// What stands before it, if it is not the beginning.
    before: Option<Before>,
    /// Where its records are, if it was cut.
    places: Option<Range<u64>>,
    /// Bytes have come.
    begun: bool,
    /// It cannot be opened, and is left out.
    missing: bool,
    /// Its bytes come in pieces.
    streamed: bool,
    worker: Arc<Member>,
    /// What helpers hold of this unit, and what was fed for them.
    ahead: Option<Reservation>,
    /// When what has come of it is paid for, if the source is throttled.
    paid: Option<Instant>,
}

enum Input {
    /// All of it is fed.
    Whole { _reservation: Reservation },
    /// More may come.
    Stream(ByteStream),
    /// No more comes.
    Nothing,
}

impl UnitText {
    /// The text of the unit, unpacked by `worker`.
    pub fn new(reader: Arc<Reader>, open: OpenUnit, worker: Arc<Member>) -> Result<Self> {
        let OpenUnit { unit, bytes, limit } = open;
        let mut unpack = Unpack::new(reader.unpack_options(&unit));
        let missing = matches!(bytes, UnitBytes::Missing);
        let (mut part, mut before, mut places, mut paid) = (None, None, None, None);
        let input = match bytes {
            UnitBytes::Ranged(_) | UnitBytes::Rows | UnitBytes::Missing => Input::Nothing,
            UnitBytes::Stream(stream) => {
                let pool = Arc::clone(worker.pool());
                unpack = unpack.with_helpers(pool);
                Input::Stream(stream)
            }
            UnitBytes::Part(of_archive, stream) => {
                unpack = of_archive.unpack(&reader)?;
                part = Some(of_archive);
                Input::Stream(stream)
            }
            UnitBytes::Lines(stands_before, stream) => {
                unpack = Unpack::of_text(reader.unpack_options(&unit));
                before = stands_before;
                places = unit.records.as_ref().map(|records| records.places.clone());
                Input::Stream(stream)
            }
            UnitBytes::Whole(bytes, _reservation) => {
                reader.steps.fetch.add_bytes(bytes.len() as u64);
                limit.add_bytes(bytes.len() as u64);
                paid = reader.context.pace.pay(bytes.len() as u64);
                unpack.feed(bytes);
                unpack.end();
                Input::Whole { _reservation }
            }
        };
        let streamed = matches!(input, Input::Stream(_));
        let begun = part.is_some();
        let ahead = None;
        Ok(UnitText {
            reader,
            unit,
            limit,
            unpack,
            input,
            part,
            before,
            places,
            begun,
            missing,
            streamed,
            worker,
            ahead,
            paid,
        })
    }

    /// The unit.
    pub fn unit(&self) -> &Unit {
        &self.unit
    }

    /// What stands before the text, if it is not the beginning of the unit's.
    pub fn before(&self) -> Option<&Before> {
        self.before.as_ref()
    }

    /// Whether it has some lines of a text that was cut.
    pub fn is_cut(&self) -> bool {
        self.places.is_some()
    }

    /// Fails if a record at `byte` is none of those that are meant, as it cannot be told to whom it belongs.
    pub fn check_place(&self, byte: u64) -> Result<()> {
        match &self.places {
            Some(places) if !places.contains(&byte) => {
                let error =
                    Error::data("a line begins with so many blanks that several processes cannot read its file");
                Err(error.byte(byte).hint("run the job without `--cluster`"))
            }
            _ => Ok(()),
        }
    }

    /// Who unpacks it.
    pub fn worker(&self) -> &Arc<Member> {
        &self.worker
    }

    /// Whether it could not be opened, and is left out.
    pub fn is_missing(&self) -> bool {
        self.missing
    }

    /// Whether the text may be long enough for several tasks.
    pub fn is_long(&self) -> bool {
        self.streamed
    }

    /// It has been read to its end, and had so many lines: how many the unit has, unless it was a part of one, and
    /// others are still read.
    pub fn ended(&self, lines: u64) -> Option<u64> {
        self.part.as_ref().map_or(Some(lines), |part| part.ended(lines))
    }

    /// `error`, in this unit.
    pub fn fault(&self, error: Error, member: Option<&str>) -> Error {
        let error = if self.before.is_some() { error.without_line() } else { error };
        error.in_unit(&self.unit.uri, member)
    }

    /// What unpacking gives next: never [`Unpacked::Hungry`]. A unit that is left out is done at once.
    pub async fn next(&mut self) -> Result<Unpacked> {
        loop {
            if self.missing {
                return Ok(Unpacked::Done);
            }
            // What came in one piece is read only once it is paid for: nothing more is asked for it.
            if !self.streamed {
                self.admitted().await;
            }
            self.worker.beat();
            self.feed_ahead()?;
            let step = Arc::clone(&self.reader.steps.decode);
            let unpacked = step.busy(|| self.unpack.next()).map_err(|error| self.fault(error, None))?;
            match &unpacked {
                Unpacked::Hungry => {
                    self.feed().await?;
                    continue;
                }
                Unpacked::Text(text) => step.add_bytes(text.len() as u64),
                Unpacked::Done => step.add_detail(self.unpack.codec()),
                Unpacked::Begin { .. } | Unpacked::End => {}
            }
            return Ok(unpacked);
        }
    }

    /// Waits until what has come is paid for; the wait is counted.
    async fn admitted(&mut self) {
        if let Some(paid) = self.paid.take() {
            let start = Instant::now();
            wait(Some(paid)).await;
            self.reader.steps.decode.add_waiting_input(start.elapsed());
        }
    }

    /// Feeds the next bytes; the wait is counted.
    async fn feed(&mut self) -> Result<()> {
        let Input::Stream(bytes) = &mut self.input else {
            return Err(Error::internal("the unit is read, and more is wanted"));
        };
        self.reader.context.budget.admitted().await;
        let start = Instant::now();
        wait(self.paid.take()).await;
        let chunk = bytes.next().await.transpose();
        self.reader.steps.decode.add_waiting_input(start.elapsed());
        match chunk {
            Ok(chunk) => self.take(chunk),
            // Many a place tells only now that there is nothing.
            Err(error) if !self.begun => {
                self.reader.unopened.leave_out(self.fault(error, None))?;
                self.missing = true;
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Feeds what helpers could decode ahead: bytes that are here without waiting, as far as the budget has room.
    fn feed_ahead(&mut self) -> Result<()> {
        while let wanted @ 1.. = self.unpack.wants() {
            if !self.charge(self.unpack.held() + wanted) {
                return Ok(());
            }
            let Input::Stream(bytes) = &mut self.input else { return Ok(()) };
            if self.paid.is_some_and(|paid| paid > Instant::now()) {
                return Ok(());
            }
            let Some(chunk) = bytes.next().now_or_never() else { return Ok(()) };
            self.take(chunk.transpose()?);
        }
        if self.ahead.is_some() {
            self.charge(self.unpack.held());
        }
        Ok(())
    }

    /// Takes `chunk`, or the end, which is told once: no stream is asked again behind its end.
    fn take(&mut self, chunk: Option<Bytes>) {
        match chunk {
            Some(chunk) => {
                self.begun = true;
                self.reader.steps.fetch.add_bytes(chunk.len() as u64);
                self.limit.add_bytes(chunk.len() as u64);
                self.paid = self.reader.context.pace.pay(chunk.len() as u64);
                self.unpack.feed(chunk);
            }
            None => {
                self.input = Input::Nothing;
                self.unpack.end();
            }
        }
    }

    /// Holds `bytes` of the budget for what is decoded ahead; `false` if there is no room for more.
    fn charge(&mut self, bytes: usize) -> bool {
        let held = self.ahead.as_ref().map_or(0, Reservation::bytes);
        match &mut self.ahead {
            Some(ahead) if bytes <= held => ahead.shrink(held - bytes),
            Some(ahead) => return ahead.try_grow(bytes - held),
            None if bytes == 0 => {}
            None => self.ahead = self.reader.context.budget.try_reserve("decoding ahead", bytes).ok(),
        }
        bytes == 0 || self.ahead.is_some()
    }
}
