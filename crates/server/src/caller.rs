//! Who asks: the token of a request, and what a wrong one costs.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use http::{HeaderMap, StatusCode, header};
use millstream::Error;

use crate::access::{Caller, Guess};
use crate::answers::blocking;
use crate::listen::Peer;
use crate::problem::Problem;
use crate::shared::Shared;

/// The longest token that is looked at.
const LONGEST_TOKEN: usize = 200;

/// The token of a request.
pub fn token(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    Some(token.trim()).filter(|token| scheme.eq_ignore_ascii_case("bearer") && token.len() <= LONGEST_TOKEN)
}

/// Who asks.
///
/// # Errors
/// If that is not known. A wrong token is slowed down.
pub async fn caller(shared: &Arc<Shared>, peer: &Peer, headers: &HeaderMap) -> Result<Caller, Problem> {
    let Some(token) = token(headers) else {
        let error = Error::refused("this needs a token").hint("sign in, or send `Authorization: Bearer TOKEN`");
        return Err(Problem::new(StatusCode::UNAUTHORIZED, error));
    };
    let (token, from) = (token.to_owned(), peer.ip);
    if let Some(caller) = blocking(shared, move |shared| Ok(shared.access.caller(&token, from)?)).await? {
        peer.known.store(true, Ordering::Relaxed);
        return Ok(caller);
    }
    let guess = shared.access.tokens().enter().ok_or_else(too_many)?;
    Err(wrong(shared, guess, peer, "token", "the token is not known, or has ended").await)
}

/// Something that lets nobody in, after the time that such a guess costs. The guess keeps its place as long, also if
/// the client does not wait.
pub async fn wrong(shared: &Shared, guess: Guess, peer: &Peer, what: &str, why: &str) -> Problem {
    let wrong = guess.wrong(Instant::now());
    if let Some(count) = wrong.noted {
        let times = if count == 1 { String::new() } else { format!(" ({count} in all)") };
        shared.note_of("?", peer.ip, "wrong", &format!("{what}{times}"), false);
    }
    let waiting = tokio::spawn(async move {
        tokio::time::sleep(wrong.wait).await;
        drop(guess);
    });
    let _ = waiting.await;
    let error = Error::refused(why).hint("`millstream access link` prints a link that signs you in");
    Problem::new(StatusCode::UNAUTHORIZED, error)
}

/// Too many guesses wait already.
pub fn too_many() -> Problem {
    let error = Error::transient("too many wrong tokens and passwords have come").hint("wait a while");
    Problem::new(StatusCode::TOO_MANY_REQUESTS, error)
}
