//! Who asks, and what they may.
//!
//! There are three ways in: a link with a one-time token, which a process of the same user can make; a user with a
//! password; a token for programs. Links and passwords are exchanged for a session. Only hashes are stored, in files
//! of the state folder that only the user of the server can read.
//!
//! `role.rs` what they may, `known.rs` the users and tokens, `sessions.rs` sessions and links, `stored.rs` the files of
//! both, `secret.rs` random tokens and their hashes, `slow.rs` slows down those who guess, `audit.rs` who did what.

mod audit;
mod known;
mod role;
mod secret;
mod sessions;
mod slow;
mod stored;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use millstream::Result;
use serde::Serialize;

pub use self::audit::{Audit, AuditEntry};
pub use self::known::{Known, Token, User};
pub use self::role::Role;
pub use self::sessions::LINK_LASTS;
use self::sessions::{Session, Sessions};
pub use self::slow::{Guess, Slow};
use self::stored::{Stored, failed};
use crate::lock::lock;
use crate::private;

/// Somebody who is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// Who.
    pub user: String,
    /// What they may.
    pub role: Role,
    /// Where they are.
    pub from: IpAddr,
    /// When their session ends, in milliseconds since 1970; `None` for a token that does not end.
    pub expires: Option<u64>,
}

/// A session that has begun.
#[derive(Debug, Clone)]
pub struct Begun {
    /// Its token, which is nowhere else.
    pub token: String,
    /// Whose it is.
    pub caller: Caller,
}

/// A session, for people.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ShownSession {
    /// What it is called among others.
    pub id: String,
    /// The user, or `link`.
    pub user: String,
    /// What it allows.
    pub role: Role,
    /// From where it began.
    pub from: IpAddr,
    /// When it began, in milliseconds since 1970.
    pub began: u64,
    /// When it ends.
    pub expires: u64,
}

/// Who is known, in the state folder.
#[derive(Debug)]
pub struct Access {
    folder: PathBuf,
    known: Stored<Known>,
    sessions: Stored<Sessions>,
    audit: Audit,
    tokens: Arc<Slow>,
    passwords: Arc<Slow>,
    /// How often each caller was refused something.
    refused: Mutex<BTreeMap<String, u64>>,
}

impl Access {
    /// That in the state folder `state`.
    ///
    /// # Errors
    /// If its folder cannot be used, or a newer version has written it.
    pub fn open(state: &Path) -> Result<Arc<Self>> {
        let folder = private::folder(state).map_err(|cause| failed(&cause))?;
        let (known, sessions) = (Stored::open(&folder)?, Stored::open(&folder)?);
        let audit = Audit::new(&folder);
        Ok(Arc::new(Access {
            folder,
            known,
            sessions,
            audit,
            tokens: Arc::default(),
            passwords: Arc::default(),
            refused: Mutex::default(),
        }))
    }

    /// The audit log.
    pub fn audit(&self) -> &Audit {
        &self.audit
    }

    /// What slows down those who guess tokens.
    pub(crate) fn tokens(&self) -> &Arc<Slow> {
        &self.tokens
    }

    /// What slows down those who guess passwords.
    pub(crate) fn passwords(&self) -> &Arc<Slow> {
        &self.passwords
    }

    /// How often `user` was refused something, this time included, if the audit log is to note that.
    pub(crate) fn refused(&self, user: &str) -> Option<u64> {
        let mut refused = lock(&self.refused);
        let count = refused.entry(user.to_owned()).or_default();
        *count += 1;
        slow::is_noted(*count).then_some(*count)
    }

    /// Users and tokens, as they are now: another process may have changed them.
    ///
    /// # Errors
    /// If they cannot be read.
    pub fn known(&self) -> Result<Known> {
        self.known.look(Known::clone)
    }

    /// Adds a user, or gives one who is there another password and role.
    ///
    /// # Errors
    /// If the name or the password is none, the name is that of a token, or it cannot be stored.
    pub fn set_user(&self, name: &str, password: &str, role: Role) -> Result<()> {
        let user = User::new(name, password, role)?;
        self.known.change(|known| known.set_user(user))
    }

    /// Adds a token for programs, and returns it. It lasts `lasting`, or until it is removed.
    ///
    /// # Errors
    /// If the name is none or taken, or it cannot be stored.
    pub fn add_token(&self, name: &str, role: Role, lasting: Option<Duration>) -> Result<String> {
        let secret = secret::new()?;
        let token = Token::new(name, role, secret::hash(&secret), lasting)?;
        self.known.change(|known| known.add_token(token))?;
        Ok(secret)
    }

    /// Removes the user or token of this name, with the sessions of the user. Whether there was one.
    ///
    /// # Errors
    /// If it cannot be stored.
    pub fn remove(&self, name: &str) -> Result<bool> {
        self.known.change(|known| Ok(known.remove(name)))
    }

