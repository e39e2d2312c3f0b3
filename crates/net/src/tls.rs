//! The authorities that encrypted connections trust: those of the system, and those of a file that the job names in
//! `ca`. One trust for web servers, databases and queues; what a failed handshake means is said where it happens.

use std::sync::{Arc, OnceLock};

use millstream_core::{Error, Result};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};

/// The certificates of all trusted authorities: the system's, and those of the PEM file `ca`. Blocks, since it reads
/// files.
///
/// # Errors
/// If `ca` cannot be read, is not in PEM format, or has no certificate or a bad one.
pub fn authorities(ca: Option<&str>) -> Result<Vec<CertificateDer<'static>>> {
    let mut trusted = of_system().to_vec();
    if let Some(path) = ca {
        trusted.extend(of_file(path)?);
    }
    Ok(trusted)
}

/// The configuration of the TLS library, which trusts [`authorities`]. Blocks, since it reads files.
///
/// # Errors
/// As [`authorities`].
pub fn configuration(ca: Option<&str>) -> Result<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(authorities(ca)?);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    Ok(ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|cause| Error::internal("TLS cannot be set up").cause(cause))?
        .with_root_certificates(roots)
        .with_no_client_auth())
}

/// Whether the system trusts any authority.
pub fn system_has_authorities() -> bool {
    !of_system().is_empty()
}

/// The authorities that the system trusts, without those that the library cannot read. A machine may have none: then a
/// connection fails with the error of an unknown authority, whose hint names the remedy.
fn of_system() -> &'static [CertificateDer<'static>] {
    static TRUSTED: OnceLock<Vec<CertificateDer<'static>>> = OnceLock::new();
    TRUSTED.get_or_init(|| {
        let mut trusted = rustls_native_certs::load_native_certs().certs;
        trusted.retain(is_readable);
        trusted
    })
}

fn of_file(path: &str) -> Result<Vec<CertificateDer<'static>>> {
    let fault = |what: String| Error::refused(what).hint("`ca` names a file of certificates in PEM");
    let pem = fs_err::read(path).map_err(|cause| {
        let error = Error::io("the CA file (`ca`) cannot be read", &cause);
        error.in_unit(path, None).hint("`ca` names a file of certificates in PEM")
    })?;
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    let certificates = certificates.map_err(|cause| fault(format!("{path} is not in PEM format")).cause(cause))?;
    if certificates.is_empty() {
        return Err(fault(format!("{path} has no certificate")));
    }
    match certificates.iter().all(is_readable) {
        true => Ok(certificates),
        false => Err(fault(format!("{path} has a bad certificate"))),
    }
}

fn is_readable(certificate: &CertificateDer<'static>) -> bool {
    RootCertStore::empty().add(certificate.clone()).is_ok()
}

#[cfg(test)]
mod tests {
    use millstream_testkit::{Authority, TempTree};

    use super::*;

    #[test]
    fn a_file_of_authorities_must_hold_some() {
        let tree = TempTree::new();
        for (name, content, told) in [
            ("empty.pem", "", "has no certificate"),
            ("bad.pem", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "has a bad certificate"),
            ("cut.pem", "-----BEGIN CERTIFICATE-----\nAAAA", "is not in PEM format"),
        ] {
            let ca = tree.file(name, content).display().to_string();
            assert_eq!(authorities(Some(&ca)).expect_err(told).what(), format!("{ca} {told}"));
        }
        let error = configuration(Some("/no/such.pem")).expect_err("missing");
        assert_eq!(error.location().uri.as_deref(), Some("/no/such.pem"));
    }

    #[test]
    fn those_of_a_file_are_added_to_those_of_the_system() {
        let tree = TempTree::new();
        let ca = tree.file("ca.pem", Authority::new().pem()).display().to_string();
        let system = authorities(None).expect("the system's").len();
        assert_eq!(authorities(Some(&ca)).expect("one more").len(), system + 1);
    }
}
