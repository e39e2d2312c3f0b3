//! A bounded channel from a task that fetches, on the runtime of the network, to the consumer on another runtime.
//!
//! ```text
//!  task on `context.io` ──room──▶ read ──send──▶ [ window ] ──poll──▶ consumer
//!                        budget                              gives back
//! ```
//!
//! Bytes in the window are charged to the budget until the consumer takes them. A consumer that waits at an empty
//! window gets its next chunk even if the budget is used up. Otherwise units that were fetched ahead could hold all
//! memory while the unit that is needed waits for it. Dropping the stream stops the task.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::{Stream, StreamExt, select_biased};
use millstream_core::source::SourceContext;
use millstream_core::{Budget, ByteStream, Error, Reservation, Result};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinHandle;

/// Runs `work` on the runtime of the network. The stream has the chunks that it sends; its error is the last item. At
/// most `window` bytes wait (a larger chunk waits alone).
pub(crate) fn feed<W, F>(context: &SourceContext, window: usize, work: W) -> ByteStream
where
    W: FnOnce(Feeder) -> F + Send + 'static,
    F: Future<Output = Result<()>> + Send + 'static,
{
    // What is read ahead is not paid for yet.
    let window = context.pace.ahead().map_or(window, |ahead| window.min(ahead));
    let (sender, receiver) = mpsc::unbounded_channel();
    let hunger = Arc::new(Hunger::default());
    let feeder = Feeder {
        sender: sender.clone(),
        window: Arc::new(Semaphore::new(window)),
        window_bytes: window,
        budget: Arc::clone(&context.budget),
        hunger: Arc::clone(&hunger),
    };
    let task = context.io.spawn(async move {
        // The consumer has gone if this cannot be sent.
        let _ = match work(feeder).await {
            Ok(()) => sender.send(Message::End),
            Err(error) => sender.send(Message::Failed(error)),
        };
    });
    Fed { receiver, hunger, task, ended: false }.boxed()
}

enum Message {
    Chunk(Bytes, Room),
    End,
    Failed(Error),
}

/// The working end.
pub(crate) struct Feeder {
    sender: mpsc::UnboundedSender<Message>,
    window: Arc<Semaphore>,
    window_bytes: usize,
    budget: Arc<Budget>,
    hunger: Arc<Hunger>,
}

/// Room for one chunk: in the window and in the budget.
pub(crate) struct Room {
    _charge: Charge,
    _window: Option<OwnedSemaphorePermit>,
}

/// Bytes charged to the budget until dropped.
#[derive(Debug)]
pub(crate) enum Charge {
    Reserved(#[expect(dead_code, reason = "held for its drop")] Reservation),
    Forced(Arc<Budget>, usize),
}

impl Charge {
    /// Charges `bytes` that are already held, whether they are free or not.
    pub(crate) fn forced(budget: &Arc<Budget>, bytes: usize) -> Self {
        budget.take(bytes);
        Charge::Forced(Arc::clone(budget), bytes)
    }

    /// Raises the charge to `bytes`, whether they are free or not. A larger charge stays unchanged.
    pub(crate) fn raise(&mut self, bytes: usize) {
        if let Charge::Forced(budget, charged) = self
            && bytes > *charged
        {
            budget.take(bytes - *charged);
            *charged = bytes;
        }
    }

    /// Charges `bytes` if they are free.
    pub(crate) fn attempt(budget: &Arc<Budget>, bytes: usize) -> Option<Self> {
        budget.try_take(bytes).then(|| Charge::Forced(Arc::clone(budget), bytes))
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        if let Charge::Forced(budget, bytes) = self {
            budget.give_back(*bytes);
        }
    }
}

impl Feeder {
    /// Waits until `bytes` fit into the window and into the budget.
    pub(crate) async fn room(&self, bytes: usize) -> Room {
        let permits = u32::try_from(bytes.min(self.window_bytes)).unwrap_or(u32::MAX);
        // The semaphore is never closed.
        let window = Arc::clone(&self.window).acquire_many_owned(permits).await.ok();
        self.budget.admitted().await;
        let mut reserved = Box::pin(futures::FutureExt::fuse(self.budget.reserve(bytes)));
        let mut hungry = Box::pin(futures::FutureExt::fuse(self.hunger.felt()));
        let charge = select_biased! {
            reservation = reserved => Charge::Reserved(reservation),
            () = hungry => {
                Charge::forced(&self.budget, bytes)
            }
        };
        Room { _charge: charge, _window: window }
    }

    /// Room for `bytes` if the window and the budget have it now, for tasks that have other bytes in flight.
    pub(crate) fn spare(&self, bytes: usize) -> Option<Room> {
        let permits = u32::try_from(bytes.min(self.window_bytes)).unwrap_or(u32::MAX);
        let window = Arc::clone(&self.window).try_acquire_many_owned(permits).ok()?;
        futures::FutureExt::now_or_never(self.budget.admitted())?;
        Some(Room { _charge: Charge::attempt(&self.budget, bytes)?, _window: Some(window) })
    }

