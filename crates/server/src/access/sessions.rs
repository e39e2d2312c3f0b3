//! Sessions, in `STATE/server/sessions.json`, and links, each a file in `STATE/server/links` with the hash of its token
//! as its name. Taking a link removes its file, so that it works once, whatever else happens.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, SystemTime};

use millstream::Result;
use serde::{Deserialize, Serialize};

use super::known::User;
use super::{Role, failed};
use crate::private;
use crate::problem::now;

/// How long a link works.
pub const LINK_LASTS: Duration = Duration::from_secs(60 * 60);

/// How long a session lasts.
const SESSION_LASTS: Duration = Duration::from_secs(14 * 24 * 60 * 60);

/// The most sessions. The oldest gives way to a new one.
const MOST: usize = 1_000;

/// A session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Session {
    /// The user, unless it began with a link.
    pub of_user: Option<String>,
    /// When the user was set.
    pub of_version: u64,
    /// What it allows, if it began with a link.
    pub role: Role,
    /// When it ends, in milliseconds since 1970.
    pub expires: u64,
}

impl Session {
    /// Who, for people.
    pub fn shown(&self) -> &str {
        self.of_user.as_deref().unwrap_or("link")
    }
}

/// All sessions, by the hashes of their tokens.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Sessions(BTreeMap<String, Session>);

impl Sessions {
    /// Those in the folder of the server. If they cannot be read, everybody has to come again.
    pub fn read(folder: &Path) -> Result<Self> {
        match fs_err::read_to_string(folder.join("sessions.json")) {
            Ok(text) => Ok(serde_json::from_str(&text).unwrap_or_default()),
            Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => Ok(Sessions::default()),
            Err(cause) => Err(failed(&cause)),
        }
    }

    /// The session with this hash, unless it has ended.
    pub fn find(&self, hash: &str) -> Option<&Session> {
        self.0.get(hash).filter(|session| now() < session.expires)
    }

    /// Begins a session.
    pub fn begin(&mut self, folder: &Path, hash: &str, user: Option<&User>, role: Role) -> Result<Session> {
        let lasting = u64::try_from(SESSION_LASTS.as_millis()).unwrap_or(u64::MAX);
        let session = Session {
            of_user: user.map(|user| user.name.clone()),
            of_version: user.map_or(0, |user| user.changed),
            role,
            expires: now().saturating_add(lasting),
        };
        self.0.retain(|_, other| now() < other.expires);
        while self.0.len() >= MOST {
            let oldest = self.0.iter().min_by_key(|(_, session)| session.expires).map(|(hash, _)| hash.clone());
            oldest.and_then(|oldest| self.0.remove(&oldest));
        }
        self.0.insert(hash.to_owned(), session.clone());
        if let Err(error) = self.store(folder) {
            // One that nobody would know of after a restart has not begun.
            self.0.remove(hash);
            return Err(error);
        }
        Ok(session)
    }

    /// Ends a session.
    pub fn end(&mut self, folder: &Path, hash: &str) -> Result<()> {
        match self.0.remove(hash) {
            Some(_) => self.store(folder),
            None => Ok(()),
        }
    }

    fn store(&self, folder: &Path) -> Result<()> {
        let text = serde_json::to_vec(self).map_err(|cause| failed(&cause.into()))?;
        private::write(&folder.join("sessions.json"), &text).map_err(|cause| failed(&cause))
    }
}

/// Stores a link. Links that have ended are removed.
pub fn add_link(folder: &Path, hash: &str, role: Role) -> Result<()> {
    let links = folder.join("links");
    let made = || {
        fs_err::create_dir_all(&links)?;
        fs_err::set_permissions(&links, std::os::unix::fs::PermissionsExt::from_mode(0o700))?;
        for entry in fs_err::read_dir(&links)?.flatten() {
            if entry.metadata().ok().and_then(|metadata| metadata.modified().ok()).is_none_or(has_ended) {
                let _ = fs_err::remove_file(entry.path());
            }
        }
        private::write(&links.join(hash), role.name().as_bytes())
    };
    made().map_err(|cause| failed(&cause))
}

/// Takes the link with this hash: `None` if there is none, or it has ended.
pub fn take_link(folder: &Path, hash: &str) -> Option<Role> {
    let path = folder.join("links").join(hash);
    let modified = fs_err::metadata(&path).ok()?.modified().ok()?;
    let text = fs_err::read_to_string(&path).ok()?;
    // Of two that come at once, one removes it.
    fs_err::remove_file(&path).and_then(|()| private::sync_folder_of(&path)).ok()?;
    let role = Role::ALL.into_iter().find(|role| role.name() == text.trim());
    role.filter(|_| !has_ended(modified))
}

fn has_ended(made: SystemTime) -> bool {
    made.elapsed().is_ok_and(|age| age >= LINK_LASTS)
}
