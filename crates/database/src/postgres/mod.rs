//! PostgreSQL: connecting, and the errors of connecting.
//!
//! `encryption.rs` is its TLS, `session.rs` a connection, `dialect.rs` how SQL is written, `load.rs` the statements of
//! a load, `in_step.rs` how rows are compared, `types.rs` which types columns have, `binary.rs` the binary form of
//! rows.

pub mod binary;
mod dialect;
mod encryption;
mod in_step;
mod load;
mod session;
mod types;

use std::sync::Arc;

use millstream_core::spec::Duration;
use millstream_core::{Error, Result};
use millstream_net::server::Tls;
use tokio::task::JoinHandle;
use tokio_postgres::config::SslMode;
use tokio_postgres::error::{DbError, SqlState};
use tokio_postgres::{Client, Config, Error as Fault, NoTls};

pub use self::dialect::{PostgresDialect, parts, schema_of};
use self::encryption::Encryption;
pub use self::session::Session;
pub use self::types::{arrow_type, family};
use crate::endpoint::Endpoint;
use crate::tls;

/// The protocol's port.
pub const PORT: u16 = crate::name::POSTGRES_PORT;

/// Connects and logs in, within `timeout`. The task transfers the bytes of the connection, and ends with it.
async fn connect(endpoint: &Endpoint, timeout: Duration) -> Result<(Client, JoinHandle<()>)> {
    let config = configuration(endpoint, timeout)?;
    let connecting = tokio::time::timeout(timeout.0, async {
        match endpoint.server.tls {
            Tls::Off => {
                let (client, connection) =
                    config.connect(NoTls).await.map_err(|fault| cannot_connect(endpoint, &fault))?;
                Ok((client, tokio::spawn(async move { drop(connection.await) })))
            }
            Tls::Verify => {
                let encryption = encryption(endpoint).await?;
                let (client, connection) =
                    config.connect(encryption).await.map_err(|fault| cannot_connect(endpoint, &fault))?;
                Ok((client, tokio::spawn(async move { drop(connection.await) })))
            }
        }
    });
    connecting.await.map_err(|_| endpoint.server.unreachable(format!("no connection within {timeout}")))?
}

fn configuration(endpoint: &Endpoint, timeout: Duration) -> Result<Config> {
    let (user, password) = endpoint.login()?;
    let mut config = Config::new();
    config
        .host(&endpoint.server.host)
        .port(endpoint.server.port)
        .dbname(&endpoint.database)
        .user(&user)
        .application_name("millstream")
        .connect_timeout(timeout.0)
        .keepalives_idle(std::time::Duration::from_secs(30))
        .ssl_mode(if endpoint.server.tls == Tls::Off { SslMode::Disable } else { SslMode::Require });
    password.into_iter().for_each(|password| {
        config.password(password);
    });
    Ok(config)
}

async fn encryption(endpoint: &Endpoint) -> Result<Encryption> {
    let ca = endpoint.server.ca.clone();
    let configuration = tokio::task::spawn_blocking(move || millstream_net::tls::configuration(ca.as_deref())).await;
    let configuration = configuration.map_err(|cause| Error::internal("reading certificates failed").cause(cause))?;
    Ok(Encryption(Arc::new(configuration?)))
}

/// The error of a connection that cannot be made.
fn cannot_connect(endpoint: &Endpoint, fault: &Fault) -> Error {
    if let Some(told) = fault.as_db_error() {
        return refused_login(endpoint, told);
    }
    let cause = endpoint.server.without_secrets(whole(fault));
    if endpoint.server.tls == Tls::Verify && (cause.contains("TLS") || cause.contains("certificate")) {
        return tls::refused(endpoint, cause);
    }
    // The library reports this when the server asks for a password.
    if cause.contains("password missing") {
        return Error::refused(format!("{}: the server asks for a password", endpoint.server.shown))
            .cause(cause)
            .hint("give it: `password: {secret: env:NAME}`");
    }
    endpoint.server.unreachable(cause)
}

fn refused_login(endpoint: &Endpoint, told: &DbError) -> Error {
    let cause = endpoint.server.without_secrets(told.message().to_owned());
    let refused = |what: &str| Error::refused(format!("{}: {what}", endpoint.server.shown)).cause(cause.clone());
    let code = told.code();
    if [SqlState::INVALID_PASSWORD, SqlState::INVALID_AUTHORIZATION_SPECIFICATION].contains(code) {
        return refused("the login is refused")
            .hint("check user and password: `user`, `password: {secret: env:NAME}`, or in the URL");
    }
    if *code == SqlState::INVALID_CATALOG_NAME {
        return refused("there is no such database").hint("check the name in the URL, or CREATE DATABASE");
    }
    if *code == SqlState::INSUFFICIENT_PRIVILEGE {
        return refused("the user may not use the database").hint("GRANT CONNECT ON DATABASE … TO the user");
    }
    if may_pass(code) {
        return Error::transient(format!("{} takes no connection now", endpoint.server.shown))
            .cause(cause)
            .hint("try again later, load with fewer `connections`, or raise the server's max_connections");
    }
    refused("the connection is refused")
}

/// Whether a server that refuses a connection with this code may accept one later: it has too many, or starts or ends.
fn may_pass(code: &SqlState) -> bool {
    let passing = [
        SqlState::TOO_MANY_CONNECTIONS,
        SqlState::CANNOT_CONNECT_NOW,
        SqlState::ADMIN_SHUTDOWN,
        SqlState::CRASH_SHUTDOWN,
    ];
    passing.contains(code)
}

/// An error with its cause, which the library reports separately.
pub fn whole(fault: &Fault) -> String {
    let mut text = fault.to_string();
    let mut source = std::error::Error::source(fault);
    while let Some(cause) = source {
        let more = cause.to_string();
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_that_end_are_waited_for() {
        let told =
            ["57P01", "57P02", "57P03", "53300", "28P01", "3D000"].map(|code| may_pass(&SqlState::from_code(code)));
        assert_eq!(told, [true, true, true, true, false, false]);
    }
}
