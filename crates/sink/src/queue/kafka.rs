//! A topic of Kafka that is written to: brokers that are away are waited for, but only for a while.

use std::time::{Duration, Instant};

use async_trait::async_trait;
use millstream_core::{Error, Result};
use millstream_queue::kafka::{KafkaWrite, Outgoing, Place, Producer};
use tokio::runtime::Handle;

use super::message::Message;
use super::outlet::{Outlet, Target, Terms};

/// How often it is asked whether brokers can be reached.
const LOOK: Duration = Duration::from_secs(1);

/// A topic.
#[derive(Debug)]
pub(super) struct Topic {
    pub(super) target: String,
    pub(super) settings: KafkaWrite,
    pub(super) place: Place,
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
        Producer::look(&self.target, &self.settings, io).await
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
