//! What the job file may say of reading a stream of Redis.

use millstream_core::spec::{Duration, Fault, Secret, Spec, TextOrSecret};
use millstream_net::server::{Access, Tls};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The shortest `claim_after`: a consumer has to show several times meanwhile that it is alive.
const LEAST_CLAIM_AFTER: Duration = Duration::from_seconds(10);

/// The field of an entry that holds the key of its message.
pub const KEY_FIELD: &str = "_key";

/// The most bytes of the name of a stream or group: positions are kept under names that contain them.
const LONGEST_NAME: usize = 256;

/// What becomes of entries that were loaded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Acked {
    /// They stay in the stream.
    #[default]
    Keep,
    /// They are deleted. Refused if the stream has other consumer groups.
    Delete,
}

/// Where a group begins that neither Redis nor the target knows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Start {
    /// At the first entry of the stream.
    #[default]
    Earliest,
    /// Behind the last entry of the stream.
    Latest,
}

/// What happens if the queue has lost messages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OnGap {
    /// The run fails.
    #[default]
    Fail,
    /// A warning says what was lost, and the run continues.
    Warn,
}

/// A struct of these fields, and of those that name a stream and say how its server is reached; `key` is the job file's
/// key of the URL.
macro_rules! with_server {
    ($key:literal, $(#[$about:meta])* pub struct $name:ident { $($own:tt)* }) => {
        $(#[$about])*
        #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
        #[serde(deny_unknown_fields)]
        pub struct $name {
            /// The key of the stream. It is created if it does not exist.
            #[schemars(length(min = 1))]
            pub stream: String,
            $($own)*
            /// The user's name; one in the URL takes precedence.
            #[serde(default)]
            pub user: Option<TextOrSecret>,
            /// A reference to the password; one in the URL takes precedence.
            #[serde(default)]
            pub password: Option<Secret>,
            /// Whether the connection is encrypted and the server has to prove who it is. By default it is, except to
            /// this machine itself. `rediss://` asks for it, too.
            #[serde(default)]
            pub tls: Option<Tls>,
            /// The path of a PEM file with certificates of authorities to trust besides the system's.
            #[schemars(length(min = 1))]
            #[serde(default)]
            pub ca: Option<String>,
        }

        impl $name {
            /// What it says of access to the server.
            pub fn access(&self) -> Access {
                let (user, password) = (self.user.clone(), self.password.clone());
                Access { key: $key, user, password, tls: self.tls, ca: self.ca.clone() }
            }
        }
    };
}

with_server! {
    "read",
    /// A stream of a Redis server, and the consumer group that reads it.
    pub struct RedisRead {
        /// The consumer group. Processes of the same group share the messages. It is created if it does not exist.
        #[schemars(length(min = 1))]
        pub group: String,
        /// The field of an entry that holds the message. By default, an entry has to have a single field.
        #[schemars(length(min = 1))]
        #[serde(default)]
        pub field: Option<String>,
        /// After this time without a sign of life of a consumer, others take its messages; at least `10s`. Sooner if
        /// the database shows that the consumer's process has no connection any more.
        #[serde(default = "default_claim_after")]
        pub claim_after: Duration,
        /// What becomes of entries that were loaded.
        #[serde(default)]
        pub acked: Acked,
        /// Where a new group begins. One that Redis or the target knows continues where it stands.
        #[serde(default)]
        pub start: Start,
        /// What happens if messages were trimmed or deleted before they were read, or if the stream was deleted.
        #[serde(default)]
        pub on_gap: OnGap,
    }
}

with_server! {
    "write",
    /// A stream of a Redis server that is written to.
    pub struct RedisWrite {
        /// The field of an entry that holds the message. A source has to name it where entries have other fields, too.
        #[schemars(length(min = 1))]
        #[serde(default = "default_field")]
        pub field: String,
        /// A column that identifies the message. One whose id was sent to the stream within the last 7 days is left
        /// out, so that each message is there once even if it is sent again.
        #[schemars(length(min = 1))]
        #[serde(default)]
        pub id: Option<String>,
    }
}

impl RedisWrite {
    /// What the types do not show.
    pub fn faults(&self) -> Vec<Fault> {
        let mut faults = name_faults("stream", &self.stream);
        if self.field == KEY_FIELD {
            let what = format!("`{KEY_FIELD}` is the field of a message's key");
            faults.push(Fault::new("field", what).hint("leave `field` out, or name another one"));
        }
        faults
    }
}

fn default_field() -> String {
    "body".to_owned()
}

fn default_claim_after() -> Duration {
    Duration::from_seconds(60)
}

impl RedisRead {
    /// The defaults for a stream and a group.
    pub fn new(stream: impl Into<String>, group: impl Into<String>) -> Self {
        RedisRead {
            stream: stream.into(),
            group: group.into(),
            field: None,
            claim_after: default_claim_after(),
            acked: Acked::Keep,
            start: Start::Earliest,
            on_gap: OnGap::Fail,
            user: None,
            password: None,
            tls: None,
            ca: None,
        }
    }
}

impl Spec for RedisRead {
    const NAME: &'static str = "redis";
    const SUMMARY: &'static str = "Messages of a stream of Redis or Valkey, read by a consumer group.";
    const EXAMPLE: &'static str = "\
read: redis://queue.example/0
redis: {stream: events, group: load, password: {secret: env:REDIS_PASSWORD}}
json: {columns: {id: int64, name: utf8}}
";

    fn check(&self) -> Vec<Fault> {
        let mut faults = name_faults("stream", &self.stream);
        faults.extend(name_faults("group", &self.group));
        if self.claim_after.0 < LEAST_CLAIM_AFTER.0 {
            let what = format!("`claim_after` is at least {LEAST_CLAIM_AFTER}");
            let hint = "a consumer that works on a large transaction must not be taken for dead";
            faults.push(Fault::new("claim_after", what).hint(hint));
        }
        faults
    }
}

/// What is wrong with the name of a stream or group.
pub(super) fn name_faults(key: &str, name: &str) -> Vec<Fault> {
    let what = if name.is_empty() {
        "is empty"
    } else if name.len() > LONGEST_NAME {
        "is longer than 256 bytes"
    } else if name.chars().any(char::is_control) {
        "has control characters"
    } else {
        return Vec::new();
    };
    vec![Fault::new(key, format!("the name of the {key} {what}"))]
}

#[cfg(test)]
mod tests {
    use millstream_core::spec;
    use serde_json::json;

    use super::*;

    #[test]
    fn most_settings_have_defaults() {
        let read: RedisRead = spec::parse(&json!({"stream": "s", "group": "g"})).expect("settings");
        assert_eq!(read, RedisRead::new("s", "g"));
        let read: RedisRead = spec::parse(&json!({
            "stream": "s", "group": "g", "field": "body", "claim_after": "10s", "acked": "delete", "start": "latest",
            "on_gap": "warn", "user": "u", "password": {"secret": "env:P"}, "tls": "off", "ca": "a.pem",
        }))
        .expect("settings");
        assert_eq!((read.acked, read.start, read.on_gap), (Acked::Delete, Start::Latest, OnGap::Warn));
        assert_eq!((read.access().tls, read.access().ca.as_deref()), (Some(Tls::Off), Some("a.pem")));
    }

    #[test]
    fn bad_settings_have_faults_with_their_keys() {
        let long = "s".repeat(257);
        for (settings, key, what) in [
            (json!({"group": "g"}), "", "missing field `stream`"),
            (json!({"stream": "", "group": "g"}), "stream", "the name of the stream is empty"),
            (json!({"stream": long, "group": "g"}), "stream", "the name of the stream is longer than 256 bytes"),
            (json!({"stream": "s", "group": "a\nb"}), "group", "the name of the group has control characters"),
            (json!({"stream": "s", "group": "g", "claim_after": "9s"}), "claim_after", "`claim_after` is at least 10s"),
            (json!({"stream": "s", "group": "g", "acked": "drop"}), "acked", "unknown variant `drop`"),
        ] {
            let faults = spec::parse::<RedisRead>(&settings).expect_err("a fault");
            assert_eq!(faults.len(), 1, "{faults:?}");
            assert_eq!(faults[0].path.join("."), key, "{faults:?}");
            assert!(faults[0].what.starts_with(what), "{faults:?}");
        }
    }
}
