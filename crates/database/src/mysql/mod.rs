//! MySQL and MariaDB: connecting, and the errors of connecting.
//!
//! `session.rs` is a connection, `dialect.rs` how SQL is written, `load.rs` the statements of a load,
//! `in_step.rs` how rows are compared, `types.rs` which types columns have.

mod dialect;
mod in_step;
mod load;
mod session;
mod types;

pub use self::dialect::MysqlDialect;
pub use self::load::around;
pub use self::session::Session;
pub use self::types::{arrow_type, family};

use millstream_core::spec::Duration;
use millstream_core::{Error, Result};
use millstream_net::server::Tls;
use mysql_async::{Conn, DriverError, Error as Fault, IoError, OptsBuilder, ServerError, SslOpts};

use crate::endpoint::Endpoint;
use crate::tls;

/// The protocol's port.
pub const PORT: u16 = crate::name::MYSQL_PORT;

/// How long a check may take whether a server listens.
const REACHING: std::time::Duration = std::time::Duration::from_secs(2);

/// Numbers of the server's errors: "MySQL Error Message Reference", "MariaDB Error Codes".
mod code {
    pub(super) const ACCESS_DENIED: [u16; 3] = [1045, 1698, 1251];
    pub(super) const NO_RIGHTS_ON_DATABASE: u16 = 1044;
    pub(super) const UNKNOWN_DATABASE: u16 = 1049;
    pub(super) const HOST_NOT_ALLOWED: [u16; 2] = [1129, 1130];
    pub(super) const BUSY: [u16; 3] = [1040, 1203, 1226];
    pub(super) const GONE: [u16; 4] = [1053, 1927, 3169, 4031];
}

/// Connects and logs in, within `timeout`.
async fn connect(endpoint: &Endpoint, timeout: Duration) -> Result<Conn> {
    let (user, password) = endpoint.login()?;
    let options = OptsBuilder::default()
        .ip_or_hostname(endpoint.server.host.clone())
        .tcp_port(endpoint.server.port)
        .user(Some(user))
        .pass(password)
        .db_name(Some(endpoint.database.clone()))
        .tcp_keepalive(Some(std::time::Duration::from_secs(30)))
        .prefer_socket(false)
        .stmt_cache_size(0)
        .ssl_opts(encryption(endpoint).await?);
    let connecting = tokio::time::timeout(timeout.0, Conn::new(options)).await;
    match connecting {
        Ok(connected) => connected.map_err(|fault| cannot_connect(endpoint, fault)),
        Err(_) => Err(unanswered(endpoint, timeout).await),
    }
}

/// The error of a connection that timed out. A MySQL server speaks first.
async fn unanswered(endpoint: &Endpoint, timeout: Duration) -> Error {
    let address = (endpoint.server.host.trim_matches(['[', ']']), endpoint.server.port);
    let reached = tokio::time::timeout(REACHING, tokio::net::TcpStream::connect(address)).await;
    if matches!(reached, Ok(Ok(_))) {
        // One that begins to run, or is busy, is there later.
        return Error::transient(format!("{} does not answer", endpoint.server.shown))
            .cause(format!("the port is open, but no MySQL greeting came within {timeout}"))
            .hint(format!(
                "check the port {}: does a MySQL or MariaDB server listen there, and is it busy?",
                endpoint.server.port
            ));
    }
    endpoint.server.unreachable(format!("no connection within {timeout}"))
}

async fn encryption(endpoint: &Endpoint) -> Result<Option<SslOpts>> {
    if endpoint.server.tls == Tls::Off {
        return Ok(None);
    }
    let ca = endpoint.server.ca.clone();
    let authorities = tokio::task::spawn_blocking(move || millstream_net::tls::authorities(ca.as_deref())).await;
    let authorities = authorities.map_err(|cause| Error::internal("reading certificates failed").cause(cause))??;
    let roots = authorities.into_iter().map(|certificate| certificate.to_vec().into()).collect();
    Ok(Some(SslOpts::default().with_root_certs(roots).with_disable_built_in_roots(true)))
}

/// The error of a connection that cannot be made.
fn cannot_connect(endpoint: &Endpoint, fault: Fault) -> Error {
    match fault {
        Fault::Server(fault) => refused_login(endpoint, &fault),
        Fault::Io(IoError::Tls(cause)) => tls::refused(endpoint, cause),
        // The library reports a failed handshake as a network error.
        Fault::Io(IoError::Io(cause)) if cause.get_ref().is_some_and(|inner| inner.is::<rustls::Error>()) => {
            tls::refused(endpoint, cause)
        }
        Fault::Io(IoError::Io(cause)) => endpoint.server.unreachable(cause),
        Fault::Driver(cause @ DriverError::NoClientSslFlagFromServer) => tls::refused(endpoint, cause),
        Fault::Driver(cause @ DriverError::ConnectionClosed) => endpoint.server.unreachable(cause),
        other => Error::refused(format!("cannot connect to {}", endpoint.server.shown))
            .cause(endpoint.server.without_secrets(other.to_string())),
    }
}

fn refused_login(endpoint: &Endpoint, fault: &ServerError) -> Error {
    let cause = endpoint.server.without_secrets(fault.message.clone());
    let refused = |what: &str| Error::refused(format!("{}: {what}", endpoint.server.shown)).cause(cause.clone());
    match fault.code {
        number if code::ACCESS_DENIED.contains(&number) => refused("the login is refused")
            .hint("check user and password: `user`, `password: {secret: env:NAME}`, or in the URL"),
        code::NO_RIGHTS_ON_DATABASE => {
            refused("the user may not use the database").hint("GRANT ALL ON database.* TO the user")
        }
        code::UNKNOWN_DATABASE => {
            refused("there is no such database").hint("check the name in the URL, or CREATE DATABASE")
        }
        number if code::HOST_NOT_ALLOWED.contains(&number) => {
            refused("this machine may not connect").hint("the server allows users by the host that they connect from")
        }
        number if code::BUSY.contains(&number) => {
            Error::transient(format!("{} has no connection left", endpoint.server.shown))
                .cause(cause)
                .hint("try again later, load with fewer `connections`, or raise the server's max_connections")
        }
        // It ends, or has ended the connection.
        number if ends_connection(number) => endpoint.server.lost(cause),
        _ => refused("the connection is refused"),
    }
}

/// Whether an error of this number ends the connection.
pub fn ends_connection(number: u16) -> bool {
    code::GONE.contains(&number)
}
