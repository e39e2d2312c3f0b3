//! Accepts connections, plain or with TLS, and gives each little memory and little time to say what it wants.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, ToSocketAddrs};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use millstream::{Error, Result};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio_rustls::TlsAcceptor;

/// The port if none is named.
const PORT: u16 = 8480;

/// The most connections at once. Of clients that are not known, or else of all, the oldest gives way to a new one.
const MOST_CONNECTIONS: usize = 256;

/// How long a client may take for the head of its request, and for the handshake of TLS.
const LONGEST_HEAD: Duration = Duration::from_secs(10);

/// How long a client may take nothing of what is sent to it.
const LONGEST_DEAF: Duration = Duration::from_secs(60);

/// The most bytes of a request's head, and the most headers.
const LARGEST_HEAD: usize = 32 << 10;
const MOST_HEADERS: usize = 64;

/// How long it waits if no connection can be had, such as while the process has too many open files.
const PAUSE: Duration = Duration::from_millis(200);

/// A client, for those who answer.
#[derive(Debug, Clone)]
pub struct Peer {
    /// Its address.
    pub ip: IpAddr,
    /// Whether it has shown on this connection that it is known.
    pub known: Arc<AtomicBool>,
}

/// A connection that is open.
struct Open {
    known: Arc<AtomicBool>,
    task: AbortHandle,
}

/// Listens at `address`: a port, a host, or both; without one, at the usual port of this machine.
///
/// # Errors
/// If the address is none, or in use.
pub fn bind(address: Option<&str>) -> Result<(TcpListener, SocketAddr)> {
    let shown = address.unwrap_or("127.0.0.1");
    let wrong = |cause: std::io::Error| {
        let error = Error::job("the address of the server is wrong").text(shown).cause(cause);
        error.hint("write a port, a host, or both: `--listen 127.0.0.1:8480`")
    };
    let addresses: Vec<SocketAddr> =
        match address.map(|address| (address, address.trim_start_matches(':').parse::<u16>())) {
            None => vec![(Ipv4Addr::LOCALHOST, PORT).into()],
            Some((_, Ok(port))) => vec![(Ipv4Addr::LOCALHOST, port).into()],
            Some((address, Err(_))) => match address.to_socket_addrs() {
                Ok(addresses) => addresses.collect(),
                Err(_) => (address.trim_matches(['[', ']']), PORT).to_socket_addrs().map_err(wrong)?.collect(),
            },
        };
    let failed = |cause: std::io::Error| {
        let hint = match cause.kind() {
            ErrorKind::AddrInUse => {
                "another server may run already: `millstream access link` prints a link to it; `--listen PORT` takes \
                 another port, and 0 any that is free"
            }
            ErrorKind::AddrNotAvailable => "name an address of this machine, or 0.0.0.0 for all of them",
            ErrorKind::PermissionDenied => "choose a port from 1024 on, or 0 for any that is free",
            _ => "choose another address with `--listen`",
        };
        let address = addresses.first().map_or_else(|| shown.to_owned(), SocketAddr::to_string);
        Error::job(format!("the server cannot listen at {address}")).cause(cause).hint(hint)
    };
    let listener = TcpListener::bind(&addresses[..]).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    Ok((listener, address))
}

/// TLS with the certificates and the key in these files.
///
/// # Errors
/// If they are none.
pub fn tls(certificates: &Path, key: &Path) -> Result<TlsAcceptor> {
    let unusable = |path: &Path, cause: &dyn std::fmt::Display| {
        let error = Error::job(format!("{} cannot be used for TLS", path.display())).cause(cause);
        error.hint("name PEM files: the certificate with those that sign it, and its key")
    };
    let all = CertificateDer::pem_file_iter(certificates).map_err(|cause| unusable(certificates, &cause))?;
    let all: Vec<_> = all.collect::<Result<_, _>>().map_err(|cause| unusable(certificates, &cause))?;
    if all.is_empty() {
        return Err(unusable(certificates, &"it has no certificate"));
    }
    let secret = PrivateKeyDer::from_pem_file(key).map_err(|cause| unusable(key, &cause))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(all, secret))
        .map_err(|cause| unusable(certificates, &cause))?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// Serves `app` until `stop` says so. Connections that are open then are cut.
pub async fn serve(listener: TcpListener, tls: Option<TlsAcceptor>, app: Router, mut stop: watch::Receiver<bool>) {
    // It does not block, which is all that this asks for.
    let Ok(listener) = tokio::net::TcpListener::from_std(listener) else { return };
    let mut open: VecDeque<Open> = VecDeque::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stop.wait_for(|stop| *stop) => return,
        };
        let Ok((stream, peer)) = accepted else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        open.retain(|connection| !connection.task.is_finished());
        if open.len() >= MOST_CONNECTIONS {
            let unknown = open.iter().position(|connection| !connection.known.load(Ordering::Relaxed));
            open.remove(unknown.unwrap_or(0)).into_iter().for_each(|oldest| oldest.task.abort());
        }
        let peer = Peer { ip: peer.ip(), known: Arc::default() };
        let known = Arc::clone(&peer.known);
        let task = tokio::spawn(connection(stream, peer, tls.clone(), app.clone())).abort_handle();
        open.push_back(Open { known, task });
    }
}

/// Answers the requests of one connection. What is wrong with the client is its own affair.
async fn connection(stream: TcpStream, peer: Peer, tls: Option<TlsAcceptor>, app: Router) {
    let _ = stream.set_nodelay(true);
    // One that does not take what is sent is given up.
    let milliseconds = u32::try_from(LONGEST_DEAF.as_millis()).unwrap_or(u32::MAX);
    let _ = rustix::net::sockopt::set_tcp_user_timeout(&stream, milliseconds);
    let app = app.layer(axum::Extension(peer));
    match tls {
        None => answer(TokioIo::new(stream), app).await,
        Some(tls) => {
            if let Ok(Ok(stream)) = tokio::time::timeout(LONGEST_HEAD, tls.accept(stream)).await {
                answer(TokioIo::new(stream), app).await;
            }
        }
    }
}

async fn answer(stream: impl hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static, app: Router) {
    let mut server = http1::Builder::new();
    server.timer(TokioTimer::new()).header_read_timeout(LONGEST_HEAD);
    server.max_buf_size(LARGEST_HEAD).max_headers(MOST_HEADERS);
    let _ = server.serve_connection(stream, TowerToHyperService::new(app)).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_port_a_host_or_both() {
        let address = |text: &str| bind(Some(text)).map(|(_, address)| address);
        assert!(address("0").expect("a port").ip().is_loopback());
        assert!(address(":0").expect("a port").ip().is_loopback());
        assert_eq!(address("127.0.0.1:0").expect("both").ip().to_string(), "127.0.0.1");
        let error = address("no such host:1").expect_err("no address");
        assert_eq!(error.what(), "the address of the server is wrong");
        let (_taken, taken) = bind(Some("0")).expect("a port");
        let error = address(&taken.to_string()).expect_err("it is taken");
        assert!(error.hint_text().is_some_and(|hint| hint.contains("millstream access link")), "{error:?}");
    }
}
