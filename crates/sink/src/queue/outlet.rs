//! What messages go out through: a producer of Kafka or Redis, which waits for its server only for a while.

use std::fmt::Debug;
use std::time::Duration;

use async_trait::async_trait;
use millstream_core::{Error, Result};
use tokio::runtime::Handle;

use super::message::Message;

/// How messages are sent.
#[derive(Debug, Clone)]
pub(super) struct Terms {
    /// Bytes that may be on their way at once.
    pub(super) window: usize,
    /// How long a server that is away is waited for.
    pub(super) patience: Duration,
    /// Where the network is.
    pub(super) io: Handle,
}

/// A topic or stream that is written to.
#[async_trait]
pub(super) trait Target: Debug + Send + Sync {
    /// `kafka`.
    fn name(&self) -> &'static str;

    /// Its URL, without passwords.
    fn url(&self) -> String;

    /// For messages: `topic t of kafka://…`.
    fn shown(&self) -> String;

    /// Connects to it.
    async fn connect(&self, terms: &Terms) -> Result<Box<dyn Outlet>>;

    /// Asks whether it would take messages.
    async fn reach(&self, io: &Handle) -> Result<()>;
}

/// Takes messages.
#[async_trait]
pub(super) trait Outlet: Send {
    /// Sends a message, without waiting for its confirmation.
    async fn send(&mut self, message: &Message) -> Result<()>;

    /// Waits until all messages are confirmed. Those that were refused, by their numbers since the last confirmation,
    /// from 0.
    async fn confirm(&mut self) -> Result<Vec<(usize, Error)>>;
}

#[cfg(feature = "kafka")]
pub(super) mod kafka {
    use std::time::Instant;

    use millstream_queue::kafka::{KafkaWrite, Outgoing, Place, Producer};

    use super::*;

    /// How often it is asked whether brokers can be reached.
    const LOOK: Duration = Duration::from_secs(1);

    /// What a topic is asked with.
    const WINDOW: usize = 1 << 20;

    /// A topic.
    #[derive(Debug)]
    pub(in super::super) struct Topic {
        pub(in super::super) target: String,
        pub(in super::super) settings: KafkaWrite,
        pub(in super::super) place: Place,
    }

    #[async_trait]
    impl Target for Topic {
        fn name(&self) -> &'static str {
            "kafka"
        }

        fn url(&self) -> String {
            self.place.server.shown.clone()
        }

        fn shown(&self) -> String {
            let url = &self.place.server.shown;
            let cluster = url.rsplit_once('/').map_or(url.as_str(), |(cluster, _)| cluster);
            format!("topic {} of {cluster}", self.place.topic)
        }

        async fn connect(&self, terms: &Terms) -> Result<Box<dyn Outlet>> {
            let producer = Producer::connect(&self.target, &self.settings, terms.window, &terms.io).await?;
            Ok(Box::new(KafkaOutlet { producer, patience: terms.patience }))
        }

        async fn reach(&self, io: &Handle) -> Result<()> {
            Producer::connect(&self.target, &self.settings, WINDOW, io).await.map(drop)
        }
    }

    struct KafkaOutlet {
        producer: Producer,
        patience: Duration,
    }

    #[async_trait]
    impl Outlet for KafkaOutlet {
        async fn send(&mut self, message: &Message) -> Result<()> {
            let headers = message.headers.iter().map(|(name, value)| (name.as_str(), Some(value.as_bytes())));
            let headers: Vec<_> = headers.collect();
            let key = message.key.as_ref().map(String::as_bytes);
            let outgoing = Outgoing { key, headers: &headers, time: message.time, body: Some(&message.body) };
            self.producer.send(&outgoing).await
        }

        async fn confirm(&mut self) -> Result<Vec<(usize, Error)>> {
            let mut away: Option<Instant> = None;
            loop {
                if let Ok(confirmed) = tokio::time::timeout(LOOK, self.producer.confirm()).await {
                    return confirmed;
                }
                match self.producer.trouble() {
                    Some(trouble) if away.get_or_insert_with(Instant::now).elapsed() > self.patience => {
                        return Err(trouble);
                    }
                    Some(_) => {}
                    None => away = None,
                }
            }
        }
    }
}

#[cfg(feature = "redis")]
pub(super) mod redis {
    use std::sync::{Arc, Mutex, PoisonError};

    use millstream_queue::redis::{Connection, Place, RedisProducer, RedisWrite, shown_stream};

    use super::*;

    /// A stream.
    #[derive(Debug)]
    pub(in super::super) struct Stream {
        pub(in super::super) settings: RedisWrite,
        pub(in super::super) place: Place,
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
            Connection::open(&self.place, "millstream-asks").await.map(drop)
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
            fields.extend(message.headers.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())));
            let sent = tokio::time::timeout(self.patience, self.producer.send(&fields)).await;
            sent.unwrap_or_else(|_| Err(self.trouble()))
        }

        async fn confirm(&mut self) -> Result<Vec<(usize, Error)>> {
            let confirmed = tokio::time::timeout(self.patience, self.producer.confirm()).await;
            confirmed.unwrap_or_else(|_| Err(self.trouble())).map(|()| Vec::new())
        }
    }
}
