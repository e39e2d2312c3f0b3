//! The server: an API, a stream of events and the pages that use them, over the runs of one machine and the files of
//! one folder.
//!
//! ```text
//!  listen ──▶ guard ──▶ access ──▶ api ──▶ history, folder, machine        what is asked
//!                                   │ └──▶ actions, commands ──▶ children  what is done
//!  watch ──▶ events ──▶ clients                                            what happens
//! ```
//! It holds no truth of its own. What runs and ran is in the state folder, what can run is in the folder of jobs, and
//! what it starts are processes of the same program as on the command line: they outlive it, and it sees the runs of
//! others as it sees its own. What only it needs (users, tokens, the audit log, what it was asked to do) lies in
//! `STATE/server`. So it may be killed at any moment.
//!
//! `listen.rs` accepts connections, `guard.rs` refuses what a browser was tricked into, `access/` knows who asks and
//! what they may, `routes.rs` is the table of the API, `api/` answers, `openapi.rs` describes it. `folder.rs` is the
//! folder of jobs, `hidden.rs` leaves secrets out of its texts, `commands.rs` asks the program about files,
//! `actions.rs` starts runs, `watch.rs` looks at what changes, `metrics.rs` is the page for Prometheus, `pages.rs` has
//! the bundle of `ui/`.

mod access;
mod actions;
mod answers;
mod api;
mod caller;
mod commands;
mod folder;
mod guard;
mod hidden;
mod listen;
mod lock;
mod metrics;
mod openapi;
mod pages;
mod private;
mod problem;
mod routes;
mod server;
mod shared;
mod watch;

pub use access::{Access, Role, ShownSession, Token, User};
pub use server::{Options, Server, ServerAddress, Stop, TlsFiles, address_of};
pub use shared::MachineFacts;
