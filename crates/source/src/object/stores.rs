//! The three kinds of stores: combines the settings of the job file and of the environment, with the hints of each
//! kind.
//!
//! If the job file has credentials, none come from the environment, so that two identities are never mixed.

use std::fmt::Debug;
use std::str::FromStr;
use std::sync::Arc;

use millstream_core::spec::Spec;
use millstream_core::{Error, Result};
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::list::PaginatedListStore;
use object_store::multipart::MultipartStore;
use object_store::{ClientConfigKey, ObjectStore};
use url::Url;

use super::bridge::{Bridge, once};
use super::spec::{AzureSpec, GcsSpec, S3Spec};
use crate::http::spec::HttpSpec;

/// The traits of the store crate that are used.
pub(crate) trait Store: ObjectStore + PaginatedListStore + MultipartStore {}

impl<S: ObjectStore + PaginatedListStore + MultipartStore> Store for S {}

/// A store that is set up, and the secrets that no message may show.
pub(crate) struct Opened {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) secrets: Vec<String>,
}

/// A kind of store.
pub(crate) trait Kind: Spec + Clone + Debug + Send + Sync + 'static {
    /// The `Accept-Encoding` with which objects come as they are stored.
    const AS_STORED: &'static str = "identity";

    /// The hint for missing credentials.
    const CREDENTIALS: &'static str;

    /// The settings of the connections.
    fn connections(&self) -> HttpSpec;

    /// Sets the store up for one bucket. Reads the environment and secrets, but asks no server.
    fn open(&self, bucket: &str, bridge: Bridge) -> Result<Opened>;
}

impl Kind for S3Spec {
    const CREDENTIALS: &'static str = "set `access_key_id` and `secret_access_key` in the `s3` block, or \
                                       AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; if the bucket is public, set \
                                       `anonymous: true`";

    fn connections(&self) -> HttpSpec {
        self.web()
    }

    fn open(&self, bucket: &str, bridge: Bridge) -> Result<Opened> {
        use AmazonS3ConfigKey::{AccessKeyId, Client, Endpoint, S3Endpoint, SecretAccessKey, Token};
        let named = self.access_key_id.is_some();
        let kept = |key: &AmazonS3ConfigKey| !(named && matches!(key, AccessKeyId | SecretAccessKey | Token));
        let mut builder = environment::<AmazonS3ConfigKey>("AWS_")
            .filter(|(key, _)| kept(key))
            .fold(AmazonS3Builder::new(), |builder, (key, value)| builder.with_config(key, value));
        let mut secrets = Vec::new();
        if let (Some(id), Some(secret)) = (&self.access_key_id, &self.secret_access_key) {
            let secret = secret.resolve()?;
            builder = builder.with_access_key_id(id.resolve()?).with_secret_access_key(&secret);
            secrets.push(secret);
        }
        if let Some(token) = &self.session_token {
            let token = token.resolve()?;
            builder = builder.with_token(&token);
            secrets.push(token);
        }
        if let Some(region) = &self.region {
            builder = builder.with_region(region);
        }
        let set = [S3Endpoint, Endpoint].into_iter().find_map(|key| builder.get_config_value(&key));
        let endpoint = self.endpoint.clone().or(set);
        let allowed = self.allow_http || is_true(builder.get_config_value(&Client(ClientConfigKey::AllowHttp)));
        if let Some(endpoint) = endpoint {
            check_encryption(&endpoint, allowed)?;
            let endpoint = if self.virtual_hosted { in_host(&endpoint, bucket)? } else { endpoint };
            builder = builder.with_config(S3Endpoint, endpoint);
        }
        if self.virtual_hosted {
            builder = builder.with_virtual_hosted_style_request(true);
        }
        if self.anonymous {
            builder = builder.with_skip_signature(true);
        }
        if self.requester_pays {
            builder = builder.with_request_payer(true);
        }
        let store = builder.with_bucket_name(bucket).with_http_connector(bridge).with_retry(once()).build();
        Ok(Opened { store: Arc::new(store.map_err(not_set_up)?), secrets })
    }
}

impl Kind for GcsSpec {
    /// Google decompresses objects with `Content-Encoding: gzip` for clients that do not accept gzip; their length and
    /// ranges would then be unknown.
    const AS_STORED: &'static str = "gzip";

    const CREDENTIALS: &'static str = "set `service_account` in the `gs` block, or GOOGLE_APPLICATION_CREDENTIALS; if \
                                       the bucket is public, set `anonymous: true`";

    fn connections(&self) -> HttpSpec {
        self.web()
    }

