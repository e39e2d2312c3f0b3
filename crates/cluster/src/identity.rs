//! The secret of a cluster: one certificate with its key, which all of its machines have. Each side of a connection has
//! to show that it has the key, so a stranger can neither join nor listen.

use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use millstream_core::{Error, Result};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// The name in the certificate. It says nothing of machines, whose names change.
const NAME: &str = "cluster.millstream";

/// What to do without a secret, or with one that cannot be used.
const HINT: &str = "`millstream cluster init` makes one; copy it to all machines of the cluster";

/// The secret of a cluster.
pub struct Identity {
    certificate: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
}

impl Identity {
    /// Makes a secret, in a new file that only its owner can read.
    ///
    /// # Errors
    /// If the file is there, or cannot be written.
    pub fn create(path: &Path) -> Result<()> {
        let made = rcgen::generate_simple_self_signed([NAME.to_owned()])
            .map_err(|cause| Error::internal("a certificate cannot be made").cause(cause))?;
        let text = format!("{}{}", made.cert.pem(), made.signing_key.serialize_pem());
        let cannot = |cause: std::io::Error| match cause.kind() {
            std::io::ErrorKind::AlreadyExists => Error::refused(format!("{} is there", path.display()))
                .hint("workers that have it could not join any more: remove it first if that is what you want"),
            _ => Error::io(format!("{} cannot be written", path.display()), &cause),
        };
        if let Some(folder) = path.parent() {
            fs_err::create_dir_all(folder).map_err(cannot)?;
        }
        let mut options = fs_err::OpenOptions::new();
        options.write(true).create_new(true);
        std::os::unix::fs::OpenOptionsExt::mode(options.options_mut(), 0o600);
        let mut file = options.open(path).map_err(cannot)?;
        file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(cannot)
    }

    /// Reads a secret.
    ///
    /// # Errors
    /// If it is not there, or others can read it, too.
    pub fn read(path: &Path) -> Result<Self> {
        let metadata = fs_err::metadata(path).map_err(|cause| {
            let error = Error::io(format!("the secret of the cluster, {}, cannot be read", path.display()), &cause);
            if cause.kind() == std::io::ErrorKind::NotFound { error.hint(HINT) } else { error }
        })?;
        let mode = std::os::unix::fs::MetadataExt::mode(&metadata);
        if mode & 0o077 != 0 {
            let what = format!("others can read the secret of the cluster, {}", path.display());
            return Err(Error::refused(what).hint(format!("chmod 600 {}", path.display())));
        }
        let unusable = |cause: &dyn std::fmt::Display| {
            Error::refused(format!("{} is no secret of a cluster", path.display())).cause(cause).hint(HINT)
        };
        let certificate = CertificateDer::from_pem_file(path).map_err(|cause| unusable(&cause))?;
        let key = PrivateKeyDer::from_pem_file(path).map_err(|cause| unusable(&cause))?;
        let identity = Identity { certificate, key };
        identity.acceptor().map_err(|error| unusable(&error.cause_text().unwrap_or(error.what())))?;
        Ok(identity)
    }

    fn roots(&self) -> Result<RootCertStore> {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.clone()).map_err(unfit)?;
        Ok(roots)
    }

    /// Lets in who has the secret.
    pub(crate) fn acceptor(&self) -> Result<TlsAcceptor> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let roots = Arc::new(self.roots()?);
        let verifier = WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(&provider)).build();
        let config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(unfit)?
            .with_client_cert_verifier(verifier.map_err(unfit)?)
            .with_single_cert(vec![self.certificate.clone()], self.key.clone_key())
            .map_err(unfit)?;
        Ok(TlsAcceptor::from(Arc::new(config)))
    }

    /// Goes to who has the secret.
    pub(crate) fn connector(&self) -> Result<TlsConnector> {
        let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(unfit)?
            .with_root_certificates(self.roots()?)
            .with_client_auth_cert(vec![self.certificate.clone()], self.key.clone_key())
            .map_err(unfit)?;
        Ok(TlsConnector::from(Arc::new(config)))
    }

    /// What the certificate of the other side has to be for.
    pub(crate) fn name() -> Result<ServerName<'static>> {
        ServerName::try_from(NAME).map_err(unfit)
    }
}

fn unfit(cause: impl std::fmt::Display) -> Error {
    Error::refused("the secret of the cluster cannot be used").cause(cause).hint(HINT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_made_once_and_read_only_if_others_cannot_read_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("made/cluster.pem");
        let missing = Identity::read(&path).err().expect("it is not there");
        assert_eq!(missing.hint_text(), Some(HINT));
        Identity::create(&path).expect("it is made");
        Identity::read(&path).expect("it is sound");
        assert!(Identity::create(&path).expect_err("it is there").what().ends_with("is there"));
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o644);
        fs_err::set_permissions(&path, open).expect("it is ours");
        let open = Identity::read(&path).err().expect("others can read it");
        assert_eq!(open.hint_text(), Some(format!("chmod 600 {}", path.display()).as_str()));
        fs_err::write(&path, "no secret").expect("written");
        fs_err::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).expect("it is ours");
        assert!(Identity::read(&path).err().expect("it is none").what().ends_with("is no secret of a cluster"));
    }
}
