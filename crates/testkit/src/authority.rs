//! Certificates for servers of tests, and the authority that signs them.

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, date_time_ymd};

/// A certificate authority that is trusted only where a test configures it.
#[derive(Debug)]
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A server's certificate and its key, in PEM.
#[derive(Debug, Clone)]
pub struct Certificate {
    /// The certificate.
    pub certificate: String,
    /// Its private key.
    pub key: String,
}

/// Whether a certificate's time has passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Validity {
    /// Valid now.
    Current,
    /// Valid until 2001.
    Expired,
}

impl Default for Authority {
    fn default() -> Self {
        Authority::new()
    }
}

#[expect(clippy::expect_used, reason = "tests stop here")]
impl Authority {
    /// A new authority.
    pub fn new() -> Self {
        let mut parameters = CertificateParams::default();
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        parameters.distinguished_name.push(DnType::CommonName, "Millstream test authority");
        let key = KeyPair::generate().expect("a key can be made");
        Authority(CertifiedIssuer::self_signed(parameters, key).expect("a certificate can be signed"))
    }

    /// The authority's own certificate, in PEM.
    pub fn pem(&self) -> String {
        self.0.pem()
    }

    /// A certificate for a server named `name` (a host or an address).
    pub fn certificate(&self, name: &str, validity: Validity) -> Certificate {
        let mut parameters = CertificateParams::new(vec![name.to_owned()]).expect("a good name");
        parameters.not_before = date_time_ymd(2000, 1, 1);
        if validity == Validity::Expired {
            parameters.not_after = date_time_ymd(2001, 1, 1);
        }
        let key = KeyPair::generate().expect("a key can be made");
        let certificate = parameters.signed_by(&key, &self.0).expect("a certificate can be signed");
        Certificate { certificate: certificate.pem(), key: key.serialize_pem() }
    }
}
