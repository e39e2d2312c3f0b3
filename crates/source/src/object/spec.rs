//! What the job file may say of buckets: one block for each kind of store, with what they share under the same keys.

use millstream_core::spec::{Duration, Fault, Secret, Spec, TextOrSecret};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use url::Url;

use crate::http::spec::HttpSpec;

/// A store's own settings, and those that all stores have.
macro_rules! store {
    ($(#[$about:meta])* $name:ident { $($(#[$own:meta])* $field:ident: $kind:ty,)* }) => {
        $(#[$about])*
        #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
        #[serde(deny_unknown_fields, default)]
        pub struct $name {
            $($(#[$own])* pub $field: $kind,)*
            /// Requests are not signed: for buckets that are public. No credentials are looked for.
            pub anonymous: bool,
            /// Allows an `endpoint` without encryption (`http://`), where others on the network can read what is sent.
            pub allow_http: bool,
            /// The path of a PEM file with certificates of authorities to trust besides the system's.
            #[schemars(length(min = 1))]
            pub ca: Option<String>,
            /// The most objects that are fetched at once, from 1 to 256. It starts with eight, and grows as long as
            /// that brings more.
            #[schemars(range(min = 1, max = 256))]
            pub connections: usize,
            /// How long it may take to establish a connection.
            pub connect_timeout: Duration,
            /// How long the server may be silent, before its answer and between two pieces of it.
            pub timeout: Duration,
            /// How often in a row a request is retried after a transient fault: a broken connection, a time limit, or
            /// an answer that asks to retry later. An attempt that brings 64 kB or more restarts the count.
            #[schemars(range(max = 100))]
            pub retries: u32,
            /// The longest pause between two attempts. A server that asks for a longer one by `Retry-After` gets it, up
            /// to five minutes.
            pub max_backoff: Duration,
        }

        impl Default for $name {
            fn default() -> Self {
                let web = HttpSpec::default();
                $name {
                    $($field: Default::default(),)*
                    anonymous: false,
                    allow_http: false,
                    ca: None,
                    connections: 64,
                    connect_timeout: web.connect_timeout,
                    timeout: web.timeout,
                    retries: web.retries,
                    max_backoff: web.max_backoff,
                }
            }
        }

        impl $name {
            /// The settings of the connections.
            pub(crate) fn web(&self) -> HttpSpec {
                HttpSpec {
                    ca: self.ca.clone(),
                    connections: self.connections,
                    connect_timeout: self.connect_timeout,
                    timeout: self.timeout,
                    retries: self.retries,
                    max_backoff: self.max_backoff,
                    ..HttpSpec::default()
                }
            }

            fn check_shared(&self, credentials: &[(&str, bool)]) -> Vec<Fault> {
                let mut faults = self.web().check();
                faults.extend(self.endpoint.as_deref().and_then(|endpoint| check_endpoint(endpoint, self.allow_http)));
                let set = credentials.iter().find(|(_, set)| *set && self.anonymous);
                faults.extend(set.map(|(key, _)| {
                    Fault::new(key, format!("`{key}` has no effect, because `anonymous` means that nothing is signed"))
                        .hint("leave one of them out")
                }));
                faults
            }
        }
    };
}

store! {
    /// Objects in S3 and what speaks like it. All settings may be left out: what is not set here comes from the
    /// variables of the environment that other tools use (`AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`,
    /// `AWS_SESSION_TOKEN`, `AWS_REGION`, `AWS_ENDPOINT_URL` and others), and on a machine of the cloud from its role.
    S3Spec {
        /// The server's URL, where it is not Amazon's: `https://minio.example.com`.
        endpoint: Option<String>,
        /// The bucket's region: `eu-central-1`.
        #[schemars(length(min = 1))]
        region: Option<String>,
        /// The name of the key that signs.
        access_key_id: Option<TextOrSecret>,
        /// A reference to the key that signs.
        secret_access_key: Option<Secret>,
        /// A reference to the token that belongs to a temporary key.
        session_token: Option<Secret>,
        /// The bucket is named in the host (`https://bucket.host/key`) instead of in the path
        /// (`https://host/bucket/key`). Some servers require it.
        virtual_hosted: bool,
        /// The reader pays, for buckets that require it.
        requester_pays: bool,
    }
}

store! {
    /// Objects in Google Cloud Storage. All settings may be left out: what is not set here comes from the variables of
    /// the environment that other tools use (`GOOGLE_APPLICATION_CREDENTIALS`, `GOOGLE_SERVICE_ACCOUNT_KEY` and
    /// others), from `gcloud auth application-default login`, or on a machine of the cloud from its role.
    GcsSpec {
        /// The server's URL, where it is not Google's.
        endpoint: Option<String>,
        /// A reference to the key of a service account, in JSON: `{secret: file:key.json}`.
        service_account: Option<Secret>,
    }
}

store! {
    /// Objects in Azure Blob Storage: `az://container/name`. All settings may be left out: what is not set here comes
    /// from the variables of the environment that other tools use (`AZURE_STORAGE_ACCOUNT_NAME`,
    /// `AZURE_STORAGE_ACCOUNT_KEY`, `AZURE_STORAGE_SAS_KEY`, `AZURE_CLIENT_ID` and others), or on a machine of the
    /// cloud from its role.
    AzureSpec {
        /// The storage account.
        #[schemars(length(min = 1))]
        account: Option<String>,
        /// The URL of the account's blobs, where it is not `https://ACCOUNT.blob.core.windows.net`.
        endpoint: Option<String>,
        /// A reference to the account's key.
        access_key: Option<Secret>,
        /// A reference to a shared access signature: `sv=…&sig=…`.
        sas: Option<Secret>,
    }
}

fn check_endpoint(endpoint: &str, allow_http: bool) -> Option<Fault> {
    let fault = |what: String| Fault::new("endpoint", what);
    let Ok(url) = Url::parse(endpoint) else {
        return Some(fault(format!("`{endpoint}` is not a URL")).hint("write it as https://host"));
    };
    match url.scheme() {
        "https" | "http" if !url.has_host() => Some(fault(format!("`{endpoint}` names no host"))),
        "https" => None,
        "http" if allow_http => None,
        "http" => Some(
            fault("an endpoint without encryption must be allowed".into())
                .hint("write https://, or add `allow_http: true`"),
        ),
        other => Some(fault(format!("`{other}` is not a scheme of an endpoint")).hint("write it as https://host")),
    }
}

/// The settings of S3 as `s3`.
impl Spec for S3Spec {
    const NAME: &'static str = "s3";
    const SUMMARY: &'static str = "Objects in S3 and compatible stores (MinIO, R2, Ceph, …), by `s3://bucket/name`.";
    const EXAMPLE: &'static str = "read: s3://bucket/logs/**/*.csv.gz\n\
                                   s3:\n  \
                                   region: eu-central-1\n  \
                                   access_key_id: {secret: env:AWS_ACCESS_KEY_ID}\n  \
                                   secret_access_key: {secret: env:AWS_SECRET_ACCESS_KEY}\n\
                                   csv: {header: true}\n";

    fn check(&self) -> Vec<Fault> {
        let keys =
            [("access_key_id", self.access_key_id.is_some()), ("secret_access_key", self.secret_access_key.is_some())];
        let mut faults = self.check_shared(&[keys[0], keys[1], ("session_token", self.session_token.is_some())]);
        if keys[0].1 != keys[1].1 {
            let (missing, there) = if keys[0].1 { (keys[1].0, keys[0].0) } else { (keys[0].0, keys[1].0) };
            faults.push(Fault::new(there, format!("`{there}` needs `{missing}`")).hint(format!("add `{missing}`")));
        }
        faults
    }
}

impl Spec for GcsSpec {
    const NAME: &'static str = "gs";
    const SUMMARY: &'static str = "Objects in Google Cloud Storage, by `gs://bucket/name`.";
    const EXAMPLE: &'static str = "read: gs://bucket/logs/2025-*/*.jsonl.zst\n\
                                   gs:\n  \
                                   service_account: {secret: file:/run/secrets/reader.json}\n\
                                   json: {}\n";

    fn check(&self) -> Vec<Fault> {
        self.check_shared(&[("service_account", self.service_account.is_some())])
    }
}

impl Spec for AzureSpec {
    const NAME: &'static str = "az";
    const SUMMARY: &'static str = "Objects in Azure Blob Storage, by `az://container/name`.";
    const EXAMPLE: &'static str = "read: az://container/exports/**/*.parquet\n\
                                   az:\n  \
                                   account: mycompany\n  \
                                   access_key: {secret: env:AZURE_STORAGE_ACCOUNT_KEY}\n\
                                   parquet: {}\n";

    fn check(&self) -> Vec<Fault> {
        let mut faults = self.check_shared(&[("access_key", self.access_key.is_some()), ("sas", self.sas.is_some())]);
        if self.access_key.is_some() && self.sas.is_some() {
            faults.push(Fault::new("sas", "both `access_key` and `sas` are given").hint("leave one of them out"));
        }
        faults
    }
}
