//! Reads new entries of the stream ahead of the consumer, and finds out what the stream has lost.
//!
//! What the stream and the group are like is asked in the same transaction as each read. So a read cannot wait at the
//! server: when it has brought nothing, something else waits for the next entry before it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use millstream_core::queue::Messages;
use millstream_core::{Error, Reservation, Result};
use tokio::sync::mpsc::UnboundedSender;

use super::fault::{Fault, Reaction};
use super::gaps::{Gap, Seen, gap};
use super::keeper::Acknowledged;
use super::link::Link;
use super::ranges::Ranges;
use super::reply::EntryId;
use super::rows::{GroupState, lacking};
use super::shared::{Life, Shared, What};
use super::spec::{Acked, OnGap, Start};
use super::stream::Checked;

/// How long an entry is waited for at the server.
const LONGEST_WAIT: Duration = Duration::from_secs(2);

/// The same as long as it was not reported that there is nothing: that may change without a message.
const SHORT_WAIT: Duration = Duration::from_millis(200);

/// The pause before a read that was woken, so that several messages come together.
const GATHERING: Duration = Duration::from_millis(5);

/// What to do to accept what has happened.
const ACCEPT: &str = "to continue all the same, run once with `on_gap: warn`";

/// Reads until the life of the consumer is over.
pub(super) async fn read(shared: Arc<Shared>, life: Arc<Life>, acknowledged: UnboundedSender<Acknowledged>) {
    let link = shared.link(&life.name);
    let (own, of) = (Arc::clone(&shared), Arc::clone(&life));
    let mut reader = Reader {
        shared: own,
        life: of,
        link,
        acknowledged,
        has_nothing: false,
        was_full: false,
        position: EntryId::default(),
    };
    match reader.run().await {
        Ok(()) => shared.tell(life.number, What::Over),
        Err(error) => shared.tell(life.number, What::Failed(error)),
    }
}

struct Reader {
    shared: Arc<Shared>,
    life: Arc<Life>,
    link: Link,
    acknowledged: UnboundedSender<Acknowledged>,
    /// Whether the last read has brought nothing, so that an entry is waited for.
    has_nothing: bool,
    /// Whether it has brought as much as was asked for, so that the next one may, too.
    was_full: bool,
    /// Where the group stood after the last read.
    position: EntryId,
}

impl Reader {
    /// Ends when the connection was lost in a read: the server may have handed out entries that never came. The
    /// consumer begins anew then, under another name, and claims them.
    async fn run(&mut self) -> Result<()> {
        let doing = format!("reading {}", self.shared.shown);
        loop {
            if self.has_nothing {
                self.wait(&doing).await?;
            }
            let count = self.shared.allowed().await;
            let room = self.shared.room(count).await;
            let mut messages = if self.was_full { self.shared.buffer(count) } else { Messages::default() };
            let connection = self.link.ready().await?;
            let (stream, name) = (&self.shared.stream, &self.life.name);
            let read = stream.read_checked(connection, name, count, &mut messages).await;
            self.shared.not_read(count.saturating_sub(if read.is_ok() { messages.len() } else { 0 }));
            match read {
                Ok(checked) => {
                    self.link.works();
                    self.was_full = messages.len() >= count;
                    self.took(checked, messages, room).await?;
                }
                Err(Fault::Lost(_)) => return Ok(()),
                Err(fault) if fault.reaction() == Reaction::NoGroup => {
                    let error = fault.into_error(&self.shared.place, &doing);
                    self.recreate(error).await?;
                }
                Err(fault) => self.link.failed(fault, &doing).await?,
            }
        }
    }

    /// Waits for an entry that the group has not read.
    async fn wait(&mut self, doing: &str) -> Result<()> {
        let wait = if self.shared.is_empty.load(Ordering::SeqCst) { LONGEST_WAIT } else { SHORT_WAIT };
        let connection = self.link.ready().await?;
        let since = Instant::now();
        match self.shared.stream.wait(connection, self.position, wait).await {
            Ok(()) if since.elapsed() < wait => {
                tokio::time::sleep(GATHERING).await;
                Ok(())
            }
            Ok(()) => Ok(()),
            // Nothing was read, so nothing is lost with the connection.
            Err(fault) => self.link.failed(fault, doing).await,
        }
    }

