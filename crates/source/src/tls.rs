//! What a failed handshake with a source means.

use crate::retry::Fault;

/// The fault of a failed handshake, which is permanent. `block` is the source's in the job file, `plain` the scheme
/// without encryption.
pub(crate) fn fault(error: &rustls::Error, block: &str, plain: &str) -> Fault {
    use rustls::{CertificateError as Bad, Error as Tls};
    let fault = Fault::permanent("the encrypted connection cannot be established").cause(error.to_string());
    match error {
        Tls::InvalidCertificate(Bad::Expired | Bad::ExpiredContext { .. }) => fault.hint(
            "the server's certificate has expired: ask the server's administrator, and check this machine's clock",
        ),
        Tls::InvalidCertificate(Bad::NotValidForName | Bad::NotValidForNameContext { .. }) => {
            fault.hint("the server's certificate is for another name: check the host in the URL")
        }
        Tls::InvalidCertificate(_) if !millstream_net::tls::system_has_authorities() => {
            fault.hint("this machine trusts no authority: install ca-certificates, or name a file of them in `ca`")
        }
        Tls::InvalidCertificate(_) => fault.hint(format!(
            "if the server's authority is your own, name its PEM file in `ca` of the source's `{block}` block"
        )),
        Tls::InvalidMessage(_) => fault.hint(format!("the server may not speak TLS at this port: try {plain}://")),
        _ => fault,
    }
}
