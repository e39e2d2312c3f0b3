//! What an error of the library or of a broker means: whether waiting helps, and what the user can do.
//!
//! Numbers above 0 are those of Kafka's protocol ("Error codes" in its documentation), those below are the library's.

use millstream_core::Error;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka_sys::RDKafkaRespErr as Code;

use super::native::{self, Failure};
use super::place::Place;

/// What is to be done about an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reaction {
    /// The library tries again by itself, and no user needs to know.
    Nothing,
    /// The library tries again by itself, but the brokers cannot be reached.
    Wait,
    /// The partition has no message at the offset.
    OutOfRange,
    /// The topic is not there.
    NoTopic,
    /// End: waiting does not help.
    End,
}

/// What is to be done about an error.
pub(super) fn reaction(failure: &Failure) -> Reaction {
    let Ok(code) = Code::try_from(failure.code) else { return Reaction::Nothing };
    match code {
        Code::RD_KAFKA_RESP_ERR__ALL_BROKERS_DOWN
        | Code::RD_KAFKA_RESP_ERR__TRANSPORT
        | Code::RD_KAFKA_RESP_ERR__RESOLVE
        | Code::RD_KAFKA_RESP_ERR__TIMED_OUT
        | Code::RD_KAFKA_RESP_ERR__TIMED_OUT_QUEUE => Reaction::Wait,
        Code::RD_KAFKA_RESP_ERR__AUTO_OFFSET_RESET
        | Code::RD_KAFKA_RESP_ERR__LOG_TRUNCATION
        | Code::RD_KAFKA_RESP_ERR_OFFSET_OUT_OF_RANGE => Reaction::OutOfRange,
        Code::RD_KAFKA_RESP_ERR__UNKNOWN_TOPIC
        | Code::RD_KAFKA_RESP_ERR__UNKNOWN_PARTITION
        | Code::RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_ID
        | Code::RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART => Reaction::NoTopic,
        Code::RD_KAFKA_RESP_ERR__AUTHENTICATION
        | Code::RD_KAFKA_RESP_ERR__SSL
        | Code::RD_KAFKA_RESP_ERR__FATAL
        | Code::RD_KAFKA_RESP_ERR__BAD_MSG
        | Code::RD_KAFKA_RESP_ERR__BAD_COMPRESSION
        | Code::RD_KAFKA_RESP_ERR_SASL_AUTHENTICATION_FAILED
        | Code::RD_KAFKA_RESP_ERR_UNSUPPORTED_SASL_MECHANISM
        | Code::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED
        | Code::RD_KAFKA_RESP_ERR_GROUP_AUTHORIZATION_FAILED
        | Code::RD_KAFKA_RESP_ERR_CLUSTER_AUTHORIZATION_FAILED
        | Code::RD_KAFKA_RESP_ERR_TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        | Code::RD_KAFKA_RESP_ERR_INVALID_TRANSACTION_TIMEOUT
        | Code::RD_KAFKA_RESP_ERR_OFFSET_METADATA_TOO_LARGE
        | Code::RD_KAFKA_RESP_ERR__UNSUPPORTED_FEATURE
        | Code::RD_KAFKA_RESP_ERR_INVALID_GROUP_ID
        | Code::RD_KAFKA_RESP_ERR_INCONSISTENT_GROUP_PROTOCOL
        | Code::RD_KAFKA_RESP_ERR_UNSUPPORTED_VERSION
        | Code::RD_KAFKA_RESP_ERR_INVALID_SESSION_TIMEOUT
        | Code::RD_KAFKA_RESP_ERR_TOPIC_EXCEPTION => Reaction::End,
        _ => Reaction::Nothing,
    }
}

/// The same as the library's safe interface says it.
pub(super) fn of_library(error: &KafkaError) -> Failure {
    // A failure without a number is treated like any that the library does not know.
    let code = error.rdkafka_error_code().map_or(0, |code| code as i32);
    Failure { code, text: native::words(error) }
}

/// Whether brokers refuse a message for what it is: others may be sent.
pub(super) fn is_of_message(code: RDKafkaErrorCode) -> bool {
    use RDKafkaErrorCode::{InvalidRecord, InvalidTimestamp, MessageSizeTooLarge};
    matches!(code, MessageSizeTooLarge | InvalidRecord | InvalidTimestamp)
}

/// Whether another process has taken over what a producer sends to in transactions.
pub(super) fn is_fence(code: RDKafkaErrorCode) -> bool {
    use RDKafkaErrorCode::{Fenced, InvalidProducerEpoch, ProducerFenced};
    matches!(code, Fenced | InvalidProducerEpoch | ProducerFenced)
}

/// Whether a client cannot continue after it, and says no more.
pub(super) fn is_fatal(failure: &Failure) -> bool {
    failure.code == Code::RD_KAFKA_RESP_ERR__FATAL as i32
}

/// Whether it says that no broker can be reached, without a reason.
pub(super) fn is_of_all(failure: &Failure) -> bool {
    failure.code == Code::RD_KAFKA_RESP_ERR__ALL_BROKERS_DOWN as i32
}