    /// Takes what a read has brought.
    async fn took(&mut self, checked: Checked, messages: Messages, room: Reservation) -> Result<()> {
        let gap = self.check(&checked)?;
        let comes_again = matches!(gap, Some(Gap::Back(_) | Gap::Recreated));
        if let Some(gap) = gap {
            self.report(gap, &checked).await?;
        }
        let ids = messages.ids();
        self.position = ids.last().map_or(checked.group.delivered, |last| EntryId::from(*last));
        self.shared.note_position(self.position);
        self.shared.set_lag(checked.group.lag.map(|lag| lag.saturating_sub(ids.len() as u64)));
        self.has_nothing = ids.is_empty();
        match ids.first().copied().map(EntryId::from) {
            None => {}
            Some(_) if comes_again => self.hand_over_lacking(messages, room).await?,
            Some(first) => {
                // All entries behind the group's position are these.
                let from = checked.group.delivered.next().min(first);
                self.shared.note_mean(&messages);
                self.shared.came(self.life.number, messages, Some(from), self.shared.all_sinks(), room);
            }
        }
        self.note_end(&checked);
        Ok(())
    }

    /// Reports that there is nothing, or that all is read that there was at the start; once the entries of consumers
    /// that may be dead have come, too.
    fn note_end(&self, checked: &Checked) {
        let (shared, is_nothing) = (&self.shared, self.has_nothing);
        if shared.is_open.load(Ordering::SeqCst) {
            return;
        }
        let is_behind = checked.group.delivered >= shared.end_at_start;
        if (is_nothing || is_behind) && !shared.has_reached_start.swap(true, Ordering::SeqCst) {
            shared.tell(self.life.number, What::ReachedStart);
        }
        if is_nothing && !shared.is_empty.swap(true, Ordering::SeqCst) {
            shared.tell(self.life.number, What::Empty);
        }
    }

    /// Whether the stream has lost something that was not reported, and what other groups it has.
    fn check(&self, checked: &Checked) -> Result<Option<Gap>> {
        let deletes = self.shared.settings.acked == Acked::Delete;
        if deletes && checked.group.others > 0 {
            return Err(other_groups(&self.shared.shown, checked.group.others));
        }
        let mut seen = self.shared.seen();
        let gap = gap(&checked.stream, &checked.group, &seen, deletes);
        *seen = match gap {
            Some(Gap::Back(_) | Gap::Recreated) => {
                Seen { position: checked.group.delivered, added: checked.stream.added, ..Seen::default() }
            }
            Some(Gap::Deleted(told)) => Seen { told, ..*seen },
            _ => Seen {
                position: seen.position.max(checked.group.delivered),
                added: checked.stream.added,
                told: seen.told,
            },
        };
        Ok(gap)
    }

    /// Reports what was lost, unless another consumer has done so: an error, or an event.
    async fn report(&mut self, gap: Gap, checked: &Checked) -> Result<()> {
        let shared = Arc::clone(&self.shared);
        let error = gap_error(&gap, &shared.shown);
        // Nothing is noted of what ends the run: it is an error the next time, too.
        if shared.settings.on_gap == OnGap::Fail {
            return Err(error);
        }
        let is_new = match gap {
            Gap::Removed(lost) => self.count_lost(lost).await?,
            Gap::Deleted(id) => {
                let change = |group: &mut GroupState| {
                    let is_new = group.told < id;
                    group.told = group.told.max(id);
                    is_new
                };
                shared.change_group(change).await?
            }
            Gap::Back(_) | Gap::Recreated => {
                self.forget(checked.group.delivered, checked.stream.added).await?;
                true
            }
        };
        if is_new { shared.lost(self.life.number, error) } else { Ok(()) }
    }

    /// Counts lost entries as read.
    async fn count_lost(&mut self, lost: Option<u64>) -> Result<bool> {
        loop {
            let connection = self.link.ready().await?;
            match self.shared.stream.count_lost(connection, lost).await {
                Ok(is_new) => return Ok(is_new),
                Err(fault) => self.link.failed(fault, "counting lost entries").await?,
            }
        }
    }