    fn open(&self, bucket: &str, bridge: Bridge) -> Result<Opened> {
        use GoogleConfigKey::{ApplicationCredentials, BaseUrl, Client, ServiceAccount, ServiceAccountKey};
        let named = self.service_account.is_some();
        let kept = |key: &GoogleConfigKey| {
            !(named && matches!(key, ApplicationCredentials | ServiceAccount | ServiceAccountKey))
        };
        let mut builder = environment::<GoogleConfigKey>("GOOGLE_")
            .filter(|(key, _)| kept(key))
            .fold(GoogleCloudStorageBuilder::new(), |builder, (key, value)| builder.with_config(key, value));
        let mut secrets = Vec::new();
        if let Some(account) = &self.service_account {
            let key = account.resolve()?;
            builder = builder.with_service_account_key(&key);
            secrets.push(key);
        }
        let allowed = self.allow_http || is_true(builder.get_config_value(&Client(ClientConfigKey::AllowHttp)));
        if let Some(endpoint) = self.endpoint.clone().or(builder.get_config_value(&BaseUrl)) {
            check_encryption(&endpoint, allowed)?;
            builder = builder.with_base_url(endpoint.trim_end_matches('/'));
        }
        if self.anonymous {
            builder = builder.with_skip_signature(true);
        }
        let store = builder.with_bucket_name(bucket).with_http_connector(bridge).with_retry(once()).build();
        Ok(Opened { store: Arc::new(store.map_err(not_set_up)?), secrets })
    }
}

impl Kind for AzureSpec {
    const CREDENTIALS: &'static str = "set `access_key` or `sas` in the `az` block, or AZURE_STORAGE_ACCOUNT_KEY; if \
                                       the container is public, set `anonymous: true`";

    fn connections(&self) -> HttpSpec {
        self.web()
    }

    fn open(&self, bucket: &str, bridge: Bridge) -> Result<Opened> {
        use AzureConfigKey::{AccountName, Client, Endpoint, UseEmulator};
        let named = self.access_key.is_some() || self.sas.is_some();
        let mut builder = environment::<AzureConfigKey>("AZURE_")
            .filter(|(key, _)| !named || matches!(key, AccountName | Client(_) | Endpoint))
            .fold(MicrosoftAzureBuilder::new(), |builder, (key, value)| builder.with_config(key, value));
        let mut secrets = Vec::new();
        if let Some(account) = &self.account {
            builder = builder.with_account(account);
        }
        if let Some(key) = &self.access_key {
            let key = key.resolve()?;
            builder = builder.with_access_key(&key);
            secrets.push(key);
        }
        if let Some(sas) = &self.sas {
            let sas = sas.resolve()?;
            builder = builder.with_config(AzureConfigKey::SasKey, &sas);
            secrets.push(sas);
        }
        let emulated = is_true(builder.get_config_value(&UseEmulator));
        if builder.get_config_value(&AccountName).is_none() && !emulated {
            return Err(Error::refused("the storage account is not known")
                .hint("set `account` in the `az` block, or AZURE_STORAGE_ACCOUNT_NAME"));
        }
        let allowed = self.allow_http || is_true(builder.get_config_value(&Client(ClientConfigKey::AllowHttp)));
        if let Some(endpoint) = self.endpoint.clone().or(builder.get_config_value(&Endpoint)) {
            check_encryption(&endpoint, allowed)?;
            builder = builder.with_endpoint(endpoint.trim_end_matches('/').to_owned());
        }
        if self.anonymous {
            builder = builder.with_skip_signature(true);
        }
        let store = builder.with_container_name(bucket).with_http_connector(bridge).with_retry(once()).build();
        Ok(Opened { store: Arc::new(store.map_err(not_set_up)?), secrets })
    }
}

/// The settings in the environment whose names begin with `prefix`.
fn environment<K: FromStr>(prefix: &'static str) -> impl Iterator<Item = (K, String)> {
    std::env::vars_os().filter_map(move |(name, value)| {
        let (name, value) = (name.into_string().ok()?, value.into_string().ok()?);
        let known = name.starts_with(prefix) && !value.is_empty();
        Some((known.then(|| name.to_ascii_lowercase().parse().ok()).flatten()?, value))
    })
}

fn is_true(text: Option<String>) -> bool {
    text.is_some_and(|text| matches!(text.to_ascii_lowercase().as_str(), "1" | "true" | "on" | "yes" | "y"))
}

/// Checks the endpoint from the environment; the spec has checked that of the job file.
fn check_encryption(endpoint: &str, allowed: bool) -> Result<()> {
    let encrypted = endpoint.get(..7).is_none_or(|scheme| !scheme.eq_ignore_ascii_case("http://"));
    if encrypted || allowed {
        return Ok(());
    }
    Err(Error::job("an endpoint without encryption must be allowed").text(endpoint).hint("add `allow_http: true`"))
}

/// `endpoint` with the bucket in its host.
fn in_host(endpoint: &str, bucket: &str) -> Result<String> {
    let fault = || Error::job("the bucket cannot be named in the endpoint's host").text(endpoint);
    let mut url = Url::parse(endpoint).map_err(|_| fault())?;
    let host = url.host_str().ok_or_else(fault)?;
    url.set_host(Some(&format!("{bucket}.{host}"))).map_err(|_| fault())?;
    Ok(url.as_str().trim_end_matches('/').to_owned())
}

fn not_set_up(cause: object_store::Error) -> Error {
    Error::refused("the store cannot be set up").cause(crate::http::client::root_cause(&cause))
}
