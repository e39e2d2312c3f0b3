//! A folder or a bucket that runs write files to, for tests of both.

use std::path::PathBuf;

use millstream_testkit::{KEY, S3Server, SECRET};

use super::{Lab, Ran, finish};

/// A folder in which a job runs, and the target of its files: a folder or a bucket.
pub struct FileTarget {
    pub lab: Lab,
    server: Option<S3Server>,
}

impl FileTarget {
    pub fn folder() -> Self {
        FileTarget { lab: Lab::new(), server: None }
    }

    pub fn bucket() -> Self {
        let lab = Lab::new();
        lab.0.folder("store/bucket");
        let server = S3Server::start(&lab.path("store"), true);
        FileTarget { lab, server: Some(server) }
    }

    /// A sink of `s` that writes below the folder or bucket, with these settings.
    pub fn sink(&self, write: &str, settings: &str) -> String {
        let (base, block) = match &self.server {
            None => ("out/", String::new()),
            Some(server) => (
                "s3://bucket/out/",
                format!(
                    ", s3: {{endpoint: '{}', allow_http: true, region: us-east-1, max_backoff: 20ms, access_key_id: \
                     {KEY}, secret_access_key: {{secret: env:BUCKET_SECRET}}}}",
                    server.url()
                ),
            ),
        };
        format!("{{from: s, write: '{base}{write}'{settings}{block}}}")
    }

    /// Runs millstream, and kills it at a fail point.
    pub fn ran(&self, arguments: &[&str], kill: Option<&str>) -> Ran {
        let mut command = self.lab.command(arguments);
        command.env("BUCKET_SECRET", SECRET).envs(kill.map(|at| ("MILLSTREAM_FAIL_AT", at)));
        finish(command, None)
    }

    pub fn run(&self, arguments: &[&str]) -> Ran {
        self.ran(&[&["run", "job.yaml"], arguments].concat(), None)
    }

    /// Where the files of a target are, on this machine.
    pub fn out(&self) -> PathBuf {
        self.lab.path(if self.server.is_some() { "store/bucket/out" } else { "out" })
    }
}
