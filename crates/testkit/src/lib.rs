//! What the tests of several crates share: folders of test data, a real web server, a faulty one, certificates, and
//! a thread without the rights of root.
//!
//! It is for tests: what goes wrong here panics, with a message that says what to install or to look at.

mod authority;
mod fault_server;
mod nginx;
mod rights;
mod tree;

pub use authority::{Authority, Certificate, Validity};
pub use fault_server::{Answer, Fault, FaultServer, Object, Plan, Request};
pub use nginx::{Nginx, free_port};
pub use rights::without_rights;
pub use tree::TempTree;
