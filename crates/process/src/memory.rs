//! The memory of programs.

/// The memory of the process `process` and its children in bytes. A page that several processes share counts in each
/// with its part (the kernel's proportional set size), so once in all.
pub fn of_tree(process: i32) -> u64 {
    let (mut left, mut bytes) = (vec![process], 0);
    while let Some(process) = left.pop() {
        let rollup = fs_err::read_to_string(format!("/proc/{process}/smaps_rollup")).unwrap_or_default();
        bytes += rollup.lines().find_map(|line| kilobytes(line.strip_prefix("Pss:")?)).unwrap_or(0) << 10;
        // Each thread has the children that it has started.
        for thread in fs_err::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten() {
            let children = fs_err::read_to_string(thread.path().join("children")).unwrap_or_default();
            left.extend(children.split_ascii_whitespace().filter_map(|child| child.parse::<i32>().ok()));
        }
    }
    bytes
}

fn kilobytes(text: &str) -> Option<u64> {
    text.trim().strip_suffix("kB")?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_memory() {
        let bytes = of_tree(std::process::id() as i32);
        assert!((500_000..10_000_000_000).contains(&bytes), "{bytes}");
    }

    #[test]
    fn a_process_that_has_ended_has_none() {
        assert_eq!(of_tree(i32::MAX), 0);
    }
}