/// The error for the user; `doing` is what was asked for: `reading topic t`.
pub(super) fn error(failure: &Failure, place: &Place, doing: &str) -> Error {
    let server = &place.server;
    let cause = server.without_secrets(failure.text.clone());
    match reaction(failure) {
        Reaction::Wait | Reaction::Nothing => server.unreachable(cause),
        Reaction::NoTopic => no_topic(place),
        Reaction::OutOfRange | Reaction::End => {
            let error = Error::refused(format!("{doing}: {} refuses", server.shown)).cause(cause);
            hint(failure).into_iter().fold(error, Error::hint)
        }
    }
}

/// The error of a transaction of which nothing is there.
pub(super) fn aborted(place: &Place, cause: String) -> Error {
    Error::transient(format!("writing to topic {}: a transaction was aborted", place.topic))
        .cause(place.server.without_secrets(cause))
        .hint("none of its messages is seen by readers of committed messages; they are sent again in another one")
}

/// The error if the topic is not there.
pub(super) fn no_topic(place: &Place) -> Error {
    Error::refused(format!("the cluster of {} has no topic `{}`", place.server.shown, place.topic))
        .hint("check its name; a topic has to be created before it is read or written")
}

fn hint(failure: &Failure) -> Option<&'static str> {
    Some(match Code::try_from(failure.code).ok()? {
        Code::RD_KAFKA_RESP_ERR__AUTHENTICATION
        | Code::RD_KAFKA_RESP_ERR_SASL_AUTHENTICATION_FAILED
        | Code::RD_KAFKA_RESP_ERR_UNSUPPORTED_SASL_MECHANISM => "check user and password, and `sasl`",
        Code::RD_KAFKA_RESP_ERR__SSL => {
            "name the authority of the brokers in `ca`, or write `tls: off` if the network is trusted"
        }
        Code::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED => {
            "grant the user the rights to describe the topic, and to read or write it"
        }
        Code::RD_KAFKA_RESP_ERR_TRANSACTIONAL_ID_AUTHORIZATION_FAILED => {
            "grant the user the rights to write and describe transactional ids that begin with `millstream-`"
        }
        Code::RD_KAFKA_RESP_ERR_INVALID_TRANSACTION_TIMEOUT => {
            "set `transaction.max.timeout.ms` of the brokers to a minute or more"
        }
        Code::RD_KAFKA_RESP_ERR_OFFSET_METADATA_TOO_LARGE => {
            "set `offset.metadata.max.bytes` of the brokers to 512 or more; by default it is 4096"
        }
        Code::RD_KAFKA_RESP_ERR__UNSUPPORTED_FEATURE => "brokers before 0.11 have no transactions",
        Code::RD_KAFKA_RESP_ERR_GROUP_AUTHORIZATION_FAILED => "grant the user the right to read by this group",
        Code::RD_KAFKA_RESP_ERR_INCONSISTENT_GROUP_PROTOCOL => {
            "other programs in the group assign partitions in another way: give the job a `group` of its own"
        }
        Code::RD_KAFKA_RESP_ERR__BAD_MSG | Code::RD_KAFKA_RESP_ERR__BAD_COMPRESSION => {
            "messages are damaged on the broker, or larger than a client may read"
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use millstream_core::ErrorKind;
    use millstream_net::server::Access;

    use super::super::spec::Sasl;
    use super::*;

    #[test]
    fn errors_say_what_to_do() {
        let access = Access { key: "read", ..Access::default() };
        let place = Place::parse("kafka://u:secret@b1/t", &access, &[], Sasl::Plain).expect("a place");
        for (code, reacts, kind, what, hint) in [
            (-195, Reaction::Wait, ErrorKind::Transient, "kafka://u:***@b1/t cannot be reached", "check host and port"),
            (
                -181,
                Reaction::End,
                ErrorKind::Refused,
                "reading topic t: kafka://u:***@b1/t refuses",
                "name the authority",
            ),
            (58, Reaction::End, ErrorKind::Refused, "reading topic t: kafka://u:***@b1/t refuses", "check user"),
            (
                3,
                Reaction::NoTopic,
                ErrorKind::Refused,
                "the cluster of kafka://u:***@b1/t has no topic `t`",
                "check its",
            ),
            (
                27,
                Reaction::Nothing,
                ErrorKind::Transient,
                "kafka://u:***@b1/t cannot be reached",
                "check host and port",
            ),
            (
                9999,
                Reaction::Nothing,
                ErrorKind::Transient,
                "kafka://u:***@b1/t cannot be reached",
                "check host and port",
            ),
        ] {
            let failure = Failure { code, text: "no secret".to_owned() };
            assert_eq!(reaction(&failure), reacts, "{code}");
            let error = error(&failure, &place, "reading topic t");
            assert_eq!((error.kind(), error.what()), (kind, what));
            assert!(error.hint_text().is_some_and(|text| text.starts_with(hint)), "{error:?}");
            assert!(error.cause_text().is_none_or(|cause| cause == "no ***"), "{error:?}");
        }
    }
}