    /// Sends `bytes` to the consumer. Empty chunks are skipped. If the consumer has gone, the task is about to be
    /// stopped, so this is no error.
    pub(crate) fn send(&self, bytes: Bytes, room: Room) {
        if bytes.is_empty() {
            return;
        }
        self.hunger.satisfied();
        let _ = self.sender.send(Message::Chunk(bytes, room));
    }
}

/// Whether the consumer waits at an empty window.
#[derive(Default)]
struct Hunger {
    waiting: AtomicBool,
    notify: Notify,
}

impl Hunger {
    fn feel(&self) {
        self.waiting.store(true, Ordering::Release);
        self.notify.notify_one();
    }

    fn satisfied(&self) {
        self.waiting.store(false, Ordering::Release);
    }

    async fn felt(&self) {
        while !self.waiting.load(Ordering::Acquire) {
            self.notify.notified().await;
        }
    }
}

/// The consuming end.
struct Fed {
    receiver: mpsc::UnboundedReceiver<Message>,
    hunger: Arc<Hunger>,
    task: JoinHandle<()>,
    ended: bool,
}

impl Stream for Fed {
    type Item = Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let Poll::Ready(message) = self.receiver.poll_recv(context) else {
            self.hunger.feel();
            return Poll::Pending;
        };
        Poll::Ready(match message {
            Some(Message::Chunk(bytes, room)) => {
                drop(room);
                Some(Ok(bytes))
            }
            Some(Message::End) => {
                self.ended = true;
                None
            }
            Some(Message::Failed(error)) => {
                self.ended = true;
                Some(Err(error))
            }
            None => {
                self.ended = true;
                Some(Err(Error::internal("a reading task ended without a result")))
            }
        })
    }
}

impl Drop for Fed {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn context(budget: usize) -> SourceContext {
        SourceContext {
            io: tokio::runtime::Handle::current(),
            budget: Budget::new(budget),
            cache: Arc::default(),
            programs: Arc::default(),
            pace: Arc::default(),
        }
    }

    fn blocks(context: &SourceContext, window: usize, sizes: &'static [usize]) -> ByteStream {
        feed(context, window, move |feeder| async move {
            for size in sizes {
                let room = feeder.room(*size).await;
                feeder.send(Bytes::from(vec![b'x'; *size]), room);
            }
            Ok(())
        })
    }

    #[tokio::test]
    async fn the_window_bounds_what_waits_and_all_is_given_back() {
        let context = context(1000);
        let mut stream = blocks(&context, 100, &[60, 60, 0, 500, 1]);
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(context.budget.used(), 60, "the second chunk does not fit into the window");
        let mut sizes = Vec::new();
        while let Some(chunk) = stream.next().await {
            sizes.push(chunk.expect("no error").len());
        }
        assert_eq!(sizes, [60, 60, 500, 1]);
        assert_eq!(context.budget.used(), 0);
    }

    #[tokio::test]
    async fn the_unit_that_is_waited_for_continues_although_others_hold_the_budget() {
        let context = context(100);
        let mut ahead = blocks(&context, 1000, &[90, 90]);
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(context.budget.used(), 90);
        let needed = blocks(&context, 1000, &[50, 50, 50]);
        let needed = tokio::time::timeout(Duration::from_secs(60), needed.collect::<Vec<_>>()).await;
        assert_eq!(needed.expect("no deadlock").len(), 3);
        assert_eq!(ahead.next().await.expect("a chunk").expect("no error").len(), 90);
        drop(ahead);
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(context.budget.used(), 0);
    }

    #[tokio::test]
    async fn dropping_the_stream_stops_the_task() {
        let context = context(100);
        let (held, mut gone) = tokio::sync::oneshot::channel::<()>();
        let stream = feed(&context, 100, |feeder| async move {
            let _held = held;
            std::future::pending::<()>().await;
            drop(feeder);
            Ok(())
        });
        tokio::task::yield_now().await;
        assert!(gone.try_recv().is_err_and(|state| state == tokio::sync::oneshot::error::TryRecvError::Empty));
        drop(stream);
        assert!(tokio::time::timeout(Duration::from_secs(60), gone).await.expect("stopped").is_err());
    }

    #[tokio::test]
    async fn an_error_ends_the_stream_and_a_panic_is_no_end() {
        let context = context(100);
        let mut failing = feed(&context, 100, |_| async { Err(Error::refused("no")) });
        assert_eq!(failing.next().await.expect("an item").expect_err("an error").what(), "no");
        assert!(failing.next().await.is_none());
        let mut panicking = feed(&context, 100, |_| async { panic!("on purpose") });
        assert!(panicking.next().await.expect("an item").is_err());
    }
}
