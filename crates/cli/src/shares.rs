//! What a run takes of the machine beside others: memory, and its turn at the cores.

use millstream::history::{MemoryShare, Wanted, default_folder};
use millstream::machine::Machine;
use millstream::text::Size;
use millstream::{Engine, Failure};
use rustix::process::{Pid, setpriority_process};

use crate::allocator;
use crate::arguments::{Global, Run};
use crate::output::Output;

/// The least memory that a run gets where others have all of it, if the machine has more.
const LEAST: u64 = 64 << 20;

/// The engine of a run, which owns this process, and the memory that it has as long as it lives. The step of a sequence
/// has a part of what that has taken.
pub fn engine(
    mut machine: Machine,
    global: &Global,
    output: Output,
    run: &Run,
) -> Result<(Engine, Option<MemoryShare>), Failure> {
    let share = match &run.as_step {
        Some(_) => None,
        // The memory that a scheduler was given is that of all its runs.
        None => match run.beside {
            Some(beside) => share(&machine, None, beside),
            None => share(&machine, global.memory.map(|memory| memory.0), 1),
        },
    };
    if let Some(share) = &share {
        if share.is_less {
            let (others, all, own) = (Size(share.others), Size(machine.memory), Size(share.memory));
            output.chat(&format!("other runs have {others} of memory: this one gets {own} of {all}\n"));
        }
        machine.memory = share.memory;
    }
    allocator::fit(machine.memory);
    Ok((Engine::builder().machine(machine).own_process().build()?, share))
}

/// What a run takes that reserves `reserved` bytes, or nothing. `None` where there is no state folder in which runs
/// find each other: that it cannot be used is for the run history to say.
fn share(machine: &Machine, reserved: Option<u64>, beside: u64) -> Option<MemoryShare> {
    let state = machine.state.clone().or_else(default_folder)?;
    MemoryShare::take(&state, Wanted { all: machine.memory, reserved, beside, least: LEAST }).ok()
}

/// Gives this process, and those that it starts, the nice value `nice`, if the file says so. A lower one than it has
/// needs a right that most users lack: then it keeps what it has. So a job keeps the priority of its sequence, unless
/// its own is lower.
pub fn prefer(nice: i32) {
    if nice == 0 {
        return;
    }
    let threads = fs_err::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let numbers = threads.filter_map(|thread| thread.file_name().to_str()?.parse().ok());
    // Threads that start later have that of the one which starts them.
    for thread in numbers.filter_map(Pid::from_raw) {
        let _ = setpriority_process(Some(thread), nice);
    }
}
