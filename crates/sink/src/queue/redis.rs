//! A stream of Redis that is written to: a server that is away is waited for, but only for a while.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use millstream_core::epochs::{Guarantee, QueueFacts};
use millstream_core::{Error, Result};
use millstream_queue::redis::{KEY_FIELD, Place, RedisProducer, RedisWrite, shown_stream};
use tokio::runtime::Handle;

use super::message::Message;
use super::outlet::{Outlet, SENT_AGAIN, Target, Terms};

/// A stream.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) settings: RedisWrite,
    pub(super) place: Place,
}

#[async_trait]
impl Target for Stream {
    fn name(&self) -> &'static str {
        "redis"
    }

    fn url(&self) -> String {
        self.place.server.shown.clone()
    }

    fn shown(&self) -> String {
        shown_stream(&self.place, &self.settings.stream)
    }

    async fn connect(&self, terms: &Terms) -> Result<Box<dyn Outlet>> {
        self.reach(&terms.io).await?;
        let trouble = Arc::new(Mutex::new(None));
        let noted = Arc::clone(&trouble);
        let note = move |change: Result<Duration>| {
            *noted.lock().unwrap_or_else(PoisonError::into_inner) = change.err();
        };
        let producer = RedisProducer::new(self.place.clone(), &self.settings.stream, Box::new(note));
        let (field, patience, shown) = (self.settings.field.clone(), terms.patience, self.shown());
        Ok(Box::new(RedisOutlet { producer, field, patience, trouble, shown }))
    }

    async fn reach(&self, _: &Handle) -> Result<()> {
        RedisProducer::look(&self.place, &self.settings.stream).await
    }

    fn guarantee(&self, _: &QueueFacts) -> Result<Guarantee, String> {
        Ok(match &self.settings.id {
            Some(id) => Guarantee::once(format!("the stream takes no message whose `{id}` it got within 7 days")),
            None => Guarantee::once_or_more(format!("{SENT_AGAIN}; `id` names a column that prevents it")),
        })
    }
}

struct RedisOutlet {
    producer: RedisProducer,
    /// The field of the body.
    field: String,
    patience: Duration,
    /// Why the server is waited for.
    trouble: Arc<Mutex<Option<Error>>>,
    shown: String,
}

impl RedisOutlet {
    fn trouble(&self) -> Error {
        let trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone();
        trouble.unwrap_or_else(|| Error::transient(format!("{} takes no messages", self.shown)))
    }
}

#[async_trait]
impl Outlet for RedisOutlet {
    async fn send(&mut self, message: &Message) -> Result<()> {
        let mut fields = vec![(self.field.as_bytes(), message.body.as_slice())];
        fields.extend(message.key.as_ref().map(|key| (KEY_FIELD.as_bytes(), key.as_bytes())));
        fields.extend(message.headers.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())));
        let id = message.id.as_ref().map(String::as_bytes);
        let sent = tokio::time::timeout(self.patience, self.producer.send(&fields, id)).await;
        sent.unwrap_or_else(|_| Err(self.trouble()))
    }

    async fn confirm(&mut self) -> Result<Vec<(usize, Error)>> {
        let confirmed = tokio::time::timeout(self.patience, self.producer.confirm()).await;
        confirmed.unwrap_or_else(|_| Err(self.trouble())).map(|()| Vec::new())
    }

    fn known(&self) -> u64 {
        self.producer.known()
    }
}
