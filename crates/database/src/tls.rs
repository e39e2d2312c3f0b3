//! What it means if an encrypted connection to a database cannot be made.

use millstream_core::Error;

use crate::endpoint::Endpoint;

/// The error if the server's certificate is not accepted, or it does not speak TLS.
pub(crate) fn refused(endpoint: &Endpoint, cause: impl std::fmt::Display) -> Error {
    let cause = cause.to_string();
    let hint = if cause.contains("UnknownIssuer") {
        "if the server's authority is your own, name its PEM file in `ca`"
    } else if cause.to_lowercase().contains("not valid for") {
        "the server's certificate is for another name: check the host in the URL"
    } else if cause.to_lowercase().contains("expired") {
        "the server's certificate has expired: ask the server's administrator, and check this machine's clock"
    } else {
        "if the server has no TLS and the network is trusted, write `tls: off`"
    };
    Error::refused(format!("the encrypted connection to {} cannot be established", endpoint.server.shown))
        .cause(cause)
        .hint(hint)
}