    /// The sessions that have not ended, those that began last first.
    ///
    /// # Errors
    /// If they cannot be read.
    pub fn sessions(&self) -> Result<Vec<ShownSession>> {
        let known = self.known()?;
        let shown = |(id, session): (&str, &Session)| {
            let &Session { began, from, expires, .. } = session;
            let (id, user) = (id.to_owned(), session.shown().to_owned());
            Some(ShownSession { id, user, role: session.role(&known)?, from, began, expires })
        };
        self.sessions.look(|sessions| sessions.all().into_iter().filter_map(shown).collect())
    }

    /// Ends the sessions of `who`: of a user, of all who came with a `link`, or the one with this id. How many there
    /// were.
    ///
    /// # Errors
    /// If that cannot be stored.
    pub fn sign_out(&self, who: &str) -> Result<usize> {
        let known = self.known()?;
        self.sessions.change(|sessions| Ok(sessions.remove_those_of(who, &known)))
    }

    /// A token that begins one session with this role, within [`LINK_LASTS`]. It works as long, even if the server is
    /// another one then.
    ///
    /// # Errors
    /// If it cannot be stored.
    pub fn link(&self, role: Role) -> Result<String> {
        let secret = secret::new()?;
        sessions::add_link(&self.folder, &secret::hash(&secret), role)?;
        Ok(secret)
    }

    /// Who has this token: that of a session, or one for programs. `None` if nobody has.
    ///
    /// # Errors
    /// If users and tokens cannot be read.
    pub fn caller(&self, token: &str, from: IpAddr) -> Result<Option<Caller>> {
        let (hash, known) = (secret::hash(token), self.known()?);
        if let Some(token) = known.token(&hash) {
            let user = format!("token {}", token.name);
            return Ok(Some(Caller { user, role: token.role, from, expires: token.expires }));
        }
        self.sessions.look(|sessions| {
            let session = sessions.find(&hash)?;
            let (user, role) = (session.shown().to_owned(), session.role(&known)?);
            Some(Caller { user, role, from, expires: Some(session.expires) })
        })
    }

    /// Begins a session with the token of a link, which works once. `None` if there is no such link any more.
    ///
    /// # Errors
    /// If the session cannot be stored.
    pub fn begin_by_link(&self, token: &str, from: IpAddr) -> Result<Option<Begun>> {
        let Some(role) = sessions::take_link(&self.folder, &secret::hash(token)) else { return Ok(None) };
        self.begin(None, role, from).map(Some)
    }

    /// Begins a session of a user. `None` if the name or the password is wrong; both take as long to find out.
    ///
    /// # Errors
    /// If the session cannot be stored.
    pub fn begin_by_password(&self, name: &str, password: &str, from: IpAddr) -> Result<Option<Begun>> {
        let known = self.known()?;
        match known.check(name, password) {
            Some(user) => self.begin(Some(user), user.role, from).map(Some),
            None => Ok(None),
        }
    }

    fn begin(&self, user: Option<&User>, role: Role, from: IpAddr) -> Result<Begun> {
        let token = secret::new()?;
        let session = Session::new(user, role, from);
        let caller = Caller { user: session.shown().to_owned(), role, from, expires: Some(session.expires) };
        let hash = secret::hash(&token);
        self.sessions.change(|sessions| {
            sessions.add(hash, session);
            Ok(())
        })?;
        Ok(Begun { token, caller })
    }

