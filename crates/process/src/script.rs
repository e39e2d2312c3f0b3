//! The script that an interpreter is to run, where it is certain which argument that is.

use std::path::Path;

/// What is known of an interpreter.
struct Interpreter {
    /// Its names, without a version.
    names: &'static [&'static str],
    /// How names of its scripts end.
    endings: &'static [&'static str],
    /// Letters of options without a value. Behind any other option it is not certain what follows.
    flags: &'static str,
    /// The option that the script follows, if it is no argument of its own.
    option: Option<&'static str>,
    /// Options with a value of their own, or with one that follows, which may come before.
    others: &'static [&'static str],
    /// Whether a name without a slash may also be one in `PATH`.
    looks_in_path: bool,
    /// Whether a name without a slash may also be one in a folder that is not known here, as with `AWKPATH`.
    looks_elsewhere: bool,
}

const fn interpreter(
    names: &'static [&'static str],
    endings: &'static [&'static str],
    flags: &'static str,
) -> Interpreter {
    Interpreter { names, endings, flags, option: None, others: &[], looks_in_path: false, looks_elsewhere: false }
}

const INTERPRETERS: &[Interpreter] = &[
    interpreter(&["python", "pypy"], &["py", "pyw", "pyz"], "bBdEiIOPqsSuvx"),
    interpreter(&["perl"], &["pl"], "wWXtT"),
    interpreter(&["ruby"], &["rb"], "w"),
    interpreter(&["node", "nodejs"], &["js", "mjs", "cjs", "ts"], ""),
    interpreter(&["Rscript"], &["R", "r"], ""),
    Interpreter { looks_in_path: true, ..interpreter(&["sh", "bash", "dash", "ksh", "zsh"], SHELL, "aefhuvx") },
    Interpreter {
        option: Some("-f"),
        others: &["-F", "-v"],
        looks_elsewhere: true,
        ..interpreter(&["awk", "gawk", "mawk", "nawk"], &["awk"], "")
    },
    Interpreter { option: Some("-jar"), others: &["-X", "-D"], ..interpreter(&["java"], &["jar"], "") },
];

const SHELL: &[&str] = &["sh", "bash", "ksh", "zsh"];

/// The argument of the program `name` that is a script, by its name and its place. Whether it is there is not known.
fn script<'a>(name: &str, arguments: &[&'a str]) -> Option<(&'a str, &'static Interpreter)> {
    let name = Path::new(name).file_name()?.to_str()?;
    let name = name.trim_end_matches(|one: char| one.is_ascii_digit() || one == '.');
    let kind = INTERPRETERS.iter().find(|kind| kind.names.contains(&name))?;
    let mut arguments = arguments.iter().copied();
    loop {
        let argument = arguments.next()?;
        if kind.option == Some(argument) {
            let script = arguments.next()?;
            return kind.is_script(script).then_some((script, kind));
        }
        match argument.strip_prefix('-') {
            None => return (kind.option.is_none() && kind.is_script(argument)).then_some((argument, kind)),
            Some(letters) if !letters.is_empty() && letters.chars().all(|letter| kind.flags.contains(letter)) => {}
            Some(_) => {
                let other = kind.others.iter().find(|other| argument.starts_with(*other))?;
                // Those of awk may be apart from their value; those of java never are.
                if argument == *other && kind.option == Some("-f") {
                    arguments.next()?;
                }
            }
        }
    }
}

impl Interpreter {
    fn is_script(&self, argument: &str) -> bool {
        let ending = Path::new(argument).extension().and_then(|ending| ending.to_str());
        ending.is_some_and(|ending| self.endings.contains(&ending)) && (!self.looks_elsewhere || argument.contains('/'))
    }
}

/// The script that the program `name` with these arguments is to run, if it is certain that there is none: no file has
/// its name, which is relative to `folder`.
pub fn missing<'a>(name: &str, arguments: &[&'a str], folder: &Path) -> Option<&'a str> {
    let (script, kind) = script(name, arguments)?;
    let in_path = || {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path).any(|folder| folder.join(script).exists())
    };
    let is_there = folder.join(script).exists() || (kind.looks_in_path && !script.contains('/') && in_path());
    (!is_there).then_some(script)
}

#[cfg(test)]
mod tests {
    use super::script;

    #[test]
    fn a_script_is_found_where_it_is_certain() {
        let of = |words: &'static str| {
            let words: Vec<&str> = words.split(' ').collect();
            script(words[0], &words[1..]).map(|(script, _)| script)
        };
        for (words, is) in [
            ("python3 step.py --out new.py", "step.py"),
            ("/usr/bin/python3.11 -u -OO lib/step.py", "lib/step.py"),
            ("perl -w step.pl", "step.pl"),
            ("ruby step.rb", "step.rb"),
            ("node step.mjs", "step.mjs"),
            ("bash -eu step.sh", "step.sh"),
            ("Rscript step.R", "step.R"),
            ("awk -F , -v a=1 -f ./step.awk", "./step.awk"),
            ("awk -F, -f lib/step.awk", "lib/step.awk"),
            ("java -Xmx1g -Da=b -jar step.jar", "step.jar"),
        ] {
            assert_eq!(of(words), Some(is), "{words}");
        }
        for words in [
            "python3 -c step.py",
            "python3 -m step.py",
            "python3 -W ignore.py step.py",
            "python3 step",
            "python3 -",
            "python3",
            "perl -I lib.pl step.pl",
            "bash -o pipefail step.sh",
            "bash -c step.sh",
            "sh step",
            "node --import a.mjs step.mjs",
            "awk step.awk",
            "gawk -f getopt.awk -f ./step.awk",
            "java step.jar",
            "java -cp a.jar Main",
            "cat step.py",
            "./python-like step.py",
        ] {
            assert_eq!(of(words), None, "{words}");
        }
    }
}
