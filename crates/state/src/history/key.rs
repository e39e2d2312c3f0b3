//! What distinguishes a job from others.

use millstream_core::stable_hash::hash;

/// What distinguishes a job from others: its file, and the variables that were set for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobKey {
    /// The path of the file, from the root.
    pub path: String,
    /// The variables of the command line, as `NAME=VALUE`, sorted.
    pub variables: String,
}

impl JobKey {
    /// The key of the job at `path` with `variables`.
    pub fn new(path: &str, variables: &[(String, String)]) -> Self {
        let path = fs_err::canonicalize(path).map_or_else(|_| path.to_owned(), |path| path.display().to_string());
        let mut variables: Vec<String> = variables.iter().map(|(name, value)| format!("{name}={value}")).collect();
        variables.sort();
        JobKey { path, variables: variables.join("\n") }
    }

    /// The key as one text, which names locks and, in targets, loads: it must never change.
    pub fn text(&self) -> String {
        match self.variables.is_empty() {
            true => self.path.clone(),
            // Values may be long, and do not belong in a target.
            false => format!("{} {:016x}", self.path, hash(&self.variables)),
        }
    }

    /// Whether `text` is that of a key of the same file, with these variables or others.
    pub fn is_of_file(&self, text: &str) -> bool {
        let variables = text.strip_prefix(&self.path).map(|rest| rest.strip_prefix(' ').unwrap_or(rest));
        variables.is_some_and(|hash| text == self.path || (hash.len() == 16 && u64::from_str_radix(hash, 16).is_ok()))
    }
}

#[cfg(test)]
mod tests {
    use super::JobKey;

    #[test]
    fn the_text_of_a_key_is_stored_and_stays() {
        let set = |variables: &[(&str, &str)]| {
            let variables: Vec<_> =
                variables.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
            JobKey::new("/no such folder/a.yaml", &variables)
        };
        assert_eq!(set(&[]).text(), "/no such folder/a.yaml");
        assert_eq!(set(&[("B", "2"), ("A", "1")]).variables, "A=1\nB=2");
        assert_eq!(set(&[("A", "foobar")]).text(), set(&[("A", "foobar")]).text());
        let plain = JobKey { path: "a.yaml".to_owned(), variables: "foobar".to_owned() };
        assert_eq!(plain.text(), "a.yaml 85944171f73967e8");
    }

    #[test]
    fn keys_of_one_file_are_known_by_their_texts() {
        let key = |path: &str, variables: &str| JobKey { path: path.to_owned(), variables: variables.to_owned() };
        for (other, same) in [
            (key("/a.yaml", ""), true),
            (key("/a.yaml", "A=1"), true),
            (key("/a.yaml 2", ""), false),
            (key("/a.yam", ""), false),
            (key("/b.yaml", "A=1"), false),
        ] {
            assert_eq!(key("/a.yaml", "A=2").is_of_file(&other.text()), same, "{other:?}");
        }
    }
}
