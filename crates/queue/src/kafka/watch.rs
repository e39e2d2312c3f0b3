//! Looks whether brokers can be reached and whether the topic is still the same: when something went wrong, and every
//! half a minute. The library does not notice a topic that was deleted and created again.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedSender;

use super::fault::{self, Reaction};
use super::native::{Client, Failure, Topic};
use super::place::Place;
use super::reader::Report;

/// How often it looks if nothing happens.
const EVERY: Duration = Duration::from_secs(30);

/// How long an answer may take before it is said that brokers are waited for.
const ANSWER: Duration = Duration::from_secs(3);

/// How long it waits between looks while they are.
const PAUSE: Duration = Duration::from_millis(500);

/// See the head of the file.
pub(super) struct Watch {
    pub(super) client: Arc<Client>,
    pub(super) place: Place,
    pub(super) reports: UnboundedSender<Report>,
    /// Something went wrong.
    pub(super) trouble: Arc<Notify>,
}

impl Watch {
    /// Looks until the consumer is dropped.
    pub(super) async fn run(self) {
        while !self.reports.is_closed() {
            let _ = tokio::time::timeout(EVERY, self.trouble.notified()).await;
            let mut since = None;
            loop {
                match self.look().await {
                    None => return,
                    Some(Ok(topic)) => {
                        let down: Option<Instant> = since;
                        down.into_iter().for_each(|since| self.report(Report::Back(since.elapsed())));
                        self.report(Report::Topic(topic.id));
                        break;
                    }
                    Some(Err(failure)) if fault::reaction(&failure) == Reaction::End => {
                        self.report(Report::Failed(failure));
                        break;
                    }
                    Some(Err(failure)) => {
                        if since.is_none() {
                            since = Some(Instant::now());
                            let doing = format!("reading topic {}", self.place.topic);
                            self.report(Report::Waiting(fault::error(&failure, &self.place, &doing)));
                        }
                        tokio::time::sleep(PAUSE).await;
                    }
                }
            }
        }
    }

    fn report(&self, report: Report) {
        // Without a receiver the consumer was dropped.
        let _ = self.reports.send(report);
    }

    async fn look(&self) -> Option<Result<Topic, Failure>> {
        let client = Arc::clone(&self.client);
        let look = move || client.describe(ANSWER, || Ok::<(), Failure>(()));
        tokio::task::spawn_blocking(look).await.ok()
    }
}
