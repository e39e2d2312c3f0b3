//! `millstream access`: who may use the server. All of it is in the state folder, where a server that runs finds it.

use std::io::{BufRead, IsTerminal};
use std::time::Duration;

use millstream::text::counted;
use millstream::{Error, Failure, Result};
use millstream_server::{Access, address_of};
use serde_json::{Value, json};

use crate::arguments::{AccessCommand, Global, Role};
use crate::output::Output;
use crate::runs::moment;
use crate::schedule::state_folder;
use crate::shared::machine;
use crate::table::table;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

impl From<Role> for millstream_server::Role {
    fn from(role: Role) -> Self {
        match role {
            Role::Look => millstream_server::Role::Look,
            Role::Operate => millstream_server::Role::Operate,
            Role::Edit => millstream_server::Role::Edit,
        }
    }
}

/// Changes who may use the server, or lists them.
///
/// # Errors
/// If the state folder cannot be used, or there is nobody of that name.
pub fn change(global: &Global, output: Output, command: &AccessCommand) -> Result<(), Failure> {
    let state = state_folder(machine(global)?.state.as_deref())?;
    let access = Access::open(&state)?;
    match command {
        AccessCommand::Link { role } => {
            let address = address_of(&state).ok_or_else(|| {
                Error::refused("no server has run with this state folder").hint("start one with `millstream serve`")
            })?;
            let link = format!("{}/#token={}", address.url, access.link((*role).into())?);
            match output.json {
                true => output.json(&json!({"link": link}))?,
                false => output.result(&format!("{link}\n"))?,
            }
        }
        AccessCommand::AddUser { name, role } => {
            access.set_user(name, &password(name)?, (*role).into())?;
            output.chat(&format!("{name} may {}\n", may(*role)));
        }
        AccessCommand::AddToken { name, role, days } => {
            let lasting = days.map(|days| DAY * days);
            let token = access.add_token(name, (*role).into(), lasting)?;
            match output.json {
                true => output.json(&json!({"name": name, "token": token}))?,
                false => output.result(&format!("{token}\n"))?,
            }
        }
        AccessCommand::List => list(output, &access)?,
        AccessCommand::SignOut { who } => match access.sign_out(who)? {
            0 => {
                let error = Error::refused(format!("there is no session of `{who}`"));
                return Err(error.hint("`millstream access list` lists them").into());
            }
            count => output.chat(&format!("{} ended\n", counted(count as u64, "session"))),
        },
        AccessCommand::Remove { name } => {
            if !access.remove(name)? {
                let error = Error::refused(format!("there is no user or token `{name}`"));
                return Err(error.hint("`millstream access list` lists them").into());
            }
            output.chat(&format!("{name} is removed\n"));
        }
    }
    Ok(())
}

fn may(role: Role) -> &'static str {
    match role {
        Role::Look => "look at everything but secrets",
        Role::Operate => "look, and start, cancel, resume and replay",
        Role::Edit => "do what a shell of the server's user may",
    }
}

/// The password of a user: asked for on a terminal, twice; else the first line of standard input.
fn password(name: &str) -> Result<String> {
    let failed = |cause: std::io::Error| Error::io("no password could be read", &cause);
    if !std::io::stdin().is_terminal() {
        let mut line = String::new();
        std::io::stdin().lock().read_line(&mut line).map_err(failed)?;
        return Ok(line.trim_end_matches(['\r', '\n']).to_owned());
    }
    let first = rpassword::prompt_password(format!("password of {name}: ")).map_err(failed)?;
    let second = rpassword::prompt_password("the same again: ").map_err(failed)?;
    match first == second {
        true => Ok(first),
        false => Err(Error::job("the two passwords differ").hint("give the command again")),
    }
}

fn list(output: Output, access: &Access) -> Result<()> {
    let (known, sessions) = (access.known()?, access.sessions()?);
    if output.json {
        let user = |user: &millstream_server::User| json!({"name": user.name, "role": user.role});
        let token = |token: &millstream_server::Token| {
            let millstream_server::Token { name, role, made, expires, .. } = token;
            json!({"name": name, "role": role, "made": made, "expires": expires})
        };
        let users: Vec<Value> = known.users.iter().map(user).collect();
        let tokens: Vec<Value> = known.tokens.iter().map(token).collect();
        return output.json(&json!({"users": users, "tokens": tokens, "sessions": sessions}));
    }
    let row = |cells: [&str; 5]| cells.map(str::to_owned).to_vec();
    let users = known.users.iter().map(|user| row(["user", &user.name, user.role.name(), "", ""]));
    let tokens = known.tokens.iter().map(|token| {
        row(["token", &token.name, token.role.name(), "", &token.expires.map(moment).unwrap_or_default()])
    });
    let sessions = sessions.iter().map(|session| {
        let of = format!("{} from {}", session.user, session.from);
        row(["session", &session.id, session.role.name(), &of, &moment(session.expires)])
    });
    let rows: Vec<Vec<String>> = users.chain(tokens).chain(sessions).collect();
    if rows.is_empty() {
        return output.result("nobody yet: `millstream access link` signs a browser in, `add-user` adds a user\n");
    }
    let header = ["", "name", "role", "of", "ends"].map(str::to_owned);
    output.result(&table(&header, &rows, &[]))
}