    /// Ends the session with this token.
    ///
    /// # Errors
    /// If that cannot be stored.
    pub fn end(&self, token: &str) -> Result<()> {
        let hash = secret::hash(token);
        self.sessions.change(|sessions| {
            sessions.remove(&hash);
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    fn access() -> (tempfile::TempDir, Arc<Access>) {
        let state = tempfile::TempDir::new().expect("a folder");
        let access = Access::open(state.path()).expect("it opens");
        (state, access)
    }

    #[test]
    fn a_link_begins_one_session_which_outlasts_the_server() {
        let (state, access) = access();
        let link = access.link(Role::Edit).expect("a link");
        assert_eq!(access.caller(&link, HERE).expect("an answer"), None, "a link is no session");
        let begun = access.begin_by_link(&link, HERE).expect("stored").expect("it begins");
        assert_eq!((begun.caller.user.as_str(), begun.caller.role), ("link", Role::Edit));
        assert!(access.begin_by_link(&link, HERE).expect("an answer").is_none(), "it works once");
        let next = Access::open(state.path()).expect("it opens");
        assert_eq!(next.caller(&begun.token, HERE).expect("an answer"), Some(begun.caller.clone()));
        next.end(&begun.token).expect("stored");
        assert_eq!(next.caller(&begun.token, HERE).expect("an answer"), None);
    }

    #[test]
    fn a_user_has_the_role_of_now_and_a_new_password_ends_sessions() {
        let (state, access) = access();
        access.set_user("ada", "correct horse battery", Role::Operate).expect("stored");
        let begin = |password: &str| access.begin_by_password("ada", password, HERE).expect("an answer");
        assert!(begin("wrong").is_none() && access.begin_by_password("bob", "x", HERE).expect("an answer").is_none());
        let begun = begin("correct horse battery").expect("it begins");
        assert_eq!((begun.caller.user.as_str(), begun.caller.role), ("ada", Role::Operate));
        // As another process does it.
        let command = Access::open(state.path()).expect("it opens");
        command.set_user("ada", "another long password", Role::Look).expect("stored");
        assert_eq!(access.caller(&begun.token, HERE).expect("an answer"), None);
        let begun = begin("another long password").expect("it begins");
        assert_eq!(begun.caller.role, Role::Look);
        assert!(command.remove("ada").expect("stored") && !command.remove("ada").expect("stored"));
        assert_eq!(access.caller(&begun.token, HERE).expect("an answer"), None);
    }

    #[test]
    fn sessions_are_listed_and_ended_by_another_process() {
        let (state, access) = access();
        access.set_user("ada", "correct horse battery", Role::Look).expect("stored");
        let by_link = |role| {
            let link = access.link(role).expect("a link");
            access.begin_by_link(&link, HERE).expect("stored").expect("it begins").token
        };
        let links = [by_link(Role::Edit), by_link(Role::Operate)];
        let ada = access.begin_by_password("ada", "correct horse battery", HERE).expect("stored").expect("begun").token;
        let is_in = |token: &str| access.caller(token, HERE).expect("an answer").is_some();
        let command = Access::open(state.path()).expect("it opens");
        let shown = command.sessions().expect("read");
        let mut who: Vec<_> = shown.iter().map(|session| (session.user.as_str(), session.role)).collect();
        who.sort_unstable();
        assert_eq!(who, [("ada", Role::Look), ("link", Role::Operate), ("link", Role::Edit)]);
        let edit = shown.iter().find(|session| session.role == Role::Edit).expect("it is listed");
        assert_eq!(command.sign_out(&edit.id).expect("stored"), 1);
        assert!(!is_in(&links[0]) && is_in(&links[1]) && is_in(&ada));
        assert_eq!(command.sign_out("link").expect("stored"), 1);
        assert!(!is_in(&links[1]) && is_in(&ada));
        assert_eq!(command.sign_out("ada").expect("stored") + command.sign_out("bob").expect("stored"), 1);
        assert!(!is_in(&ada) && command.sessions().expect("read").is_empty());
    }

    #[test]
    fn a_name_is_that_of_a_user_or_of_a_token() {
        let (_state, access) = access();
        access.set_user("ada", "correct horse battery", Role::Look).expect("stored");
        assert!(access.add_token("ada", Role::Look, None).expect_err("taken").what().contains("a user `ada` already"));
        access.add_token("t", Role::Look, None).expect("stored");
        let taken = access.set_user("t", "correct horse battery", Role::Look).expect_err("taken");
        assert!(taken.what().contains("a token `t` already"), "{taken}");
    }

    #[test]
    fn tokens_of_programs_work_until_they_end() {
        let (_state, access) = access();
        let token = access.add_token("prometheus", Role::Look, None).expect("stored");
        let ended = access.add_token("old", Role::Look, Some(Duration::ZERO)).expect("stored");
        assert!(access.add_token("old", Role::Look, None).is_err(), "the name is taken");
        let caller = access.caller(&token, HERE).expect("an answer").expect("it is known");
        assert_eq!((caller.user.as_str(), caller.role, caller.expires), ("token prometheus", Role::Look, None));
        assert_eq!(access.caller(&ended, HERE).expect("an answer"), None);
    }

    #[test]
    fn nothing_that_is_stored_lets_anybody_in() {
        use std::os::unix::fs::PermissionsExt;

        let (state, access) = access();
        access.set_user("ada", "correct horse battery", Role::Edit).expect("stored");
        let secrets = [
            access.add_token("t", Role::Look, None).expect("stored"),
            access.link(Role::Edit).expect("a link"),
            access.begin_by_password("ada", "correct horse battery", HERE).expect("stored").expect("begun").token,
            "correct horse battery".to_owned(),
        ];
        let mut folders = vec![state.path().join("server")];
        let mut files = 0;
        while let Some(folder) = folders.pop() {
            assert_eq!(fs_err::metadata(&folder).expect("there").permissions().mode() & 0o077, 0, "{folder:?}");
            for entry in fs_err::read_dir(&folder).expect("a folder") {
                let path = entry.expect("an entry").path();
                if path.is_dir() {
                    folders.push(path);
                    continue;
                }
                files += 1;
                let text = format!("{} {}", path.display(), fs_err::read_to_string(&path).expect("a file"));
                assert!(secrets.iter().all(|secret| !text.contains(secret)), "{text}");
                assert_eq!(fs_err::metadata(&path).expect("there").permissions().mode() & 0o077, 0, "{path:?}");
            }
        }
        assert!(files >= 3, "{files}");
    }
}
