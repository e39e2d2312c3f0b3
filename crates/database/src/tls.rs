//! Encryption of connections to databases: the trusted authorities.

use millstream_core::{Error, Result};
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use crate::endpoint::Endpoint;

/// The certificates of all trusted authorities: the system's and those of `ca`. Blocks, since it reads files.
pub(crate) fn authorities(endpoint: &Endpoint) -> Result<Vec<CertificateDer<'static>>> {
    let mut trusted = rustls_native_certs::load_native_certs().certs;
    // The system may have some that the library cannot read.
    trusted.retain(|certificate| RootCertStore::empty().add(certificate.clone()).is_ok());
    let Some(path) = &endpoint.ca else { return Ok(trusted) };
    let hint = "`ca` names a file of certificates in PEM";
    let pem = fs_err::read(path)
        .map_err(|cause| Error::io(format!("the CA file {path} cannot be read"), &cause).hint(hint))?;
    let own: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    let own = own.map_err(|cause| Error::refused(format!("{path} is not in PEM format")).cause(cause).hint(hint))?;
    if own.is_empty() {
        return Err(Error::refused(format!("{path} has no certificate")).hint(hint));
    }
    trusted.extend(own);
    Ok(trusted)
}

/// The configuration of the TLS library, which trusts [`authorities`]. Blocks.
#[cfg(feature = "postgres")]
pub(crate) fn configuration(endpoint: &Endpoint) -> Result<rustls::ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(authorities(endpoint)?);
    let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    Ok(rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|cause| Error::internal("TLS cannot be set up").cause(cause))?
        .with_root_certificates(roots)
        .with_no_client_auth())
}

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
    Error::refused(format!("the encrypted connection to {} cannot be established", endpoint.shown))
        .cause(cause)
        .hint(hint)
}
