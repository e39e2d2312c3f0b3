//! Users and tokens of programs, in `STATE/server/access.json`. A command may change the file while a server runs.

use std::path::Path;
use std::time::Duration;

use argon2::password_hash::phc::PasswordHash;
use argon2::{Argon2, PasswordHasher, PasswordVerifier};
use millstream::{Error, Result};
use serde::{Deserialize, Serialize};

use super::role::Role;
use super::stored::Content;
use crate::problem::now;

/// The version of the file.
const VERSION: u32 = 1;

/// The least characters of a password.
const SHORTEST: usize = 12;

/// What stands for those who came with a link; no user has this name.
pub const OF_LINKS: &str = "link";

/// The longest name.
const LONGEST_NAME: usize = 64;

/// A user.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    /// The name.
    pub name: String,
    /// What they may.
    pub role: Role,
    /// The hash of the password, by Argon2id with its parameters.
    password: String,
    /// When this was set, in milliseconds since 1970. Sessions from before do not count.
    pub changed: u64,
}

impl User {
    pub(super) fn new(name: &str, password: &str, role: Role) -> Result<Self> {
        check_name(name)?;
        if password.chars().count() < SHORTEST {
            return Err(
                Error::job(format!("the password has fewer than {SHORTEST} characters")).hint("use a longer one")
            );
        }
        let hashed: PasswordHash = Argon2::default()
            .hash_password(password.as_bytes())
            .map_err(|cause| Error::internal("the password cannot be hashed").cause(cause))?;
        Ok(User { name: name.to_owned(), role, password: hashed.to_string(), changed: now() })
    }
}

/// A token of a program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Token {
    /// Its name.
    pub name: String,
    /// What it allows.
    pub role: Role,
    /// Its hash.
    hash: String,
    /// When it was made, in milliseconds since 1970.
    pub made: u64,
    /// When it ends, if it does.
    pub expires: Option<u64>,
}

impl Token {
    pub(super) fn new(name: &str, role: Role, hash: String, lasting: Option<Duration>) -> Result<Self> {
        check_name(name)?;
        let milliseconds = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let expires = lasting.map(|lasting| now().saturating_add(milliseconds(lasting)));
        Ok(Token { name: name.to_owned(), role, hash, made: now(), expires })
    }
}

fn check_name(name: &str) -> Result<()> {
    let is_fine = |character: char| character.is_alphanumeric() || "._@-".contains(character);
    if name == OF_LINKS {
        return Err(Error::job(format!("`{name}` stands for those who came with a link")).hint("use another name"));
    }
    match !name.is_empty() && name.chars().count() <= LONGEST_NAME && name.chars().all(is_fine) {
        true => Ok(()),
        false => Err(Error::job("this is no name").text(name).hint("use letters, digits and `.`, `_`, `@`, `-`")),
    }
}

/// Users and tokens.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Known {
    version: u32,
    /// The users, by name.
    pub users: Vec<User>,
    /// The tokens of programs, in the order in which they were made.
    pub tokens: Vec<Token>,
}

impl Default for Known {
    fn default() -> Self {
        Known { version: VERSION, users: Vec::new(), tokens: Vec::new() }
    }
}

impl Content for Known {
    const NAME: &'static str = "access";

    fn parse(path: &Path, text: &str) -> Result<Self> {
        let broken = |cause: serde_json::Error| {
            let what = format!("{} cannot be read", path.display());
            Error::refused(what).cause(cause).hint("remove the file, and add the users again")
        };
        let known: Known = serde_json::from_str(text).map_err(broken)?;
        match known.version > VERSION {
            true => Err(Error::newer(path.display(), known.version, VERSION).hint("upgrade Millstream")),
            false => Ok(known),
        }
    }
}

impl Known {
    /// Adds `user`, or puts it in the place of the one with its name.
    pub(super) fn set_user(&mut self, user: User) -> Result<()> {
        if self.tokens.iter().any(|token| token.name == user.name) {
            return Err(taken("token", &user.name));
        }
        self.users.retain(|other| other.name != user.name);
        self.users.push(user);
        self.users.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(())
    }

    pub(super) fn add_token(&mut self, token: Token) -> Result<()> {
        if self.tokens.iter().any(|other| other.name == token.name) {
            return Err(taken("token", &token.name));
        }
        if self.user(&token.name).is_some() {
            return Err(taken("user", &token.name));
        }
        self.tokens.push(token);
        Ok(())
    }

    pub(super) fn remove(&mut self, name: &str) -> bool {
        let before = self.users.len() + self.tokens.len();
        self.users.retain(|user| user.name != name);
        self.tokens.retain(|token| token.name != name);
        self.users.len() + self.tokens.len() < before
    }

    /// The user of this name.
    pub fn user(&self, name: &str) -> Option<&User> {
        self.users.iter().find(|user| user.name == name)
    }

    /// The token with this hash, unless it has ended.
    pub(super) fn token(&self, hash: &str) -> Option<&Token> {
        let lives = |token: &&Token| token.expires.is_none_or(|expires| now() < expires);
        self.tokens.iter().find(|token| token.hash == hash).filter(lives)
    }

    /// The user of this name, if the password is theirs.
    pub(super) fn check(&self, name: &str, password: &str) -> Option<&User> {
        let user = self.user(name);
        // For a name that nobody has, a hash is computed as well: how long it takes says nothing.
        let stored = user.map_or(NOBODY, |user| user.password.as_str());
        let is_right = PasswordHash::new(stored)
            .is_ok_and(|hash| Argon2::default().verify_password(password.as_bytes(), &hash).is_ok());
        user.filter(|_| is_right)
    }
}

/// The hash of a password that nobody has, with the parameters of all others.
const NOBODY: &str =
    "$argon2id$v=19$m=19456,t=2,p=1$AAAAAAAAAAAAAAAAAAAAAA$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";

fn taken(what: &str, name: &str) -> Error {
    Error::refused(format!("there is a {what} `{name}` already"))
        .hint("give this one another name, or remove the other with `millstream access remove`")
}

#[cfg(test)]
mod tests {
    use super::super::stored::Stored;
    use super::*;

    #[test]
    fn names_and_passwords_are_checked() {
        let long = "x".repeat(LONGEST_NAME + 1);
        for name in ["", "link", "a b", "a/b", "a\n", long.as_str()] {
            assert!(User::new(name, "correct horse battery", Role::Look).is_err(), "{name:?}");
        }
        assert!(User::new("ada@example.org", "too short", Role::Look).is_err());
        assert!(User::new("ada@example.org", "long enough 1", Role::Look).is_ok());
    }

    #[test]
    fn a_name_that_nobody_has_costs_a_hash() {
        let hash = PasswordHash::new(NOBODY).expect("a hash");
        let user = User::new("ada", "correct horse battery", Role::Look).expect("a user");
        let other = PasswordHash::new(&user.password).expect("a hash");
        assert_eq!((hash.algorithm, hash.version, &hash.params), (other.algorithm, other.version, &other.params));
    }

    #[test]
    fn a_file_of_a_newer_version_is_refused() {
        let folder = tempfile::TempDir::new().expect("a folder");
        fs_err::write(folder.path().join("access.json"), r#"{"version": 2, "users": [], "tokens": []}"#)
            .expect("a file");
        let read = || Stored::<Known>::open(folder.path()).expect_err("refused");
        assert!(read().what().contains("newer version"));
        fs_err::write(folder.path().join("access.json"), "{").expect("a file");
        assert!(read().what().ends_with("cannot be read"));
    }
}
