//! Sessions, in `STATE/server/sessions.json`, and links, each a file in `STATE/server/links` with the hash of its token
//! as its name. Taking a link removes its file, so that it works once, whatever else happens.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, SystemTime};

use millstream::Result;
use serde::{Deserialize, Serialize};

use super::known::{Known, OF_LINKS, User};
use super::role::Role;
use super::stored::{Content, failed};
use crate::private;
use crate::problem::now;

/// How long a link works.
pub const LINK_LASTS: Duration = Duration::from_secs(60 * 60);

/// How long a session lasts.
const SESSION_LASTS: Duration = Duration::from_secs(14 * 24 * 60 * 60);

/// The most sessions. The oldest gives way to a new one.
const MOST: usize = 1_000;

/// How many digits of its hash name a session.
const ID_DIGITS: usize = 12;

/// A session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Session {
    /// The user, unless it began with a link.
    pub of_user: Option<String>,
    /// When the user was set.
    of_version: u64,
    /// What it allows, if it began with a link.
    role: Role,
    /// When it began, in milliseconds since 1970.
    pub began: u64,
    /// From where.
    pub from: IpAddr,
    /// When it ends.
    pub expires: u64,
}

impl Session {
    /// One of `user`, or of somebody with a link, that begins now.
    pub fn new(user: Option<&User>, role: Role, from: IpAddr) -> Self {
        let lasting = u64::try_from(SESSION_LASTS.as_millis()).unwrap_or(u64::MAX);
        Session {
            of_user: user.map(|user| user.name.clone()),
            of_version: user.map_or(0, |user| user.changed),
            role,
            began: now(),
            from,
            expires: now().saturating_add(lasting),
        }
    }

    /// Who, for people.
    pub fn shown(&self) -> &str {
        self.of_user.as_deref().unwrap_or(OF_LINKS)
    }

    /// What it allows now: its user may have another role, another password, or none any more.
    pub fn role(&self, known: &Known) -> Option<Role> {
        match &self.of_user {
            _ if now() >= self.expires => None,
            Some(name) => known.user(name).filter(|user| user.changed == self.of_version).map(|user| user.role),
            None => Some(self.role),
        }
    }
}

/// All sessions, by the hashes of their tokens.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Sessions(BTreeMap<String, Session>);

impl Content for Sessions {
    const NAME: &'static str = "sessions";

    /// If they cannot be read, everybody has to come again.
    fn parse(_: &Path, text: &str) -> Result<Self> {
        Ok(serde_json::from_str(text).unwrap_or_default())
    }
}

impl Sessions {
    /// The session with this hash.
    pub fn find(&self, hash: &str) -> Option<&Session> {
        self.0.get(hash)
    }

    /// Adds a session. Those that have ended are removed.
    pub fn add(&mut self, hash: String, session: Session) {
        self.0.retain(|_, other| now() < other.expires);
        while self.0.len() >= MOST {
            let oldest = self.0.iter().min_by_key(|(_, session)| session.expires).map(|(hash, _)| hash.clone());
            oldest.and_then(|oldest| self.0.remove(&oldest));
        }
        self.0.insert(hash, session);
    }

    /// Removes the session with this hash.
    pub fn remove(&mut self, hash: &str) {
        self.0.remove(hash);
    }

    /// All of them with their ids, those that began last first.
    pub fn all(&self) -> Vec<(&str, &Session)> {
        let mut all: Vec<_> = self.0.iter().map(|(hash, session)| (id(hash), session)).collect();
        all.sort_by_key(|(_, session)| std::cmp::Reverse(session.began));
        all
    }

    /// Removes those of `who`: a user, `link`, or the id of one. How many of them somebody had.
    pub fn remove_those_of(&mut self, who: &str, known: &Known) -> usize {
        let is_theirs = |hash: &str, session: &Session| session.shown() == who || id(hash) == who;
        let living = |(hash, session): &(&String, &Session)| is_theirs(hash, session) && session.role(known).is_some();
        let count = self.0.iter().filter(living).count();
        self.0.retain(|hash, session| !is_theirs(hash, session));
        count
    }
}

/// How a session is named among others: the beginning of its hash, from which nobody gets its token.
fn id(hash: &str) -> &str {
    hash.get(..ID_DIGITS).unwrap_or(hash)
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
