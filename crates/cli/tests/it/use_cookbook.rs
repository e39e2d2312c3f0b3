//! The recipes of the cookbook, as its readers try them: the files and commands of each are taken from the page, and
//! the lines that it shows have to be among those that come. A command has to succeed, unless the page shows that it
//! does not.

use std::path::Path;

use millstream_testkit::TempTree;

use crate::harness::{self, MILLSTREAM};

const PAGE: &str = include_str!("../../../../docs/guide/cookbook.md");

/// A block of code of the page.
struct Block<'p> {
    language: &'p str,
    lines: Vec<&'p str>,
}

impl Block<'_> {
    /// The name of the file that it is, and its text.
    fn file(&self) -> Option<(&str, String)> {
        let name = self.lines.first()?.strip_prefix("# ")?;
        let is_name = self.language != "console" && !name.contains(' ');
        is_name.then(|| (name, self.lines[1..].join("\n") + "\n"))
    }

    /// The commands, and what comes of each.
    fn commands(&self) -> Vec<(&str, Vec<&str>)> {
        let mut commands: Vec<(&str, Vec<&str>)> = Vec::new();
        for line in self.lines.iter().filter(|_| self.language == "console") {
            match line.strip_prefix("$ ") {
                Some(command) => commands.push((command, Vec::new())),
                None => commands.last_mut().expect("a command comes first").1.push(line),
            }
        }
        commands
    }
}

/// The recipes: their titles and blocks.
fn recipes() -> Vec<(&'static str, Vec<Block<'static>>)> {
    let mut recipes: Vec<(&str, Vec<Block<'_>>)> = Vec::new();
    let mut open = false;
    for line in PAGE.lines() {
        if let Some(language) = line.strip_prefix("```") {
            open = !open;
            if open {
                recipes.last_mut().expect("a title comes first").1.push(Block { language, lines: Vec::new() });
            }
        } else if open {
            recipes.last_mut().and_then(|(_, blocks)| blocks.last_mut()).expect("a block").lines.push(line);
        } else if let Some(title) = line.strip_prefix("## ") {
            recipes.push((title, Vec::new()));
        }
    }
    recipes
}

/// `done in 0.02 s` is `done in [time] s`, and blanks at the ends of lines say nothing.
fn comparable(line: &str) -> String {
    match line.split_once("done in ").and_then(|(before, after)| Some((before, after.split_once(" s")?.1))) {
        Some((before, after)) => format!("{before}done in [time] s{after}"),
        None => line.trim().to_owned(),
    }
}

/// Whether the page shows that a command fails: by an error, or a value of `--for` that failed.
fn shows_failure(shown: &[&str]) -> bool {
    shown.iter().any(|line| line.starts_with("error: ") || line.contains(" failed, "))
}

/// Runs `command` in `folder`, as a shell of a reader; it has to succeed, or to fail.
fn told(folder: &Path, command: &str, fails: bool) -> String {
    let mut shell = harness::program(folder, "bash");
    let binary = Path::new(MILLSTREAM).parent().expect("a folder").display().to_string();
    let path = std::env::var("PATH").unwrap_or_default();
    let ended = shell.args(["-c", command]).env("PATH", format!("{binary}:{path}")).output().expect("it runs");
    let text = [ended.stdout, ended.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    assert!(!text.contains("panicked"), "{command}\n{text}");
    assert_eq!(!ended.status.success(), fails, "`{command}` ends with {}\n{text}", ended.status);
    text
}

fn try_recipe(title: &str, blocks: &[Block<'_>]) {
    let folder = TempTree::new();
    for (name, text) in blocks.iter().filter_map(Block::file) {
        folder.file(name, text);
    }
    for (command, shown) in blocks.iter().flat_map(Block::commands) {
        let told = told(folder.root(), command, shows_failure(&shown));
        let mut lines = told.lines().map(comparable);
        for line in shown.iter().map(|line| comparable(line)) {
            let comes = lines.any(|told| told.starts_with(&line));
            assert!(comes, "{title}: `{command}`: this does not come: {line}\n{told}");
        }
    }
}

#[test]
fn the_recipes_do_what_the_page_says() {
    let recipes = recipes();
    assert!(recipes.len() > 5, "{}", recipes.len());
    for (title, blocks) in &recipes {
        assert!(blocks.iter().any(|block| !block.commands().is_empty()), "{title} has no command");
        try_recipe(title, blocks);
    }
}

/// Each recipe is in the table at the top, under the name that links have.
#[test]
fn the_page_names_its_recipes() {
    for (title, _) in recipes() {
        let anchor = title.to_lowercase().replace(' ', "-");
        assert!(PAGE.contains(&format!("| [{title}](#{anchor}) |")), "{title}");
    }
}

#[test]
fn units_of_systemd_are_sound() {
    let folder = TempTree::new();
    let mut units = Vec::new();
    for (name, text) in recipes().iter().flat_map(|(_, blocks)| blocks).filter_map(Block::file) {
        if name.ends_with(".service") || name.ends_with(".timer") {
            assert!(text.starts_with("[Unit]\nDescription="), "{name}");
            units.push(folder.file(name, text.replace("/usr/local/bin/millstream", MILLSTREAM)));
        }
    }
    assert_eq!(units.len(), 2);
    let mut verify = harness::program(folder.root(), "systemd-analyze");
    // Containers have no systemd.
    let Ok(verified) = verify.arg("verify").args(&units).output() else { return };
    let told = String::from_utf8_lossy(&verified.stderr).into_owned();
    let faults: Vec<&str> = told.lines().filter(|line| line.contains("shop-load")).collect();
    assert!(faults.is_empty(), "{told}");
}
