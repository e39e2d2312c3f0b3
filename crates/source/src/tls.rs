//! TLS for all sources: the trusted authorities, and faults.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use millstream_core::{Error, Result};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use crate::retry::Fault;

/// The configuration that trusts the system's authorities and those of the PEM file `ca`. Blocks, since it reads
/// certificates.
pub(crate) fn configuration(ca: Option<&str>) -> Result<rustls::ClientConfig> {
    let mut roots = system_roots().clone();
    if let Some(path) = ca {
        add_authorities(&mut roots, path)?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    Ok(rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|cause| Error::internal("TLS cannot be set up").cause(cause))?
        .with_root_certificates(roots)
        .with_no_client_auth())
}

/// The authorities that the system trusts. A machine without any can still read over HTTP; over HTTPS it gets the
/// error of an unknown authority, whose hint names the remedy.
fn system_roots() -> &'static rustls::RootCertStore {
    static ROOTS: OnceLock<rustls::RootCertStore> = OnceLock::new();
    ROOTS.get_or_init(|| {
        let mut roots = rustls::RootCertStore::empty();
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        roots
    })
}

fn add_authorities(roots: &mut rustls::RootCertStore, path: &str) -> Result<()> {
    let fault = |what: String| Error::refused(what).hint("`ca` names a file of certificates in PEM");
    let pem = fs_err::read(path)
        .map_err(|cause| crate::file::io_error("the CA file (`ca`) cannot be read", Path::new(path), &cause))?;
    let mut found = false;
    for certificate in CertificateDer::pem_slice_iter(&pem) {
        let certificate = certificate.map_err(|cause| fault(format!("{path} is not in PEM format")).cause(cause))?;
        roots.add(certificate).map_err(|cause| fault(format!("{path} has a bad certificate")).cause(cause))?;
        found = true;
    }
    if found { Ok(()) } else { Err(fault(format!("{path} has no certificate"))) }
}

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
        Tls::InvalidCertificate(_) if system_roots().is_empty() => {
            fault.hint("this machine trusts no authority: install ca-certificates, or name a file of them in `ca`")
        }
        Tls::InvalidCertificate(_) => fault.hint(format!(
            "if the server's authority is your own, name its PEM file in `ca` of the source's `{block}` block"
        )),
        Tls::InvalidMessage(_) => fault.hint(format!("the server may not speak TLS at this port: try {plain}://")),
        _ => fault,
    }
}