    /// Forgets how far consumers had come that are no more: the group stands elsewhere.
    async fn forget(&mut self, high: EntryId, added: u64) -> Result<()> {
        let change = |group: &mut GroupState| {
            let before = (group.high, group.added);
            (group.high, group.added) = (group.high.min(high), group.added.min(added));
            before != (group.high, group.added)
        };
        self.shared.change_group(change).await.map(drop)
    }

    /// The stream or its group is not there any more.
    async fn recreate(&mut self, error: Error) -> Result<()> {
        let shared = Arc::clone(&self.shared);
        shared.lost(self.life.number, recreated(&shared.shown).cause(cause_of(&error)))?;
        create(&shared, &mut self.link, Start::Earliest).await?;
        *shared.seen() = Seen::default();
        self.forget(EntryId::default(), 0).await
    }

    /// Hands over entries that come again to the sinks that lack them, as far as that is known.
    async fn hand_over_lacking(&mut self, messages: Messages, room: Reservation) -> Result<()> {
        let committed = self.shared.committed().await?;
        let ids = hand_over(&self.shared, self.life.number, messages, &committed, room);
        let _ = self.acknowledged.send(Acknowledged { batch: None, ids });
        Ok(())
    }
}

/// Hands single messages over to the sinks that lack them. Gives the ids of those that none lacks.
pub(super) fn hand_over(
    shared: &Shared,
    life: u64,
    messages: Messages,
    committed: &[Option<Ranges>],
    mut room: Reservation,
) -> Vec<EntryId> {
    let mut done = Vec::new();
    for (sinks, numbers) in lacking(messages.ids(), committed) {
        if sinks == 0 {
            done.extend(numbers.iter().map(|number| EntryId::from(messages.ids()[*number])));
            continue;
        }
        let mut part = Messages::default();
        numbers.iter().for_each(|number| part.append(&messages, *number));
        let bytes = part.held();
        shared.came(life, part, None, sinks, room.split(bytes));
    }
    done
}

/// Creates the group; waits for the server.
pub(super) async fn create(shared: &Shared, link: &mut Link, start: Start) -> Result<bool> {
    loop {
        let connection = link.ready().await?;
        match shared.stream.create(connection, start).await {
            Ok(is_new) => return Ok(is_new),
            Err(fault) => link.failed(fault, &format!("creating the consumer group of {}", shared.shown)).await?,
        }
    }
}

/// The error if loaded entries shall be deleted, and other groups have a right to them.
pub(super) fn other_groups(shown: &str, count: usize) -> Error {
    let groups =
        if count == 1 { "another consumer group".to_owned() } else { format!("{count} other consumer groups") };
    Error::refused(format!("{shown} has {groups}, and `acked: delete` would take their entries away"))
        .hint("write `acked: keep`, or destroy groups that nobody uses (`XGROUP DESTROY`)")
}

/// The error if the stream or its group was deleted.
pub(super) fn recreated(shown: &str) -> Error {
    Error::data(format!("{shown} or its consumer group was deleted: messages that were not read are lost")).hint(ACCEPT)
}

/// What an error of the server says.
fn cause_of(error: &Error) -> String {
    error.cause_text().unwrap_or(error.what()).to_owned()
}

fn gap_error(gap: &Gap, shown: &str) -> Error {
    match gap {
        Gap::Removed(lost) => {
            let lost = match lost {
                Some(1) => "1 message".to_owned(),
                Some(lost) => format!("{lost} messages"),
                None => "messages, it is not known how many,".to_owned(),
            };
            let what = format!("{shown} has lost {lost} before the group has read them");
            Error::data(what).cause("entries were trimmed (`XTRIM`, `MAXLEN`) or deleted").hint(ACCEPT)
        }
        Gap::Deleted(id) => {
            let what = format!("entries of {shown} were deleted before the group has read them, up to {id}");
            Error::data(what).cause("`XDEL`").hint(ACCEPT)
        }
        Gap::Back(_) => {
            let what = format!("the group's position in {shown} went back: messages that were read come again");
            Error::data(what)
                .cause("it was set by hand (`XGROUP SETID`), or the server has forgotten what it had acknowledged")
                .hint(format!("let the server write its log before it answers (`appendfsync always`); {ACCEPT}"))
        }
        Gap::Recreated => recreated(shown),
    }
}
