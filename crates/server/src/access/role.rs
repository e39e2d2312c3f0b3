//! What somebody may do.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What somebody may do. Each role may do what those before it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Sees.
    Look,
    /// Starts, cancels, resumes and replays, and sets variables that a job declares under `allow`.
    Operate,
    /// Writes files and sets any variable: as much as a shell of the server's user.
    Edit,
}

impl Role {
    /// All of them.
    pub const ALL: [Role; 3] = [Role::Look, Role::Operate, Role::Edit];

    /// What it is called.
    pub fn name(self) -> &'static str {
        match self {
            Role::Look => "look",
            Role::Operate => "operate",
            Role::Edit => "edit",
        }
    }
}
